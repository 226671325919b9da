package node

import (
	"fmt"
	"slices"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/storage"
)

// ledStore is the snapshots of a task without those that its log leads on from no more. A checkpoint that counts gives up
// the log at once, and snapshots some at a time, so there are such. A task that went back to one for a receiver would
// fail as it reads its log, be started anew, be asked again, and so on for ever; as it is, it finds that the gap
// cannot be refilled.
type ledStore struct {
	dataflow.SnapshotStore
	log *storage.LogStream
	gen abs.Generation // the task's
}

// Parts implements [dataflow.SnapshotStore]. Of older generations it lists all: a generation begins with one wherever the
// log begins.
func (s ledStore) Parts(task string) ([]dataflow.PartInfo, error) {
	front := s.log.Front() // first: what is given up meanwhile is of parts that are not the newest
	parts, err := s.SnapshotStore.Parts(task)
	if err != nil || len(parts) == 0 {
		return parts, err
	}
	newest := parts[len(parts)-1]
	// A checkpoint has come to count since it was fetched: the task must not think that it has none.
	if newest.Generation == s.gen && newest.Pos < front {
		return nil, fmt.Errorf("the newest snapshot of %s is of log entry %d, and the log begins after %d", task, newest.Pos, front)
	}
	return slices.DeleteFunc(parts, func(p dataflow.PartInfo) bool { return p.Generation == s.gen && p.Pos < front }), nil
}
