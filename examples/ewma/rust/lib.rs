//! Ewma smooths the readings of each sensor with an exponentially weighted moving average, and reports a
//! reading that lies far from it on the output "alerts". Its state is a map in memory.

mod weir;

struct Ewma {
    alpha: f64,     // weight of a new reading, above 0 and at most 1
    deviation: f64, // how many times the usual deviation a reading may be off
    warmup: i64,    // readings of a sensor before it can raise an alert
    field: Vec<u8>, // JSON field that holds the reading
    sensors: weir::Map<Sensor>,
    text: weir::Text,
}

/// What is known of one sensor.
struct Sensor {
    mean: f64,
    spread: f64, // smoothed absolute deviation
    seen: i64,
}

impl weir::Operator for Ewma {
    const OUTPUTS: &'static [&'static str] = &["alerts"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        let alpha = c.float("alpha", 0.2)?;
        let deviation = c.float("deviation", 4.0)?;
        let warmup = c.int("warmup", 5)?;
        let field = c.get("field").map_or(b"v".to_vec(), |v| v.to_vec());
        if !(alpha > 0.0 && alpha <= 1.0) {
            return Err("config alpha: must be above 0 and at most 1".into());
        }
        Ok(Ewma { alpha, deviation, warmup, field, sensors: weir::Map::default(), text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        // A bare number, or an object with a number in the field.
        let v = match weir::json_number(r.value, &self.field).or_else(|| weir::number(r.value)) {
            Some(v) => v,
            None => {
                weir::count("not_a_reading", 1);
                return Ok(());
            }
        };
        let s = self.sensors.at(r.key, || Sensor { mean: v, spread: 0.0, seen: 0 });
        let off = (v - s.mean).abs();
        let text = &mut self.text;
        if s.seen >= self.warmup && off > self.deviation * s.spread {
            text.clear();
            text.put(b"{\"v\":");
            text.put_fixed(v, 3);
            text.put(b",\"mean\":");
            text.put_fixed(s.mean, 3);
            text.put_byte(b'}');
            out.emit_to("alerts", r.key, r.time, text);
        }
        s.mean += self.alpha * (v - s.mean);
        s.spread += self.alpha * (off - s.spread);
        s.seen += 1;
        text.clear();
        text.put(b"{\"v\":");
        text.put_fixed(s.mean, 3);
        text.put_byte(b'}');
        out.emit(r.key, r.time, text);
        Ok(())
    }
}

weir::operator!(Ewma);
