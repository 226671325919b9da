package optest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

func TestLines(t *testing.T) {
	for _, test := range []struct {
		line  string
		want  Line
		again string // written again, if not the same
	}{
		{`{"key":"k","time":5,"value":"text"}`, line("out", "k", 5, "", "text"), ""},
		{`{"output":"alerts","key":"","time":-5,"value":{"v":1.50,"t":"<&>"}}`, line("alerts", "", -5, "", `{"v":1.50,"t":"<&>"}`), ""},
		{`{"key":"k","time":0,"value":[1, 2 ,"ü\u0041"]}`, line("out", "k", 0, "", `[1,2,"ü\u0041"]`), `{"key":"k","time":0,"value":[1,2,"ü\u0041"]}`},
		{`{"key":{"base64":"/w=="},"time":0,"value":{"base64":"AP8="}}`, line("out", "\xff", 0, "", "\x00\xff"), ""},
		{`{"key":"k","time":0,"value":null}`, line("out", "k", 0, "", "null"), ""},
		{`{"key":"k","time":0,"value":12.0}`, line("out", "k", 0, "", "12.0"), ""},
		{`{"key":"k","time":0,"value":"12.0"}`, line("out", "k", 0, "", "12.0"), `{"key":"k","time":0,"value":12.0}`},
		{`{"key":"k","time":0,"value":"\"quoted\""}`, line("out", "k", 0, "", `"quoted"`), ""},
		{`{"key":"k","time":0,"value":"{\"a\": 1}"}`, line("out", "k", 0, "", `{"a": 1}`), ""},
		{`{"key":"k","time":0,"value":"{\"base64\":\"AP8=\"}"}`, line("out", "k", 0, "", `{"base64":"AP8="}`), ""},
		{`{"key":"k","time":0,"value":{"base64":"AP8=","more":1}}`, line("out", "k", 0, "", `{"base64":"AP8=","more":1}`), ""},
		{`{}`, line("out", "", 0, "", ""), `{"key":"","time":0,"value":""}`},
		{`{"input":3,"key":"k","time":0,"value":""}`, line("out", "k", 0, "", ""), ""},
		{`{"key":"k","time":1,"headers":{"z":"1","topic":"a/b","b":{"base64":"/w=="}},"value":"v"}`,
			line("out", "k", 1, "\x01\x01\x00z1\x05\x03\x00topica/b\x01\x01\x00b\xff", "v"), ""},
	} {
		l, err := ParseLine([]byte(test.line))
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
			continue
		}
		if l.Output != test.want.Output || lineText("", l.Record) != lineText("", test.want.Record) || !bytes.Equal(l.Record.Value, test.want.Record.Value) {
			t.Errorf("%s: %+v, want %+v", test.line, l, test.want)
		}
		if test.again == "" {
			test.again = test.line
		}
		if again := string(AppendLine(nil, l)); again != test.again+"\n" {
			t.Errorf("written again:\n%s, want\n%s", again, test.again)
		}
	}
}

func line(output, key string, time int64, headers, value string) Line {
	return Line{Output: output, Record: frame.Record{Key: []byte(key), Time: time, Headers: []byte(headers), Value: []byte(value)}}
}

func TestBadLines(t *testing.T) {
	for text, want := range map[string]string{
		"{":                         "line 3: unexpected EOF",
		`{"kee":"x"}`:               `line 3: json: unknown field "kee"`,
		`{"key":5}`:                 `line 3: key: 5 is neither a string nor`,
		`{"key":null}`:              "line 3: key:",
		`{"time":"now"}`:            "line 3: json: cannot unmarshal string",
		`{"value":{"base64":"%"}}`:  "line 3: value:",
		`{"headers":[]}`:            "line 3: headers: [] is not an object",
		`{"headers":{"a":5}}`:       "line 3: headers: a: 5 is neither",
		`{"watermark":"5"}`:         "line 3: json: cannot unmarshal string",
		`{"watermark":5,"clock":6}`: "line 3: a line that moves the watermark or the clock has nothing else",
		`{"clock":5,"key":"a"}`:     "line 3: a line that moves the watermark or the clock has nothing else",
		`{"key":"a"} {"key":"b"}`:   "line 3: more than one JSON value",
		`"text"`:                    "line 3:",
		`{"key":"` + strings.Repeat("k", 70_000) + `"}`: "line 3: key of 70000 bytes",
		strings.Repeat(" ", maxLine) + "{}":             "line 3: bufio.Scanner: token too long",
	} {
		_, err := ReadLines(strings.NewReader("{}\n\n" + text + "\n{}"))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.50s: error %v, want %q", text, err, want)
		}
	}
}

// FuzzParseLine checks that what is read is written as what reads the same.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"output":"a","key":"k","time":5,"headers":{"a":"b"},"value":{"v":1}}`))
	f.Add([]byte(`{"key":{"base64":"/w=="},"value":"12"}`))
	f.Add([]byte(`{"value":{"base64":"/w=="}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := ParseLine(text)
		if err != nil {
			return
		}
		written := AppendLine(nil, l)
		again, err := ParseLine(bytes.TrimRight(written, "\n"))
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		if !bytes.Equal(frame.AppendRecord(nil, l.Record), frame.AppendRecord(nil, again.Record)) || l.Output != again.Output {
			t.Errorf("%+v is %+v after %s", l, again, written)
		}
	})
}

// FuzzAppendLine checks that any record comes back.
func FuzzAppendLine(f *testing.F) {
	f.Add([]byte("k"), []byte(`{"v": 1}`), int64(1))
	f.Add([]byte("\xff"), []byte(`{"base64":"AA=="}`), int64(-1))
	f.Add([]byte(""), []byte(`{"base64":1}`), int64(-1))
	f.Fuzz(func(t *testing.T, key, value []byte, time int64) {
		r := frame.Record{Key: key, Value: value, Time: time}
		if r.Check() != nil {
			return
		}
		text := AppendLine(nil, Line{Record: r})
		l, err := ParseLine(bytes.TrimRight(text, "\n"))
		if err != nil || !bytes.Equal(frame.AppendRecord(nil, l.Record), frame.AppendRecord(nil, r)) {
			t.Errorf("%+v comes back from %s as %+v, %v", r, text, l.Record, err)
		}
	})
}

func run(t *testing.T, mode, in, want string) (Report, error) {
	t.Helper()
	wasm := wasmtest.Bytes(t, "../testdata/torture")
	return RunOptions(context.Background(), wasm, Options{Config: map[string]string{"mode": mode}, CacheDir: cache},
		strings.NewReader(in), strings.NewReader(want))
}

// cache keeps compiled modules for the life of the test process.
var cache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "optest")
	if err != nil {
		panic(err)
	}
	cache = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// input has as many lines as wanted, with the keys k1, k2, ….
func input(n int) (in string) {
	for i := range n {
		in += string(AppendLine(nil, line("", "k", int64(i), "", "v")))
	}
	return in
}

func TestRunAgrees(t *testing.T) {
	want, side := "", ""
	for i := range 10 {
		want += string(AppendLine(nil, line("out", "k", int64(i), "", string([]byte{'0' + byte((i+1)/10), '0' + byte((i+1)%10)}[btoi(i < 9):]))))
		if (i+1)%3 == 0 {
			side += string(AppendLine(nil, line("side", "k", int64(i), "", "v")))
		}
	}
	report, err := run(t, "side", input(10), side+want)
	if err != nil {
		t.Fatal(err)
	}
	if report.Records != 10 || report.Outputs["out"] != 10 || report.Outputs["side"] != 3 {
		t.Errorf("report %+v", report)
	}
	wantRuns := []string{
		"batches of 10", "batches of 10, snapshotted and restored after each", "batches of 7",
		"batches of 7, snapshotted and restored after each", "batches of 1", "batches of 1, snapshotted and restored after each",
	}
	if !slices.Equal(report.Runs, wantRuns) {
		t.Errorf("runs %q", report.Runs)
	}
}

func TestRunOnce(t *testing.T) {
	wasm := wasmtest.Bytes(t, "../../sdk/go/conformance")
	report, err := RunOptions(t.Context(), wasm, Options{CacheDir: cache, Once: true}, strings.NewReader(`{"value":"i"}`+"\n"+`{"value":"i"}`), strings.NewReader(`{"value":0}`+"\n"+`{"value":0}`))
	if err != nil || !slices.Equal(report.Runs, []string{"batches of 2"}) {
		t.Errorf("%+v, %v", report, err)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestRunFindsDifferences(t *testing.T) {
	for name, test := range map[string]struct{ in, want, say string }{
		"value":   {input(2), `{"key":"k","time":0,"value":1}` + "\n" + `{"key":"k","time":1,"value":"2x"}`, "batches of 2: output out, record 2: value differs at byte 1"},
		"key":     {input(1), `{"key":"kk","time":0,"value":1}`, "record 1: key differs at byte 1"},
		"time":    {input(1), `{"key":"k","time":9,"value":1}`, "record 1: time differs\n"},
		"headers": {input(1), `{"key":"k","time":0,"headers":{"a":"b"},"value":1}`, "record 1: headers differs at byte 0"},
		"missing": {input(1), `{"key":"k","time":0,"value":1}` + "\n" + `{"value":"more"}`, "record 2: missing\n  want {\"key\":\"\",\"time\":0,\"value\":\"more\"}"},
		"extra":   {input(2), `{"key":"k","time":0,"value":1}`, "record 2: not wanted\n  have {\"key\":\"k\",\"time\":1,\"value\":2}"},
		"side":    {input(1), `{"key":"k","time":0,"value":1}` + "\n" + `{"output":"side","value":""}`, "output side, record 1: missing"},
	} {
		_, err := run(t, "side", test.in, test.want)
		var m *Mismatch
		if !errors.As(err, &m) || !strings.Contains(err.Error(), test.say) {
			t.Errorf("%s: error %v, want one that says %q", name, err, test.say)
		}
	}
}

// TestInputs: records come in on the inputs that their lines name, in their order.
func TestInputs(t *testing.T) {
	in, want := "", ""
	for _, input := range []int{0, 0, 2, 1, 1, 0} {
		in += string(AppendLine(nil, Line{Input: input, Record: frame.Record{Value: []byte("i")}}))
		want += string(AppendLine(nil, line("out", "", 0, "", string('0'+byte(input)))))
	}
	wasm := wasmtest.Bytes(t, "../../sdk/go/conformance")
	if _, err := RunOptions(t.Context(), wasm, Options{CacheDir: cache}, strings.NewReader(in), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// TestRunFindsBatchDependence: an operator whose output depends on where batches are cut is found
// out.
func TestRunFindsBatchDependence(t *testing.T) {
	_, err := run(t, "batches", input(3), `{"key":"k","time":0,"value":1}`+"\n"+`{"key":"k","time":1,"value":1}`+"\n"+`{"key":"k","time":2,"value":1}`)
	var m *Mismatch
	if !errors.As(err, &m) || m.Run != "batches of 1" {
		t.Errorf("error %v", err)
	}
}

func TestRunReportsFailures(t *testing.T) {
	_, err := run(t, "panic", input(1), "")
	var guest *dataflow.GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), "batches of 1: operator operator: panic: reading v is impossible") {
		t.Errorf("error %v", err)
	}
	if _, err := run(t, "count", "{", ""); err == nil || !strings.HasPrefix(err.Error(), "input: line 1") {
		t.Errorf("bad input: %v", err)
	}
	if _, err := run(t, "count", "", "{"); err == nil || !strings.HasPrefix(err.Error(), "wanted output: line 1") {
		t.Errorf("bad wanted output: %v", err)
	}
	if _, err := run(t, "count", input(1), `{"output":"alrts"}`); err == nil || !strings.Contains(err.Error(), `has no output "alrts"`) {
		t.Errorf("unknown output: %v", err)
	}
	if _, err := Run(context.Background(), []byte("junk"), nil, strings.NewReader(""), strings.NewReader("")); err == nil {
		t.Error("junk is a module")
	}
	if report, err := run(t, "count", "", ""); err != nil || report.Records != 0 {
		t.Errorf("nothing in, nothing out: %v %v", report, err)
	}
}

// TestTimeMoves: lines move it, or records do; a restored copy has its timers.
func TestTimeMoves(t *testing.T) {
	for _, text := range []string{`{"watermark":-5}`, `{"clock":1700000000000}`} {
		l, err := ParseLine([]byte(text))
		if err != nil || string(AppendLine(nil, l)) != text+"\n" {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
	wasm := wasmtest.Bytes(t, "../../sdk/go/conformance")
	run := func(maxDelay *time.Duration, in, want string) error {
		report, err := RunOptions(t.Context(), wasm, Options{MaxDelay: maxDelay}, strings.NewReader(in), strings.NewReader(want))
		if err == nil && (report.Records != strings.Count(in, "key") || len(report.Runs) != 6) {
			t.Errorf("%d records in %d runs", report.Records, len(report.Runs))
		}
		return err
	}
	end := `{"time":9223372036854775807,"value":"watermark"}` + "\n" + `{"value":"end"}` + "\n"
	in := `{"key":"k","time":10,"value":"T010"}` + "\n" + `{"key":"k","time":12,"value":"m"}` + "\n" + `{"key":"k","time":11,"value":"m"}` + "\n"
	wanted := `{"key":"k","time":12,"value":"-"}` + "\n" + `{"key":"k","time":11,"value":"-"}` + "\n" + `{"key":"k","time":10,"value":"timer0"}` + "\n" + end
	if err := run(nil, in, wanted); err != nil {
		t.Error(err)
	}
	delay := 2 * time.Millisecond
	wanted = `{"time":8,"value":"watermark"}` + "\n" + `{"key":"k","time":12,"value":8}` + "\n" + `{"key":"k","time":10,"value":"timer0"}` + "\n" +
		`{"time":10,"value":"watermark"}` + "\n" + `{"key":"k","time":11,"value":10}` + "\n" + end
	if err := run(&delay, in, wanted); err != nil {
		t.Error(err)
	}
	moved := `{"clock":5}` + "\n" + `{"key":"k","time":7,"value":"T118"}` + "\n" + `{"clock":17}` + "\n" + `{"watermark":3}` + "\n" + `{"clock":18}` + "\n" +
		`{"key":"k","time":7,"value":"t"}` + "\n" + `{"key":"k","time":7,"value":"T199"}` + "\n"
	if err := run(nil, moved, `{"time":3,"value":"watermark"}`+"\n"+`{"key":"k","time":18,"value":"timer1"}`+"\n"+`{"key":"k","time":7,"value":18}`+"\n"+end); err != nil {
		t.Error(err)
	}
	fails := `{"key":"f","time":1,"value":"T05"}` + "\n" + `{"watermark":9}` + "\n"
	if err := run(nil, fails, ""); err == nil || !strings.Contains(err.Error(), `event_timer 5 of key "f": operator operator: timer fails`) {
		t.Errorf("a timer that fails: %v", err)
	}
	if err := run(nil, "", `{"watermark":9}`+"\n"); err == nil || !strings.Contains(err.Error(), "wanted output: line 1 moves time") {
		t.Errorf("time that moves in the wanted output: %v", err)
	}
}
