package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/weir-stream/weir/internal/api"
)

// maxOrderBytes is far above what an order takes.
const maxOrderBytes = 4 << 10

func (s *Server) drills(ctx context.Context, _ *http.Request) (any, error) {
	v, err := s.backend.Drills(ctx)
	return list(v), err
}

func (s *Server) drill(ctx context.Context, r *http.Request) (any, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxOrderBytes))
	if err != nil {
		return nil, fmt.Errorf("read the order: %w", err)
	}
	var o api.DrillOrder
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, api.Invalid(`send {"kind": …, "seconds": …, "sure": true}`, "the request is not JSON: %v", err)
	}
	return s.backend.Drill(ctx, o)
}

func (s *Server) checkpoint(ctx context.Context, r *http.Request) (any, error) {
	epoch, err := epochOf(r.PathValue("epoch"))
	if err != nil {
		return nil, err
	}
	c, err := s.backend.Checkpoint(ctx, r.PathValue("job"), epoch)
	c.Channels, c.Kept = list(c.Channels), list(c.Kept)
	return c, err
}
