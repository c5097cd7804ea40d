//! What a service's commands ask of the machine around it: how other sessions stand.

use super::Machine;
use crate::asked::Call;
use crate::service::{Service, Standing};
use perdura_protocol::{Command, Frame, SessionId};
use std::collections::BTreeMap;

impl<S: Service> Machine<S> {
    /// How the sessions stand that commands of a frame ask about, by their numbers.
    pub(super) fn standings(&self, frame: &Frame) -> BTreeMap<u64, Standing> {
        let mut standings = BTreeMap::new();
        for (command, number) in frame.command_slices().zip(frame.first_number..) {
            let Some(content) = Command::service_content(command) else { continue };
            self.asked.ask(Call::AsksAbout, number);
            let other = self.inspector.interface.asks_about(content);
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
