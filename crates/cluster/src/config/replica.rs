//! `replica-i/replica.toml`: what concerns one replica alone.

use super::cluster::Cluster;
use super::error::{Context, Result, WriteError};
use super::files::{self, Secrecy};
use super::keys::quoted;
use super::{FORMAT_VERSION, PENDING_REPLICA_FILE, check_head, secret_key};
use perdura_protocol::SecretKey;
use perdura_replica::node::{ExecutionMode, StateTransfer};
use perdura_replica::runtime::{MOST_READ_THREADS, READ_THREADS};
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: u32,
    id: u8,
    incarnation: u32,
    secret_key: String,
    cluster: PathBuf,
    data: PathBuf,
    listen: String,
    http: Option<String>,
    #[serde(default)]
    checkpoint_mb_s: u64,
    scrub_interval_s: Option<u64>,
    state_transfer: Option<String>,
    execution: Option<String>,
    read_threads: Option<usize>,
}

/// An hour.
pub const SCRUB_INTERVAL_S: u64 = 3600;

/// Thirty days.
const MOST_SCRUB_INTERVAL_S: u64 = 30 * 86_400;

/// Largest rate for checkpoints, MB/s.
const CHECKPOINT_MB_S: u64 = 1_000_000;

/// The rates of a replica, whom it asks and where it executes, as its file says them.
#[derive(Default)]
pub(super) struct RawRates {
    pub(super) checkpoint_mb_s: u64,
    pub(super) scrub_interval_s: Option<u64>,
    pub(super) state_transfer: Option<String>,
    pub(super) execution: Option<String>,
    pub(super) read_threads: Option<usize>,
}

/// Those of one replica, or of each member on a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// How fast it writes checkpoints, MB/s (of 10^6 bytes), up to 1000000; 0: as fast as the
    /// flushes of its log allow.
    pub checkpoint_mb_s: u64,
    /// Within so many seconds, up to thirty days, it holds all of its state in memory against the
    /// digests; 0: never.
    pub scrub_interval_s: u64,
    /// Whom it asks for a state, and for what it missed.
    pub state_transfer: StateTransfer,
    /// Whether it executes in the event loop, or in a thread beside it; none leaves that to the service.
    pub execution: Option<ExecutionMode>,
    /// How many threads answer reads beside that thread, 1 to 64.
    pub read_threads: usize,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            checkpoint_mb_s: 0,
            scrub_interval_s: SCRUB_INTERVAL_S,
            state_transfer: StateTransfer::default(),
            execution: None,
            read_threads: READ_THREADS,
        }
    }
}

impl RawRates {
    /// Held against their bounds.
    pub(super) fn check(self, file: &str) -> Result<Rates> {
        let RawRates { checkpoint_mb_s, scrub_interval_s, state_transfer, execution, read_threads } =
            self;
        let read_threads = read_threads.unwrap_or(READ_THREADS);
        let scrub_interval_s = scrub_interval_s.unwrap_or(SCRUB_INTERVAL_S);
        ensure!(
            checkpoint_mb_s <= CHECKPOINT_MB_S,
            "{file}: checkpoint_mb_s is {checkpoint_mb_s}, and may be at most {CHECKPOINT_MB_S}; 0 lets the flushes \
             of the log decide"
        );
        ensure!(
            scrub_interval_s <= MOST_SCRUB_INTERVAL_S,
            "{file}: scrub_interval_s is {scrub_interval_s}, and may be at most {MOST_SCRUB_INTERVAL_S}; 0 turns the \
             scrub off"
        );
        ensure!(
            (1..=MOST_READ_THREADS).contains(&read_threads),
            "{file}: read_threads is {read_threads}, and 1 to {MOST_READ_THREADS} are possible"
        );
        let state_transfer = match &state_transfer {
            None => StateTransfer::default(),
            Some(name) => StateTransfer::parse(name).with_context(|| {
                let all = StateTransfer::ALL.map(StateTransfer::name).join(", ");
                format!("{file}: state_transfer is {name:?}, and one of {all} is expected")
            })?,
        };
        let execution = match &execution {
            None => None,
            Some(name) => Some(ExecutionMode::parse(name).with_context(|| {
                let all = ExecutionMode::ALL.map(ExecutionMode::name).join(", ");
                format!("{file}: execution is {name:?}, and one of {all} is expected")
            })?),
        };
        Ok(Rates { checkpoint_mb_s, scrub_interval_s, state_transfer, execution, read_threads })
    }
}

impl Rates {
    /// The lines of those that are not as usual.
    pub(super) fn render(self) -> String {
        let mut text = String::new();
        if self.checkpoint_mb_s > 0 {
            text.push_str("# How fast checkpoints are written, MB/s.\n");
            text.push_str(&format!("checkpoint_mb_s = {}\n", self.checkpoint_mb_s));
        }
        if self.scrub_interval_s != SCRUB_INTERVAL_S {
            text.push_str("# Within how many seconds the state in memory is verified; 0: never.\n");
            text.push_str(&format!("scrub_interval_s = {}\n", self.scrub_interval_s));
        }
        if self.state_transfer != StateTransfer::default() {
            text.push_str("# Whom it asks for a state, and for what it missed.\n");
            text.push_str(&format!("state_transfer = \"{}\"\n", self.state_transfer.name()));
        }
        if let Some(place) = self.execution {
            text.push_str("# Where it executes: \"inline\", or in a \"thread\" beside agreement, for commands of milliseconds.\n");
            text.push_str(&format!("execution = \"{}\"\n", place.name()));
        }
        if self.read_threads != READ_THREADS {
            text.push_str("# How many threads answer reads beside the one that executes.\n");
            text.push_str(&format!("read_threads = {}\n", self.read_threads));
        }
        text
    }
}

/// A replica's own file. Paths are as in the file; see [`ReplicaFile::data`] and
/// [`ReplicaFile::cluster`].
#[derive(Clone, Debug)]
pub struct ReplicaFile {
    /// Where the file is.
    pub path: PathBuf,
    /// Which replica.
    pub id: u8,
    /// How often it was replaced.
    pub incarnation: u32,
    /// Its key.
    pub key: SecretKey,
    /// cluster.toml, as seen from this file.
    pub cluster_path: PathBuf,
    /// The data directory, as seen from this file.
    pub data_path: PathBuf,
    /// Where it listens for replicas and clients.
    pub listen: String,
    /// Where it serves status and metrics; nowhere if absent.
    pub http: Option<String>,
    /// How fast it does what takes time, whom it asks, and where it executes.
    pub rates: Rates,
}

impl ReplicaFile {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<ReplicaFile> {
        let advice =
            "`perdura init` makes one for each replica, `perdura replica reinit` a new one";
        ReplicaFile::parse(path, &files::read(path, files::FileKind::Replica, advice)?)
    }

    /// Checks `text`, which stands in the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<ReplicaFile> {
        let raw: Raw = files::parse_as(path, text, files::FileKind::Replica)?;
        let file = path.display().to_string();
        check_head(&file, raw.format, (&raw.listen, raw.http.as_deref()))?;
        let rates = RawRates {
            checkpoint_mb_s: raw.checkpoint_mb_s,
            scrub_interval_s: raw.scrub_interval_s,
            state_transfer: raw.state_transfer,
            execution: raw.execution,
            read_threads: raw.read_threads,
        };
        let rates = rates.check(&file)?;
        Ok(ReplicaFile {
            path: path.to_owned(),
            id: raw.id,
            incarnation: raw.incarnation,
            key: secret_key(&raw.secret_key, &file, "secret_key")?,
            cluster_path: raw.cluster,
            data_path: raw.data,
            listen: raw.listen,
            http: raw.http,
            rates,
        })
    }

    /// Writes it under the name `path`, if it can be read back.
    pub fn store(&self, path: &Path) -> Result<(), WriteError> {
        let text = self.render();
        if let Err(error) = ReplicaFile::parse(path, &text) {
            let (file, why) = (path.display().to_string(), error.to_string());
            return Err(WriteError::NotReadBack { file, why });
        }
        files::write(path, &text, Secrecy::Secret)
    }

    /// The text of its file.
    pub fn render(&self) -> String {
        let mut text = format!(
            "# Replica {id} of a Perdura cluster; start it with `perdura replica --config` and this \
             file.\n# Whoever reads this file can act in its name: keep it to yourself.\n\
             format = {FORMAT_VERSION}\n\
             id = {id}\n\
             incarnation = {}\n\
             secret_key = \"{}\"\n\
             # Relative paths are relative to this file.\n\
             cluster = {}\n\
             data = {}\n\
             # Where it listens for replicas and clients, who find it under its address in \
             cluster.toml.\n\
             listen = {}\n",
            self.incarnation,
            self.key.to_secret_text(),
            quoted(&self.cluster_path.to_string_lossy()),
            quoted(&self.data_path.to_string_lossy()),
            quoted(&self.listen),
            id = self.id,
        );
        if let Some(http) = &self.http {
            text.push_str("# Where it serves /status, /metrics, /healthz and /readyz.\n");
            text.push_str(&format!("http = {}\n", quoted(http)));
        }
        text.push_str(&self.rates.render());
        text
    }

    /// The data directory, resolved.
    pub fn data(&self) -> PathBuf {
        files::resolve(&self.path, &self.data_path)
    }

    /// Where cluster.toml is, resolved.
    pub fn cluster(&self) -> PathBuf {
        files::plain(files::resolve(&self.path, &self.cluster_path))
    }

    /// That this is a replica of `cluster`, in its current incarnation.
    pub fn check_member(&self, cluster: &Cluster) -> Result<()> {
        let (file, of) = (self.path.display(), cluster.path.display());
        let Some(entry) = cluster.replicas.get(usize::from(self.id)) else {
            let last = cluster.replicas.len().saturating_sub(1);
            bail!("{file}: id is {}, and the replicas in {of} are 0 to {last}", self.id);
        };
        if entry.key == self.key.public() && entry.incarnation == self.incarnation {
            return Ok(());
        }
        let id = self.id;
        let pending = self.path.with_file_name(PENDING_REPLICA_FILE);
        ensure!(
            !pending.exists(),
            "replacing replica {id} was interrupted; finish it with `perdura replica reinit \
             --cluster {} --id {id}`",
            files::directory_of(&cluster.path).display()
        );
        bail!(
            "{file}: secret_key and incarnation {} are not those of replica {id} in {of} \
             (incarnation {}): one of the files is of another cluster, or older than the replica's \
             last replacement; take the newer ones",
            self.incarnation,
            entry.incarnation
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Scheme;

    fn file(checkpoint_mb_s: u64, scrub_interval_s: u64) -> ReplicaFile {
        ReplicaFile {
            path: "replica.toml".into(),
            id: 0,
            incarnation: 0,
            key: SecretKey::from_seed(Scheme::Ed25519, [1; 32]),
            cluster_path: "../cluster.toml".into(),
            data_path: "data".into(),
            listen: "127.0.0.1:7400".to_owned(),
            http: None,
            rates: Rates { checkpoint_mb_s, scrub_interval_s, ..Rates::default() },
        }
    }

    fn parsed(file: &ReplicaFile) -> Result<ReplicaFile> {
        ReplicaFile::parse(Path::new("replica.toml"), &file.render())
    }

    #[test]
    fn the_rate_of_checkpoints_is_kept_and_bounded() {
        for rate in [0, 20, CHECKPOINT_MB_S] {
            assert_eq!(parsed(&file(rate, 0)).unwrap().rates.checkpoint_mb_s, rate);
        }
        assert!(!file(0, 0).render().contains("checkpoint_mb_s"));
        let error = parsed(&file(CHECKPOINT_MB_S + 1, 0)).unwrap_err().to_string();
        assert!(error.contains("checkpoint_mb_s is 1000001"), "{error}");
    }

    #[test]
    fn the_interval_of_scrubs_is_kept_and_bounded_and_an_hour_where_it_is_not_given() {
        for seconds in [0, 1, SCRUB_INTERVAL_S, MOST_SCRUB_INTERVAL_S] {
            assert_eq!(parsed(&file(0, seconds)).unwrap().rates.scrub_interval_s, seconds);
        }
        assert!(!file(0, SCRUB_INTERVAL_S).render().contains("scrub_interval_s"));
        let error = parsed(&file(0, MOST_SCRUB_INTERVAL_S + 1)).unwrap_err().to_string();
        assert!(error.contains("scrub_interval_s is 2592001"), "{error}");
    }

    #[test]
    fn whom_a_replica_asks_is_kept_and_must_be_known() {
        for state_transfer in StateTransfer::ALL {
            let mut file = file(0, 0);
            file.rates.state_transfer = state_transfer;
            assert_eq!(parsed(&file).unwrap().rates.state_transfer, state_transfer);
            let said = file.render().contains("state_transfer");
            assert_eq!(said, state_transfer == StateTransfer::SingleSender);
        }
        let text = format!("{}state_transfer = \"two\"\n", file(0, 0).render());
        let error = ReplicaFile::parse(Path::new("replica.toml"), &text).unwrap_err().to_string();
        assert!(error.contains("state_transfer is \"two\"") && error.contains("single-sender"));
    }
    #[test]
    fn where_a_replica_executes_is_kept_and_must_be_known() {
        for execution in [None, Some(ExecutionMode::Inline), Some(ExecutionMode::Apart)] {
            let mut file = file(0, 0);
            file.rates.execution = execution;
            assert_eq!(parsed(&file).unwrap().rates.execution, execution);
            assert_eq!(file.render().contains("execution"), execution.is_some());
        }
        let text = format!("{}execution = \"two\"\n", file(0, 0).render());
        let error = ReplicaFile::parse(Path::new("replica.toml"), &text).unwrap_err().to_string();
        assert!(error.contains("execution is \"two\"") && error.contains("inline, thread"));
    }
}
