package node

import (
	"context"
	"slices"
	"sort"

	"github.com/weir-stream/weir/internal/api"
)

// Metrics implements [web.Fleet].
func (a *Agent) Metrics(ctx context.Context) []api.Family {
	st, err := a.Status(ctx)
	if err != nil {
		return nil
	}
	out := families(taskColumns, st.Tasks, taskLabels)
	out = append(out, families(sourceColumns, sourceTasks(st.Tasks), taskLabels)...)
	out = append(out, timeFamilies(st.Tasks)...)
	out = append(out, families(sinkColumns, sinksOf(st.Tasks), sinkOf.labels)...)
	out = append(out, families(shadowColumns, shadowsOf(st.Tasks), shadowed.labels)...)
	out = append(out,
		one("weir_ingest_log_bytes", "Size of the agent's input log on disk.", api.Gauge, float64(st.Store.LogBytes)),
		one("weir_log_hours_left", "Hours for which the log takes records at its present rate if nothing of it can be given up; 0: nothing is written.", api.Gauge, st.Store.LogHoursLeft),
		one("weir_disk_written_bytes_total", "Bytes that the agent's stores have written since the process started.", api.Counter, float64(st.Store.WrittenBytes)),
	)
	out = append(out, a.guests.families()...)
	out = append(out,
		one("weir_dead_letters_shed_total", "Dead letters given up because the agent's budget for them was full.", api.Counter, float64(a.dead.given())))
	out = append(out, a.moduleFamilies()...)
	return append(out, a.jobFamilies()...)
}

func one(name, help string, kind api.MetricKind, v float64) api.Family {
	return api.Family{Name: name, Help: help, Kind: kind, Samples: []api.Sample{{Value: v}}}
}

// column is a metric of which every T of a list has a value.
type column[T any] struct {
	name, help string
	kind       api.MetricKind
	value      func(T) float64
}

// families makes a metric of each column, none of an empty list; labels say which T a value is of.
func families[T any](columns []column[T], list []T, labels func(T) []api.Label) []api.Family {
	var out []api.Family
	for _, c := range columns {
		f := api.Family{Name: c.name, Help: c.help, Kind: c.kind}
		for _, t := range list {
			f.Samples = append(f.Samples, api.Sample{Labels: labels(t), Value: c.value(t)})
		}
		if len(f.Samples) > 0 {
			out = append(out, f)
		}
	}
	return out
}

func taskLabels(t api.Task) []api.Label {
	return []api.Label{{Name: "job", Value: t.Job}, {Name: "task", Value: t.ID}}
}

var taskColumns = []column[api.Task]{
	{"weir_task_records_in_total", "Records that the task has taken, replay included.", api.Counter, func(t api.Task) float64 { return float64(t.RecordsIn) }},
	{"weir_task_records_out_total", "Records that the task has made on its outputs, replay included.", api.Counter, func(t api.Task) float64 { return float64(t.RecordsOut) }},
	{"weir_task_restarts_total", "Restarts of the task since the process started.", api.Counter, func(t api.Task) float64 { return float64(t.Restarts) }},
	{"weir_task_lag_records", "Records known to wait for the task.", api.Gauge, func(t api.Task) float64 { return float64(t.Lag) }},
	{"weir_task_spooled_items", "Items for tasks on other agents that wait on disk.", api.Gauge, func(t api.Task) float64 { return float64(t.Spooled) }},
	{"weir_dead_letters_total", "Records of the task that were given up.", api.Counter, func(t api.Task) float64 { return float64(t.DeadLetters) }},
}

// sinkOf is a sink and the task that it is of.
type sinkOf struct {
	task api.Task
	api.Sink
}

func sinksOf(tasks []api.Task) []sinkOf {
	var out []sinkOf
	for _, t := range tasks {
		for _, s := range t.Sinks {
			out = append(out, sinkOf{t, s})
		}
	}
	return out
}

func (s sinkOf) labels() []api.Label {
	return append(taskLabels(s.task), api.Label{Name: "sink", Value: s.Name})
}

var sinkColumns = []column[sinkOf]{
	{"weir_sink_handed_total", "Records that the sink has handed over, dead letters included.", api.Counter, func(s sinkOf) float64 { return float64(s.Handed) }},
	{"weir_sink_held_records", "Records that the task keeps since the sink has not handed them over.", api.Gauge, func(s sinkOf) float64 { return float64(s.Held) }},
	{"weir_sink_in_flight_records", "Records published and not confirmed.", api.Gauge, func(s sinkOf) float64 { return float64(s.InFlight) }},
	{"weir_sink_repeated_total", "Records published again after a lost connection.", api.Counter, func(s sinkOf) float64 { return float64(s.Repeated) }},
	{"weir_sink_refused_total", "Records that could not be published and became dead letters.", api.Counter, func(s sinkOf) float64 { return float64(s.Refused) }},
	{"weir_sink_uncertain_total", "Records under way when the broker had lost the session: they may have arrived twice, or not.", api.Counter, func(s sinkOf) float64 { return float64(s.Uncertain) }},
	{"weir_sink_early_total", "Records of a sink that commits with checkpoints, handed over before theirs.", api.Counter, func(s sinkOf) float64 { return float64(s.Early) }},
}

// jobFamilies are of the jobs that this agent knows: their newest checkpoints.
func (a *Agent) jobFamilies() []api.Family {
	epochs := api.Family{Name: "weir_checkpoint_epoch", Help: "Newest checkpoint of the job in that state.", Kind: api.Gauge}
	seconds := api.Family{Name: "weir_checkpoint_seconds", Help: "Time that the newest complete checkpoint took in that phase, of its slowest task.", Kind: api.Gauge}
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
	}
	return []api.Family{epochs, seconds}
}

// sourceTasks are the tasks that keep the account of a source.
func sourceTasks(tasks []api.Task) []api.Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t api.Task) bool { return t.Source == nil })
}

var sourceColumns = []column[api.Task]{
	{"weir_source_received_total", "Messages that the source has received, repeats included.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Received) }},
	{"weir_source_logged_total", "Messages that are durable in the input log.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Logged) }},
	{"weir_source_deduplicated_total", "Messages recognised as repeats, by packet identifier or id; replay counts again.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Deduplicated) }},
	{"weir_records_shed_total", "Messages given up for want of room.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Shed) }},
	{"weir_source_refused_total", "Messages that cannot be records and became dead letters.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Refused) }},
	{"weir_source_retained_skipped_total", "Retained messages left out, as the job says.", api.Counter, func(t api.Task) float64 { return float64(t.Source.RetainedSkipped) }},
	{"weir_source_sessions_lost_total", "How often the broker no longer had the source's session.", api.Counter, func(t api.Task) float64 { return float64(t.Source.SessionsLost) }},
	{"weir_source_gaps_total", "Places where numbers of the sequence that the job names are missing.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Gaps) }},
	{"weir_source_missing_total", "Messages missing from the sequence that the job names.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Missing) }},
	{"weir_source_untracked_total", "Messages of keys beyond those whose sequence is followed.", api.Counter, func(t api.Task) float64 { return float64(t.Source.Untracked) }},
}

func (a *Agent) hostedSorted() []*hostedJob {
	list := a.hosted()
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	return list
}
