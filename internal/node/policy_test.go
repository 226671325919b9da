package node_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// forge puts a frame into the hub's input stream that follows the last one of its first channel by its number,
// and does not by its checksum.
func (s *site) forge() {
	s.t.Helper()
	nc, err := nats.Connect("nats://" + s.at.NATS)
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	s.until("a frame is forged", func() (bool, string) {
		for info := range js.ListStreams(s.t.Context()).Info() {
			subject := info.Config.Subjects[0]
			all, filtered := strings.CutSuffix(subject, ".*")
			if !filtered || strings.HasPrefix(info.Config.Name, "KV_") || strings.HasPrefix(info.Config.Name, "OBJ_") {
				continue
			}
			stream, err := js.Stream(s.t.Context(), info.Config.Name)
			if err != nil {
				return false, err.Error()
			}
			m, err := stream.GetLastMsgForSubject(s.t.Context(), all+".0")
			if err != nil {
				continue
			}
			h, _, err := frame.Decode(m.Data)
			if err != nil {
				s.t.Fatal(err)
			}
			mark := frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: 1})
			before := h.After ^ 1
			forged := frame.Append(nil, frame.Header{
				Kind: frame.Barrier, Generation: h.Generation, Incarnation: h.Incarnation, Count: 1, First: h.Last() + 1,
				Epoch: h.Epoch, Watermark: frame.NoWatermark, Before: before, After: before.Add(mark),
			}, mark)
			if err := nc.Publish(m.Subject, forged); err != nil {
				s.t.Fatal(err)
			}
			return nc.Flush() == nil, ""
		}
		return false, "no stream with frames"
	})
}

func (s *site) generation(n uint32) {
	s.t.Helper()
	s.until(fmt.Sprintf("generation %d runs", n), func() (bool, string) {
		j, err := s.client.Job(s.t.Context(), "lines")
		return err == nil && j.State == api.JobRunning && j.Generation == n, fmt.Sprint(j.State, j.Generation, j.Reason, err)
	})
}

// TestDifferenceIsNamed: a task that finds a difference stops, and says where and what to do; its job goes back
// when it is told to, or by its policy.
func TestDifferenceIsNamed(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"", "recovery: {restart: automatic}\n"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, policy)
			s.begin()
			s.forge()
			if policy == "" {
				why := s.failed("total/0")
				if !strings.Contains(why, "text@g1.out>total/0") || !strings.Contains(why, "--restart") {
					t.Errorf("the task says %q", why)
				}
				if _, err := s.reapply(api.JobSource{Replace: []string{"hub"}}); err == nil || !strings.Contains(err.Error(), "has the log") {
					t.Errorf("replace a hub that has its log: %v", err)
				}
				if _, err := s.reapply(api.JobSource{Restart: true}); err != nil {
					t.Fatal(err)
				}
			}
			s.generation(2)
			if r := s.recovered("total/0", "L4"); r.Repeated != 2 || r.Unknown {
				t.Errorf("%+v", r)
			}
			s.write("g1", "a")
			s.wants("now", "a1 b1 a2 b2 a2 b2 a3")
			s.replicated("lines")
			s.wants("held", "a1 b1 a2 b2 a3")
			s.wants("near-g1", "a1 a2 a3")
		})
	}
}

// TestLostDeviceByPolicy: the job goes on by itself when a device is back without what it had: a gateway by a
// drain, and the hub from the newest checkpoint that counts.
func TestLostDeviceByPolicy(t *testing.T) {
	t.Parallel()
	s := newSite(t, "recovery: {replace: automatic}\n")
	s.begin()
	s.replicated("lines")
	s.lose("g2")
	s.generation(2)
	if r := s.recovered("text@g2", "L3"); !strings.Contains(r.Reason, "policy") {
		t.Errorf("%+v", r)
	}
	s.write("g2", "b")
	s.last("now", "b", 3)
	s.replicated("lines")
	s.lose("hub")
	s.generation(3)
	s.recovered("total/0", "L4")
	s.write("g1", "a")
	s.write("g2", "b")
	s.last("now", "a", 3)
	s.last("now", "b", 4)
	s.wants("near-g1", "a1 a2 a3")
}

// TestTakeover: an agent that is started in the place of another one needs no policy, and once a checkpoint of
// its own counts it is an agent like any other.
func TestTakeover(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	s.takeOver("hub")
	s.generation(2)
	s.write("g1", "a")
	s.wants("now", "a1 b1 a2 b2 a2 b2 a3")
	s.replicated("lines")
	s.stop("hub") // and again, with the same flag: it is the hub now
	s.start("hub")
	s.write("g1", "a")
	s.wants("now", "a1 b1 a2 b2 a2 b2 a3 a4")
	s.generation(2)
}

// TestTakeoverOfAGateway: nobody waits for a gateway whose device is replaced, however long others are waited for when
// they are away; these are waited for, also by whoever applies the job meanwhile, and that changes nothing of it.
func TestTakeoverOfAGateway(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.yaml = strings.Replace(s.yaml, "detach_after: 500ms", "detach_after: 24h, timeout: 2s", 1)
	s.begin()
	s.replicated("lines")
	s.stop("g1")
	s.takeOver("g2")
	s.until("the job drains, and who applies it waits", func() (bool, string) {
		_, err := s.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: s.yaml}, time.Second)
		return err != nil && strings.Contains(err.Error(), "nothing was applied"), fmt.Sprint(err)
	})
	plan, err := s.client.PlanJob(t.Context(), api.JobSource{File: "job.yaml", YAML: s.yaml})
	if err != nil || plan.Refused != nil || !strings.Contains(plan.Does, "waits, for job lines is stopping") {
		t.Errorf("a plan made meanwhile says %q, %+v, %v", plan.Does, plan.Refused, err)
	}
	s.until("no final checkpoint is begun, which would close all sources, while g1 is waited for", func() (bool, string) {
		j, err := s.client.Job(t.Context(), "lines")
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(j.Waits, "g1"), j.State + ": " + j.Waits
	})
	s.start("g1")
	if r := s.recovered("text@g2", "L3"); !strings.Contains(r.Reason, "policy") {
		t.Errorf("%+v", r)
	}
	if done, err := s.reapply(api.JobSource{}); err != nil || !done.Unchanged || done.Generation != 2 {
		t.Errorf("applied again: %+v, %v", done, err)
	}
	s.write("g1", "a")
	s.write("g2", "b")
	s.last("now", "a", 3)
	s.last("now", "b", 3)
	s.wants("near-g1", "a1 a2 a3")
}

// takeOver starts an agent in the place of another one, on an empty directory.
func (s *site) takeOver(name string) {
	s.t.Helper()
	s.stop(name)
	opt := s.opts[name]
	opt.Data, opt.Name, opt.Replace = s.t.TempDir(), "", name
	s.opts[name] = opt
	s.start(name)
}

// TestReplacedAndTakenOut: an agent without tasks that has taken another one's place joins again after it was taken out of the
// fleet: nobody knows it then, but its directory has been part of the fleet.
func TestReplacedAndTakenOut(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	spare := s.opts["g2"]
	spare.Data, spare.Name, spare.HTTP, spare.Labels = t.TempDir(), "spare", "127.0.0.1:0", nil
	s.opts["spare"] = spare
	s.start("spare")
	s.takeOver("spare")
	s.stop("spare")
	s.until("it is taken out", func() (bool, string) {
		err := s.client.RemoveAgent(t.Context(), "spare")
		return err == nil, fmt.Sprint(err)
	})
	again := s.opts["spare"]
	again.Replace = ""
	s.opts["spare"] = again
	s.start("spare")
}

// TestReplaceOfNobody: an agent that is to take the place of one that nobody knows, or that is up, is refused, and says
// which there are. Its directory can take another one's place then.
func TestReplaceOfNobody(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	s.replicated("lines")
	s.stop("g2")
	opt := s.opts["g2"]
	opt.Data, opt.Name, opt.HTTP = t.TempDir(), "", "127.0.0.1:0"
	for name, want := range map[string]string{"gg2": "center, g1, g2, hub", "g1": "is up"} {
		opt.Replace = name
		err := node.Run(t.Context(), opt, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("in the place of %s: %v", name, err)
		}
	}
	if agents, err := s.client.Agents(t.Context()); err != nil || len(agents) != 4 {
		t.Errorf("%+v, %v", agents, err)
	}
	opt.Replace = "g2"
	s.opts["g2"] = opt
	s.start("g2")
	s.recovered("text@g2", "L3")
	s.write("g2", "b")
	s.last("now", "b", 3)

	alone := startWith(t, node.Options{Data: t.TempDir(), Replace: "box", NATSListen: "127.0.0.1:0"})
	alone.until("it is said that nobody knows of another one", func() (bool, string) {
		st, err := alone.client.Status(t.Context())
		return err == nil && strings.Contains(strings.Join(st.Notices, " "), "begun with --replace box"), fmt.Sprint(st.Notices, err)
	})
}
