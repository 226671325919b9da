// Package job turns a job file into a graph and a graph into a physical plan.
//
//	file, err := job.Parse("vibration.yaml", data)    // the file, checked, errors with positions
//	graph, err := job.Build(file)                     // nodes, edges, where nodes run
//	plan, err := job.Plan(graph, agents, modules, 1, nil) // tasks, channels, chains on agents
//
// Everything here is pure: the same bytes, agents and digests give the same plan, byte for byte.
//
// # The job file
//
// The keys, with their defaults:
//
//	name:                              # letters, digits, - and _, at most 64, as all names
//	checkpoint: {interval: 10s, timeout: 1m, min_pause: 500ms, mode: exactly_once, replicate: true,
//	             detach_after: 1m, tolerate_failures: 3}   # mode: or at_least_once, synchronous, none
//	recovery: {replace: manual,        # automatic: a device that is back under its name without its log goes on
//	                                   # from the replica; what only the old one knew is lost
//	           restart: manual}        # automatic: where replay differs, or a gap cannot be refilled, tasks fed by
//	                                   # others go back to the newest checkpoint that counts
//	sources:
//	  NAME:
//	    mqtt: {broker, client_id, user, password_file, tls: {ca_file, cert_file, key_file}, topics, qos: 1,
//	           keep_alive: 30s,
//	           retained: take,         # with every subscription, so after every lost connection again; or
//	                                   # skip, or first: when the source starts for the first time only
//	           when_full: wait,        # acknowledge nothing while the log has no room; or shed_oldest
//	           sequence: {json: path}} # numbers, one by one per key: missing ones are counted; none
//	    file: {path, follow: false}    # or this instead of mqtt: lines; the path is the topic
//	    generator: {records: 0,        # or this: records {"n":0,"v":57.31} and so on, so many; 0: no end
//	                rate: 0,           # a second; 0: as many as the task takes
//	                keys: 100,         # k0 to k99, which stand where a topic does
//	                size: 0,           # bytes of a value, by padding
//	                seed: 0,           # other records; sources and agents differ in any case
//	                stamp: false}      # the time at which it was made as "t", microseconds since 1970
//	    key: topic                     # or {segment: 3} counted from 0, {json: path}, {const: x}
//	    id: path                       # or {json: path, window: 1024}; none
//	    time: {json: path, unit: ms,   # s, ms, us, ns, rfc3339; without json, or as time: arrival, the time
//	                                   # of arrival. With it the job has event time, see below
//	           max_delay: 0s,          # by how much records may be out of order and not be late
//	           idle: 1m,               # without records for so long, the source is not waited for; 0s: never
//	           max_ahead: 1m,          # of the agent's clock: what is further ahead moves nothing; 0s: anything
//	           detached: wait}         # for a gateway that is away; or pass
//	    on: {label: value}             # every agent
//	operators:
//	  NAME:
//	    wasm: name@version             # or ./file.wasm beside the job file
//	    native: count                  # or this instead: count, sum, mean, min, max per key, of the
//	                                   # number in the value or in its JSON field config: {field: path}
//	    from: node                     # or node.output, or a list of those
//	    key_by: key                    # as key above, or key; none
//	    parallelism: 1
//	    on: {label: value}             # where its input runs
//	    config: {name: text}
//	    on_error: dead_letter          # or skip, fail
//	    limits: {memory: 64MiB, time: 1s, output: 8MiB, state: 64MiB, log_rate: 10,
//	             timers: 100000}
//	                                   # of WebAssembly; time and output per batch, log lines per second.
//	                                   # Time is a count of instructions that takes about as long on a
//	                                   # fast machine; a batch of n records has n/100 of it on top
//	sinks:
//	  NAME:
//	    mqtt: {broker, client_id, user, password_file, tls, topic, payload: "{value}", qos: 1, retain: false,
//	           in_flight: 256}         # messages not yet confirmed; at QoS 2 20, and not above the broker's limit
//	    log: {}                        # or this instead of mqtt
//	    file: {path, line: "{value}"}  # or this
//	    from: node
//	    commit: immediate              # or checkpoint: when a checkpoint that contains the record counts
//
// JSON paths are those of gjson. Templates of sinks know {key} {value} {time} {number} {channel}
// {topic}, and {value.PATH} for a field of the JSON in the value. A record whose topic or payload cannot
// be made, since a field is missing or the topic is none, is a dead letter; in a line of a file the field
// is left out; {agent} and {label.NAME} are filled in when the plan is made, in these as in topics and
// client_id, and {task} in the path of a file.
//
// # Where things run
//
// A source runs once on every agent that carries all labels of its `on` (all agents if it has none).
// An operator without `on` runs where its input runs, and so does one whose `on` equals that of its
// input: once per agent, or as the same number of parallel tasks. With another `on`, or with
// `parallelism`, it runs as that many tasks (1 by default), spread round-robin over the matching
// agents by name. A sink runs in the task whose output it takes.
//
// An operator is chained, that is called within the task of its input, if it has a single input and
// either runs where the input runs without records having to change tasks, or both have just one
// task, on the same agent. Otherwise its input is streamed.
//
// # Loops
//
// Operators may take records from those that they lead to. The edges that close loops, the back edges,
// are found by depth-first search from the sources in the order of the file; the operator that such an
// edge leads to is the loop's head. A head runs where its other inputs say, and is never chained to
// what feeds it; back edges are always streamed, also from a task to itself. If the head has several
// tasks, a back edge goes from each task to the one beside it where both run side by side without
// key_by; otherwise key_by decides. A loop that no source leads to is an error.
//
// # Event time
//
// If a source of the job has `time`, all of them make watermarks, and operators see how far event time has come.
// A watermark is the highest event time that a source has logged, less max_delay; a record with a time before it is
// late, and what becomes of it is the operator's business. Watermarks pass through operators, and where several
// channels come together the lowest counts. Not counted are channels that have ended, and idle ones; if all are
// idle, the highest counts. A back edge carries none. At the end of the input the watermark is beyond
// all times.
//
// A device whose clock is far ahead would make all others late: event times beyond max_ahead of the agent's clock
// are counted (event_time_ahead) and move nothing; the records go on as they are. A source that was down is
// not idle for that: what its broker has kept for it comes first. While a gateway is detached from
// checkpoints event time waits for it, unless its source says `detached: pass`; what it sends later may then be late.
//
// Watermarks follow from the log like everything else. Where time must pass without records (an idle source, a timer of
// processing time) the agent's clock is logged, and only then.
//
// # What key_by means
//
// Without key_by records keep their key and go straight on. With it each record gets the key that
// the rule says (`key` keeps the one it has) and goes to the task that owns the key's group. Where
// the operator runs once per agent, or as one task, there is only one task to go to: the key changes
// and the operator can still be chained. Parallelism above 1 needs a key_by unless the operator takes
// over its input's tasks one to one.
package job
