package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/wasmops"
)

// An operator reads its configuration when it starts, and only its module knows what is right. So a job file is planned,
// and applied, only if an instance of each of its operators starts: what would fail on every agent for ever is said
// at once, with the place in the file.

// tryPatience bounds how long a request waits for it: a large module is compiled first.
const tryPatience = 6 * time.Second

// guestConfig is how operators name the key that they refuse.
var guestConfig = regexp.MustCompile(`\bconfig ([^\s:]+)(:| is not set)`)

// TryOperators starts an instance of each operator of a job file whose digest is given, by name of its module, and ends it
// again. Refused is what operators have against their configuration; untried says of those that could not be
// tried why.
func TryOperators(ctx context.Context, makers dataflow.Operators, file *job.File, digests map[string]string) (refused, untried job.Errors) {
	for _, op := range file.Operators {
		digest := digests[op.WASM]
		if op.IsNative() {
			digest = op.WASM
		}
		if digest == "" {
			continue
		}
		err := tryOperator(ctx, makers, dataflow.OperatorSpec{
			Name: op.Name, Task: file.Name + "/" + op.Name, Module: op.WASM, Digest: digest, Config: op.Config,
			Inputs: make([]string, len(op.From)), Outputs: []string{job.MainOutput}, Limits: limitsOf(op.Limits), NoEventTime: !file.HasEventTime(),
		})
		var guest *dataflow.GuestError
		switch {
		case err == nil:
		case errors.As(err, &guest), op.IsNative():
			refused = append(refused, refusalOf(file, op, err))
		default:
			untried = append(untried, &job.Error{File: file.Path, Pos: op.WASMPos, Text: err.Error()})
		}
	}
	return refused, untried
}

// TryFiles does the same with the operators of a job file whose modules are files: paths by the names in the job file.
// A file that is no module is refused too.
func TryFiles(ctx context.Context, file *job.File, paths map[string]string) error {
	if len(paths) == 0 {
		return nil
	}
	modules, digests := moduleBytes{}, map[string]string{}
	for name, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		digest := wasmops.Digest(b)
		modules[digest], digests[name] = b, digest
	}
	host, err := wasmops.NewHost(ctx, wasmops.Options{Modules: modules, Observer: newGuestObserver(slog.New(slog.DiscardHandler))})
	if err != nil {
		return err
	}
	refused, untried := TryOperators(ctx, operators{host}, file, digests)
	if err := host.Close(ctx); err != nil {
		return err
	}
	if refused = append(refused, untried...); len(refused) == 0 {
		return nil
	}
	return refused
}

// moduleBytes are modules by digest.
type moduleBytes map[string][]byte

// Open implements [wasmops.Modules].
func (m moduleBytes) Open(digest string) ([]byte, error) { return m[digest], nil }

func tryOperator(ctx context.Context, makers dataflow.Operators, spec dataflow.OperatorSpec) error {
	made, err := makers.New(ctx, spec, nil)
	if err != nil {
		return err
	}
	return made.Close()
}

// refusalOf places an operator's reason: at the key that it names, else at the operator.
func refusalOf(file *job.File, op job.Operator, err error) *job.Error {
	text, at := err.Error(), op.Pos
	if prefix := "operator " + op.Name + ": "; !strings.HasPrefix(text, prefix) {
		text = prefix + text
	}
	for _, m := range guestConfig.FindAllStringSubmatch(text, -1) {
		if pos, ok := op.ConfigPos[m[1]]; ok {
			at = pos
			break
		}
	}
	return &job.Error{File: file.Path, Pos: at, Text: text}
}

// tried says what could not be found out of a job's operators, and, as an error, what is wrong with them.
func (a *Agent) tried(ctx context.Context, file *job.File, digests map[string]string) (untried []string, refused error) {
	type answer struct {
		refused job.Errors
		untried []string
	}
	done := make(chan answer, 1)
	waits, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	release, err := a.trying.take(waits, triesAtOnce)
	if err != nil {
		return []string{"the operators were not tried: this agent tries those of other requests; agent job show says whether they start"}, nil
	}
	a.background(func() {
		defer release()
		var here []string
		known := map[string]string{}
		for _, module := range slices.Sorted(maps.Keys(digests)) {
			digest := digests[module]
			if err := a.fetchModule(a.life, digest); err == nil {
				known[module] = digest
			} else if !strings.HasPrefix(module, "./") { // a file is sent when the job is applied
				here = append(here, fmt.Sprintf("module %s is not tried: %v", module, err))
			}
		}
		bad, not := TryOperators(a.life, trusted{a, operators{a.host}}, file, known)
		for _, one := range not {
			here = append(here, "not tried: "+one.Error())
		}
		done <- answer{bad, here}
	})
	select {
	case t := <-done:
		if len(t.refused) > 0 {
			return t.untried, t.refused
		}
		return t.untried, nil
	case <-waits.Done():
	}
	return []string{fmt.Sprintf("the operators could not all be tried within %s: agent job show says whether they start", tryPatience)}, nil
}
