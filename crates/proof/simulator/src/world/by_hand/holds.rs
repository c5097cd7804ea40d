//! Messages that wait, and copies of messages that were delivered: a scenario lets them arrive when
//! it wants, worse than any network with links does.

use super::super::World;
use bytes::Bytes;
use perdura_protocol::{Decode, Message};
use perdura_replica::node::Input;

/// Names of messages, by tag.
const KINDS: [(u8, &str); 28] = [
    (1, "frame"),
    (2, "propose"),
    (3, "write"),
    (4, "accept"),
    (5, "decided"),
    (6, "prefix"),
    (7, "status"),
    (8, "suspect"),
    (9, "view-change"),
    (10, "new-view"),
    (11, "fetch-batch"),
    (12, "locked-batch"),
    (13, "fetch"),
    (14, "decisions"),
    (15, "too-old"),
    (16, "checkpoint"),
    (17, "state-query"),
    (18, "state-info"),
    (19, "fetch-manifest"),
    (20, "manifest"),
    (21, "fetch-piece"),
    (22, "piece"),
    (32, "attach"),
    (33, "welcome"),
    (34, "read"),
    (35, "read-reply"),
    (36, "replies"),
    (37, "busy"),
];

/// Which messages; what is left open is any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    /// From this station.
    pub from: Option<usize>,
    /// To this one.
    pub to: Option<usize>,
    /// With this tag.
    pub tag: Option<u8>,
}

impl Filter {
    /// The tag of a kind of message.
    pub fn tag(kind: &str) -> Option<u8> {
        KINDS.iter().find(|(_, name)| *name == kind).map(|(tag, _)| *tag)
    }

    fn meets(&self, from: usize, to: usize, tag: Option<u8>) -> bool {
        self.from.is_none_or(|wanted| wanted == from)
            && self.to.is_none_or(|wanted| wanted == to)
            && (self.tag.is_none() || self.tag == tag)
    }
}

#[derive(Debug)]
struct Kept {
    from: usize,
    to: usize,
    // Whether it was delivered then.
    copy: bool,
    bytes: Bytes,
}

/// What is held, and what of it has come.
#[derive(Debug, Default)]
pub(super) struct Holds {
    held: Vec<Filter>,
    taped: Vec<Filter>,
    kept: Vec<Kept>,
    releasing: bool,
}

impl World {
    /// From now on such messages wait (`hold`), or a copy of each is kept.
    pub(crate) fn hold(&mut self, filter: Filter, copy: bool) {
        let holds = &mut self.hand.holds;
        if copy { holds.taped.push(filter) } else { holds.held.push(filter) }
    }

    /// Keeps a message as the scenario wants it; whether that is withheld.
    pub(crate) fn withheld(&mut self, from: usize, to: usize, bytes: &Bytes) -> bool {
        let holds = &mut self.hand.holds;
        let tag = bytes.first().copied();
        let held = holds.held.iter().any(|filter| filter.meets(from, to, tag));
        if held || holds.taped.iter().any(|filter| filter.meets(from, to, tag)) {
            holds.kept.push(Kept { from, to, copy: !held, bytes: bytes.clone() });
        }
        held
    }

    /// Nothing is held any more; what was held or taped arrives now, in the order in which it was
    /// sent, whatever has become of the links it was sent on.
    pub(crate) fn release(&mut self) {
        let Holds { kept, .. } = std::mem::take(&mut self.hand.holds);
        let mut arrived = 0;
        for Kept { from, to, bytes, .. } in kept {
            if !self.is_running(to) {
                continue;
            }
            arrived += 1;
            self.step();
            self.hand.holds.releasing = true;
            match self.client_at(to) {
                None => {
                    let peer = self.peer(from, to);
                    self.input(to, Input::Message { peer, bytes });
                }
                Some(client) if client >= self.clients.len() => {}
                Some(client) => {
                    if let Ok(message) = Message::from_bytes(bytes) {
                        self.client_message(client, from, message);
                    }
                }
            }
            self.hand.holds.releasing = false;
        }
        self.tell(format_args!("{arrived} messages arrive late"));
    }

    /// Nothing is held any more, and what was is lost. Tapes go on.
    pub(crate) fn drop_held(&mut self) {
        self.hand.holds.held.clear();
        self.hand.holds.kept.retain(|kept| kept.copy);
    }

    /// Nothing is held or taped any more.
    pub(super) fn forget_kept(&mut self) {
        self.hand.holds = Holds::default();
    }

    /// Whether what arrives now is not what its sender says now: nobody is to blame for it.
    pub(crate) fn is_releasing(&self) -> bool {
        self.hand.holds.releasing
    }
}
