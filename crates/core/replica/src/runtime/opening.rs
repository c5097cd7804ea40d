//! From a data directory to what a node starts from: its files are read, the state is restored, and what the log holds beyond it is executed. That
//! may take minutes, so it has a thread of its own. Meanwhile who connects is told that this replica starts: clients go to others at once, and
//! no other replica counts on it. For what it said before it ended was of the state behind its log, so until it has that again it says nothing.

use super::starting::Starting;
use super::{DataDisk, MakeService, ReplicaConfig, RunError, Shutdown, give_up, panicked, threads};
use crate::node::{self, Boot, BootError, Replayed};
use perdura_durability::{Checkpoints, Expectation, Log, StorageOptions, storage};
use perdura_execution::Asked;
use perdura_protocol::{BootId, Digest, Scheme};
use perdura_transport::{Hello, Hub};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a start takes before those who connect are told of it; most take no longer, and nobody has to come again.
const SOON: Duration = Duration::from_secs(1);

/// Between two looks at whether it has ended, or is to.
const TURN: Duration = Duration::from_millis(20);

/// What there is to open.
pub(super) struct Opening {
    pub config: Arc<ReplicaConfig>,
    pub expectation: Expectation,
    /// Bytes that nobody can guess.
    pub entropy: [u8; 32],
    pub make_service: MakeService,
    /// The service is asked here.
    pub asked: Asked,
    pub starting: Starting,
}

/// An opened data directory.
pub(super) struct Opened {
    pub boot: BootId,
    pub replayed: Replayed,
    pub log: Log<DataDisk>,
    pub checkpoints: Checkpoints<DataDisk>,
}

/// Opens beside a hub that admits nobody; none when it is asked to stop before that has ended. A data directory is closed then.
///
/// # Errors
/// As the opening; and when the system gives no thread, or the hub fails: then too the directory is closed.
pub(super) fn beside(
    hub: &mut Hub,
    shutdown: &Shutdown,
    open: impl FnOnce(&dyn Fn() -> bool) -> Result<Opened, RunError> + Send + 'static,
) -> Result<Option<Opened>, RunError> {
    let (begun, waker) = (Instant::now(), hub.waker());
    let failed = Arc::new(AtomicBool::new(false));
    let (asked, fails) = (shutdown.clone(), Arc::clone(&failed));
    let thread = threads::spawn("opening", move || {
        let opened = open(&|| asked.requested() || fails.load(Ordering::SeqCst));
        // So that the other thread looks at once.
        let _ = waker.wake();
        opened
    })?;
    let mut events = Vec::new();
    let mut polled = Ok(());
    while !thread.is_finished() && polled.is_ok() {
        if begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        // Nobody is admitted, so nothing comes of it.
        polled = hub.poll(Instant::now(), Some(TURN), &mut |_: &Hello, _| Ok(()), &mut events);
        events.clear();
    }
    failed.store(polled.is_err(), Ordering::SeqCst);
    let opened = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    match (polled, opened) {
        (Err(error), Ok(Opened { log, checkpoints, .. })) => {
            Err(give_up(log, checkpoints, error.into()))
        }
        (Err(error), Err(_)) => Err(error.into()),
        (Ok(()), Err(RunError::Boot(BootError::Stopped))) => Ok(None),
        (Ok(()), opened) => opened.map(Some),
    }
}

impl Opening {
    /// Until `stops`.
    pub fn open(self, disk: DataDisk, stops: &dyn Fn() -> bool) -> Result<Opened, RunError> {
        let Opening { config, expectation, entropy, make_service, asked, starting } = self;
        // Only now: opening the directory notes that this replica has run, and after that it may be
        // that it can never run again (durability `none`).
        let parameters = &config.parameters;
        let (usual_bytes, most_bytes) =
            (parameters.checkpoint_bytes, parameters.most_checkpoint_bytes());
        let options = StorageOptions::for_checkpoints_of(usual_bytes, most_bytes);
        let opened = storage::open(disk, &expectation, &options)?;
        let boot_id = opened.boot;
        if stops() {
            return stopped(opened.log, opened.checkpoints);
        }
        let recovered = match node::recover(opened) {
            Ok(recovered) => recovered,
            Err(unusable) => {
                let node::Unusable { error, log, checkpoints } = *unusable;
                return Err(give_up(log, checkpoints, error.into()));
            }
        };
        for warning in &recovered.warnings {
            tracing::warn!("{warning}");
        }
        for experiment in super::experiments(&config) {
            tracing::warn!("experiment: {experiment}");
        }
        let last = recovered.found.last_slot();
        let boot = Boot {
            me: config.id,
            key: config.key.clone(),
            scheme: Scheme::Ed25519,
            parameters: config.parameters.clone(),
            genesis: config.genesis.clone(),
            latest: config.latest.clone(),
            entropy: Digest::of(&entropy).0,
            make_service: Box::new(move || make_service()),
            found: recovered.found,
            backlog_bytes: node::BACKLOG_BYTES,
            place: config.place,
            state_transfer: config.state_transfer,
        };
        // It runs what the log holds.
        starting.runs(asked.clone(), last);
        let (log, checkpoints) = (recovered.log, recovered.checkpoints);
        match panicked::catching(|| Ok(boot.replay(asked, stops)?)) {
            Err(RunError::Boot(BootError::Stopped)) => stopped(log, checkpoints),
            Ok(replayed) => Ok(Opened { boot: boot_id, replayed, log, checkpoints }),
            Err(error) => Err(give_up(log, checkpoints, error)),
        }
    }
}

/// As it was asked to: that the directory could not be closed in order is said.
fn stopped(log: Log<DataDisk>, checkpoints: Checkpoints<DataDisk>) -> Result<Opened, RunError> {
    storage::close(log, checkpoints)?;
    Err(BootError::Stopped.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{ClusterId, ReplicaId, SecretKey};
    use perdura_transport::{HubConfig, MemberAddress, PROTOCOL_VERSION, version_of};

    /// One that takes for ever, until it is asked to stop.
    #[test]
    fn who_connects_meanwhile_is_answered_and_it_ends_when_asked() {
        let key = |id: u8| SecretKey::from_seed(Scheme::Ed25519, [id; 32]);
        let links = move |id: u8| HubConfig {
            id: ReplicaId(id),
            incarnation: 0,
            cluster: ClusterId([1; 16]),
            parameters: Digest::ZERO,
            key: key(id),
            listen: "127.0.0.1:0".to_owned(),
            named: false,
            seed: 7,
        };
        let mut hub = Hub::bind(&links(0), Instant::now()).unwrap();
        let (id, incarnation) = (ReplicaId(0), 0);
        let address = hub.local_address().to_string();
        let member = MemberAddress { id, address, key: key(0).public(), incarnation };
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let other = std::thread::spawn(move || {
            // It is turned away, by one who answers.
            let version = version_of(&links(1), &member);
            asked.request();
            version.unwrap()
        });
        let opened = beside(&mut hub, &shutdown, |stops| {
            while !stops() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(BootError::Stopped.into())
        });
        assert!(matches!(opened, Ok(None)));
        assert_eq!(other.join().unwrap(), PROTOCOL_VERSION);
    }
}
