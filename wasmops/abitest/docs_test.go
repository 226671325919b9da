package abitest

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
)

// TestDocumentHasTheExample: the module in docs/abi.md is the one in docs/abi, which is assembled and run where
// wat2wasm is installed.
func TestDocumentHasTheExample(t *testing.T) {
	doc, err := os.ReadFile("../../docs/abi.md")
	if err != nil {
		t.Fatal(err)
	}
	wat, err := os.ReadFile("../../docs/abi/every.wat")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(doc, append(append([]byte("```wat\n"), wat...), "```\n"...)) {
		t.Error("docs/abi.md does not contain docs/abi/every.wat as it is")
	}
}

// TestDocumentHasTheRecord: the bytes of the record in docs/abi.md are those of the frame encoding.
func TestDocumentHasTheRecord(t *testing.T) {
	doc, err := os.ReadFile("../../docs/abi.md")
	if err != nil {
		t.Fatal(err)
	}
	headers, _ := frame.AppendHeader(nil, "topic", []byte("a/b"))
	want := frame.AppendRecord(nil, frame.Record{Key: []byte("m1"), Time: 1_700_000_000_000, Headers: headers, Value: []byte(`{"v":7}`)})
	line := regexp.MustCompile(`(?m)^20 00 00 00 .*$`).Find(doc)
	got, err := hex.DecodeString(strings.ReplaceAll(string(line), " ", ""))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the document has % x, %v; want % x", got, err, want)
	}
}
