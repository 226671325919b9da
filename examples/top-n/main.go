// Top-n keeps the n keys with the highest readings and emits the list whenever it changes. Its state
// is an ordinary slice. What falls out of the list is reported on the output "alerts" when it had led it.
package main

import (
	"errors"
	"sort"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"alerts"}, Init: start, Process: process}

var (
	size  int    // length of the list
	field string // JSON field that holds the reading
)

func start(c weir.Config) (err error) {
	if size, err = c.Int("n", 3); err != nil {
		return err
	}
	field = c.String("field", "v")
	if size < 1 || size > 1000 {
		return errors.New("config n: must be between 1 and 1000")
	}
	return nil
}

type entry struct {
	key   string
	value float64
}

// list is the highest reading of each key in it, highest first, keys in order among equals.
var (
	list []entry
	buf  []byte
)

func process(r weir.Record, out *weir.Out) error {
	v, ok := weir.JSONNumber(r.Value, field)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	leader := ""
	if len(list) > 0 {
		leader = list[0].key
	}
	if !take(string(r.Key), v) {
		return nil
	}
	if leader != "" && list[0].key != leader {
		buf = append(buf[:0], `{"leader":`...)
		buf = weir.AppendJSONString(buf, list[0].key)
		buf = append(buf, `,"before":`...)
		buf = weir.AppendJSONString(buf, leader)
		out.EmitTo("alerts", r.Key, r.Time, append(buf, '}'))
	}
	out.Emit([]byte("top"), r.Time, encode())
	return nil
}

// take puts a reading into the list and says whether that changed it.
func take(key string, v float64) bool {
	at := -1
	for i, e := range list {
		if e.key == key {
			at = i
		}
	}
	switch {
	case at >= 0 && list[at].value >= v:
		return false
	case at >= 0:
		list[at].value = v
	case len(list) < size:
		list = append(list, entry{key, v})
	case list[len(list)-1].value >= v:
		return false
	default:
		list[len(list)-1] = entry{key, v}
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].value != list[j].value {
			return list[i].value > list[j].value
		}
		return list[i].key < list[j].key
	})
	return true
}

func encode() []byte {
	buf = append(buf[:0], '[')
	for i, e := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(buf, `{"key":`...)
		buf = weir.AppendJSONString(buf, e.key)
		buf = append(buf, `,"v":`...)
		buf = strconv.AppendFloat(buf, e.value, 'f', -1, 64)
		buf = append(buf, '}')
	}
	return append(buf, ']')
}
