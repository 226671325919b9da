package job

import (
	"fmt"
	"math"
)

// Bounds of a generator.
const (
	maxGenerated     = math.MaxInt32
	maxGeneratorRate = 10_000_000
	maxGeneratorKeys = 100_000_000
	maxGeneratorSize = 128 << 10
	defGeneratorKeys = 100
)

// generatorSource reads {records, rate, keys, size, seed, stamp}, all optional.
func (r *reader) generatorSource(f field, entry *object) *GeneratorSource {
	o, ok := r.object(f.node, f.at, "generator of "+entry.what, "records", "rate", "keys", "size", "seed", "stamp")
	if !ok {
		return nil
	}
	g := &GeneratorSource{}
	g.Records, _ = r.integer(o, "records", 0, maxGenerated, 0)
	g.Rate, _ = r.integer(o, "rate", 0, maxGeneratorRate, 0)
	g.Keys, _ = r.integer(o, "keys", 1, maxGeneratorKeys, defGeneratorKeys)
	g.Size, _ = r.integer(o, "size", 0, maxGeneratorSize, 0)
	g.Seed, _ = r.integer(o, "seed", 0, math.MaxInt32, 0)
	g.Stamp = r.boolean(o, "stamp", false)
	return g
}

// text is what the plan says of it.
func (g *GeneratorSource) text() string {
	records, rate := "without end", "as fast as they are taken"
	if g.Records > 0 {
		records = fmt.Sprintf("%d records", g.Records)
	}
	if g.Rate > 0 {
		rate = fmt.Sprintf("%d a second", g.Rate)
	}
	return fmt.Sprintf("%s, %d keys, %s", records, g.Keys, rate)
}
