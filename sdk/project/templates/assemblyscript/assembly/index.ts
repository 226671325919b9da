// The operator: sums the readings of each key.
import * as weir from "./weir";
export { weir_abi_v1, weir_alloc, weir_init, weir_process } from "./weir";

// What is known of one key. Variables are state: the host captures and restores them.
@unmanaged
class Total {
  n: i64 = 0;
  sum: f64 = 0;
}

let field = weir.utf8("v"); // JSON field that holds the reading
const totals = new weir.KeyMap<Total>();
const text = new weir.Text();

function start(): bool {
  field = weir.utf8(weir.configString("field", "v"));
  return true;
}

function process(r: weir.Record): bool {
  if (!weir.jsonNumber(r.value, field)) {
    weir.count("not_a_reading", 1);
    return true;
  }
  const t = totals.at(r.key);
  t.n++;
  t.sum += weir.parsed;
  text.clear();
  text.putString('{"n":');
  text.putInt(t.n);
  text.putString(',"sum":');
  text.putFixed(t.sum, 3);
  text.putByte(0x7d);
  weir.emit(weir.OUT, r.key, r.time, text);
  return true;
}

weir.register(process, start);
