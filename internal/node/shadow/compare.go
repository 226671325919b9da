package shadow

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/weir-stream/weir/dataflow/frame"
)

// maxShift bounds how many records in a row one version may leave out for the others to be compared as they belong.
const maxShift = 64

// verdict is what a comparison of one call's output says.
type verdict struct {
	equal, different uint64
	first            *Difference // nil: none
}

// compare compares what two versions put out in a call, by output. names are those of the outputs.
func compare(old, new [][]byte, names []string) (v verdict, err error) {
	for i, name := range names {
		if err := v.output(name, at(old, i), at(new, i)); err != nil {
			return v, err
		}
	}
	return v, nil
}

func at(out [][]byte, i int) []byte {
	if i < len(out) {
		return out[i]
	}
	return nil
}

func (v *verdict) output(name string, old, new []byte) error {
	if bytes.Equal(old, new) {
		n, err := frame.Count(old)
		v.equal += uint64(n)
		return wrong(name, err)
	}
	was, err := records(old)
	if err != nil {
		return wrong(name, err)
	}
	is, err := records(new)
	if err != nil {
		return wrong(name, err)
	}
	for i, j := 0, 0; i < len(was) || j < len(is); {
		switch left, right := was[i:], is[j:]; {
		case len(left) > 0 && len(right) > 0 && differs(left[0], right[0]) == "":
			v.equal++
			i, j = i+1, j+1
		case only(left, right):
			v.part(name, i, &left[0], nil)
			i++
		case only(right, left):
			v.part(name, i, nil, &right[0])
			j++
		default:
			v.part(name, i, &left[0], &right[0])
			i, j = i+1, j+1
		}
	}
	return nil
}

// only says whether the first of the records is one that the others, which are fewer, do not have.
func only(some, others []frame.Record) bool {
	surplus := len(some) - len(others)
	if surplus <= 0 || len(others) == 0 {
		return surplus > 0
	}
	for k := 1; k <= min(surplus, maxShift); k++ {
		if differs(some[k], others[0]) == "" {
			return true
		}
	}
	return false
}

func wrong(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("output %s: %w", name, err)
}

func records(payload []byte) (out []frame.Record, err error) {
	for len(payload) > 0 {
		var r frame.Record
		if r, payload, err = frame.Next(payload); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// differs is the first part in which two records differ; empty: none.
func differs(a, b frame.Record) string {
	switch {
	case !bytes.Equal(a.Key, b.Key):
		return "key"
	case !bytes.Equal(a.Value, b.Value):
		return "value"
	case a.Time != b.Time:
		return "time"
	case !bytes.Equal(a.Headers, b.Headers):
		return "headers"
	}
	return ""
}

// part counts a difference: of two records, or one that the other version has not.
func (v *verdict) part(output string, index int, old, new *frame.Record) {
	if v.different++; v.first != nil {
		return
	}
	d := &Difference{Output: output, Index: index}
	v.first = d
	switch {
	case new == nil:
		d.Part, d.Key, d.Old = "missing", short(string(old.Key), maxText), short(string(old.Value), maxText)
		return
	case old == nil:
		d.Part, d.Key, d.New = "extra", short(string(new.Key), maxText), short(string(new.Value), maxText)
		return
	}
	d.Part, d.Key = differs(*old, *new), short(string(old.Key), maxText)
	switch d.Part {
	case "key":
		d.Old, d.New = apart(old.Key, new.Key)
	case "value":
		d.Old, d.New = apart(old.Value, new.Value)
	case "time":
		d.Old, d.New = strconv.FormatInt(old.Time, 10), strconv.FormatInt(new.Time, 10)
	case "headers":
		d.Old, d.New = apart(old.Headers, new.Headers)
	}
}

// apart are two texts, cut to where they part.
func apart(a, b []byte) (string, string) {
	const before = 20
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	if len(a) <= maxText && len(b) <= maxText || same <= before {
		return short(string(a), maxText), short(string(b), maxText)
	}
	from := same - before
	return "…" + short(string(a[from:]), maxText), "…" + short(string(b[from:]), maxText)
}
