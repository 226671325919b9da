package node_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/internal/signing"
	"github.com/weir-stream/weir/wasmops"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// TestOnlyTrustedModulesAreLoaded: unsigned and foreign ones are refused on the device, by name; one that is signed
// later is taken, and also after a restart without the control plane's help; an upgrade to an unsigned one is rolled back.
func TestOnlyTrustedModulesAreLoaded(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	f, dir := newFiles(t), t.TempDir()
	up := func() *agent {
		return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", TrustedKeys: []ed25519.PublicKey{pub}})
	}
	a := up()
	one, two := telling("a"), telling("b")
	a.push("1", one)
	a.push("2", two)
	sign := func(k ed25519.PrivateKey, version string, g *wasmtest.Guest) error {
		_, err := a.client.SignOperator(t.Context(), "tell", version, signing.Operator(k, "tell", version, wasmops.Digest(g.Wasm())))
		return err
	}
	if err := sign(foreign, "1", one); err != nil {
		t.Fatal(err)
	}
	if err := sign(key, "1", two); err != nil { // of other bytes
		t.Fatal(err)
	}
	short := api.JobSource{File: "job.yaml", YAML: f.tells("1", "")}
	if _, err := a.client.ApplyJob(t.Context(), short, patience/60); err == nil {
		t.Fatal("an unsigned module is loaded")
	}
	if why := a.reason("lines"); !strings.Contains(why, "module tell@1") || !strings.Contains(why, "not signed by a key that this agent trusts") {
		t.Errorf("the task says %q", why)
	}
	if err := sign(key, "1", one); err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1")
	a.stop()
	a = up()
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2")

	if _, err := a.upgrade(f.tells("2", ""), nil); err == nil || !strings.Contains(err.Error(), "tell@2") {
		t.Fatalf("an upgrade to an unsigned module: %v", err)
	}
	a.upgraded(api.UpgradeRolledBack)
	if err := sign(key, "2", two); err != nil {
		t.Fatal(err)
	}
	if _, err := a.upgrade(f.tells("2", ""), nil); err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2", "3 b3")
	if err := sign(key, "3", two); err == nil || !strings.Contains(err.Error(), "no operator tell@3") {
		t.Errorf("a version that is not there: %v", err)
	}
	if _, err := a.client.SignOperator(t.Context(), "tell", "1", "nonsense"); err == nil {
		t.Error("nonsense is a signature")
	}
	for n := 3; ; n++ { // however many come, the first ones stay
		_, more, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := sign(more, "1", one); err == nil && n < 8 {
			continue
		} else if n != 8 || err == nil || !strings.Contains(err.Error(), "tell@1 has 8 signatures") {
			t.Fatalf("signature %d: %v", n+1, err)
		}
		break
	}
	list, err := a.client.Operator(t.Context(), "tell")
	if err != nil || len(list) != 2 || list[0].Signatures != 8 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestVersionsAreImmutable: other bytes under a version that is registered are refused, the same bytes are no error.
func TestVersionsAreImmutable(t *testing.T) {
	t.Parallel()
	a := start(t, t.TempDir())
	a.push("1", telling("a"))
	a.push("1", telling("a"))
	_, err := a.client.PushOperator(t.Context(), "tell", "1", bytes.NewReader(telling("b").Wasm()))
	if err == nil || !strings.Contains(err.Error(), "versions are immutable") {
		t.Errorf("other bytes: %v", err)
	}
	list, err := a.client.Operators(t.Context())
	if err != nil || len(list) != 1 || list[0].Digest != wasmops.Digest(telling("a").Wasm()) {
		t.Errorf("%v, %v", fmt.Sprint(list), err)
	}
}
