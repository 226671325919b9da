package job

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-stream/weir/dataflow/frame"
)

func TestKeyRules(t *testing.T) {
	headers, _ := frame.AppendHeader(nil, TopicHeader, []byte("plant/a//x"))
	with := frame.Record{Key: []byte("k"), Headers: headers, Value: []byte(`{"machine":"m1","n":7,"deep":{"x":true},"none":null,"list":[1,2]}`)}
	byTopic := frame.Record{Key: []byte("plant/b"), Value: []byte("not json")}
	for _, c := range []struct {
		rule KeyRule
		rec  frame.Record
		key  string
		err  string
	}{
		{KeyRule{}, with, "k", ""},
		{KeyRule{Kind: KeyKeep}, with, "k", ""},
		{KeyRule{Kind: KeyTopic}, with, "plant/a//x", ""},
		{KeyRule{Kind: KeyTopic}, byTopic, "plant/b", ""},
		{KeyRule{Kind: KeySegment, Segment: 0}, with, "plant", ""},
		{KeyRule{Kind: KeySegment, Segment: 2}, with, "", ""},
		{KeyRule{Kind: KeySegment, Segment: 3}, with, "x", ""},
		{KeyRule{Kind: KeySegment, Segment: 4}, with, "", `topic "plant/a//x" has no segment 4`},
		{KeyRule{Kind: KeySegment, Segment: 1}, byTopic, "b", ""},
		{KeyRule{Kind: KeyJSON, JSON: "machine"}, with, "m1", ""},
		{KeyRule{Kind: KeyJSON, JSON: "n"}, with, "7", ""},
		{KeyRule{Kind: KeyJSON, JSON: "deep.x"}, with, "true", ""},
		{KeyRule{Kind: KeyJSON, JSON: "list"}, with, "[1,2]", ""},
		{KeyRule{Kind: KeyJSON, JSON: "none"}, with, "", `value has no field "none" for the key`},
		{KeyRule{Kind: KeyJSON, JSON: "absent"}, with, "", `value has no field "absent" for the key`},
		{KeyRule{Kind: KeyJSON, JSON: "machine"}, byTopic, "", `value is not JSON, so it has no field "machine" for the key`},
		{KeyRule{Kind: KeyConst, Const: "all"}, byTopic, "all", ""},
	} {
		key, err := c.rule.Key(c.rec)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if string(key) != c.key || got != c.err {
			t.Errorf("%s of %q: key %q, error %q; want %q, %q", c.rule, c.rec.Key, key, got, c.key, c.err)
		}
	}
}

// TestKeyGroupsNeverChange pins the hash: state on disk is divided by it.
func TestKeyGroupsNeverChange(t *testing.T) {
	for key, want := range map[string]int{
		"": 65, "a": 64, "sensor-1": 47, "sensor-2": 22, "plant/a/7/vibration": 100, "\x00\xff": 103,
	} {
		if got := KeyGroup([]byte(key)); got != want {
			t.Errorf("%q is in group %d, not %d", key, got, want)
		}
	}
}

func TestKeysSpread(t *testing.T) {
	const keys = 12800
	var counts [KeyGroups]int
	for i := range keys {
		counts[KeyGroup(fmt.Appendf(nil, "plant/line-%d/sensor-%d", i%7, i))]++
	}
	for g, n := range counts {
		if n < 50 || n > 160 {
			t.Errorf("group %d has %d of %d keys", g, n, keys)
		}
	}
}

func TestPartitionsAreRunsOfGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.IntRange(1, KeyGroups).Draw(t, "parallelism")
		next := 0
		for p := range of {
			first, last := groups(p, of)
			if first != next || last < first {
				t.Fatalf("partition %d of %d has groups %d–%d after %d", p, of, first, last, next-1)
			}
			for g := first; g <= last; g++ {
				if got := Partition(g, of); got != p {
					t.Fatalf("group %d of %d partitions is in %d, not %d", g, of, got, p)
				}
			}
			next = last + 1
		}
		if next != KeyGroups {
			t.Fatalf("%d partitions end at group %d", of, next)
		}
	})
}
