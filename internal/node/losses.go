package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// copyLoss is the kind of the copies that say what was lost with a device, by task and generation.
const copyLoss = "loss"

// logged is how far an agent's input log had come, by its signs of life.
type logged struct {
	Log  uint64                  `json:"log"` // which log, as [storage.LogStream.ID]
	Last map[string]abs.Position `json:"last,omitempty"`

	at time.Time
}

// logged is how far the sources of this agent have come, by the names of their tasks.
func (a *Agent) logged() (out logged) {
	out.Last = map[string]abs.Position{}
	for _, h := range a.hosted() {
		for _, r := range h.tasks() {
			if r.ingest == nil {
				continue
			}
			out.Log = r.entries.ID()
			if last := r.entries.Info().Last; last > 0 {
				out.Last[r.name] = last
			}
		}
	}
	return out
}

// keepLogged remembers how far an agent had come when its log becomes another one, and until it has one. The caller
// holds the lock.
func (p *peers) keepLogged(s *sign) {
	was := p.heard[s.Name].Logged
	switch {
	case s.Logged.Log == 0:
		s.Logged = was
	case was.Log != 0 && was.Log != s.Logged.Log:
		p.before[s.Name] = was
		fallthrough
	default:
		s.Logged.at = s.at
	}
}

// loggedBefore is how far a task had come in the log that its agent has lost, as far as this agent has heard.
func (p *peers) loggedBefore(agent, task string) (pos abs.Position, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.before[agent]
	return l.Last[task], l.at
}

// noteHeard puts into a plan how far the sources that are replaced had come when they were last heard of.
func (a *Agent) noteHeard(p *job.Physical, agent string) {
	for _, t := range p.On(agent) {
		if !t.Replaced || t.Source == nil {
			continue
		}
		if pos, at := a.peers.loggedBefore(agent, p.Job+"/"+string(t.ID)); pos > 0 {
			t.HeardPos, t.HeardMS = pos, at.UnixMilli()
		}
	}
}

// noteLoss works out what is lost with the device that a source's generation begins without, and keeps it.
func (r *runner) noteLoss(ctx context.Context, base *dataflow.PartInfo) error {
	if !r.task.Replaced || r.task.Source == nil {
		return nil
	}
	loss := api.Loss{
		Source: r.task.Source.Name, Generation: uint32(r.rec.Generation), At: time.UnixMilli(r.a.now()).UTC(),
		HeardPosition: uint64(r.task.HeardPos), Received: []api.LossRange{},
	}
	if r.task.HeardMS != 0 {
		loss.Heard = millis(r.task.HeardMS)
	}
	var sent map[abs.ChannelID]abs.Seq
	if base != nil {
		loss.AfterPosition, loss.Epoch = uint64(base.Pos), uint64(base.Epoch)
		rep, err := dataflow.ReportOf(*base)
		if err != nil {
			return err
		}
		sent = rep.Cut.Sent
	}
	manifest, err := r.a.manifest(ctx, r.job, r.rec.Base)
	if err != nil {
		return err
	}
	for _, c := range r.rec.Plan.Channels {
		if c.From != r.task.ID {
			continue
		}
		if have := manifest.Parts[c.To].Cut.Consumed[c.ID]; have > sent[c.ID] {
			loss.Received = append(loss.Received, api.LossRange{Channel: string(c.ID), First: uint64(sent[c.ID]) + 1, Last: uint64(have)})
		}
	}
	key := wnats.Key(r.rec.Name, string(r.task.ID), fmt.Sprintf("%010d", r.rec.Generation))
	if err := r.a.putCopy(copyLoss, key, lossCopy{r.name, loss}); err != nil {
		return err
	}
	r.log.Warn("what only the lost device knew is lost", "source", loss.Source, "after_position", loss.AfterPosition, "epoch", loss.Epoch,
		"heard_position", loss.HeardPosition, "received", fmt.Sprint(loss.Received))
	if err := r.loadLosses(); err != nil {
		r.log.Error("what was lost with earlier devices of the task cannot be shown", "error", err)
	}
	return nil
}

// lossCopy is a loss as the agent that goes on keeps it.
type lossCopy struct {
	Task string   `json:"task"` // with the job's name
	Loss api.Loss `json:"loss"`
}

// maxLosses bounds what is shown of a task's losses: the newest.
const maxLosses = 16

// copyUnread is the kind of the copies that could not be read and were set aside, as they were.
const copyUnread = "unread"

// loadLosses reads what was lost with earlier devices of the task. No task needs it to run: a copy that cannot be read
// is set aside, and the agent says so.
func (r *runner) loadLosses() error {
	var losses []api.Loss
	var aside []storage.Copy
	err := r.a.copies.List(copyLoss, func(key string, value []byte) error {
		var c lossCopy
		if err := json.Unmarshal(value, &c); err != nil {
			aside = append(aside, storage.Copy{Kind: copyLoss, Key: key}, storage.Copy{Kind: copyUnread, Key: copyLoss + "/" + key, Value: bytes.Clone(value)})
			r.a.notices.add(fmt.Sprintf("what was lost with a device, %s, cannot be read, is not shown, and was set aside: %v", strings.ReplaceAll(key, ".", " "), err))
			return nil
		}
		if c.Task == r.name && c.Loss.Generation >= uint32(r.rec.Since) {
			losses = append(losses, c.Loss)
		}
		return nil
	})
	r.mu.Lock()
	r.losses = losses[max(0, len(losses)-maxLosses):]
	r.mu.Unlock()
	if err == nil && len(aside) > 0 {
		err = r.a.copies.PutAll(aside...)
	}
	return err
}

// forgetLosses drops what is kept of a deleted job's losses.
func (a *Agent) forgetLosses(job string) error {
	var keys []string
	err := a.copies.List(copyLoss, func(key string, value []byte) error {
		var c lossCopy
		if err := json.Unmarshal(value, &c); err != nil || strings.HasPrefix(c.Task, job+"/") {
			keys = append(keys, key)
		}
		return nil
	})
	for _, k := range keys {
		err = errors.Join(err, a.copies.Delete(copyLoss, k))
	}
	return err
}
