//! The state before slot 1, as `perdura init` writes it down.

use perdura_protocol::versions::VersionError;
use perdura_protocol::{Configuration, PublicKey};

/// Who takes part from the start. Equal on all replicas; it comes from a file, so it is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Genesis {
    /// The first configuration, number 0.
    pub configuration: Configuration,
    /// Registered clients: name (1 to 64 bytes) and key.
    pub clients: Vec<(String, PublicKey)>,
}

/// Why a cluster cannot start from a [`Genesis`]. Correct the cluster's configuration file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GenesisError {
    /// The first configuration is number 0.
    #[error("the first configuration has number 0, not {0}")]
    Number(u64),
    /// The fault bounds ask for another number of replicas.
    #[error("the fault bounds ask for {expected} replicas, the configuration has {found}")]
    Members {
        /// By the fault bounds.
        expected: usize,
        /// In the configuration.
        found: usize,
    },
    /// The cluster was made by a newer program.
    #[error(transparent)]
    Versions(#[from] VersionError),
    /// Replicas and the administrator have a key each.
    #[error("the key {0} stands for two of replicas and administrator")]
    SharedKey(PublicKey),
    /// A client cannot be registered.
    #[error("client {name:?}: {reason}")]
    Client {
        /// The client's name.
        name: String,
        /// Why not.
        reason: String,
    },
}
