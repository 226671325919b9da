package web

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// Upgrades is about new versions of operators, and what old ones have refused.
type Upgrades interface {
	// EndTrial keeps the upgrade of a job that is on trial, on all agents, or takes it back.
	EndTrial(ctx context.Context, job string, keep bool) (api.Upgrade, error)
	// ReplayDeadLetters has dead letters processed again and returns when they are.
	ReplayDeadLetters(ctx context.Context, job string, what api.Replay) (api.Replayed, error)
}

func (s *Server) promoteJob(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.EndTrial(ctx, r.PathValue("job"), true)
}

func (s *Server) rollbackJob(ctx context.Context, r *http.Request) (any, error) {
	return s.backend.EndTrial(ctx, r.PathValue("job"), false)
}

func (s *Server) signOperator(ctx context.Context, r *http.Request) (any, error) {
	const most = 1 << 10
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, most))
	if err != nil {
		return nil, api.Invalid("", "a signature cannot be read: %v", err)
	}
	o, err := s.backend.SignOperator(ctx, r.PathValue("name"), r.PathValue("version"), strings.TrimSpace(string(text)))
	o.Imports = list(o.Imports)
	return o, err
}

func (s *Server) replayDeadLetters(ctx context.Context, r *http.Request) (any, error) {
	var what api.Replay
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxJobBytes))
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &what)
	}
	if err != nil {
		return nil, api.Invalid(`send {"ids": […], "operator": …, "again": …}, or nothing for all`, "the request cannot be read: %v", err)
	}
	done, err := s.backend.ReplayDeadLetters(ctx, r.PathValue("job"), what)
	done.Replayed, done.Skipped, done.Unanswered = list(done.Replayed), list(done.Skipped), list(done.Unanswered)
	return done, err
}
