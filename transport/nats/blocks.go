package nats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The server keeps a stream's messages in files msgs/<n>.blk. Each record begins with a header of
// 22 bytes, little-endian (nats-server 2.15, server/filestore.go):
//
//	offset size field
//	     0    4 size of the record, this header included; highest bit: the message has headers
//	     4    8 sequence; highest bit: erased; next: mark of a deletion elsewhere
//	    12    8 time
//	    20    2 size of the subject
//
// and ends with a checksum, which the server verifies when it reads the message, but not when it
// makes the file's index: there it takes four bytes of memory for every sequence between the first one
// of the file and each following one. One flipped bit in a sequence thus asks for all the memory there
// is, and no recover helps. So the sequences are looked at first. Everything else is left to the server.
const (
	blockHeader    = 22
	blockChecksum  = 8
	blockSeqAt     = 4
	flagHeaders    = 1 << 31
	flagErased     = 1 << 63
	flagDeletion   = 1 << 62
	blockMaxRecord = 32 << 20
	// blockMaxSpan is the longest plausible span of sequences in one file: files have 8 MiB or less
	// and a record at least 30 bytes, which makes 280,000. The index of this many takes 64 MiB.
	blockMaxSpan = 1 << 24
)

// compressedBlock begins a file that holds no plain records. We make none; another client's streams may.
const compressedBlock = "cmp"

// checkBlocks looks at the sequences of all message files of a stream's directory.
func checkBlocks(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "msgs", "*.blk"))
	if err != nil {
		return err
	}
	for _, path := range files {
		if err := checkBlockFile(path); err != nil {
			return err
		}
	}
	return nil
}

func checkBlockFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := checkBlock(f, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// checkBlock walks the records of one file of that size. A record that makes no sense ends the walk
// without error: the server finds it itself.
func checkBlock(r io.ReaderAt, size int64) error {
	var h [blockHeader]byte
	var first uint64
	for at := int64(0); at+blockHeader <= size; {
		if _, err := r.ReadAt(h[:], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if at == 0 && string(h[:len(compressedBlock)]) == compressedBlock {
			return nil
		}
		n := int64(binary.LittleEndian.Uint32(h[:]) &^ flagHeaders)
		if n < blockHeader+blockChecksum || n > blockMaxRecord || n > size-at {
			return nil
		}
		at += n
		seq := binary.LittleEndian.Uint64(h[blockSeqAt:])
		if seq&flagDeletion != 0 {
			continue
		}
		seq &^= flagErased
		if first == 0 {
			first = seq
		}
		if seq > first && seq-first > blockMaxSpan {
			return fmt.Errorf("sequence %d follows %d", seq, first)
		}
	}
	return nil
}
