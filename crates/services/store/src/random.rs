//! Choices for tests, the same in each run.

/// Gives numbers below the bound that it is asked with, from a linear congruence of 64 bits, its upper half.
pub(crate) fn choices(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |bound| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    }
}
