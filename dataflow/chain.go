package dataflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// chain is the operators of a task and where their outputs go. It runs one batch to its end before
// the next one starts.
type chain struct {
	spec    TaskSpec
	ops     []Operator
	outlets [][]*outlet // by edge and partition
	sinks   []*sinkPort
	out     []opOutput // by operator, reused
}

// opOutput collects what an operator emits in one call, per output.
type opOutput struct {
	payload [][]byte
	count   []int
}

// open makes the operators, from state if it is not nil. What is marked as fresh is so only where the state
// is of an older generation.
func (c *chain) open(ctx context.Context, ops Operators, state StateReader, older bool) error {
	for i, spec := range c.spec.Ops {
		spec.Operator.Fresh = spec.Operator.Fresh && older
		op, err := ops.New(ctx, spec.Operator, stateOf(i, state))
		if err != nil {
			return ofOperator(spec.Operator.Name, err)
		}
		c.ops = append(c.ops, op)
		c.out = append(c.out, opOutput{make([][]byte, len(spec.Outputs)), make([]int, len(spec.Outputs))})
	}
	return nil
}

// ofOperator names the operator that an error is of, unless the error does.
func ofOperator(name string, err error) error {
	if strings.HasPrefix(err.Error(), "operator "+name+": ") {
		return err
	}
	return fmt.Errorf("operator %s: %w", name, err)
}

func (c *chain) close() error {
	var errs []error
	for _, op := range c.ops {
		errs = append(errs, op.Close())
	}
	c.ops, c.out = nil, nil
	return errors.Join(errs...)
}

// stateOf narrows saved state to the operator at one place in the chain.
func stateOf(place int, state StateReader) StateReader {
	if state == nil {
		return nil
	}
	return func(visit func(Change) error) error {
		return state(func(ch Change) error {
			if ch.Space == SpaceDedupe || ch.Space == SpaceLoop || ch.Space == SpaceOutbox || int(binary.BigEndian.Uint16(ch.Key)) != place {
				return nil
			}
			ch.Key = ch.Key[2:]
			return visit(ch)
		})
	}
}

// freeze collects the operators' changes.
func (c *chain) freeze(full bool) ([]Change, error) {
	var out []Change
	for i, op := range c.ops {
		changes, err := op.Freeze(full)
		if err != nil {
			return nil, fmt.Errorf("operator %s: snapshot: %w", c.spec.Ops[i].Operator.Name, err)
		}
		for _, ch := range changes {
			key := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(ch.Key)), uint16(i))
			ch.Key = append(key, ch.Key...)
			out = append(out, ch)
		}
	}
	return out, nil
}

// run passes records to targets. cause is the log entry that they come from.
func (c *chain) run(targets []Target, b Batch, cause abs.Position) error {
	for _, t := range targets {
		if err := c.runOne(t, b, cause); err != nil {
			return err
		}
	}
	return nil
}

func (c *chain) runOne(t Target, b Batch, cause abs.Position) error {
	if t.Rekey != nil {
		var err error
		if b.Payload, err = c.rekey(t.Rekey, b.Payload); err != nil {
			return err
		}
	}
	switch t.Kind {
	case ToEdge:
		return c.route(t.Index, b, cause)
	case ToSink:
		return c.sink(c.sinks[t.Index], b.Payload, cause)
	}
	b.Input = t.Input
	return c.collect(t.Index, b.Stamp, cause, func(emit Emit) error { return c.ops[t.Index].Process(b, emit) })
}

// call makes a call that time has made due.
func (c *chain) call(op int, due TimeCall, stamp int64, cause abs.Position) error {
	return c.collect(op, stamp, cause, func(emit Emit) error { return c.ops[op].(TimedOperator).Call(due, emit) })
}

// collect passes on what an operator emits in one call.
func (c *chain) collect(op int, stamp int64, cause abs.Position, call func(Emit) error) error {
	out := &c.out[op]
	for i := range out.payload {
		out.payload[i], out.count[i] = out.payload[i][:0], 0
	}
	err := call(func(output int, payload []byte, count int) error {
		if output < 0 || output >= len(out.payload) {
			return fmt.Errorf("output %d, the operator has %d", output, len(out.payload))
		}
		out.payload[output] = append(out.payload[output], payload...)
		out.count[output] += count
		return nil
	})
	if err != nil {
		return err
	}
	for i, targets := range c.spec.Ops[op].Outputs {
		if out.count[i] == 0 {
			continue
		}
		next := Batch{Stamp: stamp, Count: out.count[i], Payload: out.payload[i]}
		if err := c.run(targets, next, cause); err != nil {
			return err
		}
	}
	return nil
}

// rekey rewrites the records with their new keys.
func (c *chain) rekey(key Rekey, payload []byte) ([]byte, error) {
	out := make([]byte, 0, len(payload)+len(payload)/4)
	for len(payload) > 0 {
		r, rest, err := frame.Next(payload)
		if err != nil {
			return nil, err
		}
		k, err := key(r)
		if err != nil {
			return nil, &GuestError{"key_by", err.Error()}
		}
		r.Key = k
		if err := r.Check(); err != nil {
			return nil, &GuestError{"key_by", err.Error()}
		}
		out = frame.AppendRecord(out, r)
		payload = rest
	}
	return out, nil
}

// route appends records to the channels of an edge.
func (c *chain) route(edge int, b Batch, cause abs.Position) error {
	outs, part := c.outlets[edge], c.spec.Edges[edge].Partition
	if part == nil || len(outs) == 1 {
		return outs[0].addAll(b.Payload, b.Count, cause)
	}
	for payload := b.Payload; len(payload) > 0; {
		r, rest, err := frame.Next(payload)
		if err != nil {
			return err
		}
		outs[part(r.Key)].add(payload[:len(payload)-len(rest)], cause)
		payload = rest
	}
	return nil
}

func (c *chain) sink(p *sinkPort, payload []byte, cause abs.Position) error {
	for len(payload) > 0 {
		n, err := frame.Skip(payload, 1)
		if err != nil {
			return err
		}
		if err := p.add(payload[:n], cause); err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}
