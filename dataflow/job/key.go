package job

import (
	"bytes"
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/weir-stream/weir/dataflow/frame"
)

// KeyKind tells where a record's key comes from.
type KeyKind string

// Kinds of key rules.
const (
	KeyTopic   KeyKind = "topic"   // the MQTT topic
	KeySegment KeyKind = "segment" // one segment of the topic, counted from 0
	KeyJSON    KeyKind = "json"    // a field of the JSON value
	KeyConst   KeyKind = "const"   // the same for all records
	KeyKeep    KeyKind = "key"     // key_by only: the key that the record has
)

// KeyRule says what a record's key is. The zero rule leaves key and task alone.
type KeyRule struct {
	Kind    KeyKind `json:"kind,omitempty"`
	Segment int     `json:"segment,omitempty"`
	JSON    string  `json:"json,omitempty"`
	Const   string  `json:"const,omitempty"`
}

// IsZero tells whether there is no rule.
func (k KeyRule) IsZero() bool { return k == KeyRule{} }

func (k KeyRule) String() string {
	switch k.Kind {
	case KeySegment:
		return fmt.Sprintf("{segment: %d}", k.Segment)
	case KeyJSON:
		return fmt.Sprintf("{json: %s}", k.JSON)
	case KeyConst:
		return fmt.Sprintf("{const: %s}", k.Const)
	}
	return string(k.Kind)
}

// TopicHeader is the name of the header with the topic of a record whose key is not its topic.
const TopicHeader = "topic"

// Key returns the record's key under the rule; it may alias the record. The topic is the record's
// header of that name or, without one, its key: a source that keys by topic adds no header. The
// error says which part of the record is missing; such a record cannot be sent on.
func (k KeyRule) Key(r frame.Record) ([]byte, error) {
	switch k.Kind {
	case "", KeyKeep:
		return r.Key, nil
	case KeyTopic:
		return topicOf(r), nil
	case KeySegment:
		return segment(topicOf(r), k.Segment)
	case KeyJSON:
		return jsonKey(r.Value, k.JSON)
	case KeyConst:
		return []byte(k.Const), nil
	}
	panic(fmt.Sprintf("job: key rule of unknown kind %q", k.Kind))
}

func topicOf(r frame.Record) []byte {
	if t := r.Header(TopicHeader); t != nil {
		return t
	}
	return r.Key
}

func segment(topic []byte, n int) ([]byte, error) {
	rest := topic
	for range n {
		i := bytes.IndexByte(rest, '/')
		if i < 0 {
			return nil, fmt.Errorf("topic %q has no segment %d", topic, n)
		}
		rest = rest[i+1:]
	}
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		rest = rest[:i]
	}
	return rest, nil
}

// jsonKey takes a string's text without quotes and any other value as it is written.
func jsonKey(value []byte, path string) ([]byte, error) {
	if !gjson.ValidBytes(value) {
		return nil, fmt.Errorf("value is not JSON, so it has no field %q for the key", path)
	}
	f := gjson.GetBytes(value, path)
	if !f.Exists() || f.Type == gjson.Null {
		return nil, fmt.Errorf("value has no field %q for the key", path)
	}
	return []byte(f.String()), nil
}

// KeyGroups is the number of key groups of a job: the most tasks that an operator can have, and the
// unit in which keyed state moves when that number changes.
const KeyGroups = 128

// KeyGroup is the group of a key: its 64-bit FNV-1a hash, both halves folded by exclusive or, modulo
// KeyGroups. It never changes, since state on disk is divided by it.
func KeyGroup(key []byte) int {
	h := uint64(14695981039346656037)
	for _, b := range key {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return int((h ^ h>>32) % KeyGroups)
}

// Partition is the task, of so many in parallel, that owns a key group. Each owns one run of groups.
func Partition(group, parallelism int) int { return group * parallelism / KeyGroups }
