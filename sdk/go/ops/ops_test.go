package ops

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	weir "github.com/weir-stream/weir/sdk/go"
)

// event is a step of a test: a record, or a watermark.
type event struct {
	watermark bool
	input     int
	key       string
	time      int64
}

// events are records of a few keys out of order, with watermarks in between that leave some of them late.
func events(random *rand.Rand, n, inputs int) []event {
	var all []event
	at, watermark := int64(0), int64(-1000)
	for range n {
		at += int64(random.IntN(8))
		all = append(all, event{input: random.IntN(inputs), key: "k" + string('0'+byte(random.IntN(3))), time: at - int64(random.IntN(40))})
		if random.IntN(5) == 0 {
			if next := at - int64(random.IntN(60)); next > watermark {
				watermark = next
				all = append(all, event{watermark: true, time: next})
			}
		}
	}
	return all
}

// value is a record's number: different ones, whose sums are exact.
func value(i int) []byte { return fmt.Appendf(nil, "%d", i*i%1000) }

// play runs events through an operator and returns what came out, one line for each record.
func play(t *testing.T, op weir.Operator, all []event) (lines []string, h *weir.Harness) {
	t.Helper()
	h, err := weir.NewHarness(op, nil)
	if err != nil {
		t.Fatal(err)
	}
	add := func(got []weir.Emitted, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got {
			lines = append(lines, fmt.Sprintf("%s %s@%d %s", e.Output, e.Record.Key, e.Record.Time, e.Record.Value))
		}
	}
	for i, e := range all {
		if e.watermark {
			add(h.AdvanceWatermark(e.time))
		} else {
			add(h.Process(e.input, weir.Record{Key: []byte(e.key), Time: e.time, Value: value(i)}))
		}
	}
	add(h.End())
	return lines, h
}

// tested counts what a test has compared.
type tested struct{ lines, late, updates int }

// check fails if nothing of a kind was there.
func (n tested) check(t *testing.T, updates bool) {
	t.Helper()
	if n.lines < 1000 || n.late < 10 || updates && n.updates < 10 {
		t.Errorf("this tested little: %+v", n)
	}
}

// same compares lines.
func (n *tested) same(t *testing.T, what string, have, want []string) {
	t.Helper()
	for _, line := range want {
		n.lines++
		if strings.HasPrefix(line, "late") {
			n.late++
		}
		if strings.Contains(line, " true ") {
			n.updates++
		}
	}
	for i := range max(len(have), len(want)) {
		if i >= len(have) || i >= len(want) || have[i] != want[i] {
			t.Fatalf("%s: line %d of %d:\nhave %q\nwant %q of %d", what, i, len(have), at(have, i), at(want, i), len(want))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

func countAndSum(t *testing.T) *Aggregate {
	t.Helper()
	a := &Aggregate{Decimals: 3}
	if err := a.Functions("count, sum"); err != nil {
		t.Fatal(err)
	}
	return a
}

func emitResult(a *Aggregate) func(Result, *weir.Out) error {
	return func(r Result, out *weir.Out) error {
		out.Emit(r.Key, r.End, a.AppendFields(fmt.Appendf(nil, "%d %v ", r.Start, r.Update), r.Acc))
		return nil
	}
}

// span is a window, or a session, in a model.
type span struct {
	key         string
	start, end  int64
	count, sum  int
	shown, over bool
}

func (s span) line(update bool) string {
	return fmt.Sprintf(`out %s@%d %d %v "count":%d,"sum":%d`, s.key, s.end, s.start, update, s.count, s.sum)
}

// due takes the spans that a watermark ends, in order of time, then key.
func due(all []*span, watermark int64) (lines []string) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *span) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.key, b.key)) })
	for _, s := range sorted {
		if !s.over && s.end <= watermark {
			lines = append(lines, s.line(s.shown))
			s.over, s.shown = true, true
		}
	}
	return lines
}

// number is what value made.
func numberOf(i int) int { return i * i % 1000 }

// TestWindow compares with windows that each keep their own records.
func TestWindow(t *testing.T) {
	var n tested
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		size := int64(1 + random.IntN(50))
		w := &Window{Size: size, Slide: 1 + random.Int64N(size), Offset: random.Int64N(20) - 10, Lateness: int64(random.IntN(3) * 15)}
		if round%3 == 0 {
			w.Slide = 0
		}
		if round%2 == 0 {
			w.Store = NewMemory()
		}
		a := countAndSum(t)
		w.Fold, w.Fire = a, emitResult(a)
		if err := w.Init(); err != nil {
			t.Fatal(err)
		}
		all := events(random, 300, 1)
		lines, h := play(t, weir.Operator{
			Outputs: []string{"late"},
			Process: func(r weir.Record, out *weir.Out) error {
				what, err := w.Add(r, out)
				if what == Late {
					out.EmitRecord("late", r)
				}
				return err
			},
			OnTimer: func(timer weir.Timer, out *weir.Out) error {
				_, err := w.OnTimer(timer, out)
				return err
			},
		}, all)
		n.same(t, fmt.Sprintf("round %d, size %d, slide %d, offset %d, lateness %d", round, w.Size, w.Slide, w.Offset, w.Lateness), lines, modelWindows(w, all))
		left := len(h.Keys)
		if m, ok := w.Store.(memory); ok {
			left = len(m)
		}
		if timers := len(h.Timers(weir.EventTime)); left != 0 || timers != 0 {
			t.Fatalf("round %d: %d entries of state and %d timers are left", round, left, timers)
		}
	}
	n.check(t, true)
}

func modelWindows(w *Window, all []event) (lines []string) {
	var spans []*span
	watermark := weir.NoWatermark
	for i, e := range append(all, event{watermark: true, time: weir.EndOfTime}) {
		if e.watermark {
			watermark = e.time
			lines = append(lines, due(spans, watermark)...)
			continue
		}
		late := true
		first := e.time - w.Size - 2*w.Slide
		for (first-w.Offset)%w.Slide != 0 {
			first++
		}
		for start := first; start <= e.time; start += w.Slide {
			end := start + w.Size
			if end <= e.time || end+w.Lateness <= watermark {
				continue
			}
			late = false
			at := slices.IndexFunc(spans, func(s *span) bool { return s.key == e.key && s.start == start })
			if at < 0 {
				at, spans = len(spans), append(spans, &span{key: e.key, start: start, end: end})
			}
			s := spans[at]
			s.count, s.sum = s.count+1, s.sum+numberOf(i)
			if end <= watermark {
				s.over = true
				lines = append(lines, s.line(true))
			}
		}
		if late {
			lines = append(lines, fmt.Sprintf("late %s@%d %s", e.key, e.time, value(i)))
		}
	}
	return lines
}

// TestSession compares with sessions kept in a list.
func TestSession(t *testing.T) {
	var n tested
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 60 {
		s := &Session{Gap: int64(1 + random.IntN(30)), Lateness: int64(random.IntN(3) * 15)}
		if round%2 == 0 {
			s.Store = NewMemory()
		}
		a := countAndSum(t)
		s.Fold, s.Fire = a, emitResult(a)
		if err := s.Init(); err != nil {
			t.Fatal(err)
		}
		all := events(random, 300, 1)
		lines, h := play(t, weir.Operator{
			Outputs: []string{"late"},
			Process: func(r weir.Record, out *weir.Out) error {
				what, err := s.Add(r, out)
				if what == Late {
					out.EmitRecord("late", r)
				}
				return err
			},
			OnTimer: func(timer weir.Timer, out *weir.Out) error {
				_, err := s.OnTimer(timer, out)
				return err
			},
		}, all)
		n.same(t, fmt.Sprintf("round %d, gap %d, lateness %d", round, s.Gap, s.Lateness), lines, modelSessions(s, all))
		left := len(h.Keys)
		if m, ok := s.Store.(memory); ok {
			left = len(m)
		}
		if timers := len(h.Timers(weir.EventTime)); left != 0 || timers != 0 {
			t.Fatalf("round %d: %d entries of state and %d timers are left", round, left, timers)
		}
	}
	n.check(t, true)
}

func modelSessions(s *Session, all []event) (lines []string) {
	var spans []*span
	watermark := weir.NoWatermark
	for i, e := range append(all, event{watermark: true, time: weir.EndOfTime}) {
		if e.watermark {
			watermark = e.time
			lines = append(lines, due(spans, watermark)...)
			spans = slices.DeleteFunc(spans, func(old *span) bool { return old.end+s.Lateness <= watermark })
			continue
		}
		one := &span{key: e.key, start: e.time, end: e.time + s.Gap, count: 1, sum: numberOf(i)}
		joined := false
		spans = slices.DeleteFunc(spans, func(old *span) bool {
			if old.key != e.key || e.time >= old.end || old.start >= e.time+s.Gap {
				return false
			}
			joined = true
			one.start, one.end = min(one.start, old.start), max(one.end, old.end)
			one.count, one.sum, one.shown = one.count+old.count, one.sum+old.sum, one.shown || old.shown
			return true
		})
		switch {
		case !joined && one.end+s.Lateness <= watermark:
			lines = append(lines, fmt.Sprintf("late %s@%d %s", e.key, e.time, value(i)))
			continue
		case one.end <= watermark:
			one.over, one.shown = true, true
			lines = append(lines, one.line(true))
		}
		spans = append(spans, one)
	}
	return lines
}

// TestIntervalJoin compares with all pairs.
func TestIntervalJoin(t *testing.T) {
	var n tested
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 60 {
		j := &IntervalJoin{Lower: int64(random.IntN(40) - 30), Lateness: int64(random.IntN(3) * 15)}
		j.Upper = j.Lower + int64(random.IntN(40))
		j.Pair = func(key []byte, left, right Side, out *weir.Out) error {
			out.Emit(key, max(left.Time, right.Time), fmt.Appendf(nil, "%d:%s %d:%s", left.Time, left.Value, right.Time, right.Value))
			return nil
		}
		if err := j.Init(); err != nil {
			t.Fatal(err)
		}
		all := events(random, 300, 2)
		lines, h := play(t, weir.Operator{
			Outputs: []string{"late"},
			Process: func(r weir.Record, out *weir.Out) error {
				what, err := j.Add(r, out)
				if what == Late {
					out.EmitRecord("late", r)
				}
				return err
			},
			OnTimer: func(timer weir.Timer, out *weir.Out) error {
				_, err := j.OnTimer(timer, out)
				return err
			},
		}, all)
		n.same(t, fmt.Sprintf("round %d, from %d to %d, lateness %d", round, j.Lower, j.Upper, j.Lateness), lines, modelPairs(j, all))
		if timers := len(h.Timers(weir.EventTime)); len(h.Keys) != 0 || timers != 0 {
			t.Fatalf("round %d: %d entries of state and %d timers are left", round, len(h.Keys), timers)
		}
	}
	n.check(t, false)
}

func modelPairs(j *IntervalJoin, all []event) (lines []string) {
	watermark := weir.NoWatermark
	var kept []int
	for i, e := range all {
		if e.watermark {
			watermark = e.time
			continue
		}
		if watermark != weir.NoWatermark && e.time < watermark-j.Lateness {
			lines = append(lines, fmt.Sprintf("late %s@%d %s", e.key, e.time, value(i)))
			continue
		}
		var found []string
		slices.SortStableFunc(kept, func(a, b int) int { return cmp.Compare(all[a].time, all[b].time) })
		for _, k := range kept {
			left, right := k, i
			if e.input == 0 {
				left, right = i, k
			}
			l, r := all[left], all[right]
			if all[k].key == e.key && all[k].input != e.input && r.time >= l.time+j.Lower && r.time <= l.time+j.Upper {
				found = append(found, fmt.Sprintf("out %s@%d %d:%s %d:%s", e.key, max(l.time, r.time), l.time, value(left), r.time, value(right)))
			}
		}
		lines, kept = append(lines, found...), append(kept, i)
	}
	return lines
}

// TestSketch: quantiles are as exact as promised, and the order of values and merges does not matter.
func TestSketch(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for round := range 30 {
		var values []float64
		for range 1 + random.IntN(2000) {
			v := random.NormFloat64() * math.Pow(10, float64(round%3))
			if round%5 == 0 {
				v = math.Round(v)
			}
			values = append(values, v)
		}
		var whole, parts Sketch
		for _, v := range values {
			whole = whole.Add(v)
		}
		random.Shuffle(len(values), func(i, k int) { values[i], values[k] = values[k], values[i] })
		for part := range slices.Chunk(values, 100) {
			var s Sketch
			for _, v := range part {
				s = s.Add(v)
			}
			parts = parts.Merge(s)
		}
		if !bytes.Equal(whole, parts) || whole.Count() != uint64(len(values)) {
			t.Fatalf("round %d: %d values in parts are not those in one", round, len(values))
		}
		if len(whole)/8 == MaxBuckets {
			continue // the lowest are merged
		}
		slices.Sort(values)
		for _, q := range []float64{0, 0.01, 0.25, 0.5, 0.9, 0.99, 1} {
			exact, have := values[int(q*float64(len(values)-1))], whole.Quantile(q)
			if off := math.Abs(have - exact); off > math.Abs(exact)/128 {
				t.Errorf("round %d: quantile %v is %v, exactly %v", round, q, have, exact)
			}
		}
	}
}

// TestSketchMergesLowest: beyond so many buckets the high quantiles stay as they should be, whatever the order.
func TestSketchMergesLowest(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	var values []float64
	for i := range 4000 {
		values = append(values, math.Exp(float64(i)/100))
	}
	var first Sketch
	for round := range 5 {
		random.Shuffle(len(values), func(i, k int) { values[i], values[k] = values[k], values[i] })
		var s, other Sketch
		for i, v := range values {
			if i%2 == 0 {
				s = s.Add(v)
			} else {
				other = other.Add(v)
			}
		}
		if s = s.Merge(other); round == 0 {
			first = s
		}
		if !bytes.Equal(s, first) || len(s) != 8*MaxBuckets || s.Count() != 4000 {
			t.Fatalf("round %d: %d bytes, %d values", round, len(s), s.Count())
		}
	}
	slices.Sort(values)
	for _, q := range []float64{0.9, 0.99, 0.999, 1} {
		exact, have := values[int(q*3999)], first.Quantile(q)
		if math.Abs(have-exact) > exact/128 {
			t.Errorf("quantile %v is %v, exactly %v", q, have, exact)
		}
	}
	if low := first.Quantile(0); low < values[0] || low > first.Quantile(0.9) {
		t.Errorf("the lowest of them is %v", low)
	}
}

func TestSketchOfExtremes(t *testing.T) {
	for _, v := range []float64{0, math.Copysign(0, -1), math.SmallestNonzeroFloat64, 1, -1, math.MaxFloat64, -math.MaxFloat64} {
		have := Sketch(nil).Add(v).Quantile(0.5)
		if off := math.Abs(have - v); off > math.Abs(v)/100 && off > 1e-300 {
			t.Errorf("%v came back as %v", v, have)
		}
	}
	if v := (Sketch{}).Quantile(0.5); v != 0 {
		t.Errorf("nothing has the median %v", v)
	}
}

func FuzzSketch(f *testing.F) {
	f.Add(1.5, -3e300)
	f.Fuzz(func(t *testing.T, a, b float64) {
		if math.IsNaN(a) || math.IsInf(a, 0) || math.IsNaN(b) || math.IsInf(b, 0) {
			return
		}
		if s := Sketch(nil).Add(a).Add(b); !bytes.Equal(s, Sketch(nil).Add(b).Add(a)) || s.Count() != 2 {
			t.Errorf("%v and %v: %x", a, b, s)
		}
		if a < b && bucketOf(a) > bucketOf(b) || a > b && bucketOf(a) < bucketOf(b) {
			t.Errorf("%v and %v are in buckets %d and %d", a, b, bucketOf(a), bucketOf(b))
		}
		if v := valueOf(bucketOf(a)); math.Abs(v-a) > math.Abs(a)/128 && math.Abs(v-a) > 1e-300 {
			t.Errorf("%v is kept as %v", a, v)
		}
	})
}

func TestAggregate(t *testing.T) {
	a := &Aggregate{Decimals: 2}
	if err := a.Functions("count,sum,mean,min,max,p0,p50,p100"); err != nil {
		t.Fatal(err)
	}
	var acc, other []byte
	for _, v := range []float64{3, 1, 2} {
		acc = a.AddNumber(acc, v)
	}
	for _, v := range []float64{-5, 10} {
		other = a.AddNumber(other, v)
	}
	want := `"count":3,"sum":6,"mean":2,"min":1,"max":3,"p0":1,"p50":2.02,"p100":3`
	if have := string(a.AppendFields(nil, acc)); have != want {
		t.Errorf("have %s, want %s", have, want)
	}
	for _, merged := range [][]byte{a.Merge(bytes.Clone(acc), other), a.Merge(bytes.Clone(other), acc), a.Merge(a.Merge(nil, acc), other)} {
		want := `"count":5,"sum":11,"mean":2.2,"min":-5,"max":10,"p0":-5,"p50":2.02,"p100":10`
		if have := string(a.AppendFields(nil, merged)); have != want {
			t.Errorf("merged: have %s, want %s", have, want)
		}
	}
	if merged := a.Merge(acc, nil); a.Count(merged) != 3 || a.Count(nil) != 0 {
		t.Error("nothing merged is something")
	}
	for _, list := range []string{"", "avg", "p", "p101", "p-1", "count,,sum", strings.Repeat("count,", 40) + "sum"} {
		if err := a.Functions(list); err == nil {
			t.Errorf("%q is taken", list)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "500ms": 500, "10s": 10_000, "1m30s": 90_000, "2h": 7_200_000, "1d1ms": 86_400_001, "36525d": maxDuration} {
		if have, ok := ParseDuration(text); !ok || have != want {
			t.Errorf("%s: %d %v, want %d", text, have, ok, want)
		}
	}
	for _, text := range []string{"", "10", "s", "1.5s", "-1s", "1 s", "10sec", "36526d", "36525d1ms", "99999999999999999999s", "1d36525d"} {
		if have, ok := ParseDuration(text); ok {
			t.Errorf("%q: %d", text, have)
		}
	}
}

func TestExpr(t *testing.T) {
	r := weir.Record{Key: []byte("m7"), Time: 1500, Headers: []byte("\x05\x03\x00topica/b"),
		Value: []byte(`{"v":2.5,"s":"on","t":true,"f":false,"n":null,"o":{"a":[1,{"b":-4}]},"a-b":7,"q":"say \"x\"","big":1e308}`)}
	for text, want := range map[string]string{
		"v": "2.5", "o.a.0": "1", "o.a.1.b": "-4", "o.a": `[1,{"b":-4}]`, "`a-b`": "7", "nope": "null", "o.a.7": "null", "n": "null",
		"1 + 2 * 3": "7", "(1 + 2) * 3": "9", "2 - 3 - 4": "-5", "8 / 2 / 2": "2", "-v + 1": "-1.5", "- -v": "2.5", "1e3 - 1": "999",
		"v > 2": "true", "v >= 2.5 && s == 'on'": "true", "v < 2 || t": "true", "!t": "false", "!v": "true", "!f && !n": "true",
		"v == 2.5": "true", "v != s": "true", "s == \"on\"": "true", "s < 'oo'": "true", "s >= 'on'": "true", "n == null": "true",
		"nope == null": "true", "f == false": "true", "o == o": "true", "o == 1": "false", "t > f": "false", "t >= t": "false", "v / 0": "null",
		"s + 1": "null", "big * 10": "null", "abs(o.a.1.b)": "4", "min(v, 1) + max(v, 1)": "3.5", "abs(s)": "null", "min(v, s)": "null",
		"$key": `"m7"`, "$key == 'm7'": "true", "$time / 1000": "1.5", "$topic == 'a/b'": "true", "$value": string(r.Value), "'it\\'s'": `"it's"`,
		"q": `"say \"x\""`, "v>2&&v<3": "true", "1/3": "0.333333", "\tv\n": "2.5", "2 <= 2 == true": "",
	} {
		e, err := ParseExpr(text)
		if (err != nil) != (want == "") {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err == nil {
			for range 2 {
				if have := string(e.Eval(r).AppendJSON(nil, 6)); have != want {
					t.Errorf("%s is %s, want %s", text, have, want)
				}
			}
		}
	}
	for text, want := range map[string]string{
		"":                        "at byte 0: expected a value",
		"v >":                     "at byte 3: expected a value",
		"v = 1":                   "at byte 2: expected an operator",
		"(v":                      "at byte 2: expected )",
		"v)":                      "at byte 1: expected an operator",
		"'on":                     "at byte 3: expected '",
		"$x":                      "at byte 0: expected $value, $key, $time or $topic",
		"f(1)":                    "at byte 2: expected abs, min or max before a parenthesis",
		"min(1)":                  "at byte 5: expected ,",
		"1.2.3":                   "at byte 0: expected a number",
		"a..b":                    "at byte 4: expected a path such as v or motor.phases.0.current",
		"1 2":                     "at byte 2: expected an operator",
		strings.Repeat("(", 100):  "at byte 33: too many nested parts",
		strings.Repeat("!", 100):  "at byte 33: too many nested parts",
		strings.Repeat("v+", 200): "the expression is too long",
	} {
		if _, err := ParseExpr(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: error %v, want %q", text, err, want)
		}
	}
	e, err := ParseExpr("$value")
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{"on": `"on"`, " 12 ": "12", `"x"`: `"x"`, "{} {}": `"{} {}"`, "": `""`, "nan": `"nan"`, "true": "true"} {
		if have := string(e.Eval(weir.Record{Value: []byte(value)}).AppendJSON(nil, 6)); have != want {
			t.Errorf("value %q is %s, want %s", value, have, want)
		}
	}
}

// FuzzExpr: no text stops the parser or what comes of it.
func FuzzExpr(f *testing.F) {
	f.Add("v > 2 && `a.b` != \"x\" || !(abs(v) <= -1e3)", []byte(`{"v":1,"a":{"b":"x"}}`))
	f.Fuzz(func(t *testing.T, text string, value []byte) {
		e, err := ParseExpr(text)
		if err != nil {
			return
		}
		e.Eval(weir.Record{Value: value}).AppendJSON(nil, 3)
	})
}

func TestAssignments(t *testing.T) {
	set, err := ParseAssignments(`c = (f - 32) / 1.8 ; 'a b' = "x"; f = null;`)
	if err != nil {
		t.Fatal(err)
	}
	r := weir.Record{Value: []byte(`{"id":7,"f":212,"x":{"y":[1,2]}}`)}
	for keep, want := range map[bool]string{false: `{"c":100,"a b":"x","f":null}`, true: `{"id":7,"x":{"y":[1,2]},"c":100,"a b":"x","f":null}`} {
		if have := string(AppendObject(nil, r, set, keep, 3)); have != want {
			t.Errorf("keep %v: %s, want %s", keep, have, want)
		}
	}
	for text, want := range map[string]string{
		"": "at byte 0: expected the name of a field", "a": "at byte 1: expected =", "a = ": "at byte 4: expected a value", "a = 1 b = 2": "at byte 6: expected an operator or ;",
		"a == 1": "at byte 3: expected a value", "a = 1;;": "at byte 6: expected the name", strings.Repeat("a=1;", 100): "too many assignments",
	} {
		if _, err := ParseAssignments(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: error %v, want %q", text, err, want)
		}
	}
}

// process makes an operator of a function that uses keyed state.
func process(t *testing.T, f func(r weir.Record, out *weir.Out) error) *weir.Harness {
	t.Helper()
	h, err := weir.NewHarness(weir.Operator{Process: f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// said runs records through an operator and joins the values that come out.
func said(t *testing.T, h *weir.Harness, records ...weir.Record) string {
	t.Helper()
	got, err := h.Process(0, records...)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range got {
		all = append(all, string(e.Record.Value))
	}
	return strings.Join(all, " ")
}

func records(key string, values ...string) (all []weir.Record) {
	for i, v := range values {
		all = append(all, weir.Record{Key: []byte(key), Time: int64(i) * 1000, Value: []byte(v)})
	}
	return all
}

// stores are both kinds.
func stores() []Store { return []Store{nil, NewMemory()} }

func TestCountWindow(t *testing.T) {
	for _, store := range stores() {
		a := countAndSum(t)
		w := CountWindow{Size: 4, Every: 2, Fold: a, Store: store}
		if err := w.Init(); err != nil {
			t.Fatal(err)
		}
		h := process(t, func(r weir.Record, out *weir.Out) error {
			acc, _, err := w.Add(r)
			if acc != nil {
				out.Emit(r.Key, r.Time, a.AppendFields(nil, acc))
			}
			return err
		})
		have := said(t, h, records("k", "1", "2", "x", "4", "8", "16", "32", "64", "128", "256")...)
		if want := `"count":4,"sum":15 "count":4,"sum":60 "count":4,"sum":240`; have != want {
			t.Errorf("have %s, want %s", have, want)
		}
	}
	for _, w := range []CountWindow{{}, {Size: 5, Every: 2}, {Size: 4, Every: 8}, {Size: 10_000, Every: 1}, {Size: -1}} {
		if w.Init() == nil {
			t.Errorf("%+v is taken", w)
		}
	}
}

func TestDedup(t *testing.T) {
	for _, store := range stores() {
		d := Dedup{Last: 2, Store: store}
		if err := d.Init(); err != nil {
			t.Fatal(err)
		}
		h := process(t, func(r weir.Record, out *weir.Out) error {
			seen, err := d.Seen(r.Key, r.Time, r.Value)
			if !seen {
				out.EmitRecord(weir.MainOutput, r)
			}
			return err
		})
		if have := said(t, h, records("k", "a", "b", "a", "b", "c", "b", "a", "", "")...); have != "a b c a " {
			t.Errorf("have %q", have)
		}
		if have := said(t, h, records("other", "a", "a")...); have != "a" {
			t.Errorf("another key: %q", have)
		}
		if _, err := h.Process(0, records("k", strings.Repeat("x", 2000))...); err == nil || !strings.Contains(err.Error(), "id of 2000 bytes") {
			t.Errorf("a long id: %v", err)
		}
	}
	for _, d := range []Dedup{{}, {Last: 1, Within: 1}, {Last: 5000}, {Within: -1}, {Within: 5, Store: NewMemory()}} {
		if d.Init() == nil {
			t.Errorf("%+v is taken", d)
		}
	}
}

func TestDedupWithin(t *testing.T) {
	d := Dedup{Within: 100}
	if err := d.Init(); err != nil {
		t.Fatal(err)
	}
	h := process(t, func(r weir.Record, out *weir.Out) error {
		seen, err := d.Seen(r.Key, r.Time, r.Value)
		out.Emit(nil, 0, fmt.Appendf(nil, "%d:%v", r.Time, seen))
		return err
	})
	at := func(times ...int64) (all []weir.Record) {
		for _, time := range times {
			all = append(all, weir.Record{Key: []byte("k"), Time: time, Value: []byte("id")})
		}
		return all
	}
	if have := said(t, h, at(0, 99, 100, 150, 0, 260)...); have != "0:false 99:true 100:false 150:true 0:false 260:false" {
		t.Error(have)
	}
	if _, err := h.AdvanceWatermark(359); err != nil || len(h.Keys) != 1 {
		t.Errorf("%d ids are kept, %v", len(h.Keys), err)
	}
	if _, err := h.AdvanceWatermark(360); err != nil || len(h.Keys) != 0 {
		t.Errorf("%d ids are kept for ever, %v", len(h.Keys), err)
	}
}

func TestRateAndDeadband(t *testing.T) {
	for _, store := range stores() {
		c, d := Rate{Per: 60_000, Counter: true, Store: store}, Deadband{Band: 1, Share: 0.1, MaxSilence: 5000, Store: store}
		if c.Init() != nil || d.Init() != nil {
			t.Fatal("refused")
		}
		h := process(t, func(r weir.Record, out *weir.Out) error {
			v, ok := Reading{Field: weir.Path{"v"}}.Of(r.Value)
			if !ok {
				return nil
			}
			rate, ok, what, err := c.Add(r.Key, r.Time, v)
			if err != nil {
				return err
			}
			pass, err := d.Add(r.Key, r.Time, v)
			out.Emit(nil, 0, fmt.Appendf(nil, "%v:%v:%d:%v", rate, ok, what, pass))
			return err
		})
		have := said(t, h, append(records("k", "10", ` {"v":11}`, "x", "13", "3"), weir.Record{Key: []byte("k"), Time: 4000, Value: []byte("3.5")},
			weir.Record{Key: []byte("k"), Time: 9000, Value: []byte("4")})...)
		if want := "0:false:0:true 60:true:0:false 60:true:0:true 180:true:0:true 0:false:1:false 12:true:0:true"; have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
	for _, d := range []Deadband{{Band: -1}, {Share: math.NaN()}, {MaxSilence: -1}} {
		if d.Init() == nil {
			t.Errorf("%+v is taken", d)
		}
	}
	if c := (Rate{Per: -1}); c.Init() == nil {
		t.Error("a negative unit of time is taken")
	}
}

func TestLatestJoin(t *testing.T) {
	for _, store := range stores() {
		j := LatestJoin{Inputs: 3, MaxAge: 100, Store: store}
		if err := j.Init(); err != nil {
			t.Fatal(err)
		}
		h := process(t, func(r weir.Record, out *weir.Out) error {
			sides, what, err := j.Add(r)
			text := fmt.Appendf(nil, "%d", what)
			for _, s := range sides {
				text = AppendJSON(append(text, ','), s.Value)
			}
			out.Emit(nil, 0, text)
			return err
		})
		have := ""
		for _, in := range []struct {
			input int
			time  int64
			value string
		}{{0, 10, "1"}, {2, 20, "on"}, {0, 5, "2"}, {0, 10, "3"}, {1, 30, ""}, {2, 120, "{}"}} {
			got, err := h.Process(in.input, weir.Record{Key: []byte("k"), Time: in.time, Value: []byte(in.value)})
			if err != nil {
				t.Fatal(err)
			}
			have += string(got[0].Record.Value) + " "
		}
		if want := `0,1,null,null 0,1,null,"on" 1 0,3,null,"on" 0,3,"","on" 0,null,"",{} `; have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
		if _, err := h.Process(3, weir.Record{}); err == nil {
			t.Error("a fourth input is taken")
		}
	}
}

func TestKeysThatAreTooLong(t *testing.T) {
	a := countAndSum(t)
	running := Running{Fold: a}
	if err := running.Init(); err != nil {
		t.Fatal(err)
	}
	h := process(t, func(r weir.Record, _ *weir.Out) error {
		_, _, err := running.Add(r)
		return err
	})
	if _, err := h.Process(0, records(strings.Repeat("k", maxKey), "1")...); err != nil {
		t.Error(err)
	}
	if _, err := h.Process(0, records(strings.Repeat("k", maxKey+1), "1")...); err == nil || !strings.Contains(err.Error(), "key of 4001 bytes") {
		t.Errorf("error %v", err)
	}
}

func TestBlocksCheckThemselves(t *testing.T) {
	for _, block := range []interface{ Init() error }{
		&Window{}, &Window{Size: 5, Slide: 6}, &Window{Size: 100_000, Slide: 3}, &Window{Size: 5, Lateness: -1}, &Window{Size: maxDuration + 1},
		&Session{}, &Session{Gap: 5, Lateness: -1}, &IntervalJoin{Lower: 1}, &IntervalJoin{Lateness: -1}, &LatestJoin{Inputs: 1},
	} {
		if block.Init() == nil {
			t.Errorf("%+v is taken", block)
		}
	}
	far := weir.Record{Time: math.MaxInt64 - 5, Value: []byte("1")}
	w, s, j := &Window{Size: 5}, &Session{Gap: 5}, &IntervalJoin{}
	if w.Init() != nil || s.Init() != nil || j.Init() != nil {
		t.Fatal("refused")
	}
	h := process(t, func(r weir.Record, out *weir.Out) error {
		for _, add := range []func(weir.Record, *weir.Out) (Outcome, error){w.Add, s.Add, j.Add} {
			if what, err := add(r, out); err == nil || what != Ignored {
				t.Errorf("%d, %v", what, err)
			}
		}
		return nil
	})
	said(t, h, far)
}
