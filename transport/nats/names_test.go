package nats

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

func TestTokens(t *testing.T) {
	for name, token := range map[string]string{
		"":              "=",
		"plain-Name_9":  "plain-Name_9",
		"smooth@g1":     "smooth=40g1",
		"fleet/0":       "fleet=2F0",
		"a.b c":         "a=2Eb=20c",
		"=":             "=3D",
		"\x00\xff":      "=00=FF",
		"größe":         "gr=C3=B6=C3=9Fe",
		"*":             "=2A",
		">":             "=3E",
		"a\nb":          "a=0Ab",
		"smooth@g1.out": "smooth=40g1=2Eout",
	} {
		if got := encodeToken(name); got != token {
			t.Errorf("%q: got %q, want %q", name, got, token)
		}
		if got, err := decodeToken(token); err != nil || got != name {
			t.Errorf("%q: got %q, %v, want %q", token, got, err, name)
		}
	}
	for _, bad := range []string{"", "=4", "=4g", "=41", "=2f", "a b", "a.b", "==", "é"} {
		if got, err := decodeToken(bad); err == nil {
			t.Errorf("%q decodes to %q", bad, got)
		}
	}
}

func FuzzTokens(f *testing.F) {
	f.Add("smooth@g1", "=2F")
	f.Fuzz(func(t *testing.T, name, token string) {
		enc := encodeToken(name)
		if strings.ContainsAny(enc, ".*> \t\r\n/\\~") || enc == "" {
			t.Errorf("%q encodes to %q", name, enc)
		}
		if got, err := decodeToken(enc); err != nil || got != name {
			t.Errorf("%q: got %q, %v", name, got, err)
		}
		if got, err := decodeToken(token); err == nil && encodeToken(got) != token {
			t.Errorf("%q decodes to %q, which encodes to %q", token, got, encodeToken(got))
		}
		if got, err := SplitKey(Key(name, token)); err != nil || got[0] != name || got[1] != token {
			t.Errorf("%q, %q: got %q, %v", name, token, got, err)
		}
	})
}

func FuzzGrant(f *testing.F) {
	f.Add(appendGrant(nil, dataflow.Grant{Channel: 1, Incarnation: 2, Next: 3, Sum: 4, Window: 5, Rewind: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := decodeGrant(b)
		if err != nil {
			return
		}
		if again := appendGrant(nil, g); string(again) != string(b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, g, again)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"stream":"s","seq":1}`))
	f.Add([]byte(`{"stream":"weir-job~1~a","domain":"hub","seq":12345}`))
	f.Add([]byte(`{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"},"stream":"s"}`))
	f.Add([]byte(`{"holder":"a","term":3}`))
	f.Add([]byte("SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU="))
	f.Fuzz(func(t *testing.T, b []byte) {
		if stream, err := decodeResponse(b); err != nil && stream != "" {
			t.Errorf("stream %q and %v", stream, err)
		}
		if stream, ok := plainResponse(b); ok {
			var r response
			if err := json.Unmarshal(b, &r); err != nil || r.Stream != stream || r.Error != nil {
				t.Errorf("%q is read as stream %q, and as %+v (%v)", b, stream, r, err)
			}
		}
		if s := decodeLease(b); s.Holder != "" && len(b) == 0 {
			t.Errorf("%+v of nothing", s)
		}
		if sum, err := digestOf(string(b)); err == nil && len(sum) != 32 {
			t.Errorf("digest of %d bytes", len(sum))
		}
		if c, err := channelOf(string(b)); err == nil && c < 0 {
			t.Errorf("channel %d", c)
		}
	})
}

func TestPlainAnswers(t *testing.T) {
	if stream, ok := plainResponse([]byte(`{"stream":"weir-job~1~a","domain":"hub","seq":12345}`)); !ok || stream != "weir-job~1~a" {
		t.Errorf("the server's usual answer is not read: %q, %v", stream, ok)
	}
	c := inProcess(t)
	streams := c.Streams(StreamOptions{})
	in := openInput(t, streams, "t", 0)
	wantDrained(t, in)
	answer, err := c.control.nc.Request(c.names.frames("job", 1, "t")+".0", []byte("frame"), patience)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := plainResponse(answer.Data); !ok {
		t.Errorf("the server answers %s, which needs a decoder", answer.Data)
	}
	for _, other := range []string{
		``, `{"stream":"`, `{"stream":"","seq":1}`, `{"stream":"s","seq":}`, `{"stream":"s","seq":01}`, `{"stream":"s","seq":1,"duplicate": true}`,
		`{"stream":"s","seq":1`, `{"stream":"s\"","seq":1}`, `{"stream":"s","seq":-1}`, `{"error":{"code":503},"stream":"s","seq":0}`,
	} {
		if stream, ok := plainResponse([]byte(other)); ok {
			t.Errorf("%s is taken as stream %q", other, stream)
		}
	}
}

func TestStreamNamesDiffer(t *testing.T) {
	n := names{"weir"}
	long := abs.TaskID(strings.Repeat("x", 300))
	seen := map[string]bool{}
	for _, name := range []string{
		n.stream("a", 1, "b"), n.stream("a", 11, "b"), n.stream("a~s", 1, "b"), n.stream("a", 1, "s~b"),
		n.stream("a", 1, long), n.stream("a", 2, long), n.stream("a", 1, long+"y"), n.stream("h", 1, "b"),
	} {
		if seen[name] || len(name) > maxStreamName {
			t.Errorf("%s", name)
		}
		seen[name] = true
	}
}
