package ops

import (
	"errors"
	"sort"
	"strconv"
	"strings"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Settings reads an operator's configuration. The first value that is wrong is kept as an error that names the
// key and the value; see [Settings.Done].
type Settings struct {
	config weir.Config
	asked  []string // keys, in the order in which they were asked for first
	err    error
}

// Read begins to read a configuration.
func Read(c weir.Config) *Settings { return &Settings{config: c} }

// Err is the first mistake so far, nil if there is none.
func (s *Settings) Err() error { return s.err }

// Done is the first mistake, once all keys have been asked for. A key that is set and was not asked for is one; it is
// told of beside another one if it looks like a key that was asked for.
func (s *Settings) Done() error {
	for _, key := range s.config.Keys() {
		if contains(s.asked, key) {
			continue
		}
		text, near := s.unknown(key)
		if s.err == nil {
			s.err = errors.New(text)
		} else if near {
			s.err = errors.New(s.err.Error() + "; " + text)
		}
		break
	}
	return s.err
}

// unknown says that a key means nothing here, and which may have been meant; false if none is near.
func (s *Settings) unknown(key string) (text string, near bool) {
	best, least := "", 1+max(min(2, len(key)-1), len(key)/3)
	for _, k := range s.asked {
		if d := distance(key, k); d < least {
			best, least = k, d
		}
	}
	text = "config " + key + ": there is no such key"
	if best != "" {
		text += ", did you mean " + best + "?"
	}
	sorted := append([]string(nil), s.asked...)
	sort.Strings(sorted)
	return text + " (what is used as it is configured: " + strings.Join(sorted, ", ") + ")", best != ""
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// distance is how many bytes must be put in, taken out or changed to make one text of the other; of long ones it is
// their difference in length.
func distance(a, b string) int {
	const long = 32
	if len(a) > long || len(b) > long {
		return max(len(a)-len(b), len(b)-len(a), 1)
	}
	var row [long + 1]int
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			d := before
			if a[i-1] != b[j-1] {
				d = 1 + min(before, row[j], row[j-1])
			}
			before, row[j] = row[j], d
		}
	}
	return row[len(b)]
}

// lookup asks for a key.
func (s *Settings) lookup(key string) (string, bool) {
	if !contains(s.asked, key) {
		s.asked = append(s.asked, key)
	}
	return s.config.Lookup(key)
}

// Wrong reports a mistake in the value of a key: what says what is wrong with it.
func (s *Settings) Wrong(key, what string) {
	if s.err != nil {
		return
	}
	if v, ok := s.lookup(key); ok {
		s.err = errors.New("config " + key + ": " + strconv.Quote(v) + " " + what)
	} else {
		s.err = errors.New("config " + key + " is not set: it " + what)
	}
}

// String is the text of a key.
func (s *Settings) String(key, fallback string) string {
	if v, ok := s.lookup(key); ok {
		return v
	}
	return fallback
}

// Choice is the text of a key, which is one of those given; the first is the fallback.
func (s *Settings) Choice(key string, choices ...string) string {
	v := s.String(key, choices[0])
	for _, c := range choices {
		if v == c {
			return v
		}
	}
	s.Wrong(key, "is not one of "+strings.Join(choices, ", "))
	return choices[0]
}

// Bool is true or false, and false if the key is not set.
func (s *Settings) Bool(key string) bool { return s.Choice(key, "false", "true") == "true" }

// Int is a whole number in a range.
func (s *Settings) Int(key string, fallback, low, high int) int {
	text, ok := s.lookup(key)
	if !ok {
		return fallback
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < low || v > high {
		s.Wrong(key, "is not a whole number from "+strconv.Itoa(low)+" to "+strconv.Itoa(high))
		return fallback
	}
	return v
}

// Float is a number of 0 or more.
func (s *Settings) Float(key string, fallback float64) float64 {
	text, ok := s.lookup(key)
	if !ok {
		return fallback
	}
	v, ok := weir.ParseNumber([]byte(text))
	if !ok || v < 0 {
		s.Wrong(key, "is not a number of 0 or more")
		return fallback
	}
	return v
}

// Path is where in a value something is; see [weir.ParsePath].
func (s *Settings) Path(key, fallback string) weir.Path {
	p, err := weir.ParsePath(s.String(key, fallback))
	if err != nil {
		s.Wrong(key, "is not a path such as v or motor.phases.0.current")
	}
	return p
}

// maxDuration is the longest duration in milliseconds: about 100 years.
const maxDuration = 36525 * 24 * 3600 * 1000

// Duration is a duration in milliseconds, as [ParseDuration] reads it.
func (s *Settings) Duration(key string, fallback int64) int64 {
	text, ok := s.lookup(key)
	if !ok {
		return fallback
	}
	return s.duration(key, text)
}

// Span is a duration in milliseconds that may be negative: "-5s".
func (s *Settings) Span(key string, fallback int64) int64 {
	text, ok := s.lookup(key)
	if !ok {
		return fallback
	}
	if back, negative := strings.CutPrefix(text, "-"); negative {
		return -s.duration(key, back)
	}
	return s.duration(key, text)
}

func (s *Settings) duration(key, text string) int64 {
	ms, ok := ParseDuration(text)
	if !ok {
		s.Wrong(key, "is not a duration such as 500ms, 10s, 1m30s, 2h or 1d")
	}
	return ms
}

// Store is where state is kept: "keyed" or "memory".
func (s *Settings) Store(key string) Store {
	if s.Choice(key, "keyed", "memory") == "memory" {
		return NewMemory()
	}
	return Keyed()
}

// Aggregate reads the functions that are asked for ("functions"), where the number is ("field") and
// how results are rounded ("decimals").
func (s *Settings) Aggregate() *Aggregate {
	a := &Aggregate{Reading: Reading{s.Path("field", "v")}, Decimals: s.Int("decimals", 3, 0, 9)}
	if err := a.Functions(s.String("functions", "count,mean,min,max")); err != nil {
		s.Wrong("functions", "has a mistake: "+err.Error())
	}
	return a
}

// ParseDuration reads a duration as whole numbers with units: ms, s, m, h, d. At most 100 years. "0" needs no unit.
func ParseDuration(text string) (ms int64, ok bool) {
	if text == "0" {
		return 0, true
	}
	for at := 0; at < len(text); {
		n, digits := int64(0), at
		for at < len(text) && text[at] >= '0' && text[at] <= '9' {
			if n = n*10 + int64(text[at]-'0'); n > maxDuration {
				return 0, false
			}
			at++
		}
		unit := at
		for at < len(text) && text[at] >= 'a' && text[at] <= 'z' {
			at++
		}
		each := int64(0)
		switch text[unit:at] {
		case "ms":
			each = 1
		case "s":
			each = 1000
		case "m":
			each = 60_000
		case "h":
			each = 3_600_000
		case "d":
			each = 86_400_000
		}
		if each == 0 || unit == digits || n > (maxDuration-ms)/each {
			return 0, false
		}
		ms += n * each
	}
	return ms, text != ""
}

// Has says whether a key is set.
func (s *Settings) Has(key string) bool {
	_, ok := s.lookup(key)
	return ok
}

// Expr is an expression, which must be set; see [ParseExpr].
func (s *Settings) Expr(key string) *Expr {
	e, err := ParseExpr(s.String(key, ""))
	switch {
	case !s.Has(key):
		s.Wrong(key, "is needed")
	case err != nil:
		s.Wrong(key, "is not an expression: "+err.Error())
	}
	return e
}

// Assignments are fields of a new object; see [ParseAssignments].
func (s *Settings) Assignments(key string) []Assignment {
	all, err := ParseAssignments(s.String(key, ""))
	if err != nil {
		s.Wrong(key, "is not a list of assignments: "+err.Error())
	}
	return all
}
