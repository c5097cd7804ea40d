//! Formatting a replica's data directory.

use crate::config::keys;
use anyhow::{Context, Result};
use perdura_durability::{FileDisk, Identity, format};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{ReplicaId, Slot};
use std::path::Path;

/// Makes the data directory at `path` that of incarnation `incarnation` of replica `id`. A
/// replacement holds a state at or after slot `must_recover` before it votes.
pub fn data_directory(
    path: &Path,
    parameters: &Parameters,
    id: ReplicaId,
    incarnation: u32,
    must_recover: Option<Slot>,
) -> Result<()> {
    let identity = Identity {
        cluster: parameters.cluster,
        replica: id,
        incarnation,
        parameters: parameters.digest(),
        durability: parameters.durability,
        checksum_key: keys::random()?,
        must_recover,
    };
    let mut disk = FileDisk::create_directory(path)?;
    format(&mut disk, &identity)
        .with_context(|| format!("cannot format the data directory {}", path.display()))
}
