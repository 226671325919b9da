package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker in a release.
var version string

// versionText is the release, or the commit that a build without a release was made of.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	var commit, dirty string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+"
			}
		}
	}
	if len(commit) < 12 {
		return "dev"
	}
	return "dev-" + commit[:12] + dirty
}

type versionCmd struct{ output }

// Run implements the command.
func (c versionCmd) Run(_ context.Context, p *program) error {
	if c.JSON {
		return p.printJSON(map[string]string{
			"version": versionText(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		})
	}
	_, err := fmt.Fprintf(p.stdout, "weir %s %s %s/%s\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
