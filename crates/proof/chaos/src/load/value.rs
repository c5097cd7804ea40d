//! Unique values; some are long. Histories have a long one as its number and its length.

use bytes::Bytes;
use perdura_adversary::Random;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest value.
const VALUE_BYTES: u64 = 4096;

/// Where values come from.
#[derive(Default)]
pub struct Values(AtomicU64);

impl Values {
    /// A number that nobody had.
    pub fn number(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// One that nobody had.
    pub fn draw(&self, random: &mut Random) -> String {
        let number = self.number();
        let length = if random.percent(5) { random.below(VALUE_BYTES) } else { 0 };
        format!("v{number}x{length}")
    }
}

/// A value as histories have it, from a value as the service has it. One that is not what was
/// written stays as it is, and fits nothing.
pub fn short(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value).into_owned();
    let head = text.split('.').next().unwrap_or_default();
    match head.split_once('x').and_then(|(_, length)| length.parse::<usize>().ok()) {
        Some(_) if long(head).as_ref() == value => head.to_owned(),
        _ => text,
    }
}

/// A value as the service has it.
pub fn long(value: &str) -> Bytes {
    let length = value.split_once('x').and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
    let mut bytes = value.as_bytes().to_vec();
    bytes.resize(length.max(bytes.len()), b'.');
    Bytes::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_known_by_its_number_and_a_changed_one_is_not() {
        for value in ["v7x0", "v7x3", "v12x400"] {
            assert_eq!(short(&long(value)), value);
        }
        assert_eq!(long("v12x400").len(), 400);
        let mut changed = long("v12x400").to_vec();
        changed[300] = b'!';
        assert_ne!(short(&changed), "v12x400");
        assert_ne!(short(&long("v12x400")[..399]), "v12x400");
    }
}
