struct Conformance {
    config: weir::Config,
    text: weir::Text,
    ratio: f64,
    limit: i64,
    seen: i64,
    timed: bool,
    instead: Option<weir::Text>, // given to the next version in the place of seen
}

impl weir::Operator for Conformance {
    const OUTPUTS: &'static [&'static str] = &["side", "unused"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        Ok(Conformance { config: *c, text: weir::Text::new(), ratio: c.float("ratio", 0.5)?, limit: c.int("limit", 7)?, seen: 0, timed: false, instead: None })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let (command, arg) = r.value.split_first().ok_or("empty command")?;
        let text = &mut self.text;
        text.clear();
        match command {
            b'e' => {
                out.emit_record(weir::MAIN_OUTPUT, r);
                return Ok(());
            }
            b's' => {
                out.emit_record("side", r);
                out.emit_record("unused", r);
                return Ok(());
            }
            b'n' => {
                for i in 0..size(arg) {
                    text.clear();
                    text.put_int(i as i64);
                    out.emit(r.key, r.time, text);
                }
                return Ok(());
            }
            b'w' => (0..size(arg)).for_each(|_| text.put_byte(b'w')),
            b'c' => match self.config.get(core::str::from_utf8(arg).unwrap_or("")) {
                Some(v) => text.put(&v),
                None => text.put_byte(b'-'),
            },
            b'C' => {
                text.put_fixed(self.ratio, 6);
                text.put_byte(b'|');
                text.put_int(self.limit);
            }
            b'h' => text.put(r.header(arg).unwrap_or(b"-")),
            b'i' => text.put_int(r.input as i64),
            b'g' => {
                if !weir::state::get(r.key, text) {
                    text.put_byte(b'-');
                }
            }
            b'p' => {
                weir::state::put(r.key, arg);
                return Ok(());
            }
            b'd' => text.put_int(weir::state::delete(r.key) as i64),
            b'x' => {
                weir::state::scan(arg, |key, value| {
                    out.emit(key, r.time, value);
                    true
                });
                return Ok(());
            }
            b'k' => {
                weir::count(arg, r.time);
                return Ok(());
            }
            b'u' => {
                weir::gauge(arg, r.time as f64 / 2.0);
                return Ok(());
            }
            b'l' => {
                let (level, line) = arg.split_first().ok_or("no level")?;
                let level = match level {
                    b'0' => weir::Level::Debug,
                    b'1' => weir::Level::Info,
                    b'2' => weir::Level::Warn,
                    _ => weir::Level::Error,
                };
                weir::log(level, line);
                return Ok(());
            }
            b't' => text.put_int(weir::now()),
            b'f' => {
                out.emit(r.key, r.time, arg);
                return Err(weir::Failure::from(arg));
            }
            b'j' => json(text, arg),
            b'r' => {
                let (decimals, digits) = arg.split_first().ok_or("not a number")?;
                let v = weir::number(digits).ok_or("not a number")?;
                text.put_fixed(v, (decimals - b'0') as usize);
            }
            b'q' => text.put_json(arg),
            b'T' | b'U' => {
                self.timed = true;
                let (kind, at) = arg.split_first().ok_or("no kind")?;
                let kind = if *kind == b'0' { weir::TimerKind::EventTime } else { weir::TimerKind::ProcessingTime };
                if *command == b'T' {
                    weir::set_timer(kind, whole(at), r.key);
                    return Ok(());
                }
                text.put_int(weir::clear_timer(kind, whole(at), r.key) as i64);
            }
            b'm' => {
                self.timed = true;
                match weir::watermark() {
                    weir::NO_WATERMARK => text.put_byte(b'-'),
                    weir::END_OF_TIME => text.put(b"end"),
                    at => text.put_int(at),
                }
            }
            b'P' => {
                self.timed = true;
                let n = arg.iter().position(|c| *c == b'|').unwrap_or(arg.len());
                weir::state::put_until(r.key, arg.get(n + 1..).unwrap_or(b""), whole(&arg[..n]));
                return Ok(());
            }
            b'M' => {
                let mut instead = weir::Text::new();
                instead.put(arg);
                self.instead = Some(instead);
                return Ok(());
            }
            b'v' => {
                self.seen += 1;
                text.put_int(self.seen);
            }
            _ => return Err(weir::Failure::from("unknown command")),
        }
        out.emit(r.key, r.time, text);
        Ok(())
    }

    fn on_timer(&mut self, t: &weir::Timer, out: &mut weir::Out) -> weir::Result {
        self.text.clear();
        self.text.put(b"timer");
        self.text.put_int(t.kind as i64);
        out.emit(t.key, t.at, &self.text);
        match t.key.first() {
            Some(b'a') => weir::set_timer(t.kind, t.at, t.key),
            Some(b'c') => {
                weir::clear_timer(weir::TimerKind::EventTime, t.at, b"d");
            }
            Some(b'f') => return Err(weir::Failure::from("timer fails")),
            _ => {}
        }
        Ok(())
    }

    fn on_watermark(&mut self, at: i64, out: &mut weir::Out) -> weir::Result {
        if self.timed {
            out.emit(b"", at, b"watermark");
        }
        Ok(())
    }

    fn on_end(&mut self, out: &mut weir::Out) -> weir::Result {
        if self.timed {
            out.emit(b"", 0, b"end");
        }
        Ok(())
    }
}

impl weir::Migrate for Conformance {
    fn migrate_out(&self, state: &mut weir::Text) -> weir::Result {
        match &self.instead {
            None => {
                state.put(b"1 ");
                state.put_int(self.seen);
            }
            Some(text) if text.is_empty() => return Err(weir::Failure::from("nothing to give")),
            Some(text) => state.put(text),
        }
        Ok(())
    }

    fn migrate_in(&mut self, state: &[u8]) -> weir::Result {
        self.seen = whole(state.strip_prefix(b"1 ").ok_or("unknown format")?);
        Ok(())
    }
}

/// The whole number in b, 0 if it is none.
fn whole(b: &[u8]) -> i64 {
    weir::number(b).map_or(0, |v| v as i64)
}

fn size(b: &[u8]) -> usize {
    match weir::number(b) {
        Some(v) if v >= 0.0 && v <= 1e9 => v as usize,
        _ => 0,
    }
}

fn json(text: &mut weir::Text, value: &[u8]) {
    text.put(weir::json_field(value, b"v").unwrap_or(b"-"));
    text.put_byte(b'|');
    match weir::json_number(value, b"v") {
        None => text.put(b"-|-"),
        Some(v) => {
            text.put_fixed(v, 3);
            text.put_byte(b'|');
            for shift in (0..16).rev() {
                text.put_byte(b"0123456789abcdef"[(v.to_bits() >> (shift * 4) & 15) as usize]);
            }
        }
    }
}
