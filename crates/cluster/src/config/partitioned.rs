//! `cluster.toml` of a cluster of several partitions (format 3): what its servers, replicas and clients agree on.
//!
//! Each partition is a replica group as a cluster of one group is: [`PartitionedCluster::group`] gives it as a [`Cluster`], so that
//! whoever works on one group need not know of the others. What is in common stands here once: parameters, first clients, the servers
//! and the map, which the administrator signed.
//!
//! Invariants of one that was read: the map keeps its rules and bears the administrator's signature; its groups are those that the
//! file lists, with the keys that their members had first; no server has two members of a group.

use super::cluster::{
    Common, PARTITIONED_FORMAT, each_has_its_own, render_clients, render_parameters,
};
use super::error::{Context, Result, WriteError};
use super::files::{self, Secrecy};
use super::keys::quoted;
use super::{Cluster, ReplicaEntry, host_port, public_key};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use perdura_protocol::configuration::Parameters;
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::{
    ClusterId, Faults, Map, PartitionId, PublicKey, Scheme, SecretKey, Signature, Slot,
};
use serde::Deserialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Table;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    partitioning: RawPartitioning,
    server: Vec<RawServer>,
    partition: Vec<RawPartition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPartitioning {
    by: String,
    bounds: Option<Vec<RawKey>>,
    signature: String,
}

/// As in the JSON of `perdura kv`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a bound is a string, or { b64 = \"...\" }")]
enum RawKey {
    Utf8(String),
    Base64 { b64: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    id: usize,
    address: String,
    http: String,
    resolver: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPartition {
    id: usize,
    configuration: u64,
    from_slot: u64,
    member: Vec<RawMember>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    server: usize,
    public_key: String,
    incarnation: u32,
    first_public_key: Option<String>,
}

/// A process that has members of several groups, as others find it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerEntry {
    /// `host:port` of its protocol.
    pub address: String,
    /// `host:port` of its status and metrics.
    pub http: String,
    /// The key with which it ends what clients left: that of a client, and good for nothing else.
    pub resolver: PublicKey,
}

/// A member of a partition's group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberEntry {
    /// On which server it is.
    pub server: usize,
    /// Its key.
    pub key: PublicKey,
    /// How often it was replaced.
    pub incarnation: u32,
    /// The key of incarnation 0.
    pub first_key: PublicKey,
}

/// A partition's group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionEntry {
    /// Number of its latest configuration.
    pub configuration: u64,
    /// The first slot of that.
    pub from_slot: Slot,
    /// By replica id.
    pub members: Vec<MemberEntry>,
}

/// A cluster of several partitions, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionedCluster {
    /// Where the file is.
    pub path: PathBuf,
    /// What never changes, of all groups: with the id of the whole cluster, and with the map.
    pub parameters: Parameters,
    /// The map, which is in the parameters too.
    pub map: Arc<Map>,
    /// The administrator's, over the map.
    pub signature: Signature,
    /// By id.
    pub servers: Vec<ServerEntry>,
    /// By id.
    pub partitions: Vec<PartitionEntry>,
    /// Clients that are registered from the start, in each group.
    pub clients: Vec<(String, PublicKey)>,
    /// What a newer program wrote and this one may pass over.
    pub optional: Table,
}

impl PartitionedCluster {
    /// One whose groups have these first members, by partition and replica id, and are where `placed` says; `parameters` without
    /// a map. The administrator signs it.
    #[must_use]
    pub fn new(
        path: PathBuf,
        parameters: Parameters,
        distribution: Distribution,
        servers: Vec<ServerEntry>,
        partitions: Vec<PartitionEntry>,
        administrator: &SecretKey,
    ) -> PartitionedCluster {
        let map =
            map_of(parameters.cluster, parameters.faults, distribution, &partitions, &servers);
        let signature = map.sign(administrator);
        PartitionedCluster {
            path,
            parameters: Parameters { map: Some(Arc::clone(&map)), ..parameters },
            map,
            signature,
            servers,
            partitions,
            clients: Vec::new(),
            optional: Table::new(),
        }
    }

    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<PartitionedCluster> {
        let advice = "`perdura init DIR --partitions P` makes a cluster's files";
        PartitionedCluster::parse(path, &files::read(path, files::FileKind::Cluster, advice)?)
    }

    /// Checks `text`, which stands in the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<PartitionedCluster> {
        let file = path.display().to_string();
        let mut table: Table = files::parse(path, text)?;
        let format = table.get("format").and_then(toml::Value::as_integer);
        ensure!(
            format == Some(i64::from(PARTITIONED_FORMAT)),
            "{file}: format is {}, and that of a cluster of several partitions is {PARTITIONED_FORMAT}; of a cluster of one group \
             each replica is started by itself, with `perdura replica`",
            format.map_or("missing".to_owned(), |format| format.to_string())
        );
        let own = ["partitioning", "server", "partition"];
        let own: Table = own.iter().filter_map(|name| table.remove_entry(*name)).collect();
        let Raw { partitioning, server, partition } =
            own.try_into().with_context(|| file.clone())?;
        let Common { mut parameters, clients, optional } = Common::of(table, &file)?;
        let servers = servers(server, &file)?;
        let partitions = partitions(partition, parameters.faults.n(), servers.len(), &file)?;
        let distribution = distribution(&partitioning, &file)?;
        let map =
            map_of(parameters.cluster, parameters.faults, distribution, &partitions, &servers);
        map.check().with_context(|| format!("{file}: [partitioning]"))?;
        ensure!(
            partitions.len() > 1,
            "{file}: there is one [[partition]]; a cluster of one group has a file of its own format, which `perdura init` makes"
        );
        let signature = partitioning.signature.parse().ok().with_context(|| {
            format!("{file}: partitioning.signature must be 128 hexadecimal digits")
        })?;
        let claim = map.claim(parameters.administrator, signature);
        ensure!(
            Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature),
            "{file}: partitioning.signature is not the administrator's over this map: `by`, `bounds`, [faults], the number of partitions \
             the keys that members had first and the servers' resolvers are not what was signed; restore the file from a copy"
        );
        parameters.map = Some(Arc::clone(&map));
        let path = path.to_owned();
        Ok(PartitionedCluster {
            path,
            parameters,
            map,
            signature,
            servers,
            partitions,
            clients,
            optional,
        })
    }

    /// Writes it where it was read from, if it can be read back.
    pub fn store(&self) -> Result<(), WriteError> {
        let (text, file) = (self.render(), self.path.display().to_string());
        let read = match PartitionedCluster::parse(&self.path, &text) {
            Ok(read) => read.parameters,
            Err(error) => return Err(WriteError::NotReadBack { file, why: error.to_string() }),
        };
        if read.digest() != self.parameters.digest() {
            let why = "checkpoint_mib and state_limit_mib take whole MiB".to_owned();
            return Err(WriteError::NotReadBack { file, why });
        }
        files::write(&self.path, &text, Secrecy::Public)
    }

    /// Writes what has changed in a partition's group, as [`PartitionedCluster::group`] gave it: its configuration, and its members'
    /// keys. The rest of the file stays.
    pub(super) fn store_group(partition: PartitionId, group: &Cluster) -> Result<(), WriteError> {
        let file = group.path.display().to_string();
        let mut whole = PartitionedCluster::load(&group.path)
            .map_err(|error| WriteError::NotReadBack { file, why: error.to_string() })?;
        let entry = &mut whole.partitions[partition.index()];
        (entry.configuration, entry.from_slot) = (group.configuration, group.from_slot);
        for (member, replica) in entry.members.iter_mut().zip(&group.replicas) {
            (member.key, member.incarnation) = (replica.key, replica.incarnation);
        }
        whole.store()
    }

    /// The group of a partition, as if it were a cluster of its own.
    ///
    /// # Panics
    /// When there is no such partition.
    #[must_use]
    pub fn group(&self, partition: PartitionId) -> Cluster {
        let entry = &self.partitions[partition.index()];
        let replica = |member: &MemberEntry| ReplicaEntry {
            address: self.servers[member.server].address.clone(),
            http: self.servers[member.server].http.clone(),
            key: member.key,
            incarnation: member.incarnation,
            first_key: member.first_key,
        };
        let cluster = self.map.groups[partition.index()].id;
        Cluster {
            path: self.path.clone(),
            parameters: Parameters { cluster, ..self.parameters.clone() },
            configuration: entry.configuration,
            from_slot: entry.from_slot,
            replicas: entry.members.iter().map(replica).collect(),
            clients: self.clients.clone(),
            optional: Table::new(),
        }
    }

    /// All of them, by partition.
    #[must_use]
    pub fn groups(&self) -> Vec<Cluster> {
        (0..self.partitions.len() as u16).map(|id| self.group(PartitionId(id))).collect()
    }

    /// The text of its file.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = render_parameters(&self.parameters, PARTITIONED_FORMAT);
        text.push_str(
            "\n# Which keys are in which partition, fixed for the life of the cluster. The administrator's signature is over this, and\n\
             # over the first members of each partition's group and the servers' resolvers.\n[partitioning]\n",
        );
        match &self.map.distribution {
            Distribution::Hash => text.push_str("by = \"hash\"\n"),
            Distribution::Range { bounds } => {
                text.push_str("by = \"range\"\n# Where partitions 1 and up begin.\nbounds = [");
                let bounds: Vec<String> = bounds.iter().map(|bound| key_text(bound)).collect();
                let _ = writeln!(text, "{}]", bounds.join(", "));
            }
        }
        let _ = writeln!(text, "signature = \"{}\"", self.signature);
        for (id, ServerEntry { address, http, resolver }) in self.servers.iter().enumerate() {
            let (address, http) = (quoted(address), quoted(http));
            let _ = write!(
                text,
                "\n[[server]]\nid = {id}\naddress = {address}\nhttp = {http}\nresolver = \"{resolver}\"\n"
            );
        }
        text.push_str(
            "\n# Each partition's group: its latest configuration, which `perdura replica reinit` changes, and its members by replica id.\n",
        );
        for (id, partition) in self.partitions.iter().enumerate() {
            let PartitionEntry { configuration, from_slot, members } = partition;
            let _ = write!(
                text,
                "\n[[partition]]\nid = {id}\n\
                 configuration = {configuration}\nfrom_slot = {from_slot}\n"
            );
            for MemberEntry { server, key, incarnation, first_key } in members {
                let _ = write!(
                    text,
                    "[[partition.member]]\nserver = {server}\npublic_key = \"{key}\"\nincarnation = {incarnation}\n"
                );
                if key != first_key {
                    let _ = writeln!(text, "first_public_key = \"{first_key}\"");
                }
            }
        }
        text + &render_clients(&self.clients, &self.optional)
    }
}

/// The replica groups of the cluster whose file is at `path`, by partition: one, or several.
pub fn groups(path: &Path) -> Result<Vec<Cluster>> {
    match Cluster::load(path) {
        Ok(only) => Ok(vec![only]),
        Err(super::ReadError::Partitioned { .. }) => Ok(PartitionedCluster::load(path)?.groups()),
        Err(error) => Err(error),
    }
}

/// A bound in TOML.
fn key_text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) => quoted(text),
        Err(_) => format!("{{ b64 = \"{}\" }}", STANDARD.encode(key)),
    }
}

fn map_of(
    cluster: ClusterId,
    faults: Faults,
    distribution: Distribution,
    partitions: &[PartitionEntry],
    servers: &[ServerEntry],
) -> Arc<Map> {
    let group = |(index, entry): (usize, &PartitionEntry)| Group {
        id: group_id(cluster, PartitionId(index as u16), partitions.len()),
        faults,
        members: entry.members.iter().map(|member| member.first_key).collect(),
    };
    let groups = partitions.iter().enumerate().map(group).collect();
    let resolvers = servers.iter().map(|server| server.resolver).collect();
    Arc::new(Map { cluster, version: MAP_VERSION, distribution, groups, resolvers })
}

fn distribution(raw: &RawPartitioning, file: &str) -> Result<Distribution> {
    match (raw.by.as_str(), &raw.bounds) {
        ("hash", None) => Ok(Distribution::Hash),
        ("hash", Some(_)) => {
            bail!(
                "{file}: partitioning.by is \"hash\", which has no bounds; restore the file from a copy"
            )
        }
        ("range", Some(bounds)) => {
            let bound = |(index, bound): (usize, &RawKey)| match bound {
                RawKey::Utf8(text) => Ok(Bytes::from(text.clone())),
                RawKey::Base64 { b64 } => {
                    let place = || format!("{file}: partitioning.bounds[{index}] is not Base64");
                    Ok(STANDARD.decode(b64).with_context(place)?.into())
                }
            };
            let bounds = bounds.iter().enumerate().map(bound).collect::<Result<_>>()?;
            Ok(Distribution::Range { bounds })
        }
        ("range", None) => bail!(
            "{file}: partitioning.by is \"range\", and bounds are missing; restore the file from a copy"
        ),
        (by, _) => bail!("{file}: partitioning.by is {by:?}, and one of hash, range is expected"),
    }
}

fn servers(raw: Vec<RawServer>, file: &str) -> Result<Vec<ServerEntry>> {
    let entry = |(index, raw): (usize, RawServer)| {
        let field = |name: &str| format!("server[{index}].{name}");
        ensure!(
            raw.id == index,
            "{file}: {} must be {index}, since entries are in the order of their ids; it is {}",
            field("id"),
            raw.id
        );
        host_port(&raw.address, file, &field("address"))?;
        host_port(&raw.http, file, &field("http"))?;
        let resolver = public_key(&raw.resolver, file, &field("resolver"))?;
        Ok(ServerEntry { address: raw.address, http: raw.http, resolver })
    };
    let entries: Vec<ServerEntry> =
        raw.into_iter().enumerate().map(entry).collect::<Result<_>>()?;
    let places: Vec<_> = entries.iter().map(|entry| (&*entry.address, &*entry.http)).collect();
    each_has_its_own("server", &places, file)?;
    Ok(entries)
}

fn partitions(
    raw: Vec<RawPartition>,
    n: usize,
    servers: usize,
    file: &str,
) -> Result<Vec<PartitionEntry>> {
    let entry = |(index, raw): (usize, RawPartition)| {
        ensure!(
            raw.id == index,
            "{file}: partition[{index}].id must be {index}, since entries are in the order of their ids; it is {}",
            raw.id
        );
        let members = raw.member.into_iter().enumerate().map(|(id, member)| {
            let field = |name: &str| format!("partition[{index}].member[{id}].{name}");
            read_member(member, servers, file, field)
        });
        let members: Vec<MemberEntry> = members.collect::<Result<_>>()?;
        ensure!(
            members.len() == n,
            "{file}: partition[{index}] has {} [[partition.member]] entries; by [faults] there are {n}",
            members.len()
        );
        for (id, member) in members.iter().enumerate() {
            ensure!(
                members[..id].iter().all(|other| other.server != member.server),
                "{file}: partition[{index}].member[{id}].server is {}, which has another member of that partition: one failure would \
                 take both",
                member.server
            );
        }
        Ok(PartitionEntry {
            configuration: raw.configuration,
            from_slot: Slot(raw.from_slot),
            members,
        })
    };
    raw.into_iter().enumerate().map(entry).collect()
}

fn read_member(
    raw: RawMember,
    servers: usize,
    file: &str,
    field: impl Fn(&str) -> String,
) -> Result<MemberEntry> {
    ensure!(
        raw.server < servers,
        "{file}: {} is {}, and the servers are 0 to {}",
        field("server"),
        raw.server,
        servers.saturating_sub(1)
    );
    let key = public_key(&raw.public_key, file, &field("public_key"))?;
    let first_key = match &raw.first_public_key {
        Some(first) => public_key(first, file, &field("first_public_key"))?,
        None => key,
    };
    ensure!(
        (raw.incarnation > 0) == raw.first_public_key.is_some(),
        "{file}: {} and {} contradict each other: a member has a first key of its own when it was replaced, and only then",
        field("incarnation"),
        field("first_public_key")
    );
    Ok(MemberEntry { server: raw.server, key, incarnation: raw.incarnation, first_key })
}

#[cfg(test)]
mod tests;
