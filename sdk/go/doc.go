// Package weir is for writing Weir operators in Go.
//
// An operator is an ordinary Go program without a main loop. It registers what to do with a record
// and keeps its state in ordinary variables; the host captures and restores them. There is no snapshot
// code to write.
//
//	package main
//
//	import weir "github.com/weir-stream/weir/sdk/go"
//
//	var seen = map[string]int{}
//
//	func init() {
//		weir.Register(weir.Operator{Process: func(r weir.Record, out *weir.Out) error {
//			seen[string(r.Key)]++
//			out.Emit(r.Key, r.Time, strconv.AppendInt(nil, int64(seen[string(r.Key)]), 10))
//			return nil
//		}})
//	}
//
//	func main() {}
//
// Build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o operator.wasm .
//
// Timers in event time and processing time ([SetTimer]), watermarks and the end of the input come to the other
// functions of [Operator].
//
// An operator must depend on nothing but its records, its configuration and the host's clock and
// random numbers; time.Now and math/rand are those of the host, so they may be used. There are no
// files, no network and no environment. Iteration over a map is in random order, but in the same order
// whenever a run is repeated.
//
// The package also builds natively, so that an operator can be run in a plain Go test: see
// [NewHarness].
package weir
