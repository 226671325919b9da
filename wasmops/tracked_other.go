//go:build !(linux && (amd64 || arm64 || riscv64))

package wasmops

import "errors"

// tracked is not there: memories are compared. On 32 bits there is too little room for addresses.
type tracked struct{ memory []byte }

func newTracked(uint64) (*tracked, error) { return nil, errors.ErrUnsupported }

func (*tracked) holds(uint64) bool               { return false }
func (*tracked) page(int) []byte                 { panic("no memory is tracked here") }
func (*tracked) written(int) ([]pageRange, bool) { return nil, false }
func (*tracked) drop([]pageRange)                {}
func (*tracked) close()                          {}
