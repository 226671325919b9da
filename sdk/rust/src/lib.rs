//! The SDK as a crate: [`weir`] is what an operator needs, [`ops`] a library of building blocks. Each is one file, which a
//! project may also take in as it is: `mod weir;`, `mod ops;`.
#![no_std]

pub mod ops;
pub mod weir;
pub use weir::*;
