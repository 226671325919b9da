//! The operator: sums the readings of each key.

mod weir;

/// Fields are state: the host captures and restores them.
struct Totals {
    field: Vec<u8>, // JSON field that holds the reading
    totals: weir::Map<Total>,
    text: weir::Text,
}

/// What is known of one key.
#[derive(Default)]
struct Total {
    n: i64,
    sum: f64,
}

impl weir::Operator for Totals {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let field = c.get("field").map_or(b"v".to_vec(), |v| v.to_vec());
        Ok(Totals { field, totals: weir::Map::default(), text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let v = match weir::json_number(r.value, &self.field) {
            Some(v) => v,
            None => {
                weir::count("not_a_reading", 1);
                return Ok(());
            }
        };
        let t = self.totals.at(r.key, Total::default);
        t.n += 1;
        t.sum += v;
        self.text.clear();
        self.text.put(b"{\"n\":");
        self.text.put_int(t.n);
        self.text.put(b",\"sum\":");
        self.text.put_fixed(t.sum, 3);
        self.text.put_byte(b'}');
        out.emit(r.key, r.time, &self.text);
        Ok(())
    }
}

weir::operator!(Totals);
