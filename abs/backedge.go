package abs

// Edge is one edge of a graph given as adjacency: the Nth successor of node From.
type Edge struct {
	From, Nth int
}

// BackEdges finds the back edges of a directed graph statically, by depth-first search (section 4.3
// of the paper): an edge to a node on the search's own path. The graph without them is acyclic.
// successors[i] lists the nodes that node i sends to; several edges between the same nodes and
// edges to the node itself are allowed.
//
// The search starts at nodes without predecessor, in index order, so that a loop is entered where
// its input comes in and that node is its head; then at nodes not reached so, in index order. The
// answer, sorted by From and Nth, depends on nothing but the argument. It panics if a successor is
// not a node.
func BackEdges(successors [][]int) []Edge {
	s := search{successors: successors, color: make([]color, len(successors)), back: map[Edge]bool{}}
	entered := make([]bool, len(successors))
	for _, to := range successors {
		for _, n := range to {
			entered[n] = true
		}
	}
	for n := range successors {
		if !entered[n] {
			s.visit(n)
		}
	}
	for n := range successors {
		s.visit(n)
	}
	return s.inOrder()
}

type color uint8

const (
	unseen color = iota
	onPath
	left
)

type search struct {
	successors [][]int
	color      []color
	back       map[Edge]bool
}

// visit searches from a node. The path is kept here rather than on the stack: a graph's depth is
// the user's to choose.
func (s *search) visit(root int) {
	if s.color[root] != unseen {
		return
	}
	s.color[root] = onPath
	path := []Edge{{From: root}}
	for len(path) > 0 {
		at := &path[len(path)-1]
		if at.Nth == len(s.successors[at.From]) {
			s.color[at.From] = left
			path = path[:len(path)-1]
			continue
		}
		edge := *at
		at.Nth++
		switch to := s.successors[edge.From][edge.Nth]; s.color[to] {
		case onPath:
			s.back[edge] = true
		case unseen:
			s.color[to] = onPath
			path = append(path, Edge{From: to})
		}
	}
}

func (s *search) inOrder() []Edge {
	var out []Edge
	for from, to := range s.successors {
		for nth := range to {
			if e := (Edge{from, nth}); s.back[e] {
				out = append(out, e)
			}
		}
	}
	return out
}
