//! What a command, or a query, may still cost (docs/design.md, Cost): maps charge what is read of them and written to them while the service is
//! at it, on the thread that runs it.
//!
//! A command over its budget ends there, by unwinding to whoever began it, which undoes what it wrote. In a program whose panics abort it runs
//! to its end, and is undone then.

use perdura_execution::{Meter, TooCostly};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static SPENDING: Cell<Option<Spending>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Spending {
    spent: u64,
    most: u64,
}

/// What each access costs beside the bytes of its entry, bytes: about a search.
const ACCESS: usize = 64;

/// Puts back what was there before, also when a panic of the service goes by.
struct Before(Option<Spending>);

impl Drop for Before {
    fn drop(&mut self) {
        SPENDING.set(self.0);
    }
}

/// Does some work within what the meter leaves, and charges that: no more than what it leaves and one, whatever the service says that it costs.
///
/// # Errors
/// When it costs more. The work was not done to its end then, or is to be undone.
pub(crate) fn within<T>(meter: &Meter, work: impl FnOnce() -> T) -> Result<T, TooCostly> {
    let most = meter.left();
    let before = Before(SPENDING.replace(Some(Spending { spent: 0, most })));
    let done =
        if cfg!(panic = "abort") { Ok(work()) } else { catch_unwind(AssertUnwindSafe(work)) };
    let spent = SPENDING.get().map_or(0, |spending| spending.spent);
    drop(before);
    let done = match done {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<TooCostly>() => None,
        Err(panicked) => resume_unwind(panicked),
    };
    meter.charge(usize::try_from(spent).unwrap_or(usize::MAX))?;
    done.ok_or(TooCostly)
}

/// What each write costs beside the bytes of its entry, bytes: the first in a segment copies that.
const WRITE: usize = 4096;

/// An entry of so many bytes is written.
pub(crate) fn write(bytes: usize) {
    charge(bytes.saturating_add(WRITE));
}

/// An entry of so many bytes is read.
pub(crate) fn access(bytes: usize) {
    charge(bytes.saturating_add(ACCESS));
}

/// Something that takes as long as reading so many bytes.
pub(crate) fn charge(bytes: usize) {
    let Some(Spending { spent, most }) = SPENDING.get() else { return };
    let spent = spent.saturating_add(bytes as u64).min(most.saturating_add(1));
    SPENDING.set(Some(Spending { spent, most }));
    // What is dropped while that goes on may charge too.
    if spent > most && !cfg!(panic = "abort") && !std::thread::panicking() {
        resume_unwind(Box::new(TooCostly));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::limits::COMMAND_COST;

    #[test]
    fn what_is_recorded_is_bounded_whatever_is_charged() {
        for charges in [&[usize::MAX][..], &[1 << 40; 1000], &[COMMAND_COST as usize, 1]] {
            let meter = Meter::up_to(COMMAND_COST);
            let done = within(&meter, || charges.iter().for_each(|bytes| charge(*bytes)));
            assert_eq!((done, meter.spent()), (Err(TooCostly), COMMAND_COST + 1));
            // There is nothing left, and still no more is recorded.
            assert_eq!(within(&meter, || charge(usize::MAX)), Err(TooCostly));
            assert_eq!(meter.spent(), COMMAND_COST + 2);
        }
        let meter = Meter::up_to(COMMAND_COST);
        assert_eq!(within(&meter, || charge(COMMAND_COST as usize)), Ok(()));
        assert_eq!(meter.spent(), COMMAND_COST);
    }

    #[test]
    fn without_a_bound_all_is_done_and_what_is_recorded_can_be_added_up() {
        let meter = Meter::without_limit();
        assert_eq!(within(&meter, || charge(5)), Ok(()));
        assert_eq!(meter.spent(), 5);
        for charges in [&[usize::MAX, usize::MAX][..], &[1 << 40; 1000]] {
            let meter = Meter::without_limit();
            let done = within(&meter, || charges.iter().for_each(|bytes| charge(*bytes)));
            assert_eq!(done, Ok(()));
            assert!(meter.spent() > COMMAND_COST && meter.spent().checked_mul(1 << 20).is_some());
        }
    }

    /// A service may catch what ends it, and charge again where it is dropped.
    #[test]
    fn nothing_gets_around_the_bound() {
        struct Dropped;
        impl Drop for Dropped {
            fn drop(&mut self) {
                charge(usize::MAX);
            }
        }
        let meter = Meter::up_to(100);
        let done = within(&meter, || {
            let caught = catch_unwind(|| {
                let _dropped = Dropped;
                charge(101);
            });
            assert!(caught.is_err());
        });
        assert_eq!((done, meter.spent()), (Err(TooCostly), 101));
    }
}
