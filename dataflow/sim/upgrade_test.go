package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow"
)

// Versions of operators are named by their digests: one that ends with never does not start, one that ends with
// once does not start the first time.
const (
	startsNever = "!"
	startsOnce  = "?"
	mends       = "v3" // and this one traps on no poison
)

// upgrade decides that a task is to have another version of its operator, which may be one that it had.
func (c *chaos) upgrade() bool {
	t := c.anyTask()
	u := dataflow.Upgrade{Number: c.w.upgrades[t].Number + 1 + uint64(c.w.rng.IntN(2))}
	digest := fmt.Sprint("v", c.w.rng.IntN(4)) + []string{"", "", "", startsNever, startsOnce}[c.w.rng.IntN(5)]
	u.Ops = []dataflow.OpVersion{{Name: string(t.id), Digest: digest}}
	if c.w.one(4) {
		u.Ops[0].Limits.Output = int64(u.Number) // alone it leaves the instance its variables
	}
	c.w.upgrades[t] = u
	c.w.trace("upgrade %d of %s: %s", u.Number, t.id, digest)
	return true
}

// refuses says why an instance of a version cannot be made.
func (c *chaos) refuses(t *plannedTask, digest string) string {
	switch {
	case strings.HasSuffix(digest, startsNever):
		return "the version does not start"
	case strings.HasSuffix(digest, startsOnce) && !c.started[string(t.id)+digest]:
		c.started[string(t.id)+digest] = true
		return "the version does not start this time"
	}
	return ""
}

// replay has a dead letter processed again, asked for once or twice.
func (c *chaos) replay() bool {
	a := c.anyAgent()
	if a.proc == nil {
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(a.disk.letters)) {
		task, letter, _ := strings.Cut(taskOf(key), " ")
		r := a.runner(c.w.topo.task(task))
		if _, done := a.disk.replayed[key]; done || r == nil || r.run == nil || c.w.one(3) {
			continue
		}
		for range 1 + c.w.rng.IntN(2) {
			r.run.task.Replay(dataflow.Letter{Key: letter, Record: bytes.Clone(a.disk.letters[key])})
		}
		r.run.wake()
		return true
	}
	return false
}

// upgraded tells the task what is decided, again and again, while its agent is in touch.
func (r *taskRun) upgraded() {
	if u := r.w().upgrades[r.r.t]; u.Number != 0 && !r.agent().cut {
		r.task.Upgrade(u)
	}
}

// behind says which task has not taken what was decided for it.
func (w *world) behind() string {
	for _, a := range w.agents {
		if a.proc == nil {
			continue
		}
		for _, r := range a.proc.runners {
			if r.run == nil {
				continue
			}
			have, want := r.run.task.Status().Upgraded, w.upgrades[r.t]
			if have.Number != want.Number {
				return fmt.Sprintf("%s is at upgrade %d, decided is %d", r.t.id, have.Number, want.Number)
			}
			if want.Number == 0 {
				continue
			}
			refused := strings.HasSuffix(want.Ops[0].Digest, startsNever)
			if (have.Refused != "") != refused || !refused && have.Ops[0].Digest != want.Ops[0].Digest {
				w.fail("%s has taken upgrade %+v as %+v", r.t.id, want, have)
			}
		}
	}
	return ""
}
