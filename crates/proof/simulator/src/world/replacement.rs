//! A replica lost its disk: the administrator has its next incarnation ordered, formats an empty
//! disk for it, and starts it; it votes once it holds the state at which its configuration began
//! (D8).

use super::{Event, World};
use perdura_protocol::configuration::Configuration;
use perdura_protocol::{AdminCommand, ReplicaId, SecretKey};

/// Time between two looks of the administrator, microseconds.
const LOOK_US: u64 = 300_000;

/// A replacement under way.
#[derive(Debug)]
pub struct Replacement {
    replica: usize,
    incarnation: u32,
    key: SecretKey,
}

impl World {
    /// The disk of a replica is lost.
    pub(crate) fn wipe(&mut self, replica: usize) {
        (self.replicas[replica].replaced, self.replicas[replica].barred) = (true, false);
        if self.replicas[replica].process.is_some() {
            self.crash_machine(replica);
        }
        self.checkers.persist_before_speak.wiped(replica);
        self.checkers.boots.wiped(replica);
        self.replicas[replica].rot = None;
        self.undamaged(replica);
        let incarnation = self.replicas[replica].incarnation + 1;
        let key = SecretKey::from_seed(self.plan.scheme, self.random.bytes32());
        self.trace.line(self.now_us, format_args!("r{replica} loses its disk"));
        self.replacement = Some(Replacement { replica, incarnation, key });
        self.push(1_000, Event::Administer);
    }

    /// The administrator goes on with the replacement, if one is under way.
    pub(crate) fn administer(&mut self) {
        let Some(replacement) = &self.replacement else { return };
        let key = replacement.key.public();
        let (replica, incarnation) = (replacement.replica, replacement.incarnation);
        if let Some(configuration) = self.ordered_configuration(replica) {
            self.bring_in(configuration);
            return;
        }
        self.push(LOOK_US, Event::Administer);
        let admin = self.clients.len() - 1;
        if self.clients[admin].administered.is_some() {
            return;
        }
        let command =
            AdminCommand::ReplaceReplica { replica: ReplicaId(replica as u8), incarnation, key };
        self.administer_command(command);
    }

    /// The configuration with the new key, as the replicas' status shows it.
    fn ordered_configuration(&self, replica: usize) -> Option<Configuration> {
        let key = self.replacement.as_ref()?.key.public();
        let id = ReplicaId(replica as u8);
        self.replicas
            .iter()
            .filter_map(|replica| replica.process.as_ref())
            .flat_map(|process| process.machine().configurations())
            .find(|configuration| configuration.key(id) == Some(key))
            .cloned()
    }

    /// Formats and starts the new incarnation.
    fn bring_in(&mut self, configuration: Configuration) {
        let Some(Replacement { replica, incarnation, key }) = self.replacement.take() else {
            return;
        };
        let from_slot = configuration.from_slot;
        self.trace.line(
            self.now_us,
            format_args!("r{replica} becomes incarnation {incarnation} from slot {from_slot}"),
        );
        self.report.replacements += 1;
        let here = &mut self.replicas[replica];
        here.replaced = false;
        here.sick = None;
        here.incarnation = incarnation;
        here.key = key;
        here.genesis.configuration = configuration;
        self.checkers.boots.succeeded(replica);
        self.format(replica, Some(from_slot));
        self.start(replica);
    }
}
