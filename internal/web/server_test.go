package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/web/webtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a backend and returns a client for it and its address.
func start(t *testing.T, b Backend, user, password string) (*api.Client, string) {
	t.Helper()
	srv := httptest.NewServer(New(Options{Backend: b, User: user, Password: password, Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(srv.Close)
	address := srv.URL
	if user != "" {
		address = strings.Replace(srv.URL, "://", "://"+user+":"+password+"@", 1)
	}
	c, err := api.NewClient(address)
	if err != nil {
		t.Fatal(err)
	}
	return c, srv.URL
}

// raw makes a request as a script would and returns status and body.
func raw(t *testing.T, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

func TestClientReachesEveryMethod(t *testing.T) {
	c, _ := start(t, webtest.New(maxRequests), "", "")
	ctx := t.Context()
	src := api.JobSource{File: "a.yaml", YAML: "name: x", Modules: map[string]string{"./x.wasm": "sha256:1"}}
	var file bytes.Buffer
	checks := []struct {
		name string
		call func() (any, error)
		want string // JSON that the answer must contain
	}{
		{"status", func() (any, error) { return c.Status(ctx) }, `"notices":[]`},
		{"agents", func() (any, error) { return c.Agents(ctx) }, `"labels":{},"state":"down"`},
		{"remove agent", func() (any, error) { return nil, c.RemoveAgent(ctx, "g1") }, `null`},
		{"jobs", func() (any, error) { return c.Jobs(ctx) }, `"last_complete_epoch":17`},
		{"job", func() (any, error) { return c.Job(ctx, "a/b c?d") }, `"name":"a/b c?d"`},
		{"job's tasks", func() (any, error) { return c.Job(ctx, "x") }, `"tasks":[{"id":"smooth@g1"`},
		{"plan", func() (any, error) { return c.PlanJob(ctx, src) }, `"text":"plan of a.yaml with map[./x.wasm:sha256:1]\n"`},
		{"apply", func() (any, error) { return c.ApplyJob(ctx, src, time.Minute) }, `"job":"a.yamlsha256:1","generation":7`},
		{"promote", func() (any, error) { return c.EndTrial(ctx, "x", true) }, `"state":"done"`},
		{"rollback", func() (any, error) { return c.EndTrial(ctx, "x", false) }, `"state":"rolled back"`},
		{"replay", func() (any, error) {
			return c.ReplayDeadLetters(ctx, "x", api.Replay{IDs: []string{"t/1-2"}, Operator: "o"}, time.Minute)
		}, `{"replayed":["t/1-2"],"skipped":[{"id":"o","reason":"was replayed"}],"unanswered":[]}`},
		{"stop", func() (any, error) { return c.StopJob(ctx, "x", time.Minute) }, `"epoch":9`},
		{"delete", func() (any, error) { return nil, c.DeleteJob(ctx, "x", true, time.Minute) }, `null`},
		{"dead letters", func() (any, error) { return c.DeadLetters(ctx, "x", 42) }, `"key":"k","time_ms":42,"bytes":9000,"value":{"base64":"/wA="}`},
		{"checkpoints", func() (any, error) { return c.Checkpoints(ctx, "new") }, `[]`},
		{"checkpoint now", func() (any, error) { return c.CheckpointNow(ctx, "x", "", time.Minute) }, `"state":"replicated"`},
		{"export newest", func() (any, error) {
			_, err := c.ExportCheckpoint(ctx, "x", 0, &file)
			return file.String(), err
		}, `"x at 0"`},
		{"export one", func() (any, error) {
			file.Reset()
			n, err := c.ExportCheckpoint(ctx, "x", 12, &file)
			return []any{file.String(), n}, err
		}, `["x at 12",7]`},
		{"sign operator", func() (any, error) { return c.SignOperator(ctx, "ewma", "1.2.0", "sig") }, `"digest":"sig"`},
		{"push operator", func() (any, error) { return c.PushOperator(ctx, "ewma", "1.2.0", strings.NewReader("wasm!")) }, `"name":"ewma","version":"1.2.0","digest":"sha256:`},
		{"remove operator", func() (any, error) { return c.RemoveOperator(ctx, "ewma", "") }, `"version":"1.3.0"`},
		{"remove version", func() (any, error) { return c.RemoveOperator(ctx, "ewma", "2.0") }, `[{"name":"ewma","version":"2.0"`},
		{"push module", func() (any, error) { return c.PushModule(ctx, strings.NewReader("wasm")) }, `,"bytes":4}`},
		{"operators", func() (any, error) { return c.Operators(ctx) }, `"imports":[]`},
		{"operator", func() (any, error) { return c.Operator(ctx, "ewma") }, `"name":"ewma"`},
	}
	for _, k := range checks {
		v, err := k.call()
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		got, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), k.want) {
			t.Errorf("%s: %s\nlacks %s", k.name, got, k.want)
		}
	}
}

func TestErrors(t *testing.T) {
	_, base := start(t, webtest.New(maxRequests), "", "")
	big := strings.Repeat("x", maxJobBytes+1)
	tests := []struct {
		method, path, body, contentType string
		status                          int
		want                            string
	}{
		{"GET", "/api/v1/jobs/missing", "", "", 404, `"error": "read KV: there is no job missing"`},
		{"GET", "/api/v1/jobs/broken", "", "", 500, `"error": "disk on fire"`},
		{"DELETE", "/api/v1/jobs/x", "", "", 409, `"hint": "stop it first"`},
		{"DELETE", "/api/v1/jobs/x?force=maybe", "", "", 400, "neither true nor false"},
		{"DELETE", "/api/v1/jobs/x?force=true", "", "", 200, "{}"},
		{"POST", "/api/v1/jobs?file=j.yaml", "wrong", "application/yaml", 400, "j.yaml:1:1: wrong"},
		{"POST", "/api/v1/jobs?file=j.yaml", "right", "application/yaml", 200, `"job": "j.yaml"`},
		{"POST", "/api/v1/jobs", "", "", 400, "the job file is empty"},
		{"POST", "/api/v1/jobs", "{", "application/json", 400, "not JSON"},
		{"POST", "/api/v1/jobs", big, "", 413, "larger than 1 MiB"},
		{"POST", "/api/v1/jobs?timeout=-1s", "x", "", 400, "timeout=-1s"},
		{"POST", "/api/v1/jobs?timeout=31m", "x", "", 400, "timeout=31m"},
		{"POST", "/api/v1/jobs?timeout=1ms", "wait", "", 504, "checkpoint 0 waits for g1"},
		{"GET", "/api/v1/jobs/x/deadletters?limit=0", "", "", 400, "limit=0"},
		{"GET", "/api/v1/jobs/x/checkpoints/0/export", "", "", 400, "epoch 0"},
		{"GET", "/api/v1/jobs/missing/checkpoints/latest/export", "", "", 404, "no job missing"},
		{"GET", "/api/v1/nothing", "", "", 404, "no such path"},
		{"PATCH", "/api/v1/jobs", "", "", 405, `PATCH /api/v1/jobs: this path takes only GET, HEAD, POST`},
	}
	for _, k := range tests {
		status, body, header := raw(t, k.method, base+k.path, k.body, "Content-Type", k.contentType)
		if status != k.status || !strings.Contains(body, k.want) {
			t.Errorf("%s %s: %d %s, want %d %s", k.method, k.path, status, body, k.status, k.want)
		}
		if header.Get("Content-Type") != "application/json" || !json.Valid([]byte(body)) {
			t.Errorf("%s %s: the answer is not JSON: %s", k.method, k.path, body)
		}
	}
}

func TestModuleLimit(t *testing.T) {
	f := webtest.New(maxRequests)
	s := New(Options{Backend: f, Log: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequest("PUT", "http://127.0.0.1/api/v1/operators/a/1", io.LimitReader(endless{}, maxModuleBytes+1))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != 413 || !strings.Contains(w.Body.String(), "larger than 33 MiB") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// What breaks off in mid-file must not look like a whole file.
func TestExportBreaksOff(t *testing.T) {
	f := webtest.New(maxRequests)
	f.Cut = 3
	c, _ := start(t, f, "", "")
	var file bytes.Buffer
	_, err := c.ExportCheckpoint(t.Context(), "x", 1, &file)
	if err == nil || !strings.Contains(err.Error(), "broke off") && !strings.Contains(err.Error(), "no answer") {
		t.Errorf("error %v after %q", err, file.String())
	}
}

func TestGuard(t *testing.T) {
	c, base := start(t, webtest.New(maxRequests), "anna", "s3cret")
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("right password: %v", err)
	}
	tests := []struct {
		path   string
		header []string
		status int
	}{
		{"/api/v1/status", nil, 401},
		{"/metrics", nil, 401},
		{"/nothing", nil, 401},
		{"/api/v1/status", []string{"Authorization", "Basic YW5uYTp3cm9uZw=="}, 401},
		{"/api/v1/status", []string{"Authorization", "Basic YW5uYTpzM2NyZXQ=", "Host", "plant.example"}, 200},
		{"/healthz", nil, 200},
		{"/readyz", nil, 200},
	}
	for _, k := range tests {
		status, body, header := raw(t, "GET", base+k.path, "", k.header...)
		if status != k.status {
			t.Errorf("%s %v: %d %s, want %d", k.path, k.header, status, body, k.status)
		}
		if status == 401 && header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", k.path)
		}
	}
}

// Without a password web pages must not reach the API through the user's browser.
func TestOpenGuardKeepsWebPagesOut(t *testing.T) {
	_, base := start(t, webtest.New(maxRequests), "", "")
	tests := []struct {
		name, method string
		header       []string
		status       int
	}{
		{"script", "POST", nil, 200},
		{"localhost", "POST", []string{"Host", "localhost:8080"}, 200},
		{"IPv6", "POST", []string{"Host", "[::1]:8080"}, 200},
		{"rebound name", "GET", []string{"Host", "evil.example:8080"}, 403},
		{"malformed host", "GET", []string{"Host", "[x"}, 403},
		{"other origin", "POST", []string{"Origin", "https://evil.example"}, 403},
		{"cross-site", "POST", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	}
	for _, k := range tests {
		path := "/api/v1/jobs/x/stop"
		if k.method == "GET" {
			path = "/api/v1/status"
		}
		if status, body, _ := raw(t, k.method, base+path, "", k.header...); status != k.status {
			t.Errorf("%s: %d %s, want %d", k.name, status, body, k.status)
		}
	}
}

func TestReady(t *testing.T) {
	f := webtest.New(maxRequests)
	_, base := start(t, f, "", "")
	if status, body, _ := raw(t, "GET", base+"/readyz", ""); status != 200 || body != "ready\n" {
		t.Errorf("%d %q", status, body)
	}
	f.NotReady = errors.New("restoring 2 tasks")
	if status, body, _ := raw(t, "GET", base+"/readyz", ""); status != 503 || body != "not ready: restoring 2 tasks\n" {
		t.Errorf("%d %q", status, body)
	}
	if status, _, _ := raw(t, "GET", base+"/healthz", ""); status != 200 {
		t.Errorf("healthz %d", status)
	}
}

func TestMetrics(t *testing.T) {
	_, base := start(t, webtest.New(maxRequests), "", "")
	status, body, header := raw(t, "GET", base+"/metrics", "")
	want := `# HELP weir_ingest_log_bytes Size \\ of\nthe log.
# TYPE weir_ingest_log_bytes gauge
weir_ingest_log_bytes 0.25
# HELP weir_task_records_in_total Records in.
# TYPE weir_task_records_in_total counter
weir_task_records_in_total{job="a",task="x"} 1
weir_task_records_in_total{job="a\"b\\c\n",task="x"} 1.2345678901e+10
`
	if status != 200 || body != want {
		t.Errorf("%d\n%s\nwant\n%s", status, body, want)
	}
	if !strings.HasPrefix(header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Error(header)
	}
}

// The server answers so many requests and no more, stays healthy, and a stop ends those that wait.
func TestRunLimitsAndStops(t *testing.T) {
	f := webtest.New(maxRequests)
	s := New(Options{Backend: f, Log: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()

	base := "http://" + l.Addr().String()
	c, err := api.NewClient(base)
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, maxRequests)
	for range maxRequests {
		go func() {
			_, err := c.ApplyJob(context.Background(), api.JobSource{File: "f", YAML: "wait"}, time.Minute)
			answers <- err
		}()
	}
	for range maxRequests {
		<-f.Entered
	}
	if status, body, header := raw(t, "GET", base+"/api/v1/status", ""); status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("one request too many: %d %s", status, body)
	}
	if status, _, _ := raw(t, "GET", base+"/healthz", ""); status != 200 {
		t.Errorf("healthz while busy: %d", status)
	}
	cancel()
	for range maxRequests {
		if err := <-answers; err == nil {
			t.Error("a request that waits survived the stop")
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the listener is still open")
	}
}

func FuzzJobSource(f *testing.F) {
	f.Add("application/json", `{"file":"a","yaml":"b","modules":{"./x.wasm":"sha256:1"}}`)
	f.Add("application/yaml", "name: x")
	f.Fuzz(func(t *testing.T, kind, body string) {
		r := httptest.NewRequest("POST", "/api/v1/jobs", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		src, err := jobSource(r)
		if err == nil && (src.YAML == "" || src.File == "") {
			t.Errorf("accepted an empty file: %+v", src)
		}
	})
}
