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
	confirmed abs.Seq // by the sink, whether or not the port has made the item again since a restore
	handed    abs.Seq // by the sink, to the outside
	handedSum frame.Sum
	logged    abs.Seq // handed, as the log says

	made, heldBack, compared uint64
}

type portItem struct {
	number abs.Seq
	sum    frame.Sum // after it
	cause  abs.Position
	record []byte // encoded
}

// add gives the record its number. The record is copied, unless it was handed over before: also one
// that the sink has confirmed while the task was being restored.
func (p *sinkPort) add(record []byte, cause abs.Position) error {
	n := p.next
	p.next++
	p.made++
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
	if n <= p.confirmed {
		p.heldBack++
		p.handed, p.handedSum = n, p.sum
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
	for _, it := range p.items[p.untaken():] {
		if it.cause > synced {
			break
		}
		rec, _, err := frame.Next(it.record)
		if err != nil {
			panic("a record that a task has made is malformed: " + err.Error())
		}
		batch = append(batch, SinkItem{it.number, p.channel, rec})
	}
	if len(batch) == 0 {
		return
	}
	if n := p.sink.Offer(batch); n > 0 {
		p.taken = batch[n-1].Number
	}
}

// untaken is the index of the first item that the sink has not taken. Numbers are without gaps.
func (p *sinkPort) untaken() int {
	if len(p.items) == 0 || p.items[0].number > p.taken {
		return 0
	}
	return min(int(p.taken-p.items[0].number)+1, len(p.items))
}

// confirm notes that the sink has handed over up to a number, and returns the entry for the log
// when that is news. What the sink confirms may lie ahead of what the task has made again.
func (p *sinkPort) confirm(upto abs.Seq) (handedEntry, bool) {
	p.confirmed = max(p.confirmed, upto)
	n := 0
	for n < len(p.items) && p.items[n].number <= upto {
		p.bytes -= len(p.items[n].record)
		p.handed, p.handedSum = p.items[n].number, p.items[n].sum
		n++
	}
	clear(p.items[:n]) // their memory may go
	p.items = p.items[n:]
	return p.news()
}

// news returns the entry for the log when more has been handed over than it says. While the task makes
// again what the sink has confirmed, one entry at the end of that is enough.
func (p *sinkPort) news() (handedEntry, bool) {
	if p.handed <= p.logged || p.next <= p.confirmed {
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
