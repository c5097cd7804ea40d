//! The event loop: one thread for network, agreement and execution, so that no request hops
//! between threads. It moves bytes, time and completions, and decides nothing.

use super::checkpointer::{self, Checkpointer};
use super::complaints::Complaints;
use super::digester::Digester;
use super::http::{CheckpointBytes, Shared, Snapshot};
use super::keeper::{self, Completion, Completions, Keeper};
use super::pace::FlushWatch;
use super::repairs::Repairs;
use super::{Clock, Ended, ReplicaConfig, RunError, Shutdown, experiments};
use crate::node::{Input, Node, NotAdmitted, Output, Peer, Report, State};
use bytes::Bytes;
use perdura_agreement::timing::TICK_MS;
use perdura_durability::{CheckpointError, Checkpoints, FileDisk, Log, storage};
use perdura_execution::Service;
use perdura_protocol::configuration::{Durability, Schedule};
use perdura_protocol::{Configuration, PublicKey, ReplicaId, Slot};
use perdura_transport::Peer as LinkPeer;
use perdura_transport::{
    Admission, Hello, Hub, HubEvent, MemberAddress, Misbehaviour, Refusal, SendError, Stats,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two reports to the HTTP thread.
const REPORT_MS: u64 = 100;

/// How long a replica that was asked to stop waits for what it took on to become durable.
const DRAIN: Duration = Duration::from_secs(5);

/// What follows the reason of a thread that refused what it was given.
const NOT_THE_DISK: &str = "The disk did not fail, and everything acknowledged is safe. Test the memory \
    of this machine, start the replica again (it goes on from its log and the checkpoint before), \
    and report this";

pub(super) struct EventLoop<S> {
    config: Arc<ReplicaConfig>,
    clock: Clock,
    hub: Hub,
    node: Node<S>,
    shared: Shared,
    repairs: Repairs,
    // Of the states on disk, when this one is not the certified one.
    trusted: Slot,
    completions: Completions,
    reported_ms: u64,
    appended: u64,
    persisted: u64,
    in_memory: bool,
    complaints: Complaints,
    checkpoints: CheckpointBytes,
    #[cfg(feature = "misbehave")]
    intercept: super::intercept::Intercept,
}

struct Workers {
    keeper: Keeper,
    checkpointer: Checkpointer,
    digester: Digester,
}

fn node_peer(peer: LinkPeer) -> Peer {
    match peer {
        LinkPeer::Replica(id) => Peer::Replica(id),
        LinkPeer::Client { connection, key } => Peer::Client { connection, key },
    }
}

fn link_peer(peer: Peer) -> LinkPeer {
    match peer {
        Peer::Replica(id) => LinkPeer::Replica(id),
        Peer::Client { connection, key } => LinkPeer::Client { connection, key },
    }
}

impl<S: Service> EventLoop<S> {
    pub fn start(
        config: Arc<ReplicaConfig>,
        clock: Clock,
        hub: Hub,
        node: Node<S>,
        shared: Shared,
        repairs: Repairs,
    ) -> EventLoop<S> {
        let completions =
            Completions { waiting: Arc::new(Mutex::new(Vec::new())), waker: hub.waker() };
        let in_memory = config.parameters.durability == Durability::None;
        EventLoop {
            config,
            clock,
            hub,
            node,
            shared,
            repairs,
            trusted: Slot(0),
            completions,
            reported_ms: 0,
            appended: 0,
            persisted: 0,
            in_memory,
            complaints: Complaints::default(),
            checkpoints: CheckpointBytes::default(),
            #[cfg(feature = "misbehave")]
            intercept: super::intercept::Intercept::default(),
        }
    }

    pub fn waker(&self) -> Arc<mio::Waker> {
        self.hub.waker()
    }

    #[cfg(feature = "misbehave")]
    pub fn lie(&mut self, interceptor: Option<Box<dyn crate::node::Interceptor>>) {
        self.intercept = super::intercept::Intercept::new(interceptor);
    }

    pub fn run(
        mut self,
        log: Log<FileDisk>,
        checkpoints: Checkpoints<FileDisk>,
        shutdown: &Shutdown,
    ) -> Result<Ended, RunError> {
        let (watch, completions) = (FlushWatch::default(), &self.completions);
        let (device, rate) = (self.config.log_device, self.config.checkpoint_bytes_per_s);
        let keeper = Keeper::start(log, device, watch.clone(), completions.clone())?;
        let scrub = self.config.scrub_interval;
        let checkpointer =
            Checkpointer::start(checkpoints, rate, scrub, watch, completions.clone())?;
        let digester = Digester::start(scrub, completions.clone())?;
        digester.hold(self.node.machine().snapshot());
        let workers = Workers { keeper, checkpointer, digester };
        let mut events = Vec::new();
        let mut stopping: Option<Instant> = None;
        let mut outcome = Ok(());
        loop {
            outcome = outcome.and_then(|()| self.round(&mut events, &workers));
            if outcome.is_err() {
                break;
            }
            if shutdown.requested() && stopping.is_none() {
                tracing::info!("asked to stop: making durable what was taken on");
                stopping = Some(Instant::now());
            }
            let drained = self.persisted >= self.appended;
            if stopping.is_some_and(|since| drained || since.elapsed() > DRAIN) {
                break;
            }
        }
        self.end(outcome, workers, shutdown)
    }

    /// In order, if there is nothing wrong; else at once, for a thread may be stuck in the disk that
    /// failed, and as long as this replica's links stand the others take it for alive.
    fn end(
        self,
        outcome: Result<(), RunError>,
        workers: Workers,
        shutdown: &Shutdown,
    ) -> Result<Ended, RunError> {
        let error = match outcome {
            Ok(()) => return self.close(workers),
            Err(error @ RunError::Diverged { .. }) if !self.stays_down() => {
                if self.discard(workers)? {
                    return Ok(Ended::Diverged);
                }
                error
            }
            Err(error) => error,
        };
        self.stand_still(&error, shutdown);
        Err(error)
    }

    fn close(self, workers: Workers) -> Result<Ended, RunError> {
        workers.digester.stop();
        let (keeper, checkpointer) = (workers.keeper.stop(), workers.checkpointer.stop());
        failure(&self.completions.take())?;
        if let (Some(log), Some(checkpoints)) = (keeper, checkpointer) {
            storage::close(log, checkpoints)?;
        }
        tracing::info!("stopped");
        Ok(Ended::Stopped)
    }

    /// What is in memory only cannot be begun anew from.
    fn stays_down(&self) -> bool {
        self.in_memory || !self.repairs.may_begin(Instant::now())
    }

    /// The state is not the certified one: what was taken on is made durable, and what is stored of
    /// states after the newest certified one counts no more. False if that one is not on this disk:
    /// then there is nothing to begin anew from.
    fn discard(&self, workers: Workers) -> Result<bool, RunError> {
        let report = Report { state: State::Repairing, leader: false, ..self.node.report() };
        self.publish(report, Stats::default());
        workers.digester.stop();
        let (keeper, checkpointer) = (workers.keeper.stop(), workers.checkpointer.stop());
        failure(&self.completions.take())?;
        let (Some(mut log), Some(checkpoints)) = (keeper, checkpointer) else { return Ok(false) };
        log.flush().map_err(|error| RunError::Disk(error.to_string()))?;
        let trusted = self.trusted;
        match checkpoints.distrust_after(trusted) {
            Ok(discarded) => {
                tracing::warn!(%trusted, discarded, "later states on disk count no more");
                Ok(true)
            }
            Err(CheckpointError::Unknown { .. }) => {
                tracing::error!(%trusted, "no certified state is on this disk");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A node that must not go on says and answers nothing any more. When the process ends is up to
    /// the operator, if that is what the node wants; its last report stays to be seen till then.
    fn stand_still(self, error: &RunError, shutdown: &Shutdown) {
        let report = self.node.report();
        let state = if report.state == State::Diverged { State::Diverged } else { State::Stopped };
        self.publish(Report { state, leader: false, ..report }, Stats::default());
        drop(self.hub);
        let lasts = matches!(error, RunError::Halted(_) | RunError::Diverged { .. });
        while lasts && !shutdown.requested() {
            std::thread::sleep(Duration::from_millis(REPORT_MS));
        }
    }

    /// One round: wait, take in everything that is there, let the node act, send.
    fn round(&mut self, events: &mut Vec<HubEvent>, workers: &Workers) -> Result<(), RunError> {
        let mut door = Door { node: &self.node };
        // What is left to do waits behind what has arrived, not the reverse.
        let timeout = if self.node.has_more() { 0 } else { TICK_MS };
        let timeout = Duration::from_millis(timeout);
        self.hub.poll(Instant::now(), Some(timeout), &mut door, events)?;
        let now = self.clock.now();
        let completions = self.completions.take();
        failure(&completions)?;
        for completion in completions {
            let input = match completion {
                Completion::Persisted(mark) => {
                    self.persisted = self.persisted.max(mark);
                    Input::Persisted(mark)
                }
                Completion::DecisionsRead { to, decisions } => {
                    Input::DecisionsRead { to, decisions }
                }
                Completion::CheckpointStored { manifest, stored } => {
                    self.checkpoints.add(stored);
                    Input::CheckpointStored { manifest }
                }
                Completion::CheckpointDamaged => {
                    self.checkpoints.damages += 1;
                    continue;
                }
                Completion::StateDigested { manifest, digest } => {
                    Input::StateDigested { manifest, digest }
                }
                Completion::StateDamaged(what) => Input::StateDamaged { what },
                Completion::Refused(_) | Completion::Failed(_) => continue,
            };
            let before = self.node.machine().slot();
            let stored = matches!(input, Input::CheckpointStored { .. });
            self.node.handle(now, input);
            if stored && self.node.machine().slot() > before {
                // A state from others has taken the place of the one that is scrubbed.
                workers.digester.hold(self.node.machine().snapshot());
            }
            self.make_room(workers)?;
        }
        for event in events.drain(..) {
            let input = match event {
                HubEvent::LinkUp { peer } => {
                    note_link(peer, "up", "");
                    Input::LinkUp(node_peer(peer))
                }
                HubEvent::LinkDown { peer, reason } => {
                    note_link(peer, "down", &reason.to_string());
                    Input::LinkDown(node_peer(peer))
                }
                HubEvent::Message { peer, message } => {
                    Input::Message { peer: node_peer(peer), bytes: message }
                }
            };
            #[cfg(feature = "misbehave")]
            if !self.intercept.hears(now, &input) {
                continue;
            }
            self.node.handle(now, input);
            self.make_room(workers)?;
        }
        self.node.flush(now);
        while self.carry_out(workers)? {
            // What is durable at once (durability `none`) lets out more.
            self.node.flush(now);
        }
        // A baseline that stops for its checkpoint writes it at once, unless it was given a rate.
        let stopped = self.config.checkpoint_bytes_per_s == 0 && self.node.stands_still();
        workers.checkpointer.hurry(stopped || self.node.checkpoint_is_late());
        #[cfg(feature = "misbehave")]
        for (peer, bytes) in self.intercept.due(now) {
            self.send(peer, bytes);
        }
        #[cfg(feature = "misbehave")]
        if let Some(at) = self.intercept.flips(now)
            && self.node.flip_bit(at)
        {
            tracing::warn!("a bit of the state was flipped");
            // What is shared with an earlier snapshot would have been flipped there too.
            workers.digester.hold(self.node.machine().snapshot());
        }
        self.hub.flush();
        if now.monotonic_ms >= self.reported_ms + REPORT_MS {
            self.reported_ms = now.monotonic_ms;
            self.report();
            self.close_revoked();
        }
        Ok(())
    }

    /// Lets answers out before more questions come in.
    fn make_room(&mut self, workers: &Workers) -> Result<(), RunError> {
        if self.node.is_full() {
            self.carry_out(workers)?;
            self.hub.flush();
        }
        Ok(())
    }

    /// Carries out what the node wants; true if that gave it new input.
    fn carry_out(&mut self, workers: &Workers) -> Result<bool, RunError> {
        let mut again = false;
        while let Some(output) = self.node.next_output() {
            match output {
                Output::Send { peers, bytes } => {
                    #[cfg(feature = "misbehave")]
                    if self.intercept.says(self.clock.now(), &peers, &bytes) {
                        continue;
                    }
                    for peer in peers {
                        self.send(peer, bytes.clone());
                    }
                }
                Output::Append { mark, .. } if self.in_memory => {
                    let now = self.clock.now();
                    self.node.handle(now, Input::Persisted(mark));
                    again = true;
                }
                Output::Append { records, mark } => {
                    self.appended = mark;
                    workers.keeper.send(keeper::Job::Append { records, mark });
                }
                Output::Truncate(slot) => workers.keeper.send(keeper::Job::Truncate(slot)),
                Output::ReadDecisions { to, wanted } => {
                    workers.keeper.send(keeper::Job::Read { to, wanted });
                }
                Output::DigestState { snapshot } => workers.digester.digest(snapshot),
                Output::StoreCheckpoint { snapshot, keep } => {
                    // With another schedule it has been digested, and is held since.
                    if self.config.parameters.schedule != Schedule::Sequential {
                        workers.digester.hold(snapshot.clone());
                    }
                    workers.checkpointer.send(checkpointer::Job::Store { snapshot, keep });
                }
                Output::InstallCheckpoint { manifest, pieces, keep } => {
                    tracing::info!(slot = %manifest.slot, pieces = pieces.len(), "state received");
                    workers.checkpointer.send(checkpointer::Job::Install {
                        manifest,
                        pieces,
                        keep,
                    });
                }
                Output::Members(configuration) => self.set_members(&configuration),
                Output::Misbehaved { peer, what } => self.punish(peer, &what),
                Output::Diverged { trusted, what } => {
                    tracing::error!("{what}: memory or disk of this replica is damaged");
                    self.trusted = trusted;
                    let repairs = self.repairs.recent(Instant::now());
                    return Err(RunError::Diverged { what, repairs });
                }
                Output::Halt(reason) => {
                    tracing::error!("{reason}");
                    return Err(RunError::Halted(reason));
                }
            }
        }
        Ok(again)
    }

    fn send(&mut self, peer: Peer, bytes: Bytes) {
        match self.hub.send(&link_peer(peer), bytes) {
            Ok(()) | Err(SendError::NoLink) => {}
            Err(error) => tracing::debug!(?peer, "message dropped: {error}"),
        }
    }

    fn set_members(&mut self, configuration: &Configuration) {
        let members: Vec<MemberAddress> = (0u8..)
            .zip(&configuration.members)
            .zip(&self.config.addresses)
            .map(|((id, member), address)| MemberAddress {
                id: ReplicaId(id),
                address: address.clone(),
                key: member.key,
                incarnation: member.incarnation,
            })
            .collect();
        let own = configuration.members.get(self.config.id.index());
        if own.is_some_and(|member| member.key != self.config.key.public()) {
            tracing::error!(
                "this replica was replaced by incarnation {}: nobody listens to this one any more",
                own.map_or(0, |member| member.incarnation)
            );
        }
        #[cfg(feature = "misbehave")]
        self.intercept.learn(configuration);
        self.hub.set_members(&members);
    }

    fn punish(&mut self, peer: Peer, what: &str) {
        match peer {
            Peer::Replica(id) => {
                let now_ms = self.clock.now().monotonic_ms;
                match self.complaints.note(now_ms, peer, what) {
                    Some(0) => tracing::warn!(replica = %id, "misbehaves: {what}"),
                    Some(more) => {
                        tracing::warn!(replica = %id, "misbehaves: {what} ({more} times more before)");
                    }
                    None => {}
                }
            }
            Peer::Client { connection, .. } => {
                tracing::debug!(connection, "client misbehaves: {what}");
                self.hub.misbehaved(&link_peer(peer), Misbehaviour::MalformedMessage);
            }
        }
    }

    /// A client whose key was revoked loses its links.
    fn close_revoked(&mut self) {
        let revoked: Vec<LinkPeer> = self
            .hub
            .clients()
            .filter(|peer| match peer {
                LinkPeer::Client { key, .. } => {
                    self.node.admit_client(*key) == Err(NotAdmitted::Unknown)
                }
                LinkPeer::Replica(_) => false,
            })
            .collect();
        for peer in revoked {
            self.hub.close(&peer, "its key was revoked");
        }
    }

    fn report(&self) {
        self.publish(self.node.report(), self.hub.stats());
    }

    fn publish(&self, report: Report, network: Stats) {
        let experiments = experiments(&self.config);
        let (checkpoints, at) = (self.checkpoints, Instant::now());
        let repairs = self.repairs.total();
        let snapshot = Snapshot { report, network, checkpoints, repairs, experiments, at };
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }
}

/// What a thread reported before it ended.
fn failure(completions: &[Completion]) -> Result<(), RunError> {
    completions.iter().try_for_each(|completion| match completion {
        Completion::Failed(reason) => Err(RunError::Disk(reason.clone())),
        Completion::Refused(reason) => {
            let reason = format!("{reason}. {NOT_THE_DISK}");
            tracing::error!("{reason}");
            Err(RunError::Halted(reason))
        }
        _ => Ok(()),
    })
}

/// Who may come in, and who has to wait.
struct Door<'a, S> {
    node: &'a Node<S>,
}

impl<S: Service> Admission for Door<'_, S> {
    fn admit(&mut self, _: &Hello, key: PublicKey) -> Result<(), Refusal> {
        self.node.admit_client(key).map_err(|reason| Refusal(reason.to_string()))
    }

    fn holds_back(&self, peer: &LinkPeer) -> bool {
        self.node.holds_back(node_peer(*peer))
    }
}

fn note_link(peer: LinkPeer, change: &str, reason: &str) {
    match peer {
        LinkPeer::Replica(id) => tracing::info!(replica = %id, "link {change} {reason}"),
        LinkPeer::Client { connection, .. } => {
            tracing::debug!(connection, "client {change} {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{BACKLOG_BYTES, Boot, Found};
    use perdura_durability::{Expectation, Identity, Options};
    use perdura_execution::Genesis;
    use perdura_protocol::configuration::{Member, Parameters};
    use perdura_protocol::{ClusterId, Faults, Scheme, SecretKey, Slot};
    use perdura_store::Store;
    use perdura_transport::HubConfig;

    fn config() -> ReplicaConfig {
        let key = |seed| SecretKey::from_seed(Scheme::Ed25519, [seed; 32]);
        let member = |seed| Member { key: key(seed).public(), incarnation: 0 };
        let members = (10..13).map(member).collect();
        let configuration = Configuration { id: 0, from_slot: Slot(0), members };
        ReplicaConfig {
            id: ReplicaId(0),
            incarnation: 0,
            key: key(10),
            parameters: Parameters {
                cluster: ClusterId([9; 16]),
                faults: Faults::new(1, 0).unwrap(),
                durability: Durability::Sync,
                depth: 32,
                checkpoint_interval: 64,
                checkpoint_bytes: 1 << 24,
                max_skew_ms: 500,
                state_limit_bytes: 1 << 30,
                schedule: Default::default(),
                service: Default::default(),
                administrator: key(1).public(),
            },
            genesis: Genesis { configuration: configuration.clone(), clients: Vec::new() },
            latest: configuration,
            addresses: vec!["127.0.0.1:1".into(); 3],
            listen: "127.0.0.1:0".into(),
            http: None,
            data: "unused".into(),
            log_device: None,
            checkpoint_bytes_per_s: 0,
            scrub_interval: Duration::from_secs(3600),
            state_transfer: Default::default(),
            #[cfg(feature = "misbehave")]
            interceptor: None,
        }
    }

    /// Of a new data directory.
    fn checkpoints(root: &std::path::Path) -> Checkpoints<FileDisk> {
        let parameters = config().parameters;
        let identity = Identity {
            cluster: parameters.cluster,
            replica: ReplicaId(0),
            incarnation: 0,
            parameters: parameters.digest(),
            durability: parameters.durability,
            checksum_key: [1; 32],
            must_recover: None,
        };
        let mut disk = FileDisk::create_directory(root).unwrap();
        storage::format(&mut disk, &identity).unwrap();
        let expectation = Expectation {
            cluster: identity.cluster,
            replica: identity.replica,
            incarnation: 0,
            parameters: identity.parameters,
            boot_id: [2; 16],
        };
        storage::open(disk, &expectation, &Options::default()).unwrap().checkpoints
    }

    fn event_loop() -> EventLoop<Store> {
        let config = config();
        let clock = Clock { origin: Instant::now() };
        let hub = HubConfig {
            id: config.id,
            incarnation: 0,
            cluster: config.parameters.cluster,
            parameters: config.parameters.digest(),
            key: config.key.clone(),
            listen: config.listen.clone(),
            seed: 1,
        };
        let hub = Hub::bind(&hub, clock.origin).unwrap();
        let boot = Boot {
            me: config.id,
            key: config.key.clone(),
            scheme: Scheme::Ed25519,
            parameters: config.parameters.clone(),
            genesis: config.genesis.clone(),
            latest: config.latest.clone(),
            entropy: [1; 32],
            make_service: Box::new(|| Store::new(1 << 30)),
            found: Found::default(),
            backlog_bytes: BACKLOG_BYTES,
            state_transfer: Default::default(),
        };
        let node = Node::boot(boot, clock.now()).unwrap();
        let shared = Shared::default();
        EventLoop::start(Arc::new(config), clock, hub, node, shared, Repairs::default())
    }

    /// Piece 0 of a state is not what its manifest says, or the state is not newer; its disk is well.
    #[test]
    fn a_state_that_cannot_be_stored_halts_the_replica_and_is_not_laid_on_its_disk() {
        let event_loop = event_loop();
        let root = tempfile::tempdir().unwrap();
        let snapshot = event_loop.node.machine().snapshot();
        let manifest = snapshot.manifest();
        let pieces: Vec<Bytes> =
            (0..manifest.entries().len()).map(|index| snapshot.piece(index)).collect();
        let mut other = pieces.clone();
        other[0] = Bytes::from_static(b"other");
        for (told, states) in [("piece 0 is not", vec![other]), ("not newer", vec![pieces; 2])] {
            let checkpoints = checkpoints(&root.path().join(told));
            let completions = &event_loop.completions;
            let watch = FlushWatch::default();
            let checkpointer =
                Checkpointer::start(checkpoints, 0, Duration::ZERO, watch, completions.clone())
                    .unwrap();
            for pieces in states {
                let (manifest, keep) = (manifest.clone(), Slot(0));
                checkpointer.send(checkpointer::Job::Install { manifest, pieces, keep });
            }
            let failed = loop {
                if let Err(failed) = failure(&completions.take()) {
                    break failed;
                }
                std::thread::yield_now();
            };
            let RunError::Halted(reason) = &failed else { panic!("{failed}") };
            assert!(reason.contains(told) && reason.contains("report this"), "{reason}");
            assert!(!failed.to_string().contains("disk failed"));
        }
        let failed = failure(&[Completion::Failed("no space".into())]);
        assert!(matches!(failed, Err(RunError::Disk(_))));
    }

    /// A byte of what it stored rots, and nothing else is stored; it hangs where nobody notices.
    #[test]
    fn a_stored_checkpoint_that_rots_is_reported_while_nothing_is_stored() {
        let event_loop = event_loop();
        let root = tempfile::tempdir().unwrap();
        let completions = &event_loop.completions;
        let (scrub, watch) = (Duration::from_millis(50), FlushWatch::default());
        let checkpointer =
            Checkpointer::start(checkpoints(root.path()), 0, scrub, watch, completions.clone())
                .unwrap();
        let snapshot = event_loop.node.machine().snapshot();
        let (slot, keep) = (snapshot.manifest().slot, Slot(0));
        checkpointer.send(checkpointer::Job::Store { snapshot, keep });
        let next = || loop {
            if let Some(completion) = completions.take().pop() {
                break completion;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(next(), Completion::CheckpointStored { .. }));
        let file = root.path().join(format!("checkpoint/{:020}", slot.0));
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(next(), Completion::CheckpointDamaged));
        assert!(checkpointer.stop().is_some());
    }

    #[test]
    fn a_replica_whose_disk_failed_is_gone_for_others_though_a_thread_is_stuck_in_it() {
        let event_loop = event_loop();
        let (address, shared) = (event_loop.hub.local_address(), event_loop.shared.clone());
        assert!(std::net::TcpStream::connect(address).is_ok());
        let (keeper, checkpointer) = (Keeper::stuck(), Checkpointer::stuck());
        let workers = Workers { keeper, checkpointer, digester: Digester::stuck() };
        // It returns, though neither of them ever ends.
        let outcome = event_loop.end(Err(RunError::Disk("full".into())), workers, &Shutdown::new());
        assert!(matches!(outcome, Err(RunError::Disk(_))));
        let said = shared.lock().unwrap().as_ref().unwrap().report.state;
        assert_eq!(said, State::Stopped);
        assert!(std::net::TcpStream::connect(address).is_err());
    }
}
