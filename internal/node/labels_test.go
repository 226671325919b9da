package node_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
)

// TestLabelsAreForgotten: an agent that is started again without a label says so, each time, with the jobs that have
// placed tasks on it by that; its tasks go on, and an error names the label when the job is to change. So does a device
// that takes the place of another one.
func TestLabelsAreForgotten(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.mustApply(s.yaml)
	said := func(name, what string) {
		t.Helper()
		s.agents[name].until(name+" says what it lacks", func() (bool, string) {
			st, err := s.agents[name].client.Status(t.Context())
			return err == nil && strings.Contains(strings.Join(st.Notices, "\n"), what), fmt.Sprint(st.Notices, err)
		})
	}
	again := func(name string, labels map[string]string) {
		t.Helper()
		s.stop(name)
		opt := s.opts[name]
		opt.Labels = labels
		s.opts[name] = opt
		s.start(name)
	}
	again("g1", map[string]string{"role": "gateway", "line": "2"})
	if st, err := s.agents["g1"].client.Status(t.Context()); err != nil || len(st.Notices) != 0 {
		t.Errorf("with another label more it says %q, %v", st.Notices, err)
	}
	for range 2 {
		again("g1", nil)
		said("g1", "label role=gateway, by which tasks were placed here: they go on, but to apply again is refused (job lines)")
	}
	s.write("g1", "a")
	s.wants("now", "a1")
	s.until("all know that it has none", func() (bool, string) {
		agents, err := s.client.Agents(t.Context())
		return slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Name == "g1" && len(a.Labels) == 0 }), fmt.Sprint(agents, err)
	})
	_, err := s.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: strings.Replace(s.yaml, "24h", "23h", 1)}, patience)
	if err == nil || !strings.Contains(err.Error(), "agent g1 runs tasks of the job and was started without the label role=gateway") || strings.Contains(err.Error(), "agent g2") {
		t.Errorf("applied without the label: %v", err)
	}
	opt := s.opts["g2"]
	opt.Labels = nil
	s.opts["g2"] = opt
	s.takeOver("g2")
	said("g2", "without the label role=gateway, which this agent had")
}
