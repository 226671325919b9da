package main

import (
	"testing"

	weir "github.com/weir-stream/weir/sdk/go"
)

// An operator is plain Go: this runs it natively, without the host.
func TestAlertOnceWarm(t *testing.T) {
	h, err := weir.NewHarness(weir.Registered(), map[string]string{"warmup": "2", "alpha": "0.5"})
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for i, v := range []string{`{"v":100}`, `{"v":1}`, `{"v":2}`, `"nothing"`, `{"v":900}`} {
		got, err := h.Process(0, weir.Record{Key: []byte("m1"), Time: int64(i), Value: []byte(v)})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got {
			if e.Output == "alerts" {
				alerts++
				if i != 4 || string(e.Record.Value) != `{"v":900,"mean":26.25}` {
					t.Errorf("reading %d: alert %s", i, e.Record.Value)
				}
			}
		}
	}
	if alerts != 1 || h.Counters["not_a_reading"] != 1 {
		t.Errorf("%d alerts, counters %v", alerts, h.Counters)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, config := range []map[string]string{{"alpha": "0"}, {"alpha": "x"}, {"warmup": "1.5"}, {"deviation": "-"}} {
		if _, err := weir.NewHarness(weir.Registered(), config); err == nil {
			t.Errorf("%v is taken", config)
		}
	}
}
