package web

import (
	"context"
	"net/http"

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
