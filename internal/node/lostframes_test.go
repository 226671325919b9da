package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestFramesAreLost: the hub's input stream loses its end, is emptied, deleted, made anew with numbers from 1, and
// its readers are deleted, while the hub runs and while it does not. Nothing relies on it: the hub finds by the
// items' numbers what it lacks, and their senders send it again.
func TestFramesAreLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.mustApply(s.yaml)
	s.write("g1", "a")
	s.last("now", "a", 1)
	s.replicated("lines")
	nc, err := nats.Connect("nats://" + s.at.NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	count := 1
	for _, c := range []struct {
		what string
		do   func(jetstream.Stream) error
	}{
		{"its end is lost", func(st jetstream.Stream) error {
			info, err := st.Info(ctx)
			if err != nil {
				return err
			}
			for seq := info.State.LastSeq; seq > info.State.LastSeq-2 && seq >= info.State.FirstSeq; seq-- {
				if err := st.DeleteMsg(ctx, seq); err != nil {
					return err
				}
			}
			return nil
		}},
		{"it is emptied", func(st jetstream.Stream) error { return st.Purge(ctx) }},
		{"it is deleted", func(st jetstream.Stream) error { return js.DeleteStream(ctx, st.CachedInfo().Config.Name) }},
		{"it is made anew", func(st jetstream.Stream) error {
			cfg := st.CachedInfo().Config
			if err := js.DeleteStream(ctx, cfg.Name); err != nil {
				return err
			}
			cfg.FirstSeq = 1
			_, err := js.CreateStream(ctx, cfg)
			if err != nil && strings.Contains(err.Error(), "already in use") { // its reader was faster
				return nil
			}
			return err
		}},
		{"its readers are deleted", func(st jetstream.Stream) error {
			for name := range st.ConsumerNames(ctx).Name() {
				if err := st.DeleteConsumer(ctx, name); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		for _, running := range []bool{true, false} {
			if !running {
				s.stop("hub")
			}
			s.write("g1", "a a a")
			count += 3
			if running {
				s.last("now", "a", count)
			} else {
				s.until("the gateway has counted it", func() (bool, string) {
					n := len(s.lines("near-g1"))
					return n == count, fmt.Sprint(n, " lines of ", count)
				})
			}
			if err := c.do(s.frames(ctx, js)); err != nil {
				t.Fatalf("%s, hub runs: %v: %v", c.what, running, err)
			}
			s.write("g2", "b")
			if !running {
				s.start("hub")
			}
			s.write("g1", "a")
			count++
			s.last("now", "a", count)
		}
	}
	s.last("now", "b", 10)
	s.replicated("lines")
	var want []string
	for i := range count {
		want = append(want, fmt.Sprintf("a%d", i+1))
	}
	for i := range 10 {
		want = append(want, fmt.Sprintf("b%d", i+1))
	}
	s.onceByNumber("held", strings.Join(want, " "))
	s.wants("now", strings.Join(want, " "))
}

// frames is the hub's input stream.
func (s *site) frames(ctx context.Context, js jetstream.JetStream) (found jetstream.Stream) {
	s.t.Helper()
	s.until("the hub's input stream is there", func() (bool, string) {
		for info := range js.ListStreams(ctx).Info() {
			if !strings.HasSuffix(info.Config.Subjects[0], ".*") {
				continue
			}
			st, err := js.Stream(ctx, info.Config.Name)
			if err == nil {
				found = st
				return true, ""
			}
		}
		return false, "no such stream"
	})
	return found
}
