package dataflow

import "github.com/weir-stream/weir/dataflow/frame"

// framePool recycles frame buffers: the zeroing of fresh ones dominates the cost of a hop. Frames are built in
// buffers for full ones. A frame is kept until its receiver has consumed it, and below saturation most are
// small: those are kept in buffers of their size.
type framePool struct {
	free  [frameClasses][][]byte
	bytes int // of the buffers in free
}

const (
	smallestFrame = 1 << 10
	// fullFrame is the size of the buffers that frames are built in: a target and what a record may add to it.
	fullFrame = frame.HeaderSize + frame.TargetSize + 4<<10
	// frameClasses are the sizes of buffers: powers of two from smallestFrame, below a third of a full one,
	// and full ones.
	frameClasses = 6
	// poolBytes bounds what a task keeps for frames to come: what it may have under way on a few channels.
	poolBytes = 4 << 20
)

// get returns a buffer to build a frame in, with room for the header.
func (p *framePool) get() []byte {
	return p.take(frameClasses-1, fullFrame)[:frame.HeaderSize]
}

func (p *framePool) take(class, size int) []byte {
	list := p.free[class]
	if n := len(list); n > 0 {
		b := list[n-1]
		p.free[class] = list[:n-1]
		p.bytes -= cap(b)
		return b
	}
	return make([]byte, size)
}

// fit returns the frame in a buffer that is not much larger, which may be the one that it is in.
func (p *framePool) fit(b []byte) []byte {
	class, size := 0, smallestFrame
	for size < len(b) {
		class, size = class+1, 2*size
	}
	if class >= frameClasses-1 {
		return b
	}
	small := append(p.take(class, size)[:0], b...)
	p.put(b)
	return small
}

// grow returns the frame with room for so many bytes more, in the buffer that it is in or in a full one.
func (p *framePool) grow(b []byte, more int) []byte {
	if len(b)+more <= cap(b) {
		return b
	}
	full := append(p.get()[:0], b...)
	p.put(b)
	return full
}

// put gives a buffer back. One that has grown for large records is not kept.
func (p *framePool) put(b []byte) {
	if cap(b) > 2*frame.TargetSize || p.bytes+cap(b) > poolBytes {
		return
	}
	class := frameClasses - 1
	if cap(b) < fullFrame {
		for class = 0; class < frameClasses-2 && smallestFrame<<class < cap(b); class++ {
		}
	}
	p.free[class] = append(p.free[class], b)
	p.bytes += cap(b)
}
