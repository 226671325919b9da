package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// maxCrashedStarts is how many starts in a row may end with the process gone before the store is
// set aside: power cuts during a start happen, but not often in a row, and the server reads its files
// on goroutines whose panics nobody can catch.
const maxCrashedStarts = 3

const startsFile = "jetstream.starting"

// countStart notes that a start begins. The note is gone when the start has ended, well or not.
func countStart(dir string) error {
	n := crashedStarts(dir) + 1
	if err := os.WriteFile(filepath.Join(dir, startsFile), []byte(strconv.Itoa(n)), 0o640); err != nil {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	return nil
}

func forgetStarts(dir string) error {
	if err := os.Remove(filepath.Join(dir, startsFile)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	return nil
}

// crashedStarts is how many starts in a row have not ended. An unreadable note counts as one.
func crashedStarts(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, startsFile))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 1 || n > maxCrashedStarts {
		return 1
	}
	return n
}

// maxRepairs is how many times files may be set aside before a start gives up. Each round finds all
// that it can see; what one hides shows in the next.
const maxRepairs = 4

// repair sets aside what does not load, before anybody can connect, and returns where it is now.
func repair(opt ServerOptions) (aside []string, err error) {
	for range maxRepairs {
		damaged, err := inspect(opt)
		if err != nil || len(damaged) == 0 {
			return aside, err
		}
		if err := takesWrites(opt.Dir); err != nil { // files that cannot be written are not damaged
			return aside, fmt.Errorf("%w in %s: make room, or make it writable: %w", errStore, opt.Dir, err)
		}
		moved, err := setAsideAll(damaged, opt.Log)
		aside = append(aside, moved...)
		if err != nil {
			return aside, err
		}
	}
	return aside, fmt.Errorf("%w in %s: files do not load even after %d repairs; move the directory away", errStore, opt.Dir, maxRepairs)
}

// inspect starts a server that nobody can reach on the files and lists what is damaged.
func inspect(opt ServerOptions) ([]string, error) {
	if crashedStarts(opt.Dir) >= maxCrashedStarts {
		opt.Log.Error("the process ended in several starts of JetStream in a row", "dir", opt.Dir, "starts", maxCrashedStarts)
		return []string{storeDir(opt.Dir)}, forgetStarts(opt.Dir)
	}
	if damaged, err := damagedBlocks(opt); err != nil || len(damaged) > 0 {
		return damaged, err
	}
	opt.Listen, opt.MQTTListen, opt.LeafListen, opt.LeafURL = "", "", "", ""
	s, err := startOnce(opt, User{Name: "inspection-" + rand.Text(), Password: rand.Text()})
	if errors.Is(err, errStore) {
		if _, statErr := os.Lstat(storeDir(opt.Dir)); statErr != nil {
			return nil, err // there is nothing to blame
		}
		opt.Log.Error("JetStream does not start from its files", "dir", opt.Dir, "error", err)
		return []string{storeDir(opt.Dir)}, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Shutdown()
	return s.damagedStreams(opt)
}

// damagedStreams lists the directories of streams that the server did not load, of which a new
// stream of the same name would take up the rest, and of those whose messages cannot be read, to
// which it neither writes nor says why.
func (s *Server) damagedStreams(opt ServerOptions) ([]string, error) {
	dirs, err := streamDirs(opt.Dir)
	if err != nil || len(dirs) == 0 {
		return nil, err
	}
	loaded, err := s.loadedStreams()
	if err != nil {
		return nil, err
	}
	c, err := Connect(ConnectOptions{Server: s, Name: "inspection", Prefix: opt.Prefix, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var damaged []string
	for _, dir := range dirs {
		name := filepath.Base(dir)
		err := errors.New("not loaded")
		if loaded[name] {
			err = c.readThrough(name)
		}
		if err != nil {
			opt.Log.Error("JetStream stream is damaged", "stream", name, "error", err)
			damaged = append(damaged, dir)
		}
	}
	return damaged, nil
}

// damagedBlocks lists the directories of streams that the server must not even load.
func damagedBlocks(opt ServerOptions) ([]string, error) {
	dirs, err := streamDirs(opt.Dir)
	if err != nil {
		return nil, err
	}
	var damaged []string
	for _, dir := range dirs {
		if err := checkBlocks(dir); err != nil {
			opt.Log.Error("JetStream stream is damaged", "stream", filepath.Base(dir), "error", err)
			damaged = append(damaged, dir)
		}
	}
	return damaged, nil
}

// streamDirs lists the directories of all streams, apart from half deleted ones, which the server removes.
func streamDirs(dir string) ([]string, error) {
	root := filepath.Join(storeDir(dir), natsserver.DEFAULT_GLOBAL_ACCOUNT, "streams")
	entries, err := os.ReadDir(root)
	if os.IsNotExist(err) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil // none yet, or no directory, of which the server complains
	}
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	return dirs, nil
}

func (s *Server) loadedStreams() (map[string]bool, error) {
	info, err := s.srv.Jsz(&natsserver.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: list of streams: %w", err)
	}
	loaded := make(map[string]bool)
	for _, a := range info.AccountDetails {
		for _, st := range a.Streams {
			loaded[st.Name] = true
		}
	}
	return loaded, nil
}

// Limits of reading a stream through.
const (
	// readPatience is how long the server may take for one message; for a damaged one it gives no
	// answer at all.
	readPatience = 2 * time.Second
	// readMessages is how many messages are read: far more than the keys of a fleet, yet done in seconds.
	readMessages = 100_000
)

// readThrough reads all messages of a stream, of an object store only the descriptions: a damaged
// chunk shows in its object's digest. Nobody else is connected, so the count must be right.
func (c *Conn) readThrough(stream string) error {
	ctx := context.Background()
	st, err := c.control.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	subject, whole := ">", true
	if name, ok := strings.CutPrefix(stream, "OBJ_"); ok {
		subject, whole = "$O."+name+".M.>", false
	}
	state := st.CachedInfo().State
	read := uint64(0)
	for next := max(state.FirstSeq, 1); read < readMessages; read++ {
		m, err := getNext(ctx, st, next, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return fmt.Errorf("message at or after %d: %w", next, err)
		}
		next = m.Sequence + 1
	}
	if whole && read < readMessages && read != state.Msgs {
		return fmt.Errorf("%d messages can be read, of %d", read, state.Msgs)
	}
	return nil
}

func getNext(ctx context.Context, st jetstream.Stream, seq uint64, subject string) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return st.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
}

// setAsideAll moves files and directories out of the server's sight, beside the store, and returns
// where they are now. Nothing is ever deleted.
func setAsideAll(paths []string, log *slog.Logger) ([]string, error) {
	var moved []string
	for _, p := range paths {
		if _, err := os.Lstat(p); os.IsNotExist(err) {
			continue
		}
		to, err := setAside(p)
		if err != nil {
			return moved, fmt.Errorf("damaged JetStream files %s cannot be set aside: %w; move them away by hand", p, err)
		}
		log.Error("damaged JetStream files set aside; what was in them is lost to this server", "from", p, "to", to)
		moved = append(moved, to)
	}
	return moved, nil
}

// setAside moves one path to the first free name <dir>/jetstream.damaged/<n>-<base>.
func setAside(path string) (string, error) {
	root := path
	for filepath.Base(root) != natsserver.JetStreamStoreDir {
		root = filepath.Dir(root)
	}
	dir := root + ".damaged"
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		to := filepath.Join(dir, strconv.Itoa(n)+"-"+filepath.Base(path))
		if _, err := os.Lstat(to); !os.IsNotExist(err) {
			continue
		}
		return to, os.Rename(path, to)
	}
}
