/* The benchmark's operator in C, against the ABI itself (wasmops/abi.go): it passes on the records whose
 * JSON field value is above 50. */
#define IMPORT(n) __attribute__((import_module("weir"), import_name(n)))
#define EXPORT(n) __attribute__((export_name(n)))

typedef unsigned char u8;
typedef unsigned int u32;

IMPORT("emit") void emit(u32 output, const u8 *ptr, u32 len, u32 count);
IMPORT("output_open") int output_open(const char *name, u32 len);

enum { ROOM = 4 << 20 }; /* bytes of a batch: the host makes none as large */
static u8 in[ROOM], out[ROOM];
static int output;

EXPORT("weir_abi_v1") void weir_abi_v1(void) {}
EXPORT("weir_alloc") u8 *weir_alloc(u32 size) { return size <= ROOM ? in : 0; }
EXPORT("weir_init") int weir_init(void) { return output = output_open("out", 3), 0; }

/* above reads the number behind "value": and says whether it is above 50. */
static int above(const u8 *p, const u8 *end) {
    static const char name[] = "\"value\":";
    for (; end - p > 8; p++) {
        u32 i = 0;
        while (i < 8 && p[i] == (u8)name[i]) i++;
        if (i == 8) break;
    }
    if (end - p <= 8) return 0;
    p += 8;
    if (*p == '-') return 0;
    double v = 0, unit = 1;
    for (; p < end && *p >= '0' && *p <= '9'; p++) v = v * 10 + (*p - '0');
    if (p < end && *p == '.')
        for (p++; p < end && *p >= '0' && *p <= '9'; p++) v += (*p - '0') * (unit /= 10);
    return v > 50;
}

EXPORT("weir_process") int weir_process(u32 input, const u8 *p, u32 len, u32 count) {
    const u8 *end = p + len;
    u32 n = 0, used = 0;
    while (p < end) {
        u32 size = 4 + *(const u32 *)p, head = 16 + *(const unsigned short *)(p + 12) + *(const unsigned short *)(p + 14);
        if (above(p + head, p + size)) {
            __builtin_memcpy(out + used, p, size);
            used += size;
            n++;
        }
        p += size;
    }
    if (n) emit(output, out, used, n);
    return 0;
}
