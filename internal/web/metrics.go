package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// appendMetrics writes families in the Prometheus text format, version 0.0.4, in an order that does
// not depend on theirs.
func appendMetrics(b []byte, families []api.Family) []byte {
	families = slices.Clone(families)
	slices.SortStableFunc(families, func(x, y api.Family) int { return cmp.Compare(x.Name, y.Name) })
	for _, f := range families {
		b = append(b, "# HELP "+f.Name+" "+helpEscapes.Replace(f.Help)+"\n"...)
		b = append(b, "# TYPE "+f.Name+" "+string(f.Kind)+"\n"...)
		b = appendSamples(b, f)
	}
	return b
}

func appendSamples(b []byte, f api.Family) []byte {
	lines := make([]string, 0, len(f.Samples))
	for _, s := range f.Samples {
		lines = append(lines, string(appendSample(nil, f.Name, s)))
	}
	slices.Sort(lines)
	for _, l := range lines {
		b = append(b, l...)
	}
	return b
}

func appendSample(b []byte, name string, s api.Sample) []byte {
	b = append(b, name...)
	for i, l := range s.Labels {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		b = append(b, sep+l.Name+`="`+labelEscapes.Replace(l.Value)+`"`...)
	}
	if len(s.Labels) > 0 {
		b = append(b, '}')
	}
	return append(append(append(b, ' '), formatValue(s.Value)...), '\n')
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func formatValue(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case math.IsNaN(v):
		return "NaN"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// size writes a number of bytes for people.
func size(n int64) string {
	const mib = 1 << 20
	if n >= mib && n%mib == 0 {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d bytes", n)
}
