//! The operator dedup in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Dedup {
    dedup: ops::Dedup,
    id: weir::Path,
}

impl weir::Operator for Dedup {
    const OUTPUTS: &'static [&'static str] = &["repeats"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let (id, within) = (s.path("id", "id"), s.duration("within", 0));
        let made = if within == 0 {
            let (last, store) = (s.int("last", 128, 1, 4096), s.store("state"));
            ops::Dedup::last(store, last as usize)
        } else {
            if s.has("last") {
                s.wrong("last", "is not used together with within");
            } else if s.has("state") {
                s.wrong("state", "is not used together with within: ids are then in keyed state");
            }
            ops::Dedup::within(within)
        };
        let dedup = s.take("within", "does not do: ", made);
        s.done()?;
        Ok(Dedup { dedup: dedup.ok_or("nothing is remembered")?, id })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let id = if self.id.is_empty() { Some(r.value) } else { self.id.find(r.value) };
        match id {
            None => {
                weir::count("without_id", 1);
                out.emit_record(weir::MAIN_OUTPUT, r);
            }
            Some(id) if self.dedup.seen(r.key, r.time, id)? => {
                weir::count("repeats", 1);
                out.emit_record("repeats", r);
            }
            _ => out.emit_record(weir::MAIN_OUTPUT, r),
        }
        Ok(())
    }
}

weir::operator!(Dedup);
