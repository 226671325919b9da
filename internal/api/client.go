package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxAnswerBytes bounds what the client keeps of one JSON answer: the largest listing (10,000 dead
// letters of 256 KiB) is cut by the agent's own budget long before.
const maxAnswerBytes = 256 << 20

// Limits of a client's patience.
const (
	// dialTimeout is how long a connection may take to an agent on the same network.
	dialTimeout = 5 * time.Second
	// lookTimeout is above what the server allows itself for a look-up.
	lookTimeout = 30 * time.Second
	// uploadTimeout and exportTimeout are above the server's.
	uploadTimeout = 6 * time.Minute
	exportTimeout = 65 * time.Minute
	// waitMargin is how much later than the server the client gives up waiting.
	waitMargin = 15 * time.Second
)

// Client calls the API of one agent. An error is an [Error] if the agent answered.
type Client struct {
	base     *url.URL // without user and password
	user     string
	password string
	http     *http.Client
}

// NewClient makes a client for an agent's address, such as http://127.0.0.1:8080 or
// http://user:password@host:8080. It does not connect.
func NewClient(server string) (*Client, error) {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		// The parser's own words may repeat a password.
		return nil, Invalid("write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT with special characters percent-encoded", "the agent's address is not a URL")
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, Invalid("write http://HOST:PORT", "the agent's address %s is not an HTTP URL", u.Redacted())
	}
	c := &Client{base: &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/")}}
	if u.User != nil {
		c.user = u.User.Username()
		c.password, _ = u.User.Password()
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:       (&net.Dialer{Timeout: dialTimeout}).DialContext,
			DisableKeepAlives: true, // a command makes a few calls and ends
			Proxy:             http.ProxyFromEnvironment,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Status is the agent's own view.
func (c *Client) Status(ctx context.Context) (Status, error) { return get[Status](ctx, c, "status") }

// Agents lists all agents.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) { return get[[]Agent](ctx, c, "agents") }

// RemoveAgent takes an agent that is down out of the fleet.
func (c *Client) RemoveAgent(ctx context.Context, name string) error {
	_, err := send[struct{}](ctx, c, request{method: http.MethodDelete, path: []string{"agents", name}, limit: lookTimeout})
	return err
}

// Jobs lists all jobs.
func (c *Client) Jobs(ctx context.Context) ([]JobSummary, error) {
	return get[[]JobSummary](ctx, c, "jobs")
}

// Job shows one job.
func (c *Client) Job(ctx context.Context, name string) (Job, error) {
	return get[Job](ctx, c, "jobs", name)
}

// PlanJob says what ApplyJob would do.
func (c *Client) PlanJob(ctx context.Context, src JobSource) (Plan, error) {
	return send[Plan](ctx, c, request{method: http.MethodPost, path: []string{"plan"}, json: src, limit: lookTimeout})
}

// ApplyJob creates or updates a job and waits up to timeout for its checkpoint 0.
func (c *Client) ApplyJob(ctx context.Context, src JobSource, timeout time.Duration) (Applied, error) {
	return send[Applied](ctx, c, request{method: http.MethodPost, path: []string{"jobs"}, json: src}.waits(timeout))
}

// StopJob drains a job and waits up to timeout for its final checkpoint.
func (c *Client) StopJob(ctx context.Context, name string, timeout time.Duration) (Checkpoint, error) {
	return send[Checkpoint](ctx, c, request{method: http.MethodPost, path: []string{"jobs", name, "stop"}}.waits(timeout))
}

// EndTrial keeps the upgrade of a job that is on trial, on all agents, or takes it back. What runs in the shadow it
// applies, or drops.
func (c *Client) EndTrial(ctx context.Context, name string, keep bool) (Upgrade, error) {
	end := "rollback"
	if keep {
		end = "promote"
	}
	return send[Upgrade](ctx, c, request{method: http.MethodPost, path: []string{"jobs", name, end}, limit: lookTimeout})
}

// DeleteJob removes a stopped job with its state; force removes one that runs.
func (c *Client) DeleteJob(ctx context.Context, name string, force bool, timeout time.Duration) error {
	r := request{method: http.MethodDelete, path: []string{"jobs", name}}.waits(timeout)
	r.query.Set("force", strconv.FormatBool(force))
	_, err := send[struct{}](ctx, c, r)
	return err
}

// DeadLetters lists the newest limit records of a job that were given up.
func (c *Client) DeadLetters(ctx context.Context, name string, limit int) (DeadLetters, error) {
	return send[DeadLetters](ctx, c, request{
		method: http.MethodGet,
		path:   []string{"jobs", name, "deadletters"},
		query:  url.Values{"limit": {strconv.Itoa(limit)}},
		limit:  lookTimeout,
	})
}

// ReplayDeadLetters has dead letters of a job processed again and waits up to timeout until they are.
func (c *Client) ReplayDeadLetters(ctx context.Context, job string, what Replay, timeout time.Duration) (Replayed, error) {
	r := request{method: http.MethodPost, path: []string{"jobs", job, "deadletters", "replay"}, json: what}.waits(timeout)
	return send[Replayed](ctx, c, r)
}

// Checkpoints lists a job's checkpoints.
func (c *Client) Checkpoints(ctx context.Context, job string) ([]Checkpoint, error) {
	return get[[]Checkpoint](ctx, c, "jobs", job, "checkpoints")
}

// Checkpoint shows one checkpoint with its channels.
func (c *Client) Checkpoint(ctx context.Context, job string, epoch uint64) (CheckpointDetail, error) {
	return get[CheckpointDetail](ctx, c, "jobs", job, "checkpoints", strconv.FormatUint(epoch, 10))
}

// Drills lists what the agent can do to itself.
func (c *Client) Drills(ctx context.Context) ([]Drill, error) { return get[[]Drill](ctx, c, "drill") }

// Drill begins a drill and returns at once.
func (c *Client) Drill(ctx context.Context, o DrillOrder) (DrillBegun, error) {
	return send[DrillBegun](ctx, c, request{method: http.MethodPost, path: []string{"drill"}, json: o, limit: lookTimeout})
}

// CheckpointNow takes a savepoint, named if name is not empty, and waits up to timeout until it counts.
func (c *Client) CheckpointNow(ctx context.Context, job, name string, timeout time.Duration) (Checkpoint, error) {
	r := request{method: http.MethodPost, path: []string{"jobs", job, "checkpoints"}}.waits(timeout)
	if name != "" {
		r.query.Set("name", name)
	}
	return send[Checkpoint](ctx, c, r)
}

// ExportCheckpoint writes a checkpoint to w and returns the number of bytes; epoch 0 is the newest
// that counts. After an error what was written is not a checkpoint.
func (c *Client) ExportCheckpoint(ctx context.Context, job string, epoch uint64, w io.Writer) (int64, error) {
	name := "latest"
	if epoch > 0 {
		name = strconv.FormatUint(epoch, 10)
	}
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	resp, err := c.do(ctx, request{method: http.MethodGet, path: []string{"jobs", job, "checkpoints", name, "export"}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if err != nil {
		return n, fmt.Errorf("export of %s broke off after %d bytes: %w", job, n, err)
	}
	return n, nil
}

// PushOperator registers a module as one version of an operator.
func (c *Client) PushOperator(ctx context.Context, name, version string, module io.Reader) (Operator, error) {
	return send[Operator](ctx, c, request{method: http.MethodPut, path: []string{"operators", name, version}, body: module, limit: uploadTimeout})
}

// Uploaded says how much of a module the agent has.
func (c *Client) Uploaded(ctx context.Context, digest string) (Upload, error) {
	return get[Upload](ctx, c, "uploads", digest)
}

// RegisterOperator registers a module that was uploaded as one version of an operator.
func (c *Client) RegisterOperator(ctx context.Context, name, version, digest string) (Operator, error) {
	return send[Operator](ctx, c, request{
		method: http.MethodPut, path: []string{"operators", name, version}, query: url.Values{"digest": {digest}}, limit: uploadTimeout,
	})
}

// KeepModule keeps a module that was uploaded under its digest, without a name.
func (c *Client) KeepModule(ctx context.Context, digest string) (Module, error) {
	return send[Module](ctx, c, request{method: http.MethodPost, path: []string{"modules"}, query: url.Values{"digest": {digest}}, limit: uploadTimeout})
}

// RemoveOperator removes a version of an operator, or all of them if version is empty, and returns what it removed.
// The module is given back some time later, on all agents and in the object store, unless something else needs it.
func (c *Client) RemoveOperator(ctx context.Context, name, version string) ([]Operator, error) {
	path := []string{"operators", name}
	if version != "" {
		path = append(path, version)
	}
	return send[[]Operator](ctx, c, request{method: http.MethodDelete, path: path, limit: lookTimeout})
}

// SignOperator adds a signature, in base64, to a registered version.
func (c *Client) SignOperator(ctx context.Context, name, version, signature string) (Operator, error) {
	return send[Operator](ctx, c, request{
		method: http.MethodPut, path: []string{"operators", name, version, "signature"}, body: strings.NewReader(signature), limit: lookTimeout,
	})
}

// PushModule keeps a module under its digest, without a name.
func (c *Client) PushModule(ctx context.Context, module io.Reader) (Module, error) {
	return send[Module](ctx, c, request{method: http.MethodPost, path: []string{"modules"}, body: module, limit: uploadTimeout})
}

// Operators lists all versions of all operators.
func (c *Client) Operators(ctx context.Context) ([]Operator, error) {
	return get[[]Operator](ctx, c, "operators")
}

// Operator shows all versions of one operator.
func (c *Client) Operator(ctx context.Context, name string) ([]Operator, error) {
	return get[[]Operator](ctx, c, "operators", name)
}

type request struct {
	method string
	path   []string // below /api/v1; each is escaped
	query  url.Values
	json   any       // the body, or
	body   io.Reader // the body
	limit  time.Duration
}

// waits makes a request one whose answer may take as long as timeout.
func (r request) waits(timeout time.Duration) request {
	r.query = url.Values{"timeout": {timeout.String()}}
	r.limit = timeout + waitMargin
	return r
}

func get[T any](ctx context.Context, c *Client, path ...string) (T, error) {
	return send[T](ctx, c, request{method: http.MethodGet, path: path, limit: lookTimeout})
}

// send makes a request whose answer is JSON.
func send[T any](ctx context.Context, c *Client, r request) (T, error) {
	var v T
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	resp, err := c.do(ctx, r)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return v, fmt.Errorf("read the answer of %s: %w", c.base.Host, err)
	}
	if len(data) > maxAnswerBytes {
		return v, fmt.Errorf("the answer of %s is larger than %d bytes", c.base.Host, maxAnswerBytes)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("the answer of %s is not that of a Weir agent: %w", c.base.Host, err)
	}
	return v, nil
}

// do returns the answer of a request that went well, its body open.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	req, err := c.newRequest(ctx, r)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.failed(resp)
}

func (c *Client) newRequest(ctx context.Context, r request) (*http.Request, error) {
	for _, p := range r.path {
		if p == "" || p == "." || p == ".." {
			return nil, Invalid("", "%q is not a name", p)
		}
	}
	body := r.body
	if r.json != nil {
		data, err := json.Marshal(r.json)
		if err != nil {
			return nil, fmt.Errorf("write a request as JSON: %w", err)
		}
		body = bytes.NewReader(data)
	}
	u := c.base.JoinPath("api", "v1").JoinPath(escape(r.path)...)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make a request to %s: %w", c.base.Host, err)
	}
	if r.json != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.user != "" || c.password != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	return req, nil
}

func escape(path []string) []string {
	out := make([]string, len(path))
	for i, p := range path {
		out[i] = url.PathEscape(p)
	}
	return out
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL
	}
	e := Unavailable("is it running? `agent run --data DIR` starts one; --server URL or WEIR_SERVER names another", "no answer from an agent at %s: %v", c.base, err)
	return e
}

// failed makes an error of an answer that is not 200.
func (c *Client) failed(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	e := &Error{}
	if err != nil || json.Unmarshal(data, e) != nil || e.Message == "" {
		e.Message = fmt.Sprintf("%s answered %q, which no Weir agent says", c.base, resp.Status)
		e.Hint = "check --server and WEIR_SERVER"
	}
	e.Status = resp.StatusCode
	return e
}
