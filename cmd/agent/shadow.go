package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// shadowText is what runs in the shadow of a job, in a line.
func shadowText(s api.Shadow) string {
	where := ""
	if len(s.Agents) > 0 {
		where = " on " + strings.Join(s.Agents, ", ")
	}
	return plain(fmt.Sprintf("shadow: a new version of %s%s since %s; agent job promote applies it, agent job rollback drops it",
		strings.Join(s.Operators, ", "), where, timeText(s.Started)))
}

// printShadows writes what came of the versions in the shadow of tasks: a table, and what does not fit into it.
func printShadows(w io.Writer, tasks []api.Task) error {
	t := newTable("SHADOW", "AGENT", "OPERATOR", "VERSION", "STATE", "RECORDS", "EQUAL", "DIFFERENT", "FAILED", "SKIPPED", "RUNNING", "NEW")
	var more []string
	for _, k := range tasks {
		for _, s := range k.Shadows {
			t.add(k.ID, k.Agent, s.Operator, s.Module, s.State, s.Records, s.Equal, s.Different, s.Failed, s.Skipped, usText(s.RunningUS), usText(s.ShadowUS))
			for _, line := range shadowLines(s) {
				more = append(more, fmt.Sprintf("%s, %s: %s", k.ID, s.Operator, line))
			}
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	if err := t.print(w); err != nil {
		return err
	}
	for _, line := range more {
		fmt.Fprintln(w, plain(line))
	}
	return nil
}

// shadowLines says what there is to say of a version in the shadow besides its counts.
func shadowLines(s api.TaskShadow) (out []string) {
	if s.Reason != "" {
		out = append(out, s.State+": "+s.Reason)
	}
	if s.Begins > 0 {
		line := fmt.Sprintf("compares since %s, begun with %s", timeText(s.Since), s.With)
		if s.Begins > 1 {
			line += fmt.Sprintf("; begun %d times, last %s", s.Begins, timeText(s.Begun))
		}
		if s.Behind > 0 {
			line += fmt.Sprintf("; given up %d of them since it was too far behind", s.Behind)
		}
		out = append(out, line)
	}
	if d := s.First; d != nil {
		out = append(out, "first difference: "+differenceText(*d))
	}
	if s.Failure != "" {
		out = append(out, "last failure: "+s.Failure)
	}
	if s.Mended+s.RefusedBoth > 0 {
		out = append(out, fmt.Sprintf("of %s that the running version refused, the new one takes %d", count(int(s.Mended+s.RefusedBoth), "record"), s.Mended))
	}
	return out
}

func differenceText(d api.ShadowDifference) string {
	of := fmt.Sprintf("records %d to %d", d.From, d.To)
	switch {
	case d.To == 0:
		of = fmt.Sprintf("a call of time after record %d", d.From)
	case d.From == d.To:
		of = fmt.Sprintf("record %d", d.To)
	}
	what := fmt.Sprintf("%s %s, new %s", d.Part, plain(d.Running), plain(d.Shadow))
	switch d.Part {
	case "missing":
		what = "only the running version puts out " + plain(d.Running)
	case "extra":
		what = "only the new version puts out " + plain(d.Shadow)
	}
	return fmt.Sprintf("%s (%s), output %s, place %d, key %s: %s", of, timeText(d.At), d.Output, d.Index, plain(d.Key), what)
}

// usText writes microseconds.
func usText(us float64) string {
	switch {
	case us == 0:
		return "-"
	case us < 10_000:
		return fmt.Sprintf("%.3g µs", us)
	}
	return msText(us / 1000)
}
