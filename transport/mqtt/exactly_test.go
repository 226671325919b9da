package mqtt

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/dataflow/extract"
)

// scripted is a broker that follows a script, a source, and its log, which outlives the source's process. The words:
//
//	connack new|kept    take the connection; there is no session, or there is
//	suback              the source subscribes
//	open new|kept       both
//	> publish Q ID [dup] TEXT
//	> pubrel ID
//	< WORDS             the source sends this packet
//	quiet               the source has dealt with everything and sent nothing
//	logged N            the log has so many batches, those of the source's own notes not counted
//	sync                all of them are durable
//	full, room          the log has no room; it has again
//	cut                 the connection ends
//	kill                the process ends without another word; another one starts with what is durable
//	kill as CLIENT      and under another client id
//	records A B         what the log has
//	letters N           dead letters since the last kill
type scripted struct {
	t   *testing.T
	d   *double
	cfg SourceConfig
	log *logDouble
	src *Source
	run *running
	p   *peer
}

func newScripted(t *testing.T, cfg SourceConfig) *scripted {
	st := &scripted{t: t, d: newDouble(t), cfg: cfg, log: newLog(true)}
	st.cfg.Broker = st.d.broker("c")
	st.start()
	return st
}

func (st *scripted) start() {
	st.src = quick(st.t, st.cfg, testDeps(nil))
	st.src.bounds.stop = 0
	st.run = startSource(st.t, st.src, st.log)
}

func (st *scripted) play(script string) {
	st.t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(script), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		st.t.Logf("%2d %s", i+1, strings.TrimSpace(line))
		st.step(words[0], words[1:])
	}
}

func (st *scripted) step(word string, args []string) {
	st.t.Helper()
	switch word {
	case "connack":
		st.p = st.d.open(args[0] == "kept")
	case "suback":
		st.p.suback()
	case "open":
		st.p = st.d.openSource(args[0] == "kept")
	case ">":
		st.send(args)
	case "<":
		st.p.expect(strings.Join(args, " "))
	case "quiet":
		st.p.settled()
	case "logged":
		st.log.waitBatches(st.t, st.number(args[0]))
	case "sync":
		st.sync()
	case "full", "room":
		st.log.setFull(word == "full")
	case "cut":
		st.p.cut()
	case "kill":
		st.kill(args)
	case "records":
		if got := st.log.values(st.t); got != strings.Join(args, " ") {
			st.t.Fatalf("logged %q, want %q", got, strings.Join(args, " "))
		}
	case "letters":
		if got := len(st.log.letters); got != st.number(args[0]) {
			st.t.Fatalf("%d dead letters", got)
		}
	default:
		st.t.Fatalf("unknown word %q", word)
	}
}

func (st *scripted) number(s string) int {
	st.t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		st.t.Fatal(err)
	}
	return n
}

func (st *scripted) send(args []string) {
	st.t.Helper()
	if args[0] == "pubrel" {
		st.p.ack(typePubrel, uint16(st.number(args[1])))
		return
	}
	qos, id, rest := st.number(args[1]), st.number(args[2]), args[3:]
	dup := rest[0] == "dup"
	if dup {
		rest = rest[1:]
	}
	st.p.publish(byte(qos), uint16(id), dup, "t", strings.Join(rest, " "))
}

func (st *scripted) sync() {
	st.log.mu.Lock()
	var due []int
	for n, done := range st.log.synced {
		if !done {
			due = append(due, n)
		}
	}
	st.log.mu.Unlock()
	for _, n := range due {
		st.log.release(n)
	}
}

// kill ends the process, which says nothing more but good-bye: what would be acknowledged has been before,
// or is not durable. What it had in memory is gone.
func (st *scripted) kill(args []string) {
	st.t.Helper()
	st.p.end(st.run)
	st.log = st.log.killed()
	if len(args) == 2 {
		st.cfg.Broker.ClientID = args[1]
	}
	st.start()
}

// TestExactlyOnce has, for QoS 2, every point at which the power may go, and what a broker may do then.
func TestExactlyOnce(t *testing.T) {
	for name, script := range map[string]string{
		"killed before the message is durable": `
			open new
			> publish 2 5 x
			logged 1
			kill
			records
			open kept
			> publish 2 5 dup x
			logged 1
			sync
			< PUBREC 5
			records x`,
		"killed before PUBREC": `
			open new
			> publish 2 5 x
			logged 1
			cut
			open kept
			sync
			quiet
			kill
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			> pubrel 5
			logged 2
			sync
			< PUBCOMP 5
			records x`,
		"PUBREC lost with the connection, then again with the process": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			cut
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			kill
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			records x`,
		"killed before PUBREL": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			kill
			open kept
			> pubrel 5
			logged 2
			quiet
			sync
			< PUBCOMP 5
			records x`,
		"killed before the release is durable": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			kill
			open kept
			> pubrel 5
			logged 2
			quiet
			sync
			< PUBCOMP 5
			records x`,
		"killed before PUBCOMP, and the identifier is used again": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			cut
			open kept
			sync
			quiet
			kill
			open kept
			> pubrel 5
			< PUBCOMP 5
			> publish 2 5 x
			logged 3
			sync
			< PUBREC 5
			records x x`,
		"killed after PUBCOMP, and the new message under the identifier comes as a repeat": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			sync
			< PUBCOMP 5
			kill
			open kept
			> publish 2 5 dup x
			logged 3
			sync
			< PUBREC 5
			records x x`,
		"cut before PUBCOMP": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			cut
			open kept
			> pubrel 5
			quiet
			sync
			< PUBCOMP 5
			cut
			open kept
			> pubrel 5
			< PUBCOMP 5
			records x`,
		"a release answered late is not answered on the next connection unasked": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			cut
			open kept
			sync
			quiet
			> pubrel 5
			< PUBCOMP 5`,
		"the same identifier twice": `
			open new
			> publish 2 5 x
			> publish 2 5 x
			> publish 2 5 dup x
			quiet
			logged 1
			sync
			< PUBREC 5
			> publish 2 5 dup x
			< PUBREC 5
			records x`,
		"another message under an identifier in use": `
			open new
			> publish 2 5 x
			logged 1
			> publish 2 5 y
			logged 2
			sync
			< PUBREC 5
			< PUBREC 5
			> pubrel 5
			logged 3
			sync
			< PUBCOMP 5
			records x y`,
		"the identifier is used again before PUBCOMP": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			> pubrel 5
			logged 2
			> publish 2 5 x
			logged 3
			sync
			< PUBCOMP 5
			< PUBREC 5
			kill
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			records x x`,
		"PUBREL before PUBREC": `
			open new
			> publish 2 5 x
			logged 1
			> pubrel 5
			logged 2
			quiet
			sync
			< PUBREC 5
			< PUBCOMP 5
			> publish 2 5 x
			logged 3
			sync
			< PUBREC 5
			records x x`,
		"PUBREL for a message that nobody knows": `
			open kept
			> pubrel 77
			< PUBCOMP 77
			records`,
		"a first delivery with DUP": `
			open kept
			> publish 2 5 dup x
			logged 1
			sync
			< PUBREC 5
			> publish 1 6 dup x
			logged 2
			sync
			< PUBACK 6
			records x x`,
		"the broker has lost the session: nothing is subscribed to before that is durable": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			cut
			connack new
			logged 2
			quiet
			sync
			suback
			> publish 2 5 dup x
			logged 3
			sync
			< PUBREC 5
			kill
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			records x x`,
		"killed while the lost session is being forgotten": `
			open new
			> publish 2 5 x
			logged 1
			> publish 2 6 y
			logged 2
			sync
			< PUBREC 5
			< PUBREC 6
			cut
			connack new
			logged 3
			kill
			open kept
			> publish 2 5 x
			logged 3
			> publish 2 6 dup z
			logged 4
			sync
			< PUBREC 5
			< PUBREC 6
			records x y x z`,
		"a session said to be there is not": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			cut
			open kept
			> publish 2 5 x
			logged 2
			sync
			< PUBREC 5
			cut
			open kept
			> publish 2 5 dup x
			< PUBREC 5
			> pubrel 5
			logged 3
			sync
			< PUBCOMP 5
			records x x`,
		"a session said to be lost is there": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			cut
			connack new
			logged 2
			sync
			suback
			> publish 2 5 dup x
			logged 3
			sync
			< PUBREC 5
			> pubrel 5
			logged 4
			sync
			< PUBCOMP 5
			records x x`,
		"messages before SUBACK, and the connection is cut": `
			connack kept
			> publish 2 5 dup x
			logged 1
			cut
			open kept
			> publish 2 5 dup x
			quiet
			sync
			< PUBREC 5
			records x`,
		"another client's identifiers": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			kill as d
			connack kept
			logged 2
			quiet
			sync
			suback
			> publish 2 5 dup x
			logged 3
			sync
			< PUBREC 5
			records x x`,
		"identifiers up to the highest": `
			open new
			> publish 2 65535 x
			logged 1
			sync
			< PUBREC 65535
			kill
			open kept
			> publish 2 65535 dup x
			< PUBREC 65535
			> pubrel 65535
			logged 2
			sync
			< PUBCOMP 65535
			records x`,
		"a full log keeps releases waiting, too": `
			open new
			> publish 2 5 x
			logged 1
			sync
			< PUBREC 5
			full
			> publish 2 6 y
			> pubrel 5
			quiet
			cut
			open kept
			> publish 2 6 dup y
			> pubrel 5
			quiet
			room
			logged 2
			sync
			< PUBREC 6
			< PUBCOMP 5
			records x y`,
	} {
		t.Run(name, func(t *testing.T) {
			st := newScripted(t, SourceConfig{QoS: 2})
			st.play(script)
			st.p.end(st.run)
		})
	}
}

// TestDeadLettersAtQoS2: what cannot be a record is kept once, and its identifier is free afterwards.
func TestDeadLettersAtQoS2(t *testing.T) {
	st := newScripted(t, SourceConfig{QoS: 2, Key: extract.KeyRule{Kind: extract.KeyJSON, Path: "k"}})
	st.play(`
		open new
		> publish 2 5 {"n":1}`)
	st.log.wait(t, 1)
	st.play(`
		> publish 2 5 dup {"n":1}
		quiet
		sync
		< PUBREC 5
		> pubrel 5
		< PUBCOMP 5
		> publish 2 5 {"k":"a"}
		logged 1
		sync
		< PUBREC 5
		letters 1`)
	st.p.end(st.run)
}

// TestAtLeastOnce has what is certain at QoS 1: a message whose PUBACK was never sent is the same one when
// it comes again in its session. After a restart nobody knows what was sent.
func TestAtLeastOnce(t *testing.T) {
	for name, script := range map[string]string{
		"acknowledged late, on the next connection": `
			open new
			> publish 1 5 x
			logged 1
			cut
			open kept
			quiet
			> publish 1 5 dup x
			quiet
			sync
			< PUBACK 5
			records x`,
		"durable while there is no connection": `
			open new
			> publish 1 5 x
			logged 1
			cut
			connack kept
			sync
			suback
			> publish 1 5 dup x
			< PUBACK 5
			> publish 1 5 dup x
			logged 2
			sync
			< PUBACK 5
			records x x`,
		"another message under the identifier": `
			open new
			> publish 1 5 x
			logged 1
			cut
			open kept
			> publish 1 5 dup y
			logged 2
			sync
			< PUBACK 5
			records x y`,
		"the session is lost": `
			open new
			> publish 1 5 x
			logged 1
			cut
			open new
			> publish 1 5 dup x
			logged 2
			sync
			< PUBACK 5
			records x x`,
		"killed before PUBACK": `
			open new
			> publish 1 5 x
			logged 1
			cut
			open kept
			sync
			quiet
			kill
			open kept
			> publish 1 5 dup x
			logged 2
			sync
			< PUBACK 5
			records x x`,
	} {
		t.Run(name, func(t *testing.T) {
			st := newScripted(t, SourceConfig{QoS: 1})
			st.play(script)
			st.p.end(st.run)
		})
	}
}

// TestSessionsLostAreCounted: those that there were, also in a former process.
func TestSessionsLostAreCounted(t *testing.T) {
	st := newScripted(t, SourceConfig{QoS: 1})
	count := func(want uint64) {
		t.Helper()
		if got := st.src.Status().SessionsLost; got != want {
			t.Fatalf("%d sessions lost, want %d", got, want)
		}
	}
	st.play("open new\nquiet")
	count(0)
	st.play("cut\nopen kept\nquiet")
	count(0)
	st.play("cut\nopen new\nquiet")
	count(1)
	st.play("kill\nopen kept\nquiet")
	count(0)
	st.play("kill\nopen new\nquiet")
	count(1)
	st.p.end(st.run)
}

// TestRenamedAreCounted: what a broker that has lost its identifiers seems to send again is a new record, and is
// counted for people to see, but not what may be what it says it is.
func TestRenamedAreCounted(t *testing.T) {
	const before = `
		open new
		> publish 2 5 x
		logged 1
		sync
		< PUBREC 5
		cut
		open kept
		`
	for name, k := range map[string]struct {
		script, id string
		want       uint64
	}{
		"sent again under another identifier": {"> publish 2 1 dup x\nlogged 2\nsync\n< PUBREC 1\nrecords x x", "", 1},
		"under its own":                       {"> publish 2 5 dup x\n< PUBREC 5\nrecords x", "", 0},
		"another one as well":                 {"> publish 2 5 dup x\n< PUBREC 5\n> publish 2 6 x\nlogged 2\nsync\n< PUBREC 6\nrecords x x", "", 0},
		"both are sent again":                 {"> publish 2 5 dup x\n< PUBREC 5\n> publish 2 6 dup x\nlogged 2\nsync\n< PUBREC 6\nrecords x x", "", 0},
		"a new one":                           {"> publish 2 1 x\nlogged 2\nsync\n< PUBREC 1\nrecords x x", "", 0},
		"another text":                        {"> publish 2 1 dup y\nlogged 2\nsync\n< PUBREC 1\nrecords x y", "", 0},
		"with an id nobody need be told":      {"> publish 2 1 dup x\nlogged 2\nsync\n< PUBREC 1\nrecords x x", "n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			st := newScripted(t, SourceConfig{QoS: 2, ID: k.id})
			st.play(before + k.script)
			if got := st.src.Status().Renamed; got != k.want {
				t.Errorf("%d are counted, want %d", got, k.want)
			}
			st.p.end(st.run)
		})
	}
}

// TestInFlightLimit: a broker that has at most 20 messages unacknowledged gets on with what the log makes
// durable; nothing else is waited for.
func TestInFlightLimit(t *testing.T) {
	const window, messages = 20, 1000
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			d, log := newDouble(t), newLog(false)
			s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: qos}, testDeps(nil))
			run := startSource(t, s, log)
			p := d.openSource(false)
			sent, open := 0, 0
			for done := 0; done < messages; {
				for ; open < window && sent < messages; sent++ {
					p.publish(qos, uint16(sent+1), false, "t", strconv.Itoa(sent))
					open++
				}
				switch c := p.read().(type) {
				case *packets.PubrecPacket:
					p.ack(typePubrel, c.MessageID)
				case *packets.PubackPacket, *packets.PubcompPacket:
					open--
					done++
				default:
					t.Fatalf("got %s", word(c))
				}
			}
			log.wait(t, messages)
			p.end(run)
		})
	}
}
