//! What a service says to those outside of its group, and what it asks of the machine around it: statements in replies, signatures in
//! commands, and how other sessions stand.

use super::Machine;
use crate::asked::Call;
use crate::service::{Service, Standing};
use bytes::Bytes;
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{Command, Frame, Outcome, SessionId, limits};
use std::collections::BTreeMap;

impl<S: Service> Machine<S> {
    /// The signatures in a frame's commands that have to be genuine for it to be ordered; `None` when it must not be ordered, whatever they
    /// are. The same in every state.
    #[must_use]
    pub fn claims(&self, frame: &Frame) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let claims = self.asked.reading((Call::Claims, self.slot), None, || {
            let mut all = Vec::new();
            for content in frame.command_slices().filter_map(Command::service_content) {
                let mut claims = self.service.claims(content)?;
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

    /// What the outcome of an ordered command states to those outside of the group. The same in every state.
    #[must_use]
    pub fn attested(&self, outcome: &Outcome) -> Option<Bytes> {
        let reply = outcome.attesting()?;
        let ask = || self.service.attested(reply);
        let leaf = self.asked.reading((Call::Attested, self.slot), Some(reply), ask);
        leaf.flatten().filter(|leaf| leaf.len() <= limits::LEAF_BYTES)
    }

    /// How the sessions stand that commands of a frame ask about, by their numbers.
    pub(super) fn standings(&self, frame: &Frame) -> BTreeMap<u64, Standing> {
        let mut standings = BTreeMap::new();
        for (command, number) in frame.command_slices().zip(frame.first_number..) {
            let Some(content) = Command::service_content(command) else { continue };
            self.asked.ask(Call::AsksAbout, number);
            let other = self.service.asks_about(content);
            self.asked.answered();
            if let Some(other) = other {
                standings.insert(number, self.standing(other));
            }
        }
        standings
    }

    /// Whether a session may still send anything.
    #[must_use]
    pub fn standing(&self, session: SessionId) -> Standing {
        if self.registry.is_revoked(session.client) {
            return Standing::Over;
        }
        self.sessions.standing(self.time, session)
    }
}
