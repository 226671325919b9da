package abitest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops"
)

// Options of the checks. The zero value is usable.
type Options struct {
	CacheDir string // for compiled modules, see [wasmops.Options]
	// Config is the operator's configuration, for [Verify].
	Config map[string]string
}

// Result is one check of the kit.
type Result struct {
	Name string
	Err  error // nil: passed
}

// T is what [Run] needs of a [testing.T].
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Run runs the kit on a conformance operator, as a test.
func Run(t T, wasm []byte, opt Options) {
	t.Helper()
	for _, r := range Kit(t.Context(), wasm, opt) {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Name, r.Err)
		} else {
			t.Logf("%s: passed", r.Name)
		}
	}
}

// Kit runs all checks on a conformance operator. If the host refuses the module, that is the only one.
func Kit(ctx context.Context, wasm []byte, opt Options) []Result {
	k := &kit{wasm: wasm, opt: opt, said: &observer{counters: map[string]int64{}, gauges: map[string]float64{}}}
	host, err := wasmops.NewHost(ctx, wasmops.Options{Modules: single(wasm), CacheDir: opt.CacheDir, Observer: k.said})
	if err != nil {
		return []Result{{"host", err}}
	}
	k.host = host
	_, err = host.Check(ctx, wasm)
	results := []Result{{"exports, imports and limits", err}}
	if err == nil {
		for _, c := range checks() {
			results = append(results, Result{c.name, c.run(k, ctx)})
		}
	}
	if err := host.Close(ctx); err != nil {
		results = append(results, Result{"host", err})
	}
	return results
}

type check struct {
	name string
	run  func(*kit, context.Context) error
}

func checks() []check {
	list := []check{
		{"empty batch", (*kit).emptyBatch},
		{"large batch", (*kit).largeBatch},
		{"many records from one", (*kit).manyOutputs},
		{"outputs", (*kit).outputs},
		{"configuration", (*kit).configuration},
		{"keyed state", (*kit).keyedState},
		{"counters, gauges and logs", (*kit).countersAndLogs},
		{"clock", (*kit).clock},
		{"timers", (*kit).timers},
		{"watermarks and the end", (*kit).watermarks},
		{"state that expires", (*kit).expiry},
		{"failing timer", (*kit).failingTimer},
		{"failure", (*kit).failure},
		{"malformed batches", (*kit).malformed},
		{"sizes of records", (*kit).sizes},
		{"snapshots", (*kit).snapshots},
		{"instances", (*kit).instances},
		{"variables migrate", (*kit).migration},
	}
	for _, name := range slices.Sorted(maps.Keys(goldenConfig)) {
		list = append(list, check{"golden " + name, func(k *kit, ctx context.Context) error { return k.runGolden(ctx, name) }})
	}
	return list
}

type kit struct {
	wasm []byte
	opt  Options
	host *wasmops.Host
	said *observer
}

// single is the one module under test.
type single []byte

func (s single) Open(string) ([]byte, error) { return s, nil }

// observer keeps what guests say.
type observer struct {
	logs     []string
	counters map[string]int64
	gauges   map[string]float64
}

func (o *observer) Log(_, _ string, level wasmops.LogLevel, text string) {
	o.logs = append(o.logs, level.String()+" "+text)
}
func (o *observer) LogDropped(string, string, int) {}
func (o *observer) Gauge(_, _, gauge string, value float64) {
	o.gauges[gauge] = value
}
func (o *observer) Count(_, _, counter string, delta int64) {
	o.counters[counter] += delta
}

func (k *kit) spec(config map[string]string, outputs ...string) dataflow.OperatorSpec {
	return dataflow.OperatorSpec{
		Name: "conformance", Task: "test/conformance", Digest: wasmops.Digest(k.wasm),
		Config: config, Inputs: []string{"a", "b"}, Outputs: append([]string{"out"}, outputs...),
	}
}

// with runs f with a fresh instance.
func (k *kit) with(ctx context.Context, spec dataflow.OperatorSpec, f func(dataflow.Operator) error) error {
	op, err := k.host.New(ctx, spec, nil)
	if err != nil {
		return err
	}
	return errors.Join(f(op), op.Close())
}

const stamp = 1_700_000_000_000

func command(key, value string) frame.Record {
	return frame.Record{Key: []byte(key), Time: 5, Value: []byte(value)}
}

func batch(records ...frame.Record) dataflow.Batch {
	b := dataflow.Batch{Stamp: stamp, Count: len(records)}
	for _, r := range records {
		b.Payload = frame.AppendRecord(b.Payload, r)
	}
	return b
}

// process runs a batch and returns the records that came out, by output.
func process(op dataflow.Operator, b dataflow.Batch) (got [3][]frame.Record, err error) {
	err = op.Process(b, func(output int, payload []byte, count int) error {
		for rest := bytes.Clone(payload); len(rest) > 0; {
			var r frame.Record
			var err error
			if r, rest, err = frame.Next(rest); err != nil {
				return err
			}
			got[output] = append(got[output], r)
		}
		return nil
	})
	return got, err
}

// values runs commands with the key "k" and wants these values on "out".
func values(op dataflow.Operator, commands []string, want ...string) error {
	var records []frame.Record
	for _, c := range commands {
		records = append(records, command("k", c))
	}
	return wantValues(op, batch(records...), want...)
}

func wantValues(op dataflow.Operator, b dataflow.Batch, want ...string) error {
	got, err := process(op, b)
	if err != nil {
		return err
	}
	for i := range max(len(got[0]), len(want)) {
		switch {
		case i >= len(got[0]):
			return fmt.Errorf("%d records came out, want %d", len(got[0]), len(want))
		case i >= len(want):
			return fmt.Errorf("record %d came out: %.100q; want %d", i+1, got[0][i].Value, len(want))
		case string(got[0][i].Value) != want[i]:
			return fmt.Errorf("record %d has the value %.100q, want %.100q", i+1, got[0][i].Value, want[i])
		}
	}
	return nil
}

func (k *kit) emptyBatch(ctx context.Context) error {
	return k.with(ctx, k.spec(nil, "side"), func(op dataflow.Operator) error {
		return cmp.Or(values(op, nil), values(op, []string{"v"}, "1"), values(op, nil), values(op, []string{"v"}, "2"))
	})
}

func (k *kit) largeBatch(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		const n = 100_000
		many := make([]frame.Record, n)
		want := make([]string, n)
		for i := range many {
			many[i], want[i] = command("k", "v"), strconv.Itoa(i+1)
		}
		if err := wantValues(op, batch(many...), want...); err != nil {
			return fmt.Errorf("batch of %d records: %w", n, err)
		}
		large := make([]frame.Record, 32)
		for i := range large {
			large[i] = command("k", "g"+strings.Repeat("x", 250<<10))
		}
		if err := wantValues(op, batch(large...), slices.Repeat([]string{"-"}, len(large))...); err != nil {
			return fmt.Errorf("batch of %d bytes: %w", len(large)*(250<<10), err)
		}
		return values(op, []string{"v"}, strconv.Itoa(n+1))
	})
}

func (k *kit) manyOutputs(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		const n = 200_000
		want := make([]string, n)
		for i := range want {
			want[i] = strconv.Itoa(i)
		}
		return cmp.Or(values(op, []string{"n" + strconv.Itoa(n)}, want...), values(op, []string{"n0"}), values(op, []string{"n2", "n1"}, "0", "1", "0"))
	})
}

func (k *kit) outputs(ctx context.Context) error {
	err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error { return values(op, []string{"s", "i"}, "0") })
	if err != nil {
		return fmt.Errorf("outputs that the job does not use: %w", err)
	}
	for _, places := range [][]string{{"side", "unused"}, {"unused", "side"}} {
		err := k.with(ctx, k.spec(nil, places...), func(op dataflow.Operator) error {
			b := batch(command("a", "s1"), command("b", "e2"), command("c", "s3"))
			b.Input = 1
			got, err := process(op, b)
			if err != nil {
				return err
			}
			for i, want := range [][]string{{"b e2"}, {"a s1", "c s3"}, {"a s1", "c s3"}} {
				var have []string
				for _, r := range got[i] {
					have = append(have, string(r.Key)+" "+string(r.Value))
				}
				if !slices.Equal(have, want) {
					return fmt.Errorf("output %s has %q, want %q", k.spec(nil, places...).Outputs[i], have, want)
				}
			}
			b = batch(command("k", "i"))
			b.Input = 1
			return wantValues(op, b, "1")
		})
		if err != nil {
			return fmt.Errorf("outputs %v: %w", places, err)
		}
	}
	if err := k.with(ctx, k.spec(nil, "sdie"), func(dataflow.Operator) error { return nil }); err == nil {
		return errors.New(`an output "sdie" is there, which the operator does not open`)
	}
	return nil
}

func (k *kit) configuration(ctx context.Context) error {
	long := strings.Repeat("long ", 2000)
	err := k.with(ctx, k.spec(map[string]string{"long": long}), func(op dataflow.Operator) error {
		return values(op, []string{"C", "clong", "cnone", "cratio"}, "0.5|7", long, "-", "-")
	})
	if err != nil {
		return err
	}
	err = k.with(ctx, k.spec(map[string]string{"ratio": "+2.50", "limit": "+12"}), func(op dataflow.Operator) error {
		return values(op, []string{"C", "cratio", "climit"}, "2.5|12", "+2.50", "+12")
	})
	if err != nil {
		return err
	}
	for _, wrong := range []struct{ key, value, what string }{
		{"limit", "x", "a whole number"}, {"limit", "1.5", "a whole number"}, {"limit", "", "a whole number"}, {"limit", "--1", "a whole number"},
		{"ratio", "1,5", "a number"}, {"ratio", "", "a number"}, {"ratio", "0x10", "a number"}, {"ratio", "\"a\\", "a number"},
	} {
		err := k.with(ctx, k.spec(map[string]string{wrong.key: wrong.value}), func(dataflow.Operator) error { return nil })
		if err := failed(err, fmt.Sprintf("config %s: %q is not %s", wrong.key, wrong.value, wrong.what)); err != nil {
			return fmt.Errorf("%s = %q: %w", wrong.key, wrong.value, err)
		}
	}
	return nil
}

// failed checks that err is a failure of the guest with that reason; "" stands for any.
func failed(err error, reason string) error {
	var guest *dataflow.GuestError
	switch {
	case err == nil:
		return errors.New("no failure")
	case !errors.As(err, &guest):
		return fmt.Errorf("not a failure of the guest: %w", err)
	case reason != "" && guest.Reason != reason:
		return fmt.Errorf("fails with the reason %q, want %q", guest.Reason, reason)
	}
	return nil
}

func (k *kit) keyedState(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		// Values that need larger buffers than an SDK begins with, and an order that is not that of putting.
		big := strings.Repeat("b", 100<<10)
		err := cmp.Or(
			wantValues(op, batch(command("z", "p26"), command("a/1", "p"+big), command("a/0", "p"), command("a", "p1"), command("a/1", "g")), big),
			wantValues(op, batch(command("k", "xa/"), command("k", "x"), command("k", "xb")), "", big, "1", "", big, "26"),
			wantValues(op, batch(command("a/1", "d"), command("a/1", "d"), command("a/1", "g"), command("a/0", "g")), "1", "0", "-", ""),
		)
		if err != nil {
			return err
		}
		var puts []frame.Record
		var want []string
		for i := range 3000 {
			n := i * 7 % 3000
			puts = append(puts, command(fmt.Sprintf("m%04d", n), "p"+strconv.Itoa(n)))
			want = append(want, strconv.Itoa(i))
		}
		longest := strings.Repeat("k", 4096)
		return cmp.Or(wantValues(op, batch(puts...)), values(op, []string{"xm"}, want...),
			wantValues(op, batch(command(longest, "p1"), command(longest, "g"), command("k", "xkkk")), "1", "1"))
	})
}

func (k *kit) countersAndLogs(ctx context.Context) error {
	clear(k.said.counters)
	clear(k.said.gauges)
	k.said.logs = nil
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		down := command("k", "ktwo")
		down.Time = -7
		if err := wantValues(op, batch(command("k", "kone"), command("k", "ktwo"), command("k", "kone"), down, command("k", "ulevel"), command("k", "l0quiet"), command("k", "l2"), command("k", "l3loud: ü"))); err != nil {
			return err
		}
		if want := map[string]int64{"one": 10, "two": -2}; !maps.Equal(k.said.counters, want) {
			return fmt.Errorf("counters are %v, want %v", k.said.counters, want)
		}
		if want := map[string]float64{"level": 2.5}; !maps.Equal(k.said.gauges, want) {
			return fmt.Errorf("gauges are %v, want %v", k.said.gauges, want)
		}
		if want := []string{"debug quiet", "warn ", "error loud: ü"}; !slices.Equal(k.said.logs, want) {
			return fmt.Errorf("log lines are %q, want %q", k.said.logs, want)
		}
		return nil
	})
}

func (k *kit) clock(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		b := batch(command("k", "t"))
		later := b
		later.Stamp += 1500
		return cmp.Or(wantValues(op, b, strconv.FormatInt(stamp, 10)), wantValues(op, later, strconv.FormatInt(stamp+1500, 10)), wantValues(op, b, strconv.FormatInt(stamp+1500, 10)))
	})
}

func (k *kit) failure(ctx context.Context) error {
	for commands, reason := range map[string]string{"v fout-of-range": "out-of-range", "e zebra": "unknown command", "e ": "empty command"} {
		err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
			emitted := false
			var records []frame.Record
			for c := range strings.SplitSeq(commands, " ") {
				records = append(records, command("k", c))
			}
			err := op.Process(batch(records...), func(int, []byte, int) error {
				emitted = true
				return nil
			})
			if emitted {
				return errors.New("a batch that failed put something out")
			}
			return failed(err, reason)
		})
		if err != nil {
			return fmt.Errorf("%q: %w", commands, err)
		}
	}
	return nil
}

// malformed gives batches that are not what their length and count say. No host does; a guest that reads
// past the end would work on what was there before.
func (k *kit) malformed(ctx context.Context) error {
	good := batch(command("key", "v"), command("key", "v")).Payload
	change := func(at int, bytes ...byte) []byte {
		b := slices.Clone(good)
		copy(b[at:], bytes)
		return b
	}
	for name, b := range map[string]dataflow.Batch{
		"cut within the header":  {Payload: good[:10], Count: 1},
		"cut within the value":   {Payload: good[:len(good)-1], Count: 2},
		"no bytes":               {Payload: nil, Count: 1},
		"too many records":       {Payload: good, Count: 3},
		"size of nothing":        {Payload: change(0, 0, 0, 0, 0), Count: 1},
		"size that wraps around": {Payload: change(0, 0xff, 0xff, 0xff, 0xff), Count: 1},
		"size of half of memory": {Payload: change(0, 0xfc, 0xff, 0xff, 0x7f), Count: 1},
		"size beyond the end":    {Payload: change(0, 200), Count: 1},
		"key beyond the record":  {Payload: change(12, 200), Count: 1},
		"headers beyond":         {Payload: change(14, 0xff, 0xff), Count: 1},
		"key and headers beyond": {Payload: change(12, 3, 0, 2, 0), Count: 1},
	} {
		err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
			b.Stamp = stamp
			return failed(op.Process(b, func(int, []byte, int) error { return nil }), "")
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (k *kit) sizes(ctx context.Context) error {
	largest := frame.MaxRecord - 16 - 1 // with the key "k"
	err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		whole := command("k", "e"+strings.Repeat("x", largest-1))
		longKey := command(strings.Repeat("k", frame.MaxKey), "e")
		var headers []byte
		for i := range 255 {
			headers, _ = frame.AppendHeader(headers, fmt.Sprintf("%03d", i), bytes.Repeat([]byte{byte(i)}, 250))
		}
		tall := frame.Record{Time: -1, Headers: headers, Value: []byte("h254")}
		return cmp.Or(
			values(op, []string{"w" + strconv.Itoa(largest), "w0"}, strings.Repeat("w", largest), ""),
			wantValues(op, batch(whole, longKey, tall), string(whole.Value), "e", strings.Repeat("\xfe", 250)),
			wantValues(op, batch(frame.Record{Value: []byte("e")}), "e"),
		)
	})
	if err != nil {
		return err
	}
	for _, size := range []int{largest + 1, 1 << 20, 900_000_000} {
		err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
			_, err := process(op, batch(command("k", "w"+strconv.Itoa(size))))
			return failed(err, "")
		})
		if err != nil {
			return fmt.Errorf("record with a value of %d bytes: %w", size, err)
		}
	}
	return nil
}

func (k *kit) instances(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(a dataflow.Operator) error {
		return k.with(ctx, k.spec(nil), func(b dataflow.Operator) error {
			return cmp.Or(values(a, []string{"v", "pone"}, "1"), values(b, []string{"v", "g"}, "1", "-"), values(a, []string{"v", "g"}, "2", "one"))
		})
	})
}
