package mutant

var mutants = []mutant{
	// The aligner.
	{
		name: "an ended channel is waited for", file: "abs/aligner.go", topo: "shuffle", args: "-sim.profile=steady -sim.faults=none",
		old: "return !a.ended[in.ID] && !a.detached[in.Agent]", new: "return !a.detached[in.Agent]",
	},
	{
		name: "an end completes no alignment", file: "abs/aligner.go", topo: "shuffle", args: "-sim.profile=steady -sim.faults=none",
		old: "		a.ended[ev.Channel] = true\n		a.stopWaiting(&fx, ev.Channel)", new: "		a.ended[ev.Channel] = true",
	},
	{
		name: "a newer barrier on an open channel is ignored", file: "abs/aligner.go", topo: "shuffle", args: "-sim.profile=lagging -sim.faults=abort",
		old: "	if a.pending != 0 {\n		fx.Superseded = true\n		a.giveUp(fx)\n	}\n	a.pending = n",
		new: "	if a.pending != 0 {\n		fx.Ignored = true\n		return false\n	}\n	a.pending = n",
	},
	{
		name: "a channel that has delivered is not blocked", file: "abs/aligner.go", topo: "shuffle", args: "-sim.profile=steady -sim.faults=none",
		old: "return a.mode == ExactlyOnce && a.delivered[ch]", new: "return false",
	},
	{
		name: "back edges are aligned like others", file: "abs/aligner.go", topo: "loop", args: "-sim.profile=busy",
		old: "	if a.inputs[ev.Channel].Back {\n		a.barrierRound(ev, fx)\n		return\n	}\n", new: "",
	},
	{
		name: "the loop log ends with the first barrier that comes round", file: "abs/aligner.go", topo: "itself", args: "-sim.profile=steady -sim.faults=none",
		old: "	delete(a.logWaiting, ev.Channel)\n	a.stopLogIfRound(fx)", new: "	clear(a.logWaiting)\n	a.stopLogIfRound(fx)",
	},
	{
		name: "a barrier of another head that comes early is ignored", file: "abs/aligner.go", topo: "itself", args: "-sim.profile=steady -sim.faults=none",
		old: "	if ev.Epoch > a.finished {\n		a.deliver(ev, fx)\n		return\n	}\n", new: "",
	},
	{
		name: "a detached agent is still waited for", file: "abs/aligner.go", topo: "merge", args: "-sim.profile=parted -sim.faults=gateway",
		old: "	a.stopWaiting(fx, of...)\n}", new: "	_ = of\n}",
	},
	{
		name: "tasks are not told who is attached again", file: "abs/record.go", topo: "device", args: "-sim.profile=detaching",
		old: "		case !out && a.detached[agent]:", new: "		case !out && a.detached[agent] && false:",
	},

	// The coordinator.
	{
		name: "an epoch starts while another runs", file: "abs/decide.go", topo: "shuffle", args: "-sim.profile=busy -sim.faults=none",
		old: "			return c.drive(v)", new: "			if w := c.drive(v); w != nil || c.now-c.startedAt < c.cfg.IntervalMs || c.needsInitial() {\n				return w\n			}\n			return c.start()",
	},
	{
		name: "any agent can be detached", file: "abs/decide.go", topo: "chain", args: "-sim.profile=detaching -sim.faults=cut",
		old: "if !ok || !c.plan.Gateway(agent) {", new: "if !ok {",
	},
	{
		name: "a manifest need not have all parts", file: "abs/decide.go", topo: "shuffle", args: "-sim.profile=steady -sim.faults=abort",
		old: "	case len(missing) == 0:", new: "	case len(missing) <= 1:",
	},

	{
		name: "what is committed counts before it is replicated", file: "abs/record.go", topo: "shuffle", args: "-sim.profile=replicating",
		old: "return r.State == Replicated || r.State == Committed && !replicate", new: "return r.Manifest()",
	},

	// What to restore.
	{
		name: "a task that replays makes room like others", file: "dataflow/inbox.go", topo: "itself", args: "-sim.profile=relieved -sim.faults=upgrade,kill,power-all,term,save,tail -sim.first=300",
		old: "	if sparing {\n		behind", new: "	if false {\n		behind",
	},
	{
		name: "what came before its turn is not read again", file: "dataflow/inbox.go", topo: "itself", args: "-sim.profile=relieved -sim.faults=upgrade,kill,power-all,term,save,tail -sim.first=300",
		old: "!in.reading && !c.dropped && c.tail <= c.beyond", new: "false && c.tail <= c.beyond",
	},
	{
		name: "a rewind begins at the newest part", file: "abs/restore.go", topo: "merge", args: "-sim.profile=busy -sim.faults=empty,tail",
		old: "		if p.Cut.Sent[ch] >= n {", new: "		if p.Cut.Sent[ch] >= n && false {",
	},

	// The task.
	{
		name: "a snapshot holds what came after the cut", file: "dataflow/persist.go", topo: "merge", args: "-sim.profile=busy",
		old: "	p.info.Version = t.version + 1\n", new: "	if late, err := t.chain.freeze(false); err == nil {\n		p.changes = append(p.changes, late...)\n	}\n	p.info.Version = t.version + 1\n",
	},
	{
		name: "a snapshot is durable before the log is synced", file: "dataflow/persist.go", topo: "merge", args: "-sim.profile=busy -sim.faults=power",
		old: "max(p.info.Pos, p.upto) > synced || ", new: "",
	},
	{
		name: "a snapshot is durable before what was sent is in the stream", file: "dataflow/persist.go", topo: "shuffle", args: "-sim.profile=busy -sim.faults=kill",
		old: " || !t.handedOver(p.report.Cut) {", new: " {",
	},
	{
		name: "frames to tasks of the same agent leave before the log is synced", file: "dataflow/outlet.go", topo: "local", args: "-sim.profile=busy -sim.faults=power",
		old: "	case f.cause > synced, f.entry > synced, f.last > o.reserved:", new: "	case f.entry > synced, f.last > o.reserved:",
	},
	{
		name: "frames that become one leave when the first is synced", file: "dataflow/outlet.go", topo: "side",
		old: "to.last, to.entry = f.last, f.cause", new: "to.last = f.last",
	},
	{
		name: "a frame that was sent takes up another", file: "dataflow/outlet.go", topo: "side",
		old: "	case to.first <= max(o.highest, o.free): ", new: "	case false: ",
	},
	{
		name: "repeats take credit", file: "dataflow/outlet.go", topo: "diamond", args: "-sim.profile=narrow -sim.faults=power-all,site",
		old: "f.kind == frame.Data && f.last > o.free && ", new: "f.kind == frame.Data && ",
	},
	{
		name: "a jump is processed over", file: "dataflow/inbox.go", topo: "merge", args: "-sim.profile=busy",
		old: "	if first > c.tail {\n		c.beyond = max(c.beyond, last)\n		in.missing(c)\n		return nil\n	}", new: "	if first > c.tail {\n		c.tail, c.tailSum = first, h.Before\n		if len(c.held) == 0 {\n			c.next, c.sum = first, h.Before\n		}\n	}",
	},
	{
		name: "a zombie of an older generation is heard", file: "dataflow/inbox.go", test: "TestSuccessorSeeds", topo: "merge",
		old: "h.Generation != uint32(in.gen) || ", new: "",
	},
	{
		name: "a zombie of a lower incarnation is heard", file: "dataflow/inbox.go", test: "TestSuccessorSeeds", topo: "merge",
		old: " || h.Incarnation != c.Incarnation {", new: " {",
	},
	{
		name: "a replaced writer's channels go on", file: "dataflow/recover.go", test: "TestSuccessorSeeds", topo: "merge",
		old: "if !known || older && c.Anew {", new: "if !known {",
	},
	{
		name: "a repeated frame is not dropped", file: "dataflow/inbox.go", topo: "merge", args: "-sim.profile=busy",
		old: "	if last < c.tail {\n		in.duplicates++", new: "	if last+1 < c.tail {\n		in.duplicates++",
	},
	{
		name: "a record is given up without an entry", file: "dataflow/recover.go", topo: "merge", args: "-sim.profile=busy -sim.faults=kill,limit",
		old: "	pos, err := t.env.Log.Append(EntryGiveUp, g.encode())\n	if err != nil {\n		return err\n	}\n", new: "	pos := t.env.Log.Last()\n",
	},
	{
		name: "outputs do not wait for the entry that gives a record up", file: "dataflow/recover.go", topo: "merge", args: "-sim.profile=busy -sim.faults=power,limit",
		old: "	return min(synced, u.from-1)", new: "	return synced",
	},
	{
		name: "the loop log is processed first, whatever the order was", file: "dataflow/recover.go", topo: "loop", args: "-sim.profile=busy -sim.faults=kill",
		old: "	t.follow, err = t.env.Log.Follow(pos)\n	return err", new: `	if t.follow, err = t.env.Log.Follow(pos); err != nil {
		return err
	}
	for _, c := range t.inbox.chans {
		for len(c.loop) > 0 && len(c.held) > 0 {
			if err := t.consume(pos, c, orderEntry{t.stamp, c.Index, c.next, c.held[0].count}); err != nil {
				return err
			}
		}
	}
	return nil`,
	},
	{
		name: "a restored head does not get its loop log", file: "dataflow/recover.go", topo: "loop", args: "-sim.profile=busy -sim.faults=site",
		old: "	if err := t.loadLoop(state); err != nil {\n		return err\n	}\n", new: "",
	},

	// What shows by being late, or needless (timely_test.go), each with a seed that finds it.
	{ // 1
		name: "tasks are not told of an abort", file: "abs/record.go", topo: "merge", args: "-sim.profile=paused -sim.faults=abort",
		old: "		if open && r.Epoch != 0 {", new: "		if open && r.Epoch != 0 && false {",
	},
	{ // 5
		name: "parts are used whose barrier nobody waited for", file: "abs/decide.go", topo: "merge", args: "-sim.profile=unheard -sim.faults=gateway",
		old: "	if !r.Initial {\n		c.keepUnaligned(r, kept)\n	}\n", new: "",
	},
	{ // 2
		name: "an agent is attached before its backlog is drained", file: "abs/coordinator.go", topo: "chain", args: "-sim.profile=backlogged -sim.faults=gateway",
		old: "	case AgentBack:\n		delete(c.gone, n.Agent)", new: "	case AgentBack:\n		delete(c.gone, n.Agent)\n		if c.detached[n.Agent] {\n			c.returning[n.Agent] = true\n		}",
	},
	{ // 4
		name: "a term drives an epoch that it has not taken over", file: "abs/decide.go", topo: "merge", args: "-sim.profile=overtaken -sim.faults=term",
		old: "	if r.Term != c.term {\n", new: "	if r.Term != c.term && false {\n",
	},
	{ // 2
		name: "a second acknowledgement counts", file: "abs/coordinator.go", topo: "merge", args: "-sim.profile=steady -sim.faults=twice",
		old: "answered && (first.Failed == \"\" || !c.initial(a.Epoch)) {", new: "answered && first.Failed == \"\" && false {",
	},
	{ // 1
		name: "a refused frame is not sent again unasked", file: "dataflow/outlet.go", topo: "merge", args: "-sim.profile=refused -sim.faults=none",
		old: "	o.unsend(i)\n}\n\n// advance", new: "	_ = i\n}\n\n// advance",
	},
	{ // 5
		name: "a task replays on what a newer part of it holds", file: "dataflow/persist.go", topo: "merge", args: "-sim.profile=rereading -sim.faults=none",
		old: "		t.behind = \"a part further on has become durable\"\n", new: "",
	},
	{ // 4
		name: "a gap of a back edge is not refilled from a loop log", file: "dataflow/task.go", topo: "forked", args: "-sim.profile=sparse -sim.faults=back,slow",
		old: "if err := t.refill(c); err != nil || !c.has(e.count) {", new: "if err := error(nil); err != nil || !c.has(e.count) {",
	},
	{ // 1
		name: "a full loop does not give an epoch up", file: "dataflow/loop.go", topo: "burstside", args: "-sim.profile=filled -sim.faults=none",
		old: "if t.stuck++; t.stuck == loopStuckTicks {", new: "if t.stuck++; false {",
	},
}
