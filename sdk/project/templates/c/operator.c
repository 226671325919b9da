/* The operator: sums the readings of each key. */
#include "weir.h"

static uint8_t name[256];
static weir_bytes field; /* JSON field that holds the reading */

/* What is known of one key. Variables are state: the host captures and restores them. */
typedef struct {
    int64_t n;
    double sum;
} total;

static weir_map totals = {.value_size = sizeof(total)};

static int start(void) {
    int32_t n = weir_config("field", name, sizeof name);
    if (n > (int32_t)sizeof name) return weir_fail("config field: at most 256 bytes");
    field = n < 0 ? weir_lit("v") : weir_make(name, (uint32_t)n);
    return 0;
}

static int process(const weir_record *r) {
    double v;
    if (!weir_json_number(r->value, field, &v)) {
        weir_count("not_a_reading", 1);
        return 0;
    }
    total *t = (total *)weir_map_at(&totals, r->key);
    t->n++;
    t->sum += v;
    WEIR_TEXT(text, 128);
    weir_put(&text, weir_lit("{\"n\":"));
    weir_put_int(&text, t->n);
    weir_put(&text, weir_lit(",\"sum\":"));
    weir_put_fixed(&text, t->sum, 3);
    weir_put_byte(&text, '}');
    weir_emit(WEIR_OUT, r->key, r->time, weir_text_bytes(&text));
    return 0;
}

WEIR_OPERATOR(start, process)
