package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// defaultDeadLetters and maxDeadLetters bound one answer; the agents keep more.
const (
	defaultDeadLetters = 100
	maxDeadLetters     = 10_000
)

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /metrics", s.metrics)

	mux.Handle("GET /api/v1/status", look(s.status))
	mux.Handle("GET /api/v1/agents", look(s.agents))
	mux.Handle("DELETE /api/v1/agents/{agent}", look(s.removeAgent))

	mux.Handle("GET /api/v1/drill", look(s.drills))
	mux.Handle("POST /api/v1/drill", look(s.drill))

	mux.Handle("GET /api/v1/jobs", look(s.jobs))
	mux.Handle("POST /api/v1/jobs", wait(s.applyJob))
	mux.Handle("POST /api/v1/plan", look(s.planJob))
	mux.Handle("GET /api/v1/jobs/{job}", look(s.job))
	mux.Handle("DELETE /api/v1/jobs/{job}", wait(s.deleteJob))
	mux.Handle("POST /api/v1/jobs/{job}/stop", wait(s.stopJob))
	mux.Handle("POST /api/v1/jobs/{job}/promote", look(s.promoteJob))
	mux.Handle("POST /api/v1/jobs/{job}/rollback", look(s.rollbackJob))
	mux.Handle("POST /api/v1/jobs/{job}/deadletters/replay", wait(s.replayDeadLetters))
	mux.Handle("GET /api/v1/jobs/{job}/deadletters", look(s.deadLetters))

	mux.Handle("GET /api/v1/jobs/{job}/checkpoints", look(s.checkpoints))
	mux.Handle("POST /api/v1/jobs/{job}/checkpoints", wait(s.checkpointNow))
	mux.Handle("GET /api/v1/jobs/{job}/checkpoints/{epoch}", look(s.checkpoint))
	mux.HandleFunc("GET /api/v1/jobs/{job}/checkpoints/{epoch}/export", s.export)

	mux.Handle("GET /api/v1/operators", look(s.operators))
	mux.Handle("GET /api/v1/operators/{name}", look(s.operator))
	mux.Handle("DELETE /api/v1/operators/{name}", look(s.removeOperator))
	mux.Handle("DELETE /api/v1/operators/{name}/{version}", look(s.removeOperator))
	mux.Handle("PUT /api/v1/operators/{name}/{version}", upload(s.pushOperator))
	mux.Handle("PUT /api/v1/operators/{name}/{version}/signature", look(s.signOperator))
	mux.Handle("POST /api/v1/modules", upload(s.pushModule))
	mux.Handle("GET /api/v1/uploads/{digest}", look(s.uploaded))
	mux.Handle("PATCH /api/v1/uploads/{digest}", upload(s.upload))
	return mux
}

// call answers a request with a value to be sent as JSON, or an error.
type call func(ctx context.Context, r *http.Request) (any, error)

// look is for calls that do not wait.
func look(c call) http.Handler {
	return timed(c, func(*http.Request) (time.Duration, error) { return shortTimeout, nil })
}

// upload is for calls with a large body.
func upload(c call) http.Handler {
	return timed(c, func(*http.Request) (time.Duration, error) { return uploadTimeout, nil })
}

// wait is for calls that wait for something to happen, as long as ?timeout says.
func wait(c call) http.Handler { return timed(c, timeout) }

func timed(c call, limit func(*http.Request) (time.Duration, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, err := limit(r)
		if err != nil {
			writeError(w, err)
			return
		}
		extend(w, d)
		ctx, cancel := context.WithTimeout(r.Context(), d)
		defer cancel()
		v, err := c(ctx, r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, v)
	})
}

// extend lets the connection live as long as its request may take. A writer that has no deadlines,
// as in a test, needs none.
func extend(w http.ResponseWriter, d time.Duration) {
	rc := http.NewResponseController(w)
	end := time.Now().Add(d + answerMargin)
	_ = rc.SetReadDeadline(end)
	_ = rc.SetWriteDeadline(end)
}

func timeout(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("timeout")
	if text == "" {
		return waitTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxWaitTimeout {
		return 0, api.Invalid("write it like 60s or 2m", "timeout=%s: not a time between 0 and %s", text, maxWaitTimeout)
	}
	return d, nil
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

// ready tells anybody that, and only those who may know, why not.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), shortTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.backend.Ready(ctx); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		if s.guard.open {
			fmt.Fprintf(w, "not ready: %v\n", err)
			return
		}
		io.WriteString(w, "not ready: see status\n")
		return
	}
	io.WriteString(w, "ready\n")
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), shortTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(appendMetrics(nil, s.backend.Metrics(ctx)))
}

func (s *Server) status(ctx context.Context, _ *http.Request) (any, error) {
	st, err := s.backend.Status(ctx)
	st.Agent.Labels = labels(st.Agent.Labels)
	st.Links, st.Tasks, st.Notices = list(st.Links), list(st.Tasks), list(st.Notices)
	return st, err
}

func (s *Server) agents(ctx context.Context, _ *http.Request) (any, error) {
	v, err := s.backend.Agents(ctx)
	for i := range v {
		v[i].Labels = labels(v[i].Labels)
	}
	return list(v), err
}

func (s *Server) removeAgent(ctx context.Context, r *http.Request) (any, error) {
	return nil, s.backend.RemoveAgent(ctx, r.PathValue("agent"))
}

func (s *Server) jobs(ctx context.Context, _ *http.Request) (any, error) {
	v, err := s.backend.Jobs(ctx)
	return list(v), err
}

func (s *Server) job(ctx context.Context, r *http.Request) (any, error) {
	j, err := s.backend.Job(ctx, r.PathValue("job"))
	j.Tasks, j.Warnings = list(j.Tasks), list(j.Warnings)
	return j, err
}

func (s *Server) applyJob(ctx context.Context, r *http.Request) (any, error) {
	src, err := jobSource(r)
	if err != nil {
		return nil, err
	}
	a, err := s.backend.ApplyJob(ctx, src)
	a.Warnings = list(a.Warnings)
	return a, err
}

func (s *Server) planJob(ctx context.Context, r *http.Request) (any, error) {
	src, err := jobSource(r)
	if err != nil {
		return nil, err
	}
	p, err := s.backend.PlanJob(ctx, src)
	p.Tasks, p.Channels, p.Warnings = list(p.Tasks), list(p.Channels), list(p.Warnings)
	return p, err
}

// jobSource reads a job file: JSON of an [api.JobSource], or the plain text of the file.
func jobSource(r *http.Request) (api.JobSource, error) {
	var src api.JobSource
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxJobBytes))
	if err != nil {
		return src, fmt.Errorf("read the job file: %w", err)
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		if err := json.Unmarshal(body, &src); err != nil {
			return src, api.Invalid(`send {"file": …, "yaml": …, "modules": …}, or the file itself with Content-Type: application/yaml`, "the request is not JSON: %v", err)
		}
	} else {
		src = api.JobSource{File: r.URL.Query().Get("file"), YAML: string(body)}
	}
	if src.File == "" {
		src.File = "job.yaml"
	}
	if src.YAML == "" {
		return src, api.Invalid("send the job file as the request's body", "the job file is empty")
	}
	return src, nil
}

func (s *Server) stopJob(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.StopJob(ctx, r.PathValue("job"))
}

func (s *Server) deleteJob(ctx context.Context, r *http.Request) (any, error) {
	force, err := flag(r, "force")
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.backend.DeleteJob(ctx, r.PathValue("job"), force)
}

func flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, api.Invalid("write true or false", "%s=%s: neither true nor false", name, text)
	}
	return v, nil
}

func (s *Server) deadLetters(ctx context.Context, r *http.Request) (any, error) {
	limit := defaultDeadLetters
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxDeadLetters {
			return nil, api.Invalid("", "limit=%s: not a number from 1 to %d", text, maxDeadLetters)
		}
		limit = n
	}
	v, err := s.backend.DeadLetters(ctx, r.PathValue("job"), limit)
	v.Letters, v.Unanswered = list(v.Letters), list(v.Unanswered)
	return v, err
}

func (s *Server) checkpoints(ctx context.Context, r *http.Request) (any, error) {
	v, err := s.backend.Checkpoints(ctx, r.PathValue("job"))
	return list(v), err
}

func (s *Server) checkpointNow(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.CheckpointNow(ctx, r.PathValue("job"), r.URL.Query().Get("name"))
}

func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	epoch, err := epochOf(r.PathValue("epoch"))
	if err != nil {
		writeError(w, err)
		return
	}
	extend(w, exportTimeout)
	ctx, cancel := context.WithTimeout(r.Context(), exportTimeout)
	defer cancel()
	out := &download{w: w, rc: http.NewResponseController(w)}
	err = s.backend.ExportCheckpoint(ctx, r.PathValue("job"), epoch, out)
	switch {
	case err == nil:
		out.begin() // for an empty file
	case out.begun:
		// Too late for a status: the broken connection tells the client.
		s.log.Warn("export of a checkpoint broke off", "job", r.PathValue("job"), "error", err)
		panic(http.ErrAbortHandler)
	default:
		writeError(w, err)
	}
}

func epochOf(text string) (uint64, error) {
	if text == "latest" {
		return 0, nil
	}
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil || epoch == 0 {
		return 0, api.Invalid("", "epoch %s: neither a number from 1 nor latest", text)
	}
	return epoch, nil
}

// download is the body of an answer of unknown length; it lives as long as the client takes it.
type download struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func (d *download) begin() {
	if d.begun {
		return
	}
	d.begun = true
	d.w.Header().Set("Content-Type", "application/octet-stream")
	d.w.Header().Set("Cache-Control", "no-store")
	d.w.WriteHeader(http.StatusOK)
}

func (d *download) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	d.begin()
	if err := d.rc.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return d.w.Write(b)
}

func (s *Server) operators(ctx context.Context, _ *http.Request) (any, error) {
	v, err := s.backend.Operators(ctx)
	return fillOperators(v), err
}

func (s *Server) operator(ctx context.Context, r *http.Request) (any, error) {
	v, err := s.backend.Operator(ctx, r.PathValue("name"))
	return fillOperators(v), err
}

func (s *Server) removeOperator(ctx context.Context, r *http.Request) (any, error) {
	v, err := s.backend.RemoveOperator(ctx, r.PathValue("name"), r.PathValue("version"))
	return fillOperators(v), err
}

func fillOperators(v []api.Operator) []api.Operator {
	for i := range v {
		v[i].Imports = list(v[i].Imports)
	}
	return list(v)
}

func (s *Server) pushOperator(ctx context.Context, r *http.Request) (any, error) {
	body := http.MaxBytesReader(nil, r.Body, maxModuleBytes)
	o, err := s.backend.PushOperator(ctx, r.PathValue("name"), r.PathValue("version"), r.URL.Query().Get("digest"), body)
	o.Imports = list(o.Imports)
	return o, err
}

func (s *Server) pushModule(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.PushModule(ctx, r.URL.Query().Get("digest"), http.MaxBytesReader(nil, r.Body, maxModuleBytes))
}

func (s *Server) uploaded(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.Uploaded(ctx, r.PathValue("digest"))
}

func (s *Server) upload(ctx context.Context, r *http.Request) (any, error) {
	size, err := amount(r, "size")
	if err != nil {
		return nil, err
	}
	offset, err := amount(r, "offset")
	if err != nil {
		return nil, err
	}
	return s.backend.Upload(ctx, r.PathValue("digest"), size, offset, http.MaxBytesReader(nil, r.Body, maxModuleBytes))
}

// amount is a parameter that is a number of bytes.
func amount(r *http.Request, name string) (int64, error) {
	text := r.URL.Query().Get(name)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, api.Invalid("send PATCH /api/v1/uploads/DIGEST?size=BYTES&offset=BYTES", "%s=%s: not a number of bytes", name, text)
	}
	return n, nil
}

// list makes a listing that is never null in JSON.
func list[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// labels makes an object that is never null in JSON.
func labels(v map[string]string) map[string]string {
	if v == nil {
		return map[string]string{}
	}
	return v
}
