// Package mqtt receives from and publishes to MQTT 3.1.1 brokers: [Source] and [Sink].
//
// Invariants:
//   - A message is acknowledged (PUBACK, PUBREC) only after the ingest log has said that it, or the
//     dead letter it became, is on disk, and in the order in which the messages came. The exceptions are
//     what the job asks for: retained messages that are skipped, and what is shed while the log is full.
//   - The identifier of a QoS 2 message is in the same entry of the log as the message. PUBCOMP is sent only
//     after an entry that takes it away is on disk. So whoever reads the log knows exactly the messages
//     that are taken and not released.
//   - In a session that the broker has begun anew nothing is subscribed to before the log has forgotten the
//     identifiers of the one before.
//   - Nothing is answered on a connection that it was not asked on.
//   - An item is handed over only when PUBACK or PUBCOMP has come for it and for all items before it
//     (QoS 0: when its bytes were given to the operating system).
//   - Nothing blocks for ever: every read, write and dial has a deadline; what waits in memory is
//     bounded in bytes, and behind the bound the connection is not read (QoS 1 and 2) or the oldest
//     messages are shed and counted (QoS 0; of any QoS while the log is full, if the job says shed_oldest).
//   - Time is measured by a clock that nobody sets: the agent's clock only stamps messages.
//   - Everything that Run starts has ended when it returns.
//
// The packets CONNECT and SUBSCRIBE and the websocket connection are those of the Eclipse Paho
// library; its client is not used. That client acknowledges through a queue that blocks the caller
// while the network does, drops acknowledgements around a reconnect, may hold a Publish for its
// whole write timeout after the connection was lost, leaves goroutines behind Disconnect, reads a
// packet of any size into memory, and writes each packet with a call of its own. A connection here
// is two goroutines (see session) and ends with its connection; state that outlives it belongs to
// the source or the sink.
//
// # What is exact
//
// QoS 0: what the broker delivers and is not shed is logged once.
//
// QoS 1: a message that comes again is recognised only if its PUBACK was never sent, by this process and in
// the same session; every other one is a new record, since an identifier seen before with DUP set may well
// be that of a new message, unless the source names an id.
//
// QoS 2: each message is logged once, across lost connections, kills and power cuts. The points at which the
// process may end, and what happens then:
//
//	before the entry with message and identifier is on disk   the broker sends the message again; it is taken
//	after it, up to PUBREC's arrival                          it comes again, is recognised, and PUBREC sent
//	after that, up to the entry that takes the identifier     PUBREL comes (again); the entry is written, and
//	away being on disk                                        then PUBCOMP sent
//	after it, up to PUBCOMP's arrival                         PUBREL comes again; nothing is known of the
//	                                                          identifier, and PUBCOMP is sent
//	after that                                                the broker may use the identifier for another
//	                                                          message, which nobody takes for a repeat
//	the broker has lost the session, before the entry that    the next CONNACK may say that the session is
//	forgets its identifiers is on disk                        there: the new one. See below.
//
// "Recognised" means: an identifier that is not released, the same topic and payload (64 bits of hash), and on
// another connection than before also DUP, which a broker must set on what it sends again (MQTT 3.1.1,
// 3.3.1.1). By the protocol the identifier alone would do. The rest is for a session that was lost without
// our knowing, because the broker says so wrongly or because its CONNACK never arrived: then another
// message may come under it, and must not be dropped. A first delivery with DUP set is never dropped.
//
// The server embedded in the agent, and any NATS server, keeps packet identifiers in memory only and begins with 1
// again when it is started; it notes after the fact what it has sent and what was acknowledged. So after its restart it
// sends messages again under other identifiers, at QoS 2 too, at times half a minute later. A message that comes again may then be, to the last byte, what another message with the
// same text would be: no client can tell, and no setting changes it (TestServerForgetsIdentifiers). Name an id there.
// What looks like such a repeat is taken, and counted ([SourceStatus].Renamed).
//
// To that server publish at QoS 1, sinks too. On PUBREL it stores a message for those who get it and deletes the copy that
// it held, without an order between both: if it is killed in between, PUBREL comes again, is answered, and the message is
// gone (TestServerLosesWhatIsReleased). At QoS 1 it acknowledges what is on disk.
//
// Mosquitto 2.0.11 sends PUBLISH again, with DUP, for messages that it has sent PUBREL for, when a connection
// is lost as soon as it has been made; a broker must not (4.3.3). The identifier is free then, and a broker
// that keeps to the protocol would mean another message, so it is taken: an id field recognises it.
//
// A broker that sends a retained message sends it with every subscription, that is, after every lost
// connection: each is a message of its own, at QoS 2 as well.
//
// A sink at QoS 0 and 1 uses a clean session and sends again, in order, what was not confirmed when
// a connection was lost: its own queue is the only truth, so no order but its own can arise.
//
// # Exactly once out
//
// At QoS 2 a sink's session persists, packet identifiers follow from item numbers, and the task's log
// remembers how far the handshakes have come, so that they go on where a lost connection, a kill or a
// power cut has left them (MQTT 3.1.1, 4.3.3 and 4.4):
//
//	before         the log holds, durably
//	PUBLISH n      that items up to n, or some thousand further, may be sent
//	PUBREL n       that PUBREC has come for all items up to n
//
// After a restart replay makes equal items under equal numbers. One that may be sent is published with
// DUP, and a broker that has it answers PUBREC and passes it on once; one whose PUBREC is in the log is
// released again, which a broker that has released it answers with PUBCOMP. So PUBREL is never followed
// by a PUBLISH of the same item. An acknowledgement that answers nothing of its connection is ignored,
// and a PUBREC for an item that is still to be repeated is not answered: the PUBREL would make the broker
// take the repeat for a new message. If the first item of a run was never sent, nothing is under way, and
// a session that the broker has kept, perhaps of a deleted job of the same name, is dropped first.
//
// What a broker forgets nobody can make good. If it says that it has no session, an item whose PUBLISH
// may have been sent and whose PUBREC was not seen is published again, and arrives twice if the broker
// had passed it on before it forgot; an item whose PUBREC was seen and whose PUBCOMP was not is only
// released, and does not arrive if the broker forgot it before it passed it on. Both are counted as
// uncertain. The same holds, uncounted, for a broker that says it has a session of which it has lost a
// part, as mosquitto does that was killed since it last saved.
//
// No more than InFlight items are in a handshake at once: mosquitto 2 ends the connection of a client that
// has more than max_inflight_messages (20) of them, and mosquitto 1 throws away what is beyond.
package mqtt
