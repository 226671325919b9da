package wasmops

import (
	"encoding/binary"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/weir-stream/weir/dataflow"
)

// keyedState is the keyed state of one instance: a map with its keys in order, and what changed
// since it was last frozen.
type keyedState struct {
	values  map[string]*keyedValue
	last    *keyedValue         // was looked for last and is there: a guest puts what it has got
	order   keyOrder            // of the keys, once they were asked for in order
	ordered bool                // order is kept
	changed []*keyedValue       // put since the last freeze, removed ones included
	gone    map[string]struct{} // removed since the last freeze, which had them, and not there again
	waste   int                 // of changed: removed
	now     int64               // the watermark: keys that expire up to it are there no more
	bytes   int64               // of keys and values, and keyOverhead for each key
}

// keyOverhead is about what a key takes besides its bytes and those of its value.
const keyOverhead = 64

// keyedValue is the value of one key. Values are never handed out, only copied.
type keyedValue struct {
	key     string
	value   []byte
	until   int64 // if it expires: the watermark at which it is gone
	expires bool
	removed bool
	saved   bool // the last freeze had the key
	changed bool // it is in keyedState.changed
}

func newKeyedState() *keyedState {
	return &keyedState{values: map[string]*keyedValue{}, gone: map[string]struct{}{}, now: dataflow.NoTime}
}

// look finds a key's value, expired or not; nil if there is none.
func (k *keyedState) look(key []byte) *keyedValue {
	if k.last != nil && k.last.key == string(key) {
		return k.last
	}
	v := k.values[string(key)]
	if v != nil {
		k.last = v
	}
	return v
}

// get returns the value of a key, to be copied before the next change; false if there is none.
func (k *keyedState) get(key []byte) ([]byte, bool) {
	v := k.look(key)
	if v == nil || k.expired(v) {
		return nil, false
	}
	return v.value, true
}

// expired says whether a value is as good as removed.
func (k *keyedState) expired(v *keyedValue) bool { return v.expires && v.until <= k.now }

// put stores a copy of value. It returns false, and stores nothing, if that would exceed limit bytes.
func (k *keyedState) put(key, value []byte, limit int64) bool {
	v := k.look(key)
	grow := int64(len(value))
	if v == nil {
		grow += int64(len(key)) + keyOverhead
	} else {
		grow -= int64(len(v.value))
	}
	if grow > 0 && k.bytes+grow > limit {
		return false
	}
	k.bytes += grow
	if v == nil {
		_, was := k.gone[string(key)]
		v = &keyedValue{key: string(key), saved: was}
		k.values[v.key], k.last = v, v
		if k.ordered {
			k.order.insert(v.key)
		}
		delete(k.gone, v.key)
	}
	// A buffer that has become much too large is not kept for a small value.
	if cap(v.value) < len(value) || cap(v.value) > 4*len(value)+64 {
		v.value = make([]byte, 0, len(value))
	}
	v.value = append(v.value[:0], value...)
	if !v.changed {
		v.changed = true
		k.changed = append(k.changed, v)
	}
	return true
}

func (k *keyedState) remove(key []byte) bool {
	v := k.look(key)
	if v == nil {
		return false
	}
	k.last = nil
	k.bytes -= int64(len(v.key)+len(v.value)) + keyOverhead
	v.removed = true
	delete(k.values, v.key)
	if k.ordered {
		k.order.remove(v.key)
	}
	if v.saved {
		k.gone[v.key] = struct{}{}
	}
	if v.changed {
		k.waste++
		k.compact()
	}
	return true
}

// compact forgets removed values that changed: a guest that puts and removes keys between two freezes
// must not fill the host's memory with them.
func (k *keyedState) compact() {
	const few = 64
	if k.waste < few || k.waste < len(k.changed)/2 {
		return
	}
	k.changed = slices.DeleteFunc(k.changed, func(v *keyedValue) bool { return v.removed })
	k.waste = 0
}

// settle forgets what changed: it has been saved, or came from what was.
func (k *keyedState) settle() {
	for _, v := range k.changed {
		v.changed, v.saved = false, true
	}
	k.waste = 0
	clear(k.changed)
	k.changed = k.changed[:0]
	clear(k.gone)
}

// sort puts the keys in order, where they stay. Most guests never ask for that.
func (k *keyedState) sort() {
	if k.ordered {
		return
	}
	k.ordered = true
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(k.values)), maxChunk/2) {
		k.order.chunks = append(k.order.chunks, slices.Clone(chunk)) // with room of its own
	}
}

// scan appends the entries whose keys begin with prefix and come after the key after (if not empty),
// as many whole ones as fit into room bytes. need is the size of the first that does not fit, if none did.
func (k *keyedState) scan(dst []byte, prefix, after string, room int) (out []byte, need int) {
	from, skip := prefix, false
	if after != "" && after >= prefix {
		from, skip = after, true
	}
	k.sort()
	k.order.from(from, func(key string) bool {
		if skip && key == after {
			return true
		}
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		v := k.values[key]
		if k.expired(v) {
			return true
		}
		value := v.value
		if size := 8 + len(key) + len(value); len(dst)+size > room {
			if len(dst) == 0 {
				need = size
			}
			return false
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(key)))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value)))
		dst = append(append(dst, key...), value...)
		return true
	})
	return dst, need
}

// freeze visits, in key order, the keys that changed since the last freeze, or all keys. A nil value
// says that the key is gone; values belong to the visitor.
func (k *keyedState) freeze(full bool, visit func(key string, value []byte)) {
	defer k.settle()
	if full {
		k.all(visit)
		return
	}
	keys := slices.AppendSeq(make([]string, 0, len(k.changed)+len(k.gone)), maps.Keys(k.gone))
	for _, v := range k.changed {
		if !v.removed {
			keys = append(keys, v.key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if v := k.values[key]; v != nil {
			visit(key, append([]byte{}, v.value...))
		} else {
			visit(key, nil)
		}
	}
}

// all visits all keys in order; values belong to the visitor.
func (k *keyedState) all(visit func(key string, value []byte)) {
	if !k.ordered {
		for _, key := range slices.Sorted(maps.Keys(k.values)) {
			visit(key, append([]byte{}, k.values[key].value...))
		}
		return
	}
	k.order.from("", func(key string) bool {
		visit(key, append([]byte{}, k.values[key].value...))
		return true
	})
}

// keyOrder holds keys in byte order, in chunks, so that an insertion moves few of them.
type keyOrder struct {
	chunks [][]string // none empty
}

// maxChunk is the size at which a chunk is split: moving half of it costs about a microsecond.
const maxChunk = 512

// find returns the chunk that holds key or would take it.
func (o *keyOrder) find(key string) int {
	i := sort.Search(len(o.chunks), func(i int) bool { return o.chunks[i][0] > key })
	return max(i-1, 0)
}

func (o *keyOrder) insert(key string) {
	if len(o.chunks) == 0 {
		o.chunks = append(o.chunks, []string{key})
		return
	}
	i := o.find(key)
	at, there := slices.BinarySearch(o.chunks[i], key)
	if there {
		return
	}
	o.chunks[i] = slices.Insert(o.chunks[i], at, key)
	if c := o.chunks[i]; len(c) > maxChunk {
		half := len(c) / 2
		o.chunks = slices.Insert(o.chunks, i+1, slices.Clone(c[half:]))
		o.chunks[i] = slices.Delete(c, half, len(c))
	}
}

func (o *keyOrder) remove(key string) {
	if len(o.chunks) == 0 {
		return
	}
	i := o.find(key)
	at, there := slices.BinarySearch(o.chunks[i], key)
	if !there {
		return
	}
	if at == 0 { // as timers go, in order
		o.chunks[i][0] = ""
		o.chunks[i] = o.chunks[i][1:]
	} else {
		o.chunks[i] = slices.Delete(o.chunks[i], at, at+1)
	}
	if len(o.chunks[i]) == 0 {
		o.chunks = slices.Delete(o.chunks, i, i+1)
	}
}

// from visits the keys not below key in order until visit returns false.
func (o *keyOrder) from(key string, visit func(string) bool) {
	if len(o.chunks) == 0 {
		return
	}
	first := o.find(key)
	at, _ := slices.BinarySearch(o.chunks[first], key)
	for _, chunk := range o.chunks[first:] {
		for _, k := range chunk[at:] {
			if !visit(k) {
				return
			}
		}
		at = 0
	}
}
