package optest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Case is a test of an operator with a configuration. In and Want are JSON lines, see [Line].
type Case struct {
	Name     string
	Config   map[string]string
	Refused  string // in what the operator says to the configuration; then there are no records
	In, Want []byte
}

// RunCases tests a module with each case, whose configuration takes the place of that in opt. The error has the names
// of the cases that failed.
func RunCases(ctx context.Context, wasm []byte, opt Options, cases []Case) error {
	return eachCase(ctx, wasm, opt, cases, func(t *test, c *Case) error {
		if c.Refused != "" {
			return t.refused(ctx, c)
		}
		wanted, err := ReadLines(bytes.NewReader(c.Want))
		if err != nil {
			return fmt.Errorf("wanted output: %w", err)
		}
		t.spec.Outputs, t.wanted, t.once = outputs(wanted), byOutput(wanted), opt.Once
		if err := t.all(ctx); err != nil {
			return err
		}
		if t.report.Records == 0 || len(wanted) == 0 {
			return errors.New("nothing was tested")
		}
		return nil
	})
}

// FillCases runs a module once with each case and sets what it puts out, on the main output and the given side
// outputs, as what is wanted.
func FillCases(ctx context.Context, wasm []byte, opt Options, cases []Case, side ...string) error {
	return eachCase(ctx, wasm, opt, cases, func(t *test, c *Case) error {
		if c.Refused != "" {
			return nil
		}
		t.spec.Outputs = append([]string{MainOutput}, side...)
		got, err := t.run(ctx, max(len(t.input), 1), false)
		c.Want = nil
		for _, output := range t.spec.Outputs {
			for _, r := range got[output] {
				c.Want = AppendLine(c.Want, Line{Output: output, Record: r})
			}
		}
		return err
	})
}

// eachCase makes a test of each case, all on one host.
func eachCase(ctx context.Context, wasm []byte, opt Options, cases []Case, do func(t *test, c *Case) error) error {
	shared, err := newTest(ctx, wasm, opt, nil, []string{MainOutput})
	if err != nil {
		return err
	}
	var failed []error
	for i := range cases {
		c, t := &cases[i], *shared
		t.spec.Config = c.Config
		if t.input, err = ReadLines(bytes.NewReader(c.In)); err == nil {
			err = do(&t, c)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("case %q: %w", c.Name, err))
		}
	}
	return errors.Join(append(failed, shared.host.Close(ctx))...)
}

// refused starts the operator, which must not like its configuration.
func (t *test) refused(ctx context.Context, c *Case) error {
	op, err := t.host.New(ctx, t.spec, nil)
	if err == nil {
		return errors.Join(fmt.Errorf("the configuration %v is taken", c.Config), op.Close())
	}
	if !strings.Contains(err.Error(), c.Refused) {
		return fmt.Errorf("the configuration %v is refused, without %q: %w", c.Config, c.Refused, err)
	}
	return nil
}

// caseLine is one line of a table of cases: the head of a case, a record that goes in, or one that comes out.
type caseLine struct {
	Case    *string           `json:"case"`
	Config  map[string]string `json:"config"`
	Refused string            `json:"refused"`
	In      json.RawMessage   `json:"in"`
	Want    json.RawMessage   `json:"want"`
}

// ReadCases reads a table of cases in JSON lines: {"case":"name","config":{…}} begins one, {"in":{…}} and {"want":{…}} have
// its records. One that is to be refused has no records: {"case":"name","config":{…},"refused":"what it says"}. An error names the line, counted from 1.
func ReadCases(r io.Reader) ([]Case, error) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLine)
	var cases []Case
	for n := 1; scan.Scan(); n++ {
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 {
			continue
		}
		var l caseLine
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err := d.Decode(&l)
		switch {
		case err != nil:
		case l.Case != nil && l.In == nil && l.Want == nil:
			cases = append(cases, Case{Name: *l.Case, Config: l.Config, Refused: l.Refused})
		case len(cases) == 0:
			err = errors.New("it belongs to no case")
		case l.Case == nil && l.Config == nil && l.Refused == "" && (l.In == nil) != (l.Want == nil):
			c := &cases[len(cases)-1]
			if l.In != nil {
				c.In = append(append(c.In, l.In...), '\n')
			} else {
				c.Want = append(append(c.Want, l.Want...), '\n')
			}
		default:
			err = errors.New("it is neither the head of a case nor one record")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return cases, scan.Err()
}

// AppendCase appends a case as [ReadCases] reads it.
func AppendCase(dst []byte, c Case) []byte {
	config := c.Config
	if config == nil {
		config = map[string]string{}
	}
	dst = appendJSON(append(dst, `{"case":`...), c.Name)
	dst = appendJSON(append(dst, `,"config":`...), config)
	if c.Refused != "" {
		dst = appendJSON(append(dst, `,"refused":`...), c.Refused)
	}
	dst = append(dst, "}\n"...)
	for _, part := range []struct {
		name string
		text []byte
	}{{"in", c.In}, {"want", c.Want}} {
		for line := range bytes.Lines(part.text) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				dst = append(append(append(dst, `{"`...), part.name...), `":`...)
				dst = append(append(dst, line...), "}\n"...)
			}
		}
	}
	return dst
}
