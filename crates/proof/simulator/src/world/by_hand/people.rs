//! Clients, the administrator, liars, and those who attack.

use super::super::workload::{Asked, Request};
use super::super::{Event, World};
use crate::checkers::commit_order::Seen;
use crate::checkers::progress::TROUBLED_US;
use crate::witness::Execution;
use bytes::Bytes;
use perdura_adversary::Strategy;
use perdura_oracle::Return;
use perdura_protocol::{AdminCommand, Command, Decode, Encode, PublicKey, ReplicaId, SessionId};
use perdura_replica::node::{Interceptor, NotAdmitted};
use perdura_store::{Operation, StoreCommand, StoreReply, Transaction};
use std::collections::BTreeMap;
use std::fmt::Write;

impl World {
    /// Begins a call; its record, if none of equal content is under way.
    fn begin_call(&mut self, client: usize, command: StoreCommand, fast: bool) -> Option<usize> {
        let record = self.calls.len();
        let short_us = Some(TROUBLED_US / 2);
        let command = Asked::Store(command);
        self.call(client, record, Request { command, fast, short_us }).then_some(record)
    }

    /// One call, to its end; how it ended.
    pub(crate) fn call_to_its_end(
        &mut self,
        client: usize,
        command: StoreCommand,
        fast: bool,
    ) -> String {
        let Some(record) = self.begin_call(client, command, fast) else {
            return "not called".to_owned();
        };
        self.run_while(|world| world.is_open(record));
        self.end_of(record)
    }

    /// Begins a call that goes on while other things happen.
    pub(crate) fn call_meanwhile(&mut self, client: usize, command: StoreCommand, fast: bool) {
        let what = format!("c{client} {}", describe(&command));
        if let Some(record) = self.begin_call(client, command, fast) {
            self.hand.calls.push((record, what));
        }
    }

    /// The calls that go on, a line each; those that have ended are not told of again. `wait` lets
    /// all come to their ends first.
    pub(crate) fn calls_meanwhile(&mut self, wait: bool) -> String {
        let mut out = String::new();
        for (record, what) in std::mem::take(&mut self.hand.calls) {
            if wait {
                self.run_while(|world| world.is_open(record));
            }
            if self.is_open(record) {
                let _ = writeln!(out, "{what}: open");
                self.hand.calls.push((record, what));
            } else {
                let _ = writeln!(out, "{what}: {}", self.end_of(record));
            }
        }
        out
    }

    fn end_of(&self, record: usize) -> String {
        match self.calls.get(record).map(|call| &call.seen) {
            Some(Seen::Ok(reply)) => match StoreReply::from_bytes(reply.clone()) {
                Ok(reply) => returned(&reply),
                Err(_) => "refused".to_owned(),
            },
            Some(Seen::Unknown) => "indeterminate".to_owned(),
            _ => "refused".to_owned(),
        }
    }

    /// Only so many clients are registered from the start.
    pub(crate) fn forget_clients(&mut self, known: usize) {
        for replica in &mut self.replicas {
            let name = |client| format!("client-{client}");
            let strangers: Vec<String> = (known..self.clients.len()).map(name).collect();
            replica.genesis.clients.retain(|(name, _)| !strangers.contains(name));
        }
    }

    /// A client process ends and another one starts, with the same key.
    pub(crate) fn restart_client(&mut self, client: usize) {
        self.end_client(client);
        self.start_client(client);
    }

    /// The administrator orders something; how it ended.
    pub(crate) fn order(&mut self, command: AdminCommand) -> String {
        self.administer_command(command);
        self.end_of_order()
    }

    fn end_of_order(&mut self) -> String {
        let admin = self.clients.len() - 1;
        self.run_while(|world| world.clients[admin].administered.is_some());
        self.hand.administered.take().unwrap_or_default()
    }

    /// The administrator replaces his key; the one before is kept by somebody.
    pub(crate) fn order_rotation(&mut self) -> String {
        let former = self.clients[self.clients.len() - 1].key.clone();
        let key = self.fresh_administrator();
        let answer = self.order(AdminCommand::ReplaceAdministrator { key });
        self.take_up_key();
        self.hand.stolen = Some(former);
        answer
    }

    /// Somebody revokes a client with the administrator's former key, and then the administrator is back.
    pub(crate) fn order_as_thief(&mut self, client: usize) -> String {
        let Some(stolen) = self.hand.stolen.clone() else { return "no key".to_owned() };
        let own = self.clients[self.clients.len() - 1].key.clone();
        self.restart_administrator(stolen);
        let command = AdminCommand::RevokeClient { name: format!("client-{client}") };
        self.administer_unseen(Command::Admin(command).to_bytes());
        let answer = self.end_of_order();
        self.restart_administrator(own);
        answer
    }

    /// Versions and limit of each replica.
    pub(crate) fn terms(&self) -> String {
        let mut out = String::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            let Some(process) = &replica.process else {
                let _ = writeln!(out, "r{index} down");
                continue;
            };
            let machine = process.machine();
            let (versions, mib) = (machine.versions(), machine.state_limit_bytes() >> 20);
            let _ = writeln!(out, "r{index} {versions}, at most {mib} MiB");
        }
        out
    }

    /// A command of the administrator ended so.
    pub(crate) fn administered(&mut self, how: &str) {
        if let Some(what) = self.hand.administers.take() {
            self.tell(format_args!("{what}: {how}"));
        } else {
            self.hand.administered = Some(how.to_owned());
        }
    }

    /// The administrator revokes a client's key while other things happen.
    pub(crate) fn revoke_meanwhile(&mut self, client: usize) {
        self.hand.administers = Some(format!("revoke c{client}"));
        self.administer_command(AdminCommand::RevokeClient { name: format!("client-{client}") });
    }

    /// The administrator registers a client's key.
    pub(crate) fn order_registration(&mut self, client: usize) -> String {
        let key = self.clients[client].key.public();
        self.order(AdminCommand::AddClient { name: format!("client-{client}"), key })
    }

    /// The administrator revokes it.
    pub(crate) fn order_revocation(&mut self, client: usize) -> String {
        self.order(AdminCommand::RevokeClient { name: format!("client-{client}") })
    }

    /// Which replicas know a client's key.
    pub(crate) fn who_knows(&self, client: usize) -> String {
        let key = self.clients[client].key.public();
        let known = |process: &super::super::replica::Process| {
            let unknown = process.node.admit_client(key) == Err(NotAdmitted::Unknown);
            if unknown { "no" } else { "yes" }
        };
        let answers: Vec<String> = (0..)
            .zip(&self.replicas)
            .map(|(index, replica)| {
                format!("r{index} {}", replica.process.as_ref().map_or("down", known))
            })
            .collect();
        answers.join(", ")
    }

    /// From now on a replica lies; one that lied before lies in another way.
    pub(crate) fn corrupt(&mut self, replica: usize, strategy: Strategy) {
        let mut keys: Vec<_> = (0u8..)
            .zip(&self.replicas)
            .filter(|(id, here)| here.liar.is_some() && usize::from(*id) != replica)
            .map(|(id, here)| (ReplicaId(id), here.key.clone()))
            .collect();
        keys.push((ReplicaId(replica as u8), self.replicas[replica].key.clone()));
        let mut random = self.random.fork("liar by hand");
        let coin = random.next();
        self.make_liar(replica, strategy, keys, coin, &mut random);
        let here = &mut self.replicas[replica];
        if let (Some(liar), Some(process)) = (&mut here.liar, &here.process) {
            liar.learn(&process.members);
        }
    }

    /// A hostile client attacks for a time.
    pub(crate) fn attack_for(&mut self, hostile: usize, us: u64) {
        self.hand.attack_until_us = self.now_us + us;
        self.push(0, Event::Attack { hostile });
        self.run_for(us);
    }

    /// Whether a hostile client may go on.
    pub(crate) fn may_attack(&self) -> bool {
        !self.by_hand || self.now_us < self.hand.attack_until_us
    }

    /// Everything that was executed, in order, a line each; on one key only, if that is named.
    pub(crate) fn executions(&self, key: Option<&str>) -> String {
        let mut out = String::new();
        // Sessions of a client in the order in which they execute first.
        let mut sessions: BTreeMap<PublicKey, Vec<SessionId>> = BTreeMap::new();
        for execution in self.checkers.exactly_once.order() {
            let Execution { slot, session, number, command, reply, .. } = execution;
            let known = sessions.entry(session.client).or_default();
            if !known.contains(session) {
                known.push(*session);
            }
            let which = known.len();
            let client = (0..self.clients.len() + self.hostile.len())
                .find(|client| self.client_key(*client) == session.client)
                .map_or_else(|| "nobody".to_owned(), |client| self.name(self.n() + client));
            let command = StoreCommand::decode(command).map(|command| describe(&command));
            let command = command.unwrap_or_else(|_| "no command".to_owned());
            if key.is_some() && command.split(' ').nth(1) != key {
                continue;
            }
            let reply = match reply {
                Some(Ok(bytes)) => StoreReply::from_bytes(bytes.clone())
                    .map_or_else(|_| "no reply".to_owned(), |reply| returned(&reply)),
                Some(Err(refusal)) => refusal.clone(),
                None => "waits".to_owned(),
            };
            let _ = writeln!(
                out,
                "slot {slot}, {client}, session {which}, number {number}: {command}: {reply}"
            );
        }
        out
    }
}

/// A command that compares before it writes: done twice it does not match.
pub(crate) fn swap(key: Bytes, old: Bytes, new: Bytes) -> StoreCommand {
    let operations = vec![
        Operation::Cmp { key: key.clone(), value: Some(old) },
        Operation::Write { key, value: new, only_if_present: false },
    ];
    StoreCommand::Transaction(Transaction { operations })
}

fn describe(command: &StoreCommand) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    match command {
        StoreCommand::Get { key } => format!("get {}", text(key)),
        StoreCommand::Put { key, value } => format!("put {} {}", text(key), text(value)),
        StoreCommand::Delete { key } => format!("del {}", text(key)),
        StoreCommand::Transaction(Transaction { operations }) => match &operations[..] {
            [Operation::Cmp { key, value: Some(old) }, Operation::Write { value, .. }] => {
                format!("swap {} {} {}", text(key), text(old), text(value))
            }
            _ => "transaction".to_owned(),
        },
    }
}

fn returned(reply: &StoreReply) -> String {
    match Return::from(reply) {
        Return::Put | Return::Committed(_) => "ok".to_owned(),
        Return::Value(value) => format!("ok {}", value.unwrap_or("(absent)".to_owned())),
        Return::Failed(_) => "no match".to_owned(),
        other => format!("ok {other:?}"),
    }
}
