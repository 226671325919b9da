//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// arrival is one record at the end of the graph.
type arrival struct {
	at   int64 // microseconds since 1970
	took int64 // since it was made, microseconds
}

// collector is where the graph's sinks publish: the server's side of MQTT 3.1.1 as far as a client needs it
// that only publishes. It keeps what it needs to say which records came, how often and how late.
type collector struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	arrivals []arrival // first ones of each record, in order
	seen     map[string]map[uint64]bool
	repeats  int
	made     map[uint64]int // by the record's own number: of so many generators
	err      error
}

func newCollector() (*collector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{listener: l, conns: map[net.Conn]bool{}, seen: map[string]map[uint64]bool{}, made: map[uint64]int{}}
	c.wait.Go(c.accept)
	return c, nil
}

func (c *collector) broker() string { return "tcp://" + c.listener.Addr().String() }

func (c *collector) close() error {
	err := c.listener.Close()
	c.mu.Lock()
	for conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.wait.Wait()
	return errors.Join(err, c.err)
}

func (c *collector) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // closed
		}
		c.mu.Lock()
		c.conns[conn] = true
		c.mu.Unlock()
		c.wait.Go(func() {
			err := c.serve(conn)
			conn.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.conns, conn)
			var op *net.OpError // a connection that breaks or is closed
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &op) {
				c.err = errors.Join(c.err, err)
			}
		})
	}
}

// Packet types of MQTT 3.1.1, section 2.2.1.
const (
	packetConnect = 1
	packetPublish = 3
	packetPing    = 12
)

// serve reads a connection until it ends, and says why.
func (c *collector) serve(conn net.Conn) error {
	r, w := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriter(conn)
	var body []byte
	for {
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		head, err := r.ReadByte()
		if err != nil {
			return err
		}
		size, err := binary.ReadUvarint(r) // the remaining length is encoded alike
		if err != nil {
			return err
		}
		if size > 1<<20 {
			return fmt.Errorf("packet of %d bytes", size)
		}
		body = append(body[:0], make([]byte, size)...)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		switch head >> 4 {
		case packetConnect:
			w.Write([]byte{0x20, 2, 0, 0})
		case packetPing:
			w.Write([]byte{0xd0, 0})
		case packetPublish:
			id, err := c.publish(body)
			if err != nil {
				return err
			}
			w.Write([]byte{0x40, 2, id[0], id[1]})
		}
	}
}

// publish takes a message of QoS 1 and returns its identifier.
func (c *collector) publish(body []byte) (id [2]byte, err error) {
	if len(body) < 2 {
		return id, errors.New("message without topic")
	}
	topic := int(binary.BigEndian.Uint16(body))
	if len(body) < 4+topic {
		return id, errors.New("message without identifier")
	}
	copy(id[:], body[2+topic:])
	return id, c.take(body[4+topic:], time.Now().UnixMicro())
}

// take notes a payload: channel, number, value.
func (c *collector) take(payload []byte, now int64) error {
	channel, rest, _ := bytes.Cut(payload, []byte(" "))
	number, value, _ := bytes.Cut(rest, []byte(" "))
	n, err1 := strconv.ParseUint(string(number), 10, 64)
	own, err2 := field(value, `"n":`)
	made, err3 := field(value, `"t":`)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("record %q: %w", payload, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	numbers := c.seen[string(channel)]
	if numbers == nil {
		numbers = map[uint64]bool{}
		c.seen[string(channel)] = numbers
	}
	if numbers[n] {
		c.repeats++
		return nil
	}
	numbers[n] = true
	c.made[uint64(own)]++
	c.arrivals = append(c.arrivals, arrival{now, now - made})
	return nil
}

// field reads the whole number behind a name.
func field(value []byte, name string) (int64, error) {
	_, rest, ok := bytes.Cut(value, []byte(name))
	if !ok {
		return 0, fmt.Errorf("no field %s", name)
	}
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	return strconv.ParseInt(string(rest[:end]), 10, 64)
}

// count is how many records have come, repeats left out.
func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.arrivals)
}

// exact says whether each of the records of so many generators came, once as its channel and number tell.
func (c *collector) exact(generators, each int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range uint64(each) {
		if c.made[n] != generators {
			return fmt.Errorf("record %d came %d times from %d generators", n, c.made[n], generators)
		}
	}
	if len(c.arrivals) != generators*each {
		return fmt.Errorf("%d records came, %d were made", len(c.arrivals), generators*each)
	}
	return nil
}
