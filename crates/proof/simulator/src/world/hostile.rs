//! Clients that attack. They know no client core; what they send is noted, so that nothing else is
//! taken for theirs.

use super::clock::wall_in_order;
use super::{Event, World};
use crate::guest::Guest;
use crate::options::ServiceKind;
use crate::plan::Plan;
use crate::random::Random;
use crate::report::FaultKind;
use bytes::Bytes;
use perdura_adversary::{Arms, Attacker};
use perdura_client::CallResult;
use perdura_protocol::message::Lane;
use perdura_protocol::{
    AdminCommand, ClusterId, Command, Decode, Encode, Message, PublicKey, SecretKey, SessionId,
};
use perdura_store::partition::StorePartition;
use perdura_store::{Operation as Step, StoreCommand, Transaction, limits};
use perdura_tuples::{
    Entry, Field, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand,
};
use std::sync::Arc;

/// Shortest time between two attacks of a hostile client, as a part of the longest.
const SHORTEST_PAUSE: u64 = 20;

/// Attacks in a hundred that follow the last one sooner, before what that one asked for is done.
const SOON: u64 = 30;

/// Bytes of most of its large commands: enough to fill queues, and little enough to be quick.
const LARGE: usize = 200_000;

/// Bytes of a tuple that are not those of its only field: a tag and a length.
const TUPLE_FRAME: usize = 5;

/// Milliseconds for which a tuple of a hostile client stays: what it inserts does not pile up.
const LEASE_MS: u64 = 500;

/// A hostile client.
pub struct Hostile {
    /// What it does.
    pub attacker: Attacker,
    /// Its key.
    pub key: PublicKey,
}

/// Hostile clients as planned. They write to keys of their own, above those of the others.
pub fn arm(
    plan: &Plan,
    cluster: ClusterId,
    keys: Vec<SecretKey>,
    victims: &[PublicKey],
    (place, guest): (Option<&StorePartition>, &Option<Arc<dyn Guest>>),
    random: &Random,
) -> Vec<Hostile> {
    let mut random = random.fork("attacks");
    let n = plan.faults.n();
    plan.attacks
        .iter()
        .zip(keys)
        .enumerate()
        .map(|(index, (attack, key))| {
            let public = key.public();
            let (service, place, guest) = (plan.service, place.cloned(), guest.clone());
            let mut drawing = random.fork(&format!("guest {index}"));
            let make = Box::new(move |number: u64, bytes: usize| {
                let mut value = format!("h{index}.{number}").into_bytes();
                value.resize(bytes.max(value.len()), b'.');
                match service {
                    ServiceKind::KeyValue => {
                        let key = format!("z{index}.{}", number % 4);
                        writing(&key, &value.into()).to_bytes()
                    }
                    ServiceKind::TupleSpaces => in_own_space(index, number, value.into()),
                    ServiceKind::Partitions => {
                        let key = own_key(place.as_ref(), index, number % 4);
                        writing(&key, &value.into()).to_bytes()
                    }
                    // One that it knows, or bytes that mean nothing.
                    ServiceKind::Guest => match &guest {
                        Some(guest) if number.is_multiple_of(2) => guest.draw(&mut drawing).command,
                        _ => value.into(),
                    },
                }
            });
            let victims = victims.to_vec();
            let largest = match service {
                ServiceKind::KeyValue | ServiceKind::Partitions | ServiceKind::Guest => {
                    limits::TRANSACTION_BYTES
                }
                ServiceKind::TupleSpaces => perdura_tuples::limits::TUPLE_BYTES - TUPLE_FRAME,
            };
            let arms = Arms { key, cluster, n, victims, large: LARGE, largest, make };
            Hostile { attacker: Attacker::new(arms, *attack, random.next()), key: public }
        })
        .collect()
}

/// A key of a hostile client that is in this partition.
fn own_key(place: Option<&StorePartition>, index: usize, number: u64) -> String {
    let name = |suffix: u64| format!("z{index}.{number}.{suffix}");
    let is_here = |key: &String| {
        place.is_none_or(|place| place.map.partition_of(key.as_bytes()) == place.partition)
    };
    // By range only the last partition has any.
    (0..64).map(name).find(is_here).unwrap_or_else(|| name(0))
}

/// What writes this value, in parts under several keys where it is too long for one. What makes it a
/// transaction counts the keys too, so these take the place of as many bytes of the value.
pub fn writing(key: &str, value: &Bytes) -> StoreCommand {
    if value.len() <= limits::VALUE_BYTES {
        return StoreCommand::Put { key: Bytes::from(key.to_owned()), value: value.clone() };
    }
    let parts = value.chunks(limits::VALUE_BYTES).enumerate();
    let write = |(part, value): (usize, &[u8])| {
        let key = Bytes::from(format!("{key}.{part}"));
        let value = Bytes::copy_from_slice(&value[..value.len().saturating_sub(key.len())]);
        Step::Write { key, value, only_if_present: false }
    };
    StoreCommand::Transaction(Transaction { operations: parts.map(write).collect() })
}

/// A command of a hostile client in a space of its own.
fn in_own_space(index: usize, number: u64, value: Bytes) -> Bytes {
    let operation = match (number % 4, Tuple::new(&[Field::Bytes(value)])) {
        (0, _) | (_, Err(_)) => Operation::Create(SpaceOptions::default()),
        (1, _) => {
            Operation::In { template: Template { fields: vec![Pattern::Any] }, wait_ms: LEASE_MS }
        }
        (_, Ok(tuple)) => Operation::Out(Entry::new(tuple).with_lease(LEASE_MS)),
    };
    TupleCommand::On { space: format!("z{index}"), operation }.to_bytes()
}

impl World {
    /// The key of a client, hostile ones after the others.
    pub(crate) fn client_key(&self, client: usize) -> PublicKey {
        match self.clients.get(client) {
            Some(known) => known.key.public(),
            None => self.hostile[client - self.clients.len()].key,
        }
    }

    /// Whether a key is a hostile client's.
    pub(crate) fn is_hostile(&self, key: PublicKey) -> bool {
        let store = self.of_store.as_ref();
        self.hostile.iter().any(|hostile| hostile.key == key)
            || store.is_some_and(|store| store.hostile.contains(&key))
    }

    /// A message from this station arrives at a replica: counted if it is a hostile client's.
    pub(crate) fn count_attack(&mut self, station: usize) {
        let first = self.hostile_station(0);
        if let Some(hostile) = station.checked_sub(first).and_then(|at| self.hostile.get(at)) {
            *self.report.attacks.entry(hostile.attacker.attack()).or_default() += 1;
        }
    }

    fn hostile_station(&self, hostile: usize) -> usize {
        self.n() + self.clients.len() + hostile
    }

    pub(crate) fn start_attacks(&mut self) {
        for hostile in 0..self.hostile.len() {
            let station = self.hostile_station(hostile);
            self.dial_all(station);
            if !self.by_hand {
                self.push(self.plan.attack_us, Event::Attack { hostile });
            }
        }
    }

    pub(crate) fn attack(&mut self, hostile: usize) {
        if self.ending.begun() || !self.may_attack() {
            return;
        }
        let longest_us = self.plan.attack_us;
        let shortest_us = longest_us / SHORTEST_PAUSE;
        let soon = self.random.percent(SOON);
        let pause = if soon {
            self.random.between(200, shortest_us)
        } else {
            self.random.between(shortest_us, longest_us)
        };
        self.push(pause, Event::Attack { hostile });
        let station = self.hostile_station(hostile);
        let now = wall_in_order(self.now_us);
        for (replica, bytes) in self.hostile[hostile].attacker.tick(now) {
            self.note_hostile(hostile, &bytes);
            self.send(station, replica.index(), Lane::Agreement, &bytes);
        }
    }

    /// The administrator revokes the key of a hostile client, if he has nothing else to do.
    pub(crate) fn revoke_client(&mut self) {
        let admin = self.clients.len() - 1;
        if self.hostile.is_empty() || self.clients[admin].administered.is_some() {
            return;
        }
        let hostile = self.chaos.random.below(self.hostile.len() as u64) as usize;
        if self.checkers.revocation.is_revoked(self.hostile[hostile].key) {
            return;
        }
        self.revoking = Some(self.hostile[hostile].key);
        let name = format!("hostile-{hostile}");
        self.administer_command(AdminCommand::RevokeClient { name });
    }

    /// The same of a client of all groups; whether it is revoked.
    pub(crate) fn revoke_client_of_store(&mut self, client: usize) -> bool {
        let key = self.clients[client].key.public();
        if self.checkers.revocation.is_revoked(key) {
            return true;
        }
        let admin = &self.clients[self.clients.len() - 1];
        if admin.core.is_some() && admin.administered.is_none() {
            self.revoking = Some(key);
            let name = format!("client-{client}");
            self.administer_command(AdminCommand::RevokeClient { name });
        }
        false
    }

    /// The administrator's command ended; if it was to revoke a client, the client is revoked.
    pub(crate) fn revoked(&mut self, result: &CallResult) {
        let Some(key) = self.revoking.take() else { return };
        if matches!(result, CallResult::Completed(_)) {
            self.fired(FaultKind::ClientRevoked);
            let last = self.checkers.agreement.last();
            self.checkers.revocation.revoked(key, last);
        }
    }

    /// A frame with this number tells that its client went on so far, which is the end of its waits.
    pub(crate) fn note_carried(&mut self, session: SessionId, number: u64, below: u64) {
        if self.has_spaces() {
            self.checkers.waits.sent(session, number, below);
        }
    }

    /// Notes what may be executed in the name of a hostile client.
    fn note_hostile(&mut self, hostile: usize, bytes: &Bytes) {
        let Ok(Message::Frame(frame)) = Message::from_bytes(bytes.clone()) else { return };
        if frame.session.client != self.hostile[hostile].key {
            return;
        }
        self.checkers.exactly_once.acknowledges(frame.session, frame.acked_below);
        for (number, command) in (frame.first_number..frame.end_number()).zip(frame.commands()) {
            self.note_carried(frame.session, number, frame.acked_below);
            match Command::from_bytes(command.clone()) {
                Ok(Command::Service(content)) => {
                    self.checkers.exactly_once.may_be_sent(frame.session, number, content);
                }
                Ok(Command::Open | Command::OpenBy { .. }) => {
                    self.checkers.validity.opens(frame.session)
                }
                Ok(Command::Withdraw { number: of }) => {
                    self.checkers.waits.withdraws(frame.session, of);
                }
                Ok(Command::Confirm { number: of }) => {
                    self.checkers.waits.confirms(frame.session, of);
                }
                Ok(Command::Admin(_) | Command::Renew | Command::Close) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_as_large_as_the_store_takes_and_not_larger() {
        let written = |bytes: usize| writing("key", &Bytes::from(vec![7; bytes]));
        assert!(matches!(written(limits::VALUE_BYTES), StoreCommand::Put { .. }));
        let StoreCommand::Transaction(largest) = written(limits::TRANSACTION_BYTES) else {
            panic!("a value of that size fits no key");
        };
        assert_eq!(largest.validate(), Ok(()));
        let more = StoreCommand::Transaction(largest).to_bytes().len();
        assert!(more > limits::TRANSACTION_BYTES, "keys and values come to all that is allowed");
        let StoreCommand::Transaction(above) = written(limits::TRANSACTION_BYTES + 1) else {
            panic!("nor does one of this");
        };
        assert!(above.validate().is_err());
    }
}
