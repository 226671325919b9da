// Sums counts the readings of each second of event time, and beats on the agent's clock.
package main

import (
	"fmt"

	weir "github.com/weir-stream/weir/sdk/go"
)

const second = 1000

type window struct {
	key   string
	start int64
}

var (
	counts = map[window]int{}
	beats  int // timers of processing time
	marks  int // watermarks
)

func init() {
	weir.Register(weir.Operator{
		Outputs: []string{"late"},
		Process: func(r weir.Record, out *weir.Out) error {
			w := window{string(r.Key), r.Time - r.Time%second}
			if w.start+second <= weir.Watermark() {
				out.EmitTo("late", r.Key, r.Time, r.Value)
				return nil
			}
			if counts[w]++; counts[w] == 1 {
				weir.SetTimer(weir.EventTime, w.start+second, r.Key)
				weir.SetTimer(weir.ProcessingTime, weir.Now()+150, r.Key)
				weir.State.PutUntil(fmt.Appendf(nil, "%s/%d", r.Key, w.start), []byte("open"), w.start+second)
			}
			return nil
		},
		OnTimer: func(t weir.Timer, out *weir.Out) error {
			if t.Kind == weir.ProcessingTime {
				beats++
				return nil
			}
			w := window{string(t.Key), t.At - second}
			stale := 0 // keys that should have expired
			weir.State.Scan(nil, func(key, _ []byte) bool {
				var start int64
				if _, err := fmt.Sscanf(string(key), "m%d/%d", new(int), &start); err != nil || start+second <= t.At {
					stale++
				}
				return true
			})
			out.Emit(t.Key, t.At, fmt.Appendf(nil, `{"from":%d,"n":%d,"stale":%d,"beats":%d,"marks":%d}`, w.start, counts[w], stale, beats, marks))
			delete(counts, w)
			return nil
		},
		OnWatermark: func(int64, *weir.Out) error {
			marks++
			return nil
		},
	})
}

func main() {}
