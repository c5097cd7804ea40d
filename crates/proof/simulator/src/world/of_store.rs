//! A group that is a partition of a store, beside others ([`crate::deployment`], which lets time pass): its clients are those of all
//! groups, and what they ask for comes from there.

use super::World;
use super::clients::CallRecord;
use super::replica::Process;
use super::workload::{Asked, Request};
use crate::checkers::commit_order::Seen;
use crate::checkers::transactions::{Called, Ran};
use crate::options::SimulationOptions;
use crate::plan::Plan;
use crate::random::Random;
use crate::violation::{Broken, Check};
use crate::witness::{Notes, Witnessed};
use bytes::Bytes;
use perdura_adversary::Statements;
use perdura_client::CallResult;
use perdura_protocol::{ClusterId, Decode, Encode, PublicKey, ReplicaId, SecretKey};
use perdura_store::partition::{Members, PartitionReply, Reason, StorePartition, Vote};
use std::collections::{BTreeMap, BTreeSet};

/// Keys and id of a group.
pub(crate) struct Keys {
    pub replicas: Vec<SecretKey>,
    /// Of client processes, and of the administrator.
    pub clients: Vec<SecretKey>,
    pub cluster: ClusterId,
}

impl Keys {
    /// Those of a run.
    pub fn draw(options: &SimulationOptions, plan: &Plan) -> Keys {
        let mut keys = Random::new(options.seed).fork("keys");
        let mut key = || SecretKey::from_seed(plan.scheme, keys.bytes32());
        let replicas = (0..plan.faults.n()).map(|_| key()).collect();
        let clients = (0..plan.workload.clients + 1).map(|_| key()).collect();
        let mut id = [0; 16];
        id.copy_from_slice(&keys.bytes32()[..16]);
        Keys { replicas, clients, cluster: ClusterId(id) }
    }
}

/// What a group shares with the other partitions of its store.
#[derive(Clone, Debug)]
pub(crate) struct OfStore {
    pub place: StorePartition,
    /// The keys of client processes.
    pub clients: Vec<SecretKey>,
    /// Those that attack.
    pub hostile: BTreeSet<PublicKey>,
    pub state_limit_bytes: u64,
}

impl OfStore {
    /// Puts what is shared in the place of what the group would have for itself.
    pub fn replace(&self, keys: &mut Keys) {
        keys.clients.splice(..self.clients.len(), self.clients.iter().cloned());
        if let Some(group) = self.place.map.group(self.place.partition) {
            keys.cluster = group.id;
        }
    }
}

/// What a partition states in replies, for its liars.
pub const STATEMENTS: Statements = Statements { leaf: PartitionReply::leaf, opposite: opposite_of };

/// The opposite vote, or a fence as far as there is.
fn opposite_of(reply: &[u8]) -> Option<Bytes> {
    let opposite = match PartitionReply::from_bytes(Bytes::copy_from_slice(reply)).ok()? {
        PartitionReply::Voted { transaction, attested, vote, .. } => {
            let vote = match vote {
                Vote::Commit => Vote::Abort(Reason::Resolved),
                Vote::Abort(_) => Vote::Commit,
            };
            PartitionReply::Voted { transaction, attested, vote, results: None }
        }
        PartitionReply::Young { transaction, .. } => PartitionReply::Expired { transaction },
        PartitionReply::Fenced { session, now, .. } => {
            PartitionReply::Fenced { session, below: u64::MAX, now }
        }
        PartitionReply::Finished { transaction, committed } => {
            PartitionReply::Finished { transaction, committed: !committed }
        }
        _ => return None,
    };
    Some(opposite.to_bytes())
}

impl World {
    /// Whether it is a partition of a store.
    pub(crate) fn is_partition(&self) -> bool {
        self.of_store.is_some()
    }

    /// What makes the service of a replica.
    pub(crate) fn makes_service(&self) -> impl Fn(Notes) -> Witnessed + Send + 'static {
        let (kind, limit) = (self.plan.service, self.parameters.state_limit_bytes);
        let place = self.of_store.as_ref().map(|store| store.place.clone());
        let weighs = self.plan.workload.costly;
        let guest = self.guest.clone();
        move |notes| match (&guest, &place) {
            (Some(guest), _) => Witnessed::guest(guest.make(limit), notes),
            (None, None) => Witnessed::new(kind, limit, notes).weighing(weighs),
            (None, Some(place)) => {
                Witnessed::partition(place.clone(), limit, notes).weighing(weighs)
            }
        }
    }

    /// The members' keys, as clients know them.
    pub(crate) fn member_keys(&self) -> Vec<PublicKey> {
        self.latest_members().members.iter().map(|member| member.key).collect()
    }

    /// The newest members, for the other groups.
    pub(crate) fn members(&self) -> Option<Members> {
        let partition = self.of_store.as_ref()?.place.partition;
        let newest = self.latest_members();
        let keys = newest.members.iter().map(|member| member.key).collect();
        Some(Members { partition, configuration: newest.id, keys })
    }

    /// Clients hear of the newest members.
    pub(crate) fn tell_clients_of_members(&mut self) {
        let keys = self.member_keys();
        for core in self.clients.iter_mut().filter_map(|client| client.core.as_mut()) {
            core.set_replica_keys(keys.clone());
        }
    }

    /// The keys of replicas that lie.
    pub(crate) fn liars(&self) -> Vec<(ReplicaId, SecretKey)> {
        let liar = |replica: &usize| self.is_liar(*replica);
        let key = |replica: usize| (ReplicaId(replica as u8), self.replicas[replica].key.clone());
        (0..self.n()).filter(liar).map(key).collect()
    }

    /// The administrator's key.
    pub(crate) fn administrator(&self) -> Option<&SecretKey> {
        self.clients.last().map(|client| &client.key)
    }

    /// When something happens next.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.queue.next_us()
    }

    /// Lets the next thing happen.
    pub(crate) fn happen_next(&mut self) {
        if let Some((at, event)) = self.queue.pop() {
            self.now_us = self.now_us.max(at);
            self.happen(event);
        }
    }

    /// It is that late: nothing is due here before.
    pub(crate) fn come_to(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
    }

    /// A client asks for something; the number of its record, or none if an equal command of it is under way.
    pub(crate) fn ask(
        &mut self,
        (client, caller): (usize, usize),
        command: Bytes,
        fast: bool,
        left_ms: u64,
    ) -> Option<usize> {
        let record = self.calls.len();
        let command = Asked::Partition(command);
        let request = Request { command, fast, short_us: Some(left_ms * 1_000) };
        let is_hostile = self.is_hostile(self.clients[client].key.public());
        if !self.call(client, caller, request) {
            return None;
        }
        self.calls[record].patient = !is_hostile;
        Some(record)
    }

    /// A client asks for the number of its session.
    pub(crate) fn ask_session(&mut self, (client, caller): (usize, usize), left_ms: u64) {
        let now_ms = self.client_ms(client);
        self.clients[client].ask_session(now_ms, caller, now_ms + left_ms);
        self.client_round(client);
    }

    /// A client's calls go in another session than this one.
    pub(crate) fn leave_session(&mut self, client: usize, session: u64) {
        self.clients[client].leave_session(session);
        self.client_round(client);
    }

    /// Calls that ended: client, caller and how.
    pub(crate) fn take_answers(&mut self) -> Vec<(usize, usize, CallResult)> {
        std::mem::take(&mut self.answered)
    }

    /// What happened here, for the judge of all groups.
    pub(crate) fn ran(&self) -> Ran<'_> {
        let called = |call: &CallRecord| Called {
            command: call.command.to_bytes(),
            invoked: call.invoked,
            ended: call.ended,
            number: call.number,
            seen: call.seen.clone(),
        };
        let calls = self.calls.iter().map(called).collect();
        let limit = |process: &Process| process.machine().state_limit_bytes();
        let processes = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        let limit_bytes = processes.map(limit).max().unwrap_or(self.parameters.state_limit_bytes);
        Ran { order: self.checkers.exactly_once.order().collect(), limit_bytes, calls }
    }

    /// What clients were told is what was executed.
    pub(crate) fn check_told(&mut self) {
        let order: BTreeMap<_, _> = self
            .checkers
            .exactly_once
            .order()
            .map(|execution| ((execution.session, execution.number), &execution.reply))
            .collect();
        let wrong = |call: &&CallRecord| {
            let executed = call.number.and_then(|number| order.get(&number));
            match (&call.seen, executed) {
                (Seen::Ok(seen), Some(Some(Ok(reply)))) => seen != reply,
                // Without a number it was a fast read.
                (Seen::Ok(_), None) => call.number.is_some(),
                (Seen::Ok(_), Some(_)) | (Seen::NotSent, Some(_)) => true,
                (Seen::RefusedInOrder, Some(reply)) => !matches!(reply, Some(Err(_))),
                (Seen::NotSent | Seen::RefusedInOrder, None) | (Seen::Unknown, _) => false,
            }
        };
        let check: Check = match self.calls.iter().find(wrong) {
            None => Ok(()),
            Some(call) => {
                let executed = call.number.and_then(|number| order.get(&number));
                let what = format!("{call:?} was executed with {executed:?}");
                Err(Broken::new("Told (C1)", what))
            }
        };
        self.check(check);
    }
}
