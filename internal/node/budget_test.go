package node_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/internal/trial"
)

const budgetJob = `name: budget
checkpoint: {interval: 200ms, min_pause: 50ms}
sources:
  in: {mqtt: {topics: ["in/+"], qos: 1, when_full: %s}, id: n}
sinks:
  out: {mqtt: {broker: "tcp://%s", topic: out/x, payload: "{value.n}", qos: 1}, from: in}
`

// TestLogBudget: the broker of a sink is away until the input log has reached its budget. The source then acknowledges
// nothing more, and the broker keeps the rest; or it sheds the oldest, and counts them. Either is shown, and the
// log stays within its budget. When the sink's broker is back, everything comes that was not shed.
func TestLogBudget(t *testing.T) {
	const (
		budget   = 2 << 20
		messages = 300
		bytes    = 16 << 10 // so that all together are more than the log and the sink hold
	)
	for _, rule := range []string{"wait", "shed_oldest"} {
		t.Run(rule, func(t *testing.T) {
			a := startWith(t, node.Options{Data: t.TempDir(), Name: "a", NATSListen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", LogBudget: budget})
			proxy, err := trial.NewProxy(a.at.MQTT)
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			defer running.Wait()
			defer proxy.Close()
			running.Go(proxy.Run)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			var mu sync.Mutex
			came := map[int]bool{}
			reader := &trial.Reader{Name: "reader", Broker: a.at.MQTT, Filter: "out/x", QoS: 1, Subscribed: make(chan struct{}), Take: func(_ string, payload []byte) {
				mu.Lock()
				defer mu.Unlock()
				if n, err := strconv.Atoi(string(payload)); err == nil {
					came[n] = true
				}
			}}
			running.Go(func() {
				if err := reader.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			a.until("the reader is subscribed", func() (bool, string) {
				select {
				case <-reader.Subscribed:
					return true, ""
				default:
					return false, ""
				}
			})
			proxy.Refuse(true)
			a.mustApply(fmt.Sprintf(budgetJob, rule, proxy.Addr()))
			pad := strings.Repeat("x", bytes)
			sender := &trial.Sender{Name: "sender", Broker: a.at.MQTT, QoS: 1, Message: func(n int) (string, string) {
				return "in/x", fmt.Sprintf(`{"n":%d,"pad":"%s"}`, n, pad)
			}}
			running.Go(func() {
				if err := sender.Send(ctx, messages); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})

			source := func() (s api.Source, log int64) {
				st, err := a.client.Status(t.Context())
				if err != nil || len(st.Tasks) != 1 || st.Tasks[0].Source == nil {
					t.Fatalf("status %+v, %v", st, err)
				}
				if st.Store.LogBytes > budget || st.Store.LogBudgetBytes != budget {
					t.Fatalf("the log has %d bytes of %d, want at most %d", st.Store.LogBytes, st.Store.LogBudgetBytes, budget)
				}
				return *st.Tasks[0].Source, st.Store.LogBytes
			}
			a.until("the log is full, and the source says so", func() (bool, string) {
				s, log := source()
				full := s.State == "log full" && strings.Contains(s.Reason, "has reached its budget")
				return full && rule == "wait" || s.Shed > 0, fmt.Sprintf("%+v, %d bytes", s, log)
			})
			proxy.Refuse(false)
			a.until("everything comes that was not shed", func() (bool, string) {
				s, _ := source()
				mu.Lock()
				defer mu.Unlock()
				all := len(came)+int(s.Shed) >= messages && s.State == "receiving"
				return all && sender.Done.Load(), fmt.Sprintf("%d came, %+v", len(came), s)
			})
			s, _ := source()
			mu.Lock()
			defer mu.Unlock()
			if shed := messages - len(came); rule == "wait" && (shed > 0 || s.Shed > 0) || uint64(shed) > s.Shed {
				t.Errorf("%d of %d did not come, %d were shed", shed, messages, s.Shed)
			}
			cancel()
		})
	}
}
