package wasmops

import (
	"encoding/binary"
	"math"
)

// WASI preview 1 without a world: no arguments, environment, files or sockets; a clock and random
// numbers that a snapshot can hold. It is written anew, since the usual implementations keep a table
// of descriptors, which is state outside of the guest's memory. Nothing here has state of its own.

// Error numbers of WASI preview 1.
const (
	errnoSuccess = 0
	errnoBadf    = 8
	errnoFault   = 21
	errnoInval   = 28
	errnoNotsup  = 58
	errnoSpipe   = 70
)

// fileTypeCharacter is the type of the three standard descriptors.
const fileTypeCharacter = 2

func wasiFunctions() []hostFunction {
	f := func(name string, call func(*Instance, memory, []uint64) uint64, params ...byte) hostFunction {
		return hostFunction{WASIModule, name, sig(params, i32), func(in *Instance, mem memory, s []uint64) {
			s[0] = call(in, mem, s)
		}}
	}
	return []hostFunction{
		f("args_get", wasiNothing, i32, i32),
		f("args_sizes_get", wasiNoStrings, i32, i32),
		f("environ_get", wasiNothing, i32, i32),
		f("environ_sizes_get", wasiNoStrings, i32, i32),
		f("clock_res_get", wasiClockRes, i32, i32),
		f("clock_time_get", wasiClockTime, i32, i64, i32),
		f("fd_advise", wasiNoFile, i32, i64, i64, i32),
		f("fd_allocate", wasiNoFile, i32, i64, i64),
		f("fd_close", wasiStandard, i32),
		f("fd_datasync", wasiNoFile, i32),
		f("fd_fdstat_get", wasiFdstat, i32, i32),
		f("fd_fdstat_set_flags", wasiStandard, i32, i32),
		f("fd_fdstat_set_rights", wasiStandard, i32, i64, i64),
		f("fd_filestat_get", wasiFilestat, i32, i32),
		f("fd_filestat_set_size", wasiNoFile, i32, i64),
		f("fd_filestat_set_times", wasiNoFile, i32, i64, i64, i32),
		f("fd_pread", wasiNoFile, i32, i32, i32, i64, i32),
		f("fd_prestat_get", wasiNoFile, i32, i32),
		f("fd_prestat_dir_name", wasiNoFile, i32, i32, i32),
		f("fd_pwrite", wasiNoFile, i32, i32, i32, i64, i32),
		f("fd_read", wasiRead, i32, i32, i32, i32),
		f("fd_readdir", wasiNoFile, i32, i32, i32, i64, i32),
		f("fd_renumber", wasiNoFile, i32, i32),
		f("fd_seek", wasiNoSeek, i32, i64, i32, i32),
		f("fd_sync", wasiNoFile, i32),
		f("fd_tell", wasiNoSeek, i32, i32),
		f("fd_write", wasiWrite, i32, i32, i32, i32),
		f("path_create_directory", wasiNoFile, i32, i32, i32),
		f("path_filestat_get", wasiNoFile, i32, i32, i32, i32, i32),
		f("path_filestat_set_times", wasiNoFile, i32, i32, i32, i32, i64, i64, i32),
		f("path_link", wasiNoFile, i32, i32, i32, i32, i32, i32, i32),
		f("path_open", wasiNoFile, i32, i32, i32, i32, i32, i64, i64, i32, i32),
		f("path_readlink", wasiNoFile, i32, i32, i32, i32, i32, i32),
		f("path_remove_directory", wasiNoFile, i32, i32, i32),
		f("path_rename", wasiNoFile, i32, i32, i32, i32, i32, i32),
		f("path_symlink", wasiNoFile, i32, i32, i32, i32, i32),
		f("path_unlink_file", wasiNoFile, i32, i32, i32),
		f("poll_oneoff", wasiPoll, i32, i32, i32, i32),
		f("proc_raise", wasiNotSupported, i32),
		f("random_get", wasiRandom, i32, i32),
		f("sched_yield", wasiNothing),
		f("sock_accept", wasiNoFile, i32, i32, i32),
		f("sock_recv", wasiNoFile, i32, i32, i32, i32, i32, i32),
		f("sock_send", wasiNoFile, i32, i32, i32, i32, i32),
		f("sock_shutdown", wasiNoFile, i32, i32),
		{WASIModule, "proc_exit", sig(args(i32)), wasiExit},
	}
}

func wasiNothing(*Instance, memory, []uint64) uint64      { return errnoSuccess }
func wasiNotSupported(*Instance, memory, []uint64) uint64 { return errnoNotsup }

// wasiNoFile serves everything that takes an open file or directory: there is none.
func wasiNoFile(*Instance, memory, []uint64) uint64 { return errnoBadf }

func standard(fd uint64) bool { return uint32(fd) <= 2 }

// wasiStandard accepts what changes nothing on a standard descriptor.
func wasiStandard(_ *Instance, _ memory, s []uint64) uint64 {
	if !standard(s[0]) {
		return errnoBadf
	}
	return errnoSuccess
}

func wasiNoSeek(_ *Instance, _ memory, s []uint64) uint64 {
	if !standard(s[0]) {
		return errnoBadf
	}
	return errnoSpipe
}

func wasiNoStrings(_ *Instance, mem memory, s []uint64) uint64 {
	if !mem.WriteUint32Le(uint32(s[0]), 0) || !mem.WriteUint32Le(uint32(s[1]), 0) {
		return errnoFault
	}
	return errnoSuccess
}

func wasiClockRes(_ *Instance, mem memory, s []uint64) uint64 {
	if uint32(s[0]) > 3 {
		return errnoInval
	}
	return written(mem.WriteUint64Le(uint32(s[1]), tick))
}

func wasiClockTime(in *Instance, mem memory, s []uint64) uint64 {
	if uint32(s[0]) > 3 {
		return errnoInval
	}
	return written(mem.WriteUint64Le(uint32(s[2]), uint64(in.clock.read())))
}

func written(ok bool) uint64 {
	if !ok {
		return errnoFault
	}
	return errnoSuccess
}

func wasiRandom(in *Instance, mem memory, s []uint64) uint64 {
	b, ok := mem.Read(uint32(s[0]), uint32(s[1]))
	if ok {
		in.charge(len(b) * fuelRandom)
		in.random.fill(b)
	}
	return written(ok)
}

// wasiFdstat writes: file type (1), flags (2 at 2), rights (8 at 8), inheriting rights (8 at 16).
func wasiFdstat(_ *Instance, mem memory, s []uint64) uint64 {
	if !standard(s[0]) {
		return errnoBadf
	}
	var stat [24]byte
	stat[0] = fileTypeCharacter
	binary.LittleEndian.PutUint64(stat[8:], math.MaxUint64>>35) // all 29 rights
	return written(mem.Write(uint32(s[1]), stat[:]))
}

func wasiFilestat(_ *Instance, mem memory, s []uint64) uint64 {
	if !standard(s[0]) {
		return errnoBadf
	}
	var stat [64]byte
	stat[16] = fileTypeCharacter
	return written(mem.Write(uint32(s[1]), stat[:]))
}

// wasiRead finds descriptor 0 at its end.
func wasiRead(_ *Instance, mem memory, s []uint64) uint64 {
	if uint32(s[0]) != 0 {
		return errnoBadf
	}
	return written(mem.WriteUint32Le(uint32(s[3]), 0))
}

// wasiWrite logs what is written to descriptors 1 and 2.
func wasiWrite(in *Instance, mem memory, s []uint64) uint64 {
	fd, n := uint32(s[0]), uint32(s[2])
	if fd != 1 && fd != 2 {
		return errnoBadf
	}
	if n > maxVectors {
		return errnoInval
	}
	vectors, ok := mem.Read(uint32(s[1]), n*8)
	if !ok {
		return errnoFault
	}
	total := uint32(0)
	for ; len(vectors) > 0; vectors = vectors[8:] {
		b, ok := mem.Read(binary.LittleEndian.Uint32(vectors), binary.LittleEndian.Uint32(vectors[4:]))
		if !ok {
			return errnoFault
		}
		in.text.write(in, fd, b)
		total += uint32(len(b))
	}
	return written(mem.WriteUint32Le(uint32(s[3]), total))
}

func wasiExit(in *Instance, _ memory, s []uint64) {
	panic(guestFault(in.text.exitReason(uint32(s[0]))))
}

// subscription of poll_oneoff; its layout is in wasiPoll.
type subscription struct {
	user  []byte
	kind  byte
	errno byte
	wait  int64 // of a clock: nanoseconds from now
	ready bool
}

// Kinds of subscriptions.
const (
	pollClock = iota
	pollRead
	pollWrite
)

// wasiPoll never waits. If no descriptor is ready, the clock moves on to the earliest time asked for.
//
// A subscription has 48 bytes: user data (8), kind (1 at 8), then for a clock: timeout (8 at 24),
// flags (2 at 40, 1: absolute); for a descriptor: its number (4 at 16). An event has 32 bytes: user
// data (8), error (2 at 8), kind (1 at 10), bytes (8 at 16), flags (2 at 24, 1: hangup).
func wasiPoll(in *Instance, mem memory, s []uint64) uint64 {
	n := uint32(s[2])
	if n == 0 || n > maxSubscriptions {
		return errnoInval
	}
	in.charge(int(n) * fuelSubscription)
	raw, ok := mem.Read(uint32(s[0]), n*48)
	if !ok {
		return errnoFault
	}
	subs, ok := readSubscriptions(in, append([]byte{}, raw...))
	if !ok {
		return errnoInval
	}
	settle(in, subs)
	out, ok := mem.Read(uint32(s[1]), n*32)
	if !ok {
		return errnoFault
	}
	events := uint32(0)
	for _, sub := range subs {
		if !sub.ready {
			continue
		}
		e := out[events*32 : events*32+32]
		clear(e)
		copy(e, sub.user)
		e[8], e[10] = sub.errno, sub.kind
		if sub.kind == pollRead {
			e[24] = 1
		}
		events++
	}
	return written(mem.WriteUint32Le(uint32(s[3]), events))
}

func readSubscriptions(in *Instance, raw []byte) ([]subscription, bool) {
	le := binary.LittleEndian
	var subs []subscription
	for ; len(raw) > 0; raw = raw[48:] {
		sub := subscription{user: raw[:8], kind: raw[8]}
		switch sub.kind {
		case pollClock:
			wait := le.Uint64(raw[24:])
			if le.Uint16(raw[40:])&1 != 0 {
				wait -= min(wait, uint64(in.clock.now))
			}
			sub.wait = int64(min(wait, math.MaxInt64))
		case pollRead, pollWrite:
			sub.ready = true
			if !standard(uint64(le.Uint32(raw[16:]))) {
				sub.errno = errnoBadf
			}
		default:
			return nil, false
		}
		subs = append(subs, sub)
	}
	return subs, true
}

// settle makes ready the clocks that are due, if need be by moving the instance's clock on.
func settle(in *Instance, subs []subscription) {
	wait := int64(math.MaxInt64)
	for _, sub := range subs {
		if sub.ready {
			wait = 0
		} else {
			wait = min(wait, sub.wait)
		}
	}
	if !in.clock.sleep(wait) {
		faultf("sleeps for %d s, which would put its clock more than 100 years ahead", wait/1e9)
	}
	for i := range subs {
		if subs[i].kind == pollClock {
			subs[i].ready = subs[i].wait <= wait
		}
	}
}
