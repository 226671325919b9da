// The conformance operator in AssemblyScript; package wasmops/abitest says what each command does.
import * as weir from "../assembly/weir";
export { weir_abi_v1, weir_alloc, weir_init, weir_process, weir_timer, weir_watermark, weir_end } from "../assembly/weir";
export { weir_migrate_out, weir_migrate_in } from "../assembly/weir";

let side = 0;
let unused = 0;
let ratio = 0.5;
let limit: i64 = 7;
let seen: i64 = 0;
let timed = false;
let told = false; // the next version is given instead in the place of seen
const instead = new weir.Text();
const text = new weir.Text();
const arg = new weir.Bytes();
const found = new weir.Bytes();
const v = weir.utf8("v");
const d = weir.utf8("d");
const none = weir.utf8("");
const scan = new weir.Scan();

function start(): bool {
  side = weir.output("side");
  unused = weir.output("unused");
  ratio = weir.configNumber("ratio", ratio);
  limit = weir.configInt("limit", limit);
  return true;
}

function decimal(b: weir.Bytes): i32 {
  return weir.number(b) && weir.parsed >= 0 && weir.parsed <= 1e9 ? <i32>weir.parsed : 0;
}

function json(): void {
  if (weir.jsonField(arg, v, found)) text.put(found);
  else text.putByte(0x2d);
  text.putByte(0x7c);
  if (!weir.jsonNumber(arg, v)) {
    text.putString("-|-");
    return;
  }
  text.putFixed(weir.parsed, 3);
  text.putByte(0x7c);
  const bits = reinterpret<u64>(weir.parsed);
  for (let shift: u64 = 64; shift > 0; ) {
    shift -= 4;
    const d = <u8>((bits >> shift) & 15);
    text.putByte(d < 10 ? 0x30 + d : 0x57 + d);
  }
}

/** The whole number in b, 0 if it is none. */
function whole(b: weir.Bytes): i64 {
  return weir.number(b) ? <i64>weir.parsed : 0;
}

function onTimer(t: weir.Timer): bool {
  text.clear();
  text.putString("timer");
  text.putInt(t.kind);
  weir.emit(weir.OUT, t.key, t.at, text);
  switch (t.key.len ? t.key.at(0) : 0) {
    case 0x61: // a
      weir.setTimer(t.kind, t.at, t.key);
      break;
    case 0x63: // c
      weir.clearTimer(weir.TimerKind.EventTime, t.at, d);
      break;
    case 0x66: // f
      return weir.fail("timer fails");
  }
  return true;
}

function tell(at: i64, what: string): bool {
  if (!timed) return true;
  text.clear();
  text.putString(what);
  weir.emit(weir.OUT, none, at, text);
  return true;
}

function process(r: weir.Record): bool {
  if (r.value.len == 0) return weir.fail("empty command");
  const command = r.value.at(0);
  arg.set(r.value.ptr + 1, r.value.len - 1);
  text.clear();
  switch (command) {
    case 0x65: // e
      weir.emitRecord(weir.OUT, r);
      return true;
    case 0x73: // s
      weir.emitRecord(side, r);
      weir.emitRecord(unused, r);
      return true;
    case 0x6e: // n
      for (let i = 0, n = decimal(arg); i < n; i++) {
        text.clear();
        text.putInt(i);
        weir.emit(weir.OUT, r.key, r.time, text);
      }
      return true;
    case 0x77: { // w
      const n = decimal(arg);
      text.reserve(n);
      memory.fill(text.ptr, 0x77, n);
      text.len = n;
      break;
    }
    case 0x63: // c
      if (!weir.config(arg.toString(), text)) text.putByte(0x2d);
      break;
    case 0x43: // C
      text.putFixed(ratio, 6);
      text.putByte(0x7c);
      text.putInt(limit);
      break;
    case 0x68: // h
      if (r.header(arg, found)) text.put(found);
      else text.putByte(0x2d);
      break;
    case 0x69: // i
      text.putInt(r.input);
      break;
    case 0x67: // g
      if (!weir.stateGet(r.key, text)) text.putByte(0x2d);
      break;
    case 0x70: // p
      weir.statePut(r.key, arg);
      return true;
    case 0x64: // d
      text.putInt(weir.stateDelete(r.key) ? 1 : 0);
      break;
    case 0x78: // x
      for (scan.start(arg); scan.next(); ) weir.emit(weir.OUT, scan.key, r.time, scan.value);
      return true;
    case 0x6b: // k
      weir.countBytes(arg, r.time);
      return true;
    case 0x75: // u
      weir.gaugeBytes(arg, <f64>r.time / 2);
      return true;
    case 0x6c: // l
      if (arg.len == 0) return weir.fail("no level");
      found.set(arg.ptr + 1, arg.len - 1);
      weir.logBytes(<i32>arg.at(0) - 0x30, found);
      return true;
    case 0x74: // t
      text.putInt(weir.now());
      break;
    case 0x66: // f
      weir.emit(weir.OUT, r.key, r.time, arg);
      return weir.failBytes(arg);
    case 0x6a: // j
      json();
      break;
    case 0x72: // r
      found.set(arg.ptr + 1, arg.len - 1);
      if (arg.len < 2 || !weir.number(found)) return weir.fail("not a number");
      text.putFixed(weir.parsed, <i32>arg.at(0) - 0x30);
      break;
    case 0x71: // q
      text.putJson(arg);
      break;
    case 0x54: // T
      timed = true;
      found.set(arg.ptr + 1, arg.len - 1);
      weir.setTimer(<i32>arg.at(0) - 0x30, whole(found), r.key);
      return true;
    case 0x55: // U
      timed = true;
      found.set(arg.ptr + 1, arg.len - 1);
      text.putInt(weir.clearTimer(<i32>arg.at(0) - 0x30, whole(found), r.key) ? 1 : 0);
      break;
    case 0x6d: { // m
      timed = true;
      const w = weir.watermark();
      if (w == weir.NO_WATERMARK) text.putByte(0x2d);
      else if (w == weir.END_OF_TIME) text.putString("end");
      else text.putInt(w);
      break;
    }
    case 0x50: { // P
      timed = true;
      let n = 0;
      while (n < arg.len && arg.at(n) != 0x7c) n++;
      found.set(arg.ptr, n);
      const until = whole(found);
      if (n < arg.len) n++;
      found.set(arg.ptr + <usize>n, arg.len - n);
      weir.statePutUntil(r.key, found, until);
      return true;
    }
    case 0x4d: // M
      told = true;
      instead.clear();
      instead.put(arg);
      return true;
    case 0x76: // v
      text.putInt(++seen);
      break;
    default:
      return weir.fail("unknown command");
  }
  weir.emit(weir.OUT, r.key, r.time, text);
  return true;
}

weir.register(process, start);
weir.registerTime(onTimer, (at: i64): bool => tell(at, "watermark"), (): bool => tell(0, "end"));

function give(state: weir.Text): bool {
  if (told && instead.len == 0) return weir.fail("nothing to give");
  if (told) {
    state.put(instead);
  } else {
    state.putString("1 ");
    state.putInt(seen);
  }
  return true;
}

function take(state: weir.Bytes): bool {
  if (state.len < 2 || state.at(0) != 0x31 || state.at(1) != 0x20) return weir.fail("unknown format");
  found.set(state.ptr + 2, state.len - 2);
  seen = whole(found);
  return true;
}

weir.registerMigrate(give, take);
