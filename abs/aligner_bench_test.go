package abs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// testTask is a task around an aligner: it numbers items, sets aside what is blocked in the order of
// the stream, keeps loop logs, and notes the cut of each part.
type testTask struct {
	inputs   []Input
	mode     Mode
	al       *Aligner
	consumed map[ChannelID]Seq // processed
	arrived  map[ChannelID]Seq // processed or set aside
	aside    []testItem
	logged   map[ChannelID]Seq // of the open loop log: highest number
	logCount map[ChannelID]int
	onFreeze func(fx Effects)
	onStop   func(n Epoch, logged map[ChannelID]Seq) // a part's loop log is complete
	onDrop   func(n Epoch)
	say      func(format string, args ...any)
	restores bool // after every event
}

type testItem struct {
	ch ChannelID
	n  Seq
	it string // r, bN or end
}

func newTestTask(inputs []Input, mode Mode) *testTask {
	return &testTask{
		inputs: inputs, mode: mode, al: NewAligner(inputs, mode),
		consumed: map[ChannelID]Seq{}, arrived: map[ChannelID]Seq{},
		logged: map[ChannelID]Seq{}, logCount: map[ChannelID]int{},
		say: func(string, ...any) {}, onFreeze: func(Effects) {},
		onStop: func(Epoch, map[ChannelID]Seq) {}, onDrop: func(Epoch) {},
	}
}

// arrive takes an item from a channel, or sets it aside.
func (t *testTask) arrive(ch ChannelID, it string) {
	t.arrived[ch]++
	item := testItem{ch, t.arrived[ch], it}
	if t.al.Blocked(ch) {
		t.aside = append(t.aside, item)
		t.say("%s %d %s: set aside", ch, item.n, it)
		return
	}
	t.process(item)
	t.takeAside()
}

// takeAside processes what was set aside and is open now.
func (t *testTask) takeAside() {
	for i := 0; i < len(t.aside); {
		if t.al.Blocked(t.aside[i].ch) {
			i++
			continue
		}
		item := t.aside[i]
		t.aside = slices.Delete(t.aside, i, i+1)
		t.process(item)
		i = 0
	}
}

func (t *testTask) process(item testItem) {
	if item.n != t.consumed[item.ch]+1 {
		panic(fmt.Sprintf("channel %s: item %d after %d", item.ch, item.n, t.consumed[item.ch]))
	}
	t.consumed[item.ch] = item.n
	what := fmt.Sprintf("%s %d %s", item.ch, item.n, item.it)
	if e := t.al.Logging(item.ch); e != 0 {
		t.logged[item.ch] = item.n
		t.logCount[item.ch]++
		what += fmt.Sprintf(" (log of %d)", e)
	}
	switch {
	case item.it == "r":
		t.say("%s", what)
	case item.it == "end":
		t.step(what, Event{Kind: OnEnd, Channel: item.ch})
	default:
		t.step(what, Event{Kind: OnBarrier, Channel: item.ch, Epoch: Epoch(number(item.it[1:]))})
	}
}

func (t *testTask) control(ev Event) {
	t.step(describe(ev), ev)
	t.takeAside()
}

func (t *testTask) step(what string, ev Event) {
	fx := t.al.Step(ev)
	if fx.DropLog != 0 {
		t.clearLog()
		t.onDrop(fx.DropLog)
	}
	if fx.StopLog != 0 {
		t.onStop(fx.StopLog, maps.Clone(t.logged))
	}
	t.say("%s: %s", what, t.describeEffects(fx))
	if fx.StopLog != 0 {
		t.clearLog()
	}
	if fx.Freeze != 0 {
		t.onFreeze(fx)
	}
	if t.restores {
		if err := t.restore(); err != nil {
			panic(err)
		}
	}
}

func (t *testTask) clearLog() {
	clear(t.logged)
	clear(t.logCount)
}

func (t *testTask) describeEffects(fx Effects) string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if fx.Ignored {
		add("ignored")
	}
	if fx.Aborted != 0 {
		add("aborted %d", fx.Aborted)
	}
	if fx.Superseded {
		add("superseded")
	}
	if fx.DropLog != 0 {
		add("drop log %d", fx.DropLog)
	}
	if fx.Freeze != 0 {
		add("FREEZE %d aligned=%s cut=%s", fx.Freeze, join(fx.Aligned), numbers(t.consumed))
	}
	if fx.StartLog != 0 {
		add("start log %d", fx.StartLog)
	}
	if fx.StopLog != 0 {
		add("stop log %d with %s", fx.StopLog, numbers(t.logCount))
	}
	if fx.Blocked != "" {
		add("block %s", fx.Blocked)
	}
	if len(fx.Unblocked) > 0 {
		add("unblock %s", join(fx.Unblocked))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

func numbers[N Seq | int](of map[ChannelID]N) string {
	var out []string
	for _, ch := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s:%d", ch, of[ch]))
	}
	return join(out)
}

func describe(ev Event) string {
	s := ev.Kind.String()
	if ev.Agent != "" {
		s += " " + ev.Agent
	}
	if ev.Epoch != 0 {
		s += fmt.Sprintf(" %d", ev.Epoch)
	}
	return s
}

// restore replaces the aligner by one that comes from its state through JSON.
func (t *testTask) restore() error {
	raw, err := json.Marshal(t.al.State())
	if err != nil {
		return err
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	al, err := RestoreAligner(t.inputs, t.mode, s)
	if err == nil {
		t.al = al
	}
	return err
}

// alignerBench runs the aligner scripts:
//
//	task [at-least-once] CHANNEL@AGENT[:back]...
//	in CHANNEL ITEM...        items r, bEPOCH, end
//	force CHANNEL EPOCH [end] give it to the aligner whether the channel is blocked or not
//	control|abort|floor EPOCH
//	detach|attach AGENT [EPOCH]
//	lacks AGENT EPOCH STATE [initial] [detached=A,B]    what a task there lacks, and takes it
//	restore | state
type alignerBench struct{ t *testTask }

func (b *alignerBench) run(c command) string {
	var out strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	if b.t != nil {
		b.t.say = say
	}
	if p := caught(func() { b.do(c, say) }); p != "" {
		say("panic: %s", p)
	}
	return out.String()
}

func (b *alignerBench) do(c command, say func(string, ...any)) {
	kinds := map[string]EventKind{"control": OnControlBarrier, "abort": OnAbort, "floor": OnFloor, "detach": OnDetach, "attach": OnAttach}
	switch c.name {
	case "task":
		b.t = taskOf(c)
	case "in":
		for _, it := range c.args[1:] {
			b.t.arrive(ChannelID(c.arg(0)), it)
		}
	case "force": // what a caller must never do
		ev := Event{Kind: OnBarrier, Channel: ChannelID(c.arg(0)), Epoch: Epoch(c.num(1))}
		if c.has("end") {
			ev.Kind = OnEnd
		}
		b.t.al.Step(ev)
	case "control", "abort", "floor":
		b.t.control(Event{Kind: kinds[c.name], Epoch: Epoch(c.num(0))})
	case "detach", "attach":
		ev := Event{Kind: kinds[c.name], Agent: c.arg(0)}
		if len(c.args) > 1 {
			ev.Epoch = Epoch(c.num(1))
		}
		b.t.control(ev)
	case "lacks":
		b.lacks(c, say)
	case "restore":
		if err := b.t.restore(); err != nil {
			say("%v", err)
		}
	case "state":
		raw, _ := json.Marshal(b.t.al.State())
		say("%s", raw)
		say("pending=%d finished=%d waiting=%s ended=%v ignored=%d", b.t.al.Pending(), b.t.al.Finished(), join(b.t.al.Waiting()), b.t.al.Ended(), b.t.al.Ignored())
	case "load":
		var s State
		if err := json.Unmarshal([]byte(strings.Join(c.body, "")), &s); err != nil {
			panic(err)
		}
		_, err := RestoreAligner(b.t.inputs, b.t.mode, s)
		say("%v", err)
	default:
		panic("script: unknown command " + c.name)
	}
}

func taskOf(c command) *testTask {
	mode := ExactlyOnce
	var inputs []Input
	for _, a := range c.args {
		if a == "at-least-once" {
			mode = AtLeastOnce
			continue
		}
		id, agent, _ := strings.Cut(a, "@")
		agent, back := strings.CutSuffix(agent, ":back")
		inputs = append(inputs, Input{ID: ChannelID(id), Agent: agent, Back: back})
	}
	return newTestTask(inputs, mode)
}

func (b *alignerBench) lacks(c command, say func(string, ...any)) {
	r := EpochRecord{Epoch: Epoch(c.num(1)), State: EpochState(c.arg(2)), Initial: c.has("initial"), Detached: c.words("detached")}
	evs := b.t.al.Lacks(r, c.arg(0))
	if len(evs) == 0 {
		say("nothing")
	}
	for _, ev := range evs {
		b.t.control(ev)
	}
	if again := b.t.al.Lacks(r, c.arg(0)); len(again) > 0 {
		say("and still %v", again)
	}
}
