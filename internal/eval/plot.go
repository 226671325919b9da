//go:build linux

package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// colours are those of the arms, told apart in grey and by the colour-blind too (Okabe and Ito 2008).
var colours = map[string]color.Color{
	none:        color.RGBA{0x55, 0x55, 0x55, 0xff},
	exactlyOnce: color.RGBA{0x00, 0x72, 0xb2, 0xff},
	atLeastOnce: color.RGBA{0x00, 0x9e, 0x73, 0xff},
	synchronous: color.RGBA{0xd5, 0x5e, 0x00, 0xff},
}

var shapes = map[string]draw.GlyphDrawer{
	none: draw.RingGlyph{}, exactlyOnce: draw.CircleGlyph{}, atLeastOnce: draw.SquareGlyph{}, synchronous: draw.TriangleGlyph{},
}

var labels = map[string]string{none: "no snapshots", exactlyOnce: "ABS, exactly once", atLeastOnce: "ABS, at least once", synchronous: "synchronous"}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for _, f := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		f.Variant = "Sans"
	}
	p.Title.TextStyle.Font.Size, p.Title.Padding = 13, 8
	p.X.Label.Padding, p.Y.Label.Padding = 4, 4
	p.Legend.Top, p.Legend.Padding, p.Legend.YOffs = true, 3, -4
	p.Add(plotter.NewGrid())
	return p
}

// save writes a plot as SVG and PNG.
func (e *evaluation) save(p *plot.Plot, name string) error {
	const width, height = 16 * vg.Centimeter, 10 * vg.Centimeter
	return errors.Join(p.Save(width, height, filepath.Join(e.out, name+".svg")), p.Save(width, height, filepath.Join(e.out, name+".png")))
}

// curve is a line with points and the spread of each.
func curve(p *plot.Plot, arm string, x []float64, y []spread) error {
	points := make(plotter.XYs, len(x))
	bars := make(plotter.YErrors, len(x))
	for i := range x {
		points[i] = plotter.XY{X: x[i], Y: y[i].mid}
		bars[i].Low, bars[i].High = y[i].mid-y[i].low, y[i].high-y[i].mid
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	errorBars, err := plotter.NewYErrorBars(struct {
		plotter.XYs
		plotter.YErrors
	}{points, bars})
	if err != nil {
		return err
	}
	line.Width, line.Color = vg.Points(1.5), colours[arm]
	marks.Shape, marks.Color, marks.Radius = shapes[arm], colours[arm], vg.Points(3.5)
	errorBars.Color = colours[arm]
	p.Add(line, errorBars, marks)
	p.Legend.Add(labels[arm], line, marks)
	return nil
}

// places makes the x axis logarithmic, with ticks at the places that were measured and some room beside them.
func places(p *plot.Plot, at []float64) {
	var t plot.ConstantTicks
	for _, v := range at {
		t = append(t, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', -1, 64)})
	}
	p.X.Min, p.X.Max = at[0]/1.1, at[len(at)-1]*1.1
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, t
}

// headroom leaves the upper fifth to the legend.
func headroom(p *plot.Plot) { p.Y.Max += 0.3 * (p.Y.Max - p.Y.Min) }

// decades are ticks of a logarithmic axis at 1, 2 and 5 times powers of ten.
type decades struct{}

func (decades) Ticks(low, high float64) (t []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= low*0.999 && v <= high*1.001 {
				t = append(t, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', -1, 64)})
			}
		}
	}
	return t
}

// logarithmic makes an axis logarithmic, over whole steps of 1, 2 and 5 around what is on it.
func logarithmic(a *plot.Axis) {
	a.Min, a.Max = step(a.Min, false), step(1.3*a.Max, true)
	a.Scale, a.Tick.Marker = plot.LogScale{}, decades{}
}

func step(v float64, up bool) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{1, 2, 5, 10}
	i := slices.IndexFunc(steps, func(s float64) bool { return s*base >= v*0.9999 })
	if !up && i > 0 && steps[i]*base > v*1.0001 {
		i--
	}
	return steps[i] * base
}

// armsOf are the arms of a section and its places on the x axis, rising, without those of none at 0.
func (e *evaluation) armsOf(section string) (names []string, xs []float64) {
	for _, k := range e.kinds(section) {
		if !slices.Contains(names, k.arm) {
			names = append(names, k.arm)
		}
		if k.x > 0 && !slices.Contains(xs, k.x) {
			xs = append(xs, k.x)
		}
	}
	slices.Sort(xs)
	return names, xs
}

// plots draws what has been measured.
func (e *evaluation) plots() error {
	return errors.Join(
		e.intervalPlot("interval", runTime, "Run time against the snapshot interval", "run time, relative to no snapshots", "interval-time"),
		e.intervalPlot("interval", cpuPer, "CPU against the snapshot interval", "CPU time, relative to no snapshots", "interval-cpu"),
		e.xPlot("agents", runTime, "Run time against the number of agents, snapshots every 3 s", "agents", "run time, s", "agents-time"),
		e.xPlot("agents", cpuPer, "CPU against the number of agents, snapshots every 3 s", "agents", "CPU per record, µs", "agents-cpu"),
		e.xPlot("state", late(0.99), "Latency against the size of the state, snapshots every second", "state, MiB", "p99 of record latency, ms", "state-latency"),
		e.xPlot("state", func(r result) float64 { return r.freezeMS }, "Pause for a snapshot against the size of the state", "state, MiB", "freeze of the slowest task, ms", "state-freeze"),
		e.latencyPlot(), e.crashPlot(),
	)
}

func (e *evaluation) intervalPlot(section string, value func(result) float64, title, y, name string) error {
	all, xs := e.armsOf(section)
	if len(xs) == 0 {
		return nil
	}
	p := newPlot(title, "snapshot interval, ms (logarithmic)", y)
	for _, arm := range all {
		if arm == none {
			continue
		}
		var ys []spread
		for _, x := range xs {
			ys = append(ys, e.ratio(section, arm, x, none, 0, value))
		}
		if err := curve(p, arm, xs, ys); err != nil {
			return err
		}
	}
	one, err := plotter.NewLine(plotter.XYs{{X: xs[0], Y: 1}, {X: xs[len(xs)-1], Y: 1}})
	if err != nil {
		return err
	}
	one.Color, one.Dashes = colours[none], []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(one)
	p.Legend.Add(labels[none], one)
	places(p, xs)
	p.Y.Min = min(p.Y.Min, 0.9)
	headroom(p)
	return e.save(p, name)
}

func (e *evaluation) xPlot(section string, value func(result) float64, title, x, y, name string) error {
	all, xs := e.armsOf(section)
	if len(xs) == 0 {
		return nil
	}
	p := newPlot(title, x+" (logarithmic)", y)
	for _, arm := range all {
		var ys []spread
		for _, x := range xs {
			ys = append(ys, e.of(section, arm, x, value))
		}
		if slices.ContainsFunc(ys, func(s spread) bool { return math.IsNaN(s.mid) || section == "state" && s.mid <= 0 }) {
			continue // no such value of this arm
		}
		if err := curve(p, arm, xs, ys); err != nil {
			return err
		}
	}
	places(p, xs)
	if section == "state" {
		logarithmic(&p.Y)
		p.Y.Label.Text += " (logarithmic)"
	} else {
		p.Y.Min = 0
		headroom(p)
	}
	return e.save(p, name)
}

// latencyPlot shows the latency that a share of the records does not exceed.
func (e *evaluation) latencyPlot() error {
	kinds := e.kinds("latency")
	if len(kinds) == 0 {
		return nil
	}
	shortest := math.Inf(1)
	for _, k := range kinds {
		if k.x > 0 {
			shortest = min(shortest, k.x)
		}
	}
	p := newPlot(fmt.Sprintf("Record latency at %d records a second, snapshots every %g ms", e.rate, shortest), "share of records that come no later", "latency, ms (logarithmic)")
	shares := []float64{0.5, 0.9, 0.99, 0.999, 0.9999}
	var marks plot.ConstantTicks
	for i, q := range shares {
		marks = append(marks, plot.Tick{Value: float64(i), Label: "p" + strconv.FormatFloat(100*q, 'g', -1, 64)})
	}
	for _, k := range kinds {
		if k.x > 0 && k.x != shortest {
			continue
		}
		var xs []float64
		var ys []spread
		for i, q := range shares {
			xs, ys = append(xs, float64(i)), append(ys, e.of("latency", k.arm, k.x, late(q)))
		}
		if err := curve(p, k.arm, xs, ys); err != nil {
			return err
		}
	}
	p.X.Tick.Marker = marks
	p.X.Min, p.X.Max = -0.3, float64(len(shares))-0.7
	logarithmic(&p.Y)
	p.Legend.Left = true
	return e.save(p, "latency")
}

func (e *evaluation) crashPlot() error {
	kinds := e.kinds("crash")
	if len(kinds) == 0 {
		return nil
	}
	p := newPlot("An agent of two is killed and started a second later", "seconds after the kill", "records a second, by tenths")
	for _, k := range kinds {
		i := slices.IndexFunc(e.results, func(r result) bool { return r.section == "crash" && r.arm == k.arm })
		r := e.results[i]
		times, rates := r.bins()
		killed := float64(r.killed-r.arrivals[0].at) / 1e6
		points := make(plotter.XYs, len(times))
		for i := range times {
			points[i] = plotter.XY{X: times[i] - killed, Y: rates[i]}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = colours[k.arm], vg.Points(1.5)
		p.Add(line)
		name := labels[k.arm]
		if k.arm == exactlyOnce {
			name += ", every second"
		}
		p.Legend.Add(name, line)
	}
	p.Y.Min = 0
	headroom(p)
	return e.save(p, "crash")
}
