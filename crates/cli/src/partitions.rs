//! Clusters of several partitions on the command line: how many, on how many servers, and which keys are whose.

use crate::init::Tuning;
use crate::kv_json::from_base64;
use crate::local::ChildKind;
use crate::{Usage, steps};
use anyhow::{Result, bail};
use bytes::Bytes;
use clap::Args;
use perdura_cluster::config::PartitionedCluster;
use perdura_cluster::config::cluster::service_text;
use perdura_cluster::create::{self, CreateError, Partitions, Place, PlacesError};
use perdura_cluster::{Cluster, ServiceKind};
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{Faults, PartitionId};
use perdura_store::limits::KEY_BYTES;
use std::path::Path;

/// What stands before a bound that is not text.
const BASE64: &str = "base64:";

/// How a new cluster is spread over replica groups.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Partitions, fixed for the life of the cluster")]
pub struct Partitioning {
    /// Spread the keys over P partitions, each a replica group of its own; servers have members of several [default: 1]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub partitions: Option<u16>,
    /// Servers of a cluster of several partitions, at least as many as a group has replicas [default: as many, or as --hosts names]
    #[arg(long, value_name = "S", requires = "partitions", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    /// Which keys are in which partition: by a hash of the key, or by ranges, where partitions 1 and up begin with B1, B2, ...
    /// (one that is not text in Base64, after "base64:") [default: hash]
    #[arg(long, value_name = "hash|range:B1,B2,...", requires = "partitions", value_parser = parse_distribution)]
    partition_by: Option<Distribution>,
}

fn parse_distribution(text: &str) -> Result<Distribution, String> {
    if text == "hash" {
        return Ok(Distribution::Hash);
    }
    let bounds = text.strip_prefix("range:").ok_or("give hash, or range:B1,B2,...")?;
    let bound = |text: &str| match text.strip_prefix(BASE64) {
        Some(bytes) => from_base64(bytes),
        None => Ok(Bytes::from(text.to_owned())),
    };
    let bounds = bounds.split(',').map(bound).collect::<Result<_, String>>()?;
    Ok(Distribution::Range { bounds })
}

/// What a new cluster of several partitions is to be.
pub struct New<'a> {
    /// How many there are, at least 2, and which keys are whose.
    pub partitions: Partitions,
    /// Of each group.
    pub faults: Faults,
    /// When replies leave.
    pub durability: Durability,
    /// What is replicated.
    pub service: ServiceKind,
    /// Other parameters.
    pub tuning: Tuning,
    /// Of its servers.
    pub places: &'a [Place],
}

impl Partitioning {
    /// How the keys are spread, if they are.
    ///
    /// # Errors
    /// A [`Usage`] where something is asked for that only several partitions have.
    pub fn several(&self) -> Result<Option<Partitions>> {
        let count = usize::from(self.partitions.unwrap_or(1));
        if count == 1 {
            if self.servers.is_some() || self.partition_by.is_some() {
                let only = "--servers and --partition-by are for two partitions and more; a cluster of one has a process for each replica";
                bail!(Usage(only.to_owned()));
            }
            return Ok(None);
        }
        let distribution = self.partition_by.clone().unwrap_or(Distribution::Hash);
        Ok(Some(Partitions { count, distribution }))
    }

    /// Whether `cluster` is what was asked for, as far as something was.
    pub fn is_of(&self, cluster: &PartitionedCluster) -> bool {
        let is = |given: Option<u16>, there: usize| {
            given.is_none_or(|given| usize::from(given) == there)
        };
        let by = self.partition_by.as_ref();
        is(self.partitions, cluster.partitions.len())
            && is(self.servers, cluster.servers.len())
            && by.is_none_or(|by| *by == cluster.map.distribution)
    }

    /// Places of its servers, as [`Place::all`] has them.
    ///
    /// # Errors
    /// A [`Usage`] if what was asked for makes no sense.
    pub fn places(
        &self,
        n: usize,
        hosts: &[String],
        base_port: Option<u16>,
        public_http: bool,
    ) -> Result<Vec<Place>> {
        let usual = if hosts.is_empty() { n } else { hosts.len() };
        let servers = self.servers.map_or(usual, usize::from);
        let places = Place::all(servers, hosts, base_port, public_http);
        places.map_err(|error| match error {
            PlacesError::Hosts { given, n } => {
                Usage(format!("--hosts names {given} hosts, and there are {n} servers")).into()
            }
            error if error.is_misuse() => Usage(error.to_string()).into(),
            error => error.into(),
        })
    }
}

/// Makes everything in `dir`, which must be missing or empty.
///
/// # Errors
/// A [`Usage`] if what was asked for makes no sense.
pub fn make(dir: &Path, new: New<'_>) -> Result<PartitionedCluster> {
    let New { partitions, faults, durability, service, tuning, places } = new;
    let tune = |parameters: &mut Parameters| tuning.apply(parameters);
    let service = service.name();
    create::make_partitioned(dir, faults, durability, service, tune, partitions, places).map_err(
        |error: CreateError| match error.is_misuse() {
            true => Usage(error.to_string()).into(),
            false => error.into(),
        },
    )
}

/// Says what was made.
pub fn show(dir: &Path, cluster: &PartitionedCluster, service: ServiceKind, hosts: &[String]) {
    let (parameters, shown) = (&cluster.parameters, dir.display());
    let faults = parameters.faults;
    say!(
        "{shown}: cluster {} of {} partitions on {} servers, each a group of {} replicas, live with {} failures, safe with {} liars, \
         durability {}, service {}",
        parameters.cluster,
        cluster.partitions.len(),
        cluster.servers.len(),
        faults.n(),
        faults.u(),
        faults.r(),
        parameters.durability.name(),
        service_text(service)
    );
    for (id, entry) in cluster.servers.iter().enumerate() {
        say!("  server {id} at {}, status at http://{}/status", entry.address, entry.http);
    }
    say!("{}", steps::after_init(dir, ChildKind::Server, cluster.servers.len(), hosts));
}

/// A key of this group's partition that is nobody else's, to write and read; none where there is hardly room for one.
pub fn own_key(group: &Cluster, name: &str) -> Option<Bytes> {
    let (map, own) = (group.parameters.map.as_ref()?, group.parameters.partition()?);
    let start = match &map.distribution {
        Distribution::Hash => Bytes::new(),
        Distribution::Range { bounds } => match usize::from(own.0).checked_sub(1) {
            Some(before) => bounds[before].clone(),
            None => Bytes::new(),
        },
    };
    // Of a hash, among so many there is one for each of 64 partitions, but for chances that are none.
    let keys = (0..4096).map(|number| [&start[..], format!("{name}-{number}").as_bytes()].concat());
    let mut keys = keys.map(Bytes::from).filter(|key| key.len() <= KEY_BYTES);
    keys.find(|key| map.partition_of(key) == own)
}

/// What stands before what is said of a replica of this group.
pub fn label(partition: Option<PartitionId>, id: u8) -> String {
    match partition {
        Some(partition) => format!("partition {partition}, replica {id}"),
        None => format!("replica {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_parsed() {
        assert_eq!(parse_distribution("hash"), Ok(Distribution::Hash));
        let bounds = |bounds: &[&'static [u8]]| {
            let bounds = bounds.iter().map(|bound| Bytes::from_static(bound)).collect();
            Ok(Distribution::Range { bounds })
        };
        assert_eq!(parse_distribution("range:f,p"), bounds(&[b"f", b"p"]));
        assert_eq!(parse_distribution("range:a:b,base64:/wA="), bounds(&[b"a:b", b"\xff\x00"]));
        for bad in ["", "range", "list:a", "range:base64:%"] {
            assert!(parse_distribution(bad).is_err(), "{bad}");
        }
    }
}
