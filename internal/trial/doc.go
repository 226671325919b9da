// Package trial has what trials of whole agents are made of, beside the agents' processes (see package fleet):
// links that are cut and slow ([Proxy]) and MQTT clients that send and take every message exactly once ([Sender],
// [Reader]). Package lossy below it has the disk.
package trial
