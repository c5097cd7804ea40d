//! A replica's state as of a slot, unchanging while execution goes on.
//!
//! Taking one clones the roots of shared maps. What costs (encoding and hashing) happens in
//! [`StateSnapshot::manifest`] and [`StateSnapshot::piece`], on whichever thread calls them; pieces
//! that did not change since an earlier snapshot keep the digest computed then.
//!
//! Pieces: 0 is the core, then one per live session, by client key and nonce, then the service's
//! segments. A piece per session keeps each below [`perdura_protocol::limits::PIECE_BYTES`], and
//! idle sessions cost nothing.

use crate::administration::Registry;
use crate::asked::{self, Call};
use crate::machine::Machine;
use crate::manifest::{Entry, Manifest};
use crate::rules_in_force::RulesInForce;
use crate::service::{Service, Snapshot};
use crate::session::Session;
use crate::sessions::Table;
use bytes::Bytes;
use imbl::OrdMap;
use perdura_protocol::codec::encode_count;
use perdura_protocol::fields::Fields;
use perdura_protocol::{Digest, Encode, PublicKey, SessionId, Slot, Time, seeded};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A state; cloning shares it.
#[derive(Clone)]
pub struct StateSnapshot(Arc<State>);

struct State {
    slot: Slot,
    time: Time,
    history: Digest,
    turn: Option<u64>,
    rules: RulesInForce,
    registry: Registry,
    sessions: OrdMap<PublicKey, Arc<Table>>,
    // How long the group stood still, from version 1 of the rules on.
    stood_ms: Option<u64>,
    service: Arc<dyn Snapshot>,
    // Filled at first need, off the event loop.
    session_pieces: OnceLock<Vec<(SessionId, Arc<Session>)>>,
}

impl StateSnapshot {
    pub(crate) fn of<S: Service>(machine: &Machine<S>) -> StateSnapshot {
        StateSnapshot(Arc::new(State {
            slot: machine.slot,
            time: machine.time,
            history: machine.history,
            turn: machine.turn,
            rules: machine.rules,
            registry: machine.registry.clone(),
            sessions: machine.sessions.tables().clone(),
            stood_ms: machine.sessions.stood_ms(),
            service: {
                let ask = || machine.service.snapshot();
                machine.asked.about(Call::Snapshot, machine.slot, ask)
            },
            session_pieces: OnceLock::new(),
        }))
    }

    /// The last executed slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.0.slot
    }

    /// History hash at that slot.
    #[must_use]
    pub fn history(&self) -> Digest {
        self.0.history
    }

    /// Number of pieces, at least 1.
    #[must_use]
    pub fn pieces(&self) -> usize {
        1 + self.0.session_pieces().len() + self.0.segments()
    }

    /// Encodes piece `index`.
    ///
    /// # Panics
    /// When `index` is not below [`StateSnapshot::pieces`].
    #[must_use]
    pub fn piece(&self, index: usize) -> Bytes {
        let sessions = self.0.session_pieces();
        match index.checked_sub(1) {
            None => self.0.core(),
            Some(index) => match sessions.get(index) {
                Some((id, session)) => session.piece(*id),
                None => self.0.segment(index - sessions.len(), Snapshot::segment),
            },
        }
    }

    /// Digest and length of each piece. Encodes and hashes what changed since it was last asked.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        self.manifest_in_steps(|| {})
    }

    /// The same for a caller that has something to do after each piece.
    #[must_use]
    pub fn manifest_in_steps(&self, mut between: impl FnMut()) -> Manifest {
        let state = &self.0;
        let sessions = state.session_pieces();
        let mut entries = Vec::with_capacity(self.pieces());
        entries.push(Entry::of(&state.core()));
        let mut add = |entry| {
            entries.push(entry);
            between();
        };
        sessions.iter().for_each(|(id, session)| add(session.entry(*id)));
        (0..state.segments()).for_each(|index| add(state.segment(index, Snapshot::entry)));
        Manifest::new(state.slot, state.history, state.rules.versions, sessions.len(), entries)
    }
}

impl State {
    fn segments(&self) -> usize {
        asked::named(Call::Segments, self.slot, None, || self.service.segments())
    }

    fn segment<T>(
        &self,
        index: usize,
        give: impl FnOnce(&(dyn Snapshot + 'static), usize) -> T,
    ) -> T {
        asked::named(Call::Segment, self.slot, Some(index), || give(&*self.service, index))
    }

    fn session_pieces(&self) -> &[(SessionId, Arc<Session>)] {
        self.session_pieces.get_or_init(|| {
            let mut pieces = Vec::new();
            for (client, sessions) in &self.sessions {
                for (nonce, session) in sessions.live() {
                    let id = SessionId { client: *client, nonce };
                    pieces.push((id, Arc::clone(session)));
                }
            }
            pieces
        })
    }

    /// Time, number of boundaries (where checkpoints go round), the state's limit, the administrator's key and how long the group stood
    /// still, by name (under the first rules the former two alone, one after the other); registry, and for each client key the nonces that it used.
    fn core(&self) -> Bytes {
        let mut out = Vec::new();
        let time = if seeded!(TimeNotInCheckpoint) { Time(0) } else { self.time };
        if self.rules.versions.rules == 0 {
            time.encode(&mut out);
            if let Some(turn) = self.turn {
                turn.encode(&mut out);
            }
        } else {
            let mut fields = Fields::default();
            fields.require("time", &time);
            if let Some(turn) = &self.turn {
                fields.require("turn", turn);
            }
            fields.require("state-limit-bytes", &self.rules.state_limit_bytes);
            fields.require("administrator", &self.registry.administrator());
            fields.require("stood-ms", &self.stood_ms.unwrap_or(0));
            fields.encode(&mut out);
        }
        self.registry.encode(&mut out);
        encode_count(self.sessions.len(), &mut out);
        for (client, sessions) in &self.sessions {
            client.encode(&mut out);
            sessions.encode(&mut out);
        }
        out.into()
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateSnapshot(slot {}, history {:?})", self.0.slot, self.0.history)
    }
}
