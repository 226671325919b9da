package nats

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// A grant on the wire, little-endian:
//
//	offset size field
//	     0    1 version (1)
//	     1    1 flags: 1 rewind
//	     2    4 channel
//	     6    4 incarnation
//	    10    8 next number
//	    18    8 running checksum before it
//	    26    4 window, bytes
const (
	grantVersion = 1
	grantSize    = 30
	grantRewind  = 1
)

func appendGrant(dst []byte, g dataflow.Grant) []byte {
	le := binary.LittleEndian
	var flags byte
	if g.Rewind {
		flags = grantRewind
	}
	dst = append(dst, grantVersion, flags)
	dst = le.AppendUint32(dst, uint32(g.Channel))
	dst = le.AppendUint32(dst, g.Incarnation)
	dst = le.AppendUint64(dst, uint64(g.Next))
	dst = le.AppendUint64(dst, uint64(g.Sum))
	return le.AppendUint32(dst, uint32(min(max(g.Window, 0), math.MaxInt32)))
}

// decodeGrant reads the grant that fills b.
func decodeGrant(b []byte) (dataflow.Grant, error) {
	if len(b) < 1 || b[0] != grantVersion {
		return dataflow.Grant{}, fmt.Errorf("grant of %d bytes and unknown version, this build reads %d", len(b), grantVersion)
	}
	if len(b) != grantSize || b[1] > grantRewind {
		return dataflow.Grant{}, fmt.Errorf("malformed grant of %d bytes", len(b))
	}
	le := binary.LittleEndian
	channel, window := le.Uint32(b[2:]), le.Uint32(b[26:])
	if channel > math.MaxInt32 || window > math.MaxInt32 {
		return dataflow.Grant{}, fmt.Errorf("malformed grant: channel %d, window %d", channel, window)
	}
	return dataflow.Grant{
		Channel: int(channel), Incarnation: le.Uint32(b[6:]), Next: abs.Seq(le.Uint64(b[10:])),
		Sum: frame.Sum(le.Uint64(b[18:])), Window: int(window), Rewind: b[1] == grantRewind,
	}, nil
}
