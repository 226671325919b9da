package optest

import (
	"strings"
	"testing"

	"github.com/weir-stream/weir/wasmops/wasmtest"
)

func TestCases(t *testing.T) {
	text := `{"case":"one","config":{"a":"1","b":"<2>"}}
{"in":{"key":"k"}}
{"in":{"key":"l"}}
{"want":{"key":"k","value":"v"}}
{"case":"two","config":{},"refused":"config a"}
`
	cases, err := ReadCases(strings.NewReader(text))
	if err != nil || len(cases) != 2 || string(cases[0].In) != "{\"key\":\"k\"}\n{\"key\":\"l\"}\n" {
		t.Fatalf("%+v, %v", cases, err)
	}
	if again := string(AppendCase(AppendCase(nil, cases[0]), cases[1])); again != text {
		t.Errorf("written again:\n%s", again)
	}
	for text, want := range map[string]string{
		`{"in":{}}`:                                   "line 1: it belongs to no case",
		`{"case":"a"}` + "\n" + `{"x":1}`:             `line 2: json: unknown field "x"`,
		`{"case":"a"}` + "\n\n" + `{}`:                "line 3: it is neither the head of a case nor one record",
		`{"case":"a","in":{}}`:                        "line 1: it belongs to no case",
		`{"case":"a"}` + "\n" + `{"in":{},"want":{}}`: "line 2: it is neither",
	} {
		if _, err := ReadCases(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestRunCases(t *testing.T) {
	wasm := wasmtest.Bytes(t, "../../sdk/go/conformance")
	opt := Options{CacheDir: cache, Once: true}
	cases := []Case{
		{Name: "good", Config: map[string]string{"ratio": "x"}, Refused: `config ratio: "x"`},
		{Name: "another reason", Config: map[string]string{"ratio": "x"}, Refused: "colour"},
		{Name: "taken", Refused: "x"},
		{Name: "too many", In: []byte(`{"value":"i"}`), Want: []byte(`{"output":"side"}`)},
		{Name: "empty"},
		{Name: "filled", In: []byte(`{"value":"cx"}` + "\n" + `{"value":"s1"}`), Config: map[string]string{"x": "7"}},
	}
	err := RunCases(t.Context(), wasm, opt, cases[:5])
	for _, want := range []string{
		`case "another reason": the configuration map[ratio:x] is refused, without "colour"`, `case "taken": the configuration map[] is taken`,
		`case "too many": batches of 1: output out, record 1: not wanted`, `case "empty": nothing was tested`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "good") {
		t.Error(err)
	}
	if err := FillCases(t.Context(), wasm, opt, cases[5:], "side"); err != nil {
		t.Fatal(err)
	}
	if have := string(cases[5].Want); have != "{\"key\":\"\",\"time\":0,\"value\":7}\n{\"output\":\"side\",\"key\":\"\",\"time\":0,\"value\":\"s1\"}\n" {
		t.Errorf("filled with %s", have)
	}
	opt.Once = false
	if err := RunCases(t.Context(), wasm, opt, cases[5:]); err != nil {
		t.Error(err)
	}
}
