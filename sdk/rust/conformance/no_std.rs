//! The conformance operator without the standard library.
#![no_std]

#[path = "../src/weir.rs"]
mod weir;

include!("operator.rs");

weir::operator!(Conformance, no_std);
weir::migrate!(Conformance);
