//! What may be raised while a cluster runs: the versions under which slots are executed, and the limit of the service's state
//! (docs/design.md, Versions).
//!
//! Invariants:
//! - both are ordered state, and neither is ever lowered;
//! - what a slot orders holds from the next slot on: none is executed under two;
//! - ordering what holds already is answered as the first time and changes nothing.

use crate::asked::{self, Call};
use crate::manifest::SEGMENTS;
use crate::service::{Service, StateLimit};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{Slot, Versions, limits};

/// Under which a slot is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RulesInForce {
    pub(crate) versions: Versions,
    pub(crate) state_limit_bytes: u64,
}

impl RulesInForce {
    /// With which a cluster starts.
    pub(crate) fn first(parameters: &Parameters) -> RulesInForce {
        let Parameters { versions, state_limit_bytes, .. } = *parameters;
        RulesInForce { versions, state_limit_bytes }
    }

    /// Whatever this program knows: all replicas answer the same.
    pub(crate) fn raise_versions(&mut self, to: Versions) -> Result<(), String> {
        to.check(to).map_err(|error| error.to_string())?;
        if !to.reach(self.versions) {
            return Err(format!("the versions are {} already, and {to} is lower", self.versions));
        }
        self.versions = to;
        Ok(())
    }

    pub(crate) fn raise_state_limit(&mut self, bytes: u64) -> Result<(), String> {
        let now = self.state_limit_bytes;
        if bytes < now {
            return Err(format!("the limit is {now} bytes already, and {bytes} is lower"));
        }
        if bytes > limits::STATE_LIMIT_BYTES.max(now) {
            let most = limits::STATE_LIMIT_BYTES;
            return Err(format!("{bytes} bytes are above {most}, the most allowed"));
        }
        self.state_limit_bytes = bytes;
        Ok(())
    }

    /// Tells the service, after `slot`.
    pub(crate) fn tell(&self, service: &mut impl Service, slot: Slot) {
        let RulesInForce { versions, state_limit_bytes } = *self;
        asked::named(Call::SetVersion, slot, None, || service.set_version(versions.service));
        asked::named(Call::SetStateLimit, slot, None, || {
            // Programs of 0.1.0 know no bound, and may run beside this one.
            let segments = if versions.rules == 0 { usize::MAX } else { SEGMENTS };
            service.set_state_limit(StateLimit { bytes: state_limit_bytes, segments })
        });
    }
}
