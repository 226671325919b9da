// Torture is an operator for tests: its configuration says in which way it is hard to capture, or
// misbehaves.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(weir.Operator{Outputs: []string{"side"}, Init: start, Process: process}) }

func main() {}

type mode = func(r weir.Record, out *weir.Out) error

var modes = map[string]mode{
	"echo": echo, "count": count, "grow": grow, "churn": churn, "goroutines": goroutines, "timer": timer, "clock": clock,
	"spin": spin, "random": random, "keyed": keyed, "side": side, "words": words,
	"panic": panics, "nil": nilMap, "error": fails, "exit": exits, "memory": memory, "recursion": recursion,
	"flood": flood, "large": large, "fill": fill, "log": logs, "counters": counters, "deadlock": deadlock,
	"doze": doze, "batches": batches, "world": world, "dirty": dirty,
}

var run mode

func start(c weir.Config) error {
	name := c.String("mode", "")
	if name == "refuse" {
		return errors.New("config limit: must be set")
	}
	if name == "initpanic" {
		panic("cannot start")
	}
	if name == "goroutines" {
		go worker()
	}
	if name == "words" {
		lookup = strings.Fields(c.String("words", ""))
	}
	if name == "dirty" {
		n, err := c.Int("bytes", 0)
		if err != nil {
			return err
		}
		field = make([]byte, n)
	}
	run = modes[name]
	if run == nil {
		return errors.New("config mode: unknown " + strconv.Quote(name))
	}
	return nil
}

func process(r weir.Record, out *weir.Out) error { return run(r, out) }

func emit(out *weir.Out, r weir.Record, format string, args ...any) error {
	out.Emit(r.Key, r.Time, fmt.Appendf(nil, format, args...))
	return nil
}

func echo(r weir.Record, out *weir.Out) error {
	out.EmitRecord(weir.MainOutput, r)
	return nil
}

var total int

func count(r weir.Record, out *weir.Out) error {
	total++
	return emit(out, r, "%d", total)
}

// grow keeps more and more memory, in pieces that the collector must look through.
var kept [][]*[1024]byte

func grow(r weir.Record, out *weir.Out) error {
	piece := make([]*[1024]byte, 100)
	for i := range piece {
		piece[i] = new([1024]byte)
		piece[i][i] = byte(len(kept))
	}
	kept = append(kept, piece)
	sum := 0
	for _, p := range kept {
		for i, b := range p {
			sum += int(b[i])
		}
	}
	return emit(out, r, "%d %d", len(kept), sum)
}

// churn makes garbage, so that collections begin in one call and end in another, and shows by
// finalizers and map order where the collector and its random numbers are.
var (
	live      = map[string][]byte{}
	finalized int
)

func churn(r weir.Record, out *weir.Out) error {
	total++
	for i := range 40 {
		b := make([]byte, 4096)
		b[0] = byte(i)
		runtime.SetFinalizer(&b[0], func(*byte) { finalized++ })
		live[strconv.Itoa((total*7+i)%97)] = b
	}
	first := ""
	for k := range live { // in random order
		first = k
		break
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return emit(out, r, "%d first %s collections %d finalized %d heap %d", total, first, stats.NumGC, finalized, stats.HeapAlloc)
}

// goroutines answers through a goroutine that lives across calls.
var (
	asked    = make(chan int)
	answered = make(chan int)
)

func worker() {
	sum := 0
	for n := range asked {
		sum += n
		answered <- sum
	}
}

func goroutines(r weir.Record, out *weir.Out) error {
	asked <- len(r.Value)
	return emit(out, r, "%d", <-answered)
}

// timer has a goroutine that wakes up by itself between records.
var ticks int

func timer(r weir.Record, out *weir.Out) error {
	if total == 0 {
		go func() {
			for range time.Tick(10 * time.Millisecond) {
				ticks++
			}
		}()
	}
	total++
	time.Sleep(25 * time.Millisecond)
	return emit(out, r, "%d ticks %d", total, ticks)
}

var began time.Time

func clock(r weir.Record, out *weir.Out) error {
	if began.IsZero() {
		began = time.Now()
	}
	return emit(out, r, "%d %d %v", weir.Now(), time.Now().UnixNano(), time.Since(began))
}

// spin waits for time to pass, asleep and awake.
func spin(r weir.Record, out *weir.Out) error {
	from := time.Now()
	time.Sleep(time.Hour)
	for time.Since(from) < time.Hour+time.Millisecond {
	}
	return emit(out, r, "%v", time.Since(from) < time.Hour+time.Second)
}

func random(r weir.Record, out *weir.Out) error {
	b := make([]byte, 13)
	if _, err := rand.Read(b); err != nil {
		return err
	}
	order := ""
	for k := range map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 9: true} {
		order += strconv.Itoa(k)
	}
	return emit(out, r, "%s %s", hex.EncodeToString(b), order)
}

// keyed runs the commands of a record's value against the keyed state.
func keyed(r weir.Record, out *weir.Out) error {
	for _, command := range strings.Fields(string(r.Value)) {
		op, rest := command[:1], command[1:]
		switch op {
		case "+":
			k, v, _ := strings.Cut(rest, "=")
			weir.State.Put([]byte(k), []byte(v))
		case "-":
			emit(out, r, "delete %s: %v", rest, weir.State.Delete([]byte(rest)))
		case "?":
			v, ok := weir.State.Get([]byte(rest), nil)
			emit(out, r, "get %s: %q %v", rest, v, ok)
		case "*":
			text := "scan " + rest + ":"
			weir.State.Scan([]byte(rest), func(k, v []byte) bool {
				text += fmt.Sprintf(" %s=%d", k, len(v))
				return true
			})
			emit(out, r, "%s", text)
		}
	}
	return nil
}

func side(r weir.Record, out *weir.Out) error {
	total++
	if total%3 == 0 {
		out.EmitTo("side", r.Key, r.Time, r.Value)
	}
	return emit(out, r, "%d", total)
}

var lookup []string

func words(r weir.Record, out *weir.Out) error { return emit(out, r, "%d", len(lookup)) }

func panics(r weir.Record, out *weir.Out) error {
	emit(out, r, "never seen")
	panic("reading " + string(r.Value) + " is impossible")
}

func nilMap(weir.Record, *weir.Out) error {
	var m map[string]int
	m["x"] = 1
	return nil
}

func fails(r weir.Record, _ *weir.Out) error { return errors.New("cannot use " + string(r.Value)) }

func exits(weir.Record, *weir.Out) error {
	os.Exit(3)
	return nil
}

var hoard [][]byte

func memory(weir.Record, *weir.Out) error {
	for {
		hoard = append(hoard, make([]byte, 1<<20))
	}
}

func recursion(r weir.Record, out *weir.Out) error { return emit(out, r, "%d", depth(1)) }

func depth(n int) int {
	var pad [64]int
	pad[n%64] = depth(n + 1)
	return pad[n%64] + pad[(n+1)%64]
}

func flood(r weir.Record, out *weir.Out) error {
	value := make([]byte, 200<<10)
	for range 42 {
		out.Emit(r.Key, r.Time, value)
	}
	return nil
}

func large(r weir.Record, out *weir.Out) error {
	out.Emit(r.Key, r.Time, make([]byte, weir.MaxRecord))
	return nil
}

// fill puts more into the keyed state than the host allows.
func fill(weir.Record, *weir.Out) error {
	value := make([]byte, 1<<20)
	for i := 0; ; i++ {
		weir.State.Put([]byte(strconv.Itoa(i)), value)
	}
}

func logs(r weir.Record, out *weir.Out) error {
	weir.Log(weir.Warn, "reading "+string(r.Value))
	fmt.Println("printed", string(r.Value))
	for range 200 {
		weir.Log(weir.Debug, "again")
	}
	weir.Count("readings", 2)
	return nil
}

func counters(weir.Record, *weir.Out) error {
	for i := range 100 {
		weir.Count("counter"+strconv.Itoa(i), 1)
	}
	return nil
}

func deadlock(weir.Record, *weir.Out) error { select {} }

// doze sleeps longer than a clock may lead.
func doze(weir.Record, *weir.Out) error {
	time.Sleep(250 * 365 * 24 * time.Hour)
	return nil
}

// world looks for anything outside of the module.
func world(r weir.Record, out *weir.Out) error {
	_, open := os.Open("/etc/passwd")
	_, list := os.ReadDir(".")
	n, read := os.Stdin.Read(make([]byte, 10))
	os.Stdout.Close()
	_, write := os.Stdout.WriteString("x")
	return emit(out, r, "args %d env %d open %v list %v read %d %v write %v", len(os.Args), len(os.Environ()), open != nil, list != nil, n, read, write != nil)
}

// dirty touches every page of a field.
var field []byte

func dirty(r weir.Record, out *weir.Out) error {
	total++
	for i := 0; i < len(field); i += 4096 {
		field[i] = byte(total)
	}
	return nil
}

// batches counts batches, which it tells by the addresses of records: it depends on where batches are
// cut, as no operator should.
var lastAddress uintptr

func batches(r weir.Record, out *weir.Out) error {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(r.Key)))
	if address <= lastAddress {
		total++
	}
	if lastAddress == 0 {
		total = 1
	}
	lastAddress = address
	return emit(out, r, "%d", total)
}
