package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/abs"
)

// DefaultPrefix begins all subjects, streams and buckets unless another one is configured.
const DefaultPrefix = "weir"

// maxStreamName is the longest stream name that we use, in bytes: the server takes 255, and uses it
// as the name of a directory.
const maxStreamName = 200

// emptyToken stands for the empty name, which is no legal token. No other name encodes to it, since
// an escape has two digits.
const emptyToken = "="

const hexDigits = "0123456789ABCDEF"

// encodeToken makes any name a legal token of a subject, a key and a stream's name. Letters, digits,
// '-' and '_' stand for themselves, every other byte is '=' and two upper-case hexadecimal digits.
func encodeToken(name string) string {
	if name == "" {
		return emptyToken
	}
	plain := 0
	for plain < len(name) && isPlain(name[plain]) {
		plain++
	}
	if plain == len(name) {
		return name
	}
	b := make([]byte, 0, len(name)+8)
	for i := range len(name) {
		if c := name[i]; isPlain(c) {
			b = append(b, c)
		} else {
			b = append(b, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(b)
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// decodeToken is the reverse of encodeToken. It refuses what encodeToken does not make.
func decodeToken(token string) (string, error) {
	if token == emptyToken {
		return "", nil
	}
	b := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		switch {
		case isPlain(c):
			b = append(b, c)
		case c == '=' && i+2 < len(token):
			hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
			if hi < 0 || lo < 0 || isPlain(byte(hi<<4|lo)) {
				return "", fmt.Errorf("token %q: bad escape at byte %d", token, i)
			}
			b = append(b, byte(hi<<4|lo))
			i += 2
		default:
			return "", fmt.Errorf("token %q: illegal byte %#02x at %d", token, c, i)
		}
	}
	if len(b) == 0 {
		return "", fmt.Errorf("empty token")
	}
	return string(b), nil
}

// Key makes a key of a bucket from any names. The names come back from [SplitKey].
func Key(names ...string) string {
	tokens := make([]string, len(names))
	for i, n := range names {
		tokens[i] = encodeToken(n)
	}
	return strings.Join(tokens, ".")
}

// SplitKey returns the names that [Key] was given, or an error if it did not make this key.
func SplitKey(key string) ([]string, error) {
	names := strings.Split(key, ".")
	for i, token := range names {
		n, err := decodeToken(token)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", key, err)
		}
		names[i] = n
	}
	return names, nil
}

// checkPrefix refuses a prefix that is not one plain token.
func checkPrefix(prefix string) error {
	if prefix == "" || len(prefix) > 32 || encodeToken(prefix) != prefix {
		return fmt.Errorf("prefix %q: want 1 to 32 letters, digits, '-' and '_'", prefix)
	}
	return nil
}

// names are the subjects and stream names under one prefix.
type names struct{ prefix string }

func (n names) generation(kind, job string, gen abs.Generation) string {
	return n.prefix + "." + kind + "." + encodeToken(job) + "." + strconv.FormatUint(uint64(gen), 10)
}

// frames is the subject of all of a task's channels without the last token.
func (n names) frames(job string, gen abs.Generation, task abs.TaskID) string {
	return n.generation("s", job, gen) + "." + encodeToken(string(task))
}

func (n names) grants(job string, gen abs.Generation, channel int) string {
	return n.generation("g", job, gen) + "." + strconv.Itoa(channel)
}

func (n names) asks(job string, gen abs.Generation, task abs.TaskID) string {
	return n.generation("a", job, gen) + "." + encodeToken(string(task))
}

// stream is the name of a task's stream. It need not be decoded: the stream's metadata has the names.
func (n names) stream(job string, gen abs.Generation, task abs.TaskID) string {
	g := strconv.FormatUint(uint64(gen), 10)
	name := strings.Join([]string{n.prefix, "s", encodeToken(job), g, encodeToken(string(task))}, "~")
	if len(name) <= maxStreamName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.Join([]string{n.prefix, "s", "h", g, hex.EncodeToString(sum[:])}, "~")
}

// channelOf reads the channel off the last token of a frame's subject.
func channelOf(subject string) (int, error) {
	n, err := strconv.Atoi(subject[strings.LastIndexByte(subject, '.')+1:])
	if err != nil || n < 0 {
		return 0, fmt.Errorf("subject %q does not end with a channel", subject)
	}
	return n, nil
}
