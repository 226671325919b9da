package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/trial"
)

// moment is when a fault begins or ends.
type moment struct {
	at time.Duration
	do func() error
}

// sampleEvery is how often the agents are looked at between two faults.
const sampleEvery = time.Second

// disturb lets everything happen in its time, and ends when the last fault has ended.
func (s *theSite) disturb(events []event) error {
	var moments []moment
	for _, e := range events {
		begin, end := s.fault(e)
		moments = append(moments, moment{e.at, begin})
		if end != nil {
			moments = append(moments, moment{e.at + e.lasts, end})
		}
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	began, sampled := time.Now(), time.Time{}
	for _, m := range moments {
		for wait := time.Until(began.Add(m.at)); wait > 0; wait = time.Until(began.Add(m.at)) {
			fleet.Sleep(s.ctx, min(wait, sampleEvery-min(sampleEvery, time.Since(sampled))))
			if time.Since(sampled) >= sampleEvery {
				if err := s.sample(); err != nil {
					return err
				}
				sampled = time.Now()
			}
			if err := s.trouble(); err != nil {
				return err
			}
		}
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// fault is what an event does when it begins and when it ends.
func (s *theSite) fault(e event) (begin, end func() error) {
	r := chance(e)
	say := func(format string, args ...any) { s.say("%s: %s", e.kind, fmt.Sprintf(format, args...)) }
	switch e.kind {
	case kill, flip, lostServer:
		d := s.devices[e.who]
		return func() error { return s.strike(e, d, r) }, func() error { return s.start(d) }
	case embedded:
		return func() error { return s.strike(e, s.broker, r) }, func() error { return s.start(s.broker) }
	case site:
		return func() error { return s.blackout(e, r) }, func() error {
			for _, i := range r.Perm(len(s.devices)) {
				if err := s.start(s.devices[i]); err != nil {
					return err
				}
			}
			return nil
		}
	case freeze:
		d := s.devices[e.who]
		return func() error {
				say("%s for %d ms", d.Name, e.lasts.Milliseconds())
				d.frozen = true
				d.Signal(syscall.SIGSTOP)
				return nil
			}, func() error {
				d.frozen = false
				d.Signal(syscall.SIGCONT)
				return nil
			}
	case cutNATS:
		return s.cut(s.devices[e.who].link, e, r, s.devices[e.who].Name)
	case cutMQTT:
		return s.cut(s.proxies[e.who], e, r, fmt.Sprint("broker ", e.who))
	case slowNATS:
		return s.slow(s.devices[e.who].link, e, r, s.devices[e.who].Name)
	case slowMQTT:
		return s.slow(s.proxies[e.who], e, r, fmt.Sprint("broker ", e.who))
	case mosquitto:
		return func() error {
				say("down for %d ms", e.lasts.Milliseconds())
				s.mosq.Signal(syscall.SIGTERM)
				<-s.mosq.Gone()
				return nil
			}, func() error {
				return s.runMosquitto()
			}
	case clock:
		d := s.devices[e.who]
		return func() error { // the agent has it right again by itself
			ctx, cancel := context.WithTimeout(s.ctx, askPatience)
			defer cancel()
			if d.down || d.frozen {
				return nil
			}
			order := api.DrillOrder{Kind: api.DrillClockBack, Seconds: 1 + int(e.lasts/time.Second), Sure: true}
			_, err := d.Client().Drill(ctx, order) // it may be starting
			say("%s an hour back for %d s (%v)", d.Name, order.Seconds, err)
			return nil
		}, nil
	case fullDisk:
		d, room := s.devices[e.who], r.Int64N(256<<10)
		if r.IntN(2) == 0 {
			room = 0
		}
		return func() error {
				say("%s has room for %d bytes, for %d ms", d.Name, room, e.lasts.Milliseconds())
				d.disk.Fill(room)
				return nil
			}, func() error {
				d.disk.Free()
				return nil
			}
	case slowDisk:
		d, by := s.devices[e.who], time.Duration(5+r.IntN(100))*time.Millisecond
		return func() error {
				say("%s takes %s longer to sync, for %d ms", d.Name, by, e.lasts.Milliseconds())
				d.disk.Slow(by)
				return nil
			}, func() error {
				d.disk.Slow(0)
				return nil
			}
	}
	panic("chaos: no such fault: " + e.kind)
}

func (s *theSite) cut(p *trial.Proxy, e event, r *rand.Rand, of string) (begin, end func() error) {
	how := trial.Cut(r.IntN(trial.Cuts))
	return func() error {
			p.Refuse(true)
			s.say("%s: %s %d connections of %s, for %d ms", e.kind, how, p.CutAll(how), of, e.lasts.Milliseconds())
			return nil
		}, func() error {
			p.Refuse(false)
			return nil
		}
}

func (s *theSite) slow(p *trial.Proxy, e event, r *rand.Rand, of string) (begin, end func() error) {
	delay, rate := time.Duration(5+r.IntN(150))*time.Millisecond, (32+r.IntN(480))<<10
	return func() error {
			s.say("%s: %s and %d KiB/s for %s, for %d ms", e.kind, delay, rate>>10, of, e.lasts.Milliseconds())
			p.Slow(delay, rate)
			return nil
		}, func() error {
			p.Slow(0, 0)
			return nil
		}
}

// powerCut kills an agent's process, and what it had not fsynced is lost.
func (s *theSite) powerCut(d *device, r *rand.Rand) (string, error) {
	if !d.Running() {
		return "", s.ended(d)
	}
	return d.dark(r)
}

// dark ends an agent's process, which may have been told so.
func (d *device) dark(r *rand.Rand) (string, error) {
	d.Kill()
	d.down, d.frozen = true, false
	if d.disk == nil {
		return "", nil
	}
	lost, err := d.disk.PowerCut(r)
	return ", " + lost.String(), err
}

// ended is what an agent that was not killed has to answer for.
func (s *theSite) ended(d *device) error {
	return fmt.Errorf("%s ended by itself", d.Name)
}

// strike hits one agent.
func (s *theSite) strike(e event, d *device, r *rand.Rand) error {
	spoil, text := e.kind != kill && e.kind != embedded, ""
	switch {
	case e.kind == flip && !s.replicaIsThere():
		spoil, text = false, ", nothing else since there may be no replica yet"
	case e.kind == lostServer && !s.snapshotsAreThere():
		spoil, text = false, ", nothing else since a snapshot may be missing yet"
	}
	if e.kind == lostServer && spoil {
		s.noteLoss()
	}
	lost, err := s.powerCut(d, r)
	if err != nil {
		return err
	}
	s.say("%s: %s for %d ms%s%s", e.kind, d.Name, e.lasts.Milliseconds(), lost, text)
	// A directory is whole after every power cut. Looking at it takes a while, so that only some are looked at.
	if r.IntN(3) == 0 {
		if err := s.doctor(d); err != nil {
			return err
		}
	}
	switch {
	case e.kind == flip && spoil:
		d.damaged = true
		return flipBits(filepath.Join(d.stored(), "state.db"), r)
	case e.kind == lostServer && spoil:
		return os.RemoveAll(filepath.Join(d.stored(), "nats"))
	}
	return nil
}

// blackout takes the power from all agents at once, and the server's files.
func (s *theSite) blackout(e event, r *rand.Rand) error {
	spoil := s.snapshotsAreThere()
	if spoil {
		s.noteLoss()
	}
	for _, d := range s.devices {
		if !d.Running() {
			return s.ended(d)
		}
		d.Signal(syscall.SIGKILL)
	}
	for _, d := range s.devices {
		lost, err := d.dark(r)
		if err != nil {
			return err
		}
		s.say("%s: %s for %d ms%s", e.kind, d.Name, e.lasts.Milliseconds(), lost)
	}
	if !spoil {
		return nil
	}
	return os.RemoveAll(filepath.Join(s.devices[0].stored(), "nats"))
}

// stored is where an agent's files are for everybody else.
func (d *device) stored() string {
	if d.disk == nil {
		return d.Dir
	}
	return d.disk.Backing
}

func (s *theSite) start(d *device) error {
	if err := d.Start(); err != nil {
		return err
	}
	d.down, d.hurt = false, d.damaged
	d.starts++
	d.seen, d.back = "", map[string]int{}
	return nil
}

// flipBits changes a few bits of a file.
func flipBits(name string, r *rand.Rand) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for range 1 + r.IntN(8) {
		at, b := r.Int64N(info.Size()), make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			return err
		}
		b[0] ^= 1 << r.IntN(8)
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
	}
	return nil
}

// noteLoss remembers which checkpoints the server's files may have held.
func (s *theSite) noteLoss() {
	s.epochs()
	for _, job := range jobNames {
		s.lost[job] = s.newest[job] + lossMargin
	}
}

// lossMargin is how many checkpoints of a job may have been replicated since it was last looked at.
const lossMargin = 5

// epochs asks the hub for the newest checkpoints.
func (s *theSite) epochs() {
	ctx, cancel := context.WithTimeout(s.ctx, askPatience)
	defer cancel()
	jobs, err := s.devices[0].Client().Jobs(ctx)
	if err != nil {
		return // it is down, or not there yet: what was known stays
	}
	for _, j := range jobs {
		s.newest[j.Name] = max(s.newest[j.Name], j.LastReplicatedEpoch)
	}
}

// replicaIsThere says that for all jobs a checkpoint has been replicated since the server lost its files.
func (s *theSite) replicaIsThere() bool {
	if !s.devices[0].down && !s.devices[0].frozen {
		s.epochs()
	}
	for job, epoch := range s.lost {
		if s.newest[job] <= epoch {
			return false
		}
	}
	return true
}

// snapshotsAreThere says that no agent's snapshots are still to be fetched from the replica.
func (s *theSite) snapshotsAreThere() bool {
	for _, d := range s.devices {
		if d.damaged {
			return false
		}
	}
	return true
}

// doctor looks at the directory of an agent that does not run, in which nothing may be wrong.
func (s *theSite) doctor(d *device) error {
	ctx, cancel := context.WithTimeout(s.ctx, startPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.built.agent, "doctor", "--data", d.stored()).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && d.damaged {
		return nil // it says so
	}
	if err != nil {
		return fmt.Errorf("doctor of %s: %w\n%s", d.Name, err, out)
	}
	return nil
}
