package job

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// maxName bounds names, in bytes: they become parts of subjects, keys and file names.
const maxName = 64

const nameHint = "names are 1 to 64 letters, digits, - and _"

func isName(s string) bool { return isWord(s, "-_") }

// isLabelName allows dots too, since labels are often written like host names.
func isLabelName(s string) bool { return isWord(s, "-_.") }

func isWord(s, also string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(also, c) < 0 {
			return false
		}
	}
	return true
}

func list(names []string) string {
	switch len(names) {
	case 0:
		return "none"
	case 1:
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// suggest says what is allowed, the nearest name first if one is near.
func suggest(got string, allowed []string) string {
	if len(allowed) == 0 {
		return ""
	}
	known := "allowed: " + list(allowed)
	if near := nearest(got, allowed); near != "" {
		return "did you mean " + near + "? " + known
	}
	return known
}

// nearest returns the name with the smallest edit distance, if that is small for its length.
func nearest(got string, names []string) string {
	best, distance := "", max(1, min(len(got), maxName)/3)+1
	for _, name := range names {
		if d := editDistance(got, name); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// editDistance counts letters changed, added, left out, or swapped with their neighbour.
func editDistance(a, b string) int {
	if len(a) > maxName || len(b) > maxName {
		return maxName
	}
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			change := row[j]
			if a[i] != b[j] {
				change++
			}
			next[j+1] = min(change, next[j]+1, row[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
