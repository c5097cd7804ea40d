//! The files of a cluster as an operator handles them: read, and given other addresses, so that
//! whoever reads them goes through the proxies.

use anyhow::{Context, Result, ensure};
use perdura_client::{ClusterConfig, ReplicaAddress};
use perdura_protocol::{ClusterId, Faults, PublicKey, ReplicaId, SecretKey};
use serde::Deserialize;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

#[derive(Deserialize)]
struct Raw {
    cluster: String,
    administrator: String,
    faults: RawFaults,
    max_skew_ms: u64,
    // Of a cluster of one group.
    #[serde(default)]
    replica: Vec<RawReplica>,
    // Of one of several partitions.
    #[serde(default)]
    server: Vec<RawServer>,
    #[serde(default)]
    partition: Vec<RawPartition>,
}

#[derive(Deserialize)]
struct RawFaults {
    u: u8,
    r: u8,
}

#[derive(Deserialize)]
struct RawReplica {
    address: String,
    http: String,
    public_key: String,
}

#[derive(Deserialize)]
struct RawServer {
    address: String,
    http: String,
}

#[derive(Deserialize)]
struct RawPartition {
    member: Vec<RawMember>,
}

#[derive(Deserialize)]
struct RawMember {
    server: usize,
}

#[derive(Deserialize)]
struct RawKey {
    secret_key: String,
}

/// A process of the cluster, as the file has it: a replica, or a server with a member of each partition's group.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it listens.
    pub address: String,
    /// Where it tells how it stands.
    pub http: String,
}

/// `cluster.toml`.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    text: String,
    cluster: ClusterId,
    administrator: PublicKey,
    /// The group's bounds.
    pub faults: Faults,
    /// What a proposal's time may differ from a replica's clock by.
    pub max_skew_ms: u64,
    /// By id.
    pub replicas: Vec<Entry>,
    // Of a cluster of one group, the replicas' keys.
    keys: Vec<PublicKey>,
    // By partition, where there are several, and by replica id: on which server it is.
    placement: Vec<Vec<usize>>,
}

impl ClusterFile {
    /// Reads it.
    pub fn load(path: &Path) -> Result<ClusterFile> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        ClusterFile::parse(text).with_context(|| format!("{} does not read", path.display()))
    }

    fn parse(text: String) -> Result<ClusterFile> {
        let raw: Raw = toml::from_str(&text)?;
        let key = |text: &str| text.parse().ok().with_context(|| format!("{text} is no key"));
        let keys = raw.replica.iter().map(|one| key(&one.public_key)).collect::<Result<_>>()?;
        let replicas = raw.replica.into_iter().map(|one| (one.address, one.http));
        let servers = raw.server.into_iter().map(|one| (one.address, one.http));
        let entries = replicas.chain(servers);
        let placed =
            |one: RawPartition| one.member.iter().map(|member| member.server).collect::<Vec<_>>();
        Ok(ClusterFile {
            cluster: raw.cluster.parse().ok().context("the cluster's id does not read")?,
            administrator: key(&raw.administrator)?,
            faults: Faults::new(raw.faults.u, raw.faults.r)?,
            max_skew_ms: raw.max_skew_ms,
            replicas: entries.map(|(address, http)| Entry { address, http }).collect(),
            keys,
            placement: raw.partition.into_iter().map(placed).collect(),
            text,
        })
    }

    /// One whose replicas are on these servers, by partition.
    #[cfg(test)]
    pub fn placed(placement: Vec<Vec<usize>>) -> ClusterFile {
        ClusterFile {
            text: String::new(),
            cluster: ClusterId([1; 16]),
            administrator: PublicKey([1; 32]),
            faults: Faults::new(1, 1).unwrap(),
            max_skew_ms: 0,
            replicas: Vec::new(),
            keys: Vec::new(),
            placement,
        }
    }

    /// Into how many partitions the keys are spread; one if there are none.
    pub fn partitions(&self) -> usize {
        self.placement.len().max(1)
    }

    /// Whether its processes are servers, with a member of each partition's group.
    pub fn is_partitioned(&self) -> bool {
        !self.placement.is_empty()
    }

    /// The replica id of a server's member of a partition.
    pub fn replica_of(&self, partition: usize, server: usize) -> Result<usize> {
        let members = self.placement.get(partition).context("there is no such partition")?;
        let id = members.iter().position(|there| *there == server);
        id.with_context(|| format!("server {server} has no member of partition {partition}"))
    }

    /// Which process has a replica, of a partition where there are several.
    pub fn process_of(&self, partition: Option<usize>, replica: usize) -> Option<usize> {
        match partition {
            None => (!self.is_partitioned()).then_some(replica),
            Some(partition) => self.placement.get(partition)?.get(replica).copied(),
        }
    }

    /// The same file with other addresses.
    pub fn with_addresses(&self, address: impl Fn(usize) -> String) -> Result<String> {
        let (mut out, mut next) = (String::new(), 0);
        for line in self.text.lines() {
            if line.starts_with("address = ") {
                out.push_str(&format!("address = \"{}\"", address(next)));
                next += 1;
            } else {
                out.push_str(line);
            }
            out.push('\n');
        }
        ensure!(next == self.replicas.len(), "{next} addresses in the cluster's file");
        Ok(out)
    }

    /// What a client needs to know, with other addresses.
    pub fn client_config(&self, address: impl Fn(usize) -> String) -> ClusterConfig {
        let replica = |(id, key): (usize, &PublicKey)| ReplicaAddress {
            id: ReplicaId(id as u8),
            address: address(id),
            key: *key,
        };
        ClusterConfig {
            cluster: self.cluster,
            faults: self.faults,
            replicas: self.keys.iter().enumerate().map(replica).collect(),
            administrator: Some(self.administrator),
            named: false,
            unreachable_after: None,
            takes_long: false,
        }
    }
}

/// The key in `client.toml`.
pub fn secret_key(path: &Path) -> Result<SecretKey> {
    let text = fs::read_to_string(path)?;
    let raw: RawKey = toml::from_str(&text)?;
    SecretKey::from_text(&raw.secret_key).context("the secret key does not read")
}

/// Copies a directory's files and directories to where there may be some already.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    copy_all(from, to, &|_| false)
}

/// The same while somebody works in it: what is gone before it is copied is left out.
pub fn copy_moving_tree(from: &Path, to: &Path) -> Result<()> {
    copy_all(from, to, &|error| error.kind() == ErrorKind::NotFound)
}

fn copy_all(from: &Path, to: &Path, passes: &dyn Fn(&io::Error) -> bool) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target, passes)?;
            continue;
        }
        match fs::copy(entry.path(), &target) {
            Err(error) if !passes(&error) => {
                return Err(error).with_context(|| format!("cannot copy to {}", target.display()));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Empties a directory. What the file system itself keeps there stays.
pub fn empty_directory(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "lost+found" {
                fs::remove_dir_all(entry.path())?;
            }
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_before_it_is_copied_is_left_out_only_where_somebody_works() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::create_dir_all(from.join("log")).unwrap();
        fs::write(from.join("log/2"), "two").unwrap();
        // To a reader it is as a file that is gone.
        std::os::unix::fs::symlink("nowhere", from.join("log/1")).unwrap();
        assert!(copy_tree(&from, &to).is_err());
        copy_moving_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("log/2")).unwrap(), "two");
        assert!(!to.join("log/1").exists());
    }

    #[test]
    fn addresses_are_replaced_in_their_order_and_nothing_else_is() {
        let key = "07".repeat(32);
        let replica = |port: u16| {
            format!(
                "[[replica]]\nid = 0\naddress = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:1\"\n\
                 public_key = \"{key}\"\nincarnation = 0\n"
            )
        };
        let text = format!(
            "cluster = \"{}\"\nadministrator = \"{key}\"\nmax_skew_ms = 400\n[faults]\nu = 1\nr = 0\n{}{}{}",
            "01".repeat(16),
            replica(5),
            replica(6),
            replica(7)
        );
        let file = ClusterFile::parse(text.clone()).unwrap();
        assert_eq!(file.max_skew_ms, 400);
        assert_eq!(file.replicas[2].address, "127.0.0.1:7");
        let other = file.with_addresses(|id| format!("127.0.0.1:9{id}")).unwrap();
        assert_eq!(
            other,
            text.replace("1:5\"", "1:90\"").replace("1:6\"", "1:91\"").replace("1:7\"", "1:92\"")
        );
        let config = file.client_config(|id| format!("x:{id}"));
        assert_eq!(config.replicas[1].address, "x:1");
        assert!(!file.is_partitioned() && file.partitions() == 1);
        assert_eq!((file.process_of(None, 1), file.process_of(Some(0), 1)), (Some(1), None));
    }

    #[test]
    fn members_of_partitions_are_found_on_their_servers() {
        let key = "07".repeat(32);
        let servers = ["1", "2", "3"].map(|port| {
            format!(
                "[[server]]\nid = 0\naddress = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:1{port}\"\n"
            )
        });
        let member = |server| format!("[[partition.member]]\nserver = {server}\n");
        let partitions = [[0, 1, 2], [1, 2, 0]]
            .map(|placed| format!("[[partition]]\nid = 0\n{}", placed.map(member).concat()));
        let text = format!(
            "cluster = \"{}\"\nadministrator = \"{key}\"\nmax_skew_ms = 400\n[faults]\nu = 1\nr = 0\n{}{}",
            "01".repeat(16),
            servers.concat(),
            partitions.concat()
        );
        let file = ClusterFile::parse(text).unwrap();
        assert!(file.is_partitioned() && file.partitions() == 2);
        assert_eq!(file.replicas[2].http, "127.0.0.1:13");
        let ids = |partition| [0, 1, 2].map(|server| file.replica_of(partition, server).unwrap());
        assert_eq!((ids(0), ids(1)), ([0, 1, 2], [2, 0, 1]));
        assert_eq!([0, 1, 2].map(|id| file.process_of(Some(1), id)), [1, 2, 0].map(Some));
        assert_eq!((file.process_of(Some(2), 0), file.process_of(None, 0)), (None, None));
        assert!(file.replica_of(1, 3).is_err() && file.replica_of(2, 0).is_err());
        assert!(file.with_addresses(|id| format!("x:{id}")).unwrap().contains("address = \"x:2\""));
    }
}
