package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/transport/local"
	"github.com/weir-stream/weir/transport/mqtt"
)

// incarnation of the writers of a generation's channels. A new one comes with a replaced source.
const incarnation = 1

// assemble turns the planned task into one that can run, with its sinks.
func (r *runner) assemble(env *dataflow.Env) (dataflow.TaskSpec, []dataflow.Sink, error) {
	spec := dataflow.TaskSpec{Job: r.rec.Name, Generation: r.rec.Generation, ID: r.task.ID, Agent: r.task.Agent, Mode: r.rec.mode(), Halt: r.rec.Plan.Checkpoint.Mode == job.Synchronous}
	spec.CutAhead = holdsBack(r.rec.Plan)
	if s := r.task.Source; s != nil {
		spec.Source, spec.DedupeWindow = true, s.IDWindow
		if e := s.EventTime; e != nil {
			spec.Time = dataflow.EventTime{Watermarks: true, MaxDelay: e.MaxDelayMS, Idle: e.IdleMS, MaxAhead: e.MaxAheadMS}
		}
		spec.Entry = r.targets(&spec, s.Targets)
	}
	for _, op := range r.task.Ops {
		spec.Ops = append(spec.Ops, r.opSpec(&spec, op))
	}
	for _, in := range r.task.Inputs {
		c := r.rec.Plan.Channels[in.Channel]
		spec.Inputs = append(spec.Inputs, dataflow.InChannel{
			Channel: dataflow.Channel{ID: c.ID, Index: c.Index}, Agent: r.rec.Plan.Task(c.From).Agent,
			Incarnation: incarnation, Anew: r.anew(c), To: dataflow.Target{Kind: dataflow.ToOp, Index: in.Op, Input: in.Input},
			Back: c.Back, Loop: c.Loop, PassDetached: passes(r.rec.Plan.Task(c.From)),
		})
	}
	var sinks []dataflow.Sink
	for _, s := range r.task.Sinks {
		spec.Sinks = append(spec.Sinks, dataflow.SinkSpec{Name: s.Name, Channel: string(s.Channel), Checkpoint: s.Commit == job.AtCheckpoint})
		sink, err := r.sink(s)
		if err != nil {
			return spec, nil, fmt.Errorf("sink %s: %w", s.Name, err)
		}
		sinks = append(sinks, sink)
		r.addSink(s, sink)
	}
	env.Sinks = sinks
	return spec, sinks, nil
}

// passes says whether event time goes on without a task while its agent is detached.
func passes(t *job.Task) bool {
	return t.Source != nil && t.Source.EventTime != nil && t.Source.EventTime.Detached == job.DetachedPass
}

// holdsBack says whether some sink of the job hands over with checkpoints.
func holdsBack(p *job.Physical) bool {
	for _, t := range p.Tasks {
		for _, s := range t.Sinks {
			if s.Commit == job.AtCheckpoint {
				return true
			}
		}
	}
	return false
}

func (r *runner) opSpec(spec *dataflow.TaskSpec, op job.Op) dataflow.OpSpec {
	o := dataflow.OpSpec{Operator: r.operatorSpec(op), Policy: dataflow.ErrorPolicy(op.OnError)}
	for _, out := range op.Outputs {
		o.Outputs = append(o.Outputs, r.targets(spec, out.Targets))
	}
	return o
}

// operatorSpec is the operator as the generation begins with it.
func (r *runner) operatorSpec(op job.Op) dataflow.OperatorSpec {
	s := dataflow.OperatorSpec{
		Name: op.Name, Task: r.name, Module: op.Module, Digest: op.Digest, Config: op.Config, Inputs: op.Inputs, Fresh: op.Fresh, Limits: limitsOf(op.Limits),
		NoEventTime: !r.rec.Plan.HasEventTime(),
	}
	for _, out := range op.Outputs {
		s.Outputs = append(s.Outputs, out.Name)
	}
	return s
}

// targets maps planned targets; a streamed one becomes an edge of the spec.
func (r *runner) targets(spec *dataflow.TaskSpec, planned []job.Target) []dataflow.Target {
	var out []dataflow.Target
	for _, p := range planned {
		t := dataflow.Target{Index: p.Index, Input: p.Input}
		if !p.KeyBy.IsZero() && p.KeyBy.Kind != job.KeyKeep {
			t.Rekey = p.KeyBy.Key
		}
		switch p.Kind {
		case job.ToOp:
			t.Kind = dataflow.ToOp
		case job.ToSink:
			t.Kind = dataflow.ToSink
		case job.ToStream:
			t.Kind, t.Index = dataflow.ToEdge, len(spec.Edges)
			spec.Edges = append(spec.Edges, r.edge(p.Channels))
		}
		out = append(out, t)
	}
	return out
}

func (r *runner) edge(channels []int) dataflow.EdgeSpec {
	var e dataflow.EdgeSpec
	for _, i := range channels {
		c := r.rec.Plan.Channels[i]
		e.Channels = append(e.Channels, dataflow.OutChannel{
			Channel: dataflow.Channel{ID: c.ID, Index: c.Index}, To: c.To, Incarnation: incarnation, Anew: r.anew(c), Back: c.Back,
			Spool: spools(r.rec.Plan, r.task, i),
		})
	}
	if n := len(channels); n > 1 {
		e.Partition = func(key []byte) int { return job.Partition(job.KeyGroup(key), n) }
	}
	return e
}

// anew says whether a channel begins at its first number in this generation. In mode at_least_once a receiver's
// part may hold more than its sender's says was sent.
func (r *runner) anew(c job.Channel) bool {
	streamed := r.rec.Plan.Task(c.From).Source == nil
	return r.rec.Plan.Anew(c) || r.rec.RolledBack && streamed && r.rec.mode() == abs.AtLeastOnce
}

func (r *runner) deps() mqtt.Deps {
	return mqtt.Deps{Clock: r.clock.now, Log: r.log, Admit: r.a.drill.links.admit}
}

// source makes the adapter of the task's source.
func (r *runner) source() (dataflow.Source, error) {
	s := r.task.Source
	src, err := r.sourceOf(s)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	return src, nil
}

func (r *runner) sourceOf(s *job.SourceTask) (dataflow.Source, error) {
	switch {
	case s.MQTT != nil:
		return r.mqttSource(s)
	case s.File != nil:
		return local.NewFileSource(local.FileSourceConfig{
			Path: r.filePath(s.File.Path), Follow: s.File.Follow, Key: sourceKey(s.Key), ID: s.ID, Time: sourceTime(s.Time),
		}, r.localDeps())
	case s.Generator != nil:
		return r.generator(s)
	}
	return nil, errors.New("no kind of source that this agent knows")
}

func (r *runner) localDeps() local.Deps { return local.Deps{Clock: r.clock.now, Log: r.log} }

// filePath places a relative path within the agent's directory.
func (r *runner) filePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.a.opt.Data, "files", path)
}

func (r *runner) mqttSource(s *job.SourceTask) (dataflow.Source, error) {
	broker, err := r.broker(s.MQTT.Broker, s.MQTT.ClientID, s.MQTT.User, s.MQTT.PasswordFile, s.MQTT.TLS, s.Name)
	if err != nil {
		return nil, err
	}
	broker.KeepAlive = time.Duration(s.MQTT.KeepAliveMS) * time.Millisecond
	src, err := mqtt.NewSource(mqtt.SourceConfig{
		Broker: broker, Topics: s.MQTT.Topics, QoS: s.MQTT.QoS, Key: sourceKey(s.Key), ID: s.ID, Time: sourceTime(s.Time),
		Sequence: s.MQTT.Sequence, Retained: retained(s.MQTT.Retained), ShedOldest: s.MQTT.WhenFull == job.ShedOldest,
	}, r.deps())
	if err != nil {
		return nil, err
	}
	r.addLink(func() api.Link { return link(s.Name, broker.URL, src.Status().Link) })
	r.mu.Lock()
	r.forget = append(r.forget, src.Forget)
	if r.sourceStatus != nil {
		r.sourceBase = r.sourceBase.Plus(r.sourceStatus())
	}
	r.sourceStatus = src.Status
	r.mu.Unlock()
	return src, nil
}

// sourceCounts is the account of the task's source; nil if it has none that keeps one. The caller holds mu.
func (r *runner) sourceCounts(repeats uint64) *api.Source {
	if r.sourceStatus == nil {
		return nil
	}
	now := r.sourceStatus()
	st := r.sourceBase.Plus(now)
	return &api.Source{
		Name: r.task.Source.Name, State: now.State.String(), Reason: now.Reason, Received: st.Received, Logged: st.Logged,
		Deduplicated: st.Repeated + repeats, Shed: st.Shed, Refused: st.DeadLetter, RetainedSkipped: st.Skipped,
		SessionsLost: st.SessionsLost, Gaps: st.Gaps, Missing: st.Missing, Untracked: st.Untracked,
	}
}

// sourceNotices is what people should know of the task's source.
func (r *runner) sourceNotices() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sourceStatus == nil {
		return nil
	}
	n := r.sourceBase.Plus(r.sourceStatus()).Renamed
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("job %s: the broker of source %s seems to have sent %d messages again under other packet identifiers, as the one inside an agent does after its restart; they count as new ones: name an id in the job file",
		r.rec.Name, r.task.Source.Name, n)}
}

func (r *runner) sink(s job.SinkTask) (dataflow.Sink, error) {
	switch {
	case s.MQTT != nil:
		return r.mqttSink(s)
	case s.File != nil:
		if err := os.MkdirAll(filepath.Join(r.a.opt.Data, "files"), 0o750); err != nil {
			return nil, err
		}
		return local.NewFileSink(local.FileSinkConfig{Path: r.filePath(s.File.Path), Line: s.File.Line}, r.localDeps())
	case s.Log != nil:
		return local.NewLogSink(local.LogSinkConfig{Name: s.Name}, r.localDeps())
	}
	return nil, errors.New("no kind of sink that this agent knows")
}

// addSink keeps how to ask the sink for its counts.
func (r *runner) addSink(s job.SinkTask, sink dataflow.Sink) {
	f := func() api.Sink {
		out := api.Sink{Name: s.Name, Commit: string(s.Commit)}
		switch sink := sink.(type) {
		case *mqtt.Sink:
			st := sink.Status()
			out.Kind, out.Handed, out.InFlight, out.Repeated = "mqtt", st.Handed, uint64(st.UnderWay), st.Repeated
			out.Refused, out.Uncertain = st.DeadLetter, st.Uncertain
		case *local.FileSink:
			out.Kind, out.Handed = "file", sink.Status().Handed
		case *local.LogSink:
			out.Kind, out.Handed = "log", sink.Handed()
		}
		return out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sinkStatus = append(r.sinkStatus, f)
}

func (r *runner) mqttSink(s job.SinkTask) (dataflow.Sink, error) {
	name := string(r.task.ID) + "-" + s.Name
	broker, err := r.broker(s.MQTT.Broker, s.MQTT.ClientID, s.MQTT.User, s.MQTT.PasswordFile, s.MQTT.TLS, name)
	if err != nil {
		return nil, err
	}
	sink, err := mqtt.NewSink(mqtt.SinkConfig{
		Broker: broker, Topic: s.MQTT.Topic, Payload: s.MQTT.Payload, QoS: s.MQTT.QoS, Retain: s.MQTT.Retain, InFlight: s.MQTT.InFlight,
	}, mqtt.SinkDeps{Deps: r.deps(), DeadLetter: r.sinkDeadLetter})
	if err != nil {
		return nil, err
	}
	r.addLink(func() api.Link { return link(s.Name, broker.URL, sink.Status().Link) })
	if s.MQTT.QoS == 2 {
		r.mu.Lock()
		r.forget = append(r.forget, sink.Forget)
		r.mu.Unlock()
	}
	return sink, nil
}

// sinkDeadLetter keeps an item that a sink cannot publish.
func (r *runner) sinkDeadLetter(item dataflow.SinkItem, reason string, kept func()) {
	r.a.background(func() {
		key := fmt.Sprintf("out-%s-%d", item.Channel, item.Number)
		for {
			err := r.a.dead.Put(r.name, key, item.Record, reason)
			if err == nil {
				kept()
				return
			}
			r.log.Warn("dead letter not kept; trying again", "error", err)
			if !sleep(r.a.life, minBackoff) {
				return
			}
		}
	})
}

// broker completes what a job file says of a broker. Left out, it is this agent's own listener, else
// the one that an agent with an embedded server announces.
func (r *runner) broker(url, client, user, passwordFile string, tls *job.TLS, use string) (mqtt.Broker, error) {
	b := mqtt.Broker{URL: url, ClientID: client, User: user, PasswordFile: passwordFile}
	if b.ClientID == "" {
		b.ClientID = clientID("weir", r.rec.Name, use, r.task.Agent)
	}
	if tls != nil {
		b.CAFile, b.CertFile, b.KeyFile = tls.CAFile, tls.CertFile, tls.KeyFile
	}
	if b.URL != "" {
		return b, nil
	}
	if own := r.a.ownMQTT(); own != "" {
		b.URL = "tcp://" + own
		if b.User == "" {
			b.User, b.Password = r.a.opt.Auth.MQTT.User, r.a.opt.Auth.MQTT.Password
		}
		return b, nil
	}
	hub := r.a.hubMQTT()
	if hub == "" {
		return b, errors.New("the job names no broker, this agent has no MQTT listener, and no agent has announced one yet: name a broker in the job file, or wait for the hub")
	}
	b.URL = "tcp://" + hub
	return b, nil
}

// clientID is stable per agent and use, and distinct between jobs.
func clientID(parts ...string) string {
	return strings.Map(func(c rune) rune {
		if c == '/' || c == '@' || c == '+' || c == '#' || c == '.' {
			return '-'
		}
		return c
	}, strings.Join(parts, "-"))
}

func retained(rule job.Retained) mqtt.Retained {
	switch rule {
	case job.RetainedSkip:
		return mqtt.RetainedSkip
	case job.RetainedFirst:
		return mqtt.RetainedFirst
	}
	return mqtt.RetainedTake
}

func sourceKey(k job.KeyRule) extract.KeyRule {
	kinds := map[job.KeyKind]extract.KeyKind{
		job.KeyTopic: extract.KeyTopic, job.KeySegment: extract.KeySegment, job.KeyJSON: extract.KeyJSON, job.KeyConst: extract.KeyConst,
	}
	return extract.KeyRule{Kind: kinds[k.Kind], Segment: k.Segment, Path: k.JSON, Const: k.Const}
}

func sourceTime(t job.TimeRule) extract.TimeRule {
	units := map[job.TimeUnit]extract.TimeUnit{
		job.Seconds: extract.Seconds, job.Milliseconds: extract.Milliseconds, job.Microseconds: extract.Microseconds,
		job.Nanoseconds: extract.Nanoseconds, job.RFC3339: extract.RFC3339,
	}
	return extract.TimeRule{Path: t.JSON, Unit: units[t.Unit]}
}

func link(name, address string, st mqtt.LinkStatus) api.Link {
	l := api.Link{Kind: "mqtt", Name: name, Address: address, Up: st.Connected, Error: st.LastError}
	if st.OutageSince != 0 {
		l.Since = millis(st.OutageSince)
	}
	return l
}

func (r *runner) addLink(f func() api.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.linkStatus = append(r.linkStatus, f)
}

// forgetSessions removes the sessions that the task's sources keep at their brokers.
func (r *runner) forgetSessions(ctx context.Context) error {
	r.mu.Lock()
	forget := r.forget
	r.mu.Unlock()
	var errs []error
	for _, f := range forget {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}
