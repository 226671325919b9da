package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-stream/weir/transport/mqtt"
)

// sourcePatience is how long applying a job waits for its sources to reach their brokers. It is far
// above what connecting and subscribing take; a broker that is down is no reason to fail.
const sourcePatience = 5 * time.Second

// receivingAsk asks an agent which sources of a job do not receive; the job's name follows.
const receivingAsk = "receiving/"

// waitReceiving waits until every source of a job receives: what is published after that is the job's.
// It returns what does not receive after sourcePatience, for people.
func (a *Agent) waitReceiving(ctx context.Context, rec jobRecord) []string {
	ctx, cancel := context.WithTimeout(ctx, sourcePatience)
	defer cancel()
	for {
		waits := a.askReceiving(ctx, rec)
		if len(waits) == 0 {
			return nil
		}
		if !sleep(ctx, pollEvery) {
			return waits
		}
	}
}

// askReceiving asks the agents with sources of a job. One that does not answer does not receive.
func (a *Agent) askReceiving(ctx context.Context, rec jobRecord) []string {
	var agents []string
	for _, t := range rec.Plan.Tasks {
		if t.Source != nil && !slices.Contains(agents, t.Agent) {
			agents = append(agents, t.Agent)
		}
	}
	var mu sync.Mutex
	answered := map[string][]string{}
	a.callAll(ctx, agents, []byte(receivingAsk+rec.Name), func(agent string, reply []byte) {
		var waits []string
		if json.Unmarshal(reply, &waits) == nil {
			mu.Lock()
			answered[agent] = waits
			mu.Unlock()
		}
	})
	var out []string
	for _, agent := range agents {
		waits, ok := answered[agent]
		if !ok {
			waits = []string{fmt.Sprintf("agent %s does not answer whether its sources receive", agent)}
		}
		out = append(out, waits...)
	}
	return out
}

// answerReceiving tells what of a job's sources on this agent does not receive.
func (a *Agent) answerReceiving(job string) []byte {
	waits := []string{}
	if h := a.hostedJob(job); h != nil {
		for _, r := range h.tasks() {
			if s := r.notReceiving(); s != "" {
				waits = append(waits, s)
			}
		}
	} else {
		waits = append(waits, fmt.Sprintf("agent %s does not have the job yet", a.name))
	}
	return mustJSON(waits)
}

// notReceiving says why the task's source does not receive; empty: it does, or there is none that could
// miss what is published meanwhile.
func (r *runner) notReceiving() string {
	if r.task.Source == nil || r.task.Source.MQTT == nil {
		return ""
	}
	r.mu.Lock()
	status := r.sourceStatus
	r.mu.Unlock()
	what := "is being started"
	if status != nil {
		st := status()
		if st.State == mqtt.SourceReceiving || st.State == mqtt.SourceLogFull {
			return ""
		}
		what = "is " + st.State.String()
		if st.Link.LastError != "" {
			what += ": " + st.Link.LastError
		}
	}
	return fmt.Sprintf("source %s on agent %s does not receive yet, it %s", r.task.Source.Name, r.task.Agent, what)
}
