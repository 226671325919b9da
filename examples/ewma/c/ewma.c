/* Ewma smooths the readings of each sensor with an exponentially weighted moving average, and reports
 * a reading that lies far from it on the output "alerts". Its state is a map in memory. */
#include "weir.h"

static double alpha = 0.2;   /* weight of a new reading, above 0 and at most 1 */
static double deviation = 4; /* how many times the usual deviation a reading may be off */
static int64_t warmup = 5;   /* readings of a sensor before it can raise an alert */
static uint8_t field_name[256];
static weir_bytes field; /* JSON field that holds the reading */
static int alerts;

/* What is known of one sensor. */
typedef struct {
    double mean;
    double spread; /* smoothed absolute deviation */
    int64_t seen;
} sensor;

static weir_map sensors = {.value_size = sizeof(sensor)};

static int start(void) {
    alerts = weir_output("alerts");
    if (!weir_config_double("alpha", &alpha) || !weir_config_double("deviation", &deviation) || !weir_config_int("warmup", &warmup))
        return 1;
    int32_t n = weir_config("field", field_name, sizeof field_name);
    if (n > (int32_t)sizeof field_name) return weir_fail("config field: at most 256 bytes");
    field = n < 0 ? weir_lit("v") : weir_make(field_name, (uint32_t)n);
    if (!(alpha > 0 && alpha <= 1)) return weir_fail("config alpha: must be above 0 and at most 1");
    return 0;
}

/* A bare number, or an object with a number in the field. */
static bool reading(weir_bytes value, double *v) { return weir_json_number(value, field, v) || weir_number(value, v); }

static int process(const weir_record *r) {
    double v;
    if (!reading(r->value, &v)) {
        weir_count("not_a_reading", 1);
        return 0;
    }
    sensor *s = (sensor *)weir_map_at(&sensors, r->key);
    if (s->seen == 0) s->mean = v;
    double off = v > s->mean ? v - s->mean : s->mean - v;
    WEIR_TEXT(t, 128);
    if (s->seen >= warmup && off > deviation * s->spread) {
        weir_put(&t, weir_lit("{\"v\":"));
        weir_put_fixed(&t, v, 3);
        weir_put(&t, weir_lit(",\"mean\":"));
        weir_put_fixed(&t, s->mean, 3);
        weir_put_byte(&t, '}');
        weir_emit(alerts, r->key, r->time, weir_text_bytes(&t));
        t.len = 0;
    }
    s->mean += alpha * (v - s->mean);
    s->spread += alpha * (off - s->spread);
    s->seen++;
    weir_put(&t, weir_lit("{\"v\":"));
    weir_put_fixed(&t, s->mean, 3);
    weir_put_byte(&t, '}');
    weir_emit(WEIR_OUT, r->key, r->time, weir_text_bytes(&t));
    return 0;
}

WEIR_OPERATOR(start, process)
