package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

func TestLossTable(t *testing.T) {
	if lossTable([]api.Task{{ID: "s@g"}}) != nil {
		t.Error("a table of nothing")
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	heard := api.Loss{Source: "s", AfterPosition: 10, Epoch: 3, HeardPosition: 17, Heard: at, Received: []api.LossRange{{Channel: "c", First: 5, Last: 9}}}
	var b strings.Builder
	if err := lossTable([]api.Task{{ID: "s@g", Losses: []api.Loss{heard, {Source: "s"}, {Source: "s", AfterPosition: 8, HeardPosition: 8, Heard: at}}}}).print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"after 10 (epoch 3) to 17 at least, heard of at", "items 5 to 9 of c", "after 0 (epoch 0); the end is not known", "after 8 (epoch 0); none was heard of until",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestLettersTable(t *testing.T) {
	if lettersTable(nil) != nil {
		t.Error("a table of nothing")
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b strings.Builder
	err := lettersTable([]api.LostLetters{{Letters: 7}, {Agent: "g1", Generation: 2, Letters: 3, Heard: at}, {Agent: "g2", Generation: 3}}).print(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"(earlier ones)", "7 at least; of some devices nothing had been heard", "3 that had not been replayed, heard of at", "not known: nothing had been heard of them",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

// TestNobodyCounts: of a task that does not run no count is shown as 0.
func TestNobodyCounts(t *testing.T) {
	for state, want := range map[string]string{api.TaskRunning: " 0 ", api.TaskStopped: " - ", api.TaskUnknown: " - ", "failed": " 0 "} {
		var b strings.Builder
		if err := taskTable([]api.Task{{ID: "t", State: state}}, true).print(&b); err != nil {
			t.Fatal(err)
		}
		_, row, _ := strings.Cut(b.String(), "\n")
		if _, counts, _ := strings.Cut(row, state); !strings.Contains(counts, want) {
			t.Errorf("%s: %q", state, row)
		}
	}
}
