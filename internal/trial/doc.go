// Package trial has what trials of whole agents are made of, beside the agents' processes (see package fleet):
// links that are cut and slow ([Proxy]), a disk that forgets at a power cut what was not fsynced and that can be
// full, slow, or for reading only ([Disk]), and MQTT clients that send and take every message exactly once ([Sender], [Reader]).
package trial
