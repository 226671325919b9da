package job_test

import (
	"strconv"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/job"
)

// BenchmarkSplit is what a shuffle does with a frame of records of 50 bytes: each goes to the buffer of the
// task that owns its key, of eight.
func BenchmarkSplit(b *testing.B) {
	const tasks = 8
	var payload []byte
	count := 0
	for ; len(payload) < frame.TargetSize; count++ {
		payload = frame.AppendRecord(payload, frame.Record{Time: 1_700_000_000_000, Key: []byte("k" + strconv.Itoa(count*7919%10_000)), Value: make([]byte, 28)})
	}
	var out [tasks][]byte
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		for i := range out {
			out[i] = out[i][:0]
		}
		for rest := payload; len(rest) > 0; {
			r, after, err := frame.Next(rest)
			if err != nil {
				b.Fatal(err)
			}
			to := job.Partition(job.KeyGroup(r.Key), tasks)
			out[to] = append(out[to], rest[:len(rest)-len(after)]...)
			rest = after
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count), "ns/record")
}
