// Package webtest has a backend without an agent, for tests of what is above it.
package webtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// Backend answers with fixed values and with what it was given. The job "missing" does not exist,
// and "broken" cannot be shown.
type Backend struct {
	// NotReady is what Ready returns.
	NotReady error
	// Entered is signalled when ApplyJob of a job file that is "wait" has begun to wait.
	Entered chan struct{}
	// Cut is how much an export writes before it fails; below 0 it does not fail.
	Cut int

	mu      sync.Mutex
	uploads map[string][]byte
	logged  uint64 // by the source of every job but "idle": more whenever a job is looked at
}

// New makes a backend for up to that many waiting calls.
func New(waiting int) *Backend { return &Backend{Entered: make(chan struct{}, waiting), Cut: -1} }

// ErrPlain is an error without a status.
var ErrPlain = errors.New("disk on fire")

// at is when everything happened.
var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func agent() api.Agent {
	return api.Agent{
		Name: "g1", Labels: map[string]string{"role": "gateway", "line": "1"}, State: "up", Version: "1.0.0",
		Seen: at, Started: at, Starts: 3, Coordinator: true, Tasks: 1,
		Addresses: api.Addresses{HTTP: "127.0.0.1:8080"},
	}
}

func task(job string) api.Task {
	return api.Task{
		ID: "smooth@g1", Job: job, Agent: "g1", State: api.TaskRunning, Restarts: 2, Generation: 4, Epoch: 17,
		RecordsIn: 1000, RecordsOut: 900, Lag: 5,
		Recovery: &api.Recovery{Level: "L1", At: at, TookMS: 123.4, Done: true, ReplayedRecords: 77, Compared: 12},
		Source: &api.Source{
			Name: "readings", State: "log full", Reason: "input log has reached its budget", Received: 1030, Logged: 1000,
			Deduplicated: 7, Shed: 3, Refused: 2, RetainedSkipped: 18, SessionsLost: 1, Gaps: 2, Missing: 40,
		},
	}
}

// Status implements web.Backend.
func (b *Backend) Status(context.Context) (api.Status, error) {
	return api.Status{
		Agent: agent(),
		Ready: true,
		Store: api.Store{Dir: "/var/lib/weir", LogBytes: 1536, LogBudgetBytes: 256 << 20, WrittenBytes: 3 << 30},
		Links: []api.Link{
			{Kind: "mqtt", Name: "readings@g1", Address: "tcp://10.0.0.5:1883", Up: true, Since: at},
			{Kind: "nats", Address: "nats://hub:4222", Since: at, Error: "connection refused"},
		},
		Tasks: []api.Task{task("vibration")},
	}, nil
}

// RemoveAgent implements web.Backend.
func (b *Backend) RemoveAgent(_ context.Context, name string) error {
	if name != "g1" {
		return api.NotFound("agent agents list shows which there are", "there is no agent %s", name)
	}
	return nil
}

// Agents implements web.Backend.
func (b *Backend) Agents(context.Context) ([]api.Agent, error) {
	return []api.Agent{agent(), {Name: "g2", State: "down"}}, nil
}

// Ready implements web.Backend.
func (b *Backend) Ready(context.Context) error { return b.NotReady }

// Metrics implements web.Backend.
func (b *Backend) Metrics(context.Context) []api.Family {
	return []api.Family{
		{Name: "weir_task_records_in_total", Help: "Records in.", Kind: api.Counter, Samples: []api.Sample{
			{Labels: []api.Label{{Name: "job", Value: `a"b\c` + "\n"}, {Name: "task", Value: "x"}}, Value: 12345678901},
			{Labels: []api.Label{{Name: "job", Value: "a"}, {Name: "task", Value: "x"}}, Value: 1},
		}},
		{Name: "weir_ingest_log_bytes", Help: "Size \\ of\nthe log.", Kind: api.Gauge, Samples: []api.Sample{{Value: 0.25}}},
	}
}

// PlanJob implements web.Backend: the text names the modules. A canary is refused, and so is to start "smooth" anew.
func (b *Backend) PlanJob(_ context.Context, src api.JobSource) (api.Plan, error) {
	plan := api.Plan{Job: src.File, Text: fmt.Sprintf("plan of %s with %v\n", src.File, src.Modules)}
	switch {
	case src.Trial != nil:
		plan.Refused = &api.Refusal{Status: http.StatusConflict, Message: "it must be drained", Hint: "do this\nor that"}
	case len(src.Fresh) > 0:
		plan.Refused = &api.Refusal{Status: http.StatusBadRequest, Message: "no operator " + src.Fresh[0]}
	case src.Shadow || src.Restart || len(src.Replace) > 0:
		plan.Does = fmt.Sprintf("does something with shadow %v, restart %v, replace %v", src.Shadow, src.Restart, src.Replace)
	}
	return plan, nil
}

// ApplyJob implements web.Backend. The files "wrong" and "wait" are refused and never done.
func (b *Backend) ApplyJob(ctx context.Context, src api.JobSource) (api.Applied, error) {
	switch src.YAML {
	case "wrong":
		return api.Applied{}, api.Invalid("see the documentation", "%s:1:1: wrong", src.File)
	case "wait":
		b.Entered <- struct{}{}
		<-ctx.Done()
		return api.Applied{}, fmt.Errorf("job %s: checkpoint 0 waits for g1: %w", src.File, ctx.Err())
	}
	if src.Shadow {
		return api.Applied{Job: src.File, Generation: 7, Shadow: []string{"smooth", "top"}, Warnings: []string{"to apply it more is needed"}}, nil
	}
	return api.Applied{
		Job: src.File + src.Modules["./x.wasm"], Generation: 7, Created: true,
		Warnings: []string{"two agents take the same topics"},
	}, nil
}

// Jobs implements web.Backend.
func (b *Backend) Jobs(context.Context) ([]api.JobSummary, error) {
	return []api.JobSummary{summary("vibration")}, nil
}

func summary(name string) api.JobSummary {
	return api.JobSummary{
		Name: name, State: api.JobRunning, Generation: 4, TaskCount: 3, RunningTasks: 2, Restarts: 2, RecordsIn: 1000, RecordsOut: 900,
		Applied: at, LastCompleteEpoch: 17, LastReplicatedEpoch: 16, DeadLetters: 1,
	}
}

// Job implements web.Backend.
func (b *Backend) Job(_ context.Context, name string) (api.Job, error) {
	switch name {
	case "broken":
		return api.Job{}, ErrPlain
	case "missing":
		return api.Job{}, fmt.Errorf("read KV: %w", missing(name))
	}
	if name == "shadowed" {
		return shadowedJob(), nil
	}
	k := task(name)
	if name != "idle" {
		b.mu.Lock()
		b.logged += 10
		k.Logged = b.logged
		b.mu.Unlock()
	}
	return api.Job{
		JobSummary: summary(name), Promise: "source: exactly once\nstate: exactly once", AlignMS: 1.5, FreezeMS: 0.25, PersistMS: 20, ReplicateMS: 12345,
		Running: &api.Running{Epoch: 18, Phase: "align", AgeMS: 40, Acked: 1, Needed: 3, HeldUpBy: []string{"fleet/0", "fleet/1"}},
		Tasks:   []api.Task{k},
	}, nil
}

// shadowedJob has versions in the shadow of its operators that have shown everything that there can be.
func shadowedJob() api.Job {
	running := task("shadowed")
	running.Recovery, running.Source = nil, nil
	running.Shadows = []api.TaskShadow{
		{Operator: "smooth", Module: "ewma@2", State: "comparing", Since: at, Begun: at, Begins: 1, With: "keyed state", Records: 1000, Equal: 998, Different: 2, RunningUS: 1.25, ShadowUS: 12000,
			First: &api.ShadowDifference{From: 12, To: 19, At: at, Output: "out", Index: 3, Key: "k\x1b", Part: "value", Running: "1.5", Shadow: "1.6"}},
		{Operator: "top", Module: "top@2", State: "resting", Since: at, Begun: at, Begins: 3, With: "keyed state", Skipped: 7, Failed: 2, Failure: "operator top: trapped", Behind: 1, Mended: 2, RefusedBoth: 1,
			First: &api.ShadowDifference{From: 5, To: 5, At: at, Output: "out", Key: "k", Part: "missing", Running: "v"}},
		{Operator: "new", Module: "new@2", State: "refused", Reason: "config siez: there is no such key"},
		{Operator: "timed", Module: "timed@2", State: "waiting", First: &api.ShadowDifference{From: 5, Output: "out", Key: "k", Part: "extra", Shadow: "v"}},
	}
	return api.Job{JobSummary: summary("shadowed"), Shadow: &api.Shadow{Operators: []string{"smooth", "top"}, Agents: []string{"g1"}, Started: at}, Tasks: []api.Task{running}}
}

func missing(name string) error {
	return api.NotFound("agent job list names them", "there is no job %s", name)
}

// StopJob implements web.Backend.
func (b *Backend) StopJob(_ context.Context, name string) (api.Checkpoint, error) {
	return api.Checkpoint{Job: name, Epoch: 9, State: api.CheckpointReplicated, Final: true}, nil
}

// EndTrial implements web.Backend.
func (b *Backend) EndTrial(_ context.Context, name string, keep bool) (api.Upgrade, error) {
	if name == "shadowed" && !keep {
		return api.Upgrade{State: api.ShadowDropped, Operators: []string{"smooth", "top"}}, nil
	}
	if keep {
		return api.Upgrade{Number: 4, State: api.UpgradeDone, Operators: []string{name}}, nil
	}
	return api.Upgrade{Number: 5, State: api.UpgradeRolledBack, Operators: []string{name}}, nil
}

// away are agents that do not answer: of one it was heard that it has letters, of one that it has none, of one nothing.
var away = []api.Unanswered{{Agent: "g2", Letters: 3, Heard: at}, {Agent: "g3", Heard: at}, {Agent: "g4"}}

// ReplayDeadLetters implements web.Backend: letters whose names begin with "old" were replayed before.
func (b *Backend) ReplayDeadLetters(_ context.Context, _ string, what api.Replay) (api.Replayed, error) {
	out := api.Replayed{Replayed: []string{}, Skipped: []api.SkippedLetter{}}
	for _, id := range what.IDs {
		if strings.HasPrefix(id, "old") {
			out.Skipped = append(out.Skipped, api.SkippedLetter{ID: id, Reason: "it was replayed before"})
			continue
		}
		out.Replayed = append(out.Replayed, id)
	}
	if len(what.IDs) == 0 && what.Operator == "" {
		out.Unanswered = away
	}
	if what.Operator != "" {
		out.Skipped = append(out.Skipped, api.SkippedLetter{ID: what.Operator, Reason: "was replayed"})
	}
	return out, nil
}

// DeleteJob implements web.Backend: every job runs.
func (b *Backend) DeleteJob(_ context.Context, name string, force bool) error {
	if !force {
		return api.Conflict("stop it first", "job %s runs", name)
	}
	return nil
}

// DeadLetters implements web.Backend: the record's time is the limit, and of two letters one is shown.
func (b *Backend) DeadLetters(_ context.Context, name string, limit int) (api.DeadLetters, error) {
	return api.DeadLetters{Unanswered: away, Kept: 2, Letters: []api.DeadLetter{{
		ID: "smooth@g1/7-12-0", Replayed: at, Job: name, Task: "smooth@g1", Agent: "g1", At: at, Reason: "too large\x1b[2J", TimeMS: int64(limit),
		Key: api.Bytes("k"), Bytes: 9000, Value: api.Bytes{0xff, 0},
	}}}, nil
}

// PushOperator implements web.Backend. A module that is "bad" is refused.
func (b *Backend) PushOperator(_ context.Context, name, version, digest string, module io.Reader) (api.Operator, error) {
	m, err := b.push(digest, module)
	return api.Operator{Name: name, Version: version, Digest: m.Digest, Bytes: m.Bytes, Pushed: at}, err
}

// RemoveOperator implements web.Backend. "top-n" is used; without a version there are two.
func (b *Backend) RemoveOperator(_ context.Context, name, version string) ([]api.Operator, error) {
	if name == "top-n" {
		return nil, api.Conflict("delete the job", "operator top-n@1.2.0 is used by job plant")
	}
	one, two := operator(name), operator(name)
	if version != "" {
		one.Version = version
		return []api.Operator{one}, nil
	}
	two.Version = "1.3.0"
	return []api.Operator{one, two}, nil
}

// SignOperator implements web.Backend.
func (b *Backend) SignOperator(_ context.Context, name, version, signature string) (api.Operator, error) {
	return api.Operator{Name: name, Version: version, Digest: signature, Signatures: 1, Pushed: at}, nil
}

// PushModule implements web.Backend. A module that is "bad" is refused.
func (b *Backend) PushModule(_ context.Context, digest string, module io.Reader) (api.Module, error) {
	return b.push(digest, module)
}

// Uploaded implements web.Backend.
func (b *Backend) Uploaded(_ context.Context, digest string) (api.Upload, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.uploads[digest]) > maxUpload {
		return api.Upload{}, &api.Error{Status: http.StatusInsufficientStorage, Message: "the disk is full", Hint: "make room"}
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(b.uploads[digest]))
	return api.Upload{Digest: digest, Bytes: int64(len(b.uploads[digest])), Complete: sum == digest}, nil
}

// maxUpload is what the disk takes.
const maxUpload = 4 << 20

// Upload implements web.Backend.
func (b *Backend) Upload(ctx context.Context, digest string, size, offset int64, body io.Reader) (api.Upload, error) {
	data, err := io.ReadAll(body)
	b.mu.Lock()
	if b.uploads == nil {
		b.uploads = map[string][]byte{}
	}
	if have := b.uploads[digest]; offset <= int64(len(have)) {
		b.uploads[digest] = append(have[:offset:offset], data...)
	}
	b.mu.Unlock()
	if err != nil {
		return api.Upload{}, err
	}
	return b.Uploaded(ctx, digest)
}

func (b *Backend) push(digest string, module io.Reader) (api.Module, error) {
	data, err := io.ReadAll(module)
	if digest != "" {
		b.mu.Lock()
		data = b.uploads[digest]
		b.mu.Unlock()
	}
	if err != nil {
		return api.Module{}, fmt.Errorf("read the module: %w", err)
	}
	if string(data) == "bad\n" {
		return api.Module{}, api.Invalid("build it with the SDK", "the module does not export weir_process")
	}
	return api.Module{Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Bytes: int64(len(data))}, nil
}

// Operators implements web.Backend.
func (b *Backend) Operators(context.Context) ([]api.Operator, error) {
	return []api.Operator{operator("ewma"), operator("top-n")}, nil
}

func operator(name string) api.Operator {
	return api.Operator{Name: name, Version: "1.2.0", Digest: "sha256:12", Bytes: 3 << 20, MemoryBytes: 1 << 17, Globals: 2, Pushed: at}
}

// Operator implements web.Backend.
func (b *Backend) Operator(_ context.Context, name string) ([]api.Operator, error) {
	return []api.Operator{operator(name)}, nil
}

// Checkpoints implements web.Backend; there are none of the job "new".
func (b *Backend) Checkpoints(_ context.Context, job string) ([]api.Checkpoint, error) {
	if job == "new" {
		return nil, nil
	}
	return []api.Checkpoint{
		{Job: job, Epoch: 16, Generation: 4, State: api.CheckpointReplicated, Started: at, Parts: 3, Bytes: 2048, TookMS: 31, AlignMS: 1, FreezeMS: 0.5, PersistMS: 20, ReplicateMS: 9, Final: true},
		{Job: job, Epoch: 17, Generation: 4, State: api.CheckpointAborted, Started: at, Reason: "g2 did not answer"},
	}, nil
}

// Checkpoint implements web.Backend. A channel lost nothing, unless the job is "leaky".
func (b *Backend) Checkpoint(_ context.Context, job string, epoch uint64) (api.CheckpointDetail, error) {
	if job == "missing" {
		return api.CheckpointDetail{}, missing(job)
	}
	c := api.ChannelCut{ID: "in>out", From: "in", To: "out", Sent: 100, Consumed: 100}
	if job == "leaky" {
		c.Consumed = 98
	}
	return api.CheckpointDetail{Checkpoint: api.Checkpoint{Job: job, Epoch: epoch, State: api.CheckpointReplicated}, Channels: []api.ChannelCut{c}}, nil
}

// Drills implements web.Backend.
func (b *Backend) Drills(context.Context) ([]api.Drill, error) {
	return []api.Drill{{Kind: api.DrillKill, Does: "ends the process", Ends: true}, {Kind: api.DrillLinkFlap, Does: "drops connections"}}, nil
}

// Drill implements web.Backend.
func (b *Backend) Drill(_ context.Context, o api.DrillOrder) (api.DrillBegun, error) {
	if !o.Sure {
		return api.DrillBegun{}, api.Invalid("be sure", "not sure")
	}
	return api.DrillBegun{Drill: api.Drill{Kind: o.Kind, Does: "drops connections"}, Agent: "g1", PID: 4711, Starts: 3, Seconds: o.Seconds, Supervised: true}, nil
}

// CheckpointNow implements web.Backend.
func (b *Backend) CheckpointNow(_ context.Context, job, _ string) (api.Checkpoint, error) {
	return api.Checkpoint{Job: job, Epoch: 3, State: api.CheckpointReplicated, Bytes: 4096, TookMS: 12}, nil
}

// ExportCheckpoint implements web.Backend.
func (b *Backend) ExportCheckpoint(_ context.Context, job string, epoch uint64, w io.Writer) error {
	if job == "missing" {
		return missing(job)
	}
	text := fmt.Sprintf("%s at %d", job, epoch)
	if b.Cut < 0 {
		_, err := io.WriteString(w, text)
		return err
	}
	if _, err := io.WriteString(w, text[:b.Cut]); err != nil {
		return err
	}
	return ErrPlain
}
