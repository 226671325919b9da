package web

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// Upgrades ends trials of new versions of operators.
type Upgrades interface {
	// EndTrial keeps the upgrade of a job that is on trial, on all agents, or takes it back.
	EndTrial(ctx context.Context, job string, keep bool) (api.Upgrade, error)
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
