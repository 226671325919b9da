package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/wasmops/abitest"
	"github.com/weir-stream/weir/wasmops/optest"
)

// maxModuleBytes is the largest module that is sent to an agent, which has its own say.
const maxModuleBytes = 32 << 20

type operatorCmds struct {
	New   operatorNewCmd   `cmd:"" help:"Write a project for an operator in Go, Rust, C or AssemblyScript."`
	Build operatorBuildCmd `cmd:"" help:"Build an operator's project to a module, with the compiler that is there."`

	Push   operatorPushCmd   `cmd:"" help:"Register a module as one version of an operator."`
	List   operatorListCmd   `cmd:"" help:"List the registered operators."`
	Show   operatorShowCmd   `cmd:"" help:"Show all versions of one operator."`
	Remove operatorRemoveCmd `cmd:"" help:"Remove a version that no job uses, or all versions."`
	Keygen operatorKeygenCmd `cmd:"" help:"Make a key to sign operators with."`
	Test   operatorTestCmd   `cmd:"" help:"Run a module over records, once whole and once restored after every batch."`

	Verify operatorVerifyCmd `cmd:"" help:"Check a module against the ABI: exports, imports, limits, whether its state can be captured."`
}

type operatorPushCmd struct {
	File    string `arg:"" placeholder:"FILE.wasm" help:"The module."`
	Name    string `required:"" placeholder:"NAME" help:"Name of the operator."`
	Version string `required:"" placeholder:"VERSION" help:"Its version, which never changes again."`
	Sign    string `placeholder:"KEYFILE" help:"Sign it with this private key, for agents with trusted_keys. A version that is registered already is signed too."`
	remote
	output
}

// Help is what `agent operator push --help` says besides the flags.
func (operatorPushCmd) Help() string {
	return `A module is sent in pieces. Where the connection breaks, the command goes on with what the agent does not have yet,
and gives up after ten tries in a row in which nothing arrives; after that the same command goes on, for up to a day, also
when the agent was restarted meanwhile. A module that the agent has is not sent again.`
}

// Run implements the command.
func (c operatorPushCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	f, err := openModule(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	var sign signer
	if c.Sign != "" {
		if sign, err = newSigner(c.Sign, f); err != nil {
			return err
		}
	}
	o, err := c.push(ctx, p, cl, f)
	if err != nil {
		return fmt.Errorf("push %s as %s@%s: %w", c.File, c.Name, c.Version, err)
	}
	if sign != nil {
		if o, err = sign(ctx, cl, o); err != nil {
			return fmt.Errorf("%s@%s is registered, but not signed: %w", c.Name, c.Version, err)
		}
	}
	if c.JSON {
		return p.printJSON(o)
	}
	signed := ""
	if sign != nil {
		signed = ", signed"
	}
	_, err = fmt.Fprintf(p.stdout, "%s@%s %s (%s)%s\n", o.Name, o.Version, o.Digest, bytesText(o.Bytes), signed)
	return err
}

// push uploads the module and registers it, unless the agent would refuse that, by what is known before.
func (c operatorPushCmd) push(ctx context.Context, p *program, cl *api.Client, f *os.File) (o api.Operator, err error) {
	if err := api.CheckOperatorName(c.Name, c.Version); err != nil {
		return o, err
	}
	digest, err := p.upload(ctx, cl, c.File, f, func(digest string) error {
		versions, _ := cl.Operator(ctx, c.Name) // there may be none yet; what else is wrong the next request tells
		for _, v := range versions {
			if v.Version == c.Version && v.Digest != digest {
				return api.Conflict("push it under another version", "it exists with other bytes (%s); versions are immutable", v.Digest)
			}
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	return cl.RegisterOperator(ctx, c.Name, c.Version, digest)
}

// upload brings a module to the agent, if it does not have it, and returns its digest. With the digest it is asked first
// whether the agent will take it.
func (p *program) upload(ctx context.Context, cl *api.Client, name string, f *os.File, takes func(digest string) error) (digest string, err error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", usage("write the module to a file first", "%s is no regular file, and is read more than once", name)
	case info.Size() == 0:
		return "", usage("", "%s is empty", name)
	}
	if digest, err = digestOf(f); err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	if err := takes(digest); err != nil {
		return "", err
	}
	var told time.Time
	show := func(u api.Uploading) {
		switch {
		case u.Broke != nil:
			fmt.Fprintf(p.stderr, "%s: %s of %s are there; %v: going on in %s\n", name, bytesText(u.Bytes), bytesText(u.Size), u.Broke, u.Wait)
		case told.IsZero(): // a short upload says nothing
			told = time.Now()
		case time.Since(told) >= tellEvery:
			told = time.Now()
			fmt.Fprintf(p.stderr, "%s: %s of %s are there\n", name, bytesText(u.Bytes), bytesText(u.Size))
		}
	}
	return digest, api.Uploader{Client: cl, Progress: show, Wait: p.parts.wait}.Upload(ctx, digest, f, info.Size())
}

// tellEvery is how often a long upload says how far it is.
const tellEvery = 3 * time.Second

// digestOf reads a module from its beginning.
func digestOf(f io.ReaderAt) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", h.Sum(nil)), nil
}

// openModule opens a module's file and refuses early what every agent would.
func openModule(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usage("", "%w", err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = usage("name the .wasm file", "%s is a directory", path)
	case info.Size() > maxModuleBytes:
		err = usage("", "%s has %s; a module may have %s", path, bytesText(info.Size()), bytesText(maxModuleBytes))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func readModule(path string) ([]byte, error) {
	f, err := openModule(path)
	if err != nil {
		return nil, err
	}
	f.Close()
	return readSmall(path, maxModuleBytes)
}

type operatorListCmd struct {
	remote
	output
}

// Run implements the command.
func (c operatorListCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	ops, err := cl.Operators(ctx)
	if err != nil {
		return fmt.Errorf("list operators: %w", err)
	}
	return p.printOperators(ops, c.JSON)
}

type operatorShowCmd struct {
	Name string `arg:"" help:"Name of the operator."`
	remote
	output
}

// Run implements the command.
func (c operatorShowCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	ops, err := cl.Operator(ctx, c.Name)
	if err != nil {
		return fmt.Errorf("show operator %s: %w", c.Name, err)
	}
	return p.printOperators(ops, c.JSON)
}

type operatorRemoveCmd struct {
	Operator string `arg:"" placeholder:"NAME[@VERSION]" help:"What to remove; without a version all there are."`
	remote
	output
}

// Help is what `agent operator remove --help` says besides the flags.
func (operatorRemoveCmd) Help() string {
	return `What a job uses is not removed, nor is anything else then: what it runs, has run since it was last drained, and may
go back to, stopped jobs included.

A version that was removed is not listed and no job can name it. It still stands for its bytes: the same ones may be
pushed again, others never. Its module goes from the object store and from all agents within an hour, with what
was compiled of it, unless another version or a job needs it.`
}

// Run implements the command.
func (c operatorRemoveCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	name, version, one := strings.Cut(c.Operator, "@")
	if name == "" || one && version == "" {
		return usage("write NAME or NAME@VERSION", "%q names no operator", c.Operator)
	}
	ops, err := cl.RemoveOperator(ctx, name, version)
	if err != nil {
		return fmt.Errorf("remove %s: %w", c.Operator, err)
	}
	if c.JSON {
		return p.printJSON(ops)
	}
	for _, o := range ops {
		if _, err := fmt.Fprintf(p.stdout, "%s@%s removed (%s)\n", o.Name, o.Version, bytesText(o.Bytes)); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) printOperators(ops []api.Operator, asJSON bool) error {
	if asJSON {
		return p.printJSON(ops)
	}
	t := newTable("NAME", "VERSION", "SIZE", "MEMORY", "GLOBALS", "SIGNATURES", "PUSHED", "USED BY", "DIGEST")
	for _, o := range ops {
		t.add(o.Name, o.Version, bytesText(o.Bytes), bytesText(o.MemoryBytes), o.Globals, o.Signatures, timeText(o.Pushed), cmp.Or(strings.Join(o.UsedBy, ","), "no job"), o.Digest)
	}
	return t.print(p.stdout)
}

type operatorTestCmd struct {
	File   string            `arg:"" placeholder:"FILE.wasm" help:"The module."`
	In     string            `required:"" placeholder:"IN.jsonl" help:"Records to process, one in a line."`
	Want   string            `required:"" placeholder:"OUT.jsonl" help:"Records that must come out."`
	Config map[string]string `placeholder:"K=V" help:"Configuration of the operator; may be repeated."`
	// MaxDelay is nil if it is not given.
	MaxDelay *time.Duration `placeholder:"DURATION" help:"Make watermarks: the highest time of the records, less this."`
}

// Help is what `agent operator test --help` says besides the flags.
func (operatorTestCmd) Help() string {
	return `A record is {"key": …, "time": …, "value": …}; value is a string, or any JSON, which is passed on
compactly, or {"base64": "…"}. A wanted record may name its "output", one to process the index of its "input".

Event time stands still until the input ends, unless a line {"watermark": …} moves it, or --max-delay makes
watermarks: after each record whose time is the highest yet. A line {"clock": …} moves the agent's clock, and fires
timers of processing time.`
}

// Run implements the command.
func (c operatorTestCmd) Run(ctx context.Context, p *program) error {
	module, err := readModule(c.File)
	if err != nil {
		return err
	}
	in, err := os.Open(c.In)
	if err != nil {
		return usage("", "--in: %w", err)
	}
	defer in.Close()
	want, err := os.Open(c.Want)
	if err != nil {
		return usage("", "--want: %w", err)
	}
	defer want.Close()
	report, err := p.parts.testOperator(ctx, module, optest.Options{Config: c.Config, MaxDelay: c.MaxDelay}, in, want)
	if err != nil {
		return fmt.Errorf("test of %s: %w", c.File, err)
	}
	_, err = fmt.Fprintf(p.stdout, "%s: %s gave %s in each of %s: %s\n", c.File,
		count(report.Records, "record"), c.Want, count(len(report.Runs), "run"), strings.Join(report.Runs, "; "))
	return err
}

type operatorVerifyCmd struct {
	File   string            `arg:"" placeholder:"FILE.wasm" help:"The module."`
	Config map[string]string `placeholder:"K=V" help:"Configuration to start it with; may be repeated."`
	Kit    bool              `help:"The module is the conformance operator of an SDK: run the whole kit on it."`
}

// Help is what `agent operator verify --help` says besides the flags.
func (operatorVerifyCmd) Help() string {
	return `It asks what an agent asks when a module is pushed and started. With --kit it checks every part of the
ABI through the conformance operator, for those who write an SDK: docs/abi.md.`
}

// Run implements the command.
func (c operatorVerifyCmd) Run(ctx context.Context, p *program) error {
	module, err := readModule(c.File)
	if err != nil {
		return err
	}
	report, err := p.parts.verifyOperator(ctx, module, abitest.Options{Config: c.Config})
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	m := report.Module
	fmt.Fprintf(p.stdout, "%s is an operator of ABI version 1\n", c.File)
	t := newTable("digest", m.Digest)
	t.add("size", bytesText(int64(m.Size)))
	t.add("imports", strings.Join(m.Imports, " "))
	t.add("memory", bytesText(m.MinMemory)+" at start")
	t.add("snapshot", fmt.Sprintf("%s of a fresh instance, %s; a restored copy is equal", bytesText(int64(report.Snapshot)), count(m.Globals(), "global")))
	if err := t.print(p.stdout); err != nil || !c.Kit {
		return err
	}
	failed := 0
	results := p.parts.kit(ctx, module, abitest.Options{})
	for _, r := range results {
		if r.Err != nil {
			failed++
			fmt.Fprintf(p.stdout, "FAILED  %s: %v\n", r.Name, r.Err)
			continue
		}
		fmt.Fprintf(p.stdout, "passed  %s\n", r.Name)
	}
	if failed > 0 {
		return fmt.Errorf("%s: %d of %s of the kit failed", c.File, failed, count(len(results), "check"))
	}
	return nil
}
