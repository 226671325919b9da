package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Limits of a job file, each of what one plan can hold at a sensible size.
const (
	maxParallelism = KeyGroups
	maxSegment     = 127                 // MQTT topics are at most 64 KiB; deeper ones are not made by hand
	maxIDWindow    = 1 << 20             // ids per key that a source holds in memory
	defIDWindow    = 1024                // covers a broker's in-flight window many times over
	maxKeepAlive   = 65535 * time.Second // of the protocol
)

// Parse reads and checks a job file; file is its name for messages. The error is an [Errors] with
// everything that is wrong.
func Parse(file string, data []byte) (*File, error) {
	r := &reader{file: file}
	root := r.document(data)
	if root == nil {
		return nil, r.err()
	}
	f := &File{Path: file}
	o, ok := r.object(root, nodePos(root), "the job file", "name", "checkpoint", "recovery", "sources", "operators", "sinks")
	if !ok {
		return nil, r.err()
	}
	f.Name, _ = r.jobName(o)
	f.Checkpoint = r.checkpoint(o)
	f.Recovery = r.recovery(o)
	r.section(o, "sources", func(name string, e field) { f.Sources = append(f.Sources, r.source(name, e)) })
	r.section(o, "operators", func(name string, e field) { f.Operators = append(f.Operators, r.operator(name, e)) })
	r.section(o, "sinks", func(name string, e field) { f.Sinks = append(f.Sinks, r.sink(name, e)) })
	if _, there := o.get("sources"); !there {
		r.fail(o.at, "a job takes its records from at least one", "the job file has no sources")
	}
	if f.Checkpoint.Mode == None {
		for _, s := range f.Sinks {
			if s.Commit == AtCheckpoint {
				r.fail(s.Pos, "take another mode, or commit: immediate", "sink %s hands over with checkpoints, and mode none takes none", s.Name)
			}
		}
	}
	r.references(f)
	if err := r.err(); err != nil {
		return nil, err
	}
	return f, nil
}

func (r *reader) jobName(o *object) (string, bool) {
	name, at, ok := r.needed(o, "name", nameHint)
	if ok && !isName(name) {
		r.fail(at, nameHint, "job name %q", name)
		return "", false
	}
	return name, ok
}

// section visits the entries of a section with a fit name.
func (r *reader) section(o *object, section string, entry func(name string, e field)) {
	f, ok := o.get(section)
	if !ok {
		return
	}
	sub, ok := r.object(f.node, f.at, section)
	if !ok {
		return
	}
	if len(sub.fields) == 0 && section == "sources" {
		r.fail(f.at, "a job takes its records from at least one", "sources is empty")
	}
	for _, e := range sub.fields {
		if !isName(e.name) {
			r.fail(e.at, nameHint, "name %q in %s", e.name, section)
			continue
		}
		entry(e.name, e)
	}
}

// Defaults of a job's checkpoints and bounds of their durations.
const (
	defInterval = 10 * time.Second
	defTimeout  = time.Minute
	defMinPause = 500 * time.Millisecond
	defDetach   = time.Minute
	defTolerate = 3
	maxTolerate = 1000
	minInterval = 50 * time.Millisecond // how often the coordinator looks; docs/performance.md says what it costs
	maxDuration = 24 * time.Hour
)

func (r *reader) checkpoint(o *object) Checkpoint {
	c := Checkpoint{
		IntervalMS: defInterval.Milliseconds(), TimeoutMS: defTimeout.Milliseconds(),
		MinPauseMS: defMinPause.Milliseconds(), Mode: ExactlyOnce, Replicate: true,
		DetachAfterMS: defDetach.Milliseconds(), TolerateFailures: defTolerate,
	}
	f, ok := o.get("checkpoint")
	if !ok {
		return c
	}
	sub, ok := r.object(f.node, f.at, "checkpoint", "interval", "timeout", "min_pause", "mode", "replicate", "detach_after", "tolerate_failures")
	if !ok {
		return c
	}
	c.IntervalMS = r.duration(sub, "interval", minInterval, defInterval)
	c.TimeoutMS = r.duration(sub, "timeout", time.Second, defTimeout)
	c.MinPauseMS = r.duration(sub, "min_pause", 0, min(defMinPause, time.Duration(c.IntervalMS)*time.Millisecond))
	c.Mode = Mode(r.choice(sub, "mode", string(ExactlyOnce), string(AtLeastOnce), string(Synchronous), string(None)))
	c.DetachAfterMS = r.duration(sub, "detach_after", 0, defDetach)
	c.TolerateFailures, _ = r.integer(sub, "tolerate_failures", 0, maxTolerate, defTolerate)
	c.Replicate = r.boolean(sub, "replicate", true)
	return c
}

// duration reads a duration like 10s and returns milliseconds.
func (r *reader) duration(o *object, name string, lowest, missing time.Duration) int64 {
	f, ok := o.get(name)
	if !ok {
		return missing.Milliseconds()
	}
	s, isText := text(f.node)
	if !isText {
		r.wrongType(f, o, "a duration", "write it like 500ms, 10s or 5m")
		return missing.Milliseconds()
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		r.fail(nodePos(f.node), "write it like 500ms, 10s or 5m", "%s of %s is %q, which is no duration", name, o.what, s)
		return missing.Milliseconds()
	}
	if d < lowest || d > maxDuration {
		r.fail(nodePos(f.node), fmt.Sprintf("it is from %s to %s", lowest, maxDuration), "%s of %s is %s", name, o.what, s)
		return missing.Milliseconds()
	}
	return d.Milliseconds()
}

// Kinds that exist.
var (
	sourceKinds = []string{"mqtt", "file", "generator"}
	sinkKinds   = []string{"mqtt", "log", "file"}
)

func (r *reader) source(name string, e field) Source {
	s := Source{Name: name, Pos: e.at}
	o, ok := r.shaped(e.node, e.at, "source "+name, shape{sourceKinds, []string{"key", "id", "time", "on"}})
	if !ok {
		return s
	}
	if f, ok := r.kind(o, sourceKinds); ok {
		switch f.name {
		case "mqtt":
			s.MQTT = r.mqttSource(f, o)
		case "file":
			s.File = r.fileSource(f, o)
		case "generator":
			s.Generator = r.generatorSource(f, o)
		}
	}
	s.Key = KeyRule{Kind: KeyTopic}
	if f, ok := o.get("key"); ok {
		s.Key = r.keyRule(f, o, KeyTopic)
		r.segmentsOf(s, f)
	}
	s.ID, s.IDWindow = r.id(o)
	s.Time, s.EventTime = r.time(o)
	s.On, _ = r.labels(o)
	return s
}

// kind finds the one key of an entry that says what kind it is of.
func (r *reader) kind(o *object, kinds []string) (field, bool) {
	var found []field
	for _, f := range o.fields {
		if slices.Contains(kinds, f.name) {
			found = append(found, f)
		}
	}
	switch len(found) {
	case 1:
		return found[0], true
	case 0:
		// An unknown key may have been meant as one, and its message lists the kinds.
		if !o.unknown {
			r.fail(o.at, "kinds: "+list(kinds), "%s has no kind", o.what)
		}
	default:
		r.fail(found[1].at, "write one of them", "%s is of two kinds, %s and %s", o.what, found[0].name, found[1].name)
	}
	return field{}, false
}

// keyRule reads a key or key_by: one of the words, or a mapping with one rule.
func (r *reader) keyRule(f field, o *object, words ...KeyKind) KeyRule {
	hint := "allowed: " + joinKinds(words) + ", {segment: 3}, {json: machine} and {const: x}"
	if s, ok := text(f.node); ok {
		for _, w := range words {
			if s == string(w) {
				return KeyRule{Kind: w}
			}
		}
		r.fail(nodePos(f.node), hint, "%s of %s is %q", f.name, o.what, s)
		return KeyRule{}
	}
	if _, isMap := f.node.(ast.MapNode); !isMap {
		r.wrongType(f, o, "a word or a mapping", hint)
		return KeyRule{}
	}
	sub, ok := r.object(f.node, f.at, f.name+" of "+o.what, "segment", "json", "const")
	if !ok || len(sub.fields) != 1 {
		if ok {
			r.fail(nodePos(f.node), hint, "%s must have exactly one rule", sub.what)
		}
		return KeyRule{}
	}
	switch sub.fields[0].name {
	case "segment":
		n, _ := r.integer(sub, "segment", 0, maxSegment, 0)
		return KeyRule{Kind: KeySegment, Segment: n}
	case "json":
		path, _, _ := r.filled(sub, "json")
		return KeyRule{Kind: KeyJSON, JSON: path}
	}
	c, _, _ := r.filled(sub, "const")
	return KeyRule{Kind: KeyConst, Const: c}
}

// segmentsOf refuses a key of which the messages of some topic have no such segment: each would become a dead letter.
func (r *reader) segmentsOf(s Source, key field) {
	if s.Key.Kind != KeySegment || s.MQTT == nil {
		return
	}
	for _, filter := range s.MQTT.Topics {
		levels := strings.Split(filter, "/")
		if levels[0] == "$share" && len(levels) > 2 {
			levels = levels[2:]
		}
		if strings.ContainsAny(filter, "#{") || s.Key.Segment < len(levels) { // a label may have several levels
			continue
		}
		r.fail(nodePos(key.node), "segments are counted from 0",
			"key of source %s is segment %d, and the last one of topic %q is %d", s.Name, s.Key.Segment, filter, len(levels)-1)
	}
}

func joinKinds(words []KeyKind) string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return strings.Join(s, ", ")
}

// id reads the id of a source: a JSON path, or {json: path, window: n}.
func (r *reader) id(o *object) (path string, window int) {
	f, ok := o.get("id")
	if !ok {
		return "", 0
	}
	if _, isMap := f.node.(ast.MapNode); !isMap {
		path, _, _ = r.filled(o, "id")
		return path, defIDWindow
	}
	sub, ok := r.object(f.node, f.at, "id of "+o.what, "json", "window")
	if !ok {
		return "", 0
	}
	path, _, _ = r.needed(sub, "json", "name the field that holds the id")
	window, _ = r.integer(sub, "window", 1, maxIDWindow, defIDWindow)
	return path, window
}

func (r *reader) labels(o *object) (Labels, Pos) {
	f, ok := o.get("on")
	if !ok {
		return nil, o.at
	}
	m, _ := r.texts(o, "on")
	for _, name := range sortedKeys(m) {
		if !isLabelName(name) {
			r.fail(f.at, "label names are 1 to 64 letters, digits, -, _ and .", "label name %q in %s", name, o.what)
		}
	}
	if sub, isMap := f.node.(*ast.MappingNode); isMap && len(sub.Values) == 0 {
		r.fail(f.at, "leave it out if any agent will do", "on of %s is empty", o.what)
	}
	return m, f.at
}

// qos reads a quality of service; 1 if none is given.
func (r *reader) qos(o *object) byte {
	n, _ := r.integer(o, "qos", 0, 2, 1)
	return byte(n)
}

// access reads what source and sink have in common: how to reach the broker.
func (r *reader) access(o *object) (broker, clientID, user, passwordFile string, secured *TLS) {
	broker, at, ok := r.filled(o, "broker")
	if ok {
		if err := checkBroker(broker); err != nil {
			r.fail(at, "write it like tcp://10.0.0.5:1883", "broker of %s: %v", o.what, err)
		}
	}
	clientID, at, _ = r.filled(o, "client_id")
	r.expandable(at, o, "client_id", clientID)
	user, _, _ = r.filled(o, "user")
	passwordFile, at, ok = r.filled(o, "password_file")
	if ok && user == "" {
		r.fail(at, "add user", "%s has a password_file and no user", o.what)
	}
	return broker, clientID, user, passwordFile, r.tls(o)
}

func (r *reader) tls(o *object) *TLS {
	f, ok := o.get("tls")
	if !ok {
		return nil
	}
	sub, ok := r.object(f.node, f.at, "tls of "+o.what, "ca_file", "cert_file", "key_file")
	if !ok {
		return nil
	}
	t := &TLS{}
	t.CAFile, _, _ = r.filled(sub, "ca_file")
	t.CertFile, _, _ = r.filled(sub, "cert_file")
	t.KeyFile, _, _ = r.filled(sub, "key_file")
	if (t.CertFile == "") != (t.KeyFile == "") {
		r.fail(f.at, "a client certificate needs both", "%s has one of cert_file and key_file", sub.what)
	}
	return t
}

func (r *reader) mqttSource(f field, entry *object) *MQTTSource {
	o, ok := r.object(f.node, f.at, "mqtt of "+entry.what,
		"broker", "client_id", "user", "password_file", "tls", "topics", "qos", "keep_alive", "retained", "sequence", "when_full")
	if !ok {
		return nil
	}
	m := &MQTTSource{}
	m.Broker, m.ClientID, m.User, m.PasswordFile, m.TLS = r.access(o)
	m.QoS = r.qos(o)
	m.Topics = r.topics(o, m.Broker == "")
	m.KeepAliveMS = r.keepAlive(o)
	if s := r.choice(o, "retained", string(RetainedTake), string(RetainedSkip), string(RetainedFirst)); s != string(RetainedTake) {
		m.Retained = Retained(s)
	}
	if s := r.choice(o, "when_full", string(Wait), string(ShedOldest)); s != string(Wait) {
		m.WhenFull = WhenFull(s)
	}
	m.Sequence = r.sequence(o)
	return m
}

// keepAlive reads a duration of whole seconds, as the protocol has them (MQTT 3.1.1, 3.1.2.10); 0 if none
// is given.
func (r *reader) keepAlive(o *object) int64 {
	ms := r.duration(o, "keep_alive", time.Second, 0)
	if f, there := o.get("keep_alive"); there && (ms%1000 != 0 || ms > maxKeepAlive.Milliseconds()) {
		r.fail(nodePos(f.node), fmt.Sprintf("it is a number of whole seconds, at most %s", maxKeepAlive), "keep_alive of %s", o.what)
		return 0
	}
	return ms
}

// sequence reads {json: path}.
func (r *reader) sequence(o *object) string {
	f, ok := o.get("sequence")
	if !ok {
		return ""
	}
	sub, ok := r.object(f.node, f.at, "sequence of "+o.what, "json")
	if !ok {
		return ""
	}
	path, _, _ := r.needed(sub, "json", "name the field that holds the number")
	return path
}

func (r *reader) topics(o *object, ownBroker bool) []string {
	f, ok := o.get("topics")
	if !ok {
		r.fail(o.at, `write them like ["plant/+/temperature"]`, "%s has no topics", o.what)
		return nil
	}
	var topics []string
	for _, e := range r.strings(f, o) {
		if err := checkFilter(e.text); err != nil {
			r.fail(e.at, "", "topic %q of %s: %v", e.text, o.what, err)
		}
		if ownBroker && strings.HasPrefix(e.text, "$share/") {
			r.fail(e.at, "name a broker that has shared subscriptions",
				"topic %q of %s: the agents' own listener accepts shared subscriptions and delivers nothing", e.text, o.what)
		}
		r.expandable(e.at, o, "topics", e.text)
		if slices.Contains(topics, e.text) {
			r.fail(e.at, "", "topic %q is there twice in %s", e.text, o.what)
		}
		topics = append(topics, e.text)
	}
	return topics
}

// placed is a string and where it stands.
type placed struct {
	text string
	at   Pos
}

// strings reads a string or a list of strings that is not empty.
func (r *reader) strings(f field, o *object) []placed {
	if s, ok := text(f.node); ok && s != "" {
		return []placed{{s, nodePos(f.node)}}
	}
	seq, ok := f.node.(*ast.SequenceNode)
	if !ok || len(seq.Values) == 0 {
		r.wrongType(f, o, "a string or a list of strings, not empty", "")
		return nil
	}
	var all []placed
	for _, n := range seq.Values {
		s, ok := text(n)
		if !ok || s == "" {
			r.fail(nodePos(n), "quote it if it is meant as a string", "%s of %s holds %s", f.name, o.what, describe(n))
			continue
		}
		all = append(all, placed{s, nodePos(n)})
	}
	return all
}

func (r *reader) operator(name string, e field) Operator {
	op := Operator{Name: name, Pos: e.at}
	o, ok := r.object(e.node, e.at, "operator "+name, "wasm", "native", "from", "key_by", "parallelism", "on", "config", "on_error", "limits")
	if !ok {
		return op
	}
	r.code(o, &op)
	op.From = r.from(o)
	if f, ok := o.get("key_by"); ok {
		op.KeyBy, op.KeyByPos = r.keyRule(f, o, KeyTopic, KeyKeep), f.at
	}
	op.Parallelism, _ = r.integer(o, "parallelism", 1, maxParallelism, 0)
	op.On, op.OnPos = r.labels(o)
	var known []string
	if op.IsNative() {
		known = []string{"field"}
	}
	op.Config, op.ConfigPos = r.texts(o, "config", known...)
	op.OnError = OnError(r.choice(o, "on_error", string(DeadLetter), string(Skip), string(Fail)))
	op.Limits = r.limits(o, op.IsNative())
	return op
}

// Bounds of an operator's limits.
const (
	minMemory  = 64 << 10 // WebAssembly grows memory in units of it
	maxMemory  = 1 << 30
	minTime    = time.Millisecond
	minBytes   = 1 << 10
	maxOutput  = 32 << 20 // the largest batch that the next operator takes
	maxState   = 1 << 40
	maxLogRate = 10_000
	maxTimers  = 10_000_000
)

func (r *reader) limits(o *object, native bool) (l Limits) {
	f, ok := o.get("limits")
	if !ok {
		return l
	}
	sub, ok := r.object(f.node, f.at, "limits of "+o.what, "memory", "time", "output", "state", "log_rate", "timers")
	if !ok {
		return l
	}
	if native {
		r.fail(f.at, "leave them out", "%s is part of the agent and has no limits", o.what)
		return l
	}
	l.Memory = r.size(sub, "memory", minMemory, maxMemory)
	l.TimeMS = r.duration(sub, "time", minTime, 0)
	l.Output = r.size(sub, "output", minBytes, maxOutput)
	l.State = r.size(sub, "state", minBytes, maxState)
	rate, _ := r.integer(sub, "log_rate", 1, maxLogRate, 0)
	l.LogRate = int64(rate)
	timers, _ := r.integer(sub, "timers", 1, maxTimers, 0)
	l.Timers = int64(timers)
	return l
}

// units of sizes, the largest first.
var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// size reads a number of bytes, such as 64MiB; 0 if there is none.
func (r *reader) size(o *object, name string, lowest, highest int64) int64 {
	const hint = "write it like 64MiB, 512KiB or a number of bytes"
	f, ok := o.get(name)
	if !ok {
		return 0
	}
	written, unit := "", int64(1)
	switch n := f.node.(type) {
	case *ast.IntegerNode:
		written = n.GetToken().Value
	default:
		s, isText := text(f.node)
		if !isText {
			r.wrongType(f, o, "a size", hint)
			return 0
		}
		written = s
	}
	number := written
	for _, u := range units {
		if before, found := strings.CutSuffix(written, u.name); found {
			number, unit = strings.TrimSpace(before), u.bytes
		}
	}
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		r.fail(nodePos(f.node), hint, "%s of %s is %q, which is no size", name, o.what, written)
		return 0
	}
	if v < 0 || v > highest/unit || v*unit < lowest {
		r.fail(nodePos(f.node), fmt.Sprintf("it is from %s to %s", Size(lowest), Size(highest)), "%s of %s is %s", name, o.what, written)
		return 0
	}
	return v * unit
}

// Size writes a number of bytes in the largest unit that it is a multiple of.
func Size(n int64) string {
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// code reads what an operator runs: a module, or a native operator.
func (r *reader) code(o *object, op *Operator) {
	if f, native := o.get("native"); native {
		if w, both := o.get("wasm"); both {
			r.fail(w.at, "write one of them", "%s is both native and wasm", o.what)
		}
		op.WASM, op.WASMPos = NativePrefix+r.choice(o, "native", NativeOperators...), f.at
		return
	}
	const hint = "write name@version, or the path of a file beside this one like ./count.wasm"
	var ok bool
	if op.WASM, op.WASMPos, ok = r.needed(o, "wasm", hint); !ok {
		return
	}
	if err := checkModule(op.WASM); err != nil {
		r.fail(op.WASMPos, hint, "wasm of %s: %v", o.what, err)
	}
}

func (r *reader) from(o *object) []Ref {
	f, ok := o.get("from")
	if !ok {
		r.fail(o.at, "name a source, an operator or operator.output", "%s has no from", o.what)
		return nil
	}
	var refs []Ref
	for _, e := range r.strings(f, o) {
		node, output, dotted := strings.Cut(e.text, ".")
		if !dotted {
			output = MainOutput
		}
		if !isName(node) || !isName(output) {
			r.fail(e.at, "name a source, an operator or operator.output", "from of %s is %q", o.what, e.text)
			continue
		}
		ref := Ref{Node: node, Output: output, Pos: e.at}
		if slices.ContainsFunc(refs, func(x Ref) bool { return x.String() == ref.String() }) {
			r.fail(e.at, "", "%s is there twice in from of %s", ref, o.what)
			continue
		}
		refs = append(refs, ref)
	}
	return refs
}

func (r *reader) sink(name string, e field) Sink {
	s := Sink{Name: name, Pos: e.at, Commit: Immediate}
	o, ok := r.shaped(e.node, e.at, "sink "+name, shape{sinkKinds, []string{"from", "commit"}})
	if !ok {
		return s
	}
	if f, ok := r.kind(o, sinkKinds); ok {
		switch f.name {
		case "mqtt":
			s.MQTT = r.mqttSink(f, o)
		case "log":
			s.Log = r.logSink(f, o)
		case "file":
			s.File = r.fileSink(f, o)
		}
	}
	s.From = r.from(o)
	s.Commit = Commit(r.choice(o, "commit", string(Immediate), string(AtCheckpoint)))
	return s
}

func (r *reader) mqttSink(f field, entry *object) *MQTTSink {
	o, ok := r.object(f.node, f.at, "mqtt of "+entry.what,
		"broker", "client_id", "user", "password_file", "tls", "topic", "payload", "qos", "retain", "in_flight")
	if !ok {
		return nil
	}
	m := &MQTTSink{}
	m.Broker, m.ClientID, m.User, m.PasswordFile, m.TLS = r.access(o)
	topic, at, ok := r.needed(o, "topic", `write it like "alarms/{key}"`)
	if ok {
		if err := checkTopic(topic); err != nil {
			r.fail(at, "", "topic %q of %s: %v", topic, o.what, err)
		}
		r.template(at, o, "topic", topic)
	}
	m.Topic = topic
	m.Payload = r.templateOr(o, "payload", "{value}")
	m.QoS = r.qos(o)
	m.Retain = r.boolean(o, "retain", false)
	n, _ := r.integer(o, "in_flight", 1, maxInFlight, 0)
	m.InFlight = n
	return m
}

// maxInFlight is how many records a task keeps for a sink that have not left, and far below the number of packet
// identifiers, 65,535.
const maxInFlight = 1024

// logSink takes nothing or an empty mapping.
func (r *reader) logSink(f field, entry *object) *LogSink {
	if f.node == nil || f.node.Type() == ast.NullType {
		return &LogSink{}
	}
	o, ok := r.object(f.node, f.at, "log of "+entry.what)
	if ok && len(o.fields) > 0 {
		r.fail(o.fields[0].at, "write log: {}", "unknown key %q in %s, which has none", o.fields[0].name, o.what)
	}
	return &LogSink{}
}

func (r *reader) fileSource(f field, entry *object) *FileSource {
	o, ok := r.object(f.node, f.at, "file of "+entry.what, "path", "follow")
	if !ok {
		return nil
	}
	path, at, _ := r.needed(o, "path", `write it like "/var/log/readings-{agent}.jsonl"`)
	r.placeholders(at, o, "path", path, nil, nil)
	return &FileSource{Path: path, Follow: r.boolean(o, "follow", false)}
}

func (r *reader) fileSink(f field, entry *object) *FileSink {
	o, ok := r.object(f.node, f.at, "file of "+entry.what, "path", "line")
	if !ok {
		return nil
	}
	path, at, _ := r.needed(o, "path", `write it like "counts-{agent}.txt"`)
	r.placeholders(at, o, "path", path, nil, []string{"task"})
	return &FileSink{Path: path, Line: r.templateOr(o, "line", "{value}")}
}

func (r *reader) templateOr(o *object, name, missing string) string {
	s, at, ok := r.filled(o, name)
	if !ok {
		return missing
	}
	r.template(at, o, name, s)
	return s
}

// references checks that names are unique and that every `from` names something.
func (r *reader) references(f *File) {
	kinds := map[string]string{}
	var sources, nodes []string
	claim := func(kind, name string, at Pos) {
		if other, taken := kinds[name]; taken {
			r.fail(at, "names are unique among sources, operators and sinks", "%s %s has the name of %s", kind, name, other)
			return
		}
		kinds[name] = kind + " " + name
		if kind != "sink" {
			nodes = append(nodes, name)
		}
	}
	for _, s := range f.Sources {
		claim("source", s.Name, s.Pos)
		sources = append(sources, s.Name)
	}
	for _, o := range f.Operators {
		claim("operator", o.Name, o.Pos)
	}
	for _, s := range f.Sinks {
		claim("sink", s.Name, s.Pos)
	}
	for _, o := range f.Operators {
		r.resolve("operator "+o.Name, o.From, sources, nodes)
	}
	for _, s := range f.Sinks {
		r.resolve("sink "+s.Name, s.From, sources, nodes)
	}
}

func (r *reader) resolve(what string, refs []Ref, sources, nodes []string) {
	for _, ref := range refs {
		switch {
		case !slices.Contains(nodes, ref.Node):
			r.fail(ref.Pos, suggest(ref.Node, nodes), "from of %s: there is no source or operator %s", what, ref.Node)
		case slices.Contains(sources, ref.Node) && ref.Output != MainOutput:
			r.fail(ref.Pos, "write "+ref.Node, "from of %s: source %s has no side output %s", what, ref.Node, ref.Output)
		}
	}
}

// isModulePath tells a file beside the job file from a registered operator.
func isModulePath(s string) bool { return strings.HasPrefix(s, "./") }

func checkModule(s string) error {
	if isModulePath(s) {
		if !strings.HasSuffix(s, ".wasm") || slices.Contains(strings.Split(s, "/"), "..") || strings.ContainsAny(s, "\\\x00") {
			return fmt.Errorf("%q is not the path of a .wasm file in or below the folder of the job file", s)
		}
		return nil
	}
	name, version, ok := strings.Cut(s, "@")
	if !ok || !isName(name) || !isLabelName(version) {
		return fmt.Errorf("%q is not name@version", s)
	}
	return nil
}
