package dataflow

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weir-stream/weir/abs"
)

// An upgrade is an entry of the task's log: what comes before it is processed by the old versions of the
// operators, what comes behind it by the new ones, in every replay. A part knows the versions at its cut, so
// one from before the entry makes the old instances and meets the entry again.
//
// A new instance has of the old one's state what is keyed, and of its variables what the modules carry over
// themselves. If it cannot be made, the entry is given up like a record: the second time that it fails, by an
// entry of the log, and the old versions go on.

// upgradeIndex stands for the upgrade itself where other entries have the index of a record.
const upgradeIndex = math.MaxInt32

// OpVersion is what an upgrade may change of an operator.
type OpVersion struct {
	Name   string            `json:"name"`
	Module string            `json:"module,omitempty"` // as the job names it
	Digest string            `json:"digest,omitempty"`
	Config map[string]string `json:"config,omitempty"`
	Limits Limits            `json:"limits,omitzero"`
	Policy ErrorPolicy       `json:"policy,omitempty"`
	// Anew tells versions apart that are otherwise equal: the operator is to lose its variables.
	Anew uint64 `json:"anew,omitempty"`
}

// equal says whether an instance of one version goes on as one of the other.
func (v OpVersion) equal(o OpVersion) bool {
	return v.sameCode(o) && v.Limits == o.Limits && v.Policy == o.Policy && v.Module == o.Module
}

// sameCode says whether one version can be restored from the other's variables.
func (v OpVersion) sameCode(o OpVersion) bool {
	return v.Digest == o.Digest && v.Anew == o.Anew && maps.Equal(v.Config, o.Config)
}

// Version is the operator's version as planned.
func (s OpSpec) Version() OpVersion {
	o := s.Operator
	return OpVersion{Name: o.Name, Module: o.Module, Digest: o.Digest, Config: o.Config, Limits: o.Limits, Policy: s.Policy, Anew: o.Anew}
}

// with is the operator in another version.
func (s OpSpec) with(v OpVersion) OpSpec {
	s.Operator.Module, s.Operator.Digest, s.Operator.Config, s.Operator.Limits, s.Operator.Anew = v.Module, v.Digest, v.Config, v.Limits, v.Anew
	s.Policy = v.Policy
	return s
}

// Upgrade is new versions of a task's operators.
type Upgrade struct {
	// Number grows with every upgrade of a generation. A task takes each once, and none that is lower than
	// the last one it took.
	Number uint64 `json:"number"`
	// Ops are the versions by name; operators that are not named, and names that the task does not have, stay
	// as they are.
	Ops []OpVersion `json:"ops"`
	// Fresh are operators that lose their variables whatever changes: of upgrade 0.
	Fresh []string `json:"fresh,omitempty"`
	// Trial: a record on which an operator fails is kept as a dead letter even if the operator's policy is to
	// stop, so that the old version can be had back. It is not part of the log.
	Trial bool `json:"-"`
}

// Tally is what came of the records that a task has taken with one version of its operators: numbers that
// replay makes again.
type Tally struct {
	Records uint64 `json:"records"`
	Failed  uint64 `json:"failed"` // given up
}

// Upgraded is where a task is with its upgrades.
type Upgraded struct {
	Number uint64 `json:"number,omitempty"` // of the last one, 0: none in this generation
	// Refused says why the last one was given up; empty: it was not.
	Refused string `json:"refused,omitempty"`
	Since   Tally  `json:"since,omitzero"`  // the last one
	Before  Tally  `json:"before,omitzero"` // between it and the one before
	// Ops are the versions that run; nil in a part from before there were upgrades.
	Ops []OpVersion `json:"ops,omitempty"`
	// PlanDue: upgrade 0 of the generation is still to come, an entry of a source's log that says where the versions of
	// its plan begin, for generations that begin from a part before it. Older: until then the task makes again what it
	// has made in older generations, with the versions of then.
	PlanDue bool `json:"plan_due,omitempty"`
	Older   bool `json:"older,omitempty"`
}

// upgradeEntry is an upgrade in the log: generation (uvarint), then the upgrade as JSON.
type upgradeEntry struct {
	generation abs.Generation
	Upgrade
}

func (e upgradeEntry) encode() []byte {
	b, err := json.Marshal(e.Upgrade)
	if err != nil {
		panic(fmt.Sprintf("upgrade cannot be encoded: %v", err))
	}
	return append(binary.AppendUvarint(nil, uint64(e.generation)), b...)
}

func decodeUpgrade(b []byte) (e upgradeEntry, err error) {
	r := entryReader{b: b}
	e.generation = abs.Generation(r.uvarint())
	if r.err != nil {
		return e, r.err
	}
	if err := json.Unmarshal(r.b, &e.Upgrade); err != nil {
		return e, fmt.Errorf("%w: upgrade: %w", errEntry, err)
	}
	return e, nil
}

// Upgrade asks the task for new versions of its operators. It may be asked again, also for what it has: the
// decision is kept elsewhere. The modules must be at hand.
func (t *Task) Upgrade(u Upgrade) {
	t.mail.post(func() {
		if u.Number >= t.target.Number {
			t.target = u
		}
	})
}

// upgradeDue logs the upgrade that the task lacks, if there is one; a streamed task then takes it at once, a
// source when it comes to it in its log.
func (t *Task) upgradeDue() (bool, error) {
	if t.upgraded.PlanDue && !t.planLogged {
		return t.logPlan()
	}
	if t.target.Number <= max(t.upgraded.Number, t.upgradeLogged) {
		return false, nil
	}
	if t.follow != nil && !t.spec.Source { // what the log holds comes first
		return false, nil
	}
	e := upgradeEntry{t.spec.Generation, t.target}
	pos, err := t.env.Log.Append(EntryUpgrade, e.encode())
	if err != nil {
		return false, ignoreFull(err)
	}
	t.upgradeLogged = e.Number
	if t.spec.Source {
		return true, nil
	}
	return true, t.upgrade(pos, e)
}

// logPlan logs upgrade 0. It is tried again later if the log is full: until then nothing else is logged either.
func (t *Task) logPlan() (bool, error) {
	plan := Upgrade{}
	for _, op := range t.spec.Ops {
		plan.Ops = append(plan.Ops, op.Version())
		if op.Operator.Fresh {
			plan.Fresh = append(plan.Fresh, op.Operator.Name)
		}
	}
	pos, err := t.env.Log.Append(EntryUpgrade, upgradeEntry{t.spec.Generation, plan}.encode())
	if err != nil {
		return false, ignoreFull(err)
	}
	t.planLogged, t.replayEnd = true, max(t.replayEnd, pos)
	return true, nil
}

// upgrade takes an upgrade of the log.
func (t *Task) upgrade(pos abs.Position, e upgradeEntry) error {
	t.pos = pos
	own := e.generation == t.spec.Generation
	switch {
	case !t.takes(e.generation):
		return nil
	case t.upgraded.PlanDue && own && !t.upgraded.Older: // the versions are those of the plan already
		t.upgraded.PlanDue = false
		t.setUpgraded(t.upgraded)
		return nil
	case !t.upgraded.Older && e.Number <= t.upgraded.Number:
		return nil
	}
	t.stir()
	next := Upgraded{Number: e.Number, Before: t.upgraded.Since}
	if t.upgraded.Older && !own {
		next.Number, next.PlanDue, next.Older = 0, true, true
	}
	if g, is := t.giveUps[pos][upgradeIndex]; is {
		t.unsure.add(pos, g.at)
		next.Refused, next.Ops = g.reason, t.upgraded.Ops
		t.setUpgraded(next)
		return nil
	}
	var fresh []string
	if t.upgraded.Older && e.Number == 0 {
		fresh = t.chain.beginPlan(e.Upgrade)
	}
	if err := t.chain.upgrade(t.env.Operators, e.Ops, fresh); err != nil {
		return &recordError{index: upgradeIndex, err: err}
	}
	t.fullNext = true // pages of the old instance are in older parts
	next.Ops = t.chain.versions()
	t.setUpgraded(next)
	return nil
}

// takes says whether upgrades of a generation are the task's: one that goes back to a part of an older generation, and
// follows its log from there, takes those of that too, where it took them before.
func (t *Task) takes(gen abs.Generation) bool {
	return gen == t.spec.Generation || (t.env.RolledBack || t.upgraded.Older) && gen < t.spec.Generation
}

// beginPlan prepares the chain for the versions of a generation's plan, and names the operators that are to lose their
// variables. Which versions are alike is, as where a generation begins with them, a matter of module and configuration.
func (c *chain) beginPlan(plan Upgrade) (fresh []string) {
	for i := range c.spec.Ops {
		now := &c.spec.Ops[i].Operator
		if v, named := versionOf(plan.Ops, now.Name); named && now.Digest == v.Digest && maps.Equal(now.Config, v.Config) {
			now.Anew = v.Anew
		}
	}
	return plan.Fresh
}

func (t *Task) setUpgraded(u Upgraded) {
	t.upgraded = u
	t.stats.setUpgraded(u)
}

// tally counts records that were taken, and those of them that were given up.
func (t *Task) tally(records, failed int) {
	t.upgraded.Since.Records += uint64(records)
	t.upgraded.Since.Failed += uint64(failed)
}

// loadVersions sets the versions that a restored task's operators are made in. With an older generation's
// state an operator that has changed since begins without the variables of the old one, unless there is something to be
// made again with the versions of then.
func (t *Task) loadVersions(u Upgraded, older bool) {
	t.chain.spec.Ops = slices.Clone(t.spec.Ops)
	for i, op := range t.chain.spec.Ops {
		v, known := versionOf(u.Ops, op.Operator.Name)
		switch {
		case !known:
		case !older || u.Older:
			t.chain.spec.Ops[i] = op.with(v)
		case v.Digest != op.Operator.Digest || !maps.Equal(v.Config, op.Operator.Config): // Anew is of a generation
			t.chain.spec.Ops[i].Operator.Fresh = true
		}
	}
	if u.Older {
		for i := range t.chain.spec.Ops {
			t.chain.spec.Ops[i].Operator.Fresh = false
		}
	}
	if older {
		u = Upgraded{PlanDue: u.PlanDue, Older: u.Older}
	}
	u.Ops = t.chain.versions()
	t.upgradeLogged, t.planLogged = 0, false
	t.setUpgraded(u)
}

func versionOf(of []OpVersion, name string) (OpVersion, bool) {
	i := slices.IndexFunc(of, func(v OpVersion) bool { return v.Name == name })
	if i < 0 {
		return OpVersion{}, false
	}
	return of[i], true
}

// VersionsOf reads from a saved part which versions of the operators it is of; nil if it does not say.
func VersionsOf(p PartInfo) ([]OpVersion, error) {
	m, err := decodeMeta(p)
	return m.Upgraded.Ops, err
}

// versions are those that run, in the order of the chain.
func (c *chain) versions() []OpVersion {
	var out []OpVersion
	for _, op := range c.spec.Ops {
		out = append(out, op.Version())
	}
	return out
}

// upgrade makes new instances of the operators whose versions change. After an error the chain is to be
// restored. Those that are named fresh lose their variables whatever changes.
func (c *chain) upgrade(ops Operators, to []OpVersion, fresh []string) error {
	for i, op := range c.spec.Ops {
		v, named := versionOf(to, op.Operator.Name)
		anew := slices.Contains(fresh, op.Operator.Name)
		if !named || v.equal(op.Version()) && !anew {
			continue
		}
		changes, err := c.ops[i].Freeze(true)
		if err != nil {
			return fmt.Errorf("operator %s: snapshot: %w", op.Operator.Name, err)
		}
		next := op.with(v)
		spec := next.Operator
		spec.Fresh = anew || !v.sameCode(op.Version())
		made, err := ops.New(context.Background(), spec, func(visit func(Change) error) error {
			for _, ch := range changes {
				if err := visit(ch); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("operator %s: %w", op.Operator.Name, err)
		}
		old := c.ops[i]
		c.ops[i], c.spec.Ops[i] = made, next
		if err := old.Close(); err != nil {
			return fmt.Errorf("operator %s: close the old instance: %w", op.Operator.Name, err)
		}
	}
	return nil
}

// refuse gives an upgrade up.
func (t *Task) refuse(guest error) error {
	reason := guest.Error()
	var rec *recordError
	if errors.As(guest, &rec) {
		reason = rec.err.Error()
	}
	pos, err := t.env.Log.Append(EntryGiveUp, giveUpEntry{t.pos, upgradeIndex, reason}.encode())
	if err != nil {
		return err
	}
	t.giveUp(pos, giveUpEntry{t.pos, upgradeIndex, reason})
	return nil
}
