package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/job"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Control plane, in KV (all keys are made by wnats.Key):
//
//	jobs         JOB                    jobRecord
//	checkpoints  "e", JOB, EPOCH        abs.EpochRecord, the one key of an epoch
//	             "a", JOB, EPOCH, TASK  ackList, of this task and others of its agent
//	             "r", JOB, EPOCH, TASK  abs.ReplicaAck
//	operators    NAME, VERSION          operatorRecord
//	agents       AGENT                  agentRecord
//	meta         "lease"                the coordinator's
//
// Object stores: modules by digest; snapshots by JOB/TASK/GENERATION-VERSION.

// jobState is what is wanted of a job, and, for stopped, what was reached.
type jobState string

const (
	jobRunning  jobState = "running"
	jobStopping jobState = "stopping" // the final checkpoint is wanted
	// jobRestarting: the generation is to end without a drain; the next goes on from the newest checkpoint
	// that counts.
	jobRestarting jobState = "restarting"
	jobStopped    jobState = "stopped" // and counts
	// jobFinished: the input of every task has ended and a checkpoint that says so counts.
	jobFinished jobState = "finished"
	// jobDeleted stays as a tombstone until every agent has let go, so that no agent that was away
	// brings the job back from its copy.
	jobDeleted jobState = "deleted"
)

// jobRecord is a job as KV has it and as every agent keeps a copy of it.
type jobRecord struct {
	Name       string            `json:"name"`
	Generation abs.Generation    `json:"generation"`
	Revision   uint64            `json:"revision"` // grows with every change within a generation
	State      jobState          `json:"state"`
	File       string            `json:"file"`
	YAML       string            `json:"yaml"`
	Modules    map[string]string `json:"modules"` // as named in the file → digest
	Plan       *job.Physical     `json:"plan"`
	AppliedMS  int64             `json:"applied_ms"`
	// Since is the first generation of this life of the job: what an agent has of older ones belongs to
	// a job of that name that was deleted.
	Since abs.Generation `json:"since"`
	// Unbegun, of a job's next record: it takes the place of a first generation that has not begun, or is dropped.
	Unbegun bool `json:"unbegun,omitempty"`
	// Earlier are the modules of older generations, by digest, each with the newest that had it: a part of that may be
	// what a task goes on from, and the old module is asked for its variables then.
	Earlier map[string]abs.Generation `json:"earlier,omitempty"`
	// Next takes this record's place when the job has stopped: an update that does not depend on who
	// asked for it.
	Next *jobRecord `json:"next,omitempty"`
	// Base is the epoch whose parts the generation starts from; 0: none, unless RolledBack.
	Base abs.Epoch `json:"base,omitempty"`
	// Upgrade is the newest of the generation; nil: none.
	Upgrade *upgradeRecord `json:"upgrade,omitempty"`
	// Shadow is what runs in the shadow of the operators; nil: nothing.
	Shadow *shadowRecord `json:"shadow,omitempty"`
	// RolledBack: the generation was begun without a drain (L4). What streamed tasks did after Base is void.
	RolledBack bool `json:"rolled_back,omitempty"`
	// Because says why the generation began, if it was a way back from something; ByPolicy, that nobody asked
	// for it.
	Because  string `json:"because,omitempty"`
	ByPolicy bool   `json:"by_policy,omitempty"`
	// Dirs are the directories of the agents that have had tasks in this life of the job and are still in the fleet, and
	// LostLetters what went with those that are no more.
	Dirs        map[string]string `json:"dirs,omitempty"`
	LostLetters []lostLetters     `json:"lost_letters,omitempty"`
	// Final is the epoch that ended a stopped job.
	Final abs.Epoch `json:"final,omitempty"`
}

// newer says whether r replaces o.
func (r jobRecord) newer(o jobRecord) bool {
	if r.Generation != o.Generation {
		return r.Generation > o.Generation
	}
	return r.Revision > o.Revision
}

// live says whether the job's tasks are to run.
func (r jobRecord) live() bool {
	return r.State == jobRunning || r.State == jobStopping || r.State == jobRestarting
}

// givenUp are the agents of a job that drains whose devices the next generation replaces: what the drain would wait for
// is lost with their logs.
func (r jobRecord) givenUp() (agents []string) {
	if r.State != jobStopping || r.Next == nil {
		return nil
	}
	for _, t := range r.Next.Plan.Tasks {
		if t.Replaced && !slices.Contains(agents, t.Agent) {
			agents = append(agents, t.Agent)
		}
	}
	return agents
}

// hasBase says whether the generation starts from parts of an older one.
func (r jobRecord) hasBase() bool { return r.Base != 0 || r.RolledBack }

func (r jobRecord) absPlan() abs.Plan {
	p := abs.Plan{Generation: r.Generation}
	for _, t := range r.Plan.Tasks {
		p.Tasks = append(p.Tasks, abs.PlannedTask{ID: t.ID, Agent: t.Agent, Source: t.Source != nil})
	}
	for _, c := range r.Plan.Channels {
		p.Channels = append(p.Channels, abs.PlannedChannel{ID: c.ID, From: c.From, To: c.To, Back: c.Back})
	}
	return p
}

func (r jobRecord) config() abs.Config {
	c := r.Plan.Checkpoint
	cfg := abs.Config{
		IntervalMs: c.IntervalMS, MinPauseMs: c.MinPauseMS, TimeoutMs: c.TimeoutMS, DetachAfterMs: c.DetachAfterMS,
		ReplicaTimeoutMs: c.TimeoutMS, TolerateFailures: c.TolerateFailures, Mode: r.mode(), Replicate: c.Replicate,
		Restarted: r.RolledBack, Base: r.Base,
	}
	if c.Mode == job.None {
		cfg.IntervalMs = 0
	}
	return cfg
}

// mode is how the job's tasks align.
func (r jobRecord) mode() abs.Mode {
	if r.Plan.Checkpoint.Mode == job.AtLeastOnce {
		return abs.AtLeastOnce
	}
	return abs.ExactlyOnce
}

// operatorRecord is one immutable version of an operator.
type operatorRecord struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Digest      string   `json:"digest"`
	Bytes       int64    `json:"bytes"`
	PushedMS    int64    `json:"pushed_ms"`
	Imports     []string `json:"imports"`
	Globals     int      `json:"globals"`
	MemoryBytes int64    `json:"memory_bytes"`
	// Signatures are of internal/signing.
	Signatures []string `json:"signatures,omitempty"`
	// RemovedMS is when the version was removed; 0: it was not, or was pushed again. The record stays, so that the
	// version stands for the same bytes for ever.
	RemovedMS int64 `json:"removed_ms,omitempty"`
	// Changes counts removals and what took them back: of two records of a version the one with more is newer. What else
	// there is of a version never changes.
	Changes uint64 `json:"changes,omitempty"`
}

// agentRecord says who an agent is. It is written when an agent connects, not as a heartbeat.
type agentRecord struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance"` // of the data directory
	Labels   map[string]string `json:"labels,omitempty"`
	Version  string            `json:"version"`
	// Cluster is the identity of the control plane into which the agent has merged its copies.
	Cluster   string `json:"cluster"`
	Starts    uint64 `json:"starts"`
	StartedMS int64  `json:"started_ms"`
	HTTP      string `json:"http,omitempty"`
	NATS      string `json:"nats,omitempty"`
	MQTT      string `json:"mqtt,omitempty"`      // where other agents reach its MQTT listener
	MQTTLeaf  bool   `json:"mqtt_leaf,omitempty"` // it has a listener for its own device only
}

// Kinds of keys in the bucket of checkpoints.
const (
	kindEpoch   = "e"
	kindAck     = "a"
	kindReplica = "r"
)

func epochKey(job string, e abs.Epoch) string { return wnats.Key(kindEpoch, job, epochToken(e)) }

func ackKey(job string, e abs.Epoch, task abs.TaskID) string {
	return wnats.Key(kindAck, job, epochToken(e), string(task))
}

func replicaKey(job string, e abs.Epoch, task abs.TaskID) string {
	return wnats.Key(kindReplica, job, epochToken(e), string(task))
}

// epochToken sorts as its number does.
func epochToken(e abs.Epoch) string { return fmt.Sprintf("%020d", uint64(e)) }

func millis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
