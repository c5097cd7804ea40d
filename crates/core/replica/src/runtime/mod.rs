//! A real replica: one event-loop thread for network, agreement and execution, a keeper thread
//! that writes the log in groups (D2), a thread for checkpoints, one for the links of transfers, and one
//! that answers HTTP.
//!
//! The event loop is a thin driver of [`crate::node::Node`]; its duties stand there.

mod checkpointer;
mod conversion;
mod device;
mod digester;
mod endpoints;
mod event_loop;
mod http;
mod keeper;
mod metrics;
mod misbehaviour_log;
mod opening;
mod pace;
mod panicked;
mod readers;
mod reaper;
mod repairs;
mod reread;
mod server;
mod slowness;
mod stage;
mod starting;
mod taken_back;
mod tap;
mod threads;
mod transfer_links;
mod watch;
mod worker;
mod workers;

pub use device::LogDevice;
use device::Paced;
pub use readers::{MOST_THREADS as MOST_READ_THREADS, THREADS as READ_THREADS};
pub use server::{OnServer, Server, ServerShutdown, Work};

use crate::node::{self, BootError, ExecutionMode, Now, RecoverError, Stages, StateTransfer};
use event_loop::EventLoop;
use opening::{Opened, Opening};
use perdura_durability::storage::CloseError;
use perdura_durability::{
    CheckpointError, Checkpoints, Expectation, FORMAT_VERSION, FileDisk, Log, OpenError, storage,
};
pub use perdura_execution::panic_is_expected;
use perdura_execution::{
    AnyService, Asked, Call, FailingMemory, Genesis, Service, ServicePanic, any_service,
};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{Configuration, ReplicaId, SecretKey, Slot, Time};
use perdura_transport::{BindError, Hub, HubConfig, Lane, MemberAddress};
use repairs::Repairs;
use starting::Ending;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tap::Tap;
use transfer_links::TransferLinks;

/// Everything that a replica is told.
pub struct ReplicaConfig {
    /// Which replica.
    pub id: ReplicaId,
    /// Its incarnation.
    pub incarnation: u32,
    /// The key of this incarnation.
    pub key: SecretKey,
    /// What the cluster agreed on.
    pub parameters: Parameters,
    /// Members and clients as the configuration file has them.
    pub genesis: Genesis,
    /// The newest members that the configuration file knows, with which a replica starts whose
    /// state is lost.
    pub latest: Configuration,
    /// `host:port` of each replica, by id.
    pub addresses: Vec<String>,
    /// `host:port` to listen on.
    pub listen: String,
    /// `host:port` of the HTTP endpoint, if there is one.
    pub http: Option<String>,
    /// The data directory.
    pub data: PathBuf,
    /// A device that the log is written as slowly as, for experiments.
    pub log_device: Option<LogDevice>,
    /// Whether it measures what the event loop's time goes to, which takes some of it.
    pub profile: bool,
    /// Lines of its log that were lost, as whoever writes that counts them: shown as a metric.
    pub lost_log_lines: Arc<AtomicU64>,
    /// How fast checkpoints are written, bytes per second; 0: as fast as it goes while the flushes
    /// of the log take what they usually take.
    pub checkpoint_bytes_per_s: u64,
    /// Within which all of the state in memory is held against its digests, and all of the newest
    /// checkpoint read again; zero: never.
    pub scrub_interval: Duration,
    /// Where it executes; none leaves that to the service.
    pub place: Option<ExecutionMode>,
    /// How many threads answer reads where it executes in one, 1 to [`MOST_READ_THREADS`].
    pub read_threads: usize,
    /// Whom it asks for a state, and for what it missed.
    pub state_transfer: StateTransfer,
    /// What it shares with other replicas of its process, if there are any; `listen` and `http` are of no meaning then.
    pub on_server: Option<OnServer>,
}

impl ReplicaConfig {
    /// Where the members of this configuration are reached.
    fn addresses_of(&self, configuration: &Configuration) -> Vec<MemberAddress> {
        let members = (0u8..).zip(configuration.members.iter().zip(&self.addresses));
        let address = |(id, (member, address)): (u8, (&Member, &String))| MemberAddress {
            id: ReplicaId(id),
            address: address.clone(),
            key: member.key,
            incarnation: member.incarnation,
        };
        members.map(address).collect()
    }
}

/// Why a replica did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A checkpoint could not be read, or not stored.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint is nothing to start from.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// Configuration or checkpoint are not usable.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The port cannot be listened on.
    #[error("{}", what_to_change(.0))]
    Bind(#[from] BindError),
    /// The system gives no random bytes or threads, or its event queue fails.
    #[error("the operating system failed: {0}")]
    System(#[from] io::Error),
    /// A write failed: what is on disk is not known, and going on would not be safe (rule D3).
    #[error(
        "stopped, because the disk failed: {0}. Everything acknowledged is safe. Free space or \
         mend the disk, then start the replica again"
    )]
    Disk(String),
    /// The service panicked, for the first time at this slot.
    #[error(
        "stopped: {0}. This is a bug of the service; no disk failed, and everything acknowledged is safe. All replicas execute the same: each \
         whose program has the bug ends there too, and it comes again at each start. The way out is a program without it, whose author needs \
         these words and the log, and then the same one for all replicas: see docs/operations/trouble.md, \"A service that panics\""
    )]
    Service(Box<ServicePanic>),
    /// The service said that it cannot go on in this replica.
    #[error(
        "stopped: {0}. That is so of this replica alone, and everything acknowledged is safe: mend what the service \
         names, then start the replica again; it executes the same commands once more"
    )]
    FatalHere(Box<ServicePanic>),
    /// The service panicked again where it had before: this program will not be started here any more.
    #[error(
        "stopped for good: {panic}. It was not the first time at this slot: {todo}", todo = mend_the_service(note)
    )]
    ServiceAgain {
        /// How it panicked.
        panic: Box<ServicePanic>,
        /// The file that says so.
        note: PathBuf,
    },
    /// It is not started, because its service panicked again and again at one slot.
    #[error(
        "not started: at slot {slot} this program ends each time, for {what}. {}",
        mend_the_service(note)
    )]
    ServiceBarred {
        /// The slot.
        slot: Slot,
        /// How it panicked when it last did.
        what: String,
        /// The file that says so.
        note: PathBuf,
    },
    /// A thread of this program panicked.
    #[error(
        "stopped: the {0} panicked. This is a bug of Perdura; no disk failed, and everything acknowledged is safe: \
         report it, with the log, and start the replica again"
    )]
    Panicked(&'static str),
    /// The node refuses to go on.
    #[error("stopped: {0}")]
    Halted(String),
    /// Its data directory is an older state of one that others heard of. None is started on it any more.
    #[error("stopped for good: {0}")]
    TakenBack(String),
    /// It is not started: its data directory was found to be an older state of one that others heard of.
    #[error(
        "not started: {what} (this was found out before, and stands in {}; remove that file only when the newer files are in its place)",
        note.display()
    )]
    Barred {
        /// How that was found out.
        what: String,
        /// The file that says so.
        note: PathBuf,
    },
    /// Its state is not the certified one. [`run`] begins anew from what is certified, and gives that
    /// up only when it happens again and again.
    #[error(
        "stopped: {what}, after {repairs} repairs within an hour. The memory, the processor or the disk \
         of this machine is damaged, or the replicas run different programs: check them, then replace \
         this replica with `perdura replica reinit`, where admin.toml is"
    )]
    Diverged {
        /// What differs.
        what: String,
        /// How often it was repaired.
        repairs: usize,
    },
    /// The run ended, but the data directory was not closed in order; it opens as after a crash.
    #[error(transparent)]
    Close(#[from] CloseError),
}

/// What to do about an address on which nothing can listen.
fn what_to_change(error: &BindError) -> String {
    match error {
        BindError::InUse { address } => format!(
            "{address}: the port is in use. Where this replica, or its server, runs already, that is well; else stop what uses the port, or \
             choose another one: in `listen` of its own file, and in cluster.toml, on every host"
        ),
        BindError::Listen { error: why, .. } if why.kind() == io::ErrorKind::PermissionDenied => {
            format!("{error}; a port below 1024 is not for everybody: choose another one")
        }
        BindError::Listen { .. } => format!(
            "{error}; `listen` in replica.toml (of a server, server.toml) has to be an address of this machine, as 0.0.0.0 is, which \
             means all of them. Where the others find it is `address` in cluster.toml, and may differ"
        ),
        _ => error.to_string(),
    }
}

/// What to do about a service that panics at every replay.
fn mend_the_service(note: &std::path::Path) -> String {
    format!(
        "No disk failed, and everything acknowledged is safe; but the command was decided, and runs again at every start. \
         Mend the service and start all replicas with the new program, the same one everywhere: it goes on from \
         there. To let this same program try once more, remove {}",
        note.display()
    )
}

/// Asks a running replica to stop in order. Clones ask the same one.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<ShutdownState>);

#[derive(Debug, Default)]
struct ShutdownState {
    requested: AtomicBool,
    waker: Mutex<Option<Arc<mio::Waker>>>,
    asked: Asked,
}

impl Shutdown {
    /// Nothing is asked yet.
    #[must_use]
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// The replica makes durable what it took on, then [`run`] returns. Not for signal handlers
    /// themselves; call it from a thread that waits for signals. A service that does not return from a
    /// command, or a disk that does not, keeps [`run`] from it: a program had better end by itself after
    /// ten seconds, as `perdura replica` does, and say [what hinders it](Shutdown::hindrance).
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
        let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            // Without it the loop notices within its next tick.
            let _ = waker.wake();
        }
    }

    /// Whether it was asked.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// What keeps a replica from stopping, in words, if it has been asked to and has not stopped.
    #[must_use]
    pub fn hindrance(&self) -> String {
        let logged = "what it had said of itself is in its log, as after a crash";
        match self.0.asked.now() {
            Some((call @ Call::Install, slot)) => format!(
                "it is restoring the state of slot {slot}, and the service has not returned from {call}: a bug of the \
                 service, or a state that takes it longer; nothing else was begun"
            ),
            Some((call, slot)) => format!(
                "the service has not returned from {call} at slot {slot}: a bug of the service, which will run \
                 again when the replica is started; {logged}"
            ),
            None => format!(
                "the service has returned, last at slot {}; a thread waits for the disk, or for a segment of the \
                 service's state; {logged}",
                self.0.asked.slot()
            ),
        }
    }

    fn attach(&self, waker: Arc<mio::Waker>) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }
}

/// The clocks of a process.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Instant,
}

impl Clock {
    fn now(self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Starts at a day, so that no time-out ever reaches back before 0.
        let monotonic_ms = 86_400_000 + self.origin.elapsed().as_millis() as u64;
        Now { monotonic_ms, wall: Time(wall.as_millis() as u64) }
    }
}

fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    perdura_protocol::ids::from_hex(&digits)
        .ok_or_else(|| io::Error::other("the boot id of this machine does not read"))
}

/// What nobody wants but who measures it.
fn experiments(config: &ReplicaConfig) -> Vec<String> {
    let device = config.log_device.map(|device| {
        format!("the log is written no faster than by a simulated device ({device})")
    });
    let alone = (config.state_transfer == StateTransfer::SingleSender).then(|| {
        "state_transfer is single-sender, a baseline: state and log come from one replica"
            .to_owned()
    });
    let profile = config.profile.then(|| "the event loop measures its stages".to_owned());
    device.into_iter().chain(profile).chain(alone).collect()
}

/// Runs a replica until `shutdown` is requested. Blocks.
///
/// # Errors
/// [`RunError`], each with what to do about it.
pub fn run<S: Service>(
    config: ReplicaConfig,
    make_service: impl Fn() -> S + Send + Sync + 'static,
    shutdown: &Shutdown,
) -> Result<(), RunError> {
    live(config, Arc::new(any_service(make_service)), shutdown, Tap::default())
}

/// Runs one for tests, in whose name `interceptor` speaks, until it repairs itself, and in whose memory bits flip when that says so.
///
/// # Errors
/// As [`run`].
pub fn run_tapped<S: Service + FailingMemory>(
    config: ReplicaConfig,
    interceptor: Box<dyn node::Interceptor>,
    make_service: impl Fn() -> S + Send + Sync + 'static,
    shutdown: &Shutdown,
) -> Result<(), RunError> {
    live(config, Arc::new(any_service(make_service)), shutdown, Tap::new::<S>(interceptor))
}

/// One life after the other, the first with a tap.
fn live(
    config: ReplicaConfig,
    make_service: MakeService,
    shutdown: &Shutdown,
    tap: Tap,
) -> Result<(), RunError> {
    let config = Arc::new(config);
    let mut tap = Some(tap);
    let mut shared = config.on_server.as_ref().map(|on| (on.published(), None));
    let mut repairs = Repairs::default();
    panicked::check(&config.data)?;
    taken_back::check(&config.data)?;
    loop {
        let start =
            |shared: &mut _| begin(&config, &make_service, shared, (repairs.clone(), shutdown));
        let lived = start(&mut shared).and_then(|life| {
            let Some(mut life) = life else { return Ok(Ended::Stopped) };
            life.event_loop.set_tap(tap.take().unwrap_or_default());
            life.run(shutdown)
        });
        let lived = lived.map_err(|error| panicked::note(&config.data, error));
        match lived? {
            Ended::Diverged if !shutdown.requested() => repairs.begin(Instant::now()),
            Ended::Diverged | Ended::Stopped => return Ok(()),
        }
        tracing::warn!("begins anew from what is certified");
    }
}

/// How a run ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// As asked.
    Stopped,
    /// Its state was not the certified one, and what is on disk is right now.
    Diverged,
}

/// What a data directory is on.
type DataDisk = Paced<FileDisk>;

/// What a replica shows of itself, through all of its lives; and what serves that, if that is not its server's.
type Published = (http::Shared, Option<http::Serving>);

type MakeService = Arc<dyn Fn() -> AnyService + Send + Sync>;

/// Bytes that nobody can guess.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Files that a process may have open so that all bounds of links are reached before that one.
const ENOUGH_FILES: u64 = 4096;

/// Of these, what the process has for its HTTP port and its disks, and each of its members besides: whoever connects is turned away before they go short.
const OWN_FILES: u64 = 128;
const FILES_OF_A_MEMBER: u64 = 14;

/// How many connections each of the members takes of a process that may have so many files open; none if that is enough.
fn most_sockets(files: u64, members: u64) -> Option<usize> {
    let own = (OWN_FILES + FILES_OF_A_MEMBER * members).min(files / 2);
    let each = (files - own) / members;
    (files / members < ENOUGH_FILES).then(|| usize::try_from(each).unwrap_or(usize::MAX))
}

fn links_of(config: &ReplicaConfig, entropy: &[u8; 32]) -> HubConfig {
    HubConfig {
        id: config.id,
        incarnation: config.incarnation,
        cluster: config.parameters.cluster,
        parameters: config.parameters.digest(),
        key: config.key.clone(),
        listen: config.listen.clone(),
        named: config.parameters.map.is_some(),
        seed: u64::from_le_bytes([
            entropy[0], entropy[1], entropy[2], entropy[3], entropy[4], entropy[5], entropy[6],
            entropy[7],
        ]),
    }
}

/// Its links to all, of which it listens for new ones, and its transfer links.
fn hubs(
    config: &ReplicaConfig,
    links: &HubConfig,
    origin: Instant,
) -> Result<(Hub, Hub), BindError> {
    let hub = match &config.on_server {
        Some(own) => Hub::behind(links, own.seat(), origin)?,
        None => Hub::bind(links, origin)?,
    };
    // Its pauses between attempts are not those of the other.
    let links = HubConfig { seed: !links.seed, ..links.clone() };
    let transfers = Hub::dialling(&links, Lane::Transfer, origin)?;
    Ok((hub, transfers))
}

/// This run comes to nothing: the data directory is closed as after any other, so that it is said nowhere that one goes on.
fn give_up(log: Log<DataDisk>, checkpoints: Checkpoints<DataDisk>, why: RunError) -> RunError {
    if let Err(error) = storage::close(log, checkpoints) {
        tracing::error!("the data directory was not closed in order: {error}");
    }
    why
}

/// Opens the data directory, and whatever else there is to open; none when the replica is asked to stop before that.
fn begin(
    config: &Arc<ReplicaConfig>,
    make_service: &MakeService,
    published: &mut Option<Published>,
    (repairs, shutdown): (Repairs, &Shutdown),
) -> Result<Option<Life>, RunError> {
    let clock = Clock { origin: Instant::now() };
    let expectation = Expectation {
        cluster: config.parameters.cluster,
        replica: config.id,
        incarnation: config.incarnation,
        parameters: config.parameters.digest(),
        boot_id: boot_id()?,
        nonce: random()?,
    };
    let entropy: [u8; 32] = random()?;
    let links = links_of(config, &entropy);
    let (mut hub, mut transfers) = hubs(config, &links, clock.origin)?;
    if let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        let sharers = config.on_server.as_ref().map_or(1, OnServer::sharers);
        if let Some(sockets) = most_sockets(files, sharers) {
            tracing::warn!(
                "this process may have {files} files open, so {} takes {sockets} connections at most; raise the limit \
                 (`ulimit -n`, LimitNOFILE) to {}",
                if sharers > 1 { "each of its members" } else { "it" },
                ENOUGH_FILES * sharers
            );
            hub.limit_sockets(sockets);
        }
    }
    hub.turn_away(Some("this replica is starting"));
    let shared = match published {
        Some((shared, _)) => Arc::clone(shared),
        None => {
            let shared = http::Shared::default();
            let served = || http::Served::One(Arc::clone(&shared));
            let address = config.http.as_ref();
            let serving = address.map(|address| http::serve(address, served())).transpose()?;
            Arc::clone(&published.insert((shared, serving)).0)
        }
    };
    let starting = shared.start();
    let _ending = Ending(starting.clone());
    starting.begin(clock.origin);
    starting.tell()?;
    let mut disk = Paced::new(FileDisk::open(&config.data)?, config.log_device, starting.clone());
    let format = storage::format_of(&mut disk, &expectation)?;
    if format < FORMAT_VERSION {
        let stops = || shutdown.requested();
        if !conversion::is_due(format, config, (&links, &mut hub), &starting, stops)? {
            return Ok(None);
        }
    }
    starting.reads(&config.data, Instant::now());
    let opening = Opening {
        config: Arc::clone(config),
        expectation,
        entropy,
        make_service: Arc::clone(make_service),
        asked: shutdown.0.asked.clone(),
        starting,
    };
    let opened = opening::beside(&mut hub, shutdown, move |stops| opening.open(disk, stops))?;
    let Some(Opened { boot, replayed, log, checkpoints }) = opened else { return Ok(None) };
    hub.announce(boot);
    transfers.announce(boot);
    let transfer_links = TransferLinks::new(transfers, config.parameters.faults.n());
    // What a minute took to replay is no minute in which it waited for others.
    let mut node = match panicked::catching(|| Ok(replayed.start(clock.now()))) {
        Ok(node) => node,
        Err(error) => return Err(give_up(log, checkpoints, error)),
    };
    node.set_read_threads(config.read_threads);
    if node.keeps_states() {
        hub.keeps_states();
    }
    hub.turn_away(None);
    if config.profile {
        *node.stages() = Stages::by(thread_nanoseconds);
    }
    tracing::info!(
        replica = %config.id,
        listen = %hub.local_address(),
        executed = %node.report().executed,
        "replica starts"
    );
    let config = Arc::clone(config);
    let event_loop = EventLoop::start(config, clock, (hub, transfer_links), node, shared, repairs);
    Ok(Some(Life { event_loop, log, checkpoints }))
}

/// Processor time of the thread that asks.
fn thread_nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// From the opening of the data directory to its closing.
struct Life {
    event_loop: EventLoop,
    log: Log<DataDisk>,
    checkpoints: Checkpoints<DataDisk>,
}

impl Life {
    fn run(self, shutdown: &Shutdown) -> Result<Ended, RunError> {
        shutdown.attach(self.event_loop.waker());
        self.event_loop.run(self.log, self.checkpoints, shutdown)
    }
}
