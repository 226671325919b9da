package job

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow/template"
)

// sinkPlaceholders are what topic, payload and line of a sink are filled in with for each record.
var sinkPlaceholders = []string{"key", "value", "time", "number", "channel", "topic"}

// agentPlaceholder and labelPrefix are filled in when the plan is made, in every template.
const (
	agentPlaceholder = "agent"
	labelPrefix      = "label."
)

// eachPlaceholder visits every {name} of a template, where name is letters a to z, label. and a
// label's name, or value. and a path. All other braces are text, so that JSON needs no escapes.
func eachPlaceholder(s string, visit func(name string, start, end int)) {
	for i := 0; i < len(s); i++ {
		if s[i] != '{' {
			continue
		}
		n := strings.IndexAny(s[i+1:], "{}")
		if n < 0 {
			return
		}
		end := i + 1 + n
		if name := s[i+1 : end]; s[end] == '}' && isPlaceholder(name) {
			visit(name, i, end+1)
			i = end
		}
	}
}

func isPlaceholder(name string) bool {
	if label, ok := strings.CutPrefix(name, labelPrefix); ok {
		return isLabelName(label)
	}
	if template.IsPath(name) {
		return true
	}
	for _, c := range []byte(name) {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return name != ""
}

// placeholders checks those of a template; perRecord and perTask are known beside the agent's own.
func (r *reader) placeholders(at Pos, o *object, field, s string, perRecord, perTask []string) {
	known := slices.Concat(perRecord, perTask, []string{agentPlaceholder})
	eachPlaceholder(s, func(name string, _, _ int) {
		if strings.HasPrefix(name, labelPrefix) || slices.Contains(known, name) || perRecord != nil && template.IsPath(name) {
			return
		}
		braced := make([]string, len(known), len(known)+1)
		for i, k := range known {
			braced[i] = "{" + k + "}"
		}
		if perRecord != nil {
			braced = append(braced, "{value.PATH}")
		}
		r.fail(at, suggest("{"+name+"}", append(braced, "{label.NAME}")), "%s of %s: unknown placeholder {%s}", field, o.what, name)
	})
}

func (r *reader) template(at Pos, o *object, field, s string) {
	r.placeholders(at, o, field, s, sinkPlaceholders, nil)
}

func (r *reader) expandable(at Pos, o *object, field, s string) {
	r.placeholders(at, o, field, s, nil, nil)
}

// expand fills in what is known of an agent and a task; other placeholders stay.
func expand(s string, a Agent, task string) (string, error) {
	var b strings.Builder
	var err error
	at := 0
	eachPlaceholder(s, func(name string, start, end int) {
		value, known := "", true
		switch label, isLabel := strings.CutPrefix(name, labelPrefix); {
		case isLabel:
			var has bool
			if value, has = a.Labels[label]; !has {
				err = errors.Join(err, fmt.Errorf("agent %s has no label %s for {%s}; start it with --label %s=…", a.Name, label, name, label))
			}
			if strings.ContainsAny(value, "{}") {
				err = errors.Join(err, fmt.Errorf("label %s=%s of agent %s cannot stand for {%s}: it holds a brace", label, value, a.Name, name))
			}
		case name == agentPlaceholder:
			value = a.Name
		case name == "task" && task != "":
			value = task
		default:
			known = false
		}
		if known {
			b.WriteString(s[at:start])
			b.WriteString(value)
			at = end
		}
	})
	b.WriteString(s[at:])
	return b.String(), err
}

// schemes are those of MQTT over TCP, TLS and WebSocket.
var schemes = []string{"tcp", "mqtt", "ssl", "tls", "mqtts", "ws", "wss"}

func checkBroker(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", s)
	case u.User != nil:
		return errors.New("user and password do not belong in the URL: use user and password_file")
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("scheme %q is none of %s", u.Scheme, list(schemes))
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q does not name host and port", s)
	}
	return nil
}

// maxTopic is the longest topic in bytes (MQTT 3.1.1, section 1.5.3).
const maxTopic = 65535

// checkFilter checks a topic filter (MQTT 3.1.1, section 4.7).
func checkFilter(s string) error {
	if err := checkTopicText(s); err != nil {
		return err
	}
	levels := strings.Split(s, "/")
	if levels[0] == "$share" {
		if len(levels) < 3 || levels[1] == "" || strings.ContainsAny(levels[1], "+#") || levels[2] == "" && len(levels) == 3 {
			return errors.New("a shared subscription is $share/GROUP/FILTER")
		}
		levels = levels[2:]
	}
	for i, level := range levels {
		switch {
		case strings.Contains(level, "#") && (level != "#" || i != len(levels)-1):
			return errors.New("# must be the whole last level")
		case strings.Contains(level, "+") && level != "+":
			return errors.New("+ must be a whole level")
		}
	}
	return nil
}

// checkTopic checks a name that is published to.
func checkTopic(s string) error {
	if strings.ContainsAny(s, "+#") {
		return errors.New("+ and # are for subscriptions, a sink publishes to one topic")
	}
	return checkTopicText(s)
}

func checkTopicText(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > maxTopic:
		return fmt.Errorf("it has %d bytes, at most %d", len(s), maxTopic)
	case strings.ContainsRune(s, 0):
		return errors.New("it holds a zero byte")
	}
	return nil
}

// overlap tells whether some topic matches both filters.
func overlap(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	// A wildcard at the front does not match names that start with $ (MQTT 3.1.1, section 4.7.2).
	if strings.HasPrefix(x[0], "$") != strings.HasPrefix(y[0], "$") {
		return false
	}
	for i := 0; ; i++ {
		switch {
		case i < len(x) && x[i] == "#", i < len(y) && y[i] == "#":
			return true
		case i == len(x) || i == len(y):
			return len(x) == len(y)
		case x[i] != y[i] && x[i] != "+" && y[i] != "+":
			return false
		}
	}
}
