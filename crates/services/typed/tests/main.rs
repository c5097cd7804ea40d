//! A service in types, as replicas run it.

mod ledger;
mod nested;
mod parts;
mod unencodable;
