package api

import "time"

// JobSource is a job file to plan or apply.
type JobSource struct {
	// File is its name, for errors.
	File string `json:"file"`
	// YAML is the text of the job file.
	YAML string `json:"yaml"`
	// Modules has, for every operator named as a file in YAML, the path as written there and the
	// module's digest ("sha256:…"); apply requires that the module was pushed.
	Modules map[string]string `json:"modules,omitempty"`
	// Fresh names operators that start anew, with their keyed state but without that of their variables:
	// they may change their module and configuration.
	Fresh []string `json:"fresh,omitempty"`
	// Replace names agents whose devices, or logs, were lost: their tasks go on from their newest replicated
	// snapshots, on the device that has the name now, and what only the old one knew is lost. If one of the
	// tasks takes records from others, Restart is implied.
	Replace []string `json:"replace,omitempty"`
	// Trial is for a change of operators alone; nil: the defaults.
	Trial *Trial `json:"trial,omitempty"`
	// Shadow: the operators that change run in the shadow of those that run; nothing else happens. Of Trial only the
	// choice of agents goes with it.
	Shadow bool `json:"shadow,omitempty"`
	// Restart restarts all streamed tasks of the running job from the newest checkpoint that counts, without
	// a drain. Sources send again from there and lose nothing.
	Restart bool `json:"restart,omitempty"`
}

// Plan is what applying a job file would run, and where.
type Plan struct {
	Job        string `json:"job"`
	Generation uint32 `json:"generation"`
	// Tasks have their place only.
	Tasks    []PlannedTask `json:"tasks"`
	Channels []string      `json:"channels"`
	Warnings []string      `json:"warnings"`
	// Promise is what the job as a whole guarantees, with the reason.
	Promise string `json:"promise"`
	// Text is the plan for people.
	Text string `json:"text"`
	// Does is what applying the file with the same choices does, for people: what follows "apply". Empty: it is refused.
	Does string `json:"does,omitempty"`
	// Refused is why applying it is refused; null: it is not.
	Refused *Refusal `json:"refused,omitempty"`
}

// Refusal is the error that applying a job file gives.
type Refusal struct {
	Status  int    `json:"status"` // HTTP
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
}

// PlannedTask is one task of a plan: its place, and its chain from source to sinks.
type PlannedTask struct {
	ID    string   `json:"id"`
	Agent string   `json:"agent"`
	Chain []string `json:"chain"`
}

// Applied is a job that was created or updated. Checkpoint 0 is committed.
type Applied struct {
	Job        string `json:"job"`
	Generation uint32 `json:"generation"`
	Created    bool   `json:"created"`
	Unchanged  bool   `json:"unchanged"`
	// Upgrade is the number of the upgrade, if operators were changed while the job runs; 0: it was drained, or begins.
	Upgrade uint64 `json:"upgrade,omitempty"`
	// Shadow names the operators that now run in the shadow of those that run: nothing else has changed.
	Shadow []string `json:"shadow,omitempty"`
	// Drained says why the job had to be drained.
	Drained  string   `json:"drained,omitempty"`
	Warnings []string `json:"warnings"`
}

// States of a job.
const (
	JobStarting   = "starting" // applied; checkpoint 0 not committed yet
	JobRunning    = "running"
	JobStopping   = "stopping"   // draining
	JobRestarting = "restarting" // its streamed tasks are about to go on from an earlier checkpoint
	JobStopped    = "stopped"    // drained, final checkpoint kept
	JobFinished   = "finished"   // its input has ended; final checkpoint kept
	JobFailed     = "failed"
)

// JobSummary is one line of the listing of jobs.
type JobSummary struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Generation uint32 `json:"generation"`
	TaskCount  int    `json:"task_count"`
	// RunningTasks are those in state "running".
	RunningTasks int       `json:"running_tasks"`
	Restarts     uint64    `json:"restarts"`
	RecordsIn    uint64    `json:"records_in"`
	RecordsOut   uint64    `json:"records_out"`
	Applied      time.Time `json:"applied"`
	// LastCompleteEpoch and LastReplicatedEpoch are the job's newest checkpoints.
	LastCompleteEpoch   uint64 `json:"last_complete_epoch"`
	LastReplicatedEpoch uint64 `json:"last_replicated_epoch"`
	DeadLetters         uint64 `json:"dead_letters"`
	// Reason tells why, when State is "failed".
	Reason string `json:"reason,omitempty"`
}

// Job is one job with its tasks and checkpoints.
type Job struct {
	JobSummary
	Promise  string   `json:"promise"`
	Warnings []string `json:"warnings"`
	// AlignMS, FreezeMS, PersistMS and ReplicateMS are of the last complete checkpoint, the longest of its
	// tasks each.
	AlignMS     float64 `json:"align_ms"`
	FreezeMS    float64 `json:"freeze_ms"`
	PersistMS   float64 `json:"persist_ms"`
	ReplicateMS float64 `json:"replicate_ms"`
	// Running is the checkpoint under way; null between checkpoints.
	Running *Running `json:"running_checkpoint"`
	// Without are the agents that are away, or have not yet sent what waited meanwhile: checkpoints go on without them.
	Without []string `json:"without,omitempty"`
	// Waits says why no checkpoint is under way, for people; empty while one is, or if that is not known.
	Waits string `json:"checkpoint_waits"`
	// Upgrade is the newest of its operators; null: none since the generation began.
	Upgrade *Upgrade `json:"upgrade"`
	// Shadow is what runs in the shadow of its operators; null: nothing does.
	Shadow *Shadow `json:"shadow"`
	// LostLetters are dead letters that went with devices, oldest first.
	LostLetters []LostLetters `json:"lost_dead_letters,omitempty"`
	Tasks       []Task        `json:"tasks"`
	YAML        string        `json:"yaml"`
}

// Running is the checkpoint that is under way.
type Running struct {
	Epoch  uint64  `json:"epoch"`
	Phase  string  `json:"phase"` // "align", "persist" or "replicate"
	AgeMS  float64 `json:"age_ms"`
	Acked  int     `json:"acked"`
	Needed int     `json:"needed"`
	// HeldUpBy names the tasks whose parts are missing.
	HeldUpBy []string `json:"held_up_by"`
}

// States of a task.
const (
	TaskRestoring = "restoring" // reading its snapshot
	TaskReplaying = "replaying" // following its log
	TaskRunning   = "running"
	TaskStalled   = "stalled"  // waits for credit, space or a full sink
	TaskBackoff   = "back-off" // failed, waits for its restart
	TaskStopped   = "stopped"
	TaskUnknown   = "unknown" // its agent does not report
)

// Task is one task of a job. Counts are those of the agent that runs it: 0 in state "stopped" or "unknown".
type Task struct {
	ID         string `json:"id"`
	Job        string `json:"job"`
	Agent      string `json:"agent"`
	State      string `json:"state"`
	Restarts   uint64 `json:"restarts"`
	Generation uint32 `json:"generation"`
	// Epoch is the highest one that the task has finished.
	Epoch      uint64 `json:"epoch"`
	RecordsIn  uint64 `json:"records_in"`
	RecordsOut uint64 `json:"records_out"`
	// Logged is how many records the task's source has logged since the agent's process started; replay adds nothing.
	Logged uint64 `json:"records_logged,omitempty"`
	// Lag is how many records are known to wait for this task.
	Lag uint64 `json:"lag"`
	// Spooled is how many items for tasks on other agents wait on disk.
	Spooled     uint64       `json:"spooled"`
	DeadLetters uint64       `json:"dead_letters"`
	Recovery    *Recovery    `json:"recovery"` // the last one; null if it never recovered
	Upgrade     *TaskUpgrade `json:"upgrade,omitempty"`
	Shadows     []TaskShadow `json:"shadows,omitempty"` // in the shadow of its operators
	// Reason is the last error of a task that is not running.
	Reason string `json:"reason,omitempty"`
	// Lost: the task has stopped for good since its log or its snapshots are gone from its agent.
	Lost bool `json:"lost,omitempty"`
	// Source is what came of the messages of the task's MQTT source; null for other tasks.
	Source *Source `json:"source,omitempty"`
	Sinks  []Sink  `json:"sinks,omitempty"`
	// Losses are what went with devices that the task's source has had before this one, oldest first.
	Losses []Loss `json:"losses,omitempty"`
	// EventTime is how far event time has come in the task; null if there is none.
	EventTime *EventTime `json:"event_time,omitempty"`
}

// EventTime is how far event time has come in a task.
type EventTime struct {
	// Watermark: records with a time before it are late; null before the first one and at the end of the input.
	Watermark *time.Time `json:"watermark"`
	// Idle: nothing comes, and others do not wait for it.
	Idle bool `json:"idle"`
	// Ended: the input has ended.
	Ended bool `json:"ended"`
	// Ahead is how many records of the source were so far ahead of the agent's clock that they did not count.
	Ahead uint64 `json:"event_time_ahead"`
}

// Source is a source's account of messages, since the agent's process started.
type Source struct {
	Name string `json:"name"`
	// State is "connecting", "subscribing", "receiving", "log full" or "stopped".
	State string `json:"state"`
	// Reason tells why nothing is logged: of the log, when State is "log full", else of the broker. While State is
	// "receiving", what the broker grants less than the job asks for.
	Reason   string `json:"reason,omitempty"`
	Received uint64 `json:"received"` // repeats included
	Logged   uint64 `json:"logged"`   // durable in the input log
	// Deduplicated were repeats: by packet identifier, or by the id that the job names (replay counts again).
	Deduplicated uint64 `json:"deduplicated"`
	// Shed were given up for want of room: of QoS 0, or of any if the job says shed_oldest.
	Shed uint64 `json:"shed"`
	// Refused became dead letters.
	Refused         uint64 `json:"refused"`
	RetainedSkipped uint64 `json:"retained_skipped"`
	SessionsLost    uint64 `json:"sessions_lost"` // how often the broker no longer had the session
	// Gaps are places where numbers of the sequence that the job names are missing, Missing how many are.
	// Untracked messages are of keys beyond those that are followed.
	Gaps      uint64 `json:"gaps"`
	Missing   uint64 `json:"missing"`
	Untracked uint64 `json:"untracked"`
}

// Loss is what only a lost device knew of a source: the entries of its input log after AfterPosition. Where they ended
// only that log could tell; HeardPosition says how far they went at least.
type Loss struct {
	Source     string    `json:"source"`
	Generation uint32    `json:"generation"` // that began without them
	At         time.Time `json:"at"`
	// AfterPosition is the last position of the lost log whose effect is in the snapshot that the new device began with,
	// which is of Epoch; 0: it began with nothing.
	AfterPosition uint64 `json:"after_position"`
	Epoch         uint64 `json:"epoch"`
	// HeardPosition is the last one that other agents had heard of, at Heard; 0: of none, or its log was another one.
	HeardPosition uint64    `json:"heard_position"`
	Heard         time.Time `json:"heard,omitzero"`
	// Received are items that the lost entries led to and receivers have had: they count there, and are not in the
	// state and the sinks of the source's own task.
	Received []LossRange `json:"received"`
}

// LostLetters is what is known of a job's dead letters that were on a device that is gone: replaced, or taken out of the fleet.
type LostLetters struct {
	Agent      string    `json:"agent"`      // empty: several, the oldest
	Generation uint32    `json:"generation"` // that was the first without them
	At         time.Time `json:"at"`
	// Letters is how many there were that had not been replayed, by what was heard until Heard; later ones are not
	// known. Heard is zero if nothing had been heard: then it is not known how many there were.
	Letters uint64    `json:"letters"`
	Heard   time.Time `json:"heard,omitzero"`
}

// LossRange is items of a channel by their numbers.
type LossRange struct {
	Channel string `json:"channel"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
}

// Sink is one sink of a task. Counts of items are since the task was started on its agent.
type Sink struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`   // "mqtt", "log" or "file"
	Commit string `json:"commit"` // "immediate" or "checkpoint"
	// Handed is how many items were handed over, dead letters included.
	Handed uint64 `json:"handed"`
	// Held is how many items the task keeps since they are not handed over, InFlight included.
	Held uint64 `json:"held"`
	// InFlight is how many items were published on the connection there is and are not confirmed.
	InFlight uint64 `json:"in_flight"`
	// Repeated is how many items were published again after a lost connection, since the task was last started.
	Repeated uint64 `json:"repeated"`
	// Refused is how many items could not be published and became dead letters.
	Refused uint64 `json:"refused"`
	// Uncertain is how many items were under way when the broker had lost the session: at most so many may
	// have arrived twice, or not.
	Uncertain uint64 `json:"uncertain"`
	// Early is how many items of a sink that commits with checkpoints were handed over before theirs.
	Early uint64 `json:"early"`
}

// Recovery is how a task came back.
type Recovery struct {
	Level string `json:"level"` // "L0" to "L4": who else had to notice; "rewind": to serve a receiver, "forward": back from there
	// Reason tells what made it necessary.
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	// TookMS is from the start of the task to the end of its replay, so far if Done is false.
	TookMS float64 `json:"took_ms"`
	Done   bool    `json:"done"`
	// Epoch is the one of the restored part.
	Epoch           uint64 `json:"epoch"`
	ReplayedRecords uint64 `json:"replayed_records"`
	// HeldBack counts items that were regenerated and not sent, since the receiver has them.
	HeldBack uint64 `json:"held_back"`
	// Compared and Differing count items that replay regenerated and whose checksum the receiver
	// or the sink knew; Differing must be 0.
	Compared  uint64 `json:"compared"`
	Differing uint64 `json:"differing"`
	// Repeated counts what the task's immediate sinks had handed over beyond the restored part when its job
	// went back to it (L4): others come under their numbers. Unknown: the log that could tell is lost.
	Repeated uint64 `json:"repeated"`
	Unknown  bool   `json:"repeated_unknown"`
}

// ForReceivers says that the task had not failed: it went back to make again what a receiver lacked, or came forward
// from there.
func (r Recovery) ForReceivers() bool { return r.Level == "rewind" || r.Level == "forward" }

// DeadLetters are those of a job, as far as its agents have told of them.
type DeadLetters struct {
	Letters []DeadLetter `json:"letters"` // oldest first
	// Kept is how many there are with the agents that have answered, in Letters or not.
	Kept       uint64       `json:"kept"`
	Unanswered []Unanswered `json:"unanswered"`
}

// Unanswered is an agent that has or had tasks of a job and did not answer: its dead letters are left out.
type Unanswered struct {
	Agent string `json:"agent"`
	// Letters is how many of the job it had that were not replayed, and Heard when it said so last; missing: never, as
	// far as is known.
	Letters uint64    `json:"letters"`
	Heard   time.Time `json:"heard,omitzero"`
}

// DeadLetter is a record that was given up.
type DeadLetter struct {
	// ID names the letter within the job: its task and position.
	ID string `json:"id"`
	// Operator is the one that refused the record; empty: none did, so it cannot be replayed.
	Operator string `json:"operator,omitempty"`
	// Replayed is when it was processed again.
	Replayed time.Time `json:"replayed,omitzero"`
	Job      string    `json:"job"`
	Task     string    `json:"task"`
	Agent    string    `json:"agent"`
	At       time.Time `json:"at"`     // zero if the letter is damaged
	Reason   string    `json:"reason"` // of an operator's failure: with the digest of its module
	// Position names the record within its task: "<log entry>-<record>" for what an operator gave up.
	Position string `json:"position"`
	Key      Bytes  `json:"key"`
	TimeMS   int64  `json:"time_ms"` // event time, milliseconds since 1970
	Topic    string `json:"topic,omitempty"`
	// Bytes is the size of the value that is kept. Value is all of it, or its beginning where the
	// answer would become too large.
	Bytes int   `json:"bytes"`
	Value Bytes `json:"value"`
}
