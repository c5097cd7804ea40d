//! A fast hash for small numbers that nobody chooses in order to collide.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Mix`].
pub type Mixing = BuildHasherDefault<Mix>;

/// Multiplies and folds, word by word.
#[derive(Clone, Copy, Default, Debug)]
pub struct Mix(u64);

impl Mix {
    fn add(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xda94_2042_e4dd_58b5;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }
}
