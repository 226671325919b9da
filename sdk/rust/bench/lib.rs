//! The operators that benchmarks compare, see BenchmarkOperators in sdk/project: "mode" is noop, filter,
//! count or state.

mod weir;

enum Mode {
    Noop,
    Filter,
    Count,
    State,
}

struct Bench {
    mode: Mode,
    counts: weir::Map<i64>,
    text: weir::Text,
}

impl weir::Operator for Bench {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mode = match c.get("mode").as_ref().map(|m| m.as_str()) {
            Some("filter") => Mode::Filter,
            Some("count") => Mode::Count,
            Some("state") => Mode::State,
            _ => Mode::Noop,
        };
        Ok(Bench { mode, counts: weir::Map::default(), text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let text = &mut self.text;
        match self.mode {
            Mode::Noop => {}
            Mode::Filter => {
                if r.value.last().map_or(false, |c| c & 1 == 1) {
                    out.emit_record(weir::MAIN_OUTPUT, r);
                }
            }
            Mode::Count => {
                let n = self.counts.at(r.key, || 0);
                *n += 1;
                text.clear();
                text.put_int(*n);
                out.emit(r.key, r.time, text);
            }
            Mode::State => {
                let mut n = 0;
                if weir::state::get(r.key, text) && text.len() == 8 {
                    n = i64::from_le_bytes([text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7]]);
                }
                n += 1;
                weir::state::put(r.key, &n.to_le_bytes());
                text.clear();
                text.put_int(n);
                out.emit(r.key, r.time, text);
            }
        }
        Ok(())
    }
}

weir::operator!(Bench);
