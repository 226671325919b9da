/* weir.h: Weir operators in C, in this one header. It needs no C library.
 *
 *     #include "weir.h"
 *
 *     static uint64_t seen; // ordinary variables are state: the host captures and restores them
 *
 *     static int process(const weir_record *r) {
 *         WEIR_TEXT(t, 32);
 *         weir_put_int(&t, ++seen);
 *         weir_emit(WEIR_OUT, r->key, r->time, weir_text_bytes(&t));
 *         return 0;
 *     }
 *
 *     WEIR_OPERATOR(NULL, process)
 *
 * Build it with (Debian: clang, lld)
 *
 *     clang --target=wasm32 -O3 -mbulk-memory -nostdlib -fvisibility=hidden \
 *         -Wl,--no-entry -Wl,--stack-first -Wl,-S -o operator.wasm operator.c
 *
 * With wasi-libc, put --target=wasm32-wasi --sysroot=/usr -mexec-model=reactor in the place of
 * --target=wasm32 -nostdlib.
 *
 * WEIR_OPERATOR stands in one source file; others may include the header too. Nothing here
 * allocates per record. What a module imports and exports is described in docs/abi.md. */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that belong to someone else. They need not end with a zero. */
typedef struct {
    const uint8_t *ptr;
    uint32_t len;
} weir_bytes;

/* One record. What it points to is borrowed until process returns. */
typedef struct {
    int64_t time; /* event time, milliseconds since 1970 */
    weir_bytes key;
    weir_bytes headers; /* encoded; see weir_header */
    weir_bytes value;
    uint32_t input; /* index of the operator's input, in the order of the job */
} weir_record;

enum {
    WEIR_OUT = 0,                 /* the output that every operator has, called "out" */
    WEIR_MAX_OUTPUTS = 64,        /* of one operator */
    WEIR_MAX_KEY = 8 << 10,       /* bytes of a record's key */
    WEIR_MAX_RECORD = 256 << 10,  /* bytes of a record, of which 16 are not key, headers and value */
};

typedef enum { WEIR_DEBUG, WEIR_INFO, WEIR_WARN, WEIR_ERROR } weir_level;

/* ---- The host's functions, as docs/abi.md describes them ---- */

#define WEIR__IMPORT(name) __attribute__((import_module("weir"), import_name(name)))

WEIR__IMPORT("emit") void weir__emit(uint32_t output, const void *ptr, uint32_t len, uint32_t count);
WEIR__IMPORT("output_open") int32_t weir__output_open(const void *name, uint32_t len);
WEIR__IMPORT("config_get") int32_t weir__config_get(const void *key, uint32_t len, void *out, uint32_t cap);
WEIR__IMPORT("state_get") int32_t weir__state_get(const void *key, uint32_t len, void *out, uint32_t cap);
WEIR__IMPORT("state_put") void weir__state_put(const void *key, uint32_t len, const void *value, uint32_t value_len);
WEIR__IMPORT("state_delete") int32_t weir__state_delete(const void *key, uint32_t len);
WEIR__IMPORT("state_scan") int32_t weir__state_scan(const void *prefix, uint32_t prefix_len, const void *after,
                                                    uint32_t after_len, void *out, uint32_t cap);
WEIR__IMPORT("log") void weir__log(uint32_t level, const void *ptr, uint32_t len);
WEIR__IMPORT("counter_add") void weir__counter_add(const void *name, uint32_t len, int64_t delta);
WEIR__IMPORT("gauge_set") void weir__gauge_set(const void *name, uint32_t len, double value);
WEIR__IMPORT("clock_ms") int64_t weir__clock_ms(void);
WEIR__IMPORT("state_put_until") void weir__state_put_until(const void *key, uint32_t len, const void *value,
                                                          uint32_t value_len, int64_t until);
WEIR__IMPORT("timer_set") void weir__timer_set(uint32_t kind, int64_t at, const void *key, uint32_t len);
WEIR__IMPORT("timer_clear") int32_t weir__timer_clear(uint32_t kind, int64_t at, const void *key, uint32_t len);
WEIR__IMPORT("watermark") int64_t weir__watermark(void);
WEIR__IMPORT("fail") void weir__fail(const void *ptr, uint32_t len);

/* ---- Bytes ---- */

#define WEIR__INLINE static inline __attribute__((always_inline, unused))
#define WEIR__FUNC static __attribute__((unused))

/* weir_lit makes bytes of a string literal, weir_str of a string that ends with a zero. */
#define weir_lit(literal) ((weir_bytes){(const uint8_t *)("" literal), sizeof(literal) - 1})

WEIR__INLINE weir_bytes weir_make(const void *ptr, uint32_t len) { return (weir_bytes){(const uint8_t *)ptr, len}; }

WEIR__FUNC weir_bytes weir_str(const char *s) {
    uint32_t n = 0;
    while (s[n]) n++;
    return weir_make(s, n);
}

WEIR__INLINE uint64_t weir__u64(const void *p) {
    uint64_t v;
    __builtin_memcpy(&v, p, 8);
    return v;
}

WEIR__INLINE uint32_t weir__u32(const void *p) {
    uint32_t v;
    __builtin_memcpy(&v, p, 4);
    return v;
}

WEIR__INLINE uint32_t weir__u16(const void *p) {
    uint16_t v;
    __builtin_memcpy(&v, p, 2);
    return v;
}

/* weir_copy copies n bytes that do not overlap. Short runs, as keys are, go in words: a call costs more. */
WEIR__INLINE void weir_copy(void *to, const void *from, uint32_t n) {
    uint8_t *d = (uint8_t *)to;
    const uint8_t *s = (const uint8_t *)from;
    if (n > 64) {
        __builtin_memcpy(d, s, n);
        return;
    }
    if (n >= 8) {
        uint64_t last = weir__u64(s + n - 8);
        uint8_t *end = d + n - 8;
        for (; d < end; d += 8, s += 8) __builtin_memcpy(d, s, 8);
        __builtin_memcpy(end, &last, 8);
    } else if (n >= 4) {
        uint32_t first = weir__u32(s), last = weir__u32(s + n - 4);
        __builtin_memcpy(d, &first, 4);
        __builtin_memcpy(d + n - 4, &last, 4);
    } else if (n > 0) {
        d[0] = s[0];
        d[n / 2] = s[n / 2];
        d[n - 1] = s[n - 1];
    }
}

WEIR__INLINE bool weir_equal(weir_bytes a, weir_bytes b) {
    if (a.len != b.len) return false;
    uint32_t i = 0;
    for (; i + 8 <= a.len; i += 8)
        if (weir__u64(a.ptr + i) != weir__u64(b.ptr + i)) return false;
    for (; i < a.len; i++)
        if (a.ptr[i] != b.ptr[i]) return false;
    return true;
}

/* ---- Failure, log, counters, clock ---- */

/* weir_fail gives the reason of a failure and returns the status that goes with it:
 * return weir_fail("no such machine"). The record is then given up as the job says (on_error). */
WEIR__FUNC int weir_fail_bytes(weir_bytes reason) {
    weir__fail(reason.ptr, reason.len);
    return 1;
}
WEIR__FUNC int weir_fail(const char *reason) { return weir_fail_bytes(weir_str(reason)); }

/* weir_die fails at once, from anywhere. */
WEIR__FUNC _Noreturn void weir_die(const char *reason) {
    weir_fail(reason);
    __builtin_trap();
}

/* weir_log writes a line to the agent's log. Lines beyond the host's rate are dropped and counted. */
WEIR__FUNC void weir_log_bytes(weir_level level, weir_bytes text) { weir__log(level, text.ptr, text.len); }
WEIR__FUNC void weir_log(weir_level level, const char *text) { weir_log_bytes(level, weir_str(text)); }

/* weir_count adds to a counter of this operator, weir_gauge sets a gauge; the agent shows them as metrics.
 * Counters and gauges have 64 names together. */
WEIR__FUNC void weir_count_bytes(weir_bytes name, int64_t delta) { weir__counter_add(name.ptr, name.len, delta); }
WEIR__FUNC void weir_count(const char *name, int64_t delta) { weir_count_bytes(weir_str(name), delta); }
WEIR__FUNC void weir_gauge_bytes(weir_bytes name, double value) { weir__gauge_set(name.ptr, name.len, value); }
WEIR__FUNC void weir_gauge(const char *name, double value) { weir_gauge_bytes(weir_str(name), value); }

/* weir_now is the host's clock in milliseconds since 1970: the time at which the agent logged the
 * records that are being processed. It is 0 in init. */
WEIR__INLINE int64_t weir_now(void) { return weir__clock_ms(); }

/* ---- Memory ---- */

/* A small allocator, for programs without a C library: sizes are rounded up to powers of two, what is
 * freed is used again for the same size. It takes whole pages from the end of memory. */
struct weir__memory {
    void *idle[32];  /* freed blocks by the logarithm of their size */
    uint8_t *at, *end; /* of the pages from which blocks are cut */
};

struct weir__output {
    int32_t index; /* the host's; -1: the job does not use it */
    uint8_t *buf;
    uint32_t len, cap, count;
};

struct weir__state {
    struct weir__memory memory;
    struct weir__output outputs[WEIR_MAX_OUTPUTS];
    uint32_t noutputs;
    uint8_t *input; /* buffer for batches */
    uint32_t input_size;
    uint8_t *scan; /* buffer for scans */
    uint32_t scan_size;
};

/* All variables of this header; WEIR_OPERATOR makes it. */
extern struct weir__state weir__;

WEIR__FUNC void *weir_malloc(uint32_t size) {
    uint32_t class = size <= 16 ? 4 : 32 - (uint32_t)__builtin_clz(size - 1);
    if (class > 30) weir_die("out of memory");
    struct weir__memory *m = &weir__.memory;
    void *block = m->idle[class];
    if (block) {
        __builtin_memcpy(&m->idle[class], block, sizeof(void *));
        return block;
    }
    uint32_t need = 1u << class;
    if ((uint32_t)(m->end - m->at) < need) {
        uint32_t pages = need < 65536 ? 1 : need / 65536;
        size_t was = __builtin_wasm_memory_grow(0, pages);
        if (was == (size_t)-1) weir_die("out of memory");
        uint8_t *start = (uint8_t *)(was * 65536);
        if (start != m->end) m->at = start; /* someone else has grown memory: the rest stays unused */
        m->end = start + pages * 65536;
    }
    block = m->at;
    m->at += need;
    return block;
}

/* weir_free gives back what weir_malloc gave; size is the same as there. */
WEIR__FUNC void weir_free(void *block, uint32_t size) {
    if (!block) return;
    uint32_t class = size <= 16 ? 4 : 32 - (uint32_t)__builtin_clz(size - 1);
    __builtin_memcpy(block, &weir__.memory.idle[class], sizeof(void *));
    weir__.memory.idle[class] = block;
}

/* ---- Output ---- */

/* weir_output opens a side output; called in init. What is emitted on an output that the job does
 * not use is dropped. */
WEIR__FUNC int weir_output(const char *name) {
    if (weir__.noutputs == WEIR_MAX_OUTPUTS) weir_die("more than 64 outputs");
    weir_bytes n = weir_str(name);
    weir__.outputs[weir__.noutputs].index = weir__output_open(n.ptr, n.len);
    return (int)weir__.noutputs++;
}

WEIR__FUNC __attribute__((noinline)) void weir__grow(struct weir__output *o, uint32_t need) {
    uint32_t cap = o->cap ? o->cap : 64 << 10;
    while (cap < need) cap *= 2;
    uint8_t *buf = (uint8_t *)weir_malloc(cap);
    if (o->len) __builtin_memcpy(buf, o->buf, o->len);
    weir_free(o->buf, o->cap);
    o->buf = buf;
    o->cap = cap;
}

WEIR__INLINE void weir__add(int output, weir_bytes key, weir_bytes headers, int64_t time, weir_bytes value) {
    if ((uint32_t)output >= weir__.noutputs) weir_die("no such output");
    struct weir__output *o = &weir__.outputs[output];
    if (o->index < 0) return;
    if (key.len > WEIR_MAX_KEY || headers.len > 65535 || value.len > WEIR_MAX_RECORD ||
        16 + key.len + headers.len + value.len > WEIR_MAX_RECORD)
        weir_die("emitted record is too large: at most 262144 bytes, its key 8192");
    uint32_t size = 16 + key.len + headers.len + value.len;
    if (o->cap - o->len < size) weir__grow(o, o->len + size);
    uint8_t *p = o->buf + o->len;
    uint32_t after = size - 4;
    uint16_t k = (uint16_t)key.len, h = (uint16_t)headers.len;
    __builtin_memcpy(p, &after, 4);
    __builtin_memcpy(p + 4, &time, 8);
    __builtin_memcpy(p + 12, &k, 2);
    __builtin_memcpy(p + 14, &h, 2);
    weir_copy(p + 16, key.ptr, key.len);
    weir_copy(p + 16 + key.len, headers.ptr, headers.len);
    weir_copy(p + 16 + key.len + headers.len, value.ptr, value.len);
    o->len += size;
    o->count++;
}

/* weir_emit emits a record on an output: WEIR_OUT, or what weir_output returned. All is copied. */
WEIR__INLINE void weir_emit(int output, weir_bytes key, int64_t time, weir_bytes value) {
    weir__add(output, key, weir_make(NULL, 0), time, value);
}

/* weir_emit_record emits a whole record, with its headers. */
WEIR__INLINE void weir_emit_record(int output, const weir_record *r) {
    weir__add(output, r->key, r->headers, r->time, r->value);
}

/* weir_header finds a header; false if there is none. A message's MQTT topic is in "topic". */
WEIR__FUNC bool weir_header(const weir_record *r, weir_bytes name, weir_bytes *value) {
    const uint8_t *p = r->headers.ptr, *end = p + r->headers.len;
    while (end - p >= 3) {
        uint32_t n = p[0], v = weir__u16(p + 1);
        if (3 + n + v > (uint32_t)(end - p)) return false;
        if (weir_equal(weir_make(p + 3, n), name)) {
            *value = weir_make(p + 3 + n, v);
            return true;
        }
        p += 3 + n + v;
    }
    return false;
}

/* ---- Keyed state: kept by the host by key, may exceed memory, follows its keys in a rescaling ---- */

/* weir_state_get returns the length of a key's value, -1 if there is none. The value is written only
 * if it fits into cap bytes. Keys have 1 to 4,096 bytes, values up to 1 MiB. */
WEIR__INLINE int32_t weir_state_get(weir_bytes key, void *out, uint32_t cap) {
    return weir__state_get(key.ptr, key.len, out, cap);
}
WEIR__INLINE void weir_state_put(weir_bytes key, weir_bytes value) {
    weir__state_put(key.ptr, key.len, value.ptr, value.len);
}
/* weir_state_put_until sets a key for a time: it is gone once the watermark has reached until, in milliseconds
 * since 1970. weir_state_put makes it stay again. */
WEIR__INLINE void weir_state_put_until(weir_bytes key, weir_bytes value, int64_t until) {
    weir__state_put_until(key.ptr, key.len, value.ptr, value.len, until);
}
/* weir_state_delete removes a key and says whether it was there. */
WEIR__INLINE bool weir_state_delete(weir_bytes key) { return weir__state_delete(key.ptr, key.len) != 0; }

/* weir_state_scan visits the keys that begin with prefix in byte order until visit returns false. Key
 * and value are borrowed until visit returns. Scans do not nest. */
WEIR__FUNC void weir_state_scan(weir_bytes prefix, bool (*visit)(void *context, weir_bytes key, weir_bytes value), void *context) {
    uint8_t after[4096];
    uint32_t after_len = 0;
    if (!weir__.scan) weir__.scan = (uint8_t *)weir_malloc(weir__.scan_size = 16 << 10);
    for (;;) {
        int32_t n = weir__state_scan(prefix.ptr, prefix.len, after, after_len, weir__.scan, weir__.scan_size);
        if (n == 0) return;
        if (n < 0) {
            weir_free(weir__.scan, weir__.scan_size);
            weir__.scan = (uint8_t *)weir_malloc(weir__.scan_size = (uint32_t)-n);
            continue;
        }
        for (const uint8_t *p = weir__.scan, *end = p + n; p < end;) {
            weir_bytes key = weir_make(p + 8, weir__u32(p));
            weir_bytes value = weir_make(p + 8 + key.len, weir__u32(p + 4));
            p = value.ptr + value.len;
            if (p == end) {
                weir_copy(after, key.ptr, key.len);
                after_len = key.len;
            }
            if (!visit(context, key, value)) return;
        }
    }
}

/* ---- Timers and watermarks ---- */

typedef enum {
    WEIR_EVENT_TIME,      /* due when the watermark reaches the timer */
    WEIR_PROCESSING_TIME, /* due when the agent's clock does, some 100 ms later at most */
} weir_timer_kind;

/* A timer that is due; its key is borrowed until on_timer returns. */
typedef struct {
    weir_timer_kind kind;
    int64_t at; /* milliseconds since 1970 */
    weir_bytes key;
} weir_timer;

#define WEIR_NO_WATERMARK INT64_MIN /* none has come yet */
#define WEIR_END_OF_TIME INT64_MAX  /* the input has ended */

/* weir_set_timer asks for a call of on_timer (see WEIR_TIME). There is one timer for each kind, time and key. Timers
 * that are due together fire in order of time, then key. One set at or before the watermark, or while timers
 * fire, is due when the watermark moves next, or at the end of the input; those of processing time, likewise, at the
 * next tick of the clock, and not at the end. Keys have up to 4,096 bytes. */
WEIR__INLINE void weir_set_timer(weir_timer_kind kind, int64_t at, weir_bytes key) {
    weir__timer_set((uint32_t)kind, at, key.ptr, key.len);
}
/* weir_clear_timer takes a timer back and says whether it was set. */
WEIR__INLINE bool weir_clear_timer(weir_timer_kind kind, int64_t at, weir_bytes key) {
    return weir__timer_clear((uint32_t)kind, at, key.ptr, key.len) != 0;
}
/* weir_watermark is how far event time has come, in milliseconds since 1970: a record with a time before it is
 * late. It never goes back. */
WEIR__INLINE int64_t weir_watermark(void) { return weir__watermark(); }

/* ---- Text ---- */

/* Text being written into a buffer of a fixed size. What does not fit sets full and is left out. */
typedef struct {
    uint8_t *ptr;
    uint32_t len, cap;
    bool full;
} weir_text;

/* WEIR_TEXT declares an empty text with room for so many bytes in the function's frame. */
#define WEIR_TEXT(name, size)    \
    uint8_t weir__##name[size]; \
    weir_text name = {weir__##name, 0, (size), false}

WEIR__INLINE weir_bytes weir_text_bytes(const weir_text *t) { return weir_make(t->ptr, t->len); }

WEIR__INLINE void weir_put(weir_text *t, weir_bytes b) {
    if (b.len > t->cap - t->len) {
        t->full = true;
        return;
    }
    weir_copy(t->ptr + t->len, b.ptr, b.len);
    t->len += b.len;
}

WEIR__INLINE void weir_put_byte(weir_text *t, uint8_t c) { weir_put(t, weir_make(&c, 1)); }

WEIR__FUNC void weir_put_int(weir_text *t, int64_t v) {
    uint8_t digits[20];
    uint32_t at = 20;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        digits[--at] = (uint8_t)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0) digits[--at] = '-';
    weir_put(t, weir_make(digits + at, 20 - at));
}

/* weir_put_fixed puts a number rounded to so many decimals (0 to 9), half away from zero, without
 * zeros at the end: the same text in every language's SDK. What cannot be written so, because it is
 * infinite, not a number, or v times 10 to the power of decimals is 2^63 or more, becomes null. */
WEIR__FUNC void weir_put_fixed(weir_text *t, double v, int decimals) {
    static const double powers[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    if (decimals < 0 || decimals > 9) weir_die("weir_put_fixed: 0 to 9 decimals");
    double x = v * powers[decimals];
    if (!(x < 9223372036854775808.0 && x > -9223372036854775808.0)) {
        weir_put(t, weir_lit("null"));
        return;
    }
    int64_t i = (int64_t)x;
    double off = x - (double)i;
    i += off >= 0.5 ? 1 : off <= -0.5 ? -1 : 0;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i, p = (uint64_t)powers[decimals];
    if (i < 0) weir_put_byte(t, '-');
    weir_put_int(t, (int64_t)(u / p));
    u %= p;
    if (u == 0) return;
    uint8_t digits[10] = {'.'};
    uint32_t n = 1;
    while (u) {
        p /= 10;
        digits[n++] = (uint8_t)('0' + u / p);
        u %= p;
    }
    weir_put(t, weir_make(digits, n));
}

/* ---- Numbers and JSON ---- */

#define WEIR__LIMBS 288 /* of 32 bits: 800 digits, shifted by what dividing them by 10^1130 takes */

/* weir__exact rounds digits times 10^exp to the nearest number, half to even; sticky says that
 * digits were cut off. It is only for what double arithmetic does not give exactly. */
WEIR__FUNC __attribute__((noinline)) double weir__exact(const uint8_t *digits, uint32_t n, int32_t exp, bool sticky) {
    uint32_t b[WEIR__LIMBS] = {0}, len = 0; /* little-endian */
    int32_t muls = exp > 0 ? exp : 0;
    for (uint32_t i = 0; i < n + (uint32_t)muls; i++) {
        uint64_t carry = i < n ? digits[i] : 0;
        for (uint32_t j = 0; j < len; j++) {
            carry += (uint64_t)b[j] * 10;
            b[j] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) b[len++] = (uint32_t)carry;
    }
    if (len == 0) return 0;
    /* Shifted by whole limbs, so that at least 64 bits are left after dividing. */
    uint32_t divs = exp < 0 ? (uint32_t)-exp : 0, shift = divs / 9 + 4;
    for (uint32_t j = len; j-- > 0;) b[j + shift] = b[j];
    for (uint32_t j = 0; j < shift; j++) b[j] = 0;
    len += shift;
    while (divs > 0) {
        uint32_t step = divs < 9 ? divs : 9, by = 1;
        for (uint32_t i = 0; i < step; i++) by *= 10;
        uint64_t rest = 0;
        for (uint32_t j = len; j-- > 0;) {
            rest = rest << 32 | b[j];
            b[j] = (uint32_t)(rest / by);
            rest %= by;
        }
        if (rest) sticky = true;
        if (b[len - 1] == 0) len--;
        divs -= step;
    }
    /* The highest 64 bits; all others only count as more than nothing. */
    uint32_t zeros = (uint32_t)__builtin_clz(b[len - 1]);
    uint64_t high = (uint64_t)b[len - 1] << 32 | b[len - 2], low = b[len - 3];
    uint64_t m = zeros ? high << zeros | low >> (32 - zeros) : high;
    if (zeros ? (uint32_t)(low << zeros) : low) sticky = true;
    for (uint32_t j = 0; j + 3 < len; j++)
        if (b[j]) sticky = true;
    int32_t e = (int32_t)(len * 32 - zeros) - 1 - (int32_t)shift * 32; /* m is 1.… times 2^e */
    int32_t drop = e >= -1022 ? 11 : 11 + (-1022 - e);
    if (e > 1023) return __builtin_inf();
    if (drop > 64) return 0;
    uint64_t q = drop == 64 ? 0 : m >> drop, half = (uint64_t)1 << (drop - 1);
    uint64_t rest = drop == 64 ? m : m & (half * 2 - 1);
    if (rest > half || (rest == half && (sticky || (q & 1)))) q++;
    uint64_t bits = e >= -1022 ? ((uint64_t)(e + 1022) << 52) + q : q;
    double v;
    __builtin_memcpy(&v, &bits, 8);
    return v;
}

/* weir_number reads a decimal number, as in JSON: the nearest double, as every language's SDK reads
 * it. False if b is something else, or too large for a double. */
WEIR__FUNC bool weir_number(weir_bytes b, double *out) {
    static const double powers[] = {1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const uint8_t *p = b.ptr, *end = p + b.len;
    bool negative = p < end && *p == '-', any = false, point = false, sticky = false;
    if (p < end && (*p == '-' || *p == '+')) p++;
    uint8_t digits[800]; /* the significant ones; 768 and a sticky bit decide any rounding */
    uint32_t n = 0;
    int32_t exp = 0;
    uint64_t m = 0;
    for (; p < end; p++) {
        if (*p == '.' && !point) {
            point = true;
            continue;
        }
        uint32_t d = (uint32_t)*p - '0';
        if (d > 9) break;
        any = true;
        if (point) exp--;
        if (n == 0 && d == 0) continue;
        if (n < sizeof digits) {
            if (n < 19) m = m * 10 + d;
            digits[n++] = (uint8_t)d;
        } else {
            exp++;
            if (d) sticky = true;
        }
    }
    if (!any) return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        bool minus = p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        if (p == end) return false;
        int32_t x = 0;
        for (; p < end && (uint32_t)*p - '0' <= 9; p++)
            if (x < 1000000) x = x * 10 + (*p - '0');
        exp += minus ? -x : x;
    }
    if (p != end) return false;
    double v;
    if (n == 0 || (int32_t)n + exp < -330) {
        v = 0;
    } else if ((int32_t)n + exp > 310) {
        return false;
    } else if (n <= 19 && m <= (uint64_t)1 << 53 && exp >= -22 && exp <= 22) {
        v = exp < 0 ? (double)m / powers[-exp] : (double)m * powers[exp];
    } else {
        v = weir__exact(digits, n, exp, sticky);
        if (v == __builtin_inf()) return false;
    }
    *out = negative ? -v : v;
    return true;
}

typedef struct {
    const uint8_t *at, *end;
} weir__json;

WEIR__INLINE void weir__json_space(weir__json *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

WEIR__INLINE bool weir__json_take(weir__json *s, uint8_t c) {
    weir__json_space(s);
    if (s->at >= s->end || *s->at != c) return false;
    s->at++;
    return true;
}

WEIR__INLINE bool weir__json_string(weir__json *s) {
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at == '\\') {
            s->at++;
        } else if (*s->at == '"') {
            s->at++;
            return true;
        }
    }
    s->at = s->end;
    return false;
}

WEIR__FUNC bool weir__json_nested(weir__json *s) {
    uint32_t depth = 0;
    while (s->at < s->end) {
        switch (*s->at) {
        case '"':
            if (!weir__json_string(s)) return false;
            continue;
        case '{': case '[':
            depth++;
            break;
        case '}': case ']':
            depth--;
        }
        s->at++;
        if (depth == 0) return true;
    }
    return false;
}

WEIR__INLINE bool weir__json_scalar(weir__json *s) {
    const uint8_t *start = s->at;
    for (; s->at < s->end; s->at++) {
        uint8_t c = *s->at;
        if (c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != 'E') break;
    }
    return s->at > start;
}

WEIR__INLINE bool weir__json_value(weir__json *s, weir_bytes *out) {
    weir__json_space(s);
    const uint8_t *start = s->at;
    if (start >= s->end) return false;
    bool ok = *start == '"'                   ? weir__json_string(s)
              : *start == '{' || *start == '[' ? weir__json_nested(s)
                                               : weir__json_scalar(s);
    *out = weir_make(start, (uint32_t)(s->at - start));
    return ok;
}

/* weir_json_field finds the raw JSON of a field of an object; false if value is not an object or has no
 * such field before its first error. Names are compared byte by byte: names written with escapes are
 * not found. It does not look into nested objects; what comes after the field is not checked. */
WEIR__FUNC bool weir_json_field(weir_bytes value, weir_bytes name, weir_bytes *out) {
    weir__json s = {value.ptr, value.ptr + value.len};
    weir_bytes key, field;
    if (!weir__json_take(&s, '{')) return false;
    for (;;) {
        if (!weir__json_value(&s, &key) || key.ptr[0] != '"' || !weir__json_take(&s, ':')) return false;
        if (!weir__json_value(&s, &field)) return false;
        bool found = weir_equal(weir_make(key.ptr + 1, key.len - 2), name);
        if (found) *out = field;
        if (found && weir__json_take(&s, '}')) return true;
        if (!weir__json_take(&s, ',')) return false;
        if (found) return true;
    }
}

/* weir_json_number reads a number field of an object; false if there is none or it is no number. */
WEIR__FUNC bool weir_json_number(weir_bytes value, weir_bytes name, double *out) {
    weir_bytes raw;
    return weir_json_field(value, name, &raw) && weir_number(raw, out);
}

/* weir_put_json puts a JSON string. Bytes of it that are not ASCII are put as they are. */
WEIR__FUNC void weir_put_json(weir_text *t, weir_bytes s) {
    static const char hex[] = "0123456789abcdef";
    weir_put_byte(t, '"');
    for (uint32_t i = 0; i < s.len; i++) {
        uint8_t c = s.ptr[i];
        if (c == '"' || c == '\\') {
            weir_put_byte(t, '\\');
            weir_put_byte(t, c);
        } else if (c < ' ') {
            weir_put(t, weir_lit("\\u00"));
            weir_put_byte(t, (uint8_t)hex[c >> 4]);
            weir_put_byte(t, (uint8_t)hex[c & 15]);
        } else {
            weir_put_byte(t, c);
        }
    }
    weir_put_byte(t, '"');
}

/* ---- Configuration ---- */

/* weir_config returns the length of a configuration value, -1 if it is not set. The value is written
 * only if it fits into cap bytes. */
WEIR__FUNC int32_t weir_config(const char *key, void *out, uint32_t cap) {
    weir_bytes k = weir_str(key);
    return weir__config_get(k.ptr, k.len, out, cap);
}

WEIR__FUNC bool weir__config_wrong(const char *key, weir_bytes value, const char *what) {
    WEIR_TEXT(t, 512);
    weir_put(&t, weir_lit("config "));
    weir_put(&t, weir_str(key));
    weir_put(&t, weir_lit(": "));
    weir_put_json(&t, value);
    weir_put(&t, weir_lit(" is not "));
    weir_put(&t, weir_str(what));
    weir_fail_bytes(weir_text_bytes(&t));
    return false;
}

/* weir_config_double reads a number; *out stays as it is if the key is not set. False if it is set to
 * something else: the reason has been given, init is to return 1. */
WEIR__FUNC bool weir_config_double(const char *key, double *out) {
    uint8_t buf[256];
    int32_t n = weir_config(key, buf, sizeof buf);
    if (n < 0) return true;
    weir_bytes v = weir_make(buf, n > (int32_t)sizeof buf ? 0 : (uint32_t)n);
    return weir_number(v, out) || weir__config_wrong(key, v, "a number");
}

/* weir_config_int is the same for a whole number. */
WEIR__FUNC bool weir_config_int(const char *key, int64_t *out) {
    uint8_t buf[256];
    int32_t n = weir_config(key, buf, sizeof buf);
    if (n < 0) return true;
    weir_bytes v = weir_make(buf, n > (int32_t)sizeof buf ? 0 : (uint32_t)n);
    uint32_t at = v.len && (v.ptr[0] == '-' || v.ptr[0] == '+') ? 1 : 0, digits = v.len - at;
    int64_t x = 0;
    bool ok = digits > 0 && digits < 19;
    for (; ok && at < v.len; at++) {
        ok = v.ptr[at] >= '0' && v.ptr[at] <= '9';
        x = x * 10 + (v.ptr[at] - '0');
    }
    if (!ok) return weir__config_wrong(key, v, "a whole number");
    *out = v.ptr[0] == '-' ? -x : x;
    return true;
}

/* ---- A map in memory ---- */

/* A hash table from keys to values of one size, in the module's memory: state like any other variable,
 * faster than keyed state, but neither rescaled nor larger than memory. Start with
 * weir_map m = {.value_size = sizeof(value)}. Keys and values are never moved or removed. */
typedef struct {
    uint32_t value_size;
    uint32_t used, cap; /* cap: 0 or a power of two */
    struct weir__slot {
        uint32_t hash;
        uint8_t *entry; /* value, padded to 8 bytes; key length (4); key. NULL: none */
    } *slots;
} weir_map;

WEIR__INLINE uint32_t weir__hash(weir_bytes key) {
    const uint64_t k = 0x9e3779b97f4a7c15;
    uint64_t h = key.len * k;
    const uint8_t *p = key.ptr;
    uint32_t n = key.len;
    for (; n >= 8; p += 8, n -= 8) h = (h ^ weir__u64(p)) * k, h ^= h >> 32;
    uint64_t last = 0;
    if (n >= 4) {
        last = weir__u32(p) | (uint64_t)weir__u32(p + n - 4) << 32;
    } else if (n > 0) {
        last = p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
    }
    h = (h ^ last) * k;
    return (uint32_t)(h >> 32);
}

WEIR__INLINE uint32_t weir__map_room(const weir_map *m) { return (m->value_size + 7) & ~7u; }

WEIR__FUNC __attribute__((noinline)) void weir__map_grow(weir_map *m) {
    uint32_t cap = m->cap ? m->cap * 2 : 64, bytes = cap * (uint32_t)sizeof(struct weir__slot);
    struct weir__slot *slots = (struct weir__slot *)weir_malloc(bytes);
    for (uint32_t i = 0; i < cap; i++) slots[i] = (struct weir__slot){0, NULL};
    for (uint32_t i = 0; i < m->cap; i++) {
        struct weir__slot s = m->slots[i];
        if (!s.entry) continue;
        uint32_t at = s.hash & (cap - 1);
        while (slots[at].entry) at = (at + 1) & (cap - 1);
        slots[at] = s;
    }
    weir_free(m->slots, m->cap * (uint32_t)sizeof(struct weir__slot));
    m->slots = slots;
    m->cap = cap;
}

WEIR__FUNC __attribute__((noinline)) void *weir__map_add(weir_map *m, weir_bytes key, uint32_t hash) {
    if ((m->used + 1) * 4 > m->cap * 3) weir__map_grow(m);
    uint32_t room = weir__map_room(m), at = hash & (m->cap - 1);
    uint8_t *e = (uint8_t *)weir_malloc(room + 4 + key.len);
    for (uint32_t i = 0; i < room; i++) e[i] = 0;
    __builtin_memcpy(e + room, &key.len, 4);
    weir_copy(e + room + 4, key.ptr, key.len);
    while (m->slots[at].entry) at = (at + 1) & (m->cap - 1);
    m->slots[at] = (struct weir__slot){hash, e};
    m->used++;
    return e;
}

WEIR__INLINE void *weir__map_find(const weir_map *m, weir_bytes key, uint32_t hash) {
    if (m->cap == 0) return NULL;
    uint32_t room = weir__map_room(m);
    for (uint32_t at = hash & (m->cap - 1);; at = (at + 1) & (m->cap - 1)) {
        uint8_t *e = m->slots[at].entry;
        if (!e) return NULL;
        if (m->slots[at].hash == hash && weir_equal(weir_make(e + room + 4, weir__u32(e + room)), key)) return e;
    }
}

/* weir_map_get returns the value of a key, NULL if there is none. */
WEIR__INLINE void *weir_map_get(const weir_map *m, weir_bytes key) { return weir__map_find(m, key, weir__hash(key)); }

/* weir_map_at returns the value of a key, which is all zeros if it was not there before. */
WEIR__INLINE void *weir_map_at(weir_map *m, weir_bytes key) {
    uint32_t hash = weir__hash(key);
    void *v = weir__map_find(m, key, hash);
    return v ? v : weir__map_add(m, key, hash);
}

/* ---- The module ---- */

typedef int (*weir_init_func)(void);
typedef int (*weir_process_func)(const weir_record *);

WEIR__FUNC void *weir__alloc(uint32_t size) {
    weir_free(weir__.input, weir__.input_size);
    weir__.input = (uint8_t *)weir_malloc(size);
    weir__.input_size = size;
    return weir__.input;
}

WEIR__INLINE void weir__begin(void) {
    for (uint32_t i = 0; i < weir__.noutputs; i++) weir__.outputs[i].len = weir__.outputs[i].count = 0;
}

/* The host reads the buffers when the call has returned; the next one overwrites them. */
WEIR__INLINE int weir__finish(int status) {
    if (status) return status;
    for (uint32_t i = 0; i < weir__.noutputs; i++) {
        struct weir__output *o = &weir__.outputs[i];
        if (o->count) weir__emit((uint32_t)o->index, o->buf, o->len, o->count);
    }
    return 0;
}

WEIR__INLINE int weir__run(weir_process_func process, uint32_t input, const uint8_t *p, uint32_t len, uint32_t count) {
    if (p != weir__.input || len > weir__.input_size) return weir_fail("malformed batch from the host");
    weir__begin();
    const uint8_t *end = p + len;
    weir_record r;
    r.input = input;
    for (; count > 0; count--) {
        uint32_t left = (uint32_t)(end - p);
        if (left < 16) return weir_fail("malformed batch from the host");
        uint32_t after = weir__u32(p), key = weir__u16(p + 12), headers = weir__u16(p + 14);
        if (after > left - 4 || after < 12 || key + headers > after - 12) return weir_fail("malformed batch from the host");
        r.time = (int64_t)weir__u64(p + 4);
        r.key = weir_make(p + 16, key);
        r.headers = weir_make(p + 16 + key, headers);
        r.value = weir_make(p + 16 + key + headers, after - 12 - key - headers);
        int status = process(&r);
        if (status) return status;
        p += 4 + after;
    }
    return weir__finish(0);
}

typedef int (*weir_timer_func)(const weir_timer *);
typedef int (*weir_watermark_func)(int64_t at);
typedef int (*weir_end_func)(void);

WEIR__INLINE int weir__fire(weir_timer_func on_timer, uint32_t kind, int64_t at, const uint8_t *p, uint32_t len) {
    if (p != weir__.input || len > weir__.input_size) return weir_fail("malformed timer from the host");
    if (!on_timer) return weir_fail("a timer is due and WEIR_TIME has no on_timer");
    weir__begin();
    weir_timer t = {(weir_timer_kind)kind, at, weir_make(p, len)};
    return weir__finish(on_timer(&t));
}

#define WEIR__EXPORT(name) __attribute__((export_name(name), visibility("default")))

/* WEIR_OPERATOR makes the module: init, or NULL, is called once before the first record and opens side
 * outputs and reads the configuration; process is called for each record, in order. Both return 0, or
 * the result of weir_fail: a failure at this record, after which the operator's state is put back to
 * what it was before. */
#define WEIR_OPERATOR(init, process)                                                                          \
    struct weir__state weir__;                                                                                \
    WEIR__EXPORT("weir_abi_v1") void weir__export_abi(void);                                                  \
    WEIR__EXPORT("weir_alloc") void *weir__export_alloc(uint32_t size);                                       \
    WEIR__EXPORT("weir_init") int weir__export_init(void);                                                    \
    WEIR__EXPORT("weir_process") int weir__export_process(uint32_t in, const uint8_t *p, uint32_t n, uint32_t count); \
    void weir__export_abi(void) {}                                                                            \
    void *weir__export_alloc(uint32_t size) { return weir__alloc(size); }                                     \
    int weir__export_init(void) {                                                                             \
        weir_output("out");                                                                                   \
        weir_init_func f = (init);                                                                            \
        return f ? f() : 0;                                                                                   \
    }                                                                                                         \
    int weir__export_process(uint32_t in, const uint8_t *p, uint32_t n, uint32_t count) {                     \
        return weir__run(process, in, p, n, count);                                                           \
    }

/* WEIR_TIME, behind WEIR_OPERATOR, takes what time makes due; each of the three may be NULL: on_timer is called
 * for a timer that is due, on_watermark when the watermark has moved, after its timers, on_end when the
 * input has ended; nothing follows. They return like process, and may emit. */
#define WEIR_TIME(on_timer, on_watermark, on_end)                                                             \
    WEIR__EXPORT("weir_timer") int weir__export_timer(uint32_t kind, int64_t at, const uint8_t *p, uint32_t n); \
    WEIR__EXPORT("weir_watermark") int weir__export_watermark(int64_t at);                                    \
    WEIR__EXPORT("weir_end") int weir__export_end(void);                                                      \
    int weir__export_timer(uint32_t kind, int64_t at, const uint8_t *p, uint32_t n) {                         \
        return weir__fire(on_timer, kind, at, p, n);                                                          \
    }                                                                                                         \
    int weir__export_watermark(int64_t at) {                                                                  \
        weir_watermark_func f = (on_watermark);                                                               \
        weir__begin();                                                                                        \
        return f ? weir__finish(f(at)) : 0;                                                                   \
    }                                                                                                         \
    int weir__export_end(void) {                                                                              \
        weir_end_func f = (on_end);                                                                           \
        weir__begin();                                                                                        \
        return f ? weir__finish(f()) : 0;                                                                     \
    }

typedef int (*weir_migrate_out_func)(weir_bytes *state);
typedef int (*weir_migrate_in_func)(weir_bytes state);

/* WEIR_MIGRATE, behind WEIR_OPERATOR, lets variables survive an upgrade; without it, in both versions, they begin
 * anew. Keyed state needs none of it. give is called once in the old version, when the upgrade takes its place among
 * the records, and lets *state refer to what the new one is to have, at most 16 MiB; the bytes must stay after it has
 * returned, so they are not in its frame. take is called once in the new version, after init, with what an
 * older version gave, or after a roll-back a newer one: begin with a number of the format. state is valid until take
 * returns. Both return 0, or the result of weir_fail: the upgrade is refused, and the old version goes on. */
#define WEIR_MIGRATE(give, take)                                                                              \
    WEIR__EXPORT("weir_migrate_out") int64_t weir__export_migrate_out(void);                                  \
    WEIR__EXPORT("weir_migrate_in") int weir__export_migrate_in(const uint8_t *p, uint32_t n);                \
    int64_t weir__export_migrate_out(void) {                                                                  \
        weir_migrate_out_func f = (give);                                                                     \
        weir_bytes state = {NULL, 0};                                                                         \
        return f(&state) ? -1 : (int64_t)((uint64_t)(uintptr_t)state.ptr << 32 | state.len);                  \
    }                                                                                                         \
    int weir__export_migrate_in(const uint8_t *p, uint32_t n) {                                               \
        weir_migrate_in_func f = (take);                                                                      \
        if (p != weir__.input || n > weir__.input_size) return weir_fail("malformed state from the host");    \
        return f(weir_make(p, n));                                                                            \
    }

#endif /* WEIR_H */
