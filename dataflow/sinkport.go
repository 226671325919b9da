package dataflow

import (
	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Bounds of what a sink has not confirmed; at either the task takes no step.
const (
	sinkItems = 1024
	sinkBytes = 1 << 20
)

// sinkPort numbers what goes to a sink, keeps it until it is handed over, and holds back what was
// handed over before. It is pure but for Offer; the task owns it.
type sinkPort struct {
	index   int
	name    string
	channel string
	sink    Sink

	next  abs.Seq
	sum   frame.Sum
	items []portItem // not known to be handed over, in order
	bytes int

	taken     abs.Seq // by the sink
	handed    abs.Seq // by the sink, to the outside
	handedSum frame.Sum
	logged    abs.Seq // handed, as the log says

	heldBack, compared uint64
}

type portItem struct {
	number abs.Seq
	sum    frame.Sum // after it
	cause  abs.Position
	record []byte // encoded
}

// add gives the record its number. The record is copied.
func (p *sinkPort) add(record []byte, cause abs.Position) error {
	n := p.next
	p.next++
	p.sum = p.sum.Add(record)
	if n <= p.handed {
		p.heldBack++
		if n == p.handed && p.handedSum != 0 {
			p.compared++
			if p.sum != p.handedSum {
				return &DiffError{abs.ChannelID(p.channel), n, "the sink has handed over something else under these numbers"}
			}
		}
		return nil
	}
	p.items = append(p.items, portItem{n, p.sum, cause, append([]byte(nil), record...)})
	p.bytes += len(record)
	return nil
}

func (p *sinkPort) full() bool { return len(p.items) >= sinkItems || p.bytes >= sinkBytes }

// offer hands items to the sink whose cause the log is synced past.
func (p *sinkPort) offer(synced abs.Position) {
	var batch []SinkItem
	for _, it := range p.items {
		if it.cause > synced {
			break
		}
		if it.number <= p.taken {
			continue
		}
		rec, _, err := frame.Next(it.record)
		if err != nil {
			panic("a record that a task has made is malformed: " + err.Error())
		}
		batch = append(batch, SinkItem{it.number, p.channel, rec})
	}
	if len(batch) > 0 {
		p.taken += abs.Seq(p.sink.Offer(batch))
	}
}

// confirm notes that the sink has handed over up to a number, and returns the entry for the log
// when that is news.
func (p *sinkPort) confirm(upto abs.Seq) (handedEntry, bool) {
	n := 0
	for n < len(p.items) && p.items[n].number <= upto {
		p.bytes -= len(p.items[n].record)
		p.handed, p.handedSum = p.items[n].number, p.items[n].sum
		n++
	}
	p.items = p.items[n:]
	if p.handed <= p.logged {
		return handedEntry{}, false
	}
	p.logged = p.handed
	return handedEntry{p.index, p.handed, p.handedSum}, true
}

// seek sets the port to what a snapshot says; outbox holds the encoded records that were not known
// to be handed over at its cut, the last one being number next-1.
func (p *sinkPort) seek(next abs.Seq, sum frame.Sum, outbox [][]byte, outboxSum frame.Sum) error {
	p.items, p.bytes = nil, 0
	p.next, p.sum = next-abs.Seq(len(outbox)), outboxSum
	for _, rec := range outbox {
		if err := p.add(rec, 0); err != nil {
			return err
		}
	}
	if p.sum != sum || p.next != next {
		return &DiffError{abs.ChannelID(p.channel), next - 1, "the snapshot's outbox does not match its checksum"}
	}
	return nil
}
