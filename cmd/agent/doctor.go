package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/storage"
)

type doctorCmd struct {
	Data string `required:"" placeholder:"DIR" help:"Directory of an agent that does not run."`
	output
}

// diagnose gives up when ctx ends: a disk that is failing may not answer.
func (c doctorCmd) diagnose(ctx context.Context, p *program) (*node.Diagnosis, error) {
	type result struct {
		d   *node.Diagnosis
		err error
	}
	done := make(chan result, 1)
	go func() {
		d, err := p.parts.diagnose(c.Data)
		done <- result{d, err}
	}()
	select {
	case r := <-done:
		return r.d, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// errUnwell makes the exit code of a directory with something wrong.
var errUnwell = errors.New("something is wrong: see above")

// Run implements the command.
func (c doctorCmd) Run(ctx context.Context, p *program) error {
	d, err := c.diagnose(ctx, p)
	if errors.Is(err, storage.ErrNoAgent) {
		return usage("", "doctor: %w", err)
	}
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	var verdict error
	if !d.Fine() {
		verdict = errUnwell
	}
	if c.JSON {
		return errors.Join(p.printJSON(d), verdict)
	}
	fmt.Fprintf(p.stdout, "agent %s, %s, starts: %d\n\n", plain(d.Agent), plain(d.Directory), d.Starts)
	items := newTable("PART", "STATE", "BYTES", "WRITTEN", "DETAIL")
	for _, i := range d.Items {
		written := "-"
		if !i.Written.IsZero() {
			written = i.Written.Format(time.RFC3339)
		}
		detail := i.Detail
		if i.State == "kept" {
			detail = i.Path
		}
		items.add(i.Name, i.State, bytesText(i.Bytes), written, detail)
	}
	if err := items.print(p.stdout); err != nil {
		return err
	}
	if len(d.Tasks) > 0 {
		fmt.Fprintln(p.stdout)
		tasks := newTable("JOB", "TASK", "STATE", "EPOCH", "DETAIL")
		for _, t := range d.Tasks {
			tasks.add(t.Job, t.Task, t.State, t.Epoch, t.Detail)
		}
		if err := tasks.print(p.stdout); err != nil {
			return err
		}
	}
	said := map[string]bool{"": true}
	tell := func(what, advice string) {
		if !said[advice] {
			said[advice] = true
			fmt.Fprintf(p.stdout, "\n%s: %s\n", plain(what), plain(advice))
		}
	}
	for _, i := range d.Items {
		tell(i.Name, i.Advice)
	}
	for _, t := range d.Tasks {
		tell("task "+t.Task+" of job "+t.Job, t.Advice)
	}
	if verdict == nil {
		fmt.Fprintln(p.stdout, "\nNothing is wrong.")
	}
	return verdict
}
