//go:build !linux

package project

import "time"

var began = time.Now()

func cpuTime() time.Duration { return time.Since(began) }
