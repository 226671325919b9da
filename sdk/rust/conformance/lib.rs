//! The conformance operator in Rust; package wasmops/abitest says what each command does.

#[path = "../src/weir.rs"]
mod weir;

include!("operator.rs");

weir::operator!(Conformance);
weir::migrate!(Conformance);
