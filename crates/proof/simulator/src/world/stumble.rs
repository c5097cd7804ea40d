//! A liar's replica is a real one, and may fail an assertion over its own lies. That is counted, and is
//! no news for who watches a run. And any replica ends when its service says that a command is fatal there.

use perdura_execution::ServicePanic;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

thread_local! {
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Lets a liar's node work; false if it panicked.
pub(super) fn survives(body: impl FnOnce()) -> bool {
    AT_WORK.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    AT_WORK.set(false);
    result.is_ok()
}

/// Lets a node work; true if its service said that it cannot go on there. Panics go on.
pub(super) fn dies(body: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { return false };
    match payload.downcast_ref::<ServicePanic>() {
        Some(ServicePanic { fatal: true, .. }) => true,
        _ => resume_unwind(payload),
    }
}

/// Prints panics as before, but for those of liars. For programs that run simulations.
pub fn pass_over_stumbles() {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        if !AT_WORK.get() {
            before(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_panics_of_others_are_printed() {
        static PRINTED: AtomicUsize = AtomicUsize::new(0);
        let before = take_hook();
        set_hook(Box::new(|_| {
            PRINTED.fetch_add(1, Ordering::Relaxed);
        }));
        pass_over_stumbles();
        let stumbled = !survives(|| panic!("over a lie"));
        let after_lies = PRINTED.load(Ordering::Relaxed);
        let fell = catch_unwind(|| panic!("a bug")).is_err();
        let after_all = PRINTED.load(Ordering::Relaxed);
        set_hook(before);
        assert!(stumbled && fell && survives(|| ()));
        // Tests beside this one may panic meanwhile, on purpose.
        assert!(after_all > after_lies);
    }
}
