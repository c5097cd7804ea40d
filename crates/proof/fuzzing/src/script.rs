//! Choices from a fuzzer's bytes.

use crate::storage::model::Choice;

/// Takes choices off the input; when it is used up, it goes on with what follows from the input's
/// length, so that every input is one run.
pub struct Script<'a> {
    left: &'a [u8],
    state: u64,
}

impl Script<'_> {
    pub fn new(bytes: &[u8]) -> Script<'_> {
        Script { left: bytes, state: bytes.len() as u64 }
    }

    fn byte(&mut self) -> u8 {
        if let Some((first, rest)) = self.left.split_first() {
            self.left = rest;
            return *first;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 56) as u8
    }
}

impl Choice for Script<'_> {
    fn word(&mut self) -> u64 {
        // A byte decides; every bit of the word depends on it.
        (u64::from(self.byte()) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn below(&mut self, bound: u64) -> u64 {
        let low = u64::from(self.byte());
        let choice = if bound > 256 { low << 8 | u64::from(self.byte()) } else { low };
        choice % bound
    }
}
