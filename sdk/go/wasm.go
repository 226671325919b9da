//go:build wasip1

package weir

import "unsafe"

// The host's functions; wasmops/abi.go in Weir's sources describes them. Addresses are passed as
// numbers: the collector does not run while the host does, and does not move what is in use.

//go:wasmimport weir emit
func importEmit(output int32, ptr, length, count uint32)

//go:wasmimport weir output_open
func importOutputOpen(ptr, length uint32) int32

//go:wasmimport weir config_get
func importConfigGet(ptr, length, out, capacity uint32) int32

//go:wasmimport weir state_get
func importStateGet(ptr, length, out, capacity uint32) int32

//go:wasmimport weir state_put
func importStatePut(ptr, length, value, valueLength uint32)

//go:wasmimport weir state_delete
func importStateDelete(ptr, length uint32) int32

//go:wasmimport weir state_scan
func importStateScan(prefix, prefixLength, after, afterLength, out, capacity uint32) int32

//go:wasmimport weir log
func importLog(level, ptr, length uint32)

//go:wasmimport weir counter_add
func importCounterAdd(ptr, length uint32, delta int64)

//go:wasmimport weir gauge_set
func importGaugeSet(ptr, length uint32, value float64)

//go:wasmimport weir clock_ms
func importClockMs() int64

//go:wasmimport weir state_put_until
func importStatePutUntil(ptr, length, value, valueLength uint32, until int64)

//go:wasmimport weir timer_set
func importTimerSet(kind uint32, at int64, key, keyLength uint32)

//go:wasmimport weir timer_clear
func importTimerClear(kind uint32, at int64, key, keyLength uint32) int32

//go:wasmimport weir watermark
func importWatermark() int64

//go:wasmimport weir fail
func importFail(ptr, length uint32)

func at(b []byte) uint32 { return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func atString(s string) uint32 { return uint32(uintptr(unsafe.Pointer(unsafe.StringData(s)))) }

func size(b []byte) uint32 { return uint32(len(b)) }

func hostEmit(output int32, b []byte, count uint32) { importEmit(output, at(b), size(b), count) }

func hostOutputOpen(name string) int32 { return importOutputOpen(atString(name), uint32(len(name))) }

func hostConfigGet(key string, out []byte) int32 {
	return importConfigGet(atString(key), uint32(len(key)), at(out), size(out))
}

func hostStateGet(key, out []byte) int32 {
	return importStateGet(at(key), size(key), at(out), size(out))
}

func hostStatePut(key, value []byte) { importStatePut(at(key), size(key), at(value), size(value)) }

func hostStateDelete(key []byte) bool { return importStateDelete(at(key), size(key)) != 0 }

func hostStateScan(prefix, after, out []byte) int32 {
	return importStateScan(at(prefix), size(prefix), at(after), size(after), at(out), size(out))
}

func hostLog(level uint32, text string) { importLog(level, atString(text), uint32(len(text))) }

func hostCounterAdd(name string, delta int64) {
	importCounterAdd(atString(name), uint32(len(name)), delta)
}

func hostGaugeSet(name string, value float64) {
	importGaugeSet(atString(name), uint32(len(name)), value)
}

func hostClockMs() int64 { return importClockMs() }

func hostStatePutUntil(key, value []byte, until int64) {
	importStatePutUntil(at(key), size(key), at(value), size(value), until)
}

func hostTimerSet(kind uint32, time int64, key []byte) {
	importTimerSet(kind, time, at(key), size(key))
}

func hostTimerClear(kind uint32, time int64, key []byte) bool {
	return importTimerClear(kind, time, at(key), size(key)) != 0
}

func hostWatermark() int64 { return importWatermark() }

// input is the buffer into which the host writes batches.
var input []byte

//go:wasmexport weir_abi_v1
func exportABI() {}

//go:wasmexport weir_alloc
func exportAlloc(size uint32) uint32 {
	input = make([]byte, size)
	return at(input)
}

//go:wasmexport weir_init
func exportInit() int32 { return status(registered.init()) }

//go:wasmexport weir_process
func exportProcess(index, ptr, length, count uint32) int32 {
	if ptr != at(input) || length > size(input) {
		return status(errBatch)
	}
	return status(registered.process(int(index), input[:length], int(count)))
}

//go:wasmexport weir_timer
func exportTimer(kind uint32, time int64, ptr, length uint32) int32 {
	if ptr != at(input) || length > size(input) {
		return status(errBatch)
	}
	return status(registered.timer(Timer{Kind: TimerKind(kind), At: time, Key: input[:length:length]}))
}

//go:wasmexport weir_watermark
func exportWatermark(time int64) int32 { return status(registered.watermark(time)) }

//go:wasmexport weir_end
func exportEnd() int32 { return status(registered.end()) }

func status(err error) int32 {
	if err == nil {
		return 0
	}
	text := err.Error()
	importFail(atString(text), uint32(len(text)))
	return 1
}
