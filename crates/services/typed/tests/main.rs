//! A service in types, as replicas run it.

mod ledger;
mod many;
mod nested;
mod parts;
mod unencodable;
