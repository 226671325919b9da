package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	"github.com/weir-stream/weir/wasmops"
)

// slowLink passes connections on to an agent and breaks at chosen bytes of what clients have sent in all.
type slowLink struct {
	l  net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex
	to     string
	passed int64   // bytes from clients
	cuts   []int64 // at which bytes it breaks next, ascending
}

func newSlowLink(t *testing.T, to string) *slowLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &slowLink{l: l, to: to}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.connect(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	return p
}

// connect passes one connection on. At a cut the agent gets all bytes before it, and the client no answer.
func (p *slowLink) connect(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer conn.Close()
	agent := conn.(*net.TCPConn)
	answered := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(agent) // the connection is for one request
		answered <- b
	}()
	cut := make(chan bool, 1)
	go func() {
		broke := p.pass(agent, client)
		_ = agent.CloseWrite()
		cut <- broke
	}()
	var answer []byte
	select {
	case answer = <-answered:
	case broke := <-cut:
		if answer = <-answered; broke {
			return
		}
	}
	_, _ = client.Write(answer)
}

// pass says whether it was cut; else the client has ended.
func (p *slowLink) pass(to io.Writer, from io.Reader) bool {
	buf := make([]byte, 8<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		broke := len(p.cuts) > 0 && p.passed+int64(n) >= p.cuts[0]
		if broke {
			n = int(p.cuts[0] - p.passed)
			p.cuts = p.cuts[1:]
		}
		p.passed += int64(n)
		p.mu.Unlock()
		if _, e := to.Write(buf[:n]); e != nil || err != nil || broke {
			return broke
		}
	}
}

func (p *slowLink) cutAt(bytes ...int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range bytes {
		p.cuts = append(p.cuts, p.passed+b)
	}
}

func (p *slowLink) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// padded is a module with a section that nobody reads, of bytes that are nowhere else.
func padded(size int) []byte {
	section := make([]byte, 1+8+size)
	section[0] = 8
	copy(section[1:], "padding!")
	rand.New(rand.NewSource(int64(size))).Read(section[9:])
	b := append(telling("p").Wasm(), 0)
	return append(binary.AppendUvarint(b, uint64(len(section))), section...)
}

// requestBytes is more than the head of a request takes.
const requestBytes = 600

// TestPushOverALinkThatBreaks: at the first byte, in a head, in a body, twice in a row, and at the very end: nothing of the
// module is sent twice. A command that gives up leaves what it has sent to the next one, also when the agent starts anew.
func TestPushOverALinkThatBreaks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, dir)
	link := newSlowLink(t, a.at.HTTP)
	client, err := api.NewClient("http://" + link.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	wasm := padded(3 << 20)
	digest, size := wasmops.Digest(wasm), int64(len(wasm))
	waited, requests := 0, int64(0)
	up := api.Uploader{Client: client,
		Progress: func(api.Uploading) { requests++ },
		Wait: func(context.Context, time.Duration) error {
			waited++
			return nil
		},
	}
	upload := func() error { return up.Upload(t.Context(), digest, bytes.NewReader(wasm), size) }
	link.cutAt(0)
	if err := upload(); err == nil || waited > 0 {
		t.Fatalf("the first request of all fails: %v, after %d waits", err, waited)
	}
	end := errors.New("the command is ended")
	link.cutAt(requestBytes+100_000, requestBytes+100_100, requestBytes+1_500_000)
	up.Wait = func(context.Context, time.Duration) error {
		if waited++; waited == 3 {
			return end
		}
		return nil
	}
	if err := upload(); !errors.Is(err, end) {
		t.Fatalf("got %v", err)
	}
	before, err := client.Uploaded(t.Context(), digest)
	if err != nil || before.Bytes < 1_400_000 || before.Complete {
		t.Fatalf("%+v, %v", before, err)
	}
	a.stop()
	a = start(t, dir)
	link.mu.Lock()
	link.to = a.at.HTTP
	link.mu.Unlock()
	if st, err := client.Uploaded(t.Context(), digest); err != nil || st != before {
		t.Fatalf("after a restart %+v, before %+v, %v", st, before, err)
	}
	link.cutAt(size-before.Bytes, size-before.Bytes+2000) // in the last piece, if each byte comes once
	if err := upload(); err != nil {
		t.Fatal(err)
	}
	if got, most := link.bytes(), size+(requests+8)*requestBytes; got > most {
		t.Errorf("%d bytes were sent in %d requests for a module of %d", got, requests, size)
	}
	if len(link.cuts) > 1 || waited < 4 {
		t.Errorf("it broke off %d times; cuts left: %v", waited, link.cuts)
	}
	link.mu.Lock()
	link.cuts = nil
	link.mu.Unlock()
	o, err := client.RegisterOperator(t.Context(), "tell", "1", digest)
	if err != nil || o.Digest != digest || o.Bytes != size {
		t.Fatalf("%+v, %v", o, err)
	}
	sent := link.bytes()
	if err := upload(); err != nil || link.bytes() > sent+requestBytes {
		t.Errorf("what the agent has is sent again: %d bytes, %v", link.bytes()-sent, err)
	}
	if m, err := client.KeepModule(t.Context(), digest); err != nil || m.Digest != digest {
		t.Errorf("%+v, %v", m, err)
	}
	f := newFiles(t)
	a.mustApply(f.tells("1", ""))
	f.write(t, "x\n")
	f.wants(a, "1 p1")
}

// TestUploadsThatCannotBe: each error says what is wrong.
func TestUploadsThatCannotBe(t *testing.T) {
	t.Parallel()
	a := start(t, t.TempDir())
	b := []byte("no module")
	digest := storage.Digest(b)
	up := api.Uploader{Client: a.client}
	if err := up.Upload(t.Context(), digest, bytes.NewReader(b), int64(len(b))); err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.RegisterOperator(t.Context(), "tell", "1", digest); !api.IsInvalid(err) {
		t.Errorf("registered: %v", err)
	}
	other := storage.Digest([]byte("other"))
	if _, err := a.client.RegisterOperator(t.Context(), "tell", "1", other); err == nil || !strings.Contains(err.Error(), other+" is not on this agent") {
		t.Errorf("what was not uploaded: %v", err)
	}
	if err := up.Upload(t.Context(), other, bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), "is something else") {
		t.Errorf("other bytes: %v", err)
	}
	if err := up.Upload(t.Context(), "sha256:12", bytes.NewReader(b), int64(len(b))); !api.IsInvalid(err) {
		t.Errorf("no digest: %v", err)
	}
	if err := up.Upload(t.Context(), other, bytes.NewReader(b), 1<<40); !api.IsInvalid(err) {
		t.Errorf("a large one: %v", err)
	}
	for query, want := range map[string]int{"?size=9&offset=5": 416, "?size=9": 400, "?size=-1&offset=0": 400, "?size=9&offset=0": 200} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+a.at.HTTP+"/api/v1/uploads/"+other+query, strings.NewReader("oth"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", query, resp.Status, want)
		}
	}
	if _, err := a.client.RegisterOperator(t.Context(), "tell", "1", "sha256:12"); !api.IsInvalid(err) {
		t.Errorf("no digest is registered: %v", err)
	}
	if list, err := filepath.Glob(filepath.Join(a.dir, "uploads", "*")); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}
