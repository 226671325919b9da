package wasmops

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-stream/weir/dataflow"
)

// newLinear makes a memory as an instance of so many bytes has it, zero.
func newLinear(t testing.TB, size, limit uint64, compare bool) *linear {
	l := &linear{limit: limit, compare: compare}
	t.Cleanup(l.Free)
	if l.Reallocate(size) == nil {
		t.Fatalf("no memory of %d bytes", size)
	}
	l.extend()
	return l
}

// canTrack says whether this machine is to track memories; then a test that does not is a failure.
func canTrack() bool {
	l := &linear{limit: trackFrom}
	defer l.Free()
	l.Reallocate(trackFrom)
	return l.tracked != nil
}

func sameChanges(a, b []dataflow.Change) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d pages and %d", len(a), len(b))
	}
	for i := range a {
		if !bytes.Equal(a[i].Key, b[i].Key) || !bytes.Equal(a[i].Value, b[i].Value) || (a[i].Value == nil) != (b[i].Value == nil) {
			return fmt.Errorf("page %x and page %x differ", a[i].Key, b[i].Key)
		}
	}
	return nil
}

// What a tracked memory says that changed is what a compared one says, whatever is written, also what was
// there before; over growth that makes it a tracked one, over restores, and when the kernel stops answering.
func TestTrackedSaysWhatComparedSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const from, limit = 4 * wasmPage, 8 * wasmPage
		fail := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		var pair [2]*linear
		begin := func(size uint64) {
			for i := range pair {
				if pair[i] != nil {
					pair[i].Free()
				}
				pair[i] = &linear{limit: max(limit, size), compare: i == 1, from: from}
				pair[i].Reallocate(size)
				pair[i].extend()
			}
		}
		begin(rapid.SampledFrom([]uint64{wasmPage, from - wasmPage, from}).Draw(t, "size"))
		defer func() {
			for _, l := range pair {
				l.Free()
			}
		}()
		saved := map[int][]byte{}
		freeze := func(full bool) {
			a, b := pair[0].freeze(full), pair[1].freeze(full)
			fail(sameChanges(a, b))
			if full {
				clear(saved)
			}
			for _, c := range a {
				n := int(binary.BigEndian.Uint32(c.Key))
				if saved[n] = c.Value; c.Value == nil {
					delete(saved, n)
				}
			}
			for n := range len(pair[0].buffer) / pageSize {
				want := saved[n]
				if want == nil {
					want = zeroPage
				}
				if !bytes.Equal(pair[0].buffer[n*pageSize:(n+1)*pageSize], want) {
					t.Fatalf("page %d is not what was saved", n)
				}
			}
		}
		page := func() int {
			pages := len(pair[0].buffer) / pageSize
			if rapid.Bool().Draw(t, "near") { // the same ones again and again
				return rapid.IntRange(0, min(pages, 6)-1).Draw(t, "page")
			}
			return rapid.IntRange(0, pages-1).Draw(t, "page")
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				at, v := page()*pageSize+rapid.IntRange(0, pageSize-1).Draw(t, "offset"), rapid.Byte().Draw(t, "value")
				for _, l := range pair {
					l.buffer[at] = v
				}
			},
			"write as it was": func(*rapid.T) {
				at := page() * pageSize
				for _, l := range pair {
					l.buffer[at]++
					l.buffer[at]--
				}
			},
			"clear": func(*rapid.T) {
				at := page() * pageSize
				for _, l := range pair {
					clear(l.buffer[at : at+pageSize])
				}
			},
			"read": func(*rapid.T) {
				at := page() * pageSize
				if pair[0].buffer[at] != pair[1].buffer[at] {
					t.Fatalf("byte %d differs", at)
				}
			},
			"grow": func(t *rapid.T) {
				size := uint64(len(pair[0].buffer)) + uint64(rapid.IntRange(1, 4).Draw(t, "by"))*wasmPage
				if a, b := pair[0].Reallocate(size), pair[1].Reallocate(size); (a == nil) != (b == nil) || !bytes.Equal(a, b) {
					t.Fatal("memories differ after they were grown")
				}
			},
			"grow beyond the limit": func(t *rapid.T) {
				if pair[0].Reallocate(pair[0].limit+wasmPage) != nil {
					t.Fatal("it has grown")
				}
			},
			"raise the limit": func(*rapid.T) {
				for _, l := range pair {
					l.limit += wasmPage
				}
			},
			"freeze":     func(*rapid.T) { freeze(false) },
			"freeze all": func(*rapid.T) { freeze(true) },
			"restore": func(*rapid.T) {
				size := uint64(len(pair[0].buffer))
				freeze(false)
				begin(size)
				for _, l := range pair {
					clear(l.buffer)
					for n, value := range saved {
						copy(l.buffer[n*pageSize:], value)
					}
					l.adopt()
				}
			},
			"the kernel does not answer": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "whether") == 0 {
					breakTracking(pair[0])
				}
			},
		})
	})
}

// Memory is given back: an agent that restarts tasks does not grow.
func TestLinearIsFreed(t *testing.T) {
	for range 2000 { // of 64 MiB each
		l := &linear{limit: DefaultMemoryLimit}
		if l.Reallocate(trackFrom) == nil {
			t.Fatal("no memory")
		}
		l.buffer[0] = 1
		l.Free()
		l.Free()
	}
}

// BenchmarkFreezeSize is the pause of a snapshot by the size of the memory and by what part of its pages
// changes between two, scattered, half of them the same ones each time. saved-MB is what is then persisted.
func BenchmarkFreezeSize(b *testing.B) {
	for _, mib := range []int{1, 16, 64, 256} {
		for _, permille := range []int{1, 10, 100} {
			for _, way := range []string{"tracked", "compared"} {
				b.Run(fmt.Sprintf("memory=%dMiB/changed=%g%%/%s", mib, float64(permille)/10, way), func(b *testing.B) {
					size := uint64(mib) << 20
					l := newLinear(b, size, size, way == "compared")
					for i := 0; i < len(l.buffer); i += 512 {
						l.buffer[i] = byte(i>>9) | 1
					}
					l.freeze(true)
					random := rand.New(rand.NewPCG(1, 2))
					pages := int(size) / pageSize
					some := random.Perm(pages)[:max(1, pages*permille/1000)]
					var took []float64
					saved := 0
					for b.Loop() {
						b.StopTimer()
						for i, n := range some {
							if i%2 == 0 {
								n = random.IntN(pages)
							}
							l.buffer[n*pageSize+random.IntN(pageSize)]++
						}
						b.StartTimer()
						began := time.Now()
						changes := l.freeze(false)
						took = append(took, float64(time.Since(began).Nanoseconds())/1e6)
						saved = len(changes) * pageSize
					}
					slices.Sort(took)
					b.ReportMetric(took[len(took)/2], "p50-ms")
					b.ReportMetric(took[len(took)*99/100], "p99-ms")
					b.ReportMetric(float64(saved)/1e6, "saved-MB")
				})
			}
		}
	}
}
