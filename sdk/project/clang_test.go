//go:build clang

package project

import (
	"os"
	"path/filepath"
	"testing"
)

func TestC(t *testing.T) {
	checkLanguage(t, C, sources{conformance: []string{"sdk/c/conformance/conformance.c"}, ewma: "examples/ewma/c/ewma.c"}, Options{})
}

// TestCWithLibrary builds an operator that includes headers of the C library, and uses it.
func TestCWithLibrary(t *testing.T) {
	dir := newProject(t, C)
	const source = `#include "weir.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

static char *last; /* of malloc */

static int process(const weir_record *r) {
    char text[64];
    int n = snprintf(text, sizeof text, "%s%.3f", last ? last : "", sqrt((double)r->value.len));
    free(last);
    last = malloc(2);
    strcpy(last, "+");
    weir_emit(WEIR_OUT, r->key, r->time, weir_make(text, (uint32_t)n));
    return 0;
}

WEIR_OPERATOR(NULL, process)
`
	for name, text := range map[string]string{
		"operator.c": source,
		"in.jsonl":   `{"value":"ab"}` + "\n" + `{"value":"abcd"}` + "\n",
		"want.jsonl": `{"value":"1.414"}` + "\n" + `{"value":"+2.000"}` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, build(t, dir, Options{}), dir)
}

func init() {
	migrants = append(migrants, benchGuest{"c", func(tb testing.TB) []byte { return buildOperator(tb, C, "sdk/c/conformance/conformance.c", Options{}) }})
	benchGuests = append(benchGuests, benchGuest{"c", func(tb testing.TB) []byte { return buildOperator(tb, C, "sdk/c/bench/bench.c", Options{}) }})
}
