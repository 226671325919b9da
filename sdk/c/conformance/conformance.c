/* The conformance operator in C; package wasmops/abitest says what each command does. */
#include "weir.h"

static int side, unused;
static double ratio = 0.5;
static int64_t limit = 7;
static int64_t seen;
static bool timed;
static uint8_t large[1 << 20];
static uint8_t instead[WEIR_MAX_RECORD]; /* if told: given to the next version in the place of seen */
static uint32_t instead_len;
static bool told;

static int start(void) {
    side = weir_output("side");
    unused = weir_output("unused");
    return weir_config_double("ratio", &ratio) && weir_config_int("limit", &limit) ? 0 : 1;
}

static const weir_record *now; /* being processed */

static void answer(weir_bytes value) { weir_emit(WEIR_OUT, now->key, now->time, value); }

static void answer_text(const weir_text *t) {
    if (t->full) weir_die("text is full");
    answer(weir_text_bytes(t));
}

/* found answers with what a look-up has written to large. */
static void found(int32_t n) { answer(n < 0 ? weir_lit("-") : weir_make(large, (uint32_t)n)); }

static void hex(weir_text *t, double v) {
    uint64_t bits;
    __builtin_memcpy(&bits, &v, 8);
    for (int shift = 60; shift >= 0; shift -= 4) weir_put_byte(t, (uint8_t)"0123456789abcdef"[bits >> shift & 15]);
}

static void json(weir_bytes arg) {
    weir_text t = {large, 0, sizeof large, false};
    weir_bytes raw;
    double v;
    weir_put(&t, weir_json_field(arg, weir_lit("v"), &raw) ? raw : weir_lit("-"));
    weir_put_byte(&t, '|');
    if (weir_json_number(arg, weir_lit("v"), &v)) {
        weir_put_fixed(&t, v, 3);
        weir_put_byte(&t, '|');
        hex(&t, v);
    } else {
        weir_put(&t, weir_lit("-|-"));
    }
    answer_text(&t);
}

static bool visit(void *context, weir_bytes key, weir_bytes value) {
    (void)context;
    weir_emit(WEIR_OUT, key, now->time, value);
    return true;
}

static uint32_t decimal(weir_bytes b) {
    double v;
    return weir_number(b, &v) && v >= 0 && v <= 1e9 ? (uint32_t)v : 0;
}

/* whole is the whole number in b, 0 if it is none. */
static int64_t whole(weir_bytes b) {
    double v;
    return weir_number(b, &v) ? (int64_t)v : 0;
}

/* answer_time does the commands about time. */
static int answer_time(uint8_t command, weir_bytes key, weir_bytes arg) {
    WEIR_TEXT(t, 32);
    timed = true;
    if (command == 'm') {
        int64_t w = weir_watermark();
        if (w == WEIR_NO_WATERMARK) {
            answer(weir_lit("-"));
        } else if (w == WEIR_END_OF_TIME) {
            answer(weir_lit("end"));
        } else {
            weir_put_int(&t, w);
            answer_text(&t);
        }
        return 0;
    }
    if (command == 'P') {
        uint32_t n = 0;
        while (n < arg.len && arg.ptr[n] != '|') n++;
        uint32_t from = n < arg.len ? n + 1 : n;
        weir_state_put_until(key, weir_make(arg.ptr + from, arg.len - from), whole(weir_make(arg.ptr, n)));
        return 0;
    }
    if (arg.len == 0) return weir_fail("no kind");
    weir_timer_kind kind = (weir_timer_kind)(arg.ptr[0] - '0');
    int64_t at = whole(weir_make(arg.ptr + 1, arg.len - 1));
    if (command == 'T') {
        weir_set_timer(kind, at, key);
    } else {
        answer(weir_clear_timer(kind, at, key) ? weir_lit("1") : weir_lit("0"));
    }
    return 0;
}

static int on_timer(const weir_timer *timer) {
    WEIR_TEXT(t, 32);
    weir_put(&t, weir_lit("timer"));
    weir_put_int(&t, timer->kind);
    weir_emit(WEIR_OUT, timer->key, timer->at, weir_text_bytes(&t));
    switch (timer->key.len ? timer->key.ptr[0] : 0) {
    case 'a':
        weir_set_timer(timer->kind, timer->at, timer->key);
        break;
    case 'c':
        weir_clear_timer(WEIR_EVENT_TIME, timer->at, weir_lit("d"));
        break;
    case 'f':
        return weir_fail("timer fails");
    }
    return 0;
}

static int on_watermark(int64_t at) {
    if (timed) weir_emit(WEIR_OUT, weir_lit(""), at, weir_lit("watermark"));
    return 0;
}

static int on_end(void) {
    if (timed) weir_emit(WEIR_OUT, weir_lit(""), 0, weir_lit("end"));
    return 0;
}

static int process(const weir_record *r) {
    now = r;
    WEIR_TEXT(t, 512);
    weir_bytes arg = r->value, b;
    if (arg.len == 0) return weir_fail("empty command");
    uint8_t command = arg.ptr[0];
    arg = weir_make(arg.ptr + 1, arg.len - 1);
    switch (command) {
    case 'e':
        weir_emit_record(WEIR_OUT, r);
        break;
    case 's':
        weir_emit_record(side, r);
        weir_emit_record(unused, r);
        break;
    case 'n':
        for (uint32_t i = 0, n = decimal(arg); i < n; i++) {
            t.len = 0;
            weir_put_int(&t, i);
            answer_text(&t);
        }
        break;
    case 'w':
        for (uint32_t i = 0; i < sizeof large; i++) large[i] = 'w';
        weir_emit(WEIR_OUT, r->key, r->time, weir_make(large, decimal(arg)));
        break;
    case 'c':
        weir_put(&t, arg);
        weir_put_byte(&t, 0);
        if (t.full) return weir_fail("name is too long");
        found(weir_config((const char *)t.ptr, large, sizeof large));
        break;
    case 'C':
        weir_put_fixed(&t, ratio, 6);
        weir_put_byte(&t, '|');
        weir_put_int(&t, limit);
        answer_text(&t);
        break;
    case 'h':
        answer(weir_header(r, arg, &b) ? b : weir_lit("-"));
        break;
    case 'i':
        weir_put_int(&t, r->input);
        answer_text(&t);
        break;
    case 'g':
        found(weir_state_get(r->key, large, sizeof large));
        break;
    case 'p':
        weir_state_put(r->key, arg);
        break;
    case 'd':
        answer(weir_state_delete(r->key) ? weir_lit("1") : weir_lit("0"));
        break;
    case 'x':
        weir_state_scan(arg, visit, NULL);
        break;
    case 'k':
        weir_count_bytes(arg, r->time);
        break;
    case 'u':
        weir_gauge_bytes(arg, (double)r->time / 2);
        break;
    case 'l':
        if (arg.len == 0) return weir_fail("no level");
        weir_log_bytes((weir_level)(arg.ptr[0] - '0'), weir_make(arg.ptr + 1, arg.len - 1));
        break;
    case 't':
        weir_put_int(&t, weir_now());
        answer_text(&t);
        break;
    case 'f':
        answer(arg);
        return weir_fail_bytes(arg);
    case 'j':
        json(arg);
        break;
    case 'r': {
        double v;
        if (arg.len < 2 || !weir_number(weir_make(arg.ptr + 1, arg.len - 1), &v)) return weir_fail("not a number");
        weir_put_fixed(&t, v, arg.ptr[0] - '0');
        answer_text(&t);
        break;
    }
    case 'q': {
        weir_text quoted = {large, 0, sizeof large, false};
        weir_put_json(&quoted, arg);
        answer_text(&quoted);
        break;
    }
    case 'T': case 'U': case 'm': case 'P':
        return answer_time(command, r->key, arg);
    case 'M':
        told = true;
        instead_len = arg.len;
        weir_copy(instead, arg.ptr, arg.len);
        break;
    case 'v':
        weir_put_int(&t, ++seen);
        answer_text(&t);
        break;
    default:
        return weir_fail("unknown command");
    }
    return 0;
}

static int give(weir_bytes *state) {
    if (told && instead_len == 0) return weir_fail("nothing to give");
    weir_text t = {instead, 0, sizeof instead, false};
    if (told) {
        t.len = instead_len;
    } else {
        weir_put(&t, weir_lit("1 "));
        weir_put_int(&t, seen);
    }
    *state = weir_text_bytes(&t);
    return 0;
}

static int take(weir_bytes state) {
    if (state.len < 2 || !weir_equal(weir_make(state.ptr, 2), weir_lit("1 "))) return weir_fail("unknown format");
    seen = whole(weir_make(state.ptr + 2, state.len - 2));
    return 0;
}

WEIR_OPERATOR(start, process)
WEIR_MIGRATE(give, take)
WEIR_TIME(on_timer, on_watermark, on_end)
