//! `server-i/server.toml`: what concerns one server of a cluster of several partitions alone, with the members that it has of their
//! groups.

use super::error::{Result, WriteError};
use super::files::{self, Secrecy};
use super::keys::quoted;
use super::partitioned::PartitionedCluster;
use super::replica::{Rates, RawRates};
use super::{FORMAT_VERSION, ReplicaFile, check_head, secret_key};
use perdura_protocol::{PartitionId, SecretKey};
use serde::Deserialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: u32,
    id: usize,
    cluster: PathBuf,
    listen: String,
    http: Option<String>,
    #[serde(default)]
    checkpoint_mb_s: u64,
    scrub_interval_s: Option<u64>,
    state_transfer: Option<String>,
    execution: Option<String>,
    read_threads: Option<usize>,
    resolver_key: Option<String>,
    member: Vec<RawMember>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    partition: u16,
    replica: u8,
    incarnation: u32,
    secret_key: String,
    data: PathBuf,
}

/// Where a member's next key is while its replacement is under way, beside its server's file.
#[must_use]
pub fn pending_member_file(server: &Path, partition: PartitionId) -> PathBuf {
    server.with_file_name(format!("partition-{partition}.toml.pending"))
}

/// A member of a partition's group, on this server.
#[derive(Clone, Debug)]
pub struct Member {
    /// Of which partition.
    pub partition: PartitionId,
    /// Which replica of its group.
    pub replica: u8,
    /// How often it was replaced.
    pub incarnation: u32,
    /// Its key.
    pub key: SecretKey,
    /// Its data directory, as seen from the server's file.
    pub data_path: PathBuf,
}

/// A server's own file. Paths are as in the file.
#[derive(Clone, Debug)]
pub struct ServerFile {
    /// Where the file is.
    pub path: PathBuf,
    /// Which server.
    pub id: usize,
    /// cluster.toml, as seen from this file.
    pub cluster_path: PathBuf,
    /// Where it listens for replicas and clients of all its groups.
    pub listen: String,
    /// Where it serves status and metrics; nowhere if absent.
    pub http: Option<String>,
    /// Rates, and whom it asks for states, for each of its members.
    pub rates: Rates,
    /// The key with which it ends what clients left. None where the file took the place of a lost one: the other servers do its work.
    pub resolver: Option<SecretKey>,
    /// Ascending by partition.
    pub members: Vec<Member>,
}

impl ServerFile {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<ServerFile> {
        let advice = "`perdura init DIR --partitions P` makes one for each server";
        ServerFile::parse(path, &files::read(path, files::FileKind::Server, advice)?)
    }

    /// Checks `text`, which stands in the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<ServerFile> {
        let raw: Raw = files::parse_as(path, text, files::FileKind::Server)?;
        let file = path.display().to_string();
        check_head(&file, raw.format, (&raw.listen, raw.http.as_deref()))?;
        let rates = RawRates {
            checkpoint_mb_s: raw.checkpoint_mb_s,
            scrub_interval_s: raw.scrub_interval_s,
            state_transfer: raw.state_transfer,
            execution: raw.execution,
            read_threads: raw.read_threads,
        };
        let member = |(index, raw): (usize, RawMember)| {
            let field = format!("member[{index}].secret_key");
            Ok(Member {
                partition: PartitionId(raw.partition),
                replica: raw.replica,
                incarnation: raw.incarnation,
                key: secret_key(&raw.secret_key, &file, &field)?,
                data_path: raw.data,
            })
        };
        let members: Vec<Member> =
            raw.member.into_iter().enumerate().map(member).collect::<Result<_>>()?;
        for (index, pair) in members.windows(2).enumerate() {
            ensure!(
                pair[0].partition < pair[1].partition,
                "{file}: member[{}].partition is {}, behind {}: they ascend, and a server has one member of each at most",
                index + 1,
                pair[1].partition,
                pair[0].partition
            );
        }
        Ok(ServerFile {
            path: path.to_owned(),
            id: raw.id,
            cluster_path: raw.cluster,
            listen: raw.listen,
            http: raw.http,
            rates: rates.check(&file)?,
            resolver: raw
                .resolver_key
                .map(|key| secret_key(&key, &file, "resolver_key"))
                .transpose()?,
            members,
        })
    }

    /// Writes it under the name `path`, if it can be read back.
    pub fn store(&self, path: &Path) -> Result<(), WriteError> {
        let text = self.render();
        if let Err(error) = ServerFile::parse(path, &text) {
            let (file, why) = (path.display().to_string(), error.to_string());
            return Err(WriteError::NotReadBack { file, why });
        }
        files::write(path, &text, Secrecy::Secret)
    }

    /// The text of its file.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!(
            "# Server {id} of a Perdura cluster of several partitions; start it with `perdura server --config` and this file.\n\
             # Whoever reads this file can act in its members' names: keep it to yourself.\n\
             format = {FORMAT_VERSION}\n\
             id = {id}\n\
             # Relative paths are relative to this file.\n\
             cluster = {}\n\
             # Where it listens for replicas and clients of all its partitions, who find it under its address in cluster.toml.\n\
             listen = {}\n",
            quoted(&self.cluster_path.to_string_lossy()),
            quoted(&self.listen),
            id = self.id,
        );
        if let Some(http) = &self.http {
            text.push_str("# Where it serves /status, /metrics, /healthz and /readyz.\n");
            let _ = writeln!(text, "http = {}", quoted(http));
        }
        text.push_str(&self.rates.render());
        if let Some(resolver) = &self.resolver {
            text.push_str("# The key with which it ends transactions that clients left.\n");
            let _ = writeln!(text, "resolver_key = \"{}\"", resolver.to_secret_text());
        }
        for member in &self.members {
            let _ = write!(
                text,
                "\n[[member]]\npartition = {}\nreplica = {}\nincarnation = {}\nsecret_key = \"{}\"\ndata = {}\n",
                member.partition,
                member.replica,
                member.incarnation,
                member.key.to_secret_text(),
                quoted(&member.data_path.to_string_lossy()),
            );
        }
        text
    }

    /// Where cluster.toml is, resolved.
    #[must_use]
    pub fn cluster(&self) -> PathBuf {
        files::plain(files::resolve(&self.path, &self.cluster_path))
    }

    /// What the file says of one of its members, as the file of a replica would.
    #[must_use]
    pub fn replica(&self, member: &Member) -> ReplicaFile {
        ReplicaFile {
            path: self.path.clone(),
            id: member.replica,
            incarnation: member.incarnation,
            key: member.key.clone(),
            cluster_path: self.cluster_path.clone(),
            data_path: member.data_path.clone(),
            listen: self.listen.clone(),
            http: self.http.clone(),
            rates: self.rates,
        }
    }

    /// That this is a server of `cluster`, and that its members are those that it has there, in their current incarnations.
    pub fn check(&self, cluster: &PartitionedCluster) -> Result<()> {
        let (file, of) = (self.path.display(), cluster.path.display());
        ensure!(
            self.id < cluster.servers.len(),
            "{file}: id is {}, and the servers in {of} are 0 to {}",
            self.id,
            cluster.servers.len().saturating_sub(1)
        );
        ensure!(
            self.resolver
                .as_ref()
                .is_none_or(|key| key.public() == cluster.servers[self.id].resolver),
            "{file}: resolver_key is not that of server {} in {of}: one of the files is of another cluster",
            self.id
        );
        for (partition, entry) in cluster.partitions.iter().enumerate() {
            let own = self.members.iter().find(|member| member.partition.index() == partition);
            let there = entry.members.iter().position(|member| member.server == self.id);
            let (id, member) = match (there, own) {
                (None, None) => continue,
                (Some(id), Some(member)) => (id, member),
                (Some(id), None) => bail!(
                    "{file}: no [[member]] has partition {partition}, whose replica {id} is on server {} by {of}; take the newer \
                     of the files, or replace that replica with `perdura replica reinit --partition {partition} --id {id}`",
                    self.id
                ),
                (None, Some(_)) => bail!(
                    "{file}: there is a [[member]] of partition {partition}, which has none on server {} by {of}; take the newer \
                     of the files",
                    self.id
                ),
            };
            let listed = &entry.members[id];
            let pending = pending_member_file(&self.path, member.partition);
            // Until it is gone the one who makes it takes it that nobody has run as the new replica.
            let next = ReplicaFile::load(&pending).map(|next| next.incarnation);
            let ordered = member.incarnation != listed.incarnation
                || next.is_ok_and(|next| next == listed.incarnation);
            ensure!(
                !(ordered && pending.exists()),
                "replacing replica {id} of partition {partition} was interrupted; finish it with `perdura replica reinit --cluster {} \
                 --partition {partition} --id {id}`",
                files::directory_of(&cluster.path).display()
            );
            ensure!(
                usize::from(member.replica) == id
                    && member.key.public() == listed.key
                    && member.incarnation == listed.incarnation,
                "{file}: replica, secret_key and incarnation of the [[member]] of partition {partition} are not those of replica {id} \
                 in {of} (incarnation {}): one of the files is of another cluster, or older than the replica's last replacement; \
                 take the newer ones",
                listed.incarnation
            );
        }
        let beyond = |member: &&Member| member.partition.index() >= cluster.partitions.len();
        if let Some(member) = self.members.iter().find(beyond) {
            bail!(
                "{file}: there is a [[member]] of partition {}, and {of} has partitions 0 to {}",
                member.partition,
                cluster.partitions.len().saturating_sub(1)
            );
        }
        Ok(())
    }
}
