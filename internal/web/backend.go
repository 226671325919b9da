// Package web is the HTTP API of an agent under /api/v1, its health checks and its metrics. It
// knows nothing of how an agent works: it turns requests into calls of a [Backend] and their
// results into JSON.
//
// Every request has a deadline and a limit on its body, and a context that ends with either of
// them, with the client, or with the server.
package web

import (
	"context"
	"io"

	"github.com/weir-stream/weir/internal/api"
)

// Backend is what the handlers need of an agent. Its methods are called from many goroutines and
// keep to their context: when its deadline passes they return an error that wraps ctx.Err(), saying
// what they still waited for. An [api.Error] chooses the HTTP status.
type Backend interface {
	Fleet
	Jobs
	Upgrades
	Operators
	Checkpoints
}

// Fleet tells of this agent and of the others.
type Fleet interface {
	// Status is this agent's own view; it answers without NATS.
	Status(ctx context.Context) (api.Status, error)
	// Agents lists the agents that the control plane knows, by name.
	Agents(ctx context.Context) ([]api.Agent, error)
	// RemoveAgent takes an agent that is down out of the fleet.
	RemoveAgent(ctx context.Context, name string) error
	// Ready is nil once the agent has opened its stores and started the tasks that it has locally;
	// the error says what is missing. Unreachable brokers do not make an agent unready.
	Ready(ctx context.Context) error
	// Drills lists what the agent can do to itself.
	Drills(ctx context.Context) ([]api.Drill, error)
	// Drill begins one and returns at once.
	Drill(ctx context.Context, o api.DrillOrder) (api.DrillBegun, error)
	// Metrics is a snapshot of all metrics; it answers without NATS.
	Metrics(ctx context.Context) []api.Family
}

// Jobs applies and shows jobs.
type Jobs interface {
	// PlanJob says what ApplyJob would do, or why it would refuse. Modules that are files need not have been pushed.
	PlanJob(ctx context.Context, src api.JobSource) (api.Plan, error)
	// ApplyJob creates or updates a job and returns when its checkpoint 0 is committed.
	ApplyJob(ctx context.Context, src api.JobSource) (api.Applied, error)
	// Jobs lists the jobs by name.
	Jobs(ctx context.Context) ([]api.JobSummary, error)
	// Job shows one; tasks by ID.
	Job(ctx context.Context, name string) (api.Job, error)
	// StopJob drains a job, keeps a final checkpoint and returns when it counts. Stopping a
	// stopped job returns its final checkpoint.
	StopJob(ctx context.Context, name string) (api.Checkpoint, error)
	// DeleteJob removes a stopped job with its state. Unless force is set a job that is not
	// stopped is a conflict.
	DeleteJob(ctx context.Context, name string, force bool) error
	// DeadLetters lists a job's records that were given up, on all reachable agents, the newest
	// limit of them, and names the agents that were not reached.
	DeadLetters(ctx context.Context, name string, limit int) (api.DeadLetters, error)
}

// Operators is the registry of operators.
type Operators interface {
	// Uploaded says how much of a module is here.
	Uploaded(ctx context.Context, digest string) (api.Upload, error)
	// Upload takes bytes of a module of size bytes, from an offset on that is not beyond what is here.
	// What came before an error stays.
	Upload(ctx context.Context, digest string, size, offset int64, body io.Reader) (api.Upload, error)
	// PushOperator checks a module and registers it: one that was uploaded, by its digest, or, if that is
	// empty, one that it reads. The same bytes under the same name and version are no error; other bytes
	// are a conflict.
	PushOperator(ctx context.Context, name, version, digest string, module io.Reader) (api.Operator, error)
	// SignOperator adds a signature, in base64, to a registered version.
	SignOperator(ctx context.Context, name, version, signature string) (api.Operator, error)
	// PushModule checks a module, had in the same way, and keeps it under its digest, without a name.
	PushModule(ctx context.Context, digest string, module io.Reader) (api.Module, error)
	// RemoveOperator removes a version of an operator, or all of them if version is empty, and returns
	// what it removed. One that a job uses is a conflict, and nothing is removed then.
	RemoveOperator(ctx context.Context, name, version string) ([]api.Operator, error)
	// Operators lists all versions by name and version.
	Operators(ctx context.Context) ([]api.Operator, error)
	// Operator shows all versions of one operator, oldest first.
	Operator(ctx context.Context, name string) ([]api.Operator, error)
}

// Checkpoints lists, takes and exports checkpoints.
type Checkpoints interface {
	// Checkpoints lists a job's checkpoints, oldest first.
	Checkpoints(ctx context.Context, job string) ([]api.Checkpoint, error)
	// Checkpoint shows one with its channels.
	Checkpoint(ctx context.Context, job string, epoch uint64) (api.CheckpointDetail, error)
	// CheckpointNow takes one, a savepoint, and returns when it counts. Without a name it is given one; a
	// name that a checkpoint has already returns that one.
	CheckpointNow(ctx context.Context, job, name string) (api.Checkpoint, error)
	// ExportCheckpoint writes one, self-contained, to w; epoch 0 is the newest that counts. An
	// error before the first byte becomes an HTTP error; a later one breaks the connection, so
	// the format must make a cut-off file recognisable.
	ExportCheckpoint(ctx context.Context, job string, epoch uint64, w io.Writer) error
}
