// Wordcount splits lines into words and counts them. Its counts are keyed state: they may outgrow the
// module's memory, and they follow their words when the job is spread over more tasks.
package main

import (
	"bytes"
	"strconv"
	"unicode"

	weir "github.com/weir-stream/weir/sdk/go"
)

// maxWord bounds a word in bytes; keys of the state have a limit.
const maxWord = 256

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Init: start, Process: process}

// mode is what the instance does: a job splits in one operator and counts in the next, with a
// shuffle by word between them, or does both in one.
var split, count bool

func start(c weir.Config) error {
	mode := c.String("mode", "both")
	split = mode == "both" || mode == "split"
	count = mode == "both" || mode == "count"
	if !split && !count {
		return errMode
	}
	return nil
}

type textError string

func (e textError) Error() string { return string(e) }

const errMode = textError("config mode: must be both, split or count")

// buf holds the number being read or written; reused for every record.
var buf []byte

func process(r weir.Record, out *weir.Out) error {
	if !split {
		add(r.Key, r.Time, out)
		return nil
	}
	for line := r.Value; ; {
		line = bytes.TrimLeftFunc(line, isSpace)
		if len(line) == 0 {
			return nil
		}
		n := bytes.IndexFunc(line, isSpace)
		if n < 0 {
			n = len(line)
		}
		word := bytes.ToLower(line[:min(n, maxWord)])
		if count {
			add(word, r.Time, out)
		} else {
			out.Emit(word, r.Time, nil)
		}
		line = line[n:]
	}
}

func isSpace(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }

func add(word []byte, time int64, out *weir.Out) {
	if len(word) == 0 || len(word) > maxWord {
		weir.Count("words_dropped", 1)
		return
	}
	n := 0
	if value, ok := weir.State.Get(word, buf); ok {
		for _, c := range value {
			n = n*10 + int(c-'0')
		}
	}
	buf = strconv.AppendInt(buf[:0], int64(n+1), 10)
	weir.State.Put(word, buf)
	out.Emit(word, time, buf)
}
