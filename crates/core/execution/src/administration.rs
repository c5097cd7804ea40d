//! What the administrator changes: registered clients, and the group's configurations (rule D8).
//!
//! Invariants:
//! - names and keys of clients are unique, and no client key is a replica's or the administrator's;
//! - a revoked key is never registered again: the nonces of its sessions are forgotten with it, so
//!   a second registration would let its old signed frames run once more. So it is with a former administrator's;
//! - ordering what holds already (the same name and key, the same incarnation and key) is answered
//!   as the first time and changes nothing, so that an interrupted administrator can go on;
//! - configuration numbers ascend by one; at most one configuration is pending (its first slot is
//!   yet to come), so that a replacement is never decided by a group that is changing already.
//!
//! # How a replica is replaced
//!
//! `perdura replica reinit` (`crates/cli/src/reinit.rs`) orders `ReplaceReplica` with the administrator's key.
//!
//! 1. `administration.rs` checks it (the next incarnation, a fresh key, no other replacement pending) and makes a configuration that starts one
//!    pipeline depth later.
//! 2. The leader fills the slots up to there with null batches (`next_batch` in `crates/core/agreement/src/leading.rs`). A boundary is forced at the
//!    slot before (`conclude` in `executor.rs`). Who restarts from it stands in the new configuration, and proves the
//!    last slots of the former one from its log to those who restart before it.
//! 3. From the first slot of the configuration on, links are to the new key (`Output::Members`); the old one is refused. The group starts a view in
//!    the new configuration; votes in its slots wait for that (rule 7).
//! 4. The new incarnation starts with an empty directory that says from which slot on it may take part (`must_recover` in
//!    `crates/core/durability/src/superblock.rs`). It fetches the state, and votes when a certified prefix reaches that slot.

use crate::genesis::{Genesis, GenesisError};
use crate::rules_in_force::RulesInForce;
use imbl::{OrdMap, OrdSet};
use perdura_protocol::codec::{encode_bytes, encode_count, encode_list};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{
    AdminCommand, ClientList, Configuration, DecodeError, Encode, Outcome, PublicKey, Reader,
    ReplicaId, Slot, limits, seeded,
};
use std::sync::Arc;

/// Configurations kept; older ones have no statement in any window.
const CONFIGURATIONS: usize = 16;

/// Client keys ever registered, revoked ones included: they are kept for good, 32 bytes each, in
/// every checkpoint. Registration ends here, never revocation.
const CLIENT_KEYS: usize = 65_536;

/// With those of former administrators: a key that was stolen can be replaced when no client can be registered any more.
const ALL_KEYS: usize = CLIENT_KEYS + 4096;

/// Clients and configurations. Cloning shares.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    administrator: PublicKey,
    depth: u64,
    names: OrdMap<String, PublicKey>,
    // The inverse of `names`.
    keys: OrdMap<PublicKey, String>,
    revoked: OrdSet<PublicKey>,
    // Ascending, never empty.
    configurations: Arc<Vec<Configuration>>,
}

/// What an administration command did besides changing the registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Nothing else.
    None,
    /// The sessions of this key must go: its client was revoked, or it is not the administrator's any more.
    Ended(PublicKey),
    /// A new configuration.
    Configured(Configuration),
}

impl Registry {
    pub(crate) fn new(parameters: &Parameters, genesis: Genesis) -> Result<Registry, GenesisError> {
        let Genesis { configuration, clients } = genesis;
        let expected = parameters.faults.n();
        let found = configuration.members.len();
        if configuration.id != 0 {
            return Err(GenesisError::Number(configuration.id));
        }
        if found != expected {
            return Err(GenesisError::Members { expected, found });
        }
        let mut keys: Vec<PublicKey> = configuration.members.iter().map(|m| m.key).collect();
        keys.push(parameters.administrator);
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GenesisError::SharedKey(pair[0]));
        }
        let mut registry = Registry::with(parameters, vec![configuration]);
        for (name, key) in clients {
            if registry.names.contains_key(&name) {
                let reason = "it stands there twice".to_owned();
                return Err(GenesisError::Client { name, reason });
            }
            registry
                .add_client(name.clone(), key)
                .map_err(|reason| GenesisError::Client { name, reason })?;
        }
        Ok(registry)
    }

    fn with(parameters: &Parameters, configurations: Vec<Configuration>) -> Registry {
        Registry {
            administrator: parameters.administrator,
            depth: parameters.depth,
            names: OrdMap::new(),
            keys: OrdMap::new(),
            revoked: OrdSet::new(),
            configurations: Arc::new(configurations),
        }
    }

    pub(crate) fn is_administrator(&self, key: PublicKey) -> bool {
        key == self.administrator || (seeded!(FormerAdministrator) && self.revoked.contains(&key))
    }

    pub(crate) fn administrator(&self) -> PublicKey {
        self.administrator
    }

    pub(crate) fn is_client(&self, key: PublicKey) -> bool {
        self.is_administrator(key) || self.keys.contains_key(&key)
    }

    /// Whether a key was revoked, or is a former administrator's: it is never a client's again.
    pub(crate) fn is_revoked(&self, key: PublicKey) -> bool {
        self.revoked.contains(&key)
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = (&str, PublicKey)> {
        self.names.iter().map(|(name, key)| (name.as_str(), *key))
    }

    pub(crate) fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    pub(crate) fn latest(&self) -> &Configuration {
        self.configurations.last().expect("there is always a configuration")
    }

    // What follows is ordered; `Err` says why it is refused, and nothing changed.

    pub(crate) fn add_client(&mut self, name: String, key: PublicKey) -> Result<Change, String> {
        if name.is_empty() || name.len() > limits::CLIENT_NAME_BYTES {
            return Err(format!("a client's name has 1 to {} bytes", limits::CLIENT_NAME_BYTES));
        }
        if self.names.get(&name) == Some(&key) {
            // An administrator who was interrupted orders the same again.
            return Ok(Change::None);
        }
        if self.names.contains_key(&name) {
            return Err(format!("a client named {name:?} is registered already"));
        }
        self.check_fresh(key)?;
        if self.keys.len() >= limits::CLIENTS {
            return Err(format!("{} clients are registered, the most allowed", limits::CLIENTS));
        }
        if self.keys.len() + self.revoked.len() >= CLIENT_KEYS {
            return Err(format!("{CLIENT_KEYS} client keys have been used, the most allowed"));
        }
        self.keys.insert(key, name.clone());
        self.names.insert(name, key);
        Ok(Change::None)
    }

    pub(crate) fn revoke_client(&mut self, name: &str) -> Result<Change, String> {
        let Some(key) = self.names.remove(name) else {
            return Err(format!("no client named {name:?} is registered"));
        };
        self.keys.remove(&key);
        self.revoked.insert(key);
        Ok(Change::Ended(key))
    }

    /// The former key is void at once, and as good as revoked.
    pub(crate) fn replace_administrator(&mut self, key: PublicKey) -> Result<Change, String> {
        if self.is_administrator(key) {
            // An administrator who was interrupted orders the same again.
            return Ok(Change::None);
        }
        self.check_fresh(key)?;
        if self.keys.len() + self.revoked.len() >= ALL_KEYS {
            return Err(format!("{ALL_KEYS} keys have been used, the most allowed"));
        }
        let former = std::mem::replace(&mut self.administrator, key);
        self.revoked.insert(former);
        Ok(Change::Ended(former))
    }

    pub(crate) fn replace_replica(
        &mut self,
        slot: Slot,
        replica: ReplicaId,
        incarnation: u32,
        key: PublicKey,
    ) -> Result<Change, String> {
        let latest = self.latest();
        if latest.members.get(replica.index()) == Some(&Member { key, incarnation }) {
            // An administrator who was interrupted orders the same again.
            return Ok(Change::None);
        }
        if latest.from_slot > slot {
            return Err(format!(
                "configuration {} is pending until slot {}; try again after it",
                latest.id, latest.from_slot
            ));
        }
        let Some(member) = latest.members.get(replica.index()) else {
            return Err(format!("the group has no replica {replica}"));
        };
        if member.incarnation.checked_add(1) != Some(incarnation) {
            return Err(format!(
                "replica {replica} is in incarnation {}; the next is one more, not {incarnation}",
                member.incarnation
            ));
        }
        let (id, from_slot) = (latest.id.saturating_add(1), slot.plus(self.depth));
        let from_slot = if seeded!(ConfigurationAtOnce) { slot.next() } else { from_slot };
        self.check_fresh(key)?;
        let mut members = latest.members.clone();
        members[replica.index()] = Member { key, incarnation };
        let configuration = Configuration { id, from_slot, members };
        let configurations = Arc::make_mut(&mut self.configurations);
        configurations.push(configuration.clone());
        if configurations.len() > CONFIGURATIONS {
            configurations.remove(0);
        }
        Ok(Change::Configured(configuration))
    }

    /// A key is good for one purpose, once.
    fn check_fresh(&self, key: PublicKey) -> Result<(), String> {
        if let Some(name) = self.keys.get(&key) {
            return Err(format!("the key is registered as client {name:?}"));
        }
        if self.revoked.contains(&key) {
            return Err("the key was revoked; a revoked key is never used again".to_owned());
        }
        if self.is_administrator(key) {
            return Err("the key is the administrator's".to_owned());
        }
        let mut members = self.configurations.iter().flat_map(|c| &c.members);
        if members.any(|member| member.key == key) {
            return Err("the key is or was a replica's".to_owned());
        }
        Ok(())
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        encode_list(&self.configurations, out);
        encode_count(self.names.len(), out);
        for (name, key) in &self.names {
            encode_bytes(name.as_bytes(), out);
            key.encode(out);
        }
        encode_count(self.revoked.len(), out);
        for key in &self.revoked {
            key.encode(out);
        }
    }

    pub(crate) fn decode(
        reader: &mut Reader,
        parameters: &Parameters,
        administrator: PublicKey,
    ) -> Result<Registry, DecodeError> {
        let configurations: Vec<Configuration> =
            reader.list("configurations", CONFIGURATIONS, 20)?;
        let successive = configurations.windows(2).all(|pair| {
            pair[0].id.checked_add(1) == Some(pair[1].id) && pair[0].from_slot < pair[1].from_slot
        });
        let complete = configurations.iter().all(|c| c.members.len() == parameters.faults.n());
        if configurations.is_empty() || !successive || !complete {
            return Err(DecodeError::NotCanonical("configurations do not follow each other"));
        }
        let mut registry = Registry::with(parameters, configurations);
        let mut members = registry.configurations.iter().flat_map(|c| &c.members);
        if members.any(|member| member.key == administrator) {
            return Err(DecodeError::NotCanonical("the administrator's key is a replica's"));
        }
        registry.administrator = administrator;
        for _ in 0..reader.count("clients", limits::CLIENTS, 36)? {
            let name = reader.bytes("client name", limits::CLIENT_NAME_BYTES)?;
            let name = String::from_utf8(name.to_vec())
                .map_err(|_| DecodeError::NotCanonical("a client's name is not UTF-8"))?;
            if registry.names.get_max().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::NotCanonical("clients are not ascending"));
            }
            let key = perdura_protocol::Decode::decode(reader)?;
            registry
                .add_client(name, key)
                .map_err(|_| DecodeError::NotCanonical("a client contradicts the others"))?;
        }
        let revoked: Vec<PublicKey> = reader.list("revoked keys", ALL_KEYS, 32)?;
        let ascending = revoked.windows(2).all(|pair| pair[0] < pair[1]);
        let fit = registry.keys.len() + revoked.len() <= ALL_KEYS;
        if !ascending || !fit || revoked.iter().any(|key| registry.is_client(*key)) {
            return Err(DecodeError::NotCanonical("revoked keys"));
        }
        registry.revoked = revoked.into_iter().collect();
        Ok(registry)
    }
}

/// What the administrator's commands are about.
pub(crate) struct Administration<'a> {
    // The version of the core's rules in force.
    pub(crate) rules: u16,
    pub(crate) registry: &'a mut Registry,
    pub(crate) next_rules: &'a mut RulesInForce,
}

impl Administration<'_> {
    /// Whether the rules in force know a command of this client. To those of 0.1.0 what raises them was malformed too, and still is when
    /// anybody but the administrator sends it: logs and programs of then may still be about.
    pub(crate) fn knows(&self, command: &AdminCommand, client: PublicKey) -> bool {
        let raises = matches!(command, AdminCommand::RaiseVersions(_));
        self.rules >= command.since()
            && (self.rules > 0 || !raises || self.registry.is_administrator(client))
    }

    pub(crate) fn carry_out(
        &mut self,
        slot: Slot,
        command: AdminCommand,
    ) -> Result<(Outcome, Change), String> {
        let change = match command {
            AdminCommand::RaiseVersions(versions) => {
                self.next_rules.raise_versions(versions).map(|()| Change::None)?
            }
            AdminCommand::RaiseStateLimit { bytes } => {
                self.next_rules.raise_state_limit(bytes).map(|()| Change::None)?
            }
            AdminCommand::ListClients => {
                let list = self.registry.clients().map(|(name, key)| (name.to_owned(), key));
                return Ok((Outcome::Told(ClientList(list.collect()).to_bytes()), Change::None));
            }
            AdminCommand::AddClient { name, key } => self.registry.add_client(name, key)?,
            AdminCommand::RevokeClient { name } => self.registry.revoke_client(&name)?,
            AdminCommand::ReplaceReplica { replica, incarnation, key } => {
                self.registry.replace_replica(slot, replica, incarnation, key)?
            }
            AdminCommand::ReplaceAdministrator { key } => {
                self.registry.replace_administrator(key)?
            }
        };
        let Configuration { id, from_slot, .. } = self.registry.latest();
        let from_slot = from_slot.0;
        Ok((Outcome::Administered { configuration: *id, from_slot }, change))
    }
}
