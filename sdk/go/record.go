package weir

import "strconv"

// MaxRecord is the largest record in bytes, with 16 bytes for what is not key, headers and value.
const MaxRecord = 256 << 10

// MaxKey is the longest key of a record in bytes.
const MaxKey = 8 << 10

// recordFixed is the encoded size of a record without key, headers and value.
const recordFixed = 16

// Record is one record of a stream. Key, Headers and Value of a record that Process gets are borrowed
// until Process returns: what is to be kept must be copied.
type Record struct {
	// Time is the event time in milliseconds since 1970.
	Time int64
	Key  []byte
	// Headers are encoded; see [Record.Header].
	Headers []byte
	Value   []byte
	// Input is the index of the operator's input that the record came in on, in the order in which the
	// job lists them. It is not used when a record is emitted.
	Input int
}

// Header returns the value of the header of that name, nil if there is none. The topic of a message
// from MQTT is in the header "topic".
func (r Record) Header(name string) []byte {
	for b := r.Headers; len(b) >= 3; {
		n, v := int(b[0]), int(b[1])|int(b[2])<<8
		if 3+n+v > len(b) {
			return nil
		}
		if string(b[3:3+n]) == name {
			return b[3+n : 3+n+v]
		}
		b = b[3+n+v:]
	}
	return nil
}

// appendRecord appends the encoding that guests and host share: size of what follows (4), time (8),
// key length (2), headers length (2), key, headers, value; little-endian.
func appendRecord(dst []byte, key, headers []byte, time int64, value []byte) []byte {
	size := recordFixed + len(key) + len(headers) + len(value)
	if len(key) > MaxKey || len(headers) > 1<<16-1 || size > MaxRecord {
		panic("record of " + strconv.Itoa(size) + " bytes with a key of " + strconv.Itoa(len(key)) +
			", at most " + strconv.Itoa(MaxRecord) + " and " + strconv.Itoa(MaxKey))
	}
	t, s := uint64(time), uint32(size-4)
	k, h := uint16(len(key)), uint16(len(headers))
	dst = append(dst, byte(s), byte(s>>8), byte(s>>16), byte(s>>24),
		byte(t), byte(t>>8), byte(t>>16), byte(t>>24), byte(t>>32), byte(t>>40), byte(t>>48), byte(t>>56),
		byte(k), byte(k>>8), byte(h), byte(h>>8))
	dst = append(dst, key...)
	dst = append(dst, headers...)
	return append(dst, value...)
}

// nextRecord splits the first record off a batch; false if the batch does not begin with one.
func nextRecord(b []byte) (r Record, rest []byte, ok bool) {
	if len(b) < recordFixed {
		return r, nil, false
	}
	size := int64(le32(b)) + 4
	key := recordFixed + (int(b[12]) | int(b[13])<<8)
	hdr := key + (int(b[14]) | int(b[15])<<8)
	if size > int64(len(b)) || int64(hdr) > size {
		return r, nil, false
	}
	n := int(size)
	r = Record{
		Time: int64(uint64(le32(b[4:])) | uint64(le32(b[8:]))<<32),
		Key:  b[recordFixed:key:key], Headers: b[key:hdr:hdr], Value: b[hdr:n:n],
	}
	return r, b[n:], true
}

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
