package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// deadBudget bounds the dead letters that an agent keeps, in bytes; beyond it the oldest are given
// up and counted.
const deadBudget = 16 << 20

// deadLetters keeps given-up records on disk.
type deadLetters struct {
	copies *storage.Copies
	now    func() int64

	mu      sync.Mutex
	letters map[string]deadMeta
	size    int64
	shed    uint64
	counts  map[string]uint64 // by task, ever
	waiting map[string]uint64 // by job: those that are kept and were not replayed
	damaged int               // those that cannot be read
}

type deadMeta struct {
	at      int64
	size    int64
	waiting bool // it was not replayed
	damaged bool // it cannot be read
}

// meta is what is remembered of a letter that is kept in size bytes.
func (r deadRecord) meta(size int) deadMeta {
	return deadMeta{r.AtMS, int64(size), r.ReplayedAt == 0, r.damaged}
}

// set notes what is kept of a letter now, remove that nothing is. The caller holds the lock, or is alone.
func (d *deadLetters) set(id string, m deadMeta) {
	d.remove(id)
	d.letters[id] = m
	d.size += m.size
	if m.waiting {
		d.waiting[jobOfLetter(id)]++
	}
	if m.damaged {
		d.damaged++
	}
}

func (d *deadLetters) remove(id string) {
	m := d.letters[id]
	delete(d.letters, id)
	d.size -= m.size
	if m.damaged {
		d.damaged--
	}
	if m.waiting {
		if d.waiting[jobOfLetter(id)]--; d.waiting[jobOfLetter(id)] == 0 {
			delete(d.waiting, jobOfLetter(id))
		}
	}
}

func jobOfLetter(id string) string {
	name, _, _ := strings.Cut(id, "/")
	return name
}

// unreplayed is how many letters are kept that were not replayed, by job.
func (d *deadLetters) unreplayed() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.waiting)
}

// deadRecord is a dead letter on disk.
type deadRecord struct {
	Task   string `json:"task"`
	AtMS   int64  `json:"at_ms"`
	Reason string `json:"reason"`
	// Operator is the one that refused the record, empty if none did; nil in letters of versions that did not note it.
	Operator *string `json:"operator,omitempty"`
	Record   []byte  `json:"record"` // in frame encoding
	// Cut: the record is not kept whole.
	Cut bool `json:"cut,omitempty"`
	// ReplayedAt is the position of the log entry that has processed it again, 0: it was not; ReplayedMS when.
	ReplayedAt abs.Position `json:"replayed_at,omitempty"`
	ReplayedMS int64        `json:"replayed_ms,omitempty"`

	damaged bool
}

// readLetter reads a letter. One that cannot be read is shown as it is, with the reason, is given up first, and is not
// replayed: neither the agent nor a task must fail over it.
func readLetter(id string, value []byte) (r deadRecord, rec frame.Record) {
	err := json.Unmarshal(value, &r)
	if err == nil && !strings.HasPrefix(id, r.Task+"/") {
		err = fmt.Errorf("it says that it is of task %q", r.Task)
	}
	if err == nil {
		rec, _, err = frame.Next(r.Record)
	}
	if err != nil {
		none := ""
		r = deadRecord{Task: id[:max(0, strings.LastIndexByte(id, '/'))], Reason: "the dead letter cannot be read, this is what is kept of it: " + err.Error(), Operator: &none, damaged: true}
		rec = frame.Record{Value: value}
	}
	return r, rec
}

func openDeadLetters(copies *storage.Copies, now func() int64) (*deadLetters, error) {
	d := &deadLetters{copies: copies, now: now, letters: map[string]deadMeta{}, counts: map[string]uint64{}, waiting: map[string]uint64{}}
	err := copies.List(copyDead, func(key string, value []byte) error {
		r, _ := readLetter(key, value)
		d.set(key, r.meta(len(value)))
		d.counts[r.Task]++
		return nil
	})
	return d, err
}

// Put implements [dataflow.DeadLetters].
func (d *deadLetters) Put(task, key string, rec frame.Record, reason string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := task + "/" + key
	if _, known := d.letters[id]; known {
		return nil
	}
	operator := dataflow.RefusedBy(reason)
	cut := rec.Check() != nil
	if cut {
		reason = fmt.Sprintf("%s (kept: the first %d bytes)", reason, min(shownBytes, len(rec.Value)))
		rec.Key, rec.Value = rec.Key[:min(shownBytes, len(rec.Key))], rec.Value[:min(shownBytes, len(rec.Value))]
		if rec.Check() != nil {
			rec.Headers = nil
		}
	}
	r := deadRecord{Task: task, AtMS: d.now(), Reason: reason, Operator: &operator, Record: frame.AppendRecord(nil, rec), Cut: cut}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := d.room(int64(len(value))); err != nil {
		return err
	}
	if err := d.copies.Put(copyDead, id, value); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	d.set(id, r.meta(len(value)))
	d.counts[task]++
	return nil
}

// room gives up the oldest letters.
func (d *deadLetters) room(need int64) error {
	for d.size+need > deadBudget && len(d.letters) > 0 {
		oldest := ""
		for id, m := range d.letters {
			if oldest == "" || m.at < d.letters[oldest].at {
				oldest = id
			}
		}
		if err := d.copies.Delete(copyDead, oldest); err != nil {
			return err
		}
		d.remove(oldest)
		d.shed++
	}
	return nil
}

// forget removes a job's letters, also of tasks that the agent has no more.
func (d *deadLetters) forget(jobName string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.letters {
		if jobOfLetter(id) != jobName {
			continue
		}
		if err := d.copies.Delete(copyDead, id); err != nil {
			return err
		}
		d.remove(id)
	}
	maps.DeleteFunc(d.counts, func(task string, _ uint64) bool { return jobOfLetter(task) == jobName })
	return nil
}

func (d *deadLetters) count(task string) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts[task]
}

func (d *deadLetters) bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size
}

// given is how many letters were given up.
func (d *deadLetters) given() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shed
}

// notices says that there are letters that cannot be read.
func (d *deadLetters) notices() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.damaged == 0 {
		return nil
	}
	return []string{fmt.Sprintf("dead letters: %d cannot be read, so that they cannot be replayed; agent job deadletters shows what is kept of them, until their job is deleted", d.damaged)}
}

// shownBytes is how much is shown of a key or value that is too large to be shown whole.
const shownBytes = 4 << 10

// someLetters is what an agent answers when it is asked for those of a job.
type someLetters struct {
	Letters []api.DeadLetter `json:"letters"` // oldest first
	Kept    uint64           `json:"kept"`    // with those that are not in Letters
}

// newest returns the newest letters of a job: at most limit, and what fits an answer to
// another agent. A letter that does not fit whole is cut; Bytes tells the value's size.
func (d *deadLetters) newest(jobName string, limit int) someLetters {
	const answerBytes = 512 << 10
	all := d.list(jobName)
	from, size := len(all), 0
	for from > 0 && len(all)-from < limit {
		l := all[from-1]
		cost := len(mustJSON(l))
		if size+cost > answerBytes {
			l.Key, l.Value = l.Key[:min(shownBytes, len(l.Key))], l.Value[:min(shownBytes, len(l.Value))]
			cost = len(mustJSON(l))
		}
		if size += cost; size > answerBytes {
			break
		}
		from--
		all[from] = l
	}
	return someLetters{all[from:], uint64(len(all))}
}

// list returns a job's letters, oldest first.
func (d *deadLetters) list(jobName string) []api.DeadLetter {
	out := []api.DeadLetter{}
	_ = d.copies.List(copyDead, func(id string, value []byte) error {
		if !strings.HasPrefix(id, jobName+"/") {
			return nil
		}
		r, rec := readLetter(id, value)
		at := millis(r.AtMS)
		if r.damaged {
			at = time.Time{}
		}
		out = append(out, api.DeadLetter{
			ID: strings.TrimPrefix(id, jobName+"/"), Operator: r.refuser(), Replayed: replayedAt(r),
			Job: jobName, Task: strings.TrimPrefix(r.Task, jobName+"/"), At: at, Reason: r.Reason,
			Position: strings.TrimPrefix(id, r.Task+"/"),
			Key:      append(api.Bytes(nil), rec.Key...), TimeMS: rec.Time, Topic: string(rec.Header(job.TopicHeader)),
			Bytes: len(rec.Value), Value: append(api.Bytes(nil), rec.Value...),
		})
		return nil
	})
	sort.SliceStable(out, func(i, j int) bool { return out[i].At.Before(out[j].At) })
	return out
}

// DeadLetters implements [web.Jobs].
func (a *Agent) DeadLetters(ctx context.Context, name string, limit int) (out api.DeadLetters, err error) {
	h := a.hostedJob(name)
	if h == nil || h.record().State == jobDeleted {
		return out, a.failure(name, wnats.ErrNotFound)
	}
	all := []api.DeadLetter{}
	out.Unanswered = a.askLetters(ctx, name, a.letterAgents(h.record()), fmt.Appendf(nil, "dead/%d/%s", limit, name), func(agent string, reply []byte) error {
		var some someLetters
		if err := json.Unmarshal(reply, &some); err != nil {
			return err
		}
		for _, l := range some.Letters {
			l.Agent = agent
			all = append(all, l)
		}
		out.Kept += some.Kept
		return nil
	})
	sort.SliceStable(all, func(i, j int) bool { return all[i].At.Before(all[j].At) })
	out.Letters = all[max(0, len(all)-limit):]
	return out, nil
}

// letterAgents are the agents that may have dead letters of a job, sorted: those that have or had its tasks, and of
// those whose letters were counted as lost the ones that are back.
func (a *Agent) letterAgents(rec jobRecord) []string {
	dirs := rec.dirs()
	for _, l := range rec.LostLetters {
		if l.Agent != "" && !a.removed(l.Agent) {
			dirs[l.Agent] = l.Dir
		}
	}
	return slices.Sorted(maps.Keys(dirs))
}

// askLetters asks agents about dead letters of a job and takes the answers one by one. It returns the agents of which
// none came, or none that take could read, and what was heard of their letters before.
func (a *Agent) askLetters(ctx context.Context, job string, agents []string, request []byte, take func(agent string, reply []byte) error) (silent []api.Unanswered) {
	var mu sync.Mutex
	told := map[string]bool{}
	a.callAll(ctx, agents, request, func(agent string, reply []byte) {
		mu.Lock()
		defer mu.Unlock()
		told[agent] = take(agent, reply) == nil
	})
	agents = slices.DeleteFunc(slices.Clone(agents), func(name string) bool { return told[name] })
	_ = a.askHeard(ctx, agents) // what is not known is not shown
	for _, name := range agents {
		u := api.Unanswered{Agent: name}
		if h, ok := a.peers.lettersNow(name); ok {
			u.Letters, u.Heard = h.Count[job], millis(h.AtMS)
		}
		silent = append(silent, u)
	}
	return silent
}
