// Package extract makes a record's key, id and event time of a message: of where it came from (an MQTT
// topic, a file's path) and its JSON payload. It is shared by sources.
package extract

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// KeyKind says where a record's key comes from.
type KeyKind uint8

// Kinds of keys.
const (
	KeyTopic   KeyKind = iota // the whole topic
	KeySegment                // one level of the topic
	KeyJSON                   // a field of the payload
	KeyConst                  // always the same
)

// KeyRule makes a record's key of a message. The zero value takes the topic.
type KeyRule struct {
	Kind KeyKind
	// Segment counts the levels of the topic from 0: of "plant/a/7", 1 is "a".
	Segment int
	// Path is a gjson path to a string, a number (its text as written) or a boolean.
	Path  string
	Const string
}

// TimeUnit says what the number or text of a time field means.
type TimeUnit uint8

// Units of time fields.
const (
	Milliseconds TimeUnit = iota // since 1970, like those below
	Seconds
	Microseconds
	Nanoseconds
	RFC3339 // a string
)

// TimeRule makes a record's event time of a message. The zero value takes the time of arrival.
type TimeRule struct {
	// Path is a gjson path to a number, which may have a fraction, or for RFC3339 to a string.
	Path string
	Unit TimeUnit
}

// MaxTime and MinTime bound event times to what a date of RFC 3339 can show, years 0–9999, in milliseconds.
const MaxTime = 253402300799999

// MinTime is the lower one.
const MinTime = -62167219200000

// Check says what is wrong with the rule.
func (r KeyRule) Check() error {
	switch {
	case r.Kind > KeyConst:
		return fmt.Errorf("key: unknown kind %d", r.Kind)
	case r.Kind == KeySegment && r.Segment < 0:
		return fmt.Errorf("key: segment %d; the first is 0", r.Segment)
	case r.Kind == KeyJSON && r.Path == "":
		return errors.New("key: the JSON path is empty")
	}
	return nil
}

// Check says what is wrong with the rule.
func (r TimeRule) Check() error {
	if r.Unit > RFC3339 {
		return fmt.Errorf("time: unknown unit %d", r.Unit)
	}
	return nil
}

// Key is the record's key. It copies nothing: the result aliases topic, payload or the rule.
func (r KeyRule) Key(topic string, payload []byte) (string, error) {
	switch r.Kind {
	case KeySegment:
		return segment(topic, r.Segment)
	case KeyJSON:
		v := gjson.GetBytes(payload, r.Path)
		switch v.Type {
		case gjson.String:
			return v.Str, nil
		case gjson.Number, gjson.True, gjson.False:
			return v.Raw, nil
		case gjson.JSON:
			return "", fmt.Errorf("key field %q is an object or a list; it must be a string, a number or a boolean", r.Path)
		}
		return "", fmt.Errorf("key field %q is missing", r.Path)
	case KeyConst:
		return r.Const, nil
	}
	return topic, nil
}

func segment(topic string, n int) (string, error) {
	rest := topic
	for range n {
		_, after, ok := strings.Cut(rest, "/")
		if !ok {
			return "", fmt.Errorf("key segment %d: topic %q has no such level (the first is 0)", n, topic)
		}
		rest = after
	}
	level, _, _ := strings.Cut(rest, "/")
	return level, nil
}

// Time is the event time in milliseconds since 1970.
func (r TimeRule) Time(payload []byte, arrived int64) (int64, error) {
	if r.Path == "" {
		return arrived, nil
	}
	v := gjson.GetBytes(payload, r.Path)
	switch {
	case !v.Exists() || v.Type == gjson.Null:
		return 0, fmt.Errorf("time field %q is missing", r.Path)
	case r.Unit == RFC3339 && v.Type != gjson.String:
		return 0, fmt.Errorf("time field %q is %s; it must be a string such as 2024-05-01T12:00:00Z", r.Path, cut(v.Raw))
	case r.Unit == RFC3339:
		return r.parse(v.Str)
	case v.Type != gjson.Number:
		return 0, fmt.Errorf("time field %q is %s; it must be a number", r.Path, cut(v.Raw))
	}
	return r.number(v.Raw)
}

func (r TimeRule) parse(s string) (int64, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return 0, fmt.Errorf("time field %q is %q; it must look like 2024-05-01T12:00:00Z", r.Path, cut(s))
	}
	return r.inRange(float64(t.UnixMilli()), t.UnixMilli())
}

// floatSlack makes up for what a fraction of a second loses in a float64, in milliseconds: 0.001 is
// above the error at present dates and below what a millisecond can show.
const floatSlack = 0.001

// number converts without loss where the text is an integer.
func (r TimeRule) number(raw string) (int64, error) {
	if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
		switch r.Unit {
		case Seconds:
			return r.inRange(float64(n)*1e3, n*1000)
		case Microseconds:
			return r.inRange(float64(n)/1e3, floorDiv(n, 1000))
		case Nanoseconds:
			return r.inRange(float64(n)/1e6, floorDiv(n, 1000000))
		}
		return r.inRange(float64(n), n)
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		return 0, fmt.Errorf("time field %q is %s; it must be a number", r.Path, cut(raw))
	}
	ms := f * map[TimeUnit]float64{Milliseconds: 1, Seconds: 1e3, Microseconds: 1e-3, Nanoseconds: 1e-6}[r.Unit]
	if math.Abs(ms) > MaxTime { // not every float64 fits an int64
		return r.inRange(ms, 0)
	}
	return r.inRange(ms, int64(math.Floor(ms+floatSlack)))
}

// inRange returns ms if the approximation about says that it is neither absurd nor overflown.
func (r TimeRule) inRange(about float64, ms int64) (int64, error) {
	if !(about >= MinTime && about <= MaxTime) {
		return 0, fmt.Errorf("time field %q is about %.0f ms since 1970, outside the years 0–9999; is its unit right?", r.Path, about)
	}
	return ms, nil
}

func floorDiv(n, by int64) int64 {
	q := n / by
	if n%by < 0 {
		q--
	}
	return q
}

// ID is the record's id, empty if the payload has none.
func ID(path string, payload []byte) string {
	v := gjson.GetBytes(payload, path)
	switch v.Type {
	case gjson.String:
		return v.Str
	case gjson.Number, gjson.True, gjson.False:
		return v.Raw
	}
	return ""
}

// maxQuoted bounds what a reason repeats of a payload, in bytes: reasons are kept and listed.
const maxQuoted = 64

func cut(s string) string {
	if len(s) > maxQuoted {
		return strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return s
}
