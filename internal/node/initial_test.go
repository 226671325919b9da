package node

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
)

// TestInitialEpochBehind: the initial epoch for which a task makes its first part is aborted, and the next one started,
// before the part is durable. The part answers both; it answers no initial epoch that is over, and no other epoch.
func TestInitialEpochBehind(t *testing.T) {
	for _, test := range []struct {
		what  string
		after []abs.EpochRecord
		want  []abs.Epoch
	}{
		{"started meanwhile", []abs.EpochRecord{
			{Epoch: 5, Initial: true, State: abs.Aborted}, {Epoch: 6, Initial: true, State: abs.Started}}, []abs.Epoch{5, 6}},
		{"twice", []abs.EpochRecord{
			{Epoch: 5, Initial: true, State: abs.Aborted}, {Epoch: 6, Initial: true, State: abs.Started},
			{Epoch: 6, Initial: true, State: abs.Aborted}, {Epoch: 7, Initial: true, State: abs.Started}}, []abs.Epoch{5, 7}},
		{"over", []abs.EpochRecord{
			{Epoch: 5, Initial: true, State: abs.Aborted}, {Epoch: 6, Initial: true, State: abs.Aborted}}, []abs.Epoch{5}},
		{"not initial", []abs.EpochRecord{
			{Epoch: 5, Initial: true, State: abs.Committed}, {Epoch: 6, State: abs.Started}}, []abs.Epoch{5}},
	} {
		a := &Agent{acks: newQueue[ackJob]()}
		r := &runner{
			a: a, rec: jobRecord{Name: "j", Generation: 3}, task: &job.Task{ID: "t"}, log: slog.New(slog.DiscardHandler),
			commit: make(chan struct{}), floored: make(chan struct{}), reports: map[abs.Epoch]dataflow.PartReport{},
		}
		r.epoch(abs.EpochRecord{Epoch: 5, Initial: true, State: abs.Started})
		for _, rec := range test.after {
			r.epoch(rec)
		}
		if r.floor != 5 {
			t.Fatalf("%s: the task begins with epoch %d", test.what, r.floor)
		}
		observer{r}.PartDurable(dataflow.PartReport{Info: dataflow.PartInfo{Task: "j/t", Version: 1, Epoch: 5, Generation: 3}})
		var got []abs.Epoch
		for _, one := range a.acks.take() {
			got = append(got, one.ack.Epoch)
			if one.job != "j" || one.ack.Task != "t" || one.ack.Generation != 3 || one.ack.Part.Epoch != 5 || one.ack.Part.Version != 1 {
				t.Errorf("%s: %+v", test.what, one)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: it answers epochs %d, not %d", test.what, got, test.want)
		}
	}
}
