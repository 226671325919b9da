// The conformance operator in AssemblyScript; package wasmops/abitest says what each command does.
import * as weir from "../assembly/weir";
export { weir_abi_v1, weir_alloc, weir_init, weir_process } from "../assembly/weir";

let side = 0;
let unused = 0;
let ratio = 0.5;
let limit: i64 = 7;
let seen: i64 = 0;
const text = new weir.Text();
const arg = new weir.Bytes();
const found = new weir.Bytes();
const v = weir.utf8("v");
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
