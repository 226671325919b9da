package node

import (
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/transport/local"
)

// generator makes a source that makes records, no faster than the task takes them.
func (r *runner) generator(s *job.SourceTask) (dataflow.Source, error) {
	g := s.Generator
	deps := r.localDeps()
	deps.Lag = r.sourceLag
	return local.NewGeneratorSource(local.GeneratorConfig{
		Records: uint64(g.Records), Rate: g.Rate, Keys: g.Keys, Size: g.Size, Seed: uint64(g.Seed), Name: r.name, Stamp: g.Stamp,
		Key: sourceKey(s.Key), ID: s.ID, Time: sourceTime(s.Time),
	}, deps)
}

// sourceLag is how many records of the source wait in the log for the task; 0 while it does not run.
func (r *runner) sourceLag() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		return 0
	}
	return r.unread(r.running.Ingested())
}

// unread is how many records of the source are in the log behind what the task has taken: of those that it
// held when the task was restored, and those since. The caller holds mu.
func (r *runner) unread(ingested, backlog uint64) uint64 {
	logged := r.ingest.Records() - r.ingestBase + backlog
	return logged - min(ingested, logged)
}
