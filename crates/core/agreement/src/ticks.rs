//! Ticks: batches without frames that bring an agreed time for which a command waits, when nothing
//! else is ordered. One that is overdue is timed like a request (rule E3).

use crate::machine::{Agreement, Now};
use perdura_protocol::{Batch, Slot, Time};

/// What waits for a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticks {
    // The first time for which a command waits, as the executed state says.
    due: Option<Time>,
    // Since when this replica's clock says that it has passed, with the allowed skew.
    pub(crate) overdue_ms: Option<u64>,
}

impl Agreement {
    /// The agreed time for which the first command waits, as the executed state says. When it has
    /// come and nothing is ordered, the leader proposes a tick; one that does not is suspected, as if
    /// it kept back a request.
    pub fn set_due(&mut self, due: Option<Time>) {
        if self.ticks.due != due {
            self.ticks = Ticks { due, overdue_ms: None };
        }
    }

    /// The tick that a leader proposes in `slot`: one at a time, and only while nothing else is in
    /// agreement that would bring the time.
    pub(crate) fn tick(&self, now: Now, slot: Slot) -> Option<Batch> {
        let due = self.ticks.due.is_some_and(|due| due <= now.wall && now.wall > Time(0));
        (due && slot == self.executed.next()).then(|| Batch::tick(now.wall))
    }

    /// Whether a command waits for a time that has passed, by this replica's clock less what
    /// another's may be behind. Who has not executed what others have does not know what waits.
    pub(crate) fn note_overdue(&mut self, now: Now) {
        let max_skew_ms = self.settings.parameters.max_skew_ms;
        let passed =
            self.ticks.due.is_some_and(|due| due.0.saturating_add(max_skew_ms) < now.wall.0);
        let behind = self.executed < self.delivered || self.delivered_elsewhere() > self.delivered;
        if !passed || behind {
            self.ticks.overdue_ms = None;
        } else if self.ticks.overdue_ms.is_none() {
            self.ticks.overdue_ms = Some(now.monotonic_ms);
        }
    }
}
