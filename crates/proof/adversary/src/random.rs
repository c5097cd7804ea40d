//! The only source of chance in a run: SplitMix64 from the seed (Steele, Lea and Flood, OOPSLA
//! 2014). Each purpose has a stream of its own, so that what one part draws does not shift what
//! another one gets.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed);
        random.next();
        random
    }

    /// A stream of its own for `purpose`.
    #[must_use]
    pub fn fork(&self, purpose: &str) -> Random {
        let mut state = self.0;
        for byte in purpose.bytes() {
            state = Random(state ^ u64::from(byte)).next();
        }
        Random::new(state)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `part` times in a million.
    pub fn one_in_million(&mut self, part: u64) -> bool {
        part > 0 && self.below(1_000_000) < part
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which are not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// 32 bytes, for keys.
    pub fn bytes32(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}

/// Spreads every bit of a word over all of them.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let mut z = word;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
