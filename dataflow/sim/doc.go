// Package sim holds the simulator of a whole job: a seeded, single-threaded, discrete-event test that
// runs the real tasks, aligners and coordinators under virtual time and breaks everything around them.
//
// What is real: [dataflow.Task] with its inbox, outlets, sink ports, order log and recovery,
// [dataflow.IngestLog], [abs.Aligner], [abs.Coordinator] and their records. What is played: disks (log
// and snapshots), input streams, the control plane's KV, operators, brokers and sinks, and the shell of
// an agent that ties them together. All of it is in test files, since it draws random numbers.
//
//	go test ./dataflow/sim                                     a fixed number of seeds per topology
//	go test ./dataflow/sim -sim.seeds=2000                     more of them
//	go test ./dataflow/sim -run TestSeed -sim.seed=7 -sim.topo=shuffle -v
//	                                                           one seed again, with its trace
//	… -sim.rule=order                                          with a rule left out
//	… -sim.faults=kill,power                                   with these kinds of faults only
//
// The same seed gives the same run. Topologies, faults and rules that can be left out are tables.
package sim
