// Weir operators in AssemblyScript, in this one file.
//
//     import * as weir from "./weir";
//     export { weir_abi_v1, weir_alloc, weir_init, weir_process } from "./weir";
//
//     let seen: i64 = 0; // ordinary variables are state: the host captures and restores them
//     const text = new weir.Text();
//
//     weir.register((r: weir.Record): bool => {
//       text.clear();
//       text.putInt(++seen);
//       weir.emit(weir.OUT, r.key, r.time, text);
//       return true;
//     });
//
// Build it with (npm: assemblyscript)
//
//     asc assembly/index.ts -O3 --use abort=assembly/weir/weirAbort -o operator.wasm
//
// Nothing here allocates per record, once its buffers have grown. The classes are unmanaged: the collector neither
// sees nor frees them, so make them once, as above, and not for each record. Your own classes and strings
// are collected as usual. What a module imports and exports is described in docs/abi.md.

// ---- The host's functions ----

// @ts-ignore: decorator
@external("weir", "emit") declare function hostEmit(output: i32, ptr: usize, len: i32, count: i32): void;
// @ts-ignore: decorator
@external("weir", "output_open") declare function hostOutputOpen(name: usize, len: i32): i32;
// @ts-ignore: decorator
@external("weir", "config_get") declare function hostConfigGet(key: usize, len: i32, out: usize, cap: i32): i32;
// @ts-ignore: decorator
@external("weir", "state_get") declare function hostStateGet(key: usize, len: i32, out: usize, cap: i32): i32;
// @ts-ignore: decorator
@external("weir", "state_put") declare function hostStatePut(key: usize, len: i32, value: usize, valueLen: i32): void;
// @ts-ignore: decorator
@external("weir", "state_delete") declare function hostStateDelete(key: usize, len: i32): i32;
// @ts-ignore: decorator
@external("weir", "state_scan") declare function hostStateScan(prefix: usize, prefixLen: i32, after: usize, afterLen: i32, out: usize, cap: i32): i32;
// @ts-ignore: decorator
@external("weir", "log") declare function hostLog(level: i32, ptr: usize, len: i32): void;
// @ts-ignore: decorator
@external("weir", "counter_add") declare function hostCounterAdd(name: usize, len: i32, delta: i64): void;
// @ts-ignore: decorator
@external("weir", "gauge_set") declare function hostGaugeSet(name: usize, len: i32, value: f64): void;
// @ts-ignore: decorator
@external("weir", "clock_ms") declare function hostClockMs(): i64;
// @ts-ignore: decorator
@external("weir", "state_put_until") declare function hostStatePutUntil(key: usize, len: i32, value: usize, valueLen: i32, until: i64): void;
// @ts-ignore: decorator
@external("weir", "timer_set") declare function hostTimerSet(kind: i32, at: i64, key: usize, len: i32): void;
// @ts-ignore: decorator
@external("weir", "timer_clear") declare function hostTimerClear(kind: i32, at: i64, key: usize, len: i32): i32;
// @ts-ignore: decorator
@external("weir", "watermark") declare function hostWatermark(): i64;
// @ts-ignore: decorator
@external("weir", "fail") declare function hostFail(ptr: usize, len: i32): void;

// ---- Bytes and text ----

/** Bytes somewhere in memory; those of a record are borrowed until the process function returns. */
@unmanaged
export class Bytes {
  ptr: usize = 0;
  len: i32 = 0;

  /** Makes it refer to other bytes. */
  // @ts-ignore: decorator
  @inline set(ptr: usize, len: i32): void {
    this.ptr = ptr;
    this.len = len;
  }

  /** The byte at a place, which must be within. */
  // @ts-ignore: decorator
  @inline at(i: i32): u8 {
    return load<u8>(this.ptr + <usize>i);
  }

  // @ts-ignore: decorator
  @inline equals(b: Bytes): bool {
    return equal(this.ptr, this.len, b.ptr, b.len);
  }

  /** A copy as a string, from UTF-8. It allocates. */
  toString(): string {
    return String.UTF8.decodeUnsafe(this.ptr, this.len);
  }
}

/** The UTF-8 of a string, kept for ever: for names that are made once. */
export function utf8(s: string): Bytes {
  const b = new Bytes();
  b.ptr = heap.alloc(<usize>String.UTF8.byteLength(s));
  b.len = <i32>String.UTF8.encodeUnsafe(changetype<usize>(s), s.length, b.ptr);
  return b;
}

/** Bytes that grow: text being written. */
@unmanaged
export class Text extends Bytes {
  private cap: i32 = 0;

  // @ts-ignore: decorator
  @inline clear(): void {
    this.len = 0;
  }

  /** Makes room for so many more bytes. */
  // @ts-ignore: decorator
  @inline reserve(more: i32): void {
    if (this.cap - this.len < more) this.grow(more);
  }

  private grow(more: i32): void {
    this.cap = max(max(this.len + more, this.cap * 2), 64);
    this.ptr = this.ptr ? heap.realloc(this.ptr, <usize>this.cap) : heap.alloc(<usize>this.cap);
  }

  room(): i32 {
    return this.cap;
  }

  // @ts-ignore: decorator
  @inline put(b: Bytes): void {
    this.putRaw(b.ptr, b.len);
  }

  // @ts-ignore: decorator
  @inline putRaw(ptr: usize, len: i32): void {
    this.reserve(len);
    copy(this.ptr + <usize>this.len, ptr, len);
    this.len += len;
  }

  // @ts-ignore: decorator
  @inline putByte(c: u8): void {
    this.reserve(1);
    store<u8>(this.ptr + <usize>this.len, c);
    this.len++;
  }

  putString(s: string): void {
    this.reserve(<i32>String.UTF8.byteLength(s));
    this.len += <i32>String.UTF8.encodeUnsafe(changetype<usize>(s), s.length, this.ptr + <usize>this.len);
  }

  putInt(v: i64): void {
    if (v < 0) this.putByte(0x2d);
    this.putUnsigned(v < 0 ? 0 - <u64>v : <u64>v);
  }

  private putUnsigned(u: u64): void {
    const end = DIGITS + 20;
    let at = end;
    do {
      at--;
      store<u8>(at, 0x30 + <u8>(u % 10));
      u /= 10;
    } while (u);
    this.putRaw(at, <i32>(end - at));
  }

  /** Puts a number rounded to so many decimals (0 to 9), half away from zero, without zeros at the end: the
   *  same text in every language's SDK. What cannot be written so, because it is infinite, not a number, or v
   *  times 10 to the power of decimals is 2^63 or more, becomes null. */
  putFixed(v: f64, decimals: i32): void {
    if (decimals < 0 || decimals > 9) die("putFixed: 0 to 9 decimals");
    let p: u64 = 1;
    for (let i = 0; i < decimals; i++) p *= 10;
    const x = v * <f64>p;
    if (!(x < 9223372036854775808.0 && x > -9223372036854775808.0)) {
      this.putString("null");
      return;
    }
    let i = <i64>x;
    const off = x - <f64>i;
    if (off >= 0.5) i++;
    else if (off <= -0.5) i--;
    if (i < 0) this.putByte(0x2d);
    let u = i < 0 ? 0 - <u64>i : <u64>i;
    this.putUnsigned(u / p);
    u %= p;
    if (u) this.putByte(0x2e);
    while (u) {
      p /= 10;
      this.putByte(0x30 + <u8>(u / p));
      u %= p;
    }
  }

  /** Puts a JSON string. Bytes that are not ASCII are put as they are. */
  putJson(b: Bytes): void {
    this.putByte(0x22);
    for (let i = 0; i < b.len; i++) {
      const c = b.at(i);
      if (c == 0x22 || c == 0x5c) {
        this.putByte(0x5c);
        this.putByte(c);
      } else if (c < 0x20) {
        this.putString("\\u00");
        this.putByte(hex(c >> 4));
        this.putByte(hex(c & 15));
      } else {
        this.putByte(c);
      }
    }
    this.putByte(0x22);
  }
}

const DIGITS: usize = memory.data(20);

function hex(d: u8): u8 {
  return d < 10 ? 0x30 + d : 0x57 + d;
}

/** Copies short runs, as keys are, in words: a call costs more. */
// @ts-ignore: decorator
@inline function copy(to: usize, from: usize, len: i32): void {
  const n = <usize>len;
  if (n > 64) {
    memory.copy(to, from, n);
  } else if (n >= 8) {
    const last = load<u64>(from + n - 8);
    const end = to + n - 8;
    while (to < end) {
      store<u64>(to, load<u64>(from));
      to += 8;
      from += 8;
    }
    store<u64>(end, last);
  } else if (n >= 4) {
    const first = load<u32>(from);
    const last = load<u32>(from + n - 4);
    store<u32>(to, first);
    store<u32>(to + n - 4, last);
  } else if (n > 0) {
    store<u8>(to, load<u8>(from));
    store<u8>(to + (n >> 1), load<u8>(from + (n >> 1)));
    store<u8>(to + n - 1, load<u8>(from + n - 1));
  }
}

// @ts-ignore: decorator
@inline function equal(a: usize, alen: i32, b: usize, blen: i32): bool {
  if (alen != blen) return false;
  let i = 0;
  for (; i + 8 <= alen; i += 8) {
    if (load<u64>(a + <usize>i) != load<u64>(b + <usize>i)) return false;
  }
  for (; i < alen; i++) {
    if (load<u8>(a + <usize>i) != load<u8>(b + <usize>i)) return false;
  }
  return true;
}

// ---- Failure, log, counters, clock ----

const said: Text = new Text(); // what is being told to the host

function say(s: string): Text {
  said.clear();
  said.putString(s);
  return said;
}

/** Gives the reason of a failure and returns false: return weir.fail("no such machine"). The record is then
 *  given up as the job says (on_error), and the operator's state put back to what it was before. */
export function fail(reason: string): bool {
  return failBytes(say(reason));
}

export function failBytes(reason: Bytes): bool {
  hostFail(reason.ptr, reason.len);
  return false;
}

/** Fails at once, from anywhere. */
export function die(reason: string): void {
  fail(reason);
  unreachable();
}

/** What a failed assertion, a wrong index or a throw comes to; named by --use. It uses no variables of this
 *  file: they may not be there yet. */
export function weirAbort(message: string | null, file: string | null, line: u32, column: u32): void {
  const start = memory.data(2048);
  let p = start;
  const what = message ? message : "aborted", where = file ? file : "?";
  p += String.UTF8.encodeUnsafe(changetype<usize>(what), min(what.length, 300), p);
  p += String.UTF8.encodeUnsafe(changetype<usize>(" ("), 2, p);
  p += String.UTF8.encodeUnsafe(changetype<usize>(where), min(where.length, 300), p);
  p = writePlace(p, line);
  p = writePlace(p, column);
  store<u8>(p++, 0x29);
  hostFail(start, <i32>(p - start));
  unreachable();
}

function writePlace(p: usize, n: u32): usize {
  store<u8>(p++, 0x3a);
  let digits: u32 = 1;
  while (n / digits >= 10) digits *= 10;
  for (; digits; digits /= 10) store<u8>(p++, 0x30 + <u8>((n / digits) % 10));
  return p;
}

export enum Level {
  Debug,
  Info,
  Warn,
  Error,
}

/** Writes a line to the agent's log. Lines beyond the host's rate are dropped and counted. */
export function log(level: Level, text: string): void {
  logBytes(level, say(text));
}

export function logBytes(level: Level, text: Bytes): void {
  hostLog(level, text.ptr, text.len);
}

/** Adds to a counter of this operator, which the agent shows as a metric. Counters and gauges have 64 names
 *  together. */
export function count(counter: string, delta: i64): void {
  countBytes(say(counter), delta);
}

export function countBytes(counter: Bytes, delta: i64): void {
  hostCounterAdd(counter.ptr, counter.len, delta);
}

/** Sets a gauge of this operator, which the agent shows as a metric. */
export function gauge(gauge: string, value: f64): void {
  gaugeBytes(say(gauge), value);
}

export function gaugeBytes(gauge: Bytes, value: f64): void {
  hostGaugeSet(gauge.ptr, gauge.len, value);
}

/** The host's clock in milliseconds since 1970: the time at which the agent logged the records that are
 *  being processed. It is 0 in the init function. */
export function now(): i64 {
  return hostClockMs();
}

// ---- Records and outputs ----

/** The output that every operator has, called "out". */
export const OUT: i32 = 0;
/** Largest record in bytes, with 16 bytes for what is not key, headers and value. */
export const MAX_RECORD: i32 = 256 << 10;
/** Longest key of a record in bytes. */
export const MAX_KEY: i32 = 8 << 10;

/** One record. What it refers to is borrowed until the process function returns. */
@unmanaged
export class Record {
  /** Event time in milliseconds since 1970. */
  time: i64 = 0;
  key: Bytes = new Bytes();
  /** Encoded; see header. */
  headers: Bytes = new Bytes();
  value: Bytes = new Bytes();
  /** Index of the operator's input, in the order of the job. Not used when a record is emitted. */
  input: i32 = 0;

  /** Finds a header and makes value refer to it; false if there is none. A message's MQTT topic is in
   *  "topic". */
  header(name: Bytes, value: Bytes): bool {
    let p = this.headers.ptr;
    const end = p + <usize>this.headers.len;
    while (end - p >= 3) {
      const n = <i32>load<u8>(p), v = <i32>load<u16>(p + 1);
      if (<usize>(3 + n + v) > end - p) return false;
      if (equal(p + 3, n, name.ptr, name.len)) {
        value.set(p + 3 + <usize>n, v);
        return true;
      }
      p += <usize>(3 + n + v);
    }
    return false;
  }
}

@unmanaged
class Output {
  buf: Text = new Text();
  count: i32 = 0;
  index: i32 = -1; // the host's; -1: the job does not use it
}

const MAX_OUTPUTS: i32 = 64;
const OUTPUTS: usize = memory.data(64 * 4, 4);
let outputs: i32 = 0;

// @ts-ignore: decorator
@inline function outputAt(i: i32): Output {
  return changetype<Output>(load<usize>(OUTPUTS + (<usize>i << 2)));
}

const nothing: Bytes = new Bytes();

/** Opens a side output; called in the init function. What is emitted on an output that the job does not
 *  use is dropped. */
export function output(name: string): i32 {
  if (outputs == MAX_OUTPUTS) die("more than 64 outputs");
  const n = say(name), o = new Output();
  o.index = hostOutputOpen(n.ptr, n.len);
  store<usize>(OUTPUTS + (<usize>outputs << 2), changetype<usize>(o));
  return outputs++;
}

// @ts-ignore: decorator
@inline function add(out: i32, key: Bytes, headers: Bytes, time: i64, value: Bytes): void {
  if (<u32>out >= <u32>outputs) die("no such output");
  const o = outputAt(out);
  if (o.index < 0) return;
  const size = 16 + key.len + headers.len + value.len;
  if (key.len > MAX_KEY || headers.len > 65535 || value.len > MAX_RECORD || size > MAX_RECORD) {
    die("emitted record is too large: at most 262144 bytes, its key 8192");
  }
  const buf = o.buf;
  buf.reserve(size);
  let p = buf.ptr + <usize>buf.len;
  store<u32>(p, <u32>(size - 4));
  store<i64>(p, time, 4);
  store<u16>(p, <u16>key.len, 12);
  store<u16>(p, <u16>headers.len, 14);
  p += 16;
  copy(p, key.ptr, key.len);
  p += <usize>key.len;
  copy(p, headers.ptr, headers.len);
  copy(p + <usize>headers.len, value.ptr, value.len);
  buf.len += size;
  o.count++;
}

/** Emits a record on an output: OUT, or what output returned. Time is the event time in milliseconds since
 *  1970. All is copied. */
export function emit(out: i32, key: Bytes, time: i64, value: Bytes): void {
  add(out, key, nothing, time, value);
}

/** Emits a whole record, with its headers. */
export function emitRecord(out: i32, r: Record): void {
  add(out, r.key, r.headers, r.time, r.value);
}

// ---- Configuration ----

/** Reads a configuration value into text; false if it is not set. */
export function config(key: string, into: Text): bool {
  const k = say(key);
  into.clear();
  into.reserve(64);
  let n = hostConfigGet(k.ptr, k.len, into.ptr, into.room());
  if (n < 0) return false;
  if (n > into.room()) {
    into.reserve(n);
    n = hostConfigGet(k.ptr, k.len, into.ptr, into.room());
  }
  into.len = n;
  return true;
}

/** A configuration value as a string, or the fallback. */
export function configString(key: string, fallback: string): string {
  const v = new Text();
  return config(key, v) ? v.toString() : fallback;
}

/** The number that a key is set to, or the fallback. What is set to something else fails. */
export function configNumber(key: string, fallback: f64): f64 {
  const v = new Text();
  if (!config(key, v)) return fallback;
  if (!number(v)) wrong(key, v, "a number");
  return parsed;
}

/** The whole number that a key is set to, or the fallback. What is set to something else fails. */
export function configInt(key: string, fallback: i64): i64 {
  const v = new Text();
  if (!config(key, v)) return fallback;
  let i = v.len > 0 && (v.at(0) == 0x2d || v.at(0) == 0x2b) ? 1 : 0;
  let ok = v.len > i && v.len - i < 19;
  let x: i64 = 0;
  for (; ok && i < v.len; i++) {
    const d = <u32>v.at(i) - 0x30;
    ok = d <= 9;
    x = x * 10 + <i64>d;
  }
  if (!ok) wrong(key, v, "a whole number");
  return v.at(0) == 0x2d ? -x : x;
}

function wrong(key: string, value: Bytes, what: string): void {
  const t = new Text();
  t.putString("config ");
  t.putString(key);
  t.putString(": ");
  t.putJson(value);
  t.putString(" is not ");
  t.putString(what);
  failBytes(t);
  unreachable();
}

// ---- Keyed state: kept by the host by key, may exceed memory, follows its keys in a rescaling ----

/** Reads the value of a key into text; false if there is none. Keys have 1 to 4,096 bytes, values up to
 *  1 MiB. */
export function stateGet(key: Bytes, into: Text): bool {
  into.clear();
  into.reserve(64);
  let n = hostStateGet(key.ptr, key.len, into.ptr, into.room());
  if (n < 0) return false;
  if (n > into.room()) {
    into.reserve(n);
    n = hostStateGet(key.ptr, key.len, into.ptr, into.room());
  }
  into.len = n;
  return true;
}

export function statePut(key: Bytes, value: Bytes): void {
  hostStatePut(key.ptr, key.len, value.ptr, value.len);
}

/** Sets the value of a key for a time: it is gone once the watermark has reached until, in milliseconds since
 *  1970. statePut makes it stay again. */
export function statePutUntil(key: Bytes, value: Bytes, until: i64): void {
  hostStatePutUntil(key.ptr, key.len, value.ptr, value.len, until);
}

/** Removes a key and says whether it was there. */
export function stateDelete(key: Bytes): bool {
  return hostStateDelete(key.ptr, key.len) != 0;
}

/** Visits the keys that begin with a prefix in byte order:
 *  for (scan.start(prefix); scan.next(); ) … scan.key … scan.value … They are borrowed until next. */
@unmanaged
export class Scan {
  key: Bytes = new Bytes();
  value: Bytes = new Bytes();
  private buf: Text = new Text();
  private after: Text = new Text();
  private prefix: Text = new Text();
  private at: i32 = 0;

  start(prefix: Bytes): void {
    this.buf.clear();
    this.buf.reserve(16 << 10);
    this.after.clear();
    this.prefix.clear();
    this.prefix.put(prefix);
    this.at = 0;
  }

  next(): bool {
    const buf = this.buf, after = this.after;
    while (this.at == buf.len) {
      buf.clear();
      this.at = 0;
      const n = hostStateScan(this.prefix.ptr, this.prefix.len, after.ptr, after.len, buf.ptr, buf.room());
      if (n == 0) return false;
      if (n < 0) buf.reserve(-n);
      else buf.len = n;
    }
    const p = buf.ptr + <usize>this.at;
    this.key.set(p + 8, load<i32>(p));
    this.value.set(p + 8 + <usize>this.key.len, load<i32>(p, 4));
    this.at += 8 + this.key.len + this.value.len;
    if (this.at == buf.len) {
      after.clear();
      after.put(this.key);
    }
    return true;
  }
}

// ---- Numbers and JSON ----

/** What number or jsonNumber has read. */
export let parsed: f64 = 0;

const POWERS: StaticArray<f64> = [
  1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
const MAX_DIGITS: i32 = 800; // 768 and a sticky bit decide any rounding
const SIGNIFICANT: usize = memory.data(800);
const LIMBS: usize = memory.data(288 * 4, 8); // 800 digits, shifted by what dividing them by 10^1130 takes

// @ts-ignore: decorator
@inline function limb(i: i32): u64 {
  return <u64>load<u32>(LIMBS + (<usize>i << 2));
}

// @ts-ignore: decorator
@inline function setLimb(i: i32, v: u64): void {
  store<u32>(LIMBS + (<usize>i << 2), <u32>v);
}

/** Rounds n digits times 10^exp to the nearest number, half to even; sticky says that digits were cut off.
 *  It is only for what double arithmetic does not give exactly. */
function exact(n: i32, exp: i32, sticky: bool): f64 {
  let len = 0; // of a large number in limbs of 32 bits, little-endian
  const total = n + max(exp, 0);
  for (let i = 0; i < total; i++) {
    let carry: u64 = i < n ? <u64>load<u8>(SIGNIFICANT + <usize>i) : 0;
    for (let j = 0; j < len; j++) {
      carry += limb(j) * 10;
      setLimb(j, carry);
      carry >>= 32;
    }
    if (carry) setLimb(len++, carry);
  }
  if (len == 0) return 0;
  // Shifted by whole limbs, so that at least 64 bits are left after dividing.
  let divs = max(-exp, 0);
  const shift = divs / 9 + 4;
  for (let j = len - 1; j >= 0; j--) setLimb(j + shift, limb(j));
  for (let j = 0; j < shift; j++) setLimb(j, 0);
  len += shift;
  while (divs > 0) {
    const step = min(divs, 9);
    let by: u64 = 1;
    for (let i = 0; i < step; i++) by *= 10;
    let rest: u64 = 0;
    for (let j = len - 1; j >= 0; j--) {
      rest = (rest << 32) | limb(j);
      setLimb(j, rest / by);
      rest %= by;
    }
    if (rest) sticky = true;
    if (limb(len - 1) == 0) len--;
    divs -= step;
  }
  // The highest 64 bits; all others only count as more than nothing.
  const zeros = <i32>clz<u32>(<u32>limb(len - 1));
  const high = (limb(len - 1) << 32) | limb(len - 2), low = limb(len - 3);
  const m = zeros ? (high << zeros) | (low >> (32 - zeros)) : high;
  if (<u32>(low << zeros)) sticky = true;
  for (let j = 0; j < len - 3; j++) {
    if (limb(j)) sticky = true;
  }
  const e = len * 32 - zeros - 1 - shift * 32; // m is 1.… times 2^e
  if (e > 1023) return Infinity;
  const drop = e >= -1022 ? 11 : 11 + (-1022 - e);
  if (drop > 64) return 0;
  let q: u64 = drop == 64 ? 0 : m >> drop;
  const half: u64 = (<u64>1) << (drop - 1);
  const rest = drop == 64 ? m : m & (half * 2 - 1);
  if (rest > half || (rest == half && (sticky || (q & 1) != 0))) q++;
  return reinterpret<f64>(e >= -1022 ? ((<u64>(e + 1022)) << 52) + q : q);
}

/** Reads a decimal number, as in JSON, into parsed: the nearest double, as every language's SDK reads it. False
 *  if b is something else, or too large for a double. */
export function number(b: Bytes): bool {
  let p = b.ptr;
  const end = p + <usize>b.len;
  const negative = p < end && load<u8>(p) == 0x2d;
  if (p < end && (load<u8>(p) == 0x2d || load<u8>(p) == 0x2b)) p++;
  let any = false, point = false, sticky = false;
  let n = 0, exp = 0;
  let m: u64 = 0;
  for (; p < end; p++) {
    const c = load<u8>(p);
    if (c == 0x2e && !point) {
      point = true;
      continue;
    }
    const d = <u32>c - 0x30;
    if (d > 9) break;
    any = true;
    if (point) exp--;
    if (n == 0 && d == 0) continue;
    if (n < MAX_DIGITS) {
      if (n < 19) m = m * 10 + <u64>d;
      store<u8>(SIGNIFICANT + <usize>n, <u8>d);
      n++;
    } else {
      exp++;
      if (d) sticky = true;
    }
  }
  if (!any) return false;
  if (p < end && (load<u8>(p) | 0x20) == 0x65) {
    p++;
    const minus = p < end && load<u8>(p) == 0x2d;
    if (p < end && (load<u8>(p) == 0x2d || load<u8>(p) == 0x2b)) p++;
    if (p == end) return false;
    let x = 0;
    for (; p < end && <u32>load<u8>(p) - 0x30 <= 9; p++) {
      if (x < 1000000) x = x * 10 + (<i32>load<u8>(p) - 0x30);
    }
    exp += minus ? -x : x;
  }
  if (p != end) return false;
  let v: f64 = 0;
  if (n > 0 && n + exp >= -330) {
    if (n + exp > 310) return false;
    if (n <= 19 && m <= 1 << 53 && exp >= -22 && exp <= 22) {
      v = exp < 0 ? <f64>m / POWERS[-exp] : <f64>m * POWERS[exp];
    } else {
      v = exact(n, exp, sticky);
      if (v == Infinity) return false;
    }
  }
  parsed = negative ? -v : v;
  return true;
}

// A scanner over JSON text: where it is, and where the text ends.
let jsonAt: usize = 0;
let jsonEnd: usize = 0;
const jsonKey: Bytes = new Bytes();
const jsonValue: Bytes = new Bytes();

function jsonSpace(): void {
  while (jsonAt < jsonEnd) {
    const c = load<u8>(jsonAt);
    if (c != 0x20 && c != 0x09 && c != 0x0a && c != 0x0d) return;
    jsonAt++;
  }
}

function jsonTake(c: u8): bool {
  jsonSpace();
  if (jsonAt >= jsonEnd || load<u8>(jsonAt) != c) return false;
  jsonAt++;
  return true;
}

function jsonString(): bool {
  for (jsonAt++; jsonAt < jsonEnd; jsonAt++) {
    const c = load<u8>(jsonAt);
    if (c == 0x5c) {
      jsonAt++;
    } else if (c == 0x22) {
      jsonAt++;
      return true;
    }
  }
  jsonAt = jsonEnd;
  return false;
}

function jsonNested(): bool {
  let depth = 0;
  while (jsonAt < jsonEnd) {
    const c = load<u8>(jsonAt);
    if (c == 0x22) {
      if (!jsonString()) return false;
      continue;
    }
    if (c == 0x7b || c == 0x5b) depth++;
    else if (c == 0x7d || c == 0x5d) depth--;
    jsonAt++;
    if (depth == 0) return true;
  }
  return false;
}

function jsonScalar(): bool {
  const start = jsonAt;
  for (; jsonAt < jsonEnd; jsonAt++) {
    const c = load<u8>(jsonAt);
    if (c != 0x2d && c != 0x2b && c != 0x2e && (c < 0x30 || c > 0x39) && (c < 0x61 || c > 0x7a) && c != 0x45) break;
  }
  return jsonAt > start;
}

function jsonAny(into: Bytes): bool {
  jsonSpace();
  const start = jsonAt;
  if (start >= jsonEnd) return false;
  const c = load<u8>(start);
  const ok = c == 0x22 ? jsonString() : c == 0x7b || c == 0x5b ? jsonNested() : jsonScalar();
  into.set(start, <i32>(jsonAt - start));
  return ok;
}

/** Finds the raw JSON of a field of an object and makes field refer to it; false if value is not an object or
 *  has no such field before its first error. Names are compared byte by byte: names written with escapes are
 *  not found. It does not look into nested objects; what comes after the field is not checked. */
export function jsonField(value: Bytes, name: Bytes, field: Bytes): bool {
  jsonAt = value.ptr;
  jsonEnd = value.ptr + <usize>value.len;
  if (!jsonTake(0x7b)) return false;
  while (true) {
    if (!jsonAny(jsonKey) || jsonKey.at(0) != 0x22 || !jsonTake(0x3a)) return false;
    if (!jsonAny(jsonValue)) return false;
    const found = equal(jsonKey.ptr + 1, jsonKey.len - 2, name.ptr, name.len);
    if (found) field.set(jsonValue.ptr, jsonValue.len);
    if (found && jsonTake(0x7d)) return true;
    if (!jsonTake(0x2c)) return false;
    if (found) return true;
  }
}

const rawNumber: Bytes = new Bytes();

/** Reads a number field of an object into parsed; false if there is none or it is no number. */
export function jsonNumber(value: Bytes, name: Bytes): bool {
  return jsonField(value, name, rawNumber) && number(rawNumber);
}

// ---- A map in memory ----

/** A hash table from keys to objects, in the module's memory: state like any other variable, faster than keyed
 *  state, but neither rescaled nor larger than memory. Entries are never removed. V is a class marked @unmanaged
 *  whose constructor takes nothing. */
@unmanaged
export class KeyMap<V> {
  size: i32 = 0;
  private room: i32 = 0; // slots: 0 or a power of two
  private slots: usize = 0; // of 8 bytes each: hash, address of an entry or 0. Entry: value, key length, key

  // @ts-ignore: decorator
  @inline private find(key: Bytes, hash: u32): usize {
    const mask = this.room - 1, slots = this.slots;
    if (mask < 0) return 0;
    for (let at = <i32>hash & mask; ; at = (at + 1) & mask) {
      const slot = slots + (<usize>at << 3), e = load<usize>(slot, 4);
      if (e == 0 || (load<u32>(slot) == hash && equal(e + 8, load<i32>(e, 4), key.ptr, key.len))) return e;
    }
    return 0;
  }

  /** The value of a key, null if there is none. */
  get(key: Bytes): V | null {
    const e = this.find(key, hashOf(key));
    return e ? changetype<V>(load<usize>(e)) : null;
  }

  /** The value of a key, a new one if there was none. */
  // @ts-ignore: decorator
  @inline at(key: Bytes): V {
    const hash = hashOf(key);
    const e = this.find(key, hash);
    return e ? changetype<V>(load<usize>(e)) : this.add(key, hash);
  }

  private add(key: Bytes, hash: u32): V {
    if (isManaged<V>()) ERROR("the values of a KeyMap are of a class marked @unmanaged");
    this.size++;
    if (this.size * 4 > this.room * 3) {
      const old = this.slots, had = this.room;
      this.room = max(64, had * 2);
      this.slots = heap.alloc(<usize>this.room << 3);
      memory.fill(this.slots, 0, <usize>this.room << 3);
      for (let i = 0; i < had; i++) {
        const slot = old + (<usize>i << 3);
        if (load<usize>(slot, 4)) this.fill(load<u32>(slot), load<usize>(slot, 4));
      }
      if (old) heap.free(old);
    }
    const e = heap.alloc(<usize>(8 + key.len));
    const v = instantiate<V>();
    store<usize>(e, changetype<usize>(v));
    store<i32>(e, key.len, 4);
    copy(e + 8, key.ptr, key.len);
    this.fill(hash, e);
    return v;
  }

  private fill(hash: u32, e: usize): void {
    const mask = this.room - 1;
    let at = <i32>hash & mask;
    while (load<usize>(this.slots + (<usize>at << 3), 4)) at = (at + 1) & mask;
    store<u32>(this.slots + (<usize>at << 3), hash);
    store<usize>(this.slots + (<usize>at << 3), e, 4);
  }
}

// @ts-ignore: decorator
@inline function hashOf(key: Bytes): u32 {
  const k: u64 = 0x9e3779b97f4a7c15;
  let p = key.ptr, n = key.len, last: u64 = 0;
  let h: u64 = <u64>n * k;
  for (; n >= 8; p += 8, n -= 8) {
    h = (h ^ load<u64>(p)) * k;
    h ^= h >> 32;
  }
  if (n >= 4) last = <u64>load<u32>(p) | (<u64>load<u32>(p + <usize>n - 4)) << 32;
  else if (n > 0) last = <u64>load<u8>(p) | (<u64>load<u8>(p + <usize>(n >> 1))) << 8 | (<u64>load<u8>(p + <usize>n - 1)) << 16;
  return <u32>(((h ^ last) * k) >> 32);
}

const MALFORMED = "malformed batch from the host";

// ---- Timers and watermarks ----

/** Which clock a timer waits for. */
export enum TimerKind {
  /** Due when the watermark reaches the timer. */
  EventTime,
  /** Due when the agent's clock reaches the timer, some 100 ms later at most. */
  ProcessingTime,
}

/** A timer that is due. Its key is borrowed until the timer function returns. */
@unmanaged
export class Timer {
  kind: TimerKind = TimerKind.EventTime;
  /** Milliseconds since 1970. */
  at: i64 = 0;
  key: Bytes = new Bytes();
}

/** The watermark before the first one. */
export const NO_WATERMARK: i64 = i64.MIN_VALUE;
/** The watermark at the end of the input. */
export const END_OF_TIME: i64 = i64.MAX_VALUE;

/** Asks for a call of the timer function (registerTime) at a time in milliseconds since 1970. There is one timer for
 *  each kind, time and key, which has up to 4,096 bytes. Timers that are due together fire in order of time,
 *  then key. One set at or before the watermark, or while timers fire, is due when the watermark moves next, or at the
 *  end of the input; those of processing time, likewise, at the next tick of the clock, and not at the end. */
export function setTimer(kind: TimerKind, at: i64, key: Bytes): void {
  hostTimerSet(kind, at, key.ptr, key.len);
}

/** Takes a timer back and says whether it was set. */
export function clearTimer(kind: TimerKind, at: i64, key: Bytes): bool {
  return hostTimerClear(kind, at, key.ptr, key.len) != 0;
}

/** How far event time has come, in milliseconds since 1970: a record with a time before it is late. It never
 *  goes back. */
export function watermark(): i64 {
  return hostWatermark();
}

let onTimer: ((t: Timer) => bool) | null = null;
let onWatermark: ((at: i64) => bool) | null = null;
let onEnd: (() => bool) | null = null;
const timer: Timer = new Timer();

/** Takes what time makes due; each of the three may be null. The first is called for a timer that is due, the second
 *  when the watermark has moved, after its timers, the third when the input has ended. They return like the
 *  process function, and may emit. The module must export weir_timer, weir_watermark and weir_end too. */
export function registerTime(
  timer: ((t: Timer) => bool) | null,
  watermark: ((at: i64) => bool) | null = null,
  end: (() => bool) | null = null,
): void {
  onTimer = timer;
  onWatermark = watermark;
  onEnd = end;
}

export function weir_timer(kind: i32, at: i64, ptr: usize, len: i32): i32 {
  if (ptr != input || <u32>len > <u32>inputSize) return fail(MALFORMED) ? 0 : 1;
  const f = onTimer;
  if (f === null) return fail("a timer is due and weir.registerTime was not called with a timer function") ? 0 : 1;
  begin();
  timer.kind = kind;
  timer.at = at;
  timer.key.set(ptr, len);
  return f(timer) ? flush() : 1;
}

export function weir_watermark(at: i64): i32 {
  const f = onWatermark;
  if (f === null) return 0;
  begin();
  return f(at) ? flush() : 1;
}

export function weir_end(): i32 {
  const f = onEnd;
  if (f === null) return 0;
  begin();
  return f() ? flush() : 1;
}

// ---- Variables of another version ----

let giving: ((state: Text) => bool) | null = null;
let taking: ((state: Bytes) => bool) | null = null;
const migrated: Text = new Text();
const migrating: Bytes = new Bytes();

/** Lets variables survive an upgrade; without it, in both versions, they begin anew. Keyed state needs none of it. give is
 *  called once in the old version, when the upgrade takes its place among the records, and writes to state, which is
 *  empty, what the new one is to have, at most 16 MiB. take is called once in the new version, after init, with what an
 *  older version wrote, or after a roll-back a newer one: begin with a number of the format. It is borrowed until take
 *  returns. Both return true, or the result of fail: the upgrade is refused, and the old version goes on. The
 *  module must export weir_migrate_out and weir_migrate_in too. */
export function registerMigrate(give: (state: Text) => bool, take: (state: Bytes) => bool): void {
  giving = give;
  taking = take;
}

const NO_MIGRATION = "the module exports weir_migrate_out or weir_migrate_in and does not call weir.registerMigrate";

export function weir_migrate_out(): i64 {
  const f = giving;
  migrated.clear();
  if (f === null ? !fail(NO_MIGRATION) : !f(migrated)) return -1;
  return (<i64>migrated.ptr << 32) | <i64>migrated.len;
}

export function weir_migrate_in(ptr: usize, len: i32): i32 {
  if (ptr != input || <u32>len > <u32>inputSize) return fail("malformed state from the host") ? 0 : 1;
  const f = taking;
  if (f === null) return fail(NO_MIGRATION) ? 0 : 1;
  migrating.set(ptr, len);
  return f(migrating) ? 0 : 1;
}

function begin(): void {
  for (let i = 0; i < outputs; i++) {
    const o = outputAt(i);
    o.buf.clear();
    o.count = 0;
  }
}

/** Gives the host the buffers, which it reads when the call has returned; the next one overwrites them. */
function flush(): i32 {
  for (let i = 0; i < outputs; i++) {
    const o = outputAt(i);
    if (o.count) hostEmit(o.index, o.buf.ptr, o.buf.len, o.count);
  }
  return 0;
}

// ---- The module ----

function missing(r: Record): bool {
  return fail("no operator: call weir.register");
}

let starting: (() => bool) | null = null;
let processing: (r: Record) => bool = missing;
let input: usize = 0; // buffer for batches
let inputSize: i32 = 0;
const record: Record = new Record();

/** Makes process the operator of this module; init, if given, is called once before the first record, opens
 *  side outputs and reads the configuration. Both return true, or the result of fail. */
export function register(process: (r: Record) => bool, init: (() => bool) | null = null): void {
  processing = process;
  starting = init;
}

export function weir_abi_v1(): void {}

export function weir_alloc(size: i32): usize {
  if (input) heap.free(input);
  input = heap.alloc(<usize>size);
  inputSize = size;
  return input;
}

export function weir_init(): i32 {
  output("out");
  const init = starting;
  return init === null || init() ? 0 : 1;
}

export function weir_process(index: i32, ptr: usize, len: i32, count: i32): i32 {
  if (ptr != input || <u32>len > <u32>inputSize) return fail(MALFORMED) ? 0 : 1;
  begin();
  const end = ptr + <usize>len, r = record, process = processing;
  let p = ptr;
  r.input = index;
  for (; count != 0; count--) {
    const left = <u32>(end - p);
    if (left < 16) return fail(MALFORMED) ? 0 : 1;
    const after = load<u32>(p), key = <u32>load<u16>(p, 12), headers = <u32>load<u16>(p, 14);
    if (after > left - 4 || after < 12 || key + headers > after - 12) return fail(MALFORMED) ? 0 : 1;
    r.time = load<i64>(p, 4);
    r.key.set(p + 16, <i32>key);
    r.headers.set(p + 16 + <usize>key, <i32>headers);
    r.value.set(p + 16 + <usize>(key + headers), <i32>(after - 12 - key - headers));
    if (!process(r)) return 1;
    p += 4 + <usize>after;
  }
  return flush();
}
