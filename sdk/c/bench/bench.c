/* The operators that benchmarks compare, see BenchmarkOperators in sdk/project: "mode" is noop, filter, count
 * or state. */
#include "weir.h"

enum { NOOP, FILTER, COUNT, STATE } mode;
static weir_map counts = {.value_size = sizeof(int64_t)};

static int start(void) {
    uint8_t name[8];
    int32_t n = weir_config("mode", name, sizeof name);
    weir_bytes m = weir_make(name, n < 0 ? 0 : (uint32_t)n);
    mode = weir_equal(m, weir_lit("filter")) ? FILTER : weir_equal(m, weir_lit("count")) ? COUNT : weir_equal(m, weir_lit("state")) ? STATE : NOOP;
    return 0;
}

static void answer(const weir_record *r, int64_t n) {
    WEIR_TEXT(t, 24);
    weir_put_int(&t, n);
    weir_emit(WEIR_OUT, r->key, r->time, weir_text_bytes(&t));
}

static int process(const weir_record *r) {
    switch (mode) {
    case NOOP:
        break;
    case FILTER:
        if (r->value.len && r->value.ptr[r->value.len - 1] & 1) weir_emit_record(WEIR_OUT, r);
        break;
    case COUNT: {
        int64_t *n = (int64_t *)weir_map_at(&counts, r->key);
        answer(r, ++*n);
        break;
    }
    case STATE: {
        int64_t n = 0;
        weir_state_get(r->key, &n, sizeof n);
        n++;
        weir_state_put(r->key, weir_make(&n, sizeof n));
        answer(r, n);
    }
    }
    return 0;
}

WEIR_OPERATOR(start, process)
