//! Nothing: the tests of this package are those within other libraries' sources (`Cargo.toml`).

#![forbid(unsafe_code)]
