package frame

import "testing"

// benchPayload is a frame's worth of records of 50 bytes.
func benchPayload() (payload []byte, count int) {
	r := Record{Time: 1_700_000_000_000, Key: []byte("sensor-1"), Value: make([]byte, 26)}
	for len(payload) < TargetSize {
		payload = AppendRecord(payload, r)
		count++
	}
	return payload, count
}

func perRecord(b *testing.B, count int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count), "ns/record")
}

func BenchmarkEncode(b *testing.B) {
	payload, count := benchPayload()
	r, _, err := Next(payload)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	items, out := make([]byte, 0, len(payload)), make([]byte, 0, HeaderSize+len(payload))
	for b.Loop() {
		items = items[:0]
		for range count {
			items = AppendRecord(items, r)
		}
		out = Append(out[:0], Header{Kind: Data, First: 1, Count: uint32(count), After: Sum(0).Add(items)}, items)
	}
	perRecord(b, count)
}

func BenchmarkDecode(b *testing.B) {
	payload, count := benchPayload()
	whole := Append(nil, sealed(Header{Kind: Data, First: 1}, 0, payload, count), payload)
	b.SetBytes(int64(len(whole)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Decode(whole); err != nil {
			b.Fatal(err)
		}
	}
	perRecord(b, count)
}

func BenchmarkWalk(b *testing.B) {
	payload, count := benchPayload()
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := Count(payload); err != nil || n != count {
			b.Fatal(n, err)
		}
	}
	perRecord(b, count)
}

func BenchmarkSum(b *testing.B) {
	payload, _ := benchPayload()
	b.SetBytes(int64(len(payload)))
	var s Sum
	for b.Loop() {
		s = s.Add(payload)
	}
	if s == 0 {
		b.Fatal("no sum")
	}
}
