//! A machine from the pieces of a transferred state: seconds for a large one, in which the event loop would
//! answer nobody, and the links to others would break. So the driver has it made elsewhere.

use super::boot::SAME_TYPES;
use bytes::Bytes;
use perdura_execution::{AnyService, Machine, Manifest, RestoreError};
use perdura_protocol::Slot;
use perdura_protocol::configuration::Parameters;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The work to be done, off the event loop; afterwards comes
/// [`Input::StateRestored`](super::Input::StateRestored).
pub struct Restoration {
    /// The state's slot.
    pub slot: Slot,
    /// Its pieces.
    pub pieces: usize,
    work: Box<dyn FnOnce() + Send>,
}

impl Restoration {
    /// Does it.
    pub fn run(self) {
        (self.work)();
    }
}

impl fmt::Debug for Restoration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restoration { slot, pieces, work: _ } = self;
        write!(formatter, "Restoration of {slot}, {pieces} pieces")
    }
}

type Outcome = Result<Machine<AnyService>, RestoreError>;

/// Where its outcome will be.
pub(super) struct Restored(Arc<Mutex<Option<Outcome>>>);

impl Restored {
    /// The work, and where its outcome will be.
    pub fn of(
        parameters: Parameters,
        manifest: Manifest,
        pieces: Vec<Bytes>,
        service: AnyService,
    ) -> (Restoration, Restored) {
        let outcome = Arc::new(Mutex::new(None));
        let place = outcome.clone();
        let (slot, count) = (manifest.slot, pieces.len());
        let work = move || {
            let restored = Machine::restore(&parameters, &manifest, pieces, service);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(restored);
        };
        (Restoration { slot, pieces: count, work: Box::new(work) }, Restored(outcome))
    }

    /// The outcome, if the work is done.
    pub fn take(&self) -> Option<Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What is said of a certified state of this slot of which no machine was made.
pub(super) fn not_restored(slot: Slot, error: &RestoreError) -> String {
    let first = format!("the certified state at slot {slot} does not restore: {error}");
    match error {
        RestoreError::Versions(_) => first,
        error if error.is_damage() => {
            format!("{first}. What came was verified, so test the memory of this machine")
        }
        _ => format!(
            "{first}. It is as the others hold it, so most likely they run another program: start {SAME_TYPES}. Report this only if all run the same one"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_another_program_are_told_apart() {
        let damaged = not_restored(Slot(7), &RestoreError::Digest(3));
        assert!(damaged.contains("slot 7") && damaged.contains("test the memory"), "{damaged}");
        let other = not_restored(Slot(7), &RestoreError::Contradiction("so many parts"));
        assert!(other.contains("so many parts. It is as the others hold it"), "{other}");
        assert!(other.contains("another program") && !other.contains("memory"), "{other}");
    }
}
