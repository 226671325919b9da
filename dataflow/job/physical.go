package job

import (
	"fmt"

	"github.com/weir-stream/weir/abs"
)

// Agent is what a plan needs to know of an agent.
type Agent struct {
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels,omitempty"`
	MQTTListen bool              `json:"mqtt_listen,omitempty"` // runs an MQTT listener of its own
	MQTTLeaf   bool              `json:"mqtt_leaf,omitempty"`   // that is for its own device: no other agent uses it
	MQTTAddr   string            `json:"mqtt_addr,omitempty"`   // HOST:PORT of it, if known
}

// Physical is a job's physical plan: what runs where and who sends to whom. It is stored as JSON.
type Physical struct {
	Job        string         `json:"job"`
	Generation abs.Generation `json:"generation"`
	KeyGroups  int            `json:"key_groups"`
	Checkpoint Checkpoint     `json:"checkpoint"`
	Recovery   Recovery       `json:"recovery,omitzero"`
	Tasks      []Task         `json:"tasks"`
	Channels   []Channel      `json:"channels"` // a channel's Index is its place here
	Promises   []Promise      `json:"promises"`
	Warnings   []string       `json:"warnings,omitempty"`
}

// Task is a chain of operators run by one goroutine. It has either a source or streamed inputs. Its
// ID is that of the node at its head.
type Task struct {
	ID     abs.TaskID  `json:"id"`
	Agent  string      `json:"agent"`
	Source *SourceTask `json:"source,omitempty"`
	// Replaced: the generation begins without what the agent's log held beyond the task's part, because the
	// device was lost. If the task begins with a source its channels begin anew at their first number.
	Replaced bool `json:"replaced,omitempty"`
	// HeardPos is the last position in the lost log that other agents have heard of, at HeardMS, in milliseconds since
	// 1970. Zero: none. For display only.
	HeardPos abs.Position `json:"heard_pos,omitempty"`
	HeardMS  int64        `json:"heard_ms,omitempty"`
	// Ops are the operators; each is fed by one of a lower index, or by the source, or, the first one
	// of a streamed task, by Inputs. The place here is the prefix of the operator's keys in snapshots.
	Ops []Op `json:"ops,omitempty"`
	// Inputs are the channels of a streamed task, by ascending channel index.
	Inputs []Input    `json:"inputs,omitempty"`
	Sinks  []SinkTask `json:"sinks,omitempty"`
}

// SourceTask is the source at the head of a task, its templates expanded for the agent.
type SourceTask struct {
	Name      string           `json:"name"`
	MQTT      *MQTTSource      `json:"mqtt,omitempty"`
	File      *FileSource      `json:"file,omitempty"`
	Generator *GeneratorSource `json:"generator,omitempty"`
	Key       KeyRule          `json:"key"`
	ID        string           `json:"id,omitempty"`
	IDWindow  int              `json:"id_window,omitempty"`
	Time      TimeRule         `json:"time,omitzero"`
	// EventTime: it makes watermarks; nil in a job without event time.
	EventTime *EventTime `json:"event_time,omitempty"`
	Targets   []Target   `json:"targets,omitempty"`
}

// Op is one operator of a task.
type Op struct {
	Name    string            `json:"name"`
	Module  string            `json:"module"` // as in the job file
	Digest  string            `json:"digest"`
	Config  map[string]string `json:"config,omitempty"`
	OnError OnError           `json:"on_error"`
	Limits  Limits            `json:"limits,omitzero"`
	Inputs  []string          `json:"inputs"` // the references of `from`, by input index
	// Fresh: the generation begins with a new instance of it, which has of the old one's state what is keyed.
	Fresh bool `json:"fresh,omitempty"`
	// Outputs by output index. The first is MainOutput; names added later come last, since a guest
	// may remember an index.
	Outputs []OutputPort `json:"outputs"`
}

// Refresh marks operators as [Op.Fresh], and reports those that the plan does not have.
func (p *Physical) Refresh(operators []string) (unknown []string) {
	for _, name := range operators {
		found := false
		for i := range p.Tasks {
			for j := range p.Tasks[i].Ops {
				if op := &p.Tasks[i].Ops[j]; op.Name == name {
					op.Fresh, found = true, true
				}
			}
		}
		if !found {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// Replace marks the tasks of an agent that have lost what they had there as [Task.Replaced], and says whether
// one of them takes records from other tasks: what it did follows from the order in its log, which nothing can
// make again, so that all of the job's streamed tasks must go back to a checkpoint.
func (p *Physical) Replace(agent string, lost func(abs.TaskID) bool) (streamed bool, err error) {
	tasks := p.On(agent)
	if len(tasks) == 0 {
		return false, fmt.Errorf("agent %s runs nothing of job %s", agent, p.Job)
	}
	for _, t := range tasks {
		if lost(t.ID) {
			t.Replaced = true
			streamed = streamed || t.Source == nil
		}
	}
	return streamed, nil
}

// Anew says whether a channel begins again at its first number: its sender is a source that has lost how far
// it had come. (What a streamed task has sent is in the checkpoint that its receivers go on from, too.)
func (p *Physical) Anew(c Channel) bool {
	from := p.Task(c.From)
	return from.Replaced && from.Source != nil
}

// OutputPort is an output of an operator and where its records go. Without targets they are dropped.
type OutputPort struct {
	Name    string   `json:"name"`
	Targets []Target `json:"targets,omitempty"`
}

// TargetKind tells what takes records.
type TargetKind string

// Kinds of targets.
const (
	ToOp     TargetKind = "op"     // an operator of the same task
	ToSink   TargetKind = "sink"   // a sink of the same task
	ToStream TargetKind = "stream" // channels to other tasks
)

// Target is one receiver of an output's records.
type Target struct {
	Kind  TargetKind `json:"kind"`
	Index int        `json:"index"` // in Ops or Sinks; 0 for a stream
	Input int        `json:"input"` // index of the receiving operator's input
	// KeyBy is the rule by which the record gets a new key before it is passed on; zero: it has the
	// right one.
	KeyBy KeyRule `json:"key_by,omitzero"`
	// Channels are plan indexes by partition: a record goes to
	// Channels[Partition(KeyGroup(key), len(Channels))]. Marks go to all.
	Channels []int `json:"channels,omitempty"`
}

// Input is a channel of a streamed task and what takes its records.
type Input struct {
	Channel int `json:"channel"` // plan index
	Op      int `json:"op"`
	Input   int `json:"input"`
}

// Channel is one streamed channel. Its ID is "<from>.<output>><to>.<input>", where from is the sending
// operator's or source's own instance ("smooth@g1", "fleet/0").
type Channel struct {
	Index     int           `json:"index"`
	ID        abs.ChannelID `json:"id"`
	From      abs.TaskID    `json:"from"`
	To        abs.TaskID    `json:"to"`
	Partition int           `json:"partition"` // of the receivers, from 0
	Of        int           `json:"of"`        // number of partitions; 1: not divided
	// Back: a back edge, into the head of a loop.
	Back bool `json:"back,omitempty"`
	// Loop: both ends are in one loop, so that what is taken from the channel may come round to it.
	Loop bool `json:"loop,omitempty"`
}

// SinkTask is a sink in a task, fed by all outputs of the task that its `from` names; its templates
// are expanded for the agent.
type SinkTask struct {
	Name string `json:"name"`
	// Channel names the numbered sequence of records that the sink hands over: "<task>><sink>".
	Channel abs.ChannelID `json:"channel"`
	Commit  Commit        `json:"commit"`
	MQTT    *MQTTSink     `json:"mqtt,omitempty"`
	Log     *LogSink      `json:"log,omitempty"`
	File    *FileSink     `json:"file,omitempty"`
}

// Task returns the task of that id, nil if the plan has none.
func (p *Physical) Task(id abs.TaskID) *Task {
	for i := range p.Tasks {
		if p.Tasks[i].ID == id {
			return &p.Tasks[i]
		}
	}
	return nil
}

// On returns the tasks of an agent, in plan order.
func (p *Physical) On(agent string) []*Task {
	var tasks []*Task
	for i := range p.Tasks {
		if p.Tasks[i].Agent == agent {
			tasks = append(tasks, &p.Tasks[i])
		}
	}
	return tasks
}

// Agents returns the names of the agents that run tasks, sorted.
func (p *Physical) Agents() []string {
	seen := map[string]bool{}
	for _, t := range p.Tasks {
		seen[t.Agent] = true
	}
	return sortedKeys(seen)
}

// Outputs returns the channels on which a task sends, by ascending index.
func (p *Physical) Outputs(id abs.TaskID) []Channel {
	var out []Channel
	for _, c := range p.Channels {
		if c.From == id {
			out = append(out, c)
		}
	}
	return out
}

// markLoops finds the channels by which records can come back to where they were sent from.
func (p *Physical) markLoops() {
	to := map[abs.TaskID][]abs.TaskID{}
	for _, c := range p.Channels {
		to[c.From] = append(to[c.From], c.To)
	}
	reached := map[abs.TaskID]map[abs.TaskID]bool{} // from the receivers of channels, found when needed
	for i, c := range p.Channels {
		if reached[c.To] == nil {
			reached[c.To] = reach(to, c.To)
		}
		p.Channels[i].Loop = reached[c.To][c.From]
	}
}

// reach returns the task and those to which it leads.
func reach(to map[abs.TaskID][]abs.TaskID, from abs.TaskID) map[abs.TaskID]bool {
	seen := map[abs.TaskID]bool{from: true}
	for next := []abs.TaskID{from}; len(next) > 0; next = next[1:] {
		for _, t := range to[next[0]] {
			if !seen[t] {
				seen[t] = true
				next = append(next, t)
			}
		}
	}
	return seen
}

// Promise says how often a record shows up somewhere, and why.
type Promise struct {
	Of     string `json:"of"` // "source NAME", "state" or "sink NAME"
	Level  Level  `json:"level"`
	Reason string `json:"reason"`
}

// Level is how often a record counts.
type Level string

// Levels of promises.
const (
	Exactly Level = "exactly once"
	AtLeast Level = "at least once"
	AtMost  Level = "at most once"
	Unsure  Level = "no promise"
)
