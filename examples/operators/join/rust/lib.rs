//! The operator join in Rust: the same bytes as main.go.

mod ops;
mod weir;

use ops::Outcome;

enum Kind {
    Interval(ops::IntervalJoin),
    Latest(ops::LatestJoin),
}

struct Join {
    kind: Kind,
    names: weir::Text, // of the inputs, with commas between them
    first: bool,       // results come out for records of the first input alone
    partial: bool,     // and before all inputs have a value
    text: weir::Text,
}

impl weir::Operator for Join {
    const OUTPUTS: &'static [&'static str] = &["late"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let kind = s.choice("kind", &["latest", "interval"]);
        let names = s.text("names", "left,right");
        let inputs = names.split(|&c| c == b',').count();
        if names.split(|&c| c == b',').any(|n| name(n).is_empty()) {
            s.wrong("names", "has an empty name");
        }
        let (first, partial) = (s.choice("emit", &["any", "first"]) == 1, s.flag("partial"));
        let kind = if kind == 1 {
            if inputs != 2 {
                s.wrong("names", "is not two names: an interval join has two inputs");
            }
            let (lower, upper, lateness) = (s.span("lower", 0), s.span("upper", 0), s.duration("lateness", 0));
            s.take("lower", "does not do: ", ops::IntervalJoin::new(lower, upper, lateness)).map(Kind::Interval)
        } else {
            let (max_age, store) = (s.duration("max_age", 0), s.store("state"));
            s.take("names", "does not do: ", ops::LatestJoin::new(store, inputs, max_age)).map(Kind::Latest)
        };
        s.done()?;
        Ok(Join { kind: kind.ok_or("no join")?, names, first, partial, text: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let (names, text) = (&self.names, &mut self.text);
        let (first, partial) = (self.first, self.partial);
        let what = match &mut self.kind {
            Kind::Interval(j) => j.add(r, |key, left, right| {
                put(text, names, &[left, right]);
                out.emit(key, left.time.max(right.time), text);
            }),
            Kind::Latest(j) => j.add(r, |sides| {
                if (!first || r.input == 0) && (partial || sides.iter().all(|s| s.value.is_some())) {
                    put(text, names, sides);
                    out.emit(r.key, r.time, text);
                }
            }),
        }?;
        if what == Outcome::Late {
            weir::count("late", 1);
            out.emit_record("late", r);
        }
        Ok(())
    }

    fn on_timer(&mut self, t: &weir::Timer, _: &mut weir::Out) -> weir::Result {
        match &mut self.kind {
            Kind::Interval(j) => j.on_timer(t).map(|_| ()),
            Kind::Latest(_) => Ok(()),
        }
    }
}

/// An input's name, without the space around it.
fn name(mut n: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = n {
        n = rest;
    }
    n
}

/// Puts an object with the inputs' values in the place of the text.
fn put(text: &mut weir::Text, names: &[u8], sides: &[ops::Side]) {
    text.clear();
    for (i, (n, side)) in names.split(|&c| c == b',').zip(sides).enumerate() {
        text.put_byte(if i == 0 { b'{' } else { b',' });
        text.put_json(name(n));
        text.put_byte(b':');
        ops::put_json_value(text, side.value);
    }
    text.put_byte(b'}');
}

weir::operator!(Join);
