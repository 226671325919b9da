/* The operators of the evaluation's graph. config step: "map" gives each record another key, as spread out as
 * the one it had, so that the shuffle behind it is a full one; "aggregate" counts and sums by key.
 *
 * salt:    decides the new keys of map
 * slots:   of the aggregate's table, a power of two above the number of keys
 * memory:  KiB that aggregate fills, as state that it has; a record changes one page of the first `hot` KiB
 * emit:    0: aggregate passes nothing on */
#include "weir.h"

typedef struct {
    uint64_t key; /* hash; 0: free */
    uint64_t count, sum;
} slot;

static bool aggregate, emit;
static int64_t salt, slots, memory, hot;
static slot *table;
static uint8_t *room;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t hash(weir_bytes b) {
    uint64_t h = 14695981039346656037u;
    for (uint32_t i = 0; i < b.len; i++) h = (h ^ b.ptr[i]) * 1099511628211u;
    return mix(h);
}

/* number reads the digits behind {"n": */
static uint64_t number(weir_bytes v) {
    uint64_t n = 0;
    for (uint32_t i = 5; i < v.len && v.ptr[i] >= '0' && v.ptr[i] <= '9'; i++) n = n * 10 + (v.ptr[i] - '0');
    return n;
}

static void *pages(uint64_t bytes) {
    size_t at = __builtin_wasm_memory_grow(0, (bytes + 65535) / 65536);
    if (at == (size_t)-1) weir_die("out of memory");
    return (void *)(at * 65536);
}

static int init(void) {
    char step[16];
    int32_t n = weir_config("step", step, sizeof step);
    int64_t passes = 1;
    aggregate = n == 9;
    slots = 1 << 16;
    weir_config_int("salt", &salt);
    weir_config_int("slots", &slots);
    weir_config_int("memory", &memory);
    weir_config_int("hot", &hot);
    weir_config_int("emit", &passes);
    emit = passes != 0;
    if (!aggregate) return 0;
    table = pages(slots * sizeof(slot));
    if (memory > 0) {
        room = pages(memory << 10);
        for (int64_t i = 0; i < memory << 10; i += 512) *(uint64_t *)(room + i) = mix(i + 1);
    }
    return 0;
}

static int process(const weir_record *r) {
    uint64_t h = hash(r->key);
    if (!aggregate) {
        uint64_t k = mix(h + salt);
        uint8_t key[8];
        for (int i = 0; i < 8; i++, k >>= 4) key[i] = "0123456789abcdef"[k & 15];
        weir_emit(WEIR_OUT, weir_make(key, 8), r->time, r->value);
        return 0;
    }
    h |= 1;
    uint64_t i = h >> 1 & (slots - 1), tries = 0;
    while (table[i].key != h && table[i].key != 0) {
        if (++tries == (uint64_t)slots) return weir_fail("the table is full: give it more slots");
        i = (i + 1) & (slots - 1);
    }
    table[i].key = h;
    table[i].count++;
    table[i].sum += number(r->value);
    if (hot > 0) ++*(uint64_t *)(room + (table[i].count * 4096 + (h & 0xffff) * 4096) % (hot << 10));
    if (emit) weir_emit(WEIR_OUT, r->key, r->time, r->value);
    return 0;
}

WEIR_OPERATOR(init, process)
