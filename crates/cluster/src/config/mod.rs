//! The files of a cluster's directory: what they hold, and how they are read and written.
//!
//! | file | what | secret |
//! |---|---|---|
//! | `cluster.toml` | parameters, replicas, first clients; equal on all machines ([`cluster`], of several partitions [`partitioned`]) | no |
//! | `client.toml`, `client-NAME.toml` | a client's key ([`keys`]) | yes |
//! | `admin.toml` | the administrator's key ([`keys`]) | yes |
//! | `replica-i/replica.toml` | what concerns one replica alone ([`replica`]) | yes |
//! | `server-i/server.toml` | of several partitions: what concerns one server alone, with its members ([`server`]) | yes |
//!
//! Invariants: a relative path resolves against the file it stands in; a field that is not known
//! is refused, since a misspelt one would silently not count; an error names the file and the
//! field; a file is replaced as a whole or not at all; secret files are readable by their owner
//! only.

/// Ends with [`ReadError::Wrong`]: something in a file is as it must not be.
macro_rules! bail {
    ($($text:tt)*) => {
        return Err($crate::config::ReadError::Wrong(format!($($text)*)))
    };
}

/// That something in a file is as it has to be.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            bail!($($text)*);
        }
    };
}

pub mod cluster;
mod error;
pub mod files;
pub mod keys;
pub mod partitioned;
pub mod placement;
pub mod replica;
pub mod server;

pub use cluster::{Cluster, ReplicaEntry};
pub use error::{EntropyError, ReadError, WriteError};
pub use keys::KeyFile;
pub use partitioned::PartitionedCluster;
pub use replica::ReplicaFile;
pub use server::ServerFile;

use error::{Context, Result};
use perdura_protocol::{PublicKey, SecretKey};

/// Name of the cluster's file in its directory.
pub const CLUSTER_FILE: &str = "cluster.toml";
/// Name of the first client's file.
pub const CLIENT_FILE: &str = "client.toml";
/// Name of the administrator's file.
pub const ADMIN_FILE: &str = "admin.toml";
/// Name of the administrator's file while its key is being replaced.
pub const PENDING_ADMIN_FILE: &str = "admin.toml.pending";
/// Name of a replica's file in its own directory.
pub const REPLICA_FILE: &str = "replica.toml";
/// Name of a server's file in its own directory.
pub const SERVER_FILE: &str = "server.toml";
/// Name of a replica's file while its replacement is under way.
pub const PENDING_REPLICA_FILE: &str = "replica.toml.pending";

/// Version of the files' format.
const FORMAT_VERSION: u32 = 1;

/// The public key that the field `field` of `file` spells.
fn public_key(text: &str, file: &str, field: &str) -> Result<PublicKey> {
    text.parse().ok().with_context(|| {
        format!("{file}: {field} must be a public key, 64 hexadecimal digits; it is {text:?}")
    })
}

/// The secret key that the field `field` of `file` spells; errors do not repeat it.
fn secret_key(text: &str, file: &str, field: &str) -> Result<SecretKey> {
    SecretKey::from_text(text)
        .with_context(|| format!("{file}: {field} must be a secret key, 64 hexadecimal digits"))
}

/// What the file of a replica and that of a server begin with: a format that this program reads, and where it listens.
fn check_head(file: &str, format: u32, (listen, http): (&str, Option<&str>)) -> Result<()> {
    ensure!(
        format == FORMAT_VERSION,
        "{file}: format is {format}, and this program reads {FORMAT_VERSION}; use the program that wrote it"
    );
    host_port(listen, file, "listen")?;
    http.map_or(Ok(()), |http| host_port(http, file, "http"))
}

/// A `host:port` as far as it can be checked without resolving it.
fn host_port(text: &str, file: &str, field: &str) -> Result<()> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) if port > 0 => Ok(()),
        _ => {
            bail!("{file}: {field} must be host:port, as in 127.0.0.1:7400; it is {text:?}")
        }
    }
}
