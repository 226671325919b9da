package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// Room on the disk that there must be before the server is started anew, and before files that do not load are blamed.
const (
	// mendRoom is enough for what the server writes when it stops and starts, and some to go on with, in bytes.
	mendRoom = 4 << 20
	// mendProbe is what is written to see whether the disk takes it, in bytes.
	mendProbe = 64 << 10
)

// ErrNotStarted says that the server was stopped to be started anew, and did not start: nobody is served until it does.
var ErrNotStarted = errors.New("it was stopped and does not start")

// StoreError says why JetStream's files are not written any more; nil if they are. After one failed write the server
// writes no more to that stream, and with more on disk than it allowed itself when it started, to none: only a start
// anew ends that. [Server.Mend] does it. It wraps [ErrNotStarted] if the server does not run at all.
func (s *Server) StoreError() error {
	srv, logs := s.running()
	if err := logs.storeError(); err != nil {
		return err
	}
	if !srv.JetStreamEnabled() {
		return errors.New("JetStream is off")
	}
	if used, limit, at := atLimit(srv, logs); at {
		return fmt.Errorf("JetStream has %d KiB on disk, of the %d KiB that there was room for when it was started", used>>10, limit>>10)
	}
	return nil
}

// atLimit tells whether JetStream has as much on disk as it may. It looks only after the server has said so, and holds
// no lock then: the server logs while it holds those that it needs to answer.
func atLimit(srv *natsserver.Server, logs *serverLog) (used, limit uint64, at bool) {
	if !logs.limited() {
		return 0, 0, false
	}
	st, err := srv.Jsz(nil)
	if err != nil || st.Disabled {
		return 0, 0, false // JetStream is off, and StoreError says that
	}
	used, limit = st.Store, uint64(max(st.Config.MaxStore, 0))
	if at = used+mendProbe > limit; !at { // messages may have gone
		logs.mu.Lock()
		logs.limit = false
		logs.mu.Unlock()
	}
	return used, limit, at
}

// Mend starts the server anew, within the process, if JetStream's files are not written any more and the disk takes
// writes again. Listeners keep their addresses, clients connect again, and files that do not load are set aside as in
// [StartServer]. It reports whether it did so. An error says why it cannot be done yet; call it again then. It
// takes as long as a start. An error that wraps [ErrNotStarted] has cost that, so the next call had better wait.
func (s *Server) Mend() (mended bool, err error) {
	s.mending.Lock()
	defer s.mending.Unlock()
	if s.stopped || s.StoreError() == nil {
		return false, nil
	}
	if err := errors.Join(takesWrites(s.opt.Dir), s.mayHaveMore()); err != nil {
		return false, err
	}
	s.halt()
	aside, err := repair(s.opt)
	s.mu.Lock()
	s.setAside = append(s.setAside, aside...)
	s.mu.Unlock()
	if err != nil {
		return false, s.down(err)
	}
	anew, err := startOnce(s.opt, s.internal)
	if err != nil {
		return false, s.down(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv, s.logs = anew.srv, anew.logs
	return true, nil
}

// mayHaveMore says whether a server at its limit would allow itself more if it were started now: three quarters of
// what it has and of what is free (finalizeDynamicMaxStore in the server's jetstream.go).
func (s *Server) mayHaveMore() error {
	used, limit, at := atLimit(s.running())
	if !at {
		return nil
	}
	room, known := available(s.opt.Dir)
	if most := (used + room) / 4 * 3; s.opt.MaxStore == 0 && (!known || most > max(used, limit)+mendProbe) {
		return nil
	}
	return fmt.Errorf("JetStream has %d KiB on disk and takes no more while %d KiB are free: make room", used>>10, room>>10)
}

// down notes why the server that was stopped could not be started anew.
func (s *Server) down(err error) error {
	_, logs := s.running()
	logs.mu.Lock()
	defer logs.mu.Unlock()
	logs.down = fmt.Errorf("%w: %w", ErrNotStarted, err)
	return logs.down
}

// takesWrites tries whether a directory can be written to, and whether there is room.
func takesWrites(dir string) (err error) {
	if room, known := available(dir); known && room < mendRoom {
		return fmt.Errorf("no space left: %d MiB must be free on the disk of %s; %d KiB are", mendRoom>>20, dir, room>>10)
	}
	f, err := os.Create(filepath.Join(dir, "room.try"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, mendProbe)); err != nil {
		return err
	}
	return f.Sync()
}

// noteStore keeps the first thing said about files that are not written any more.
func (l *serverLog) noteStore(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case strings.Contains(text, "ritical write error"), strings.Contains(text, "disabling JetStream"), strings.Contains(text, "will be DISABLED"):
		if l.store == "" {
			l.store = text
		}
	case strings.Contains(text, "JetStream file resource limits exceeded"):
		l.limit = true
	}
}

// limited says whether JetStream said that it has as much on disk as it may.
func (l *serverLog) limited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// storeError is what noteStore kept; nil: nothing.
func (l *serverLog) storeError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down != nil {
		return l.down
	}
	if l.store == "" {
		return nil
	}
	return errors.New(l.store)
}
