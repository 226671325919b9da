package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

type drillCmd struct {
	Kind    string        `arg:"" optional:"" help:"What goes wrong; --list shows what there is."`
	Job     string        `arg:"" optional:"" help:"The running job that is judged."`
	List    bool          `help:"Show what there is and what each does to the agent."`
	Yes     bool          `help:"Do it; without it the command says what it would do."`
	Lasts   time.Duration `default:"5s" help:"How long it lasts (default ${default}); of kill and power-cut the restart decides."`
	Timeout time.Duration `default:"3m" help:"How long to wait until everything is as before."`
	remote
	output
}

// Help is what `agent drill --help` says besides the flags.
func (drillCmd) Help() string {
	return `Something goes wrong at one agent, the one at --server, while a job runs on it, and the job's own counts are judged:
nothing lost, nothing twice. Nobody but that agent is touched. Other agents' tasks must not restart.

The verdict compares what both ends of every channel say in a checkpoint before and one after: how many items were
sent and how many consumed, of which the checksums must agree, and counts dead letters, records shed, messages missing
in a sequence, and outputs that replay made differently. It cannot see what never reached an agent: what a broker loses,
or what a sensor does not send again. Records must come to the job's sources meanwhile: without any, nothing is measured.
Exit code 0: exact; 1: not, or not known.`
}

// verdict is what a drill came to.
type verdict struct {
	Drill  string `json:"drill"`
	Agent  string `json:"agent"`
	Job    string `json:"job"`
	Exact  bool   `json:"exact"`
	Before uint64 `json:"epoch_before"`
	After  uint64 `json:"epoch_after"`
	// Records is how many the sources logged between the two checkpoints; without any the drill shows nothing.
	Records uint64 `json:"records"`
	// Items is how many more were consumed on all channels.
	Items       uint64   `json:"items"`
	Lost        uint64   `json:"lost"`
	Twice       uint64   `json:"twice"`
	Differing   uint64   `json:"differing"`
	Compared    uint64   `json:"compared"`
	DeadLetters uint64   `json:"dead_letters"`
	Shed        uint64   `json:"shed"`
	Missing     uint64   `json:"missing"`
	Uncertain   uint64   `json:"uncertain"`
	Restarted   []string `json:"restarted"` // tasks of other agents
	TookMS      float64  `json:"took_ms"`   // from the beginning until everything was as before
	Faults      []string `json:"faults"`
}

// errInexact makes the exit code of a drill after which the counts are not right.
var errInexact = errors.New("the job is not exact: see above")

// errUnmeasured makes that of one that shows nothing.
var errUnmeasured = errors.New("no verdict: no record came to the job's sources during the drill")

// drillPoll is how often an agent is asked how it is.
const drillPoll = 200 * time.Millisecond

// Run implements the command.
func (c drillCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.List {
		if c.Kind != "" || c.Job != "" {
			return usage("agent drill --list", "--list takes no drill and no job")
		}
		return c.list(ctx, p, cl)
	}
	if c.Kind == "" || c.Job == "" {
		return usage("agent drill KIND JOB; agent drill --list shows the kinds", "a drill needs its kind and a job")
	}
	if c.Lasts < time.Second || c.Lasts > api.MaxDrillSeconds*time.Second {
		return usage("", "--lasts %s: not between 1s and %ds", c.Lasts, api.MaxDrillSeconds)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	d := &drilling{cmd: c, cl: cl, out: p.stdout}
	if c.JSON {
		d.out = p.stderr
	}
	v, err := d.run(ctx)
	if err != nil || v == nil {
		return err
	}
	switch {
	case len(v.Faults) > 0:
		err = errInexact
	case !v.Exact:
		err = errUnmeasured
	}
	if c.JSON {
		return errors.Join(p.printJSON(v), err)
	}
	return errors.Join(v.print(p.stdout), err)
}

func (c drillCmd) list(ctx context.Context, p *program, cl *api.Client) error {
	all, err := cl.Drills(ctx)
	if err != nil {
		return fmt.Errorf("drill: %w", err)
	}
	if c.JSON {
		return p.printJSON(all)
	}
	for i, d := range all {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		fmt.Fprintf(p.stdout, "%s: %s.\n", plain(d.Kind), plain(d.Does))
	}
	return nil
}

// drilling is one drill under way.
type drilling struct {
	cmd    drillCmd
	cl     *api.Client
	out    io.Writer
	job    api.Job
	since  api.Job // as it was with the checkpoint before
	ended  bool    // the agent's process, and with it its counts
	status api.Status
	before api.CheckpointDetail
}

// run does it, or, without --yes, says what it would do.
func (d *drilling) run(ctx context.Context) (*verdict, error) {
	kind, job := d.cmd.Kind, d.cmd.Job
	all, err := d.cl.Drills(ctx)
	if err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	var what *api.Drill
	for i := range all {
		if all[i].Kind == kind {
			what = &all[i]
		}
	}
	if what == nil {
		return nil, usage("agent drill --list shows what there is", "no drill %q", kind)
	}
	if d.job, err = d.cl.Job(ctx, job); err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	if d.status, err = d.cl.Status(ctx); err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	if err := d.fit(); err != nil {
		return nil, err
	}
	fmt.Fprintf(d.out, "agent %s, job %s: the drill %s %s.\n", plain(d.status.Agent.Name), plain(job), kind, plain(what.Does))
	if !d.cmd.Yes {
		fmt.Fprintln(d.out, "Nothing was done. Add --yes to do it.")
		return nil, nil
	}
	if d.before, err = d.checkpoint(ctx); err != nil {
		return nil, err
	}
	if d.since, err = d.cl.Job(ctx, job); err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	d.ended = what.Ends
	began := time.Now()
	begun, err := d.cl.Drill(ctx, api.DrillOrder{Kind: kind, Seconds: int(d.cmd.Lasts / time.Second), Sure: true})
	if err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	if what.Ends && !begun.Supervised {
		fmt.Fprintf(d.out, "Process %d was not started by systemd: if nothing else starts it again, do so now.\n", begun.PID)
	}
	if err := d.wait(ctx, what, begun, began); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := d.checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	v := d.judge(after)
	v.TookMS = float64(took.Milliseconds())
	job2, err := d.cl.Job(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("drill: %w", err)
	}
	d.compare(v, job2)
	v.Records = d.logged(job2)
	v.Exact = len(v.Faults) == 0 && v.Records > 0
	return v, nil
}

// fit checks that the job can be judged.
func (d *drilling) fit() error {
	if d.job.State != api.JobRunning {
		return fmt.Errorf("drill: job %s is %s: only a running job can be judged", d.job.Name, d.job.State)
	}
	here := false
	for _, t := range d.job.Tasks {
		here = here || t.Agent == d.status.Agent.Name
		if t.State != api.TaskRunning {
			return fmt.Errorf("drill: task %s on %s is %s %s: a drill begins when all tasks run", t.ID, t.Agent, t.State, t.Reason)
		}
	}
	if !here {
		return fmt.Errorf("drill: job %s has no task on agent %s: take --server of one that it runs on", d.job.Name, d.status.Agent.Name)
	}
	return nil
}

// checkpoint takes one and returns what it says of the channels.
func (d *drilling) checkpoint(ctx context.Context) (api.CheckpointDetail, error) {
	for {
		c, err := d.cl.CheckpointNow(ctx, d.cmd.Job, "", d.cmd.Timeout)
		if err == nil {
			var detail api.CheckpointDetail
			if detail, err = d.cl.Checkpoint(ctx, d.cmd.Job, c.Epoch); err != nil {
				return detail, fmt.Errorf("drill: %w", err)
			}
			if len(detail.Kept) == 0 {
				return detail, nil
			}
			err = fmt.Errorf("checkpoint %d holds older parts of %v, whose agents were away", c.Epoch, detail.Kept)
		}
		if !pause(ctx, drillPoll) {
			return api.CheckpointDetail{}, fmt.Errorf("drill: a checkpoint of all tasks: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// wait waits until the drill is over and all tasks run again.
func (d *drilling) wait(ctx context.Context, what *api.Drill, begun api.DrillBegun, began time.Time) error {
	state := "the agent does not answer"
	for {
		if !pause(ctx, drillPoll) {
			return fmt.Errorf("drill: not over within %s: %s", d.cmd.Timeout, state)
		}
		if !what.Ends && time.Since(began) < d.cmd.Lasts {
			continue
		}
		st, err := d.cl.Status(ctx)
		if err != nil {
			state = err.Error()
			continue
		}
		if what.Ends && st.Agent.Starts <= begun.Starts {
			state = "the process has not been started again"
			continue
		}
		j, err := d.cl.Job(ctx, d.cmd.Job)
		if err != nil {
			state = err.Error()
			continue
		}
		if state = whole(j); state == "" {
			return nil
		}
	}
}

// whole says what keeps a job from being as before; empty: nothing.
func whole(j api.Job) string {
	if j.State != api.JobRunning {
		return "the job is " + j.State + " " + j.Reason
	}
	for _, t := range j.Tasks {
		if t.State != api.TaskRunning || t.Recovery != nil && !t.Recovery.Done {
			return fmt.Sprintf("task %s on %s is %s %s", t.ID, t.Agent, t.State, t.Reason)
		}
	}
	return ""
}

// judge compares the channels of two checkpoints.
func (d *drilling) judge(after api.CheckpointDetail) *verdict {
	v := &verdict{
		Drill: d.cmd.Kind, Agent: d.status.Agent.Name, Job: d.cmd.Job, Before: d.before.Epoch, After: after.Epoch,
		Restarted: []string{}, Faults: []string{},
	}
	if after.Generation != d.before.Generation {
		v.fault("the job is in generation %d, it was in %d: somebody has changed it", after.Generation, d.before.Generation)
	}
	was := map[string]api.ChannelCut{}
	for _, c := range d.before.Channels {
		was[c.ID] = c
	}
	for _, c := range after.Channels {
		b := was[c.ID]
		v.Items += c.Consumed - min(b.Consumed, c.Consumed)
		if lost := c.Sent - min(c.Sent, c.Consumed); lost > 0 {
			v.Lost += lost
			v.fault("channel %s: %d items sent, %d consumed", c.ID, c.Sent, c.Consumed)
		}
		if twice := c.Consumed - min(c.Sent, c.Consumed); twice > 0 && !c.Source {
			v.Twice += twice
			v.fault("channel %s: %d items consumed, %d sent", c.ID, c.Consumed, c.Sent)
		}
		if c.Sent < b.Sent || c.Consumed < b.Consumed {
			v.Twice += b.Sent - min(b.Sent, c.Sent)
			v.fault("channel %s: numbers have gone back, from %d and %d to %d and %d", c.ID, b.Sent, b.Consumed, c.Sent, c.Consumed)
		}
	}
	return v
}

// compare adds what tasks, sources and sinks say of themselves.
func (d *drilling) compare(v *verdict, now api.Job) {
	was := map[string]api.Task{}
	for _, t := range d.job.Tasks {
		was[t.ID] = t
	}
	for _, t := range now.Tasks {
		b, own := was[t.ID], t.Agent == d.status.Agent.Name
		if r := t.Recovery; r != nil && (b.Recovery == nil || !r.At.Equal(b.Recovery.At)) {
			v.Differing += r.Differing
			v.Compared += r.Compared
			if !own && !r.ForReceivers() {
				v.Restarted = append(v.Restarted, t.ID+" on "+t.Agent)
			}
		}
		v.DeadLetters += over(t.DeadLetters, b.DeadLetters)
		if s := t.Source; s != nil {
			o := api.Source{}
			if b.Source != nil {
				o = *b.Source
			}
			v.Shed += over(s.Shed, o.Shed)
			v.Missing += over(s.Missing, o.Missing)
		}
		for i, s := range t.Sinks {
			o := api.Sink{}
			if i < len(b.Sinks) {
				o = b.Sinks[i]
			}
			v.Uncertain += over(s.Uncertain, o.Uncertain)
		}
	}
	for _, f := range []struct {
		n    uint64
		what string
	}{
		{v.Differing, "outputs were made differently by replay"},
		{v.DeadLetters, "records became dead letters"},
		{v.Shed, "records were shed"},
		{v.Missing, "numbers of a sequence are missing"},
		{v.Uncertain, "outputs may have arrived twice, or not"},
		{uint64(len(v.Restarted)), "tasks of other agents restarted"},
	} {
		if f.n > 0 {
			v.fault("%d %s", f.n, f.what)
		}
	}
}

// logged is how many records the job's sources have logged since the checkpoint before.
func (d *drilling) logged(now api.Job) (n uint64) {
	was := map[string]uint64{}
	for _, t := range d.since.Tasks {
		if !d.ended || t.Agent != d.status.Agent.Name {
			was[t.ID] = t.Logged
		}
	}
	for _, t := range now.Tasks {
		n += over(t.Logged, was[t.ID])
	}
	return n
}

// over is by how much a counter has grown; one that began anew has grown by all it says.
func over(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (v *verdict) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

func (v *verdict) print(w io.Writer) error {
	t := newTable("RECORDS", "ITEMS", "LOST", "TWICE", "COMPARED", "DIFFERING", "DEAD", "SHED", "MISSING", "UNCERTAIN", "OTHERS RESTARTED", "TOOK")
	t.add(v.Records, v.Items, v.Lost, v.Twice, v.Compared, v.Differing, v.DeadLetters, v.Shed, v.Missing, v.Uncertain, len(v.Restarted), msText(v.TookMS))
	err := t.print(w)
	for _, f := range v.Faults {
		fmt.Fprintf(w, "fault: %s\n", plain(f))
	}
	if !v.Exact && len(v.Faults) == 0 {
		_, err2 := fmt.Fprintf(w, "Nothing was measured: between checkpoints %d and %d no record came to the sources of job %s. Publish to them while the drill runs, from its beginning to its end, and repeat it.\n", v.Before, v.After, plain(v.Job))
		err = errors.Join(err, err2)
	}
	if v.Exact {
		_, err2 := fmt.Fprintf(w, "Exact: between checkpoints %d and %d of job %s nothing was lost and nothing counted twice.\n", v.Before, v.After, plain(v.Job))
		err = errors.Join(err, err2)
	}
	return err
}

// pause waits and tells whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
