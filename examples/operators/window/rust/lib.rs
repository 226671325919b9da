//! The operator window in Rust: the same bytes as main.go.

mod ops;
mod weir;

use ops::{Aggregate, CountWindow, Fired, Outcome, Session};

enum Kind {
    Aligned(ops::Window<Aggregate>),
    Session(Session<Aggregate>),
    Count(CountWindow<Aggregate>),
}

struct Window {
    kind: Kind,
    text: weir::Text,
}

// What the key must be without which there is no window.
const LASTS: &str = "must be how long a window is: a duration above 0, such as 10s";
const ENDS: &str = "must be how long nothing comes until a session is over: a duration above 0, such as 30s";
const RECORDS: &str = "must be how many records a window is of";

impl weir::Operator for Window {
    const OUTPUTS: &'static [&'static str] = &["late"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let aggregate = s.aggregate();
        let kind = s.choice("kind", &["tumbling", "sliding", "session", "count"]);
        let (store, lateness) = (s.store("state"), s.duration("lateness", 0));
        s.check()?;
        let aggregate = aggregate.ok_or("no functions")?;
        let before = "does not do: ";
        let kind = match kind {
            0 | 1 => {
                let (size, offset) = (s.duration("size", 0), s.span("offset", 0));
                if size == 0 {
                    s.wrong("size", LASTS);
                }
                let slide = if kind == 1 { s.duration("slide", 0) } else { size };
                if kind == 1 && slide == 0 {
                    s.wrong("slide", "is not a duration above 0");
                }
                let key = if kind == 1 { "slide" } else { "size" };
                s.take(key, before, ops::Window::new(aggregate, store, size, slide, offset, lateness)).map(Kind::Aligned)
            }
            2 => {
                let gap = s.duration("gap", 0);
                if gap == 0 {
                    s.wrong("gap", ENDS);
                }
                s.take("gap", before, Session::new(aggregate, store, gap, lateness)).map(Kind::Session)
            }
            _ => {
                let (size, every) = (s.int("size", 0, 1, 1 << 30), s.int("every", 0, 1, 1 << 30));
                if size == 0 {
                    s.wrong("size", RECORDS);
                }
                s.take("size", before, CountWindow::new(aggregate, store, size as usize, every as usize)).map(Kind::Count)
            }
        };
        s.done()?;
        Ok(Window { kind: kind.ok_or("no window")?, text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let text = &mut self.text;
        let what = match &mut self.kind {
            Kind::Aligned(w) => w.add(r, |a, f| fire(a, f, text, out)),
            Kind::Session(w) => w.add(r, |a, f| fire(a, f, text, out)),
            Kind::Count(w) => w.add(r, |a, acc| {
                text.clear();
                text.put_byte(b'{');
                a.put_fields(text, acc);
                text.put_byte(b'}');
                out.emit(r.key, r.time, text);
            }),
        }?;
        match what {
            Outcome::Late => {
                weir::count("late", 1);
                out.emit_record("late", r);
            }
            Outcome::Ignored => weir::count("not_a_reading", 1),
            Outcome::Taken => {}
        }
        Ok(())
    }

    fn on_timer(&mut self, t: &weir::Timer, out: &mut weir::Out) -> weir::Result {
        let text = &mut self.text;
        match &mut self.kind {
            Kind::Aligned(w) => w.on_timer(t, |a, f| fire(a, f, text, out)).map(|_| ()),
            Kind::Session(w) => w.on_timer(t, |a, f| fire(a, f, text, out)).map(|_| ()),
            Kind::Count(_) => Ok(()),
        }
    }
}

/// Puts out a window's result, at the last time that is in it.
fn fire(a: &Aggregate, f: &Fired, text: &mut weir::Text, out: &mut weir::Out) -> weir::Result {
    text.clear();
    text.put(b"{\"start\":");
    text.put_int(f.start);
    text.put(b",\"end\":");
    text.put_int(f.end);
    text.put_byte(b',');
    a.put_fields(text, f.acc);
    if f.update {
        text.put(b",\"update\":true");
    }
    text.put_byte(b'}');
    out.emit(f.key, f.end - 1, text);
    Ok(())
}

weir::operator!(Window);
