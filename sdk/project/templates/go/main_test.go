package main

import (
	"testing"

	weir "github.com/weir-stream/weir/sdk/go"
)

// An operator is plain Go: this runs it natively, without the host.
func TestSums(t *testing.T) {
	h, err := weir.NewHarness(weir.Registered(), map[string]string{"field": "t"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Process(0, weir.Record{Key: []byte("a"), Value: []byte(`{"t":1.5}`)}, weir.Record{Key: []byte("a"), Value: []byte(`{"t":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || string(got[1].Record.Value) != `{"n":2,"sum":3.5}` {
		t.Errorf("have %+v", got)
	}
}
