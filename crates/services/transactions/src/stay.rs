//! Where calls of this process wait, and that they wait there no longer.

use crate::{Groups, Transactions};
use perdura_protocol::PartitionId;
use perdura_store::partition::{PartitionCommand, Wanted};

/// A mark that is not withdrawn within so long, milliseconds, goes by itself.
const WITHDRAWN_MS: u64 = 1_000;

/// All of them: where, and what for. Two that are the same share a mark.
pub(crate) type Stays = Vec<(PartitionId, Wanted)>;

/// A place where a call may have a mark. That is withdrawn when the call goes, unless it has its answer there, or another one of this process waits for the
/// same.
#[derive(Debug)]
pub(crate) struct Stay<G: Groups> {
    of: Transactions<G>,
    place: (PartitionId, Wanted),
    is_answered: bool,
}

impl<G: Groups> Stay<G> {
    pub(crate) fn begin(of: &Transactions<G>, place: &(PartitionId, Wanted)) -> Stay<G> {
        of.inner.state().stays.push(place.clone());
        Stay { of: of.clone(), place: place.clone(), is_answered: false }
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.place.0
    }

    /// The call has its answer, and with it its mark went.
    pub(crate) fn note_answered(&mut self) {
        self.is_answered = true;
    }
}

impl<G: Groups> Drop for Stay<G> {
    fn drop(&mut self) {
        let is_last = {
            let stays = &mut self.of.inner.state().stays;
            if let Some(index) = stays.iter().position(|one| *one == self.place) {
                stays.swap_remove(index);
            }
            !stays.contains(&self.place)
        };
        if self.is_answered || !is_last || self.of.knows_no_marks(self.place.0) {
            return;
        }
        let (this, (of, wanted)) = (self.of.clone(), self.place.clone());
        let deadline_ms = this.groups().now_ms() + WITHDRAWN_MS;
        self.of.groups().spawn(Box::pin(async move {
            // Somebody may wait for the same again by now.
            if this
                .inner
                .state()
                .stays
                .iter()
                .any(|(at, for_what)| *at == of && *for_what == wanted)
            {
                return;
            }
            let leave = PartitionCommand::Mark { wanted, waits: false };
            drop(this.ask(of, &leave, deadline_ms).await);
        }));
    }
}
