package node

import (
	"context"
	"sort"

	"github.com/weir-stream/weir/internal/api"
)

// Metrics implements [web.Fleet].
func (a *Agent) Metrics(ctx context.Context) []api.Family {
	st, err := a.Status(ctx)
	if err != nil {
		return nil
	}
	out := taskFamilies(st.Tasks)
	out = append(out,
		one("weir_ingest_log_bytes", "Size of the agent's input log on disk.", api.Gauge, float64(st.Store.LogBytes)),
		one("weir_disk_written_bytes_total", "Bytes that the agent's stores have written since the process started.", api.Counter, float64(st.Store.WrittenBytes)),
	)
	out = append(out, a.guests.family(),
		one("weir_dead_letters_shed_total", "Dead letters given up because the agent's budget for them was full.", api.Counter, float64(a.dead.given())))
	return append(out, a.jobFamilies()...)
}

func one(name, help string, kind api.MetricKind, v float64) api.Family {
	return api.Family{Name: name, Help: help, Kind: kind, Samples: []api.Sample{{Value: v}}}
}

func taskFamilies(tasks []api.Task) []api.Family {
	families := []struct {
		name, help string
		kind       api.MetricKind
		value      func(api.Task) float64
	}{
		{"weir_task_records_in_total", "Records that the task has taken, replay included.", api.Counter, func(t api.Task) float64 { return float64(t.RecordsIn) }},
		{"weir_task_records_out_total", "Records that the task has made on its outputs, replay included.", api.Counter, func(t api.Task) float64 { return float64(t.RecordsOut) }},
		{"weir_task_restarts_total", "Restarts of the task since the process started.", api.Counter, func(t api.Task) float64 { return float64(t.Restarts) }},
		{"weir_task_lag_records", "Records known to wait for the task.", api.Gauge, func(t api.Task) float64 { return float64(t.Lag) }},
		{"weir_dead_letters_total", "Records of the task that were given up.", api.Counter, func(t api.Task) float64 { return float64(t.DeadLetters) }},
	}
	var out []api.Family
	for _, f := range families {
		fam := api.Family{Name: f.name, Help: f.help, Kind: f.kind}
		for _, t := range tasks {
			fam.Samples = append(fam.Samples, api.Sample{
				Labels: []api.Label{{Name: "job", Value: t.Job}, {Name: "task", Value: t.ID}}, Value: f.value(t),
			})
		}
		out = append(out, fam)
	}
	return out
}

// jobFamilies are of the jobs that this agent knows: their newest checkpoints, and what was shed.
func (a *Agent) jobFamilies() []api.Family {
	epochs := api.Family{Name: "weir_checkpoint_epoch", Help: "Newest checkpoint of the job in that state.", Kind: api.Gauge}
	seconds := api.Family{Name: "weir_checkpoint_seconds", Help: "Time that the newest complete checkpoint took in that phase, of its slowest task.", Kind: api.Gauge}
	shed := api.Family{Name: "weir_records_shed_total", Help: "QoS 0 messages given up for want of room.", Kind: api.Counter}
	for _, h := range a.hostedSorted() {
		if h.record().State == jobDeleted {
			continue
		}
		var j api.Job
		h.fillCheckpoints(&j)
		job := api.Label{Name: "job", Value: h.name}
		state := func(s string, v uint64) {
			epochs.Samples = append(epochs.Samples, api.Sample{Labels: []api.Label{job, {Name: "state", Value: s}}, Value: float64(v)})
		}
		state("complete", j.LastCompleteEpoch)
		state("replicated", j.LastReplicatedEpoch)
		phase := func(p string, ms float64) {
			seconds.Samples = append(seconds.Samples, api.Sample{Labels: []api.Label{job, {Name: "phase", Value: p}}, Value: ms / 1000})
		}
		phase("align", j.AlignMS)
		phase("freeze", j.FreezeMS)
		phase("persist", j.PersistMS)
		phase("replicate", j.ReplicateMS)
		for _, r := range h.tasks() {
			r.mu.Lock()
			status := r.sourceStatus
			r.mu.Unlock()
			if status != nil {
				shed.Samples = append(shed.Samples, api.Sample{
					Labels: []api.Label{job, {Name: "task", Value: string(r.task.ID)}}, Value: float64(status().Shed),
				})
			}
		}
	}
	return []api.Family{epochs, seconds, shed}
}

func (a *Agent) hostedSorted() []*hostedJob {
	list := a.hosted()
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	return list
}
