//! What commands and replies of a service say by themselves, whatever its state is: what a command touches, which signatures in it have to be
//! genuine, whom it asks about, and what a reply states to those outside of the group.
//!
//! So frames and replies are verified without the service, which one thread has, and which may be busy with a batch.

use crate::asked::{Asked, Call};
use crate::footprint::Footprint;
use crate::service::Service;
use bytes::Bytes;
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{Command, Decode, Frame, Outcome, SessionId, Slot, limits};
use std::fmt;
use std::sync::Arc;

/// Functions of bytes, and of what never changes in the life of a cluster. They should not panic on any bytes; a panic ends nothing.
pub trait Interface: Send + Sync {
    /// What `command` reads and writes, known before it runs. It may err only towards conflict
    /// (rule E1); a panic conflicts with everything, and so does the default.
    fn footprint(&self, command: &[u8]) -> Footprint {
        let _ = command;
        Footprint::everything()
    }

    /// The signatures in a command that have to be genuine for it to be ordered, at most [`limits::COMMAND_CLAIMS`]
    /// (and [`limits::FRAME_CLAIMS`] in a frame); `None` when it is malformed and must not be ordered. Replicas
    /// ask for them before anything is agreed on: where their answers differ, correct ones take each other for liars. A panic is taken for `None`.
    fn claims(&self, command: &[u8]) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let _ = command;
        Some(Vec::new())
    }

    /// What this reply states to those outside of the group, at most [`limits::LEAF_BYTES`] (else nothing): it goes to the client with the
    /// replica's signature ([`perdura_protocol::attestation`]), so that it can be shown to others. Asked of replies to ordered commands only, and
    /// not of offers, which may be taken back. A panic is taken for nothing.
    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        let _ = reply;
        None
    }

    /// Another session of which the command has to know whether it may still send anything:
    /// [`crate::ExecutionContext::other`] tells. No footprint need tell of it, for what opens or ends sessions conflicts with everything. Asked
    /// while the command is executed: a panic ends the replica, as there.
    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        let _ = command;
        None
    }
}

/// Of a service whose commands and replies say nothing by themselves: each command may conflict with each.
#[derive(Clone, Copy, Debug)]
pub struct Opaque;

impl Interface for Opaque {}

/// A service's interface, asked about whole commands, frames and outcomes. Clones are of the same. Which call a service is at is noted for one
/// thread: that of the machine asks this one too.
#[derive(Clone)]
pub struct Inspector {
    pub(crate) interface: Arc<dyn Interface>,
    pub(crate) asked: Asked,
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Inspector {
    pub(crate) fn of(service: &impl Service, slot: Slot, asked: &Asked) -> Inspector {
        let interface = asked.about(Call::Interface, slot, || service.interface());
        Inspector { interface, asked: asked.clone() }
    }

    /// One that tells by itself what it asks: for who asks while the machine, on another thread, asks its service.
    #[must_use]
    pub fn apart(&self) -> Inspector {
        Inspector { interface: Arc::clone(&self.interface), asked: Asked::default() }
    }

    /// What it asks.
    #[must_use]
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The signatures in a frame's commands that have to be genuine for it to be ordered; `None` when it must not be ordered, whatever they
    /// are.
    #[must_use]
    pub fn claims(&self, frame: &Frame) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let claims = self.asked.reading(Call::Claims, None, || {
            let mut all = Vec::new();
            for content in frame.command_slices().filter_map(Command::service_content) {
                let mut claims = self.interface.claims(content)?;
                if claims.len() > limits::COMMAND_CLAIMS {
                    return None;
                }
                all.append(&mut claims);
                if all.len() > limits::FRAME_CLAIMS {
                    return None;
                }
            }
            Some(all)
        });
        claims.flatten()
    }

    /// What the outcome of an ordered command states to those outside of the group.
    #[must_use]
    pub fn attested(&self, outcome: &Outcome) -> Option<Bytes> {
        let reply = outcome.attesting()?;
        let ask = || self.interface.attested(reply);
        let leaf = self.asked.reading(Call::Attested, Some(reply), ask);
        leaf.flatten().filter(|leaf| leaf.len() <= limits::LEAF_BYTES)
    }

    /// What an encoded [`Command`] of `session` reads and writes, its session included (rule E1).
    #[must_use]
    pub fn footprint(&self, session: SessionId, command: &Bytes) -> Footprint {
        match Command::from_bytes(command.clone()) {
            Ok(Command::Service(content)) => {
                let ask = || self.interface.footprint(&content);
                let marks = self.asked.reading(Call::Footprint, Some(&content), ask);
                marks.unwrap_or_else(Footprint::everything).of_session(session)
            }
            Ok(
                Command::Open
                | Command::OpenBy { .. }
                | Command::Admin(_)
                | Command::Close
                | Command::Withdraw { .. }
                | Command::Confirm { .. },
            ) => Footprint::everything().of_session(session),
            Ok(Command::Renew) | Err(_) => Footprint::new().of_session(session),
        }
    }
}
