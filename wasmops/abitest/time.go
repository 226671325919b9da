package abitest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// happens moves time on and wants these records on "out", each as "key@time value".
func happens(op dataflow.Operator, m dataflow.Moment, want ...string) error {
	var got []string
	err := move(op, m, func(_ int, payload []byte, _ int) error {
		for rest := bytes.Clone(payload); len(rest) > 0; {
			r, after, err := frame.Next(rest)
			if err != nil {
				return err
			}
			rest = after
			got = append(got, fmt.Sprintf("%s@%d %s", r.Key, r.Time, r.Value))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("%d records came out, want %d", len(got), len(want))
		case i >= len(want):
			return fmt.Errorf("record %d came out: %.100q; want %d", i+1, got[i], len(want))
		case got[i] != want[i]:
			return fmt.Errorf("record %d is %.100q, want %.100q", i+1, got[i], want[i])
		}
	}
	return nil
}

func eventTime(watermark int64) dataflow.Moment {
	return dataflow.Moment{Watermark: watermark, Stamp: stamp}
}

func (k *kit) timers(ctx context.Context) error {
	tick := func(later int64) dataflow.Moment {
		return dataflow.Moment{Watermark: dataflow.NoTime, Stamp: stamp + later, Tick: true}
	}
	at := func(later int64) string { return strconv.FormatInt(stamp+later, 10) }
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		return cmp.Or(
			wantValues(op, batch(command("b", "T020"), command("b", "T020"), command("a", "T030"), command("", "T010"), command("x", "T020"), command("n", "T0-5"), command("z", "T1"+at(5)), command("y", "T1"+at(5)), command("w", "T0"+at(0)))),
			wantValues(op, batch(command("x", "U020"), command("x", "U020"), command("x", "U120"), command("w", "U0"+at(0))), "1", "0", "0", "1"),
			happens(op, eventTime(9), "n@-5 timer0", "@9 watermark"),
			happens(op, eventTime(9)),
			happens(op, eventTime(30), "@10 timer0", "b@20 timer0", "a@30 timer0", "@30 watermark"),
			wantValues(op, batch(command("b", "U020"), command("a", "U030"), command("a", "T030")), "0", "1"),
			happens(op, tick(4)),
			happens(op, tick(5), "y@"+at(5)+" timer1", "z@"+at(5)+" timer1"),
			happens(op, eventTime(31), "a@30 timer0", "@31 watermark"),
			wantValues(op, batch(command("c", "T040"), command("d", "T040"), command("d", "T041"))),
			happens(op, eventTime(50), "a@30 timer0", "c@40 timer0", "d@41 timer0", "@50 watermark"),
		)
	})
}

func (k *kit) watermarks(ctx context.Context) error {
	end := dataflow.Moment{Watermark: dataflow.EndOfTime, Stamp: stamp, End: true}
	err := k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		ever := strconv.FormatInt(dataflow.EndOfTime, 10)
		return cmp.Or(
			values(op, []string{"m"}, "-"), happens(op, eventTime(-3), "@-3 watermark"), values(op, []string{"m"}, "-3"),
			happens(op, eventTime(1_700_000_000_001), "@1700000000001 watermark"), values(op, []string{"m", "T01800000000000"}, "1700000000001"),
			happens(op, end, "k@1800000000000 timer0", "@"+ever+" watermark", "@0 end"), values(op, []string{"m"}, "end"),
		)
	})
	if err != nil {
		return err
	}
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		return cmp.Or(happens(op, eventTime(5)), happens(op, end), values(op, []string{"v"}, "1"))
	})
}

func (k *kit) expiry(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		return cmp.Or(
			wantValues(op, batch(command("a", "P20|one"), command("b", "P30|"), command("c", "P20|three"), command("d", "pfour"), command("a", "g"), command("b", "g")), "one", ""),
			happens(op, eventTime(19), "@19 watermark"),
			values(op, []string{"x"}, "one", "", "three", "four"),
			wantValues(op, batch(command("c", "pstays"))),
			happens(op, eventTime(20), "@20 watermark"),
			values(op, []string{"x"}, "", "stays", "four"),
			wantValues(op, batch(command("a", "g"), command("a", "d"), command("b", "d"), command("d", "P20|late"), command("d", "g"), command("e", "P21|new"), command("e", "P25|newer")), "-", "0", "1", "-"),
			happens(op, eventTime(24), "@24 watermark"),
			values(op, []string{"x"}, "stays", "newer"),
			happens(op, eventTime(1000), "@1000 watermark"),
			values(op, []string{"x"}, "stays"),
		)
	})
}

func (k *kit) failingTimer(ctx context.Context) error {
	return k.with(ctx, k.spec(nil), func(op dataflow.Operator) error {
		if err := wantValues(op, batch(command("e", "T09"), command("f", "T010"), command("g", "T011"))); err != nil {
			return err
		}
		timed := op.(dataflow.TimedOperator)
		timed.Advance(eventTime(20))
		for _, key := range []string{"e", "f"} {
			c, due := timed.Next()
			if !due || string(c.Key) != key {
				return fmt.Errorf("timer %q comes, %v, want %q", c.Key, due, key)
			}
			emitted := 0
			err := timed.Call(c, func(int, []byte, int) error {
				emitted++
				return nil
			})
			switch {
			case key == "e" && (err != nil || emitted != 1):
				return fmt.Errorf("the timer before it: %d records, %w", emitted, err)
			case key == "f" && emitted > 0:
				return fmt.Errorf("a timer that failed put something out")
			case key == "f":
				return failed(err, "timer fails")
			}
		}
		return nil
	})
}
