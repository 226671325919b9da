package job

import (
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a job file, both counted from 1.
type Pos struct{ Line, Column int }

// Error is one thing wrong with a job file.
type Error struct {
	File string
	Pos  Pos
	Text string // what is wrong
	Hint string // what is allowed or what to do
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Pos.Line, e.Pos.Column, e.Text)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Errors is everything wrong with a job file, in order of position. It is never empty.
type Errors []*Error

// maxLines bounds what Error writes: nobody reads more, and a hostile file has thousands.
const maxLines = 50

func (e Errors) Error() string {
	var lines []string
	for i, one := range e {
		if i == maxLines {
			lines = append(lines, fmt.Sprintf("%s: and %d more", one.File, len(e)-i))
			break
		}
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the single errors.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}

// File is a job file whose parts and references have been checked. Sections keep the file's order.
type File struct {
	Path       string // as given to Parse, for messages
	Name       string
	Checkpoint Checkpoint
	Recovery   Recovery
	Sources    []Source
	Operators  []Operator
	Sinks      []Sink
}

// HasEventTime says whether some source makes watermarks: then all do.
func (f *File) HasEventTime() bool {
	return slices.ContainsFunc(f.Sources, func(s Source) bool { return s.EventTime != nil })
}

// HasEventTime says whether the sources of the plan make watermarks.
func (p *Physical) HasEventTime() bool {
	return slices.ContainsFunc(p.Tasks, func(t Task) bool { return t.Source != nil && t.Source.EventTime != nil })
}

// Mode says what a snapshot guarantees about operator state.
type Mode string

// Modes of checkpoints.
const (
	ExactlyOnce Mode = "exactly_once" // barriers are aligned
	AtLeastOnce Mode = "at_least_once"
	// Synchronous halts all sources, drains, takes the snapshots with fsync, and resumes: what barriers
	// are compared with. For evaluation.
	Synchronous Mode = "synchronous"
	// None takes a snapshot at the start and when asked. Logs grow until they are full. For evaluation.
	None Mode = "none"
)

// Checkpoint says when snapshots are taken.
type Checkpoint struct {
	IntervalMS int64 `json:"interval_ms"`  // between starts, milliseconds
	TimeoutMS  int64 `json:"timeout_ms"`   // after which a running one is aborted, milliseconds
	MinPauseMS int64 `json:"min_pause_ms"` // between the end of one and the start of the next, milliseconds
	Mode       Mode  `json:"mode"`
	Replicate  bool  `json:"replicate"` // to the object store; a checkpoint then counts once replicated
	// DetachAfterMS is how long a gateway may be away before checkpoints go on without it; 0: for ever.
	DetachAfterMS int64 `json:"detach_after_ms,omitempty"`
	// TolerateFailures is how many checkpoints in a row may be aborted before the job counts as failing.
	TolerateFailures int `json:"tolerate_failures,omitempty"`
}

// Labels select agents: an agent matches if it carries all of them.
type Labels map[string]string

// Source is one entry of the section sources. One of MQTT, File and Generator is set.
type Source struct {
	Name      string
	Pos       Pos
	MQTT      *MQTTSource
	File      *FileSource
	Generator *GeneratorSource
	Key       KeyRule
	ID        string // JSON path of the field by which repeats are dropped, per key; empty: none
	// IDWindow is how many of a key's last messages are remembered by id; 0 without an ID.
	IDWindow int
	Time     TimeRule
	// EventTime is set if the file says something of the source's time.
	EventTime *EventTime
	On        Labels
}

// MQTTSource subscribes to topics of a broker.
type MQTTSource struct {
	Broker       string   `json:"broker,omitempty"` // empty: the agent's own listener, else its hub's
	ClientID     string   `json:"client_id,omitempty"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"password_file,omitempty"`
	TLS          *TLS     `json:"tls,omitempty"`
	Topics       []string `json:"topics"`
	QoS          byte     `json:"qos"`
	KeepAliveMS  int64    `json:"keep_alive_ms,omitempty"` // silence that means a lost connection, milliseconds; 0: 30 s
	Retained     Retained `json:"retained,omitempty"`
	WhenFull     WhenFull `json:"when_full,omitempty"`
	// Sequence is the JSON path of a number that grows by one from message to message of a key; what is
	// missing is counted. Empty: none.
	Sequence string `json:"sequence,omitempty"`
}

// Retained says what becomes of retained messages, which a broker sends with every subscription.
type Retained string

// Rules for retained messages. In a plan the first one is left out.
const (
	RetainedTake  Retained = "take"
	RetainedSkip  Retained = "skip"  // counted
	RetainedFirst Retained = "first" // taken when the source starts for the first time, then skipped
)

// WhenFull says what a source does while the agent's log has no room.
type WhenFull string

// What a source does while the log is full. In a plan the first one is left out.
const (
	Wait       WhenFull = "wait"        // it acknowledges nothing, and the broker keeps the rest
	ShedOldest WhenFull = "shed_oldest" // the oldest messages are given up, counted, and acknowledged
)

// FileSource reads the lines of a file on the agent's machine. The path stands where a topic does.
type FileSource struct {
	Path   string `json:"path"`             // relative: within the agent's data directory
	Follow bool   `json:"follow,omitempty"` // wait for more; else the input ends with the file
}

// GeneratorSource makes records of its own: {"n":0,"v":57.31} and so on, each a function of its number.
type GeneratorSource struct {
	Records int  `json:"records,omitempty"` // in all; 0: no end
	Rate    int  `json:"rate,omitempty"`    // records a second; 0: as many as the task takes
	Keys    int  `json:"keys"`              // k0, k1 and so on, which stand where a topic does
	Size    int  `json:"size,omitempty"`    // bytes of a value, by padding
	Seed    int  `json:"seed,omitempty"`
	Stamp   bool `json:"stamp,omitempty"` // the time at which the record was made, as t, microseconds since 1970
}

// TLS names the files of a secured connection, on the agent's machine.
type TLS struct {
	CAFile   string `json:"ca_file,omitempty"` // empty: the system's authorities
	CertFile string `json:"cert_file,omitempty"`
	KeyFile  string `json:"key_file,omitempty"`
}

// TimeUnit is how an event time is written in a record.
type TimeUnit string

// Units of event times: numbers since 1970, or a string.
const (
	Seconds      TimeUnit = "s"
	Milliseconds TimeUnit = "ms"
	Microseconds TimeUnit = "us"
	Nanoseconds  TimeUnit = "ns"
	RFC3339      TimeUnit = "rfc3339"
)

// TimeRule says where a record's event time comes from. The zero rule is the time of arrival.
type TimeRule struct {
	JSON string   `json:"json,omitempty"` // path of the field
	Unit TimeUnit `json:"unit,omitempty"`
}

// OnError says what becomes of a record on which an operator fails.
type OnError string

// Policies for failing records.
const (
	DeadLetter OnError = "dead_letter" // kept by the agent, with the reason
	Skip       OnError = "skip"        // dropped and counted
	Fail       OnError = "fail"        // the task stops
)

// Operator is one entry of the section operators.
type Operator struct {
	Name        string
	Pos         Pos
	WASM        string // name@version, or a path relative to the job file, starting with ./, or NativePrefix and a name
	WASMPos     Pos
	From        []Ref
	KeyBy       KeyRule // zero: records keep key and task
	KeyByPos    Pos
	Parallelism int // 0: not given
	On          Labels
	OnPos       Pos
	Config      map[string]string
	ConfigPos   map[string]Pos
	OnError     OnError
	Limits      Limits
}

// Limits bound what an operator may use; zero fields stand for the agents' defaults.
type Limits struct {
	Memory  int64 `json:"memory,omitempty"`   // linear memory, bytes
	TimeMS  int64 `json:"time_ms,omitempty"`  // per batch; counted in instructions, not measured
	Output  int64 `json:"output,omitempty"`   // per batch, bytes
	State   int64 `json:"state,omitempty"`    // keyed state, bytes
	LogRate int64 `json:"log_rate,omitempty"` // lines per second
	Timers  int64 `json:"timers,omitempty"`   // set at one time
}

// NativePrefix marks an operator that is part of the host in the place of a module and of its digest.
const NativePrefix = "native:"

// NativeOperators are the operators that are part of the host.
var NativeOperators = []string{"count", "max", "mean", "min", "sum"}

// IsNative tells whether the operator is part of the host.
func (o Operator) IsNative() bool { return strings.HasPrefix(o.WASM, NativePrefix) }

// IsPath tells whether WASM names a file beside the job file, not a registered operator.
func (o Operator) IsPath() bool { return isModulePath(o.WASM) }

// Ref names an output of a source or operator.
type Ref struct {
	Node   string
	Output string // MainOutput unless a side output is named
	Pos    Pos
}

// MainOutput is the name of a source's only output and of an operator's first one.
const MainOutput = "out"

func (r Ref) String() string {
	if r.Output == MainOutput {
		return r.Node
	}
	return r.Node + "." + r.Output
}

// Commit says when a sink hands over.
type Commit string

// When sinks hand over.
const (
	Immediate    Commit = "immediate"  // as soon as the output rule allows
	AtCheckpoint Commit = "checkpoint" // when a checkpoint that contains the record counts
)

// Sink is one entry of the section sinks. One of MQTT, Log and File is set.
type Sink struct {
	Name   string
	Pos    Pos
	MQTT   *MQTTSink
	Log    *LogSink
	File   *FileSink
	From   []Ref
	Commit Commit
}

// MQTTSink publishes records. Topic and Payload are templates.
type MQTTSink struct {
	Broker       string `json:"broker,omitempty"` // empty: the agent's own listener, else its hub's
	ClientID     string `json:"client_id,omitempty"`
	User         string `json:"user,omitempty"`
	PasswordFile string `json:"password_file,omitempty"`
	TLS          *TLS   `json:"tls,omitempty"`
	Topic        string `json:"topic"`
	Payload      string `json:"payload"`
	QoS          byte   `json:"qos"`
	Retain       bool   `json:"retain,omitempty"`
	InFlight     int    `json:"in_flight,omitempty"` // messages published and not confirmed; 0: the sink's default
}

// LogSink writes records to the agent's log.
type LogSink struct{}

// FileSink appends lines to a file on the agent's machine. Line is a template.
type FileSink struct {
	Path string `json:"path"` // relative: within the agent's data directory
	Line string `json:"line"`
}
