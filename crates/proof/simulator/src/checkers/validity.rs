//! Guards A5 beyond the service's commands: every member of a configuration, every registered
//! client and every session comes from the genesis, or from a command that the administrator or the
//! session's own client sent. Service commands are `ExactlyOnce`'s.

use crate::violation::{Broken, Check};
use perdura_execution::{Genesis, Machine, Service};
use perdura_protocol::configuration::{Configuration, Member};
use perdura_protocol::{AdminCommand, PublicKey, ReplicaId, SessionId};
use std::collections::BTreeSet;

const RULE: &str = "Validity (A5)";

/// The checker.
#[derive(Debug)]
pub struct Validity {
    members: Vec<Vec<Member>>,
    clients: BTreeSet<(String, PublicKey)>,
    // Clients of the genesis that nobody asked to revoke.
    lasting: BTreeSet<(String, PublicKey)>,
    sessions: BTreeSet<SessionId>,
}

impl Validity {
    /// For a group that starts so.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Validity {
        let clients: BTreeSet<_> = genesis.clients.iter().cloned().collect();
        let members = genesis.configuration.members.iter().map(|member| vec![*member]).collect();
        Validity { members, lasting: clients.clone(), clients, sessions: BTreeSet::new() }
    }

    /// The administrator orders this.
    pub fn administers(&mut self, command: &AdminCommand) {
        match command {
            AdminCommand::AddClient { name, key } => {
                self.clients.insert((name.clone(), *key));
            }
            AdminCommand::RevokeClient { name } => {
                self.lasting.retain(|(lasting, _)| lasting != name);
            }
            AdminCommand::ReplaceReplica { replica, incarnation, key } => {
                let member = Member { key: *key, incarnation: *incarnation };
                self.members[replica.index()].push(member);
            }
            AdminCommand::RaiseVersions(_)
            | AdminCommand::RaiseStateLimit { .. }
            | AdminCommand::ListClients
            | AdminCommand::ReplaceAdministrator { .. } => {}
        }
    }

    /// Whether a key is a client's of the genesis that nobody asked to revoke.
    #[must_use]
    pub fn lasts(&self, key: PublicKey) -> bool {
        self.lasting.iter().any(|(_, lasting)| *lasting == key)
    }

    /// A client asks for this session.
    pub fn opens(&mut self, session: SessionId) {
        self.sessions.insert(session);
    }

    /// Whether the client of a session asked for a later one.
    #[must_use]
    pub fn has_later(&self, session: SessionId) -> bool {
        let SessionId { client, nonce } = session;
        let last = SessionId { client, nonce: u64::MAX };
        self.sessions
            .range(SessionId { client, nonce: nonce.saturating_add(1) }..=last)
            .next()
            .is_some()
    }

    /// `replica` has this state.
    pub fn holds<S: Service>(&self, replica: usize, machine: &Machine<S>) -> Check {
        self.configured(machine.configurations())
            .and_then(|()| self.registered(machine.clients()))
            .and_then(|()| self.opened(machine.sessions()))
            .map_err(|what| Broken::new(RULE, format!("replica {replica}: {what}")))
    }

    fn configured(&self, configurations: &[Configuration]) -> Result<(), String> {
        for configuration in configurations {
            let id = configuration.id;
            if configuration.members.len() != self.members.len() {
                return Err(format!("configuration {id} has {}", configuration.members.len()));
            }
            for (index, member) in configuration.members.iter().enumerate() {
                if !self.members[index].contains(member) {
                    let who = ReplicaId(index as u8);
                    return Err(format!(
                        "nobody ordered {member:?} as {who} of configuration {id}"
                    ));
                }
            }
        }
        for pair in configurations.windows(2) {
            let members = pair[0].members.iter().zip(&pair[1].members);
            let changed = members.filter(|(before, after)| before != after).count();
            if pair[1].id != pair[0].id + 1 || changed != 1 {
                return Err(format!("{:?} does not follow {:?}", pair[1], pair[0]));
            }
        }
        Ok(())
    }

    fn registered<'a>(
        &self,
        clients: impl Iterator<Item = (&'a str, PublicKey)>,
    ) -> Result<(), String> {
        let mut lasting = self.lasting.len();
        for (name, key) in clients {
            let client = (name.to_owned(), key);
            if !self.clients.contains(&client) {
                return Err(format!("nobody registered client {name} as {key:?}"));
            }
            lasting -= usize::from(self.lasting.contains(&client));
        }
        if lasting == 0 { Ok(()) } else { Err(format!("{lasting} clients are gone")) }
    }

    fn opened(&self, mut sessions: impl Iterator<Item = SessionId>) -> Result<(), String> {
        match sessions.find(|session| !self.sessions.contains(session)) {
            None => Ok(()),
            Some(session) => Err(format!("nobody opened {session:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Slot;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    fn member(byte: u8, incarnation: u32) -> Member {
        Member { key: key(byte), incarnation }
    }

    fn configuration(id: u64, members: &[Member]) -> Configuration {
        Configuration { id, from_slot: Slot(id * 100), members: members.to_vec() }
    }

    fn checker() -> Validity {
        let first = configuration(0, &[member(0, 0), member(1, 0), member(2, 0)]);
        let clients = vec![("a".to_owned(), key(7)), ("b".to_owned(), key(8))];
        Validity::new(&Genesis { configuration: first, clients })
    }

    #[test]
    fn configurations_come_from_the_administrator() {
        let mut checker = checker();
        let first = configuration(0, &[member(0, 0), member(1, 0), member(2, 0)]);
        let second = configuration(1, &[member(0, 0), member(9, 1), member(2, 0)]);
        let both = [first.clone(), second.clone()];
        assert!(checker.configured(&both).is_err());
        let (replica, incarnation) = (ReplicaId(1), 1);
        checker.administers(&AdminCommand::ReplaceReplica { replica, incarnation, key: key(9) });
        assert!(checker.configured(&both).is_ok());
        assert!(checker.configured(&[first, configuration(2, &second.members)]).is_err());
    }

    #[test]
    fn clients_come_and_go_by_the_administrator() {
        let mut checker = checker();
        assert!(checker.registered([("a", key(7)), ("b", key(8))].into_iter()).is_ok());
        assert!(checker.registered([("a", key(7))].into_iter()).is_err());
        assert!(checker.lasts(key(8)) && !checker.lasts(key(9)));
        checker.administers(&AdminCommand::RevokeClient { name: "b".into() });
        assert!(checker.lasts(key(7)) && !checker.lasts(key(8)));
        assert!(checker.registered([("a", key(7))].into_iter()).is_ok());
        assert!(checker.registered([("a", key(7)), ("c", key(9))].into_iter()).is_err());
        checker.administers(&AdminCommand::AddClient { name: "c".into(), key: key(9) });
        assert!(checker.registered([("a", key(7)), ("c", key(9))].into_iter()).is_ok());
    }

    #[test]
    fn sessions_are_opened_by_their_clients() {
        let mut checker = checker();
        let session = |nonce| SessionId { client: key(7), nonce };
        checker.opens(session(3));
        assert!(checker.opened([session(3)].into_iter()).is_ok());
        assert!(checker.opened([session(3), session(4)].into_iter()).is_err());
    }
}
