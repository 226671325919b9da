package weir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func header(name, value string) []byte {
	b := []byte{byte(len(name)), byte(len(value)), byte(len(value) >> 8)}
	return append(append(b, name...), value...)
}

func TestOperatorInHarness(t *testing.T) {
	total := 0
	h, err := NewHarness(Operator{
		Outputs: []string{"side"},
		Init: func(c Config) error {
			n, err := c.Int("start", 5)
			total = n
			return err
		},
		Process: func(r Record, out *Out) error {
			total++
			out.Emit(r.Key, r.Time+1, fmt.Append(nil, total, " ", r.Input))
			if total%2 == 0 {
				out.EmitTo("side", []byte("even"), r.Time, r.Header("topic"))
				out.EmitRecord("side", r)
			}
			Log(Info, "seen "+string(r.Key))
			Count("records", 2)
			return nil
		},
	}, map[string]string{"start": "10"})
	if err != nil {
		t.Fatal(err)
	}
	headers := append(header("x", "y"), header("topic", "a/b")...)
	got, err := h.Process(3, Record{Key: []byte("k"), Time: -7, Value: []byte("v")}, Record{Key: []byte("l"), Headers: headers, Value: []byte("w")})
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, e := range got {
		text = append(text, fmt.Sprintf("%s %s %d %q %q", e.Output, e.Record.Key, e.Record.Time, e.Record.Headers, e.Record.Value))
	}
	want := []string{
		`out k -6 "" "11 3"`, `out l 1 "" "12 3"`, `side even 0 "" "a/b"`, fmt.Sprintf(`side l 0 %q "w"`, headers),
	}
	if strings.Join(text, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
	Gauge("level", 1.5)
	if h.Gauges["level"] != 1.5 {
		t.Errorf("gauges %v", h.Gauges)
	}
	if h.Counters["records"] != 4 || len(h.Logs) != 2 || h.Logs[0] != "info seen k" {
		t.Errorf("counters %v, logs %q", h.Counters, h.Logs)
	}
}

func TestOperatorErrors(t *testing.T) {
	if _, err := NewHarness(Operator{}, nil); err == nil {
		t.Error("an operator without Process is taken")
	}
	broken := errors.New("broken")
	if _, err := NewHarness(Operator{Init: func(Config) error { return broken }, Process: func(Record, *Out) error { return nil }}, nil); !errors.Is(err, broken) {
		t.Errorf("error of Init: %v", err)
	}
	h, err := NewHarness(Operator{Process: func(r Record, out *Out) error {
		out.Emit(nil, 0, nil)
		return broken
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.Process(0, Record{}); !errors.Is(err, broken) || got != nil {
		t.Errorf("error of Process: %v, %v", got, err)
	}
	if err := h.run.process(0, []byte{1, 2, 3}, 1); !errors.Is(err, errBatch) {
		t.Errorf("malformed batch: %v", err)
	}
	var none runner
	if err := none.init(); err == nil || !strings.Contains(err.Error(), "weir.Register") {
		t.Errorf("nothing registered: %v", err)
	}
}

func panics(f func()) (said string) {
	defer func() { said = fmt.Sprint(recover()) }()
	f()
	return ""
}

func TestMistakesPanic(t *testing.T) {
	h, err := NewHarness(Operator{Process: func(r Record, out *Out) error {
		if r.Time == 1 {
			out.EmitTo("alrts", nil, 0, nil)
		}
		out.Emit(r.Value, 0, make([]byte, MaxRecord))
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := &h.run
	if said := panics(func() { _ = run.op.Process(Record{Time: 1}, &run.out) }); !strings.Contains(said, "no output alrts") {
		t.Errorf("unknown output: %s", said)
	}
	if said := panics(func() { _ = run.op.Process(Record{}, &run.out) }); !strings.Contains(said, "record of 262160 bytes") {
		t.Errorf("large record: %s", said)
	}
	if said := panics(func() { _ = run.op.Process(Record{Value: make([]byte, 1<<16)}, &run.out) }); !strings.Contains(said, "key of 65536") {
		t.Errorf("large key: %s", said)
	}
	if said := panics(func() { Register(Operator{}) }); !strings.Contains(said, "Process is nil") {
		t.Errorf("empty operator: %s", said)
	}
}

func TestRegistered(t *testing.T) {
	Register(Operator{Outputs: []string{"a"}, Process: func(Record, *Out) error { return nil }})
	if op := Registered(); len(op.Outputs) != 1 || op.Process == nil {
		t.Errorf("registered operator is %+v", op.Outputs)
	}
}

func TestConfig(t *testing.T) {
	long := strings.Repeat("x", 1000)
	_, err := NewHarness(Operator{Process: func(Record, *Out) error { return nil }, Init: func(c Config) error {
		if v := c.String("long", ""); v != long {
			t.Errorf("long value of %d bytes", len(v))
		}
		if v := c.String("none", "default"); v != "default" {
			t.Errorf("default is %q", v)
		}
		if v, ok := c.Lookup("empty"); v != "" || !ok {
			t.Errorf("empty value: %q %v", v, ok)
		}
		if v, err := c.Float("f", 0); v != 0.25 || err != nil {
			t.Errorf("float: %v %v", v, err)
		}
		if v, err := c.Float("none", 1.5); v != 1.5 || err != nil {
			t.Errorf("default float: %v %v", v, err)
		}
		if _, err := c.Float("bad", 0); err == nil || err.Error() != `config bad: "1,5" is not a number` {
			t.Errorf("bad float: %v", err)
		}
		if _, err := c.Int("bad", 0); err == nil || err.Error() != `config bad: "1,5" is not a whole number` {
			t.Errorf("bad int: %v", err)
		}
		return nil
	}}, map[string]string{"long": long, "empty": "", "f": "0.25", "bad": "1,5"})
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeyedState(t *testing.T) {
	h, err := NewHarness(Operator{Process: func(r Record, out *Out) error {
		for i := range 300 {
			State.Put(fmt.Appendf(nil, "a%03d", i), bytes.Repeat([]byte{'v'}, 100))
		}
		State.Put([]byte("b"), bytes.Repeat([]byte{'w'}, 40_000)) // more than a scan's buffer
		State.Put([]byte("c"), nil)
		if v, ok := State.Get([]byte("b"), make([]byte, 5)); len(v) != 40_000 || !ok {
			t.Errorf("get: %d bytes, %v", len(v), ok)
		}
		if v, ok := State.Get([]byte("c"), nil); len(v) != 0 || !ok {
			t.Errorf("get of an empty value: %q, %v", v, ok)
		}
		if !State.Delete([]byte("a007")) || State.Delete([]byte("a007")) {
			t.Error("delete says the wrong thing")
		}
		if _, ok := State.Get([]byte("a007"), nil); ok {
			t.Error("a deleted key is there")
		}
		keys := 0
		last := ""
		State.Scan(nil, func(k, v []byte) bool {
			if string(k) <= last || len(v) == 100 != (k[0] == 'a') {
				t.Errorf("key %q with %d bytes after %q", k, len(v), last)
			}
			last = string(k)
			keys++
			return true
		})
		if keys != 301 {
			t.Errorf("scan of all visited %d keys", keys)
		}
		keys = 0
		State.Scan([]byte("a1"), func([]byte, []byte) bool { keys++; return keys < 50 })
		if keys != 50 {
			t.Errorf("scan went on to %d keys", keys)
		}
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Process(0, Record{}); err != nil {
		t.Fatal(err)
	}
	if len(h.Keys) != 301 {
		t.Errorf("%d keys", len(h.Keys))
	}
}

func TestClock(t *testing.T) {
	h, err := NewHarness(Operator{Process: func(r Record, out *Out) error {
		out.Emit(nil, Now(), nil)
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.Clock = 1234
	got, err := h.Process(0, Record{})
	if err != nil || got[0].Record.Time != 1234 {
		t.Errorf("%v %v", got, err)
	}
}

// TestProcessDoesNotAllocate guards the path of a record.
func TestProcessDoesNotAllocate(t *testing.T) {
	h, err := NewHarness(Operator{Process: func(r Record, out *Out) error {
		out.Emit(r.Key, r.Time, r.Value)
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var batch []byte
	for range 100 {
		batch = appendRecord(batch, []byte("key"), nil, 1, []byte("some value"))
	}
	for i := range h.run.out.outputs { // nobody reads: only the SDK's own work is measured
		h.run.out.outputs[i].buf = make([]byte, 0, 2*len(batch))
	}
	if n := testing.AllocsPerRun(10, func() {
		h.run.out.reset()
		for rest := batch; len(rest) > 0; {
			var r Record
			r, rest, _ = nextRecord(rest)
			_ = h.run.op.Process(r, &h.run.out)
		}
	}); n != 0 {
		t.Errorf("%v allocations for 100 records", n)
	}
}

func TestHeader(t *testing.T) {
	r := Record{Headers: append(header("a", "1"), header("topic", "x/y")...)}
	for name, want := range map[string]string{"a": "1", "topic": "x/y", "top": "", "": ""} {
		if v := string(r.Header(name)); v != want {
			t.Errorf("header %q is %q, want %q", name, v, want)
		}
	}
	r.Headers = r.Headers[:len(r.Headers)-1]
	if v := r.Header("topic"); v != nil {
		t.Errorf("cut header is %q", v)
	}
}

func FuzzNextRecord(f *testing.F) {
	f.Add(appendRecord(nil, []byte("key"), header("a", "b"), 5, []byte("value")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, ok := nextRecord(b)
		if !ok || len(b)-len(rest) > MaxRecord {
			return
		}
		again := appendRecord(nil, r.Key, r.Headers, r.Time, r.Value)
		if !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Errorf("read and written again: %x, was %x", again, b[:len(b)-len(rest)])
		}
		r.Header("x")
	})
}

func TestJSONField(t *testing.T) {
	for _, test := range []struct{ value, name, want string }{
		{`{"seq":12,"v":20.5}`, "seq", "12"},
		{` { "a" : "x, \"y\": 1" , "seq" : -1.5e3 } `, "seq", "-1.5e3"},
		{`{"a":{"seq":1,"b":["}"]},"seq":[1,{"x":2}]}`, "seq", `[1,{"x":2}]`},
		{`{"seq":null}`, "seq", "null"},
		{`{"seq":"text"}`, "seq", `"text"`},
		{`{"":true}`, "", "true"},
		{`{"sequel":1}`, "seq", ""},
		{`{}`, "seq", ""},
		{`[1]`, "seq", ""},
		{`{"seq"}`, "seq", ""},
		{`{"seq":}`, "seq", ""},
		{`{"a":"x`, "seq", ""},
		{`{"a":"x\`, "seq", ""},
		{`{"a":[1,"`, "seq", ""},
		{`{5:1,"seq":1}`, "seq", ""},
		{``, "seq", ""},
	} {
		raw, ok := JSONField([]byte(test.value), test.name)
		if string(raw) != test.want || ok != (test.want != "") {
			t.Errorf("%s of %s: %q %v, want %q", test.name, test.value, raw, ok, test.want)
		}
	}
}

func TestJSONNumber(t *testing.T) {
	for value, want := range map[string]float64{`{"v":12}`: 12, `{"v":-1.5e3}`: -1500, `{"v":0}`: 0} {
		if v, ok := JSONNumber([]byte(value), "v"); v != want || !ok {
			t.Errorf("%s: %v %v", value, v, ok)
		}
	}
	for _, value := range []string{`{"v":"12"}`, `{"v":null}`, `{"v":0x10}`, `{"v":inf}`, `{"v":-inf}`, `{"v":1_000}`, `{"v":1e999}`, `{"w":1}`} {
		if v, ok := JSONNumber([]byte(value), "v"); ok {
			t.Errorf("%s is %v", value, v)
		}
	}
	value := []byte(`{"a":"text","v":20.75}`)
	if n := testing.AllocsPerRun(10, func() { JSONNumber(value, "v") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAppendJSONString(t *testing.T) {
	for _, s := range []string{"", "plain", "quote \" back \\", "\x00\n\x1f", "ünïcode ☃ 🌊", "bad \xff utf-8"} {
		var back string
		if err := json.Unmarshal(AppendJSONString(nil, s), &back); err != nil || back != strings.ToValidUTF8(s, "\ufffd") {
			t.Errorf("%q came back as %q, %v", s, back, err)
		}
	}
}

// FuzzJSONField compares with a full decoder wherever that one accepts the text.
func FuzzJSONField(f *testing.F) {
	f.Add([]byte(`{"a":"x","v":[1,{"b":"]"}],"c":-1.5e3}`), "v")
	f.Add([]byte(`{"v":1,"v":2}`), "v")
	f.Fuzz(func(t *testing.T, value []byte, name string) {
		have, ok := JSONField(value, name)
		if !json.Valid(value) || bytes.ContainsRune(value, '\\') || !bytes.HasPrefix(bytes.TrimLeft(value, " \t\r\n"), []byte("{")) {
			return
		}
		d := json.NewDecoder(bytes.NewReader(value))
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
		for d.More() {
			start := d.InputOffset()
			_, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			raw := bytes.Trim(value[start:d.InputOffset()], " \t\r\n,")
			var want json.RawMessage
			if err := d.Decode(&want); err != nil {
				t.Fatal(err)
			}
			if string(raw) == `"`+name+`"` {
				if !ok || !bytes.Equal(have, want) {
					t.Errorf("field %q of %s: %q %v, want %q", name, value, have, ok, want)
				}
				return
			}
		}
		if ok {
			t.Errorf("field %q of %s: %q, but there is none", name, value, have)
		}
	})
}
