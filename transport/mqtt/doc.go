// Package mqtt receives from and publishes to MQTT 3.1.1 brokers: [Source] and [Sink].
//
// Invariants:
//   - A message is acknowledged (PUBACK, PUBREC) only after the ingest log has said that it, or the
//     dead letter it became, is on disk, and in the order in which the messages came.
//   - An item is handed over only when PUBACK or PUBCOMP has come for it and for all items before it
//     (QoS 0: when its bytes were given to the operating system).
//   - Nothing blocks for ever: every read, write and dial has a deadline; what waits in memory is
//     bounded in bytes, and behind the bound the connection is not read (QoS 1 and 2) or the oldest
//     messages are shed and counted (QoS 0).
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
// QoS 0: what the broker delivers and is not shed is logged once. QoS 1: what the broker sends again
// after a lost connection is by the protocol a new message and is logged again, unless the source
// names an id. A repeat within one connection, under a packet identifier that is not acknowledged
// yet, is recognised. QoS 2: identifiers are remembered from PUBLISH to PUBREL across connections of
// one process (MQTT 3.1.1, 4.3.3), so that repeats after a lost connection are recognised; PUBREC is
// sent when the message is durable and PUBCOMP at once on PUBREL. Across a restart of the process
// the identifiers are not remembered: a message whose PUBREC the broker did not get comes again.
//
// A sink at QoS 0 and 1 uses a clean session and sends again, in order, what was not confirmed when
// a connection was lost: its own queue is the only truth, so no order but its own can arise. At
// QoS 2 its session persists and packet identifiers follow from item numbers, so that the broker
// recognises what is sent again after a lost connection. A run of such a sink begins with a session
// from scratch: items that a former process had delivered and not yet known as handed over are
// published again, and may arrive twice.
package mqtt
