//! `cluster.toml`: what all replicas and clients of a cluster agree on.
//!
//! The parameters never change; their digest stands in data directories and handshakes. The
//! members do: a replaced replica's entry keeps the key it had first, because a replica that
//! replays the log from its start begins with the first configuration.

use super::error::{Context, Result, WriteError};
use super::files::{self, Secrecy};
use super::keys::quoted;
use super::partitioned::PartitionedCluster;
use super::{ReadError, host_port, public_key};
use crate::service::ServiceKind;
use perdura_client::{ClusterConfig, ReplicaAddress};
use perdura_execution::Genesis;
use perdura_protocol::configuration::{Durability, Member, Parameters, Schedule};
use perdura_protocol::{
    ClusterId, Configuration, Faults, PublicKey, ReplicaId, ServiceName, Slot, Versions,
};
use serde::Deserialize;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use toml::Table;

/// The format of the file that is written; older ones are read.
const FORMAT: u32 = 2;

/// The format of the file of a cluster of several partitions ([`super::partitioned`]).
pub(super) const PARTITIONED_FORMAT: u32 = 3;

const MIB: u64 = 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: u32,
    cluster: String,
    administrator: String,
    // Not in files that were written before there was a choice.
    service: Option<String>,
    // In files from format 2 on, and in no others.
    service_version: Option<u16>,
    rules: Option<u16>,
    durability: String,
    depth: u64,
    checkpoint_interval_slots: u64,
    checkpoint_mib: u64,
    // Not in files that were written before there was a choice, nor is the next one.
    checkpoint_schedule: Option<String>,
    checkpoint_stretch: Option<u64>,
    // Only where it was asked for, or the service takes long.
    checkpoint_ms: Option<u64>,
    max_skew_ms: u64,
    state_limit_mib: u64,
    faults: RawFaults,
    configuration: RawConfiguration,
    replica: Vec<RawReplica>,
    #[serde(default)]
    client: Vec<RawClient>,
    // Newer programs put here what those that do not know it may pass over.
    #[serde(default)]
    optional: Table,
}

#[derive(Deserialize)]
struct RawFormat {
    format: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFaults {
    u: u8,
    r: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfiguration {
    number: u64,
    from_slot: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReplica {
    id: u8,
    address: String,
    http: String,
    public_key: String,
    incarnation: u32,
    first_public_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClient {
    name: String,
    public_key: String,
}

/// A replica as the others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaEntry {
    /// `host:port` of its protocol.
    pub address: String,
    /// `host:port` of its status and metrics.
    pub http: String,
    /// Its key.
    pub key: PublicKey,
    /// How often it was replaced.
    pub incarnation: u32,
    /// The key of incarnation 0.
    pub first_key: PublicKey,
}

/// A cluster, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Where the file is.
    pub path: PathBuf,
    /// What never changes.
    pub parameters: Parameters,
    /// Number of the latest configuration.
    pub configuration: u64,
    /// Its first slot.
    pub from_slot: Slot,
    /// By id.
    pub replicas: Vec<ReplicaEntry>,
    /// Clients that are registered from the start.
    pub clients: Vec<(String, PublicKey)>,
    /// What a newer program wrote and this one may pass over.
    pub optional: Table,
}

impl Cluster {
    /// Parameters with the defaults of a new cluster.
    pub fn default_parameters(
        cluster: ClusterId,
        faults: Faults,
        durability: Durability,
        administrator: PublicKey,
    ) -> Parameters {
        Parameters {
            cluster,
            faults,
            durability,
            depth: 32,
            checkpoint_interval: 16_384,
            checkpoint_bytes: 256 * MIB,
            checkpoint_stretch: 16,
            checkpoint_ms: None,
            schedule: Schedule::Sequential,
            max_skew_ms: 500,
            state_limit_bytes: 8192 * MIB,
            service: ServiceKind::KeyValue.name(),
            versions: Versions::NEW,
            administrator,
            map: None,
        }
    }

    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<Cluster> {
        let advice = "`perdura init DIR` makes a cluster's files";
        Cluster::parse(path, &files::read(path, files::FileKind::Cluster, advice)?)
    }

    /// Checks `text`, which stands in the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Cluster> {
        let file = path.display().to_string();
        // First of all: fields of another format are not misspelt.
        if let Ok(RawFormat { format }) = files::parse(path, text) {
            if format == PARTITIONED_FORMAT {
                return Err(ReadError::Partitioned { file });
            }
            ensure!(
                (1..=FORMAT).contains(&format),
                "{file}: format is {format}, and this program reads 1 to {PARTITIONED_FORMAT}; use the program that wrote it"
            );
        }
        let raw: Raw = files::parse_as(path, text, files::FileKind::Cluster)?;
        let parameters = parameters(&raw, &file)?;
        let replicas = replicas(raw.replica, parameters.faults, &file)?;
        Ok(Cluster {
            path: path.to_owned(),
            parameters,
            configuration: raw.configuration.number,
            from_slot: Slot(raw.configuration.from_slot),
            replicas,
            clients: clients(raw.client, &file)?,
            optional: raw.optional,
        })
    }

    /// In words, the partition that this is the group of: for before what is said of one of its replicas. Empty where there is
    /// only one group.
    #[must_use]
    pub fn partition_text(&self) -> String {
        let partition = self.parameters.partition();
        partition.map_or_else(String::new, |partition| format!("partition {partition}: "))
    }

    /// What it runs, if this program does.
    pub fn service(&self) -> Result<ServiceKind> {
        let name = &self.parameters.service;
        let file = self.path.display();
        let kind = ServiceKind::of(name);
        kind.with_context(|| format!("{file}: service is {name:?}, and this program runs kv and tuples; use the one that has it"))
    }

    /// Writes it where it was read from, if it can be read back: all replicas and clients do. Of one partition's group, what the
    /// file says of that partition.
    pub fn store(&self) -> Result<(), WriteError> {
        if let Some(partition) = self.parameters.partition() {
            return PartitionedCluster::store_group(partition, self);
        }
        let (text, file) = (self.render(), self.path.display().to_string());
        let read = match Cluster::parse(&self.path, &text) {
            Ok(read) => read.parameters,
            Err(error) => return Err(WriteError::NotReadBack { file, why: error.to_string() }),
        };
        if read.digest() != self.parameters.digest() {
            let why = "checkpoint_mib and state_limit_mib take whole MiB".to_owned();
            return Err(WriteError::NotReadBack { file, why });
        }
        files::write(&self.path, &text, Secrecy::Public)
    }

    /// What replica `id` starts from: the first configuration, or, for one that was replaced, the
    /// latest (it fetches the state before it).
    pub fn genesis(&self, id: ReplicaId) -> Genesis {
        let replaced = self.replicas.get(id.index()).is_some_and(|entry| entry.incarnation > 0);
        let first = |entry: &ReplicaEntry| Member { key: entry.first_key, incarnation: 0 };
        let configuration = match replaced {
            true => self.latest(),
            false => {
                let members = self.replicas.iter().map(first).collect();
                Configuration { id: 0, from_slot: Slot(0), members }
            }
        };
        Genesis { configuration, clients: self.clients.clone() }
    }

    /// The latest configuration.
    pub fn latest(&self) -> Configuration {
        let member =
            |entry: &ReplicaEntry| Member { key: entry.key, incarnation: entry.incarnation };
        let members = self.replicas.iter().map(member).collect();
        Configuration { id: self.configuration, from_slot: self.from_slot, members }
    }

    /// What a client needs to know.
    pub fn client_config(&self) -> ClusterConfig {
        let address = |(id, entry): (usize, &ReplicaEntry)| ReplicaAddress {
            id: ReplicaId(id as u8),
            address: entry.address.clone(),
            key: entry.key,
        };
        ClusterConfig {
            cluster: self.parameters.cluster,
            faults: self.parameters.faults,
            replicas: self.replicas.iter().enumerate().map(address).collect(),
            administrator: Some(self.parameters.administrator),
            named: self.parameters.map.is_some(),
            unreachable_after: None,
            takes_long: false,
        }
    }

    /// The text of its file.
    pub fn render(&self) -> String {
        let p = &self.parameters;
        let format = if p.versions.rules == 0 { 1 } else { FORMAT };
        let mut text = render_parameters(p, format);
        let _ = write!(
            text,
            "\n# The members' latest configuration; `perdura replica reinit` changes it.\n\
             [configuration]\nnumber = {}\nfrom_slot = {}\n",
            self.configuration, self.from_slot,
        );
        for (id, entry) in self.replicas.iter().enumerate() {
            let ReplicaEntry { address, http, key, incarnation, first_key } = entry;
            let (address, http) = (quoted(address), quoted(http));
            let _ = write!(
                text,
                "\n[[replica]]\nid = {id}\naddress = {address}\nhttp = {http}\n\
                 public_key = \"{key}\"\nincarnation = {incarnation}\n",
            );
            if key != first_key {
                let _ = writeln!(text, "first_public_key = \"{first_key}\"");
            }
        }
        text + &render_clients(&self.clients, &self.optional)
    }
}

/// The lines of what is fixed for the life of a cluster.
pub(super) fn render_parameters(p: &Parameters, format: u32) -> String {
    format!(
        "# A Perdura cluster. All its replicas and clients need this file; it holds no secret.\n\
         # Up to and with [faults] it is fixed for the life of the cluster.\n\
         format = {format}\n\
         cluster = \"{}\"\n\
         # Public key of the administrator, who may replace replicas and certify clients.\n\
         administrator = \"{}\"\n\
         # What is replicated: the key-value store (kv) or tuple spaces (tuples).\n\
         service = \"{}\"\n\
         {}\
         # When a reply leaves: after the log is flushed (sync), written (async), or at once \
         (none).\n\
         durability = \"{}\"\n\
         # Slots in agreement at once.\n\
         depth = {}\n\
         # A replica's checkpoint is due after this many slots, or earlier after this much data.\n\
         checkpoint_interval_slots = {}\n\
         checkpoint_mib = {}\n\
         # For a large state up to so many times rarer (1: never).\n\
         checkpoint_stretch = {}\n\
         {}\
         # One replica after the other (sequential), or all at once (coordinated).\n\
         checkpoint_schedule = \"{}\"\n\
         # A proposal whose time differs more from a replica's clock is not voted for.\n\
         max_skew_ms = {}\n\
         # Commands that would make the state larger are refused.\n\
         state_limit_mib = {}\n\n\
         # Live with up to u failures of any kind, safe with up to r of them lying.\n\
         [faults]\nu = {}\nr = {}\n",
        p.whole_cluster(),
        p.administrator,
        p.service,
        versions_text(p.versions),
        p.durability.name(),
        p.depth,
        p.checkpoint_interval,
        p.checkpoint_bytes / MIB,
        p.checkpoint_stretch,
        checkpoint_time_text(p.checkpoint_ms),
        p.schedule.name(),
        p.max_skew_ms,
        p.state_limit_bytes / MIB,
        p.faults.u(),
        p.faults.r(),
    )
}

/// The lines at the end: first clients, and what a newer program wrote.
pub(super) fn render_clients(clients: &[(String, PublicKey)], optional: &Table) -> String {
    let mut text = String::new();
    if !clients.is_empty() {
        text.push_str("\n# Registered from the start; later ones are not listed here.\n");
    }
    for (name, key) in clients {
        let name = quoted(name);
        let _ = write!(text, "[[client]]\nname = {name}\npublic_key = \"{key}\"\n");
    }
    if !optional.is_empty() {
        // As a table in a table, so that those in it have their whole names.
        let optional = Table::from_iter([("optional".to_owned(), optional.clone().into())]);
        let _ = write!(text, "\n# Of a newer program.\n{optional}");
    }
    text
}

fn clients(raw: Vec<RawClient>, file: &str) -> Result<Vec<(String, PublicKey)>> {
    let client = |(index, client): (usize, RawClient)| {
        let field = format!("client[{index}].public_key");
        Ok((client.name, public_key(&client.public_key, file, &field)?))
    };
    raw.into_iter().enumerate().map(client).collect()
}

/// What clusters of one group and of several have in common.
pub(super) struct Common {
    pub(super) parameters: Parameters,
    pub(super) clients: Vec<(String, PublicKey)>,
    pub(super) optional: Table,
}

impl Common {
    /// Of a cluster's table without what it says of its replicas.
    pub(super) fn of(mut table: Table, file: &str) -> Result<Common> {
        table.insert("format".to_owned(), i64::from(FORMAT).into());
        for field in ["configuration", "replica"] {
            ensure!(
                !table.contains_key(field),
                "{file}: a file of format {PARTITIONED_FORMAT} has no {field}"
            );
        }
        let none =
            Table::from_iter([("number".to_owned(), 0.into()), ("from_slot".to_owned(), 0.into())]);
        table.insert("configuration".to_owned(), none.into());
        table.insert("replica".to_owned(), toml::Value::Array(Vec::new()));
        let raw: Raw = table.try_into().with_context(|| file.to_owned())?;
        Ok(Common {
            parameters: parameters(&raw, file)?,
            clients: clients(raw.client, file)?,
            optional: raw.optional,
        })
    }
}

fn parameters(raw: &Raw, file: &str) -> Result<Parameters> {
    let cluster = raw.cluster.parse().ok().with_context(|| {
        format!("{file}: cluster must be 32 hexadecimal digits; it is {:?}", raw.cluster)
    })?;
    let faults =
        Faults::new(raw.faults.u, raw.faults.r).with_context(|| format!("{file}: [faults]"))?;
    let durability = durability(&raw.durability)
        .with_context(|| format!("{file}: durability is {:?}", raw.durability))?;
    let service = match &raw.service {
        None => ServiceKind::KeyValue.name(),
        Some(text) => {
            if raw.format == 1 {
                service(text).with_context(|| format!("{file}: service is {text:?}"))?;
            }
            ServiceName::parse(text).with_context(|| format!("{file}: service is {text:?}; it is kv, tuples, or the name of another program's"))?
        }
    };
    let versions = versions(raw, file)?;
    let schedule = match &raw.checkpoint_schedule {
        None => Schedule::Coordinated,
        Some(text) => {
            schedule(text).with_context(|| format!("{file}: checkpoint_schedule is {text:?}"))?
        }
    };
    let within = |field: &str, value: u64, least: u64, most: u64| match value {
        value if (least..=most).contains(&value) => Ok(value),
        value => bail!("{file}: {field} must be {least} to {most}; it is {value}"),
    };
    let interval = raw.checkpoint_interval_slots;
    let stretch = raw.checkpoint_stretch.unwrap_or(1);
    Ok(Parameters {
        cluster,
        faults,
        durability,
        depth: within("depth", raw.depth, 1, 256)?,
        checkpoint_interval: within("checkpoint_interval_slots", interval, 64, 1 << 20)?,
        checkpoint_bytes: within("checkpoint_mib", raw.checkpoint_mib, 1, MIB)? * MIB,
        checkpoint_stretch: within("checkpoint_stretch", stretch, 1, 64)?,
        checkpoint_ms: match raw.checkpoint_ms {
            None => None,
            Some(ms) => Some(within("checkpoint_ms", ms, 1_000, 3_600_000)?),
        },
        schedule,
        max_skew_ms: within("max_skew_ms", raw.max_skew_ms, 1, 3_600_000)?,
        state_limit_bytes: within("state_limit_mib", raw.state_limit_mib, 1, MIB)? * MIB,
        service,
        versions,
        administrator: public_key(&raw.administrator, file, "administrator")?,
        map: None,
    })
}

/// The versions with which the cluster starts.
fn versions(raw: &Raw, file: &str) -> Result<Versions> {
    let newest = perdura_protocol::versions::RULES;
    match (raw.format, raw.rules, raw.service_version) {
        (1, None, None) => {
            ensure!(raw.optional.is_empty(), "{file}: a file of format 1 has no [optional]");
            Ok(Versions::FIRST)
        }
        (1, ..) => bail!("{file}: a file of format 1 has no rules and no service_version"),
        (_, Some(rules), Some(service)) => {
            ensure!(
                (1..=newest).contains(&rules),
                "{file}: rules is {rules}, and this program knows 1 to {newest}; use a newer one"
            );
            ensure!(service > 0, "{file}: service_version must be at least 1");
            Ok(Versions { rules, service })
        }
        (_, None, _) => bail!("{file}: the field `rules` is missing"),
        (_, _, None) => bail!("{file}: the field `service_version` is missing"),
    }
}

/// The lines of a time that makes checkpoints due, if one does.
fn checkpoint_time_text(ms: Option<u64>) -> String {
    ms.map_or_else(String::new, |ms| {
        format!("# However little came, it is due after this long while commands come.\ncheckpoint_ms = {ms}\n")
    })
}

/// The lines of the versions.
fn versions_text(Versions { rules, service }: Versions) -> String {
    match rules {
        0 => String::new(),
        _ => format!(
            "# Versions of the service and of Perdura's own rules of execution with which it starts.\n\
             service_version = {service}\n\
             rules = {rules}\n"
        ),
    }
}

fn replicas(raw: Vec<RawReplica>, faults: Faults, file: &str) -> Result<Vec<ReplicaEntry>> {
    ensure!(
        raw.len() == faults.n(),
        "{file}: there are {} [[replica]] entries; u = {} and r = {} take {}",
        raw.len(),
        faults.u(),
        faults.r(),
        faults.n()
    );
    let entry = |(index, raw): (usize, RawReplica)| {
        let field = |name: &str| format!("replica[{index}].{name}");
        ensure!(
            usize::from(raw.id) == index,
            "{file}: {} must be {index}, since entries are in the order of their ids; it is {}",
            field("id"),
            raw.id
        );
        host_port(&raw.address, file, &field("address"))?;
        host_port(&raw.http, file, &field("http"))?;
        let key = public_key(&raw.public_key, file, &field("public_key"))?;
        let first_key = match &raw.first_public_key {
            Some(first) => public_key(first, file, &field("first_public_key"))?,
            None => key,
        };
        ensure!(
            (raw.incarnation > 0) == raw.first_public_key.is_some(),
            "{file}: {} and {} contradict each other: a replica has a first key of its own when it \
             was replaced, and only then",
            field("incarnation"),
            field("first_public_key")
        );
        Ok(ReplicaEntry {
            address: raw.address,
            http: raw.http,
            key,
            incarnation: raw.incarnation,
            first_key,
        })
    };
    let entries: Vec<ReplicaEntry> =
        raw.into_iter().enumerate().map(entry).collect::<Result<_>>()?;
    let places: Vec<_> = entries.iter().map(|entry| (&*entry.address, &*entry.http)).collect();
    each_has_its_own("replica", &places, file)?;
    Ok(entries)
}

/// Where replicas (or servers) listen, each has a place of its own; so has its HTTP port, beside its protocol's too. An HTTP address that
/// means the machine itself is another one on each: `http = "127.0.0.1:7401"` of replicas on several machines is no mistake.
pub(super) fn each_has_its_own(what: &str, places: &[(&str, &str)], file: &str) -> Result<()> {
    for (id, &(address, http)) in places.iter().enumerate() {
        if let Some(other) = places[..id].iter().position(|(other, _)| *other == address) {
            bail!(
                "{file}: {what}s {other} and {id} have the same address, {address}: each needs its own"
            );
        }
        let on_one_machine = |other: &str| !is_own(http) || machine(other) == machine(address);
        for (other, with) in places.iter().enumerate().filter(|(_, with)| on_one_machine(with.0)) {
            if other < id && with.1 == http {
                bail!(
                    "{file}: {what}s {other} and {id} have the same http address, {http}: each needs its own, or \
                     one of them does not start"
                );
            }
            if with.0 == http {
                bail!(
                    "{file}: the http address of {what} {id} is the address of {what} {other}, {http}: HTTP needs a port \
                     of its own"
                );
            }
        }
    }
    Ok(())
}

/// Whether an address means the machine on which it is used.
fn is_own(address: &str) -> bool {
    machine(address).is_empty()
}

/// The host of an address; of all that mean the machine itself the same one.
fn machine(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.is_unspecified();
    match bare.parse::<IpAddr>() {
        Ok(ip) if own(ip) => "",
        Err(_) if bare == "localhost" => "",
        _ => bare,
    }
}

/// Of what clusters could be made with for experiments.
const GONE: &str = "it was a baseline for experiments, which this program does not have; start the program that made the cluster once more, \
     export what is to be kept (`perdura kv export`; of other services what their own commands read), and import it into a new cluster \
     (`perdura init`, `perdura kv import`)";

/// The durability that `text` names.
pub fn durability(text: &str) -> Result<Durability> {
    ensure!(text != "sync-naive", "{GONE}");
    let all = Durability::ALL.map(Durability::name).join(", ");
    Durability::parse(text).with_context(|| format!("durability is one of {all}"))
}

/// The schedule of checkpoints that `text` names.
pub fn schedule(text: &str) -> Result<Schedule> {
    ensure!(text != "stop-the-world", "{GONE}");
    let all = Schedule::ALL.map(Schedule::name).join(", ");
    Schedule::parse(text).with_context(|| format!("checkpoint_schedule is one of {all}"))
}

/// The service that `text` names.
pub fn service(text: &str) -> Result<ServiceKind> {
    match text {
        "kv" => Ok(ServiceKind::KeyValue),
        "tuples" => Ok(ServiceKind::TupleSpaces),
        _ => bail!("service is one of kv, tuples"),
    }
}

/// Its name.
pub fn service_text(service: ServiceKind) -> &'static str {
    match service {
        ServiceKind::KeyValue => "kv",
        ServiceKind::TupleSpaces => "tuples",
    }
}

#[cfg(test)]
mod tests;
