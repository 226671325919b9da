package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Dead letters are replayed by the tasks that gave them up (dataflow/replay.go). Whoever is asked tells all agents of
// the job which letters are meant, and asks again until they are marked.

// replayAsk asks an agent to replay letters; a [replayRequest] follows.
const replayAsk = "replay/"

// replayedAtOnce is how many letters an agent gives to their tasks for one request, and tells of in one answer.
const replayedAtOnce = 1000

// replayRequest chooses letters of a job.
type replayRequest struct {
	Job string `json:"job"`
	api.Replay
}

// refuser is the operator that refused a letter; empty: none did.
func (r deadRecord) refuser() string {
	if r.Operator != nil {
		return *r.Operator
	}
	return dataflow.RefusedBy(r.Reason)
}

func replayedAt(r deadRecord) time.Time {
	if r.ReplayedAt == 0 {
		return time.Time{}
	}
	return millis(r.ReplayedMS)
}

// Replayed implements [dataflow.DeadLetters].
func (d *deadLetters) Replayed(task, key string, at abs.Position) error {
	return d.change(task+"/"+key, func(r *deadRecord) bool {
		if r.ReplayedAt == at {
			return false
		}
		r.ReplayedAt, r.ReplayedMS = at, d.now()
		return true
	})
}

// ReplayedAt implements [dataflow.DeadLetters].
func (d *deadLetters) ReplayedAt(task, key string) (at abs.Position, err error) {
	return at, d.change(task+"/"+key, func(r *deadRecord) bool {
		at = r.ReplayedAt
		return false
	})
}

// Unreplayed implements [dataflow.DeadLetters].
func (d *deadLetters) Unreplayed(task string, after abs.Position) error {
	d.mu.Lock()
	var ids []string
	for id := range d.letters {
		if strings.HasPrefix(id, task+"/") {
			ids = append(ids, id)
		}
	}
	d.mu.Unlock()
	for _, id := range ids {
		err := d.change(id, func(r *deadRecord) bool {
			lost := r.Task == task && r.ReplayedAt > after
			if lost {
				r.ReplayedAt, r.ReplayedMS = 0, 0
			}
			return lost
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// change rewrites a letter if it is there and f says so.
func (d *deadLetters) change(id string, f func(*deadRecord) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	value, ok, err := d.copies.Get(copyDead, id)
	if err != nil || !ok {
		return err
	}
	r, _ := readLetter(id, value)
	if r.damaged || !f(&r) {
		return nil
	}
	next := mustJSON(r)
	if err := d.copies.Put(copyDead, id, next); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	d.set(id, r.meta(len(next)))
	return nil
}

// chosen are the letters of a job that a request means, oldest first, by task.
func (d *deadLetters) chosen(req replayRequest) (ids []string, records []deadRecord, err error) {
	named := map[string]bool{}
	for _, id := range req.IDs {
		named[id] = true
	}
	err = d.copies.List(copyDead, func(id string, value []byte) error {
		short, ours := strings.CutPrefix(id, req.Job+"/")
		if !ours {
			return nil
		}
		r, _ := readLetter(id, value)
		if len(named) > 0 && !named[short] || req.Operator != "" && r.refuser() != req.Operator {
			return nil
		}
		ids, records = append(ids, id), append(records, r)
		return nil
	})
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(records[i].AtMS, records[j].AtMS) })
	sorted, inOrder := make([]string, len(ids)), make([]deadRecord, len(ids))
	for to, from := range order {
		sorted[to], inOrder[to] = ids[from], records[from]
	}
	return sorted, inOrder, err
}

// replayAnswer is what an agent tells of letters.
type replayAnswer struct {
	Letters []letterState       `json:"letters"`
	Skipped []api.SkippedLetter `json:"skipped"`
	Left    int                 `json:"left"` // for want of room, not replayed
}

// has says whether an agent has told of a letter.
func (r replayAnswer) has(id string) bool {
	return slices.ContainsFunc(r.Letters, func(l letterState) bool { return l.ID == id }) ||
		slices.ContainsFunc(r.Skipped, func(l api.SkippedLetter) bool { return l.ID == id })
}

// letterState is a letter that was replayed at a position, as far as is known, or is to be.
type letterState struct {
	ID string       `json:"id"`
	At abs.Position `json:"at"`
}

// answerReplay gives letters to their tasks, those that were not replayed, and tells of all that are meant.
func (a *Agent) answerReplay(ask []byte) []byte {
	var req replayRequest
	var out replayAnswer
	if err := json.Unmarshal(ask, &req); err != nil {
		out.Skipped = append(out.Skipped, api.SkippedLetter{Reason: err.Error()})
		return mustJSON(out)
	}
	ids, records, err := a.dead.chosen(req)
	if err != nil {
		out.Skipped = append(out.Skipped, api.SkippedLetter{Reason: err.Error()})
	}
	h := a.hostedJob(req.Job)
	before := 0
	for i, id := range ids {
		short := strings.TrimPrefix(id, req.Job+"/")
		switch again := records[i].ReplayedAt != 0 && !req.Again && len(req.IDs) == 0; {
		case again && before >= replayedAtOnce:
			continue
		case again:
			before++
		case len(out.Letters)+len(out.Skipped)-before >= replayedAtOnce:
			out.Left++
			continue
		}
		if why := a.redo(h, req, id, records[i]); why != "" {
			out.Skipped = append(out.Skipped, api.SkippedLetter{ID: short, Reason: why})
			continue
		}
		out.Letters = append(out.Letters, letterState{short, records[i].ReplayedAt})
	}
	return mustJSON(out)
}

// redo gives a letter to its task, if it was not replayed before or that does not matter.
func (a *Agent) redo(h *hostedJob, req replayRequest, id string, rec deadRecord) (why string) {
	if rec.ReplayedAt != 0 && !req.Again {
		return ""
	}
	if rec.damaged {
		return rec.Reason
	}
	if rec.Cut {
		return "the record was too large to be kept whole"
	}
	if h == nil || !h.record().live() {
		return "the job does not run"
	}
	for _, r := range h.tasks() {
		if r.name != rec.Task {
			continue
		}
		r.mu.Lock()
		task := r.running
		r.mu.Unlock()
		if task == nil {
			return "its task does not run"
		}
		key := strings.TrimPrefix(id, rec.Task+"/")
		if err := task.CanReplay(key); err != nil {
			return err.Error()
		}
		if task.Status().Ended {
			return "the input of its task has ended, and what comes behind the end is not processed"
		}
		task.Replay(dataflow.Letter{Key: key, Record: rec.Record, Replayed: rec.ReplayedAt})
		return ""
	}
	return "the job has its task no more on this agent"
}

// ReplayDeadLetters implements [web.Jobs].
func (a *Agent) ReplayDeadLetters(ctx context.Context, name string, what api.Replay) (api.Replayed, error) {
	out := api.Replayed{Replayed: []string{}, Skipped: []api.SkippedLetter{}}
	h := a.hostedJob(name)
	if h == nil || h.record().State == jobDeleted {
		return out, a.failure(name, wnats.ErrNotFound)
	}
	agents := a.letterAgents(h.record())
	first, silent := a.askReplay(ctx, agents, replayRequest{name, what})
	out.Unanswered = silent
	agents = slices.DeleteFunc(agents, func(name string) bool {
		return slices.ContainsFunc(silent, func(u api.Unanswered) bool { return u.Agent == name })
	})
	if len(first.Letters)+len(first.Skipped) == 0 {
		which, not := "such dead letter", ""
		if len(what.IDs) == 0 && what.Operator == "" {
			which = "dead letters"
		}
		for i, u := range silent {
			not += []string{"; these did not answer: ", ", "}[min(i, 1)] + u.Agent
		}
		return out, api.NotFound("agent job deadletters show lists them", "job %s has no %s on an agent that has answered%s", name, which, not)
	}
	out.Skipped, out.Left = append(out.Skipped, first.Skipped...), first.Left
	for _, id := range what.IDs {
		if first.Left == 0 && !first.has(id) {
			out.Skipped = append(out.Skipped, api.SkippedLetter{ID: id, Reason: "no agent that has answered has such a letter"})
		}
	}
	waiting := map[string]abs.Position{}
	for _, l := range first.Letters {
		if l.At != 0 && !what.Again {
			out.Skipped = append(out.Skipped, api.SkippedLetter{ID: l.ID, Reason: "it was replayed before; --again does it nevertheless"})
			continue
		}
		waiting[l.ID] = l.At
	}
	for len(waiting) > 0 {
		if !sleep(ctx, pollEvery) {
			return out, fmt.Errorf("%d dead letters of job %s are given to their tasks, which have not come to them: %w", len(waiting), name, ctx.Err())
		}
		now, _ := a.askReplay(ctx, agents, replayRequest{name, api.Replay{IDs: slices.Collect(maps.Keys(waiting))}})
		for _, l := range now.Letters {
			if was, waits := waiting[l.ID]; waits && l.At != was {
				delete(waiting, l.ID)
				out.Replayed = append(out.Replayed, l.ID)
			}
		}
		for _, l := range now.Skipped {
			if _, waits := waiting[l.ID]; waits {
				delete(waiting, l.ID)
				out.Skipped = append(out.Skipped, l)
			}
		}
	}
	slices.Sort(out.Replayed)
	return out, nil
}

// askReplay passes a request to agents and gathers the answers; silent are the agents that gave none.
func (a *Agent) askReplay(ctx context.Context, agents []string, req replayRequest) (out replayAnswer, silent []api.Unanswered) {
	silent = a.askLetters(ctx, req.Job, agents, append([]byte(replayAsk), mustJSON(req)...), func(_ string, reply []byte) error {
		var one replayAnswer
		err := json.Unmarshal(reply, &one)
		out.Letters, out.Skipped = append(out.Letters, one.Letters...), append(out.Skipped, one.Skipped...)
		out.Left += one.Left
		return err
	})
	return out, silent
}
