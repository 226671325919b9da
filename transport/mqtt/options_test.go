package mqtt

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

func (p *peer) retained(qos byte, id uint16, topic, payload string) {
	p.t.Helper()
	m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	m.Qos, m.MessageID, m.Retain, m.TopicName, m.Payload = qos, id, true, topic, []byte(payload)
	p.write(m)
}

// TestRetained: what each rule does with retained messages at the first start, after a lost connection, and
// after a kill.
func TestRetained(t *testing.T) {
	for rule, want := range map[Retained]string{
		RetainedTake:  "r1 live r2 live r3 live",
		RetainedSkip:  "live live live",
		RetainedFirst: "r1 live r2 live live",
	} {
		t.Run(fmt.Sprint(rule), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newLog(false)
				broker := Broker{URL: "tcp://h", ClientID: "c"}
				begin := func() (*Source, *running, *peer) {
					s := quick(t, SourceConfig{Broker: broker, QoS: 2, Retained: rule}, testDeps(nil))
					conns := piped(s)
					run := startSource(t, s, log)
					return s, run, subscribed(t, <-conns)
				}
				deliver := func(p *peer, id uint16, payload string) {
					t.Helper()
					p.retained(2, id, "t", payload)
					p.publish(2, id+1, false, "t", "live")
					p.expect(fmt.Sprintf("PUBREC %d", id), fmt.Sprintf("PUBREC %d", id+1))
					p.ack(typePubrel, id)
					p.ack(typePubrel, id+1)
					p.expect(fmt.Sprintf("PUBCOMP %d", id), fmt.Sprintf("PUBCOMP %d", id+1))
				}
				_, run, p := begin()
				deliver(p, 1, "r1")
				run.cancel() // so soon that there may have been more to come
				p.expect("DISCONNECT")
				p.cut()
				run.wait(t)

				_, run, p = begin()
				deliver(p, 3, "r2")
				time.Sleep(retainedWait)
				synctest.Wait()
				run.cancel()
				p.expect("DISCONNECT")
				p.cut()
				run.wait(t)

				s, run, p := begin()
				deliver(p, 5, "r3")
				st := s.Status()
				run.cancel()
				p.expect("DISCONNECT")
				p.cut()
				run.wait(t)
				if got := log.values(t); got != want {
					t.Errorf("logged %s, want %s", got, want)
				}
				if skipped := rule != RetainedTake; skipped != (st.Skipped == 1) {
					t.Errorf("%d left out", st.Skipped)
				}
			})
		})
	}
}

// TestShedOldest: while the log is full, what has waited in vain is acknowledged and counted, oldest first,
// so that a broker with a small window goes on sending; what is newest is logged when there is room.
func TestShedOldest(t *testing.T) {
	for _, qos := range []byte{0, 1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const window, n = 5, 100
				log := newLog(false)
				s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, QoS: qos, ShedOldest: true}, testDeps(nil))
				s.bounds.logRetry = defaultSourceBounds.logRetry
				conns := piped(s)
				run := startSource(t, s, log)
				p := subscribed(t, <-conns)
				log.setFull(true)
				for i := range n {
					p.publish(qos, uint16(i+1), false, "t", fmt.Sprint(i))
					if (i+1)%window != 0 || i == n-1 {
						continue
					}
					for id := i - window + 2; id <= i+1; id++ {
						switch qos {
						case 0:
							time.Sleep(10 * time.Millisecond)
						case 1:
							p.expect(fmt.Sprintf("PUBACK %d", id))
						case 2:
							p.expect(fmt.Sprintf("PUBREC %d", id))
						}
					}
					if qos == 2 { // released without the log, which has never had them
						for id := i - window + 2; id <= i+1; id++ {
							p.ack(typePubrel, uint16(id))
							p.expect(fmt.Sprintf("PUBCOMP %d", id))
						}
					}
				}
				synctest.Wait()
				shed := int(s.Status().Shed)
				if shed < n-3*window || shed >= n || s.Status().State != SourceLogFull {
					t.Fatalf("%+v", s.Status())
				}
				log.setFull(false)
				log.wait(t, n-shed)
				run.cancel()
				switch qos {
				case 1:
					p.expect("PUBACK 96", "PUBACK 97", "PUBACK 98", "PUBACK 99", "PUBACK 100")
				case 2:
					p.expect("PUBREC 96", "PUBREC 97", "PUBREC 98", "PUBREC 99", "PUBREC 100")
				}
				p.expect("DISCONNECT")
				p.cut()
				run.wait(t)
				for i, rec := range log.records(t) {
					if string(rec.Value) != fmt.Sprint(shed+i) {
						t.Fatalf("record %d is %s, %d shed", i, rec.Value, shed)
					}
				}
				if st := s.Status(); st.Logged != uint64(n-shed) || st.Received != n || st.Shed != uint64(shed) {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// TestFullLogOfAQuietSource: once all that waited for a full log is shed, the source does not go on saying that the log
// is full, which it would learn only from another message.
func TestFullLogOfAQuietSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newLog(false)
		s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, QoS: 1, ShedOldest: true}, testDeps(nil))
		s.bounds.logRetry = defaultSourceBounds.logRetry
		conns := piped(s)
		run := startSource(t, s, log)
		p := subscribed(t, <-conns)
		log.setFull(true)
		for id := uint16(1); id <= 2; id++ {
			p.publish(1, id, false, "t", "x")
			p.expect(fmt.Sprintf("PUBACK %d", id))
			synctest.Wait()
			if st := s.Status(); st.State != SourceLogFull || st.Reason == "" || st.Shed != uint64(id) {
				t.Errorf("when message %d is shed: %+v", id, st)
			}
			time.Sleep(2 * s.bounds.logRetry.max)
			synctest.Wait()
			if st := s.Status(); st.State != SourceReceiving || st.Reason != "" {
				t.Errorf("when nothing waits: %+v", st)
			}
		}
		p.end(run)
	})
}

// TestSequence: what is missing is counted once, over restarts; repeats and senders that begin again are no
// gaps.
func TestSequence(t *testing.T) {
	log := newLog(false)
	number := func(key string, n int) message {
		return message{topic: key, payload: fmt.Appendf(nil, `{"n":%d}`, n)}
	}
	var r *receiver
	restart := func() {
		s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, Sequence: "n"}, testDeps(nil))
		r = newReceiver(s, log)
		r.restore()
	}
	send := func(gaps, missing uint64, messages ...message) {
		t.Helper()
		for _, m := range messages {
			r.enqueue(m)
		}
		if err := r.flush(true); err != nil {
			t.Fatal(err)
		}
		r.settle()
		if st := r.src.Status(); st.Gaps != gaps || st.Missing != missing {
			t.Fatalf("%d gaps, %d missing; want %d, %d", st.Gaps, st.Missing, gaps, missing)
		}
	}
	restart()
	send(0, 0, number("a", 7), number("a", 8), number("b", 100))
	send(1, 2, number("a", 11), number("b", 101))
	send(1, 2, number("a", 11), number("a", 9), number("a", 12)) // repeats
	log.setFull(true)
	send(1, 2, number("a", 20))
	r.retry.stop()
	send(1, 2)
	log.setFull(false)
	r.retry.stop()
	send(2, 9) // counted when it is logged
	restart()
	send(1, 1, number("a", 22), number("b", 102))
	send(1, 1, number("a", 1), number("a", 2)) // began again
	send(2, 99898, number("b", 100000))
	send(2, 99898, message{topic: "a", payload: []byte("x")}, message{topic: "a", payload: []byte(`{"n":-5}`)}, message{topic: "a"}) // no numbers
}

func TestSequenceIsBounded(t *testing.T) {
	s := newSequence("n")
	s.begin()
	for i := range maxSequenceKeys + 10 {
		s.take(fmt.Append(nil, i), []byte(`{"n":1}`))
	}
	if got := s.commit(); got.untracked != 10 || len(s.last) != maxSequenceKeys {
		t.Errorf("%d untracked, %d followed", got.untracked, len(s.last))
	}
}
