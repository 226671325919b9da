package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/ledger"
)

// progressEvery is often enough to see that it moves.
const progressEvery = 2 * time.Second

// printer prints what happens, each line with the seconds since the beginning.
type printer struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
}

func (p *printer) event(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%5.1f s  %s\n", time.Since(p.began).Seconds(), fmt.Sprintf(format, args...))
}

// text prints something as it is.
func (p *printer) text(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	io.WriteString(p.out, s)
}

// progress prints how far it is, until ctx ends.
func (p *printer) progress(ctx context.Context, b *book) {
	for fleet.Sleep(ctx, progressEvery) {
		if t := b.totals(); t.Sent > 0 {
			p.event("sent %d, counted %d", t.Sent, t.Counted)
		}
	}
}

// outcome is what the table shows.
type outcome struct {
	verdict    ledger.Verdict
	job        api.Job
	agents     []agentOutcome
	complete   int // checkpoints
	replicated int
}

type agentOutcome struct {
	name     string
	kills    int
	restarts uint64
	recovery time.Duration // 0: it was not killed
	levels   []string      // of its tasks' recoveries
	held     uint64        // outputs regenerated and held back
	compared uint64        // of those, compared with what was sent
	differed uint64
}

// judge asks the agents how it went, prints the table, and comes to the verdict.
func (s *stage) judge(ctx context.Context) error {
	o, err := s.outcome(ctx)
	if err != nil {
		return err
	}
	s.out.text(o.table())
	s.shown = true
	if !o.exact() {
		s.verdict = ErrInexact
	}
	return nil
}

func (s *stage) outcome(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	o := outcome{verdict: s.book.verdict()}
	c := s.hub.Client()
	var err error
	if o.job, err = c.Job(ctx, jobName); err != nil {
		return o, err
	}
	checkpoints, err := c.Checkpoints(ctx, jobName)
	if err != nil {
		return o, err
	}
	for _, cp := range checkpoints {
		switch cp.State {
		case api.CheckpointReplicated:
			o.replicated++
			o.complete++
		case api.CheckpointComplete:
			o.complete++
		}
	}
	agents, err := c.Agents(ctx)
	if err != nil {
		return o, err
	}
	for _, a := range s.fleet.Agents() {
		o.agents = append(o.agents, s.agentOutcome(a, agents, o.job.Tasks))
	}
	return o, nil
}

func (s *stage) agentOutcome(a *fleet.Agent, agents []api.Agent, tasks []api.Task) agentOutcome {
	out := agentOutcome{name: a.Name}
	for _, known := range agents {
		if known.Name == a.Name && known.Starts > 0 {
			out.restarts = known.Starts - 1
		}
	}
	for _, o := range s.outages {
		if o.agent == a {
			out.kills++
			out.recovery = o.recovery
			out.add(o.tasks)
		}
	}
	out.add(slices.DeleteFunc(slices.Clone(tasks), func(t api.Task) bool { return t.Agent != a.Name || s.noted(t) }))
	return out
}

// noted tells whether a task's last recovery is that of one of the outages.
func (s *stage) noted(t api.Task) bool {
	return slices.ContainsFunc(s.outages, func(o outage) bool {
		return slices.ContainsFunc(o.tasks, func(before api.Task) bool {
			return before.ID == t.ID && before.Recovery != nil && t.Recovery != nil && before.Recovery.At.Equal(t.Recovery.At)
		})
	})
}

// add adds the recoveries of tasks.
func (o *agentOutcome) add(tasks []api.Task) {
	for _, t := range tasks {
		r := t.Recovery
		if r == nil {
			continue
		}
		if !slices.Contains(o.levels, r.Level) {
			o.levels = append(o.levels, r.Level)
		}
		o.held += r.HeldBack
		o.compared += r.Compared
		o.differed += r.Differing
	}
}

// exact also asks for what replay was compared with.
func (o outcome) exact() bool {
	for _, a := range o.agents {
		if a.differed > 0 {
			return false
		}
	}
	return o.verdict.Exact() && o.verdict.Sent > 0
}

// table is the outcome for people.
func (o outcome) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	v := o.verdict
	fmt.Fprintf(w, "\nsent\t%d\treadings of %d sensors that the broker acknowledged\n", v.Sent, v.Sensors)
	fmt.Fprintf(w, "counted\t%d\t\n", v.Counted)
	fmt.Fprintf(w, "lost\t%d\t\n", v.Lost)
	fmt.Fprintf(w, "duplicated\t%d\t\n", v.Duplicated)
	if v.Altered > 0 {
		fmt.Fprintf(w, "altered\t%d\trecords that came again under their number with other content\n", v.Altered)
	}
	if v.Alien > 0 {
		fmt.Fprintf(w, "alien\t%d\tmessages that are no records\n", v.Alien)
	}
	fmt.Fprintf(w, "repeats on the last hop\t%d\trecords that came again as they were; QoS 1 allows it\n", v.Repeats)
	fmt.Fprintf(w, "checkpoints\t%d\tcomplete, %d of them replicated\n", o.complete, o.replicated)
	w.Flush()
	fmt.Fprintf(w, "\nAGENT\tKILLS\tRESTARTS\tRECOVERY\tLEVEL\tHELD BACK\tCOMPARED\tDIFFERENT\n")
	for _, a := range o.agents {
		recovery := "-"
		if a.kills > 0 {
			recovery = fmt.Sprintf("%.2f s", a.recovery.Seconds())
		}
		level := "-"
		if len(a.levels) > 0 {
			level = strings.Join(a.levels, ", ")
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d\t%d\t%d\n", a.name, a.kills, a.restarts, recovery, level, a.held, a.compared, a.differed)
	}
	w.Flush()
	b.WriteString("recovery: from the start of the process to the first new output\n")
	b.WriteString("L1: from its own disk, nobody else restarts; rewind: sent again what a receiver lacked\n")
	b.WriteString("held back: outputs that were regenerated and that the receiver had; compared: checksums of such\n\n")
	for _, f := range v.Faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	if o.exact() {
		b.WriteString("EXACT: every reading was counted once.\n")
	} else {
		b.WriteString("NOT EXACT.\n")
	}
	return b.String()
}
