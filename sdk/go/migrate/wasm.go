//go:build wasip1

package migrate

import "unsafe"

//go:wasmimport weir fail
func importFail(ptr, length uint32)

// kept is what the host reads after the call.
var kept []byte

//go:wasmexport weir_migrate_out
func exportOut() int64 {
	var err error
	if kept, err = Out(); err != nil {
		fail(err)
		return -1
	}
	return int64(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(kept))))<<32 | uint64(len(kept)))
}

//go:wasmexport weir_migrate_in
func exportIn(ptr, length uint32) int32 {
	at := uintptr(ptr) // within the buffer that weir_alloc gave, which package weir keeps
	if err := In(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), length)); err != nil {
		fail(err)
		return 1
	}
	return 0
}

func fail(err error) {
	text := err.Error()
	importFail(uint32(uintptr(unsafe.Pointer(unsafe.StringData(text)))), uint32(len(text)))
}
