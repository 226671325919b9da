// Watch is the head of the example's loop: a reading above its key's threshold becomes an alarm. What the
// operator learn makes of the alarms comes back to it as the key's next threshold. Alarms and thresholds
// are numbered per key from 1, so that one that is lost or comes twice shows: on the output "broken".
package main

import (
	"fmt"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"broken", "learned"}, Init: start, Process: process}

var (
	first float64 // threshold of a new key
	field string  // JSON field that holds the reading
)

func start(c weir.Config) (err error) {
	field = c.String("field", "v")
	first, err = c.Float("threshold", 10)
	return err
}

// machine is what is known of a key.
type machine struct {
	threshold        float64
	readings, alarms int64
	learned          int64 // thresholds that have come back
}

var (
	machines = map[string]*machine{}
	buf      []byte
)

func process(r weir.Record, out *weir.Out) error {
	m := machines[string(r.Key)]
	if m == nil {
		m = &machine{threshold: first}
		machines[string(r.Key)] = m
	}
	if t, ok := weir.JSONNumber(r.Value, "threshold"); ok {
		n, _ := weir.JSONNumber(r.Value, "n")
		m.learn(r, int64(n), t, out)
		return nil
	}
	v, ok := weir.JSONNumber(r.Value, field)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	if m.readings++; v > m.threshold {
		m.alarms++
		buf = append(buf[:0], `{"n":`...)
		buf = strconv.AppendInt(buf, m.alarms, 10)
		buf = append(buf, `,"v":`...)
		buf = strconv.AppendFloat(buf, v, 'g', -1, 64)
		buf = append(buf, `,"above":`...)
		buf = strconv.AppendFloat(buf, m.threshold, 'g', -1, 64)
		buf = append(buf, `,"readings":`...)
		buf = strconv.AppendInt(buf, m.readings, 10)
		out.Emit(r.Key, r.Time, append(buf, '}'))
	}
	return nil
}

// learn takes the n-th threshold.
func (m *machine) learn(r weir.Record, n int64, threshold float64, out *weir.Out) {
	if m.learned++; n != m.learned {
		out.EmitTo("broken", r.Key, r.Time, fmt.Appendf(buf[:0], `{"threshold":%d,"expected":%d}`, n, m.learned))
		m.learned = n
	}
	m.threshold = threshold
	out.EmitTo("learned", r.Key, r.Time, fmt.Appendf(buf[:0], `{"n":%d,"alarms":%d,"readings":%d}`, n, m.alarms, m.readings))
}
