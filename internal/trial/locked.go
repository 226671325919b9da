package trial

import (
	"net"
	"sync"
)

// locked lets two goroutines write packets to one connection.
type locked struct {
	mu   sync.Mutex
	conn net.Conn
}

// Write writes one packet: the codec calls it once for each.
func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn.Write(b)
}
