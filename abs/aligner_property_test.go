package abs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRestoreAnywhere feeds the same events to two tasks, one of which is restored from its state
// after every event: both must say and be the same throughout.
func TestRestoreAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs := drawInputs(t, 0, 3)
		mode := rapid.SampledFrom([]Mode{ExactlyOnce, AtLeastOnce}).Draw(t, "mode")
		whole, restored := newTestTask(inputs, mode), newTestTask(inputs, mode)
		restored.restores = true
		var said [2]strings.Builder
		for i, task := range []*testTask{whole, restored} {
			task.say = func(f string, args ...any) { fmt.Fprintf(&said[i], f+"\n", args...) }
		}
		ended := map[ChannelID]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			act := drawAct(t, inputs, ended)
			act(whole)
			act(restored)
			if said[0].String() != said[1].String() {
				t.Fatalf("whole:\n%s\nrestored:\n%s", said[0].String(), said[1].String())
			}
			if a, b := fmt.Sprint(whole.al.State()), fmt.Sprint(restored.al.State()); a != b {
				t.Fatalf("state %s, restored %s", a, b)
			}
		}
	})
}

func drawInputs(t *rapid.T, atLeast, maxBack int) []Input {
	var inputs []Input
	for i := range rapid.IntRange(atLeast, 4).Draw(t, "forward") {
		inputs = append(inputs, Input{ID: ChannelID(fmt.Sprintf("f%d", i)), Agent: fmt.Sprintf("g%d", i/2)})
	}
	for i := range rapid.IntRange(0, maxBack).Draw(t, "back") {
		inputs = append(inputs, Input{ID: ChannelID(fmt.Sprintf("x%d", i)), Agent: fmt.Sprintf("g%d", i), Back: true})
	}
	return inputs
}

// drawAct draws anything that may reach a task, barriers in any order of epochs included.
func drawAct(t *rapid.T, inputs []Input, ended map[ChannelID]bool) func(*testTask) {
	epoch := Epoch(rapid.IntRange(1, 6).Draw(t, "epoch"))
	kind := rapid.SampledFrom([]string{"r", "r", "b", "b", "b", "end", "control", "abort", "floor", "detach", "attach"}).Draw(t, "kind")
	control := map[string]EventKind{"control": OnControlBarrier, "abort": OnAbort, "floor": OnFloor, "detach": OnDetach, "attach": OnAttach}[kind]
	if control != 0 {
		ev := Event{Kind: control, Epoch: epoch}
		if control == OnDetach || control == OnAttach {
			ev.Agent = fmt.Sprintf("g%d", rapid.IntRange(0, 2).Draw(t, "agent"))
		}
		return func(task *testTask) { task.control(ev) }
	}
	var open []ChannelID
	for _, in := range inputs {
		if !ended[in.ID] {
			open = append(open, in.ID)
		}
	}
	if len(open) == 0 {
		return func(*testTask) {}
	}
	ch := rapid.SampledFrom(open).Draw(t, "channel")
	ended[ch] = kind == "end"
	if kind == "b" {
		kind = fmt.Sprintf("b%d", epoch)
	}
	return func(task *testTask) { task.arrive(ch, kind) }
}

// TestOneFreezePerEpoch lets barriers 1…N arrive in order on every channel, in any interleaving, with
// records between, some channels ending early: there is exactly one freeze per epoch, in order, and
// its cut is the barrier, or the end, on every channel.
func TestOneFreezePerEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs := drawInputs(t, 1, 0)
		epochs := rapid.IntRange(1, 5).Draw(t, "epochs")
		streams, cuts := drawStreams(t, inputs, epochs)
		task := newTestTask(inputs, ExactlyOnce)
		task.restores = rapid.Bool().Draw(t, "restores")
		frozen := Epoch(0)
		task.onFreeze = func(fx Effects) {
			frozen++
			if fx.Freeze != frozen {
				t.Fatalf("froze %v, expected %d", fx.Freeze, frozen)
			}
			if want := cuts[frozen]; !maps.Equal(task.consumed, want) {
				t.Fatalf("cut of %v: %v, want %v", frozen, task.consumed, want)
			}
			if len(fx.Aligned) != len(inputs) {
				t.Fatalf("%v aligned on %v", frozen, fx.Aligned)
			}
		}
		interleave(t, streams, task.arrive)
		if last := lastByBarrier(streams); frozen != last {
			t.Fatalf("froze up to %d, want %d", frozen, last)
		}
		if len(task.aside) > 0 && task.al.Pending() == 0 {
			t.Fatalf("set aside for ever: %v", task.aside)
		}
	})
}

// drawStreams returns per channel what arrives, and per epoch the numbers of the cut.
func drawStreams(t *rapid.T, inputs []Input, epochs int) (map[ChannelID][]string, map[Epoch]map[ChannelID]Seq) {
	streams, cuts := map[ChannelID][]string{}, map[Epoch]map[ChannelID]Seq{}
	for e := 1; e <= epochs; e++ {
		cuts[Epoch(e)] = map[ChannelID]Seq{}
	}
	for _, in := range inputs {
		end := rapid.IntRange(1, 2*epochs).Draw(t, "end after")
		var items []string
		for e := 1; e <= epochs; e++ {
			for range rapid.IntRange(0, 3).Draw(t, "records") {
				if e <= end {
					items = append(items, "r")
				}
			}
			if e <= end {
				items = append(items, fmt.Sprintf("b%d", e))
			} else if e == end+1 {
				items = append(items, "end")
			}
			cuts[Epoch(e)][in.ID] = Seq(len(items))
		}
		streams[in.ID] = items
	}
	return streams, cuts
}

func lastByBarrier(streams map[ChannelID][]string) (last Epoch) {
	for _, items := range streams {
		for _, it := range items {
			if strings.HasPrefix(it, "b") {
				last = max(last, Epoch(number(it[1:])))
			}
		}
	}
	return last
}

func interleave(t *rapid.T, streams map[ChannelID][]string, arrive func(ChannelID, string)) {
	rest := maps.Clone(streams)
	for len(rest) > 0 {
		ch := rapid.SampledFrom(slices.Sorted(maps.Keys(rest))).Draw(t, "next")
		if len(rest[ch]) == 0 {
			delete(rest, ch)
			continue
		}
		arrive(ch, rest[ch][0])
		rest[ch] = rest[ch][1:]
	}
}

// TestBackEdgesProperty: the graph without the back edges is acyclic, and each back edge closes a
// cycle.
func TestBackEdgesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "nodes")
		adjacency := make([][]int, n)
		for i := range adjacency {
			adjacency[i] = rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 3).Draw(t, "successors")
		}
		back := BackEdges(adjacency)
		forward := make([][]int, n)
		for from, to := range adjacency {
			for nth, succ := range to {
				if !slices.Contains(back, Edge{from, nth}) {
					forward[from] = append(forward[from], succ)
				}
			}
		}
		for i := range n {
			if reaches(forward, i, i) {
				t.Fatalf("%v without %v has a cycle through %d", adjacency, back, i)
			}
		}
		for _, e := range back {
			if to := adjacency[e.From][e.Nth]; to != e.From && !reaches(forward, to, e.From) {
				t.Fatalf("%v: back edge %v closes no cycle", adjacency, e)
			}
		}
	})
}

// reaches says whether a path of at least one edge leads from a to b.
func reaches(graph [][]int, a, b int) bool {
	seen := map[int]bool{}
	todo := slices.Clone(graph[a])
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		if n == b {
			return true
		}
		if !seen[n] {
			seen[n] = true
			todo = append(todo, graph[n]...)
		}
	}
	return false
}

// FuzzState: whatever bytes a snapshot holds, they are refused or give an aligner that can go on.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"finished":1,"pending":2,"waiting":["a"],"delivered":["b"],"detached":["g2"],"members":1}`))
	f.Add([]byte(`{"finished":2,"logging":2,"log_waiting":["x"],"ended":["a"]}`))
	f.Add([]byte(`{"pending":18446744073709551615,"waiting":["a"]}`))
	inputs := []Input{{ID: "a", Agent: "g1"}, {ID: "b", Agent: "g2"}, {ID: "x", Agent: "hub", Back: true}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var s State
		if json.Unmarshal(raw, &s) != nil {
			return
		}
		a, err := RestoreAligner(inputs, ExactlyOnce, s)
		if err != nil {
			return
		}
		again, err := RestoreAligner(inputs, ExactlyOnce, a.State())
		if err != nil || fmt.Sprint(again.State()) != fmt.Sprint(a.State()) {
			t.Fatalf("state does not come back: %v", err)
		}
		for _, in := range inputs {
			if !a.Blocked(in.ID) && !slices.Contains(s.Ended, in.ID) {
				a.Step(Event{Kind: OnBarrier, Channel: in.ID, Epoch: s.Finished + 1})
			}
		}
		a.Step(Event{Kind: OnFloor, Epoch: s.Pending})
		if a.Pending() != 0 {
			t.Fatalf("still pending: %+v", a.State())
		}
	})
}

// BenchmarkEpoch is one alignment of four channels, with a question per item as a task asks it.
func BenchmarkEpoch(b *testing.B) {
	inputs := []Input{{ID: "a", Agent: "g1"}, {ID: "b", Agent: "g2"}, {ID: "c", Agent: "g3"}, {ID: "d", Agent: "g4"}}
	a := NewAligner(inputs, ExactlyOnce)
	for n := Epoch(1); b.Loop(); n++ {
		for _, in := range inputs {
			if a.Blocked(in.ID) {
				b.Fatal("blocked")
			}
			a.Step(Event{Kind: OnBarrier, Channel: in.ID, Epoch: n})
		}
	}
}
