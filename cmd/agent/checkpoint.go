package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

type checkpointCmds struct {
	List   checkpointListCmd   `cmd:"" help:"List a job's checkpoints."`
	Now    checkpointNowCmd    `cmd:"" help:"Take a checkpoint and wait until it counts."`
	Export checkpointExportCmd `cmd:"" help:"Write a checkpoint to a file."`
	Import checkpointImportCmd `cmd:"" help:"Put an exported checkpoint into the directory of an agent that does not run."`
}

type checkpointListCmd struct {
	jobName
	remote
	output
}

// Run implements the command.
func (c checkpointListCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	list, err := cl.Checkpoints(ctx, c.Job)
	if err != nil {
		return fmt.Errorf("list checkpoints of %s: %w", c.Job, err)
	}
	return p.printCheckpoints(list, c.JSON)
}

func (p *program) printCheckpoints(list []api.Checkpoint, asJSON bool) error {
	if asJSON {
		return p.printJSON(list)
	}
	t := newTable("EPOCH", "STATE", "GEN", "STARTED", "PARTS", "SIZE", "TOOK", "ALIGN", "FREEZE", "PERSIST", "REPLICATE", "REASON")
	for _, c := range list {
		state := c.State
		if c.Final {
			state += ", final"
		}
		if c.Savepoint != "" {
			state += ", " + c.Savepoint
		}
		note := c.Reason
		if len(c.Without) > 0 {
			note = strings.TrimPrefix(note+"; without "+someText(c.Without), "; ")
		}
		t.add(c.Epoch, state, c.Generation, timeText(c.Started), c.Parts, bytesText(c.Bytes),
			msText(c.TookMS), msText(c.AlignMS), msText(c.FreezeMS), msText(c.PersistMS), msText(c.ReplicateMS), note)
	}
	return t.print(p.stdout)
}

type checkpointNowCmd struct {
	jobName
	Name string `placeholder:"NAME" help:"Name the checkpoint; of those that were asked for the newest are kept."`
	remote
	output
	waiting
}

// Run implements the command.
func (c checkpointNowCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	cp, err := cl.CheckpointNow(ctx, c.Job, c.Name, c.Timeout)
	if err != nil {
		return fmt.Errorf("checkpoint of %s: %w", c.Job, err)
	}
	if c.JSON {
		return p.printJSON(cp)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: epoch %d is %s, %s in %s\n", c.Job, cp.Epoch, cp.State, bytesText(cp.Bytes), msText(cp.TookMS))
	return err
}

type checkpointExportCmd struct {
	jobName
	Epoch uint64 `placeholder:"N" help:"Which one (default: the newest that counts)."`
	Out   string `short:"o" required:"" placeholder:"FILE" help:"File to write; it must not exist."`
	remote
}

// Run implements the command.
func (c checkpointExportCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	n, err := writeWhole(c.Out, func(w io.Writer) (int64, error) {
		return cl.ExportCheckpoint(ctx, c.Job, c.Epoch, w)
	})
	if errors.Is(err, fs.ErrExist) {
		return usage("name another file, or move this one away", "-o %s: the file exists", c.Out)
	}
	if err != nil {
		return fmt.Errorf("export a checkpoint of %s to %s: %w", c.Job, c.Out, err)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: %s in %s\n", c.Job, bytesText(n), c.Out)
	return err
}

// writeWhole makes a new file that is whole and on disk, or is not there.
func writeWhole(path string, fill func(io.Writer) (int64, error)) (n int64, err error) {
	if _, err := os.Lstat(path); err == nil {
		return 0, fs.ErrExist
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // fails once it has its name
	n, err = fill(f)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return n, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return n, err
	}
	return n, syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type checkpointImportCmd struct {
	File string `arg:"" placeholder:"FILE" help:"The exported checkpoint."`
	Data string `required:"" placeholder:"DIR" help:"The agent's directory, empty or not; the agent must not run."`
	output
}

// Run implements the command.
func (c checkpointImportCmd) Run(ctx context.Context, p *program) error {
	f, err := os.Open(c.File)
	if err != nil {
		return usage("", "%w", err)
	}
	defer f.Close()
	in, err := p.parts.importCheckpoint(ctx, f, c.Data)
	if err != nil {
		return fmt.Errorf("import %s into %s: %w", c.File, c.Data, err)
	}
	if c.JSON {
		return p.printJSON(in)
	}
	_, err = fmt.Fprintf(p.stdout, "job %s: epoch %d with %s imported into %s\n", in.Job, in.Epoch, count(in.Tasks, "task"), c.Data)
	return err
}
