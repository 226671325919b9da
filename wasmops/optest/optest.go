package optest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops"
)

// Options of a test. The zero value is usable.
type Options struct {
	Config   map[string]string
	Inputs   []string         // names of the inputs; a line says which one it comes in on
	CacheDir string           // for compiled modules, see [wasmops.Options]
	Observer wasmops.Observer // told of logs and counters of all runs; may be nil
	// MaxDelay, if not nil, makes watermarks of the records: after each whose time is the highest yet the watermark
	// is that time, less MaxDelay. It is rounded down to milliseconds. Lines of the input may move it, too.
	MaxDelay *time.Duration
	Once     bool // one run, in one batch, without snapshots: not a whole test
}

// Report says what a test did.
type Report struct {
	Records int            // read
	Outputs map[string]int // records that came out, by output
	Runs    []string       // what was run, in words
}

// Run tests a module. In and want are JSON lines (see [Line]); records of want are compared, in
// order, per output. An output that want does not mention must stay empty, if it is the main one; other
// outputs are then not opened. A difference is a [*Mismatch]; a failure of the module is a
// [dataflow.GuestError].
func Run(ctx context.Context, wasm []byte, config map[string]string, in, want io.Reader) (Report, error) {
	return RunOptions(ctx, wasm, Options{Config: config}, in, want)
}

// RunOptions is [Run] with options.
func RunOptions(ctx context.Context, wasm []byte, opt Options, in, want io.Reader) (Report, error) {
	input, err := ReadLines(in)
	if err != nil {
		return Report{}, fmt.Errorf("input: %w", err)
	}
	wanted, err := ReadLines(want)
	if err != nil {
		return Report{}, fmt.Errorf("wanted output: %w", err)
	}
	if i := slices.IndexFunc(wanted, func(l Line) bool { return l.Kind != RecordLine }); i >= 0 {
		return Report{}, fmt.Errorf("wanted output: line %d moves time: only input does", i+1)
	}
	t, err := newTest(ctx, wasm, opt, input, outputs(wanted))
	if err != nil {
		return Report{}, err
	}
	t.wanted, t.once = byOutput(wanted), opt.Once
	err = t.all(ctx)
	return t.report, errors.Join(err, t.host.Close(ctx))
}

// Output runs a module once over all of its input and returns what comes out of its main output and
// the given side outputs, output by output.
func Output(ctx context.Context, wasm []byte, opt Options, in io.Reader, side ...string) ([]Line, error) {
	input, err := ReadLines(in)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	t, err := newTest(ctx, wasm, opt, input, append([]string{MainOutput}, side...))
	if err != nil {
		return nil, err
	}
	got, err := t.run(ctx, max(len(input), 1), false)
	var lines []Line
	for _, output := range t.spec.Outputs {
		for _, r := range got[output] {
			lines = append(lines, Line{Output: output, Record: r})
		}
	}
	return lines, errors.Join(err, t.host.Close(ctx))
}

func newTest(ctx context.Context, wasm []byte, opt Options, input []Line, outputs []string) (*test, error) {
	host, err := wasmops.NewHost(ctx, wasmops.Options{Modules: single(wasm), CacheDir: opt.CacheDir, Observer: opt.Observer})
	if err != nil {
		return nil, err
	}
	return &test{host: host, input: input, spec: dataflow.OperatorSpec{
		Name: "operator", Task: "test/operator", Digest: wasmops.Digest(wasm),
		Config: opt.Config, Inputs: opt.Inputs, Outputs: outputs,
	}, maxDelay: opt.MaxDelay}, nil
}

// single is the one module under test.
type single []byte

func (s single) Open(string) ([]byte, error) { return s, nil }

// outputs are the main output and those that are wanted, in order of their names.
func outputs(wanted []Line) []string {
	var names []string
	for _, l := range wanted {
		if l.Output != MainOutput && !slices.Contains(names, l.Output) {
			names = append(names, l.Output)
		}
	}
	slices.Sort(names)
	return append([]string{MainOutput}, names...)
}

func byOutput(lines []Line) map[string][]frame.Record {
	records := map[string][]frame.Record{}
	for _, l := range lines {
		records[l.Output] = append(records[l.Output], l.Record)
	}
	return records
}

type test struct {
	host   *wasmops.Host
	spec   dataflow.OperatorSpec
	input  []Line
	wanted map[string][]frame.Record
	once   bool
	report Report

	maxDelay *time.Duration
	moment   dataflow.Moment // of the run under way
}

// all runs the operator in every way.
func (t *test) all(ctx context.Context) error {
	records := 0
	for _, l := range t.input {
		if l.Kind == RecordLine {
			records++
		}
	}
	t.report = Report{Records: records, Outputs: map[string]int{}}
	for _, size := range []int{max(len(t.input), 1), 7, 1} {
		for _, restored := range []bool{false, true} {
			how := fmt.Sprintf("batches of %d", size)
			if restored {
				how += ", snapshotted and restored after each"
			}
			got, err := t.run(ctx, size, restored)
			if err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
			if err := t.compare(how, got); err != nil {
				return err
			}
			t.report.Runs = append(t.report.Runs, how)
			if t.once {
				return nil
			}
		}
	}
	return nil
}

// run runs the operator once and returns what came out by output.
func (t *test) run(ctx context.Context, size int, restored bool) (got map[string][]frame.Record, err error) {
	op, err := t.host.New(ctx, t.spec, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, op.Close()) }()
	got = map[string][]frame.Record{}
	saved := memoryStore{}
	t.begin()
	for rest := t.input; len(rest) > 0; {
		n := t.batchOf(rest, size)
		if err := t.step(op, rest[:n], got); err != nil {
			return nil, err
		}
		rest = rest[n:]
		if !restored {
			continue
		}
		next, err := t.replace(ctx, op, &saved)
		if err != nil {
			return nil, err
		}
		op = next
	}
	t.moment.Watermark, t.moment.End = dataflow.EndOfTime, true
	return got, t.move(op, got)
}

// begin sets time back. The clock stands still unless lines move it, so that it shows the same to a record
// whatever the batches are.
func (t *test) begin() {
	t.moment = dataflow.Moment{Watermark: dataflow.NoTime}
	for _, l := range t.input {
		if l.Kind == RecordLine {
			t.moment.Stamp = l.Record.Time
			return
		}
	}
}

// batchOf is how many lines are taken together: records of one input, up to the one after which time moves, or one
// line that moves time.
func (t *test) batchOf(lines []Line, size int) int {
	highest := t.moment.Watermark
	for n, l := range lines {
		if l.Kind != RecordLine || l.Input != lines[0].Input || n == size {
			return max(n, 1)
		}
		if w := t.watermarkOf(l); w > highest {
			return n + 1
		}
	}
	return len(lines)
}

// watermarkOf is the watermark that a record makes.
func (t *test) watermarkOf(l Line) int64 {
	if t.maxDelay == nil {
		return dataflow.NoTime
	}
	return l.Record.Time - t.maxDelay.Milliseconds()
}

// step gives lines to the operator, and moves time.
func (t *test) step(op dataflow.Operator, lines []Line, got map[string][]frame.Record) error {
	last := lines[len(lines)-1]
	switch last.Kind {
	case WatermarkLine:
		t.moment.Watermark = max(t.moment.Watermark, last.Record.Time)
		return t.move(op, got)
	case ClockLine:
		t.moment.Stamp, t.moment.Tick = max(t.moment.Stamp, last.Record.Time), true
		return t.move(op, got)
	}
	b := dataflow.Batch{Input: last.Input, Count: len(lines), Stamp: t.moment.Stamp}
	for _, l := range lines {
		b.Payload = frame.AppendRecord(b.Payload, l.Record)
	}
	if err := op.Process(b, t.collect(got)); err != nil {
		return err
	}
	if w := t.watermarkOf(last); w > t.moment.Watermark {
		t.moment.Watermark = w
		return t.move(op, got)
	}
	return nil
}

// move tells the operator where time stands.
func (t *test) move(op dataflow.Operator, got map[string][]frame.Record) error {
	timed, ok := op.(dataflow.TimedOperator)
	if !ok {
		return nil
	}
	timed.Advance(t.moment)
	t.moment.Tick = false
	for c, due := timed.Next(); due; c, due = timed.Next() {
		if err := timed.Call(c, t.collect(got)); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func (t *test) collect(got map[string][]frame.Record) dataflow.Emit {
	return func(output int, payload []byte, count int) error {
		name := t.spec.Outputs[output]
		for rest := bytes.Clone(payload); len(rest) > 0; {
			var r frame.Record
			var err error
			if r, rest, err = frame.Next(rest); err != nil {
				return err
			}
			got[name] = append(got[name], r)
		}
		return nil
	}
}

// replace snapshots op, closes it, and restores what has been saved so far into a new instance. After
// the first, snapshots hold only what changed, as in a running task.
func (t *test) replace(ctx context.Context, op dataflow.Operator, saved *memoryStore) (dataflow.Operator, error) {
	changes, err := op.Freeze(saved.versions == 0)
	if err != nil {
		return op, err
	}
	saved.save(changes)
	next, err := t.host.New(ctx, t.spec, saved.read)
	if err != nil {
		return op, err
	}
	return next, op.Close()
}

// memoryStore keeps the newest value of every key of one operator.
type memoryStore struct {
	versions int
	values   map[string]dataflow.Change
}

func (m *memoryStore) save(changes []dataflow.Change) {
	if m.values == nil {
		m.values = map[string]dataflow.Change{}
	}
	m.versions++
	for _, c := range changes {
		m.values[string(rune(c.Space))+string(c.Key)] = c
	}
}

// read visits the values in key order, and spoils what it lent afterwards.
func (m *memoryStore) read(visit func(dataflow.Change) error) error {
	keys := make([]string, 0, len(m.values))
	for k := range m.values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		c := m.values[k]
		if c.Value == nil {
			continue
		}
		lent := dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)}
		if err := visit(lent); err != nil {
			return err
		}
		for i := range lent.Value {
			lent.Value[i] = 0xdb
		}
	}
	return nil
}

func (t *test) compare(how string, got map[string][]frame.Record) error {
	for _, output := range t.spec.Outputs {
		if err := compare(how, output, got[output], t.wanted[output]); err != nil {
			return err
		}
		t.report.Outputs[output] = len(got[output])
	}
	return nil
}

// Mismatch is the first difference between what came out and what is wanted.
type Mismatch struct {
	Run    string // batch size, whole or restored
	Output string
	Record int    // counted from 1
	Field  string // key, time, headers, value; empty if a record is missing or too many
	Byte   int    // at which the field differs, counted from 0; -1 for time
	Have   string // the record as a line; empty if there is none
	Want   string
}

func (m *Mismatch) Error() string {
	where := fmt.Sprintf("%s: output %s, record %d", m.Run, m.Output, m.Record)
	switch {
	case m.Have == "":
		return fmt.Sprintf("%s: missing\n  want %s", where, m.Want)
	case m.Want == "":
		return fmt.Sprintf("%s: not wanted\n  have %s", where, m.Have)
	case m.Byte >= 0:
		where = fmt.Sprintf("%s: %s differs at byte %d", where, m.Field, m.Byte)
	default:
		where = fmt.Sprintf("%s: %s differs", where, m.Field)
	}
	return fmt.Sprintf("%s\n  have %s\n  want %s", where, m.Have, m.Want)
}

func compare(how, output string, have, want []frame.Record) error {
	for i := range max(len(have), len(want)) {
		m := &Mismatch{Run: how, Output: output, Record: i + 1, Byte: -1}
		if i < len(have) {
			m.Have = lineText(output, have[i])
		}
		if i < len(want) {
			m.Want = lineText(output, want[i])
		}
		if m.Have == "" || m.Want == "" {
			return m
		}
		if m.Field, m.Byte = difference(have[i], want[i]); m.Field != "" {
			return m
		}
	}
	return nil
}

func lineText(output string, r frame.Record) string {
	return string(bytes.TrimRight(AppendLine(nil, Line{Output: output, Record: r}), "\n"))
}

// difference returns the first field in which records differ, and where; an empty name if they do not.
func difference(have, want frame.Record) (field string, at int) {
	for _, f := range []struct {
		name       string
		have, want []byte
	}{{"key", have.Key, want.Key}, {"headers", have.Headers, want.Headers}, {"value", have.Value, want.Value}} {
		if !bytes.Equal(f.have, f.want) {
			return f.name, firstDifference(f.have, f.want)
		}
	}
	if have.Time != want.Time {
		return "time", -1
	}
	return "", -1
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
