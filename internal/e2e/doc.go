// Package e2e tests the whole as its users have it: the agent's binary in processes of its own, mosquitto
// as the broker, mosquitto_pub and mosquitto_sub as the clients, and the command line. The tests carry
// the build tag mosquitto:
//
//	go test -tags mosquitto ./internal/e2e
//
// Those on disks that are full, slow or for reading only carry the tag fuse: they mount file systems, for which they
// must be root and need /dev/fuse.
//
// Environment:
//
//	WEIR_E2E_SEED=N     repeats what chance decided in a run that printed this seed
//	WEIR_E2E_TIME=2m    how long agents are killed at random (30s by default)
//	WEIR_E2E_RATE=2000  readings a second
//	WEIR_E2E_CHAOS=whole  the tests of MQTT in full, as make chaos-mqtt runs them
//	WEIR_E2E_KEEP=1     leaves the directory, with what the agents said, also if all is well
package e2e
