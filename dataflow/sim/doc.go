// Package sim holds the simulator of a whole job: a seeded, single-threaded, discrete-event test that
// runs the real tasks, aligners and coordinators under virtual time and breaks everything around them.
//
// What is real: [dataflow.Task] with its inbox, outlets, sink ports, order log and recovery,
// [dataflow.IngestLog], [abs.Aligner], [abs.Coordinator] and their records. What is played: disks (log
// and snapshots), input streams, the control plane's KV, operators, brokers and sinks, and the shell of
// an agent that ties them together. All of it is in test files, since it draws random numbers.
//
//	go test ./dataflow/sim                            some seeds of every topology, every rule, every step
//	go test ./dataflow/sim -sim.seeds=2000 -run Seeds -timeout 2h
//	                                                  more seeds
//	go test ./dataflow/sim -run TestSeed -sim.seed=7 -sim.topo=shuffle -v
//	                                                  one seed again, with its trace
//	… -sim.faults=kill,power                          with these kinds of faults only
//	… -sim.rule=order                                 with a rule left out
//	go test ./dataflow/sim -run EveryStep -sim.stride=1
//	                                                  one fault after every single event of a short run
//	go test ./dataflow/sim -run AtEveryStep -sim.stride=1
//	                                                  the same over the end of all inputs, and of coordinators
//	… -run Seeds -sim.profile=steady -sim.faults=none a world of another sort, by name (rule_test.go)
//
// The same seed gives the same run. Topologies (topology_test.go), faults (fault_test.go) and rules that
// can be left out (rule_test.go) are tables.
//
// What must hold (oracle_test.go):
//   - under one number of a channel there is one content, whenever it is sent; the same for sinks;
//   - every record comes out at every sink once, or is among the dead letters once, and the operators'
//     states count exactly what they have sent;
//   - no task fails, none is restored but for a fault of its own, and none is rewound but for numbers
//     that its receiver's stream has lost;
//   - an epoch's key changes only as it may; a checkpoint is committed only with parts that are on their
//     disks, load and fit together; the whole job can be restored from it and comes to the same sums;
//   - where nothing else takes so long, no task waits for an epoch that is over, makes again what a part of it holds,
//     or asks for what it has, and no term leaves the decisions to the one before (timely_test.go);
//   - in the end everything is delivered, and two checkpoints later logs, streams, windows and parts
//     hold next to nothing.
package sim
