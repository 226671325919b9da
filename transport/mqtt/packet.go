package mqtt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/weir-stream/weir/dataflow/frame"
)

// Types of control packets that are read or written here (MQTT 3.1.1, 2.2.1).
const (
	typeConnack  = 2
	typePublish  = 3
	typePuback   = 4
	typePubrec   = 5
	typePubrel   = 6
	typePubcomp  = 7
	typeSuback   = 9
	typePingreq  = 12
	typePingresp = 13
	typeDiscon   = 14
)

// maxKept bounds the bytes of a packet that are kept in memory: the largest record and the longest
// topic with their lengths. What a larger PUBLISH has beyond is read and thrown away, so that its
// message can be dead-lettered instead of coming again for ever.
const maxKept = frame.MaxRecord + maxString + 4

// maxSmall bounds every other packet: a SUBACK has a byte for each topic.
const maxSmall = maxString + 2

// packet is a received control packet. It owns its memory.
type packet struct {
	kind    byte
	qos     byte
	dup     bool
	retain  bool
	id      uint16
	topic   string
	payload []byte
	lost    int    // bytes of the payload beyond maxKept, thrown away
	codes   []byte // CONNACK: flags, return code; SUBACK: granted QoS by topic
}

// readPacket reads one packet. An error that is not of the connection says what is malformed.
func readPacket(r *bufio.Reader) (packet, error) {
	first, err := r.ReadByte()
	if err != nil {
		return packet{}, err
	}
	n, err := readLength(r)
	if err != nil {
		return packet{}, err
	}
	p := packet{kind: first >> 4}
	if p.kind == typePublish {
		p.dup, p.qos, p.retain = first&8 != 0, first>>1&3, first&1 != 0
		return p, p.readPublish(r, n)
	}
	if n > maxSmall {
		return p, fmt.Errorf("malformed packet: type %d of %d bytes", p.kind, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return p, unexpected(err)
	}
	return p, p.parseSmall(body)
}

// readLength reads the remaining length (MQTT 3.1.1, 2.2.3).
func readLength(r *bufio.Reader) (int, error) {
	n := 0
	for shift := 0; shift < 28; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, unexpected(err)
		}
		n |= int(b&127) << shift
		if b < 128 {
			return n, nil
		}
	}
	return 0, errors.New("malformed packet: remaining length of more than four bytes")
}

// unexpected tells an end within a packet from one between packets.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *packet) readPublish(r *bufio.Reader, n int) error {
	body := make([]byte, min(n, maxKept))
	if _, err := io.ReadFull(r, body); err != nil {
		return unexpected(err)
	}
	if p.lost = n - len(body); p.lost > 0 {
		if _, err := r.Discard(p.lost); err != nil {
			return unexpected(err)
		}
	}
	return p.parsePublish(body)
}

func (p *packet) parsePublish(body []byte) error {
	if p.qos == 3 {
		return errors.New("malformed packet: PUBLISH of QoS 3")
	}
	head := 2
	if len(body) >= 2 {
		head += int(binary.BigEndian.Uint16(body))
	}
	end := head
	if p.qos > 0 {
		end += 2
	}
	if end > len(body) {
		return fmt.Errorf("malformed packet: PUBLISH of %d bytes with a topic of %d", len(body), head-2)
	}
	p.topic, p.payload = string(body[2:head]), body[end:]
	if p.qos > 0 {
		if p.id = binary.BigEndian.Uint16(body[head:]); p.id == 0 {
			return errors.New("malformed packet: PUBLISH with packet identifier 0")
		}
	}
	return nil
}

func (p *packet) parseSmall(body []byte) error {
	switch p.kind {
	case typeConnack:
		if len(body) != 2 {
			return fmt.Errorf("malformed packet: CONNACK of %d bytes", len(body))
		}
		p.codes = body
	case typePuback, typePubrec, typePubrel, typePubcomp, typeSuback:
		if len(body) < 2 || len(body) > 2 && p.kind != typeSuback {
			return fmt.Errorf("malformed packet: type %d of %d bytes", p.kind, len(body))
		}
		p.id, p.codes = binary.BigEndian.Uint16(body), body[2:]
	case typePingresp:
	default:
		return fmt.Errorf("unexpected packet: a broker sends none of type %d", p.kind)
	}
	return nil
}

// wholePacket says whether the reader has a whole packet in its buffer, so that reading it does not
// wait.
func wholePacket(r *bufio.Reader) bool {
	b, _ := r.Peek(min(r.Buffered(), 5))
	n, size := 0, 0
	for i := 1; i < len(b); i++ {
		n |= int(b[i]&127) << (7 * (i - 1))
		if b[i] < 128 {
			size = i + 1 + n
			break
		}
	}
	return size > 0 && size <= r.Buffered()
}

func appendLength(dst []byte, n int) []byte {
	for n >= 128 {
		dst = append(dst, byte(n)|128)
		n >>= 7
	}
	return append(dst, byte(n))
}

// appendPublish appends a PUBLISH. The topic must pass checkTopic; id is left out at QoS 0.
func appendPublish(dst []byte, qos byte, retain, dup bool, id uint16, topic, payload []byte) []byte {
	first := byte(typePublish<<4) | qos<<1
	if dup {
		first |= 8
	}
	if retain {
		first |= 1
	}
	n := 2 + len(topic) + len(payload)
	if qos > 0 {
		n += 2
	}
	dst = appendLength(append(dst, first), n)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(topic)))
	dst = append(dst, topic...)
	if qos > 0 {
		dst = binary.BigEndian.AppendUint16(dst, id)
	}
	return append(dst, payload...)
}

// appendAck appends a PUBACK, PUBREC, PUBREL or PUBCOMP.
func appendAck(dst []byte, kind byte, id uint16) []byte {
	first := kind << 4
	if kind == typePubrel {
		first |= 2 // reserved bits (MQTT 3.1.1, 3.6.1)
	}
	return append(dst, first, 2, byte(id>>8), byte(id))
}

// appendEmpty appends a PINGREQ or DISCONNECT.
func appendEmpty(dst []byte, kind byte) []byte { return append(dst, kind<<4, 0) }
