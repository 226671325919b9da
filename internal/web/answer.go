package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/weir-stream/weir/internal/api"
)

func writeJSON(w http.ResponseWriter, status int, v any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		status = http.StatusInternalServerError
		buf.Reset()
		buf.WriteString(`{"error": "the answer cannot be written as JSON"}` + "\n")
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(buf.Bytes()) // A client that has gone is no error of ours.
}

func writeError(w http.ResponseWriter, err error) {
	e := asError(err)
	writeJSON(w, e.Status, e)
}

// asError gives every error a status.
func asError(err error) *api.Error {
	var e *api.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &api.Error{Status: http.StatusRequestEntityTooLarge, Message: "the request's body is larger than " + size(tooLarge.Limit)}
	case errors.As(err, &e):
		if e.Status < 400 || e.Status > 599 {
			return &api.Error{Status: http.StatusInternalServerError, Message: e.Message, Hint: e.Hint}
		}
		// What wraps it says where.
		return &api.Error{Status: e.Status, Message: err.Error(), Hint: e.Hint}
	case errors.Is(err, context.DeadlineExceeded):
		return &api.Error{
			Status:  http.StatusGatewayTimeout,
			Message: err.Error(),
			Hint:    "it may still be done later: look again, or allow more time with --timeout (?timeout=)",
		}
	case errors.Is(err, context.Canceled):
		return api.Unavailable("the agent is stopping: try again when it is back", "%s", err.Error())
	}
	return &api.Error{Status: http.StatusInternalServerError, Message: err.Error()}
}

// jsonErrors gives paths and methods that do not exist an answer in JSON too.
func jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		c := capture{header: http.Header{}}
		h.ServeHTTP(&c, r)
		if c.status == http.StatusMethodNotAllowed {
			w.Header()["Allow"] = c.header["Allow"]
			writeError(w, &api.Error{Status: c.status, Message: r.Method + " " + r.URL.Path + ": this path takes only " + c.header.Get("Allow")})
			return
		}
		writeError(w, api.NotFound("the API is under /api/v1", "%s: no such path", r.URL.Path))
	})
}

// capture keeps what the mux would have answered.
type capture struct {
	header http.Header
	status int
}

func (c *capture) Header() http.Header         { return c.header }
func (c *capture) Write(b []byte) (int, error) { return len(b), nil }
func (c *capture) WriteHeader(status int)      { c.status = status }
