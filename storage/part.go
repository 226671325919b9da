package storage

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/zeebo/xxh3"
)

// part is the manifest of a saved snapshot.
type part struct {
	info     dataflow.PartInfo // without Task and Version
	floor    dataflow.Version  // the full part that it builds upon, itself if full
	count    uint64            // keys that the state has at this version
	sum      uint64            // of the hashes of their values, modulo 2^64
	rejected bool
	since    dataflow.Version // if rejected: the usable part before it; versions in between are no good either
	reason   string
}

const (
	partFull = 1 << iota
	partLocal
	partRejected
)

// maxReason bounds the text that goes with a rejection.
const maxReason = 4 << 10

// appendPart encodes a manifest, with its checksum at the end.
func appendPart(b []byte, p part) []byte {
	at := len(b)
	var flags byte
	set := func(on bool, f byte) {
		if on {
			flags |= f
		}
	}
	set(p.info.Full, partFull)
	set(p.info.Local, partLocal)
	set(p.rejected, partRejected)
	b = append(b, flags)
	for _, v := range []uint64{
		uint64(p.info.Generation), uint64(p.info.Epoch), uint64(p.info.Pos), uint64(p.info.Bytes),
		uint64(p.floor), p.count, uint64(p.since),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, p.sum)
	b = binary.AppendUvarint(b, uint64(len(p.info.Meta)))
	b = append(b, p.info.Meta...)
	b = binary.AppendUvarint(b, uint64(len(p.reason)))
	b = append(b, p.reason...)
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b[at:]))
}

// parsePart reads the manifest that fills b. Meta is a copy.
func parsePart(b []byte) (part, error) {
	var p part
	if len(b) < 8 || xxh3.Hash(b[:len(b)-8]) != binary.BigEndian.Uint64(b[len(b)-8:]) {
		return p, errors.New("manifest does not match its checksum")
	}
	f := &fields{b: b[:len(b)-8]}
	flags := f.uvarint(partFull | partLocal | partRejected)
	p.info.Full, p.info.Local, p.rejected = flags&partFull != 0, flags&partLocal != 0, flags&partRejected != 0
	p.info.Generation = abs.Generation(f.uvarint(math.MaxUint32))
	p.info.Epoch = abs.Epoch(f.uvarint(math.MaxUint64))
	p.info.Pos = abs.Position(f.uvarint(math.MaxUint64))
	p.info.Bytes = int64(f.uvarint(math.MaxInt64))
	p.floor = dataflow.Version(f.uvarint(math.MaxUint64))
	p.count = f.uvarint(math.MaxUint64)
	p.since = dataflow.Version(f.uvarint(math.MaxUint64))
	if sum := f.bytes(8); sum != nil {
		p.sum = binary.BigEndian.Uint64(sum)
	}
	if meta := f.bytes(f.count()); len(meta) > 0 {
		p.info.Meta = append([]byte(nil), meta...)
	}
	p.reason = string(f.bytes(f.count()))
	if f.bad || len(f.b) > 0 {
		return part{}, errors.New("malformed manifest")
	}
	return p, nil
}

// Keys of the multi-version map: space, key with its zero bytes escaped, terminator, and the
// version inverted. So keys sort by space and key, and the versions of one key newest first.
const versionSize = 8

// appendPrefix encodes space and key: a zero byte becomes 00 ff, the end is 00 01.
func appendPrefix(b []byte, space dataflow.Space, key []byte) []byte {
	b = append(b, byte(space))
	for _, c := range key {
		if b = append(b, c); c == 0 {
			b = append(b, 0xff)
		}
	}
	return append(b, 0, 1)
}

func appendVersion(b []byte, v dataflow.Version) []byte {
	return binary.BigEndian.AppendUint64(b, ^uint64(v))
}

// splitKey splits a key of the map into prefix and version.
func splitKey(b []byte) (prefix []byte, v dataflow.Version, err error) {
	n := len(b) - versionSize
	if n < 3 || b[n-2] != 0 || b[n-1] != 1 {
		return nil, 0, errors.New("malformed key")
	}
	return b[:n:n], dataflow.Version(^binary.BigEndian.Uint64(b[n:])), nil
}

// appendKey decodes the key of a prefix.
func appendKey(dst, prefix []byte) ([]byte, error) {
	if len(prefix) < 3 {
		return dst, errors.New("malformed key")
	}
	body := prefix[1 : len(prefix)-2]
	for i := 0; i < len(body); i++ {
		dst = append(dst, body[i])
		if body[i] == 0 {
			if i++; i == len(body) || body[i] != 0xff {
				return dst, errors.New("malformed key")
			}
		}
	}
	return dst, nil
}

// Values of the map: a hash over key, version, flag and value, the flag, the value.
const valueHead = 9

const (
	flagValue     = 1
	flagTombstone = 2
	flagPacked    = 3 // a reference follows; the hash is that of the value
)

func valueHash(key []byte, flag byte, value []byte) uint64 {
	return xxh3.HashSeed(value, xxh3.HashSeed(key, uint64(flag)))
}

func appendValue(b, key []byte, value []byte) []byte {
	flag := byte(flagValue)
	if value == nil {
		flag = flagTombstone
	}
	b = binary.BigEndian.AppendUint64(b, valueHash(key, flag, value))
	b = append(b, flag)
	return append(b, value...)
}

// parseValue checks a value against its hash. A tombstone is nil, an empty value is not.
func parseValue(key, b []byte) (value []byte, hash uint64, err error) {
	if len(b) < valueHead {
		return nil, 0, errors.New("malformed value")
	}
	flag := b[8]
	value = b[valueHead:len(b):len(b)]
	hash = binary.BigEndian.Uint64(b)
	if flag != flagValue && flag != flagTombstone || hash != valueHash(key, flag, value) {
		return nil, 0, errors.New("value does not match its checksum")
	}
	if flag == flagTombstone {
		return nil, hash, nil
	}
	return value, hash, nil
}
