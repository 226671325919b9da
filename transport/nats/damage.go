package nats

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	natsserver "github.com/nats-io/nats-server/v2/server"
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

func asideAfterCrashes(dir string, log *slog.Logger) ([]string, error) {
	if crashedStarts(dir) < maxCrashedStarts {
		return nil, nil
	}
	log.Error("the process ended in several starts of JetStream in a row", "dir", dir, "starts", maxCrashedStarts)
	moved, err := setAsideAll([]string{storeDir(dir)}, log)
	if err != nil {
		return moved, err
	}
	return moved, forgetStarts(dir)
}

// unloadedStreams lists the directories of streams that the running server did not load. A new
// stream of that name would take up what is left in them.
func (s *Server) unloadedStreams() ([]string, error) {
	dir := filepath.Join(storeDir(s.opts.StoreDir), natsserver.DEFAULT_GLOBAL_ACCOUNT, "streams")
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil // none yet
	}
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	loaded, err := s.loadedStreams()
	if err != nil {
		return nil, err
	}
	var damaged []string
	for _, e := range entries {
		half := strings.HasPrefix(e.Name(), ".") // half deleted; the server removes it
		if !half && !loaded[e.Name()] {
			damaged = append(damaged, filepath.Join(dir, e.Name()))
		}
	}
	return damaged, nil
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
