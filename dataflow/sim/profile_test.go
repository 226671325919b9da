package sim

import (
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// profile is what sort of world a run has: its pace, its limits and how much goes wrong by itself.
type profile struct {
	messages int           // per source
	pace     time.Duration // between two of a source
	batch    int           // messages in one ingest entry
	padding  int           // bytes of a value
	poison   float64       // share of messages that some operator traps on
	dedupe   int
	ends     bool // sources end their input after their last message
	finishes bool // likewise, and it is not over before a checkpoint counts that holds the end of all tasks

	sync    time.Duration // of the log
	link    time.Duration // of frames, their acknowledgements and grants
	control time.Duration // of the control plane
	turn    time.Duration // between two steps of a task
	persist time.Duration // of a part

	grantLoss, ackLoss, writeLoss float64
	refusals                      float64 // share of frames that a stream refuses

	bounds       dataflow.Bounds
	narrows      bool // when all agents start anew, channels become as narrow as can be
	window       int  // bytes that a sender may have under way; 0: as the task says
	streamFrames int  // that a stream takes per channel

	checkpoints abs.Config
	goneAfter   time.Duration
	revises     bool   // agents take a record, too, that only names more agents that are not waited for
	savepoints  bool   // are asked for
	holds       bool   // sinks commit with checkpoints
	steady      bool   // nothing is broken that keeps an epoch from completing: none may be aborted for its time
	refills     bool   // a head finds in its loop logs what it lacks of a back edge before it asks for it
	hasty       bool   // nothing keeps a task that replays from its next step for long
	laggard     string // an agent whose watch of the control plane is slow
	storm       time.Duration
	strikes     float64 // faults per event
}

func newProfile(w *world, opt options) profile {
	pick := func(choices ...int) int { return choices[w.rng.IntN(len(choices))] }
	ms := func(choices ...int) time.Duration { return time.Duration(pick(choices...)) * time.Millisecond }
	p := profile{
		messages: pick(10, 20, 40), pace: ms(2, 20, 60), batch: pick(1, 3, 8), padding: pick(0, 20, 200), dedupe: pick(2*inFlight, 1024), ends: w.one(3),
		sync: ms(1, 3, 20), link: ms(1, 5, 30), control: ms(2, 10), turn: time.Duration(pick(50, 500, 3000)) * time.Microsecond, persist: ms(5, 30, 150),
		window: pick(0, 1), streamFrames: pick(64, 1<<16, 1<<16),
		checkpoints: abs.Config{IntervalMs: int64(pick(100, 300, 800)), MinPauseMs: int64(pick(0, 50)), TimeoutMs: int64(pick(400, 1500, 4000)), DetachAfterMs: int64(pick(0, 200, 1000))},
		goneAfter:   ms(300, 2000),
		storm:       time.Duration(1+w.rng.IntN(4)) * time.Second,
	}
	if w.one(3) {
		p.grantLoss, p.ackLoss, p.writeLoss = 0.1, 0.03, 0.05
	}
	if w.one(3) {
		p.poison = 0.05
	}
	if w.one(3) {
		p.checkpoints.Replicate, p.checkpoints.ReplicaTimeoutMs = true, int64(pick(100, 1500))
	}
	if w.one(3) {
		p.laggard = w.topo.agents()[w.rng.IntN(len(w.topo.agents()))]
	}
	if w.one(12) {
		p.padding, p.messages = 90_000, 10 // four frames reach the limits of memory and credit
	}
	if w.one(4) {
		p.bounds = dataflow.Bounds{Frames: pick(1, 2), Unsent: pick(1, 1000), Aside: pick(40*(p.padding+60), 1<<20)}
		p.poison = 0 // a replay with little memory reads the stream again and again
	}
	if w.topo.spools {
		p.bounds = dataflow.Bounds{Frames: pick(1, 4), Unsent: pick(1, 300), Aside: 1 << 20, Alone: pick(1, 500), AloneTicks: pick(1, 5)}
	}
	if p.bounds.Behind = p.streamFrames / 2; p.streamFrames == 64 {
		p.window = 1 // what is under way must fit, as it does in a real one
		p.bounds.Stored = 32 * (p.padding + 60)
	}
	p.strikes = []float64{0.0005, 0.003, 0.01}[w.rng.IntN(3)]
	for _, c := range w.topo.channels {
		if c.back {
			p.checkpoints.TimeoutMs += 1500 // the barrier goes round
		}
	}
	if opt.adjust != nil {
		opt.adjust(&p)
	}
	return p
}

// lag is how much slower than others an agent sees the control plane.
func (p profile) lag(a *agent) time.Duration {
	if a.name == p.laggard {
		return 30
	}
	return 1
}
