// Ewma smooths the readings of each sensor with an exponentially weighted moving average, and reports a reading
// that lies far from it on the output "alerts". Its state is a map in memory.
import * as weir from "./weir";
export { weir_abi_v1, weir_alloc, weir_init, weir_process } from "./weir";

let alpha = 0.2; // weight of a new reading, above 0 and at most 1
let deviation = 4.0; // how many times the usual deviation a reading may be off
let warmup: i64 = 5; // readings of a sensor before it can raise an alert
let field = weir.utf8("v"); // JSON field that holds the reading
let alerts = 0;

// What is known of one sensor.
@unmanaged
class Sensor {
  mean: f64 = 0;
  spread: f64 = 0; // smoothed absolute deviation
  seen: i64 = 0;
}

const sensors = new weir.KeyMap<Sensor>();
const text = new weir.Text();

function start(): bool {
  alerts = weir.output("alerts");
  alpha = weir.configNumber("alpha", alpha);
  deviation = weir.configNumber("deviation", deviation);
  warmup = weir.configInt("warmup", warmup);
  field = weir.utf8(weir.configString("field", "v"));
  if (!(alpha > 0 && alpha <= 1)) return weir.fail("config alpha: must be above 0 and at most 1");
  return true;
}

function process(r: weir.Record): bool {
  // A bare number, or an object with a number in the field.
  if (!weir.jsonNumber(r.value, field) && !weir.number(r.value)) {
    weir.count("not_a_reading", 1);
    return true;
  }
  const v = weir.parsed, s = sensors.at(r.key);
  if (s.seen == 0) s.mean = v;
  const off = Math.abs(v - s.mean);
  if (s.seen >= warmup && off > deviation * s.spread) {
    text.clear();
    text.putString('{"v":');
    text.putFixed(v, 3);
    text.putString(',"mean":');
    text.putFixed(s.mean, 3);
    text.putByte(0x7d);
    weir.emit(alerts, r.key, r.time, text);
  }
  s.mean += alpha * (v - s.mean);
  s.spread += alpha * (off - s.spread);
  s.seen++;
  text.clear();
  text.putString('{"v":');
  text.putFixed(s.mean, 3);
  text.putByte(0x7d);
  weir.emit(weir.OUT, r.key, r.time, text);
  return true;
}

weir.register(process, start);
