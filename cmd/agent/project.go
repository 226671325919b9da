package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-stream/weir/sdk/project"
)

type operatorNewCmd struct {
	Lang string `required:"" enum:"go,rust,c,assemblyscript" placeholder:"LANG" help:"Language: ${enum}."`
	Name string `arg:"" help:"Name of the operator, and of the folder that is made for it."`
}

// Run implements the command.
func (c operatorNewCmd) Run(_ context.Context, p *program) error {
	if err := project.New(c.Name, project.Language(c.Lang)); err != nil {
		return usage("", "new operator: %w", err)
	}
	name := filepath.Base(c.Name)
	_, err := fmt.Fprintf(p.stdout, `%s is a project; its operator is in %s. Build and test it:

cd %s
agent operator build
agent operator test %s.wasm --in in.jsonl --want want.jsonl
`, c.Name, filepath.Join(c.Name, project.MainFile(project.Language(c.Lang))), c.Name, name)
	return err
}

type operatorBuildCmd struct {
	Dir    string `arg:"" optional:"" default:"." help:"Folder of the project (${default})."`
	Out    string `short:"o" placeholder:"FILE.wasm" help:"Where the module goes; by default into the folder, with its name."`
	TinyGo bool   `name:"tinygo" help:"Build a project in Go with TinyGo."`
}

// Run implements the command.
func (c operatorBuildCmd) Run(ctx context.Context, p *program) error {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	if c.Out == "" {
		c.Out = filepath.Join(c.Dir, filepath.Base(dir)+".wasm")
	}
	if _, err := project.Detect(c.Dir); err != nil {
		return usage("", "build: %w", err)
	}
	if err := project.Build(ctx, c.Dir, c.Out, project.Options{TinyGo: c.TinyGo}); err != nil {
		return fmt.Errorf("build %s: %w", c.Dir, err)
	}
	info, err := os.Stat(c.Out)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("build %s: the compiler made no %s", c.Dir, c.Out)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s (%s)\n", c.Out, bytesText(info.Size()))
	return err
}
