package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// controlPlane is one of the test's own, until it ends.
func controlPlane(t *testing.T) (context.Context, *wnats.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	quiet := slog.New(slog.DiscardHandler)
	server, err := wnats.StartServer(wnats.ServerOptions{Dir: t.TempDir(), Name: "test", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	conn, err := wnats.Connect(wnats.ConnectOptions{Server: server, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx, conn
}

// TestTidyJob: of a job's seventy epochs the newest are kept, of the older ones the newest savepoints and, while
// somebody is away, the one that the generation began from; of packs those that a kept record names, and those that
// may be on their way into one. Of other jobs all is.
func TestTidyJob(t *testing.T) {
	ctx, conn := controlPlane(t)
	quiet := slog.New(slog.DiscardHandler)
	kv, objects := conn.KV(wnats.Checkpoints), conn.Objects(wnats.Snapshots)
	create := func(key string, v any) {
		t.Helper()
		if _, err := kv.Create(ctx, key, mustJSON(v)); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name string) {
		t.Helper()
		if _, err := objects.Put(ctx, name, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	const epochs, base = 70, 9
	saved := func(e abs.Epoch) bool { return e%2 == 0 }
	var records []abs.VersionedRecord
	for e := abs.Epoch(1); e <= epochs; e++ {
		pack := packName("j", "t", 1, uint64(e))
		rec := abs.EpochRecord{
			Epoch: e, Term: 1, Generation: 1, State: abs.Replicated, Detached: []string{"away"},
			Parts: map[abs.TaskID]abs.Part{"t": {Epoch: e, Generation: 1, Version: uint64(e), Packs: []string{pack}}},
		}
		if saved(e) {
			rec.Savepoint = fmt.Sprint("s", e)
		}
		create(epochKey("j", e), rec)
		if e == 1 || e >= epochs-1 {
			create(ackKey("j", e, "t"), ackList{})
			create(replicaKey("j", e, "t"), ackList{})
		}
		put(pack)
		records = append(records, abs.VersionedRecord{Record: rec, Revision: uint64(e)})
	}
	create(epochKey("other", 1), abs.EpochRecord{Epoch: 1})
	create(ackKey("other", 1, "t"), ackList{})
	put(packName("other", "t", 1, 1))
	put(packName("j", "t", 1, epochs+1)) // of an epoch that is running
	plan := abs.Plan{Generation: 1, Tasks: []abs.PlannedTask{{ID: "t", Agent: "a", Source: true}, {ID: "u", Agent: "away", Source: true}}}
	l := &lead{a: &Agent{conn: conn, log: quiet}, term: 2}
	tidy := func(away bool) {
		t.Helper()
		for i := range records {
			if !away {
				records[i].Record.Detached = nil
			}
		}
		coord, err := abs.NewCoordinator(abs.Config{TimeoutMs: 1000, Replicate: true}, plan, 2, abs.Recovered{Records: records})
		if err != nil {
			t.Fatal(err)
		}
		if coord.Needed() != epochs || len(coord.Status().Detached) > 0 != away {
			t.Fatalf("epochs from %d are needed; status %+v", coord.Needed(), coord.Status())
		}
		if err := l.tidyJob(ctx, "j", &led{rec: jobRecord{Name: "j", Base: base}, coord: coord}); err != nil {
			t.Fatal(err)
		}
	}
	for _, away := range []bool{true, false} {
		tidy(away)
		tidy(away) // again: it takes no more
		want, packs, older := map[string]bool{}, map[string]bool{}, 0
		for e := abs.Epoch(epochs); e > 0; e-- {
			keep := e >= epochs-keptRecords || away && e == base
			if !keep && saved(e) {
				older++
				keep = older <= keptSavepoints
			}
			if keep {
				want[epochKey("j", e)], packs[packName("j", "t", 1, uint64(e))] = true, true
			}
		}
		if older <= keptSavepoints {
			t.Fatalf("only %d older savepoints: none has to go", older)
		}
		want[ackKey("j", epochs, "t")], want[replicaKey("j", epochs, "t")] = true, true
		want[epochKey("other", 1)], want[ackKey("other", 1, "t")] = true, true
		packs[packName("other", "t", 1, 1)], packs[packName("j", "t", 1, epochs+1)] = true, true
		var keys, names []string
		for _, kind := range []string{kindEpoch, kindAck, kindReplica} {
			for _, job := range []string{"j", "other"} {
				some, err := kv.Keys(ctx, wnats.Key(kind, job))
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, some...)
			}
		}
		list, err := objects.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			names = append(names, o.Name)
		}
		same(t, fmt.Sprintf("keys, away %v", away), keys, want)
		same(t, fmt.Sprintf("packs, away %v", away), names, packs)
	}
}

func same(t *testing.T, what string, got []string, want map[string]bool) {
	t.Helper()
	for _, name := range got {
		if !want[name] {
			t.Errorf("%s: %s is still there", what, name)
		}
	}
	for name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s: %s is gone", what, name)
		}
	}
}

// TestImportedPacksStay: a pack of a checkpoint that was imported is an object of its own, with a bundle's name in front,
// and stays while a record names it, although a newer bundle of the agent is named, too.
func TestImportedPacksStay(t *testing.T) {
	ctx, conn := controlPlane(t)
	kv, objects := conn.KV(wnats.Checkpoints), conn.Objects(wnats.Snapshots)
	bundle := func(gen abs.Generation) string { return packName("j", bundleOwner("g"), gen, 5) + ".1.1" }
	for i, packs := range [][]string{{memberName(bundle(1), "t")}, {memberName(bundle(2), "t")}} {
		e := abs.Epoch(i + 1)
		rec := abs.EpochRecord{Epoch: e, Term: 1, Generation: 1, State: abs.Replicated, Parts: map[abs.TaskID]abs.Part{"t": {Epoch: e, Generation: 1, Version: 1, Packs: packs}}}
		if _, err := kv.Create(ctx, epochKey("j", e), mustJSON(rec)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{memberName(bundle(1), "t"), memberName(bundle(1), "other"), bundle(2)} {
		if _, err := objects.Put(ctx, name, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	l := &lead{a: &Agent{conn: conn}}
	if err := l.tidyPacks(ctx, "j"); err != nil {
		t.Fatal(err)
	}
	list, err := objects.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list {
		names = append(names, o.Name)
	}
	same(t, "packs", names, map[string]bool{memberName(bundle(1), "t"): true, bundle(2): true})
}
