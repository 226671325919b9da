//! The operator filter in Rust: the same bytes as main.go.

mod ops;
mod weir;

struct Filter {
    condition: ops::Expr,
}

impl weir::Operator for Filter {
    const OUTPUTS: &'static [&'static str] = &["rest"];

    fn new(c: &weir::Config) -> weir::Result<Self> {
        let mut s = ops::Settings::read(c);
        let condition = s.expr("where");
        s.done()?;
        Ok(Filter { condition: condition.ok_or("no condition")? })
    }

    fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
        if self.condition.eval(r).is_true() {
            out.emit_record(weir::MAIN_OUTPUT, r);
        } else {
            out.emit_record("rest", r);
        }
        Ok(())
    }
}

weir::operator!(Filter);
