//! The operator deadband in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Deadband {
    reading: ops::Reading,
    band: ops::Deadband,
}

impl weir::Operator for Deadband {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let reading = ops::Reading { field: s.path("field", "v") };
        let (band, share) = (s.float("band", 0.0), s.float("percent", 0.0) / 100.0);
        let (silence, store) = (s.duration("max_silence", 0), s.store("state"));
        let band = s.take("band", "does not do: ", ops::Deadband::new(store, band, share, silence));
        s.done()?;
        Ok(Deadband { reading, band: band.ok_or("no band")? })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        match self.reading.of(r.value) {
            None => weir::count("not_a_reading", 1),
            Some(v) if self.band.add(r.key, r.time, v)? => out.emit_record(weir::MAIN_OUTPUT, r),
            _ => {}
        }
        Ok(())
    }
}

weir::operator!(Deadband);
