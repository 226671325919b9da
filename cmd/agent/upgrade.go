package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// trialFlags say how a new version of an operator is to prove itself.
type trialFlags struct {
	Canary   string        `placeholder:"N|K=V" help:"A change of operators alone: so many agents, or those with this label, have it first; the others once it has proved itself."`
	Records  uint64        `name:"trial-records" placeholder:"N" help:"It has proved itself once it has taken so many records without more failures than before (a canary: 100)."`
	Time     time.Duration `name:"trial-time" placeholder:"D" help:"And has run so long (30s)."`
	Failures uint64        `name:"trial-failures" placeholder:"N" help:"Failures that are tolerated beyond the old version's rate; with more, the old version comes back by itself (0)."`
	NoTrial  bool          `help:"Change operators without a trial: nothing is rolled back."`
}

func (f trialFlags) trial() (*api.Trial, error) {
	t := api.Trial{Canary: f.Canary, Records: f.Records, TimeMS: f.Time.Milliseconds(), Failures: f.Failures, Off: f.NoTrial}
	switch {
	case f.NoTrial && (f.Canary != "" || f.Records != 0 || f.Time != 0 || f.Failures != 0):
		return nil, usage("", "--no-trial does not go with what says how the trial is to be")
	case f.Time < 0:
		return nil, usage("", "--trial-time %s: not a time", f.Time)
	case t == api.Trial{}:
		return nil, nil
	}
	return &t, nil
}

type jobPromoteCmd struct {
	jobName
	remote
	output
}

// Run implements the command.
func (c jobPromoteCmd) Run(ctx context.Context, p *program) error { return c.end(ctx, p, true) }

func (c jobPromoteCmd) end(ctx context.Context, p *program, keep bool) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	u, err := cl.EndTrial(ctx, c.Job, keep)
	if err != nil {
		return fmt.Errorf("upgrade of job %s: %w", c.Job, err)
	}
	if c.JSON {
		return p.printJSON(u)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: %s\n", c.Job, upgradeText(u))
	return err
}

type jobRollbackCmd struct{ jobPromoteCmd }

// Run implements the command.
func (c jobRollbackCmd) Run(ctx context.Context, p *program) error { return c.end(ctx, p, false) }

// upgradeText is an upgrade in a line.
func upgradeText(u api.Upgrade) string {
	s := fmt.Sprintf("upgrade %d of %s: %s", u.Number, strings.Join(u.Operators, ", "), u.State)
	if u.Number == 0 { // what ran in the shadow was dropped, or took a drain
		s = fmt.Sprintf("shadow of %s: %s", strings.Join(u.Operators, ", "), u.State)
	}
	switch u.State {
	case api.UpgradeCanary, api.UpgradeTrial:
		if len(u.Agents) > 0 {
			s += " on " + strings.Join(u.Agents, ", ")
		}
		s += fmt.Sprintf("; %d of %d tasks have it; %d records, %d failed, %d may; proved after %d records and %s",
			u.Taken, u.Tasks, u.Records, u.Failed, u.Allowed, u.NeedRecords, msText(u.NeedMS))
	default:
		if u.Reason != "" {
			s += ": " + u.Reason
		}
	}
	return plain(s)
}

type deadLetterReplayCmd struct {
	jobName
	IDs      []string `name:"id" placeholder:"TASK/POSITION" help:"This one, as show names it; may be repeated."`
	Operator string   `placeholder:"NAME" help:"Those that this operator has refused."`
	Again    bool     `help:"Also those that were replayed before."`
	remote
	output
	waiting
}

// Help is what `agent job deadletters replay --help` says besides the flags.
func (deadLetterReplayCmd) Help() string {
	return `The record goes again through the task that gave it up, from where it came in, behind what the task has taken
meanwhile. A letter is replayed once; a record that is refused again is another dead letter. A timer, a watermark or
the end of the input on which an operator failed is no record, and is not replayed.`
}

// Run implements the command.
func (c deadLetterReplayCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	done, err := cl.ReplayDeadLetters(ctx, c.Job, api.Replay{IDs: c.IDs, Operator: c.Operator, Again: c.Again}, c.Timeout)
	if err != nil {
		return fmt.Errorf("replay dead letters of job %s: %w", c.Job, err)
	}
	p.warnOf(done.Unanswered, "replayed")
	var none error
	if len(c.IDs) > 0 && len(done.Replayed) == 0 {
		none = fmt.Errorf("replay dead letters of job %s: none of those named was", c.Job)
	}
	if c.JSON {
		return errors.Join(p.printJSON(done), none)
	}
	fmt.Fprintf(p.stdout, "job %s: %s replayed, %d skipped\n", c.Job, count(len(done.Replayed), "dead letter"), len(done.Skipped))
	for _, line := range skippedLines(done.Skipped) {
		fmt.Fprintln(p.stdout, plain(line))
	}
	if done.Left > 0 {
		fmt.Fprintf(p.stdout, "%d more are left: run it again\n", done.Left)
	}
	return none
}

// skippedLines tell why letters were not replayed: those with the same reason together, by the first one.
func skippedLines(skipped []api.SkippedLetter) (lines []string) {
	var reasons []string
	ids := map[string][]string{}
	for _, s := range skipped {
		if len(ids[s.Reason]) == 0 {
			reasons = append(reasons, s.Reason)
		}
		ids[s.Reason] = append(ids[s.Reason], s.ID)
	}
	for _, r := range reasons {
		which := ids[r][0]
		if more := len(ids[r]) - 1; more > 0 {
			which += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, which+": "+r)
	}
	return lines
}
