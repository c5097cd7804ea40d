//! What a command, or a query, may still cost (DESIGN.md section 13): maps charge what is read of them and written to them while the service is
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

/// Does some work within what the meter leaves, and charges that.
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
    let spent = spent.saturating_add(bytes as u64);
    SPENDING.set(Some(Spending { spent, most }));
    // What is dropped while that goes on may charge too.
    if spent > most && !cfg!(panic = "abort") && !std::thread::panicking() {
        resume_unwind(Box::new(TooCostly));
    }
}
