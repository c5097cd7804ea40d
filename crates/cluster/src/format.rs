//! Formatting a replica's data directory.

use crate::config::{EntropyError, keys};
use perdura_durability::{FileDisk, FormatError, Identity, OpenError, format};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{ReplicaId, Slot};
use std::path::Path;

/// Why a data directory was not formatted.
#[derive(Debug, thiserror::Error)]
pub enum DataDirectoryError {
    /// No key for its checksums can be made.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// It cannot be made, or something else uses it.
    #[error(transparent)]
    Make(#[from] OpenError),
    /// Something is in it, or the disk failed.
    #[error("cannot format the data directory {path}")]
    Format {
        /// Where it is.
        path: String,
        /// What is wrong.
        source: FormatError,
    },
}

/// Makes the data directory at `path` that of incarnation `incarnation` of replica `id`. A
/// replacement holds a state at or after slot `must_recover` before it votes.
pub fn data_directory(
    path: &Path,
    parameters: &Parameters,
    id: ReplicaId,
    incarnation: u32,
    must_recover: Option<Slot>,
) -> Result<(), DataDirectoryError> {
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
        .map_err(|source| DataDirectoryError::Format { path: path.display().to_string(), source })
}
