//! The operator rate in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Rate {
    reading: ops::Reading,
    rate: ops::Rate,
    decimals: usize,
    text: weir::Text,
}

impl weir::Operator for Rate {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let (field, decimals) = (s.path("field", "v"), s.int("decimals", 3, 0, 9) as usize);
        let (per, counter, store) = (s.duration("per", 1000), s.flag("counter"), s.store("state"));
        let rate = s.take("per", "does not do: ", ops::Rate::new(store, per, counter));
        s.done()?;
        Ok(Rate { reading: ops::Reading { field }, rate: rate.ok_or("no rate")?, decimals, text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let v = match self.reading.of(r.value) {
            Some(v) => v,
            None => {
                weir::count("not_a_reading", 1);
                return Ok(());
            }
        };
        match self.rate.add(r.key, r.time, v)? {
            (_, ops::Outcome::Late) => weir::count("out_of_order", 1),
            (Some(change), _) => {
                self.text.clear();
                self.text.put(b"{\"v\":");
                self.text.put_fixed(change, self.decimals);
                self.text.put_byte(b'}');
                out.emit(r.key, r.time, &self.text);
            }
            _ => {}
        }
        Ok(())
    }
}

weir::operator!(Rate);
