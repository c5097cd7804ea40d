//! Asking memory for what is about to be read. The only unsafe code of this crate.

/// Whether there is a way to ask: on x86-64. Elsewhere the language has no stable function for it.
pub(crate) const CAN_PREFETCH: bool = cfg!(target_arch = "x86_64");

/// Asks for the cache line in which `place` begins. It is on its way when this returns, and nothing waits for it: a read
/// would hold up what comes behind it once some dozens of instructions wait too, so that only a few could be on their way at a time. Does
/// nothing where that cannot be asked for.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch<T: ?Sized>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has SSE, of which this is a part. It takes any address, and changes nothing
        // that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
