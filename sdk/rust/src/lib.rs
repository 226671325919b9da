//! The SDK as a crate. The whole of it is the module [`weir`], one file, which a project may also take in as
//! it is: `mod weir;`.
#![no_std]

pub mod weir;
pub use weir::*;
