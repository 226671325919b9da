package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
)

// maxJobBytes is the largest job file that is read; the parser has its own, lower limit.
const maxJobBytes = 1 << 20

type jobCmds struct {
	Validate    jobValidateCmd `cmd:"" help:"Check a job file without an agent."`
	Plan        jobPlanCmd     `cmd:"" help:"Show what a job file would run, where, and what applying it does, or why that is refused."`
	Apply       jobApplyCmd    `cmd:"" help:"Create or update a job; returns when its checkpoint 0 is committed."`
	List        jobListCmd     `cmd:"" help:"List the jobs."`
	Show        jobShowCmd     `cmd:"" help:"Show a job, its tasks and its checkpoints."`
	Promote     jobPromoteCmd  `cmd:"" help:"End the trial of new versions of operators, or apply those that run in the shadow: all agents have them."`
	Rollback    jobRollbackCmd `cmd:"" help:"End the trial of new versions of operators: the versions before come back. What runs in the shadow is dropped."`
	Stop        jobStopCmd     `cmd:"" help:"Drain a job and keep a final checkpoint."`
	Delete      jobDeleteCmd   `cmd:"" help:"Remove a stopped job with its state."`
	Deadletters deadLetterCmds `cmd:"" help:"Records that were given up."`
}

// waiting is shared by commands that wait for something to happen.
type waiting struct {
	Timeout time.Duration `default:"60s" help:"How long to wait."`
}

type jobFile struct {
	File string `arg:"" placeholder:"FILE.yaml" help:"The job file."`
}

// read parses the file. Its errors are those of whoever wrote it.
func (f jobFile) read() (*job.File, string, error) {
	data, err := readSmall(f.File, maxJobBytes)
	if err != nil {
		return nil, "", usage("", "%w", err)
	}
	parsed, err := job.Parse(f.File, data)
	if err != nil {
		return nil, "", usage("", "%w", err)
	}
	return parsed, string(data), nil
}

// modules lists the modules that a job file names as files: the path as written there, and the
// path to open.
func modules(f *job.File) map[string]string {
	out := map[string]string{}
	for _, op := range f.Operators {
		if op.IsPath() {
			out[op.WASM] = filepath.Join(filepath.Dir(f.Path), op.WASM)
		}
	}
	return out
}

// openModules opens the modules that a job file names as files, and closes them again: what is wrong with one is said with
// its place in the file.
func openModules(f *job.File) error {
	var wrong job.Errors
	for _, op := range f.Operators {
		if !op.IsPath() {
			continue
		}
		m, err := openModule(filepath.Join(filepath.Dir(f.Path), op.WASM))
		if err != nil {
			wrong = append(wrong, &job.Error{File: f.Path, Pos: op.WASMPos, Text: "operator " + op.Name + ": " + err.Error()})
			continue
		}
		m.Close()
	}
	if len(wrong) > 0 {
		return usage("", "%w", wrong)
	}
	return nil
}

type jobValidateCmd struct{ jobFile }

// Run implements the command.
func (c jobValidateCmd) Run(ctx context.Context, p *program) error {
	f, _, err := c.read()
	if err != nil {
		return err
	}
	if _, err := job.Build(f); err != nil {
		return usage("", "%w", err)
	}
	if err := openModules(f); err != nil {
		return err
	}
	if err := p.tryOperators(ctx, f); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s: job %s is valid: %s, %s, %s\n", c.File, f.Name,
		count(len(f.Sources), "source"), count(len(f.Operators), "operator"), count(len(f.Sinks), "sink"))
	return err
}

// tryOperators asks the modules that are files whether they take their configuration.
func (p *program) tryOperators(ctx context.Context, f *job.File) error {
	if err := p.parts.tryOperators(ctx, f, modules(f)); err != nil {
		return usage("", "%w", err)
	}
	return nil
}

type jobPlanCmd struct {
	jobFile
	applyFlags
	remote
	output
}

// Help is what `agent job plan --help` says besides the flags.
func (jobPlanCmd) Help() string {
	return `Nothing is changed, and modules that are files are not sent. With the flags of agent job apply it says what that command
with the same flags does, or why it refuses, with the same exit code.`
}

// Run implements the command.
func (c jobPlanCmd) Run(ctx context.Context, p *program) error {
	cl, src, err := c.source(c.remote)
	if err != nil {
		return err
	}
	if err := c.choose(&src.JobSource); err != nil {
		return err
	}
	if err := digestModules(src); err != nil {
		return err
	}
	if err := p.tryOperators(ctx, src.parsed); err != nil {
		return err
	}
	plan, err := cl.PlanJob(ctx, src.JobSource)
	if err != nil {
		return fmt.Errorf("plan %s: %w", c.File, err)
	}
	var refused error
	if r := plan.Refused; r != nil {
		refused = fmt.Errorf("apply %s is refused: %w", c.File, &api.Error{Status: r.Status, Message: r.Message, Hint: r.Hint})
	}
	if c.JSON {
		return errors.Join(p.printJSON(plan), refused)
	}
	_, err = fmt.Fprint(p.stdout, plan.Text)
	if plan.Does != "" && err == nil {
		_, err = fmt.Fprintf(p.stdout, "\napply %s\n", plain(plan.Does))
	}
	return errors.Join(err, refused)
}

// jobSource is a job file with the files that it names.
type jobSource struct {
	api.JobSource
	parsed *job.File
	files  map[string]string
}

func (f jobFile) source(r remote) (*api.Client, jobSource, error) {
	cl, err := r.client()
	if err != nil {
		return nil, jobSource{}, err
	}
	parsed, text, err := f.read()
	if err != nil {
		return nil, jobSource{}, err
	}
	if err := openModules(parsed); err != nil {
		return nil, jobSource{}, err
	}
	src := jobSource{
		JobSource: api.JobSource{File: f.File, YAML: text, Modules: map[string]string{}},
		parsed:    parsed,
		files:     modules(parsed),
	}
	return cl, src, nil
}

// pushModules sends the files that a job names and fills in their digests.
func (p *program) pushModules(ctx context.Context, cl *api.Client, src jobSource) error {
	for name, path := range src.files {
		f, err := openModule(path)
		if err != nil {
			return err
		}
		digest, err := p.upload(ctx, cl, path, f, func(string) error { return nil })
		f.Close()
		if err == nil {
			_, err = cl.KeepModule(ctx, digest)
		}
		if err != nil {
			return fmt.Errorf("push %s: %w", path, err)
		}
		src.Modules[name] = digest
	}
	return nil
}

// digestModules fills in the digests of the files that a job names and sends nothing.
func digestModules(src jobSource) error {
	for name, path := range src.files {
		f, err := openModule(path)
		if err != nil {
			return err
		}
		digest, err := digestOf(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		src.Modules[name] = digest
	}
	return nil
}

// applyFlags say how a job file is to be applied.
type applyFlags struct {
	trialFlags
	Shadow  bool     `help:"Let the changed operators' new versions run in the shadow of those that run: on the same input, and nothing of what they put out is used; agent job show compares. Of the other choices --canary goes with it. Promote applies what runs in the shadow, rollback drops it."`
	Fresh   []string `placeholder:"OPERATOR" help:"Start this operator of a running job anew: it keeps its keyed state, not its variables, and may change its module and configuration."`
	Replace []string `placeholder:"AGENT" help:"The device of this agent, or its log, was lost, and one of its name runs: its tasks go on from their newest replicated snapshots; what only the old device knew is lost. If one of them takes records from others, --restart is implied."`
	Restart bool     `help:"Let all tasks that take records from others go on from the newest checkpoint that counts: after replay has differed, or a gap that cannot be refilled. Sources send again from there and lose nothing; sinks that do not commit with checkpoints may repeat."`
}

// choose puts the choices into a request.
func (f applyFlags) choose(src *api.JobSource) (err error) {
	src.Trial, err = f.trial()
	src.Fresh, src.Replace, src.Restart, src.Shadow = f.Fresh, f.Replace, f.Restart, f.Shadow
	return err
}

type jobApplyCmd struct {
	jobFile
	applyFlags
	remote
	output
	waiting
}

// Help is what `agent job apply --help` says besides the flags.
func (jobApplyCmd) Help() string {
	return `Modules that the file names as files are sent first, in pieces, as agent operator push sends one: where that breaks
off, the same command goes on with what the agent does not have yet.`
}

// Run implements the command.
func (c jobApplyCmd) Run(ctx context.Context, p *program) error {
	cl, src, err := c.source(c.remote)
	if err != nil {
		return err
	}
	if err := c.choose(&src.JobSource); err != nil {
		return err
	}
	if err := p.pushModules(ctx, cl, src); err != nil {
		return err
	}
	a, err := cl.ApplyJob(ctx, src.JobSource, c.Timeout)
	if err != nil {
		return fmt.Errorf("apply %s: %w", c.File, err)
	}
	if c.JSON {
		return p.printJSON(a)
	}
	for _, w := range a.Warnings {
		fmt.Fprintf(p.stderr, "warning: %s\n", plain(w))
	}
	what := "updated"
	if a.Upgrade > 0 {
		what = fmt.Sprintf("upgraded while it runs (upgrade %d; agent job show %s says how its trial goes)", a.Upgrade, a.Job)
	}
	if a.Drained != "" {
		what += ", drained since " + plain(a.Drained)
	}
	switch {
	case len(a.Shadow) > 0:
		what = fmt.Sprintf("goes on, with a new version of %s in the shadow (agent job show %s compares)", plain(strings.Join(a.Shadow, ", ")), a.Job)
	case a.Created:
		what = "created"
	case a.Unchanged:
		what = "unchanged"
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: %s, generation %d\n", a.Job, what, a.Generation)
	return err
}

type jobListCmd struct {
	remote
	output
}

// Run implements the command.
func (c jobListCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	jobs, err := cl.Jobs(ctx)
	if err != nil {
		return fmt.Errorf("list jobs: %w", err)
	}
	if c.JSON {
		return p.printJSON(jobs)
	}
	t := newTable("NAME", "STATE", "GEN", "RUNNING", "RESTARTS", "IN", "OUT", "DEAD", "COMPLETE", "REPLICATED", "REASON")
	for _, j := range jobs {
		t.add(j.Name, j.State, j.Generation, fmt.Sprintf("%d/%d", j.RunningTasks, j.TaskCount), ran(j.State, j.Restarts),
			ran(j.State, j.RecordsIn), ran(j.State, j.RecordsOut), ran(j.State, j.DeadLetters), j.LastCompleteEpoch, j.LastReplicatedEpoch, j.Reason)
	}
	return t.print(p.stdout)
}

type jobName struct {
	Job string `arg:"" help:"Name of the job."`
}

type jobShowCmd struct {
	jobName
	remote
	output
}

// Run implements the command.
func (c jobShowCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	j, err := cl.Job(ctx, c.Job)
	if err != nil {
		return fmt.Errorf("show job %s: %w", c.Job, err)
	}
	if c.JSON {
		return p.printJSON(j)
	}
	return p.printJob(j)
}

func (p *program) printJob(j api.Job) error {
	w := p.stdout
	fmt.Fprintf(w, "%s: %s, generation %d, applied %s\n", plain(j.Name), j.State, j.Generation, timeText(j.Applied))
	if j.Reason != "" {
		fmt.Fprintf(w, "reason: %s\n", plain(j.Reason))
	}
	for line := range strings.Lines(j.Promise) {
		fmt.Fprintf(w, "promise: %s\n", plain(strings.TrimRight(line, "\n")))
	}
	for _, text := range j.Warnings {
		fmt.Fprintf(w, "warning: %s\n", plain(text))
	}
	fmt.Fprintf(w, "checkpoints: complete %d, replicated %d; align %s, freeze %s, persist %s, replicate %s\n",
		j.LastCompleteEpoch, j.LastReplicatedEpoch, msText(j.AlignMS), msText(j.FreezeMS), msText(j.PersistMS), msText(j.ReplicateMS))
	if len(j.Without) > 0 {
		fmt.Fprintf(w, "checkpoints go on without: %s\n", someText(j.Without))
	}
	if j.Waits != "" {
		fmt.Fprintf(w, "next checkpoint: %s\n", plain(j.Waits))
	}
	if j.Upgrade != nil {
		fmt.Fprintln(w, upgradeText(*j.Upgrade))
	}
	if j.Shadow != nil {
		fmt.Fprintln(w, shadowText(*j.Shadow))
	}
	if r := j.Running; r != nil {
		fmt.Fprintf(w, "running: epoch %d, %s for %s, %d of %d parts", r.Epoch, r.Phase, msText(r.AgeMS), r.Acked, r.Needed)
		for i, t := range r.HeldUpBy {
			sep := ", "
			if i == 0 {
				sep = "; held up by "
			}
			fmt.Fprint(w, sep, plain(t))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	if err := taskTable(j.Tasks, false).print(w); err != nil {
		return err
	}
	if err := printShadows(w, j.Tasks); err != nil {
		return err
	}
	if back := recoveryTable(j.Tasks); back != nil {
		fmt.Fprintln(w)
		if err := back.print(w); err != nil {
			return err
		}
	}
	if lost := lossTable(j.Tasks); lost != nil {
		fmt.Fprintln(w)
		if err := lost.print(w); err != nil {
			return err
		}
	}
	if letters := lettersTable(j.LostLetters); letters != nil {
		fmt.Fprintln(w)
		if err := letters.print(w); err != nil {
			return err
		}
	}
	if sources := sourceTable(j.Tasks); sources != nil {
		fmt.Fprintln(w)
		if err := sources.print(w); err != nil {
			return err
		}
	}
	if times := eventTimeTable(j.Tasks); times != nil {
		fmt.Fprintln(w)
		if err := times.print(w); err != nil {
			return err
		}
	}
	sinks := sinkTable(j.Tasks)
	if sinks == nil {
		return nil
	}
	fmt.Fprintln(w)
	return sinks.print(w)
}

// sourceTable is what came of the messages of sources; nil if there are none.
func sourceTable(tasks []api.Task) *table {
	t := newTable("SOURCE", "STATE", "RECEIVED", "LOGGED", "REPEATS", "SHED", "REFUSED", "RETAINED SKIPPED", "SESSIONS LOST", "MISSING", "REASON")
	some := false
	for _, k := range tasks {
		if s := k.Source; s != nil {
			some = true
			t.add(k.ID, s.State, s.Received, s.Logged, s.Deduplicated, s.Shed, s.Refused, s.RetainedSkipped, s.SessionsLost, s.Missing, s.Reason)
		}
	}
	if !some {
		return nil
	}
	return t
}

type jobStopCmd struct {
	jobName
	remote
	output
	waiting
}

// Run implements the command.
func (c jobStopCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	cp, err := cl.StopJob(ctx, c.Job, c.Timeout)
	if err != nil {
		return fmt.Errorf("stop job %s: %w", c.Job, err)
	}
	if c.JSON {
		return p.printJSON(cp)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: stopped, final checkpoint is epoch %d (%s)\n", c.Job, cp.Epoch, cp.State)
	return err
}

type jobDeleteCmd struct {
	jobName
	Force bool `help:"Also if it is not stopped: what is under way is lost."`
	remote
	waiting
}

// Run implements the command.
func (c jobDeleteCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if err := cl.DeleteJob(ctx, c.Job, c.Force, c.Timeout); err != nil {
		return fmt.Errorf("delete job %s: %w", c.Job, err)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: deleted\n", c.Job)
	return err
}

type deadLetterCmds struct {
	Show   deadLetterShowCmd   `cmd:"" default:"withargs" help:"Show a job's newest dead letters, oldest first; agents that do not answer are named."`
	Replay deadLetterReplayCmd `cmd:"" help:"Have records that operators refused processed again."`
}

type deadLetterShowCmd struct {
	jobName
	Limit int `default:"100" help:"How many, up to 10000."`
	remote
	output
}

// Run implements the command.
func (c deadLetterShowCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	found, err := cl.DeadLetters(ctx, c.Job, c.Limit)
	if err != nil {
		return fmt.Errorf("dead letters of job %s: %w", c.Job, err)
	}
	p.warnOf(found.Unanswered, "listed")
	if n := len(found.Letters); uint64(n) < found.Kept {
		way := "--limit shows more"
		if n < c.Limit {
			way = "an agent sends those that fit 512 KiB"
		}
		fmt.Fprintf(p.stderr, "warning: the newest %d of %d dead letters: %s\n", n, found.Kept, way)
	}
	if c.JSON {
		return p.printJSON(found)
	}
	t := newTable("AT", "ID", "AGENT", "REPLAYED", "REASON", "KEY", "BYTES", "VALUE")
	for _, l := range found.Letters {
		again := ""
		if !l.Replayed.IsZero() {
			again = timeText(l.Replayed)
		}
		t.add(timeText(l.At), l.ID, l.Agent, again, l.Reason, string(l.Key), l.Bytes, short(string(l.Value)))
	}
	return t.print(p.stdout)
}

// warnOf names the agents whose dead letters are not in what is printed.
func (p *program) warnOf(silent []api.Unanswered, what string) {
	for _, u := range silent {
		had := "whether it has any is not known"
		if !u.Heard.IsZero() {
			had = fmt.Sprintf("it had %d to replay when it was last heard, at %s", u.Letters, timeText(u.Heard))
		}
		fmt.Fprintf(p.stderr, "warning: agent %s does not answer: its dead letters are not %s; %s\n", plain(u.Agent), what, had)
	}
}

// short cuts a value for a table; --json has more of it.
func short(s string) string {
	const most = 60
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
