//! The operator aggregate in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Aggregate {
    running: ops::Running<ops::Aggregate>,
    every: u64,
    text: weir::Text,
}

impl weir::Operator for Aggregate {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let (aggregate, store) = (s.aggregate(), s.store("state"));
        let every = s.int("every", 1, 1, 1 << 30) as u64;
        s.done()?;
        let running = ops::Running::new(aggregate.ok_or("no functions")?, store);
        Ok(Aggregate { running, every, text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let a = &mut self.running;
        if a.add(r)? == ops::Outcome::Ignored {
            weir::count("not_a_reading", 1);
        } else if a.fold.count(a.accumulated()) % self.every == 0 {
            self.text.clear();
            self.text.put_byte(b'{');
            a.fold.put_fields(&mut self.text, a.accumulated());
            self.text.put_byte(b'}');
            out.emit(r.key, r.time, &self.text);
        }
        Ok(())
    }
}

weir::operator!(Aggregate);
