package abs

import (
	"fmt"
	"strings"
)

// restoreBench runs the restore scripts:
//
//	parts                        body: part VERSION POS [gen=] [sent=] [consumed=] [logged=] [rejected]
//	choose [gen=] [truncated=] [needs=] [source] [damaged] [tried]
//	refill CHANNEL NUMBER [gen=]
type restoreBench struct{ parts []PartSummary }

func (b *restoreBench) run(c command) string {
	gen := Generation(1)
	if g := c.opts["gen"]; g != "" {
		gen = Generation(number(g))
	}
	switch c.name {
	case "parts":
		b.parts = nil
		for _, line := range c.body {
			b.parts = append(b.parts, parsePartSummary(parseCommand([]string{line})))
		}
		return ""
	case "choose":
		ask := Ask{Generation: gen, Source: c.has("source"), Damaged: c.has("damaged"), ReplicaTried: c.has("tried"), Needs: c.seqs("needs")}
		if t := c.opts["truncated"]; t != "" {
			ask.Truncated = Position(number(t))
		}
		d := Choose(b.parts, ask)
		return strings.TrimSpace(fmt.Sprintf("%v %d %s", d.Kind, d.Version, d.Why))
	case "refill":
		v, ok := Refill(b.parts, gen, ChannelID(c.arg(0)), Seq(c.num(1)))
		return fmt.Sprintf("%v %d", ok, v)
	}
	panic("script: unknown command " + c.name)
}

func parsePartSummary(c command) PartSummary {
	p := PartSummary{
		Version: c.num(0), Pos: Position(c.num(1)), Generation: 1, Rejected: c.has("rejected"),
		Cut: Cut{Sent: c.seqs("sent"), Consumed: c.seqs("consumed"), Logged: c.seqs("logged")},
	}
	if g := c.opts["gen"]; g != "" {
		p.Generation = Generation(number(g))
	}
	return p
}

// backedgeBench runs the back-edge scripts: "graph" and a body of lines NODE: SUCCESSOR..., nodes
// numbered in the order of the lines by name.
type backedgeBench struct{}

func (backedgeBench) run(c command) string {
	index := map[string]int{}
	var names []string
	for _, line := range c.body {
		name, _, _ := strings.Cut(line, ":")
		index[name] = len(names)
		names = append(names, name)
	}
	adjacency := make([][]int, len(names))
	for from, line := range c.body {
		_, list, _ := strings.Cut(line, ":")
		for _, to := range strings.Fields(list) {
			adjacency[from] = append(adjacency[from], index[to])
		}
	}
	var out []string
	for _, e := range BackEdges(adjacency) {
		out = append(out, names[e.From]+">"+names[adjacency[e.From][e.Nth]])
	}
	return join(out)
}
