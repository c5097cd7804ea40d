//! Choices that a seed repeats.

/// Makes choices, the same ones for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One below `bound`, which is above 0.
    ///
    /// # Panics
    /// When it is not.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// True once in so many times.
    ///
    /// # Panics
    /// When that is 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
