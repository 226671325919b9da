package abitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops"
)

// image is an operator's whole state: the newest value of every key.
type image map[string]dataflow.Change

func (m image) save(changes []dataflow.Change) {
	for _, c := range changes {
		m[fmt.Sprintf("%03d/%s", c.Space, c.Key)] = c
	}
}

func (m image) read(visit func(dataflow.Change) error) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name].Value == nil {
			continue
		}
		if err := visit(m[name]); err != nil {
			return err
		}
	}
	return nil
}

// difference names the first key in which two images differ, "" if there is none.
func (m image) difference(other image) string {
	names := slices.Sorted(maps.Keys(m))
	for name := range other {
		if _, there := m[name]; !there {
			names = append(names, name)
		}
	}
	for _, name := range names {
		a, b := m[name], other[name]
		if a.Value == nil && b.Value == nil || bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil) {
			continue
		}
		c := a
		if a.Value == nil {
			c = b
		}
		switch c.Space {
		case dataflow.SpaceMemory:
			return fmt.Sprintf("memory page %x", c.Key)
		case dataflow.SpaceKeyed:
			return fmt.Sprintf("keyed state of %q", c.Key)
		case dataflow.SpaceTimer:
			return fmt.Sprintf("timer %x", c.Key)
		}
		return fmt.Sprintf("globals (%d, %x)", c.Space, c.Key)
	}
	return ""
}

// replace freezes op, closes it, and returns a new instance with the same state.
func replace(ctx context.Context, host *wasmops.Host, spec dataflow.OperatorSpec, op dataflow.Operator, saved image) (dataflow.Operator, error) {
	changes, err := op.Freeze(len(saved) == 0)
	if err != nil {
		return op, err
	}
	saved.save(changes)
	next, err := host.New(ctx, spec, saved.read)
	if err != nil {
		return op, fmt.Errorf("restore: %w", err)
	}
	return next, op.Close()
}

// snapshots runs two instances side by side: one whole, one replaced by a restored copy after every
// call. All they put out, and in the end all of their state, must be equal byte for byte.
func (k *kit) snapshots(ctx context.Context) (err error) {
	spec := k.spec(map[string]string{"name": "x"}, "side")
	whole, err := k.host.New(ctx, spec, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.Close()) }()
	again, err := k.host.New(ctx, spec, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, again.Close()) }()
	saved := image{}
	for i := range 60 {
		b := snapshotBatch(i)
		if err := sameOutput(whole, again, b); err != nil {
			return fmt.Errorf("batch %d: %w", i+1, err)
		}
		if again, err = replace(ctx, k.host, spec, again, saved); err != nil {
			return err
		}
		if err := sameTime(whole, again, i); err != nil {
			return fmt.Errorf("time after batch %d: %w", i+1, err)
		}
		if again, err = replace(ctx, k.host, spec, again, saved); err != nil {
			return err
		}
	}
	a, b := image{}, image{}
	for op, m := range map[dataflow.Operator]image{whole: a, again: b} {
		changes, err := op.Freeze(true)
		if err != nil {
			return err
		}
		m.save(changes)
	}
	if at := a.difference(b); at != "" {
		return fmt.Errorf("a restored copy's state differs from that of the instance that ran whole: %s", at)
	}
	return nil
}

// snapshotBatch is the i-th batch: a little of everything, of different sizes.
func snapshotBatch(i int) dataflow.Batch {
	key := "k" + strconv.Itoa(i%7)
	at := strconv.Itoa(100 + i*10)
	records := []frame.Record{
		command(key, "T0"+at), command("a", "T0"+at), command(key, "T1"+strconv.FormatInt(stamp+int64(i)*3, 10)), command("e"+key, "P"+at+"|x"), command("e"+key, "g"), command(key, "m"),
		command(key, "v"), command(key, "p"+strconv.Itoa(i)), command(key, "g"), command("k", "x"), command(key, "s"),
		command(key, `j{"v":`+strconv.Itoa(i)+`.5}`), command(key, "n"+strconv.Itoa(i*i)), command(key, "cname"), command(key, "t"),
	}
	if i%5 == 4 {
		records = append(records, command(key, "d"), command(key, "w"+strconv.Itoa(i*4000)))
	}
	b := batch(records...)
	b.Stamp += int64(i)
	return b
}

func sameOutput(a, b dataflow.Operator, batch dataflow.Batch) error {
	return same(a, b, func(op dataflow.Operator, emit dataflow.Emit) error { return op.Process(batch, emit) })
}

// sameTime moves time on, behind the batches, so that some timers and keys are due and others are not.
func sameTime(a, b dataflow.Operator, i int) error {
	m := dataflow.Moment{Watermark: int64(80 + i*10), Stamp: stamp + int64(i*2), Tick: i%2 == 0}
	return same(a, b, func(op dataflow.Operator, emit dataflow.Emit) error { return move(op, m, emit) })
}

// move tells an operator where time stands and makes the calls that are due.
func move(op dataflow.Operator, m dataflow.Moment, emit dataflow.Emit) error {
	timed := op.(dataflow.TimedOperator)
	timed.Advance(m)
	for c, due := timed.Next(); due; c, due = timed.Next() {
		if err := timed.Call(c, emit); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func same(a, b dataflow.Operator, do func(dataflow.Operator, dataflow.Emit) error) error {
	var outs [2][]byte
	for i, op := range []dataflow.Operator{a, b} {
		err := do(op, func(output int, payload []byte, count int) error {
			outs[i] = append(fmt.Appendf(outs[i], "output %d, %d records: ", output, count), payload...)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if !bytes.Equal(outs[0], outs[1]) {
		return errors.New("a restored copy puts out other bytes than the instance that ran whole")
	}
	return nil
}
