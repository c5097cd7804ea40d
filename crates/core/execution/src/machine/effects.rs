//! What the execution of a batch gives, as it goes on.

use super::{Executed, Reply};
use crate::cost::Spending;
use bytes::Bytes;
use perdura_protocol::configuration::Configuration;
use perdura_protocol::versions::VersionError;
use perdura_protocol::{Outcome, SessionId};

/// Replies of at least this many bytes are compared with the one before them.
const SHARED_BYTES: usize = 4096;

/// See the module.
pub(super) struct Effects<'a> {
    give: &'a mut dyn FnMut(Reply),
    pub(super) spending: Spending,
    pub(super) ended: Vec<SessionId>,
    pub(super) new_configuration: Option<Configuration>,
    pub(super) outdated: Option<VersionError>,
    // The last large reply.
    last: Bytes,
}

impl<'a> Effects<'a> {
    pub(super) fn new(give: &'a mut dyn FnMut(Reply), spending: Spending) -> Effects<'a> {
        let (new_configuration, outdated, last) = (None, None, Bytes::new());
        Effects { give, spending, ended: Vec::new(), new_configuration, outdated, last }
    }

    /// A reply leaves the machine.
    pub(super) fn reply(&mut self, reply: Reply) {
        (self.give)(reply);
    }

    /// The same outcome. One value that is asked for a thousand times is held once.
    pub(super) fn share(&mut self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Service(reply) if reply.len() >= SHARED_BYTES => {
                if self.last != reply {
                    self.last = reply;
                }
                Outcome::Service(self.last.clone())
            }
            other => other,
        }
    }

    pub(super) fn finish(self) -> Executed {
        let Effects { spending, ended, new_configuration, outdated, .. } = self;
        let (costs, put_off) = spending.finish();
        Executed { replies: Vec::new(), costs, put_off, ended, new_configuration, outdated }
    }
}
