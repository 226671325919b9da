package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestNewClientAddresses(t *testing.T) {
	good := map[string]string{
		"http://127.0.0.1:8080":     "http://127.0.0.1:8080",
		"127.0.0.1:8080":            "http://127.0.0.1:8080",
		"https://u:p%40@host/weir/": "https://host/weir",
	}
	for in, want := range good {
		c, err := NewClient(in)
		if err != nil || c.base.String() != want {
			t.Errorf("%s: %v, %v", in, c, err)
		}
	}
	for _, in := range []string{"ftp://u:hunter2@x", "http://", "http://u:hunter2@[::1", "http://u:hunter2@ x"} {
		_, err := NewClient(in)
		if !IsInvalid(err) {
			t.Errorf("%s: %v", in, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error tells the password: %v", in, err)
		}
	}
}

func TestClientErrors(t *testing.T) {
	answers := map[string]func(http.ResponseWriter){
		"/api/v1/jobs/weir":     func(w http.ResponseWriter) { w.WriteHeader(409); io.WriteString(w, `{"error":"no","hint":"do"}`) },
		"/api/v1/jobs/other":    func(w http.ResponseWriter) { w.WriteHeader(502); io.WriteString(w, `<html>`) },
		"/api/v1/jobs/garbage":  func(w http.ResponseWriter) { io.WriteString(w, `<html>`) },
		"/api/v1/jobs/redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "/api/v1/jobs/weir"); w.WriteHeader(302) },
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers[r.URL.Path](w) }))
	c, err := NewClient(strings.Replace(srv.URL, "://", "://user:hunter2@", 1))
	if err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]string{
		"weir":     "no",
		"other":    "502 Bad Gateway",
		"garbage":  "not that of a Weir agent",
		"redirect": "302 Found",
		"..":       "not a name",
		"":         "not a name",
	} {
		_, err := c.Job(t.Context(), job)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", job, err, want)
		}
	}
	srv.Close()
	_, err = c.Jobs(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer from an agent at http://127.0.0.1") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestBytes(t *testing.T) {
	for want, b := range map[string]Bytes{`"é\n"`: Bytes("é\n"), `{"base64":"/w=="}`: {0xff}, `""`: {}} {
		got, err := json.Marshal(b)
		if err != nil || string(got) != want {
			t.Errorf("%v: %s %v, want %s", b, got, err, want)
		}
		var back Bytes
		if err := json.Unmarshal(got, &back); err != nil || string(back) != string(b) {
			t.Errorf("%s: back as %v, %v", got, back, err)
		}
	}
	for _, bad := range []string{`1`, `{}`, `{"base64":"!"}`, `{"base64":1}`} {
		if err := json.Unmarshal([]byte(bad), new(Bytes)); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}

func FuzzBytes(f *testing.F) {
	f.Add([]byte(`"x"`))
	f.Add([]byte(`{"base64":"/w=="}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b, back Bytes
		if json.Unmarshal(data, &b) != nil {
			return
		}
		again, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(again, &back); err != nil || string(back) != string(b) {
			t.Fatalf("%q became %q: %v", b, back, err)
		}
	})
}

// TestUploadThatTakesNothing ends, whatever the agent answers.
func TestUploadThatTakesNothing(t *testing.T) {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		io.WriteString(w, `{"bytes": 3}`)
	}))
	defer srv.Close()
	c, err := NewClient(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	up := Uploader{Client: c, Wait: func(context.Context, time.Duration) error { return nil }}
	if err := up.Upload(t.Context(), "d", strings.NewReader("module"), 6); err == nil || !strings.Contains(err.Error(), "has taken nothing") || requests > 2*uploadTries {
		t.Errorf("%d requests, %v", requests, err)
	}
	if err := up.Upload(t.Context(), "d", strings.NewReader("mod"), 6); !IsInvalid(err) {
		t.Errorf("a file that is shorter than it was: %v", err)
	}
}
