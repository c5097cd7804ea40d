//! Steps and messages as text.

use crate::model::{Input, Model};
use perdura_protocol::Digest;
use perdura_protocol::message::Message;

impl Model {
    /// A step, readable.
    #[must_use]
    pub fn describe(&self, seat: usize, input: Input, until_stall: Option<u32>) -> String {
        let me = self.world.seats[seat];
        let what = match input {
            Input::Deliver(post) => {
                let post = self.posts.post(post);
                format!("hears from {}: {}", post.from, brief(&post.message))
            }
            Input::Votes(ballot, voters) => {
                let ballot = self.posts.ballot(ballot);
                let voters: Vec<usize> =
                    (0..self.world.n()).filter(|id| voters >> id & 1 == 1).collect();
                format!(
                    "hears {:?} of view {} slot {} batch {} from {voters:?}",
                    ballot.kind(),
                    ballot.view,
                    ballot.slot,
                    short(ballot.digest)
                )
            }
            Input::Join(view) => format!("times out and asks for view {view}"),
            Input::Request => "gets a frame from a client".to_owned(),
            Input::Crash(_) => "crashes and restarts".to_owned(),
            Input::Repeat => "repeats itself".to_owned(),
        };
        let stall = until_stall
            .map(|records| format!("; after {records} records its disk stalls"))
            .unwrap_or_default();
        format!("replica {me} (seat {seat}) {what}{stall}")
    }
}

fn short(digest: Digest) -> String {
    let text = format!("{digest:?}");
    text.chars().filter(char::is_ascii_hexdigit).take(6).collect()
}

fn brief(message: &Message) -> String {
    match message {
        Message::Propose { view, slot, batch, decided, .. } => format!(
            "Propose view {view} slot {slot} batch {} (decided {decided})",
            short(batch.digest())
        ),
        Message::ViewChange(change) => {
            let locks: Vec<String> = change
                .locks
                .iter()
                .map(|lock| format!("slot {} view {} {}", lock.slot, lock.view, short(lock.digest)))
                .collect();
            format!("ViewChange to {} with locks [{}]", change.view, locks.join(", "))
        }
        Message::NewView(new_view) => {
            let senders: Vec<u8> = new_view.changes.iter().map(|change| change.sender.0).collect();
            format!("NewView {} from view changes of {senders:?}", new_view.view)
        }
        Message::Decisions { decisions, .. } => {
            let decided: Vec<String> = decisions
                .iter()
                .map(|d| format!("slot {} view {} {}", d.slot, d.view, short(d.batch.digest())))
                .collect();
            format!("Decisions [{}]", decided.join(", "))
        }
        Message::Decided { view, slot, .. } => format!("Decided view {view} up to slot {slot}"),
        Message::Write { view, slot, digest, .. } => {
            format!("Write view {view} slot {slot} {}", short(*digest))
        }
        Message::Accept { view, slot, digest, .. } => {
            format!("Accept view {view} slot {slot} {}", short(*digest))
        }
        Message::FetchBatch { slot, digest } => {
            format!("FetchBatch slot {slot} {}", short(*digest))
        }
        Message::LockedBatch { slot, batch } => {
            format!("LockedBatch slot {slot} {}", short(batch.digest()))
        }
        other => format!("{other:?}"),
    }
}
