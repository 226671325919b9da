package node

import (
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/internal/api"
)

// eventTime is what others see of a task's event time; nil if nothing of it has come.
func eventTime(s dataflow.TimeStatus) *api.EventTime {
	if s == (dataflow.TimeStatus{Watermark: dataflow.NoTime}) {
		return nil
	}
	e := &api.EventTime{Idle: s.Idle, Ahead: s.Ahead, Ended: s.Watermark == dataflow.EndOfTime}
	if s.Watermark != dataflow.NoTime && !e.Ended {
		at := time.UnixMilli(s.Watermark).UTC()
		if y := at.Year(); y >= 0 && y <= 9999 { // what can be written
			e.Watermark = &at
		}
	}
	return e
}

// timeFamilies are about event time, of the tasks that have it.
func timeFamilies(tasks []api.Task) []api.Family {
	watermark := api.Family{Name: "weir_task_watermark_seconds", Help: "How far event time has come in the task, seconds since 1970.", Kind: api.Gauge}
	idle := api.Family{Name: "weir_task_idle", Help: "1 if event time does not wait for the task.", Kind: api.Gauge}
	ahead := api.Family{Name: "weir_event_time_ahead_total", Help: "Records so far ahead of the agent's clock that they did not move the watermark.", Kind: api.Counter}
	for _, t := range tasks {
		e := t.EventTime
		if e == nil {
			continue
		}
		if e.Watermark != nil {
			watermark.Samples = append(watermark.Samples, api.Sample{Labels: taskLabels(t), Value: float64(e.Watermark.UnixMilli()) / 1000})
		}
		on := 0.0
		if e.Idle {
			on = 1
		}
		idle.Samples = append(idle.Samples, api.Sample{Labels: taskLabels(t), Value: on})
		ahead.Samples = append(ahead.Samples, api.Sample{Labels: taskLabels(t), Value: float64(e.Ahead)})
	}
	var out []api.Family
	for _, f := range []api.Family{watermark, idle, ahead} {
		if len(f.Samples) > 0 {
			out = append(out, f)
		}
	}
	return out
}
