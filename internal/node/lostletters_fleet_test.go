package node_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// TestLettersOfAgentsAway: what an agent that is down has of dead letters is not left out silently, neither in a listing
// nor in a replay.
func TestLettersOfAgentsAway(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	far := node.Options{Data: t.TempDir(), Name: "far", Labels: map[string]string{"far": "yes"}, NATS: "nats://" + a.at.NATS}
	b := startWith(t, far)
	a.until("the other agent is known", func() (bool, string) {
		list, err := a.client.Agents(t.Context())
		return len(list) == 2, fmt.Sprint(list, err)
	})
	a.mustApply(strings.Replace(f.job(true, ""), "key: {json: k}", `key: {json: k}, on: {far: "yes"}`, 1))
	f.write(t, "no JSON\n")
	var id string
	a.until("the letter is heard of", func() (bool, string) {
		agents, err := a.client.Agents(t.Context())
		return slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Name == "far" && a.DeadLetters != nil && *a.DeadLetters == 1 }), fmt.Sprint(agents, err)
	})
	listed := func(when string) {
		t.Helper()
		a.until("the letter is listed "+when, func() (bool, string) {
			found, err := a.client.DeadLetters(t.Context(), "lines", 10)
			if len(found.Letters) == 1 {
				id = found.Letters[0].ID
			}
			return len(found.Letters) == 1 && found.Letters[0].Agent == "far" && len(found.Unanswered) == 0, fmt.Sprint(found, err)
		})
	}
	listed("at first")

	b.stop()
	found, err := a.client.DeadLetters(t.Context(), "lines", 10)
	if err != nil || len(found.Letters) != 0 || len(found.Unanswered) != 1 || found.Unanswered[0].Agent != "far" ||
		found.Unanswered[0].Letters != 1 || found.Unanswered[0].Heard.IsZero() {
		t.Errorf("while the agent is down: %+v, %v", found, err)
	}
	_, err = a.client.ReplayDeadLetters(t.Context(), "lines", api.Replay{IDs: []string{id}}, patience)
	if err == nil || !strings.Contains(err.Error(), "no such dead letter on an agent that has answered; these did not answer: far") {
		t.Errorf("replay while the agent is down: %v", err)
	}
	startWith(t, far)
	listed("once it is back")
	done, err := a.client.ReplayDeadLetters(t.Context(), "lines", api.Replay{IDs: []string{id, "text@far/none"}}, patience)
	if err != nil || len(done.Skipped) != 2 || len(done.Unanswered) != 0 || !slices.Contains(done.Skipped,
		api.SkippedLetter{ID: "text@far/none", Reason: "no agent that has answered has such a letter"}) {
		t.Errorf("replay of one that there is and one that there is not: %+v, %v", done, err)
	}
}

// TestLettersLostWithADevice: dead letters go with a device that is replaced, and with one that is taken out of the fleet.
// The job says how many, as far as others had heard of them, and when; and that it is not known where they had not.
func TestLettersLostWithADevice(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	s.replicated("lines")
	heard := func(agent string, letters uint64) {
		s.until(fmt.Sprintf("%d letters on %s have been heard of", letters, agent), func() (bool, string) {
			agents, err := s.client.Agents(t.Context())
			return slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Name == agent && a.DeadLetters != nil && *a.DeadLetters == letters }), fmt.Sprint(agents, err)
		})
	}
	lost := func() []api.LostLetters {
		j, err := s.client.Job(t.Context(), "lines")
		if err != nil {
			t.Fatal(err)
		}
		return j.LostLetters
	}
	files{in: s.path("in-g1")}.write(t, "no JSON\n")
	files{in: s.path("in-g2")}.write(t, "no JSON\nnor this\n")
	heard("g1", 1)
	heard("g2", 2)

	s.lose("g2")
	s.failed("text@g2")
	if _, err := s.reapply(api.JobSource{Replace: []string{"g2"}}); err != nil {
		t.Fatal(err)
	}
	s.recovered("text@g2", "L3")
	if l := lost(); len(l) != 1 || l[0].Agent != "g2" || l[0].Letters != 2 || l[0].Heard.IsZero() || l[0].Generation != 2 || l[0].At.IsZero() {
		t.Fatalf("lost with g2: %+v", l)
	}
	s.replicated("lines")

	// The hub has had none, and what it had to say was heard.
	s.lose("hub")
	s.failed("total/0")
	if _, err := s.reapply(api.JobSource{Replace: []string{"hub"}}); err != nil {
		t.Fatal(err)
	}
	s.recovered("total/0", "L4")
	if l := lost(); len(l) != 2 || l[1].Agent != "hub" || l[1].Letters != 0 || l[1].Heard.IsZero() || l[1].Generation != 3 {
		t.Fatalf("lost with the hub: %+v", l)
	}
	s.replicated("lines")

	// Who applies the job has been started anew meanwhile, and has kept what was heard.
	s.stop("g1")
	s.until("g1 is removed", func() (bool, string) {
		err := s.client.RemoveAgent(t.Context(), "g1")
		return err == nil, fmt.Sprint(err)
	})
	s.stop("center")
	s.start("center")
	s.until("the job is applied", func() (bool, string) {
		_, err := s.reapply(api.JobSource{})
		return err == nil, fmt.Sprint(err)
	})
	if l := lost(); len(l) != 3 || l[2].Agent != "g1" || l[2].Letters != 1 || l[2].Heard.IsZero() || l[2].Generation != 4 {
		t.Fatalf("lost with g1: %+v", l)
	}

	// It comes back after all, and with it what was given up.
	s.start("g1")
	s.until("its letter is listed", func() (bool, string) {
		found, err := s.client.DeadLetters(t.Context(), "lines", 10)
		return slices.ContainsFunc(found.Letters, func(l api.DeadLetter) bool { return l.Agent == "g1" }), fmt.Sprint(found, err)
	})
}
