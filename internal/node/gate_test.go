package node

import (
	"net"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/internal/api"
)

func TestGate(t *testing.T) {
	var g gate
	connect := func() (net.Conn, net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		c, err := g.admit(near)
		return c, far, err
	}
	open, far, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	closed, _, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if len(g.conns) != 1 {
		t.Fatalf("%d connections are known", len(g.conns))
	}
	g.set(true)
	if _, err := far.Write([]byte("x")); err == nil {
		t.Error("a connection lasts behind a shut gate")
	}
	if _, _, err := connect(); err == nil {
		t.Error("a shut gate admits a connection")
	}
	open.Close()
	g.set(false)
	if _, _, err := connect(); err != nil {
		t.Error(err)
	}
}

func TestDrillRoom(t *testing.T) {
	var d drill
	if n := d.room(nil, 10); n != 10 {
		t.Errorf("room for %d of 10 bytes", n)
	}
	if n := d.room(func(n int) int { return n / 2 }, 10); n != 5 {
		t.Errorf("room for %d bytes, the next one has 5", n)
	}
	d.full.Store(true)
	if n := d.room(nil, 10); n != 0 {
		t.Errorf("room for %d bytes on a full disk", n)
	}
	d.full.Store(false)
	d.torn = make(chan struct{})
	d.tear.Store(true)
	if n := d.room(nil, 10); n < 0 || n > 10 {
		t.Errorf("%d of 10 bytes are written", n)
	}
	<-d.torn
	if n := d.room(nil, 10); n != 0 {
		t.Errorf("%d bytes are written after the power has gone", n)
	}
}

func TestDrillClock(t *testing.T) {
	a := &Agent{}
	a.opt.Clock = func() int64 { return 5_000_000 }
	a.drill.shift.Store(time.Hour.Milliseconds())
	if got := a.now(); got != 1_400_000 {
		t.Errorf("it is %d", got)
	}
}

func TestCutsOf(t *testing.T) {
	rec := abs.EpochRecord{Parts: map[abs.TaskID]abs.Part{
		"head": {Cut: abs.Cut{Sent: map[abs.ChannelID]abs.Seq{"b": 7}, Consumed: map[abs.ChannelID]abs.Seq{"a": 9, "back": 3}, Logged: map[abs.ChannelID]abs.Seq{"back": 6}}},
		"body": {Cut: abs.Cut{Sent: map[abs.ChannelID]abs.Seq{"back": 6}, Consumed: map[abs.ChannelID]abs.Seq{"b": 7}}},
		"in":   {Cut: abs.Cut{Sent: map[abs.ChannelID]abs.Seq{"a": 8}}},
	}}
	got := cutsOf(rec, []abs.PlannedChannel{{ID: "back", From: "body", To: "head", Back: true}, {ID: "a", From: "in", To: "head"}, {ID: "b", From: "head", To: "body"}},
		map[abs.TaskID]bool{"in": true})
	want := []api.ChannelCut{
		{ID: "a", From: "in", To: "head", Source: true, Sent: 8, Consumed: 9},
		{ID: "b", From: "head", To: "body", Sent: 7, Consumed: 7},
		{ID: "back", From: "body", To: "head", Back: true, Sent: 6, Consumed: 6},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}
