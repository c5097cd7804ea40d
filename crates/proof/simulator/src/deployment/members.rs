//! After a replacement the administrator makes the new members of a group known in all (`perdura reinit`), some time later:
//! until then certificates of them are refused there.

use super::Deployment;
use crate::report::Mark;
use bytes::Bytes;
use perdura_client::{CallResult, Reply};
use perdura_protocol::{Decode, Encode};
use perdura_store::partition::{Members, PartitionCommand, PartitionReply};

/// Callers from this number on are heralds.
const FIRST: usize = 1 << 40;

/// Longest time until it is told, and between two attempts, microseconds.
const DELAY_US: u64 = 1_500_000;
const AGAIN_US: u64 = 300_000;

/// How long one attempt takes at most, milliseconds.
const TIMEOUT_MS: u64 = 5_000;

/// Word of the members of one group to another one.
pub(super) struct Herald {
    members: Members,
    to: usize,
    /// None while it is under way.
    due_us: Option<u64>,
    is_done: bool,
}

impl Herald {
    pub fn due_us(&self) -> u64 {
        self.due_us.unwrap_or(u64::MAX)
    }
}

/// The number of the herald who called, if one did.
pub(super) fn number(caller: usize) -> Option<usize> {
    caller.checked_sub(FIRST)
}

impl Deployment {
    /// Whether all know all members.
    pub(super) fn members_are_known(&self) -> bool {
        self.heralds.is_empty()
    }

    /// If a group has other members, clients know it, and all groups are told.
    pub(super) fn look_at_members(&mut self, group: usize) {
        let known = self.known_members[group];
        let Some(members) = self.worlds[group].members() else { return };
        if members.configuration == known {
            return;
        }
        self.known_members[group] = members.configuration;
        self.worlds[group].tell_clients_of_members();
        self.report.reached(Mark::MembersChanged);
        for to in 0..self.worlds.len() {
            let due_us = Some(self.now_us + self.random.between(1_000, DELAY_US));
            self.heralds.push(Herald { members: members.clone(), to, due_us, is_done: false });
        }
    }

    /// What is due of that is sent, in the name of the process that ends what others leave.
    pub(super) fn send_heralds(&mut self) {
        let client = self.clients.len() - 1;
        for number in 0..self.heralds.len() {
            let herald = &mut self.heralds[number];
            if herald.due_us() > self.now_us {
                continue;
            }
            herald.due_us = None;
            let world = &mut self.worlds[herald.to];
            world.come_to(self.now_us);
            // Of his last order he may not have heard.
            world.take_up_key();
            let command = word(&self.map, &herald.members, world);
            let sent = command.is_some_and(|command| {
                world.ask((client, FIRST + number), command, false, TIMEOUT_MS).is_some()
            });
            if !sent {
                self.heralds[number].due_us = Some(self.now_us + AGAIN_US);
            }
        }
    }

    /// An attempt ended.
    pub(super) fn herald_answered(&mut self, number: usize, result: &CallResult) {
        let (partition, configuration) = {
            let members = &self.heralds[number].members;
            (members.partition, members.configuration)
        };
        let is_known = match result {
            CallResult::Completed(Reply::Service(reply)) => {
                matches!(PartitionReply::from_bytes(reply.clone()),
                    Ok(PartitionReply::Known { partition: of, configuration: known })
                        if of == partition && known >= configuration)
            }
            _ => false,
        };
        // Numbers stay what they are while some are under way.
        self.heralds[number].due_us = if is_known { None } else { Some(self.now_us + AGAIN_US) };
        self.heralds[number].is_done = is_known;
        if self.heralds.iter().all(|herald| herald.is_done) {
            self.heralds.clear();
        }
    }
}

/// The administrator's word to a group.
fn word(map: &perdura_protocol::Map, members: &Members, to: &crate::world::World) -> Option<Bytes> {
    let newest = members.clone().signed(map, to.administrator()?)?;
    Some(PartitionCommand::Members(newest).to_bytes())
}
