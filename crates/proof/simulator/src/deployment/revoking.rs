//! The administrator revokes the key of a hostile client process in all groups (`perdura client revoke`), whatever of it is pending, and
//! tries again until all have it.

use super::{Deployment, Role};
use crate::report::Mark;

/// Between two attempts, microseconds.
const AGAIN_US: u64 = 300_000;

impl Deployment {
    /// When he begins.
    pub(super) fn draw_revoking(&mut self) {
        let begins_ms = self.plan.revokes_ms;
        self.revokes_us = begins_ms.map_or(u64::MAX, |begins_ms| self.now_us + 1_000 * begins_ms);
    }

    /// Those groups that have the key are asked again.
    pub(super) fn revoke(&mut self) {
        self.revokes_us = u64::MAX;
        let hostile = self.clients.iter().position(|client| client.role == Role::Hostile);
        let Some(hostile) = hostile.filter(|_| !self.closing) else { return };
        let mut is_left = false;
        for world in &mut self.worlds {
            world.come_to(self.now_us);
            is_left |= !world.revoke_client_of_store(hostile);
        }
        if is_left {
            self.revokes_us = self.now_us + AGAIN_US;
        } else {
            self.report.reached(Mark::KeyRevoked);
        }
    }
}
