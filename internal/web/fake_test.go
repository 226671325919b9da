package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// fake is a backend that says what it was asked.
type fake struct {
	notReady error
	// entered is signalled when a waiting call has begun.
	entered chan struct{}
	// cut is how much an export writes before it fails; below 0 it does not fail.
	cut int
}

func newFake() *fake { return &fake{entered: make(chan struct{}, 1000), cut: -1} }

var errPlain = errors.New("disk on fire")

func (f *fake) Status(context.Context) (api.Status, error) {
	return api.Status{Agent: api.Agent{Name: "g1"}, Ready: true}, nil
}

func (f *fake) Agents(context.Context) ([]api.Agent, error) {
	return []api.Agent{{Name: "g1", Labels: map[string]string{"role": "gateway"}, State: "up"}}, nil
}

func (f *fake) Ready(context.Context) error { return f.notReady }

func (f *fake) Metrics(context.Context) []api.Family {
	return []api.Family{
		{Name: "weir_task_records_in_total", Help: "Records in.", Kind: api.Counter, Samples: []api.Sample{
			{Labels: []api.Label{{Name: "job", Value: `a"b\c` + "\n"}, {Name: "task", Value: "x"}}, Value: 12345678901},
			{Labels: []api.Label{{Name: "job", Value: "a"}, {Name: "task", Value: "x"}}, Value: 1},
		}},
		{Name: "weir_ingest_log_bytes", Help: "Size \\ of\nthe log.", Kind: api.Gauge, Samples: []api.Sample{{Value: 0.25}}},
	}
}

func (f *fake) PlanJob(_ context.Context, src api.JobSource) (api.Plan, error) {
	return api.Plan{Job: src.File, Text: src.YAML}, nil
}

func (f *fake) ApplyJob(ctx context.Context, src api.JobSource) (api.Applied, error) {
	switch src.YAML {
	case "wrong":
		return api.Applied{}, api.Invalid("see the documentation", "%s:1:1: wrong", src.File)
	case "wait":
		f.entered <- struct{}{}
		<-ctx.Done()
		return api.Applied{}, fmt.Errorf("job %s: checkpoint 0 waits for g1: %w", src.File, ctx.Err())
	}
	return api.Applied{Job: src.File + src.Modules["./x.wasm"], Generation: 7, Created: true}, nil
}

func (f *fake) Jobs(context.Context) ([]api.JobSummary, error) { return nil, nil }

func (f *fake) Job(_ context.Context, name string) (api.Job, error) {
	switch name {
	case "broken":
		return api.Job{}, errPlain
	case "missing":
		return api.Job{}, fmt.Errorf("show: %w", api.NotFound("list them", "no job %s", name))
	}
	return api.Job{JobSummary: api.JobSummary{Name: name}, Tasks: []api.Task{{ID: "t@g1", Recovery: &api.Recovery{Level: "L1"}}}}, nil
}

func (f *fake) StopJob(_ context.Context, name string) (api.Checkpoint, error) {
	return api.Checkpoint{Job: name, Epoch: 9, Final: true}, nil
}

func (f *fake) DeleteJob(_ context.Context, name string, force bool) error {
	if !force {
		return api.Conflict("stop it first", "job %s runs", name)
	}
	return nil
}

func (f *fake) DeadLetters(_ context.Context, name string, limit int) ([]api.DeadLetter, error) {
	return []api.DeadLetter{{Job: name, TimeMS: int64(limit), Key: api.Bytes("k"), Value: api.Bytes{0xff, 0}}}, nil
}

func (f *fake) PushOperator(_ context.Context, name, version string, module io.Reader) (api.Operator, error) {
	data, err := io.ReadAll(module)
	if err != nil {
		return api.Operator{}, fmt.Errorf("read the module: %w", err)
	}
	return api.Operator{Name: name, Version: version, Bytes: int64(len(data)), Pushed: time.Unix(0, 0).UTC()}, nil
}

func (f *fake) PushModule(_ context.Context, module io.Reader) (api.Module, error) {
	data, err := io.ReadAll(module)
	return api.Module{Digest: "sha256:x", Bytes: int64(len(data))}, err
}

func (f *fake) Operators(context.Context) ([]api.Operator, error) {
	return []api.Operator{{Name: "ewma"}}, nil
}

func (f *fake) Operator(_ context.Context, name string) ([]api.Operator, error) {
	return []api.Operator{{Name: name}}, nil
}

func (f *fake) Checkpoints(context.Context, string) ([]api.Checkpoint, error) { return nil, nil }

func (f *fake) CheckpointNow(_ context.Context, job string) (api.Checkpoint, error) {
	return api.Checkpoint{Job: job, Epoch: 3, State: api.CheckpointReplicated}, nil
}

func (f *fake) ExportCheckpoint(_ context.Context, job string, epoch uint64, w io.Writer) error {
	if job == "missing" {
		return api.NotFound("", "no job %s", job)
	}
	text := fmt.Sprintf("%s at %d", job, epoch)
	if f.cut < 0 {
		_, err := io.WriteString(w, text)
		return err
	}
	if _, err := io.WriteString(w, text[:f.cut]); err != nil {
		return err
	}
	return errPlain
}
