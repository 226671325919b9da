// Tally is the operator of the chaos jobs: it counts the records of each key and passes on each with its count. The
// field that its config names as seq becomes the seq of what it emits. Its state is an ordinary map.
package main

import (
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() {
	weir.Register(weir.Operator{Init: func(c weir.Config) error {
		seq = c.String("seq", "seq")
		return nil
	}, Process: process})
}

func main() {}

var (
	seq    string
	counts = map[string]int64{}
	buf    []byte
)

func process(r weir.Record, out *weir.Out) error {
	n := counts[string(r.Key)] + 1
	counts[string(r.Key)] = n
	buf = append(buf[:0], `{"n":`...)
	buf = strconv.AppendInt(buf, n, 10)
	for _, f := range [...]struct{ as, from string }{{"seq", seq}, {"u", "u"}, {"g", "g"}} {
		v, ok := weir.JSONField(r.Value, f.from)
		if !ok {
			continue
		}
		buf = append(buf, `,"`...)
		buf = append(buf, f.as...)
		buf = append(buf, `":`...)
		buf = append(buf, v...)
	}
	out.Emit(r.Key, r.Time, append(buf, '}'))
	return nil
}
