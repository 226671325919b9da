//! The operator map in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Map {
    set: Option<ops::Assignments>,
    value: Option<ops::Expr>,
    key: Option<ops::Expr>,
    keep: bool,
    decimals: usize,
    text: weir::Text,
    name: weir::Text,
}

impl weir::Operator for Map {
    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let (keep, decimals) = (s.flag("keep"), s.int("decimals", 6, 0, 9) as usize);
        let key = if s.has("key") { s.expr("key") } else { None };
        let (mut value, mut set) = (None, None);
        match (s.has("value"), s.has("set")) {
            (true, true) => s.wrong("value", "is not used together with set"),
            (true, false) => value = s.expr("value"),
            (false, true) => set = s.assignments("set"),
            (false, false) if !s.has("key") => s.wrong("set", "is needed, or value, or key"),
            _ => {}
        }
        s.done()?;
        Ok(Map { set, value, key, keep, decimals, text: weir::Text::new(), name: weir::Text::new() })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        let mut made = *r;
        self.name.clear();
        if let Some(key) = &self.key {
            let k = key.eval(r);
            if k.kind == ops::Kind::Null {
                return Err(weir::Failure::from("the key comes to null"));
            }
            k.put_text(&mut self.name, self.decimals);
            made.key = &self.name;
        }
        self.text.clear();
        if let Some(value) = &self.value {
            value.eval(r).put_text(&mut self.text, self.decimals);
            made.value = &self.text;
        } else if let Some(set) = &self.set {
            set.put_object(&mut self.text, r, self.keep, self.decimals);
            made.value = &self.text;
        }
        out.emit_record(weir::MAIN_OUTPUT, &made);
        Ok(())
    }
}

weir::operator!(Map);
