//! The event loop: one thread for network, agreement and, unless the service takes long, execution, so that no request hops
//! between threads. It moves bytes, time and completions, and decides nothing. Only what replicas that
//! were away are sent goes through another thread (`transfer_links`).

mod round;

use super::DataDisk;
use super::checkpointer::Checkpointer;
use super::digester::Digester;
use super::http::{CheckpointBytes, Shared, Snapshot};
use super::keeper::{Completion, Completions, Keeper};
use super::metrics::Timings;
use super::misbehaviour_log::MisbehaviourLog;
use super::pace::{FlushWatch, Rhythm};
use super::panicked;
use super::reaper::Reaper;
use super::repairs::Repairs;
use super::slowness::Slowness;
use super::stage::EXECUTION;
use super::tap::Tap;
use super::transfer_links::TransferLinks;
use super::watch::{self, Busy};
use super::workers::Workers;
use super::{Clock, Ended, ReplicaConfig, RunError, Shutdown, experiments};
use crate::node::{Input, Node, NotAdmitted, Peer, Report, State};
use perdura_durability::{CheckpointError, Checkpoints, Log, storage};
use perdura_execution::Asked;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Configuration, PublicKey, ReplicaId, Slot, View};
use perdura_transport::Peer as LinkPeer;
use perdura_transport::{Admission, Hello, Hub, Misbehaviour, Refusal, Stats};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The name of its thread among those that are watched.
const EVENT_LOOP: &str = "event loop";

/// Between two reports to the HTTP thread.
const REPORT_MS: u64 = 100;

/// How long a replica that was asked to stop waits for what it took on to become durable.
const DRAIN: Duration = Duration::from_secs(5);

/// What follows when a state cannot be read back. Its boundary comes again at each start, until the program is another one.
const OTHER_SEGMENTS: &str = "Nothing was stored of it: the checkpoint before and the log from there on are \
    whole, and everything acknowledged is safe. Have the service give so large a state in other segments, and smaller ones as \
    it did, for their digests are signed; then start all replicas with the new program: they go on from that checkpoint";

/// What follows the reason of a thread that refused what it was given.
const NOT_THE_DISK: &str = "The disk did not fail, and everything acknowledged is safe. Test the memory \
    of this machine, start the replica again (it goes on from its log and the checkpoint before), \
    and report this";

pub(super) struct EventLoop {
    config: Arc<ReplicaConfig>,
    clock: Clock,
    hub: Hub,
    transfer_links: TransferLinks,
    node: Node,
    shared: Shared,
    repairs: Repairs,
    // Of the states on disk, when this one is not the certified one.
    trusted: Slot,
    completions: Completions,
    reported_ms: u64,
    // As last reported.
    view: View,
    state: Option<State>,
    appended: u64,
    persisted: u64,
    in_memory: bool,
    misbehaviour: MisbehaviourLog,
    slowness: Slowness,
    timings: Timings,
    checkpoints: CheckpointBytes,
    tap: Tap,
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

impl EventLoop {
    pub fn start(
        config: Arc<ReplicaConfig>,
        clock: Clock,
        (hub, transfer_links): (Hub, TransferLinks),
        node: Node,
        shared: Shared,
        repairs: Repairs,
    ) -> EventLoop {
        let completions = Completions::new(hub.waker());
        let in_memory = config.parameters.durability == Durability::None;
        EventLoop {
            config,
            clock,
            hub,
            transfer_links,
            node,
            shared,
            repairs,
            trusted: Slot(0),
            completions,
            reported_ms: 0,
            view: View(0),
            state: None,
            appended: 0,
            persisted: 0,
            in_memory,
            misbehaviour: MisbehaviourLog::default(),
            slowness: Slowness::default(),
            timings: Timings::new(),
            checkpoints: CheckpointBytes::default(),
            tap: Tap::default(),
        }
    }

    /// The name of the thread that executes.
    fn executes(&self) -> &'static str {
        if self.node.executes() { EVENT_LOOP } else { EXECUTION }
    }

    pub fn waker(&self) -> Arc<mio::Waker> {
        self.hub.waker()
    }

    /// This stands between the node and its links from now on.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = tap;
    }

    pub fn run(
        mut self,
        log: Log<DataDisk>,
        checkpoints: Checkpoints<DataDisk>,
        shutdown: &Shutdown,
    ) -> Result<Ended, RunError> {
        let (flushes, rhythm) = (FlushWatch::default(), Rhythm::default());
        let completions = &self.completions;
        let _here = completions.watch().enter(EVENT_LOOP);
        let asked = self.node.asked().clone();
        let executes = self.executes();
        completions.watch().tell(move |busy| what_hangs(&asked, executes, busy))?;
        let rate = self.config.checkpoint_bytes_per_s;
        let keeper = Keeper::start(
            log,
            self.config.data.clone(),
            flushes.clone(),
            self.timings.flushes.clone(),
            completions.clone(),
        )?;
        let scrub = self.config.scrub_interval;
        let paces = (flushes, rhythm.clone());
        let checkpointer =
            Checkpointer::start(checkpoints, rate, scrub, paces, completions.clone())?;
        let digester = Digester::start(scrub, rhythm, completions.clone())?;
        self.transfer_links.start(completions.clone())?;
        let reaper = Reaper::start(completions.clone())?;
        let read_threads = self.config.read_threads;
        let (stage, readers) = (None, None);
        let mut workers =
            Workers { keeper, checkpointer, digester, reaper, stage, readers, read_threads };
        let mut events = Vec::new();
        let mut stopping: Option<Instant> = None;
        let mut outcome = Ok(());
        loop {
            let round = || watch::at("a round", || self.round(&mut events, &mut workers));
            outcome = outcome.and_then(|()| panicked::catching(round));
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
            Err(error @ (RunError::Service(_) | RunError::FatalHere(_))) => {
                return Err(self.leave(error, workers));
            }
            Err(error) => error,
        };
        self.stand_still(&error, shutdown);
        Err(error)
    }

    /// The service panicked: in order, for neither disk nor threads are at fault. What its batch was to
    /// bring out is lost with the node.
    fn leave(self, error: RunError, workers: Workers) -> RunError {
        tracing::error!("{error}");
        // The node is not asked for a report: the service might panic once more.
        if let Some(mut last) = self.shared.last() {
            last.report = Report { state: State::Stopped, leader: false, ..last.report };
            self.shared.say(last);
        }
        let EventLoop { hub, transfer_links, .. } = self;
        drop((hub, transfer_links));
        let (keeper, checkpointer, _) = workers.stop();
        panicked::close(error, keeper, checkpointer)
    }

    fn close(self, workers: Workers) -> Result<Ended, RunError> {
        let (keeper, checkpointer, stage) = workers.stop();
        if let Err(error) = failure(&self.completions.take()) {
            return Err(panicked::close(error, keeper, checkpointer));
        }
        if let (Some(log), Some(checkpoints)) = (keeper, checkpointer) {
            storage::close(log, checkpoints)?;
        }
        if let Some(stage) = stage {
            stage.join();
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
        self.publish(report, [Stats::default(); 2]);
        let (keeper, checkpointer, stage) = workers.stop();
        if let Err(error) = failure(&self.completions.take()) {
            return Err(panicked::close(error, keeper, checkpointer));
        }
        let (Some(mut log), Some(checkpoints)) = (keeper, checkpointer) else { return Ok(false) };
        log.flush().map_err(|error| RunError::Disk(error.to_string()))?;
        let trusted = self.trusted;
        match checkpoints.distrust_after(trusted) {
            Ok(discarded) => {
                tracing::warn!(%trusted, discarded, "later states on disk count no more");
                if let Some(stage) = stage {
                    stage.join();
                }
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
        self.publish(Report { state, leader: false, ..report }, [Stats::default(); 2]);
        drop(self.hub);
        drop(self.transfer_links);
        let lasts = matches!(
            error,
            RunError::Halted(_) | RunError::TakenBack(_) | RunError::Diverged { .. }
        );
        while lasts && !shutdown.requested() {
            std::thread::sleep(Duration::from_millis(REPORT_MS));
        }
    }

    fn set_members(&mut self, configuration: &Configuration) {
        let members = self.config.addresses_of(configuration);
        let own = configuration.members.get(self.config.id.index());
        if own.is_some_and(|member| member.key != self.config.key.public()) {
            tracing::error!(
                "this replica was replaced by incarnation {}: nobody listens to this one any more",
                own.map_or(0, |member| member.incarnation)
            );
        }
        self.tap.learn(configuration);
        self.hub.set_members(&members);
        self.transfer_links.set_members(members);
    }

    fn punish(&mut self, peer: Peer, what: &str) {
        match peer {
            Peer::Replica(id) => {
                let now_ms = self.clock.now().monotonic_ms;
                match self.misbehaviour.note(now_ms, peer, what) {
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

    fn report(&mut self) {
        if let Some(panic) = self.node.take_caught() {
            tracing::error!(
                "{panic}. Nothing changed, and nothing else came of it: a read is ordered then, as another command \
                 is. This is a bug of the service, told once, however often it happens"
            );
        }
        let report = self.node.report();
        self.state = Some(report.state);
        if report.view != self.view {
            self.view = report.view;
            let leader = report.view.leader(self.config.parameters.faults.n());
            tracing::info!(view = %report.view, %leader, "another leader");
        }
        self.publish(report, [self.hub.stats(), self.transfer_links.stats()]);
    }

    fn publish(&self, report: Report, [network, transfers]: [Stats; 2]) {
        let experiments = experiments(&self.config);
        let (checkpoints, at) = (self.checkpoints, Instant::now());
        let (repairs, stages) = (self.repairs.total(), self.node.stages_spent());
        let snapshot = Snapshot {
            group: self.config.parameters.cluster,
            key: self.config.key.public(),
            report,
            network,
            transfers,
            checkpoints,
            repairs,
            stages,
            experiments,
            timings: self.timings.clone(),
            watch: self.completions.watch().clone(),
            executes: self.executes(),
            asked: self.node.asked().clone(),
            lost_log_lines: self.config.lost_log_lines.load(Ordering::Relaxed),
            at,
        };
        self.shared.say(snapshot);
    }
}

/// What of the service hangs, where it is that.
pub(super) fn what_hangs(asked: &Asked, executes: &str, busy: &Busy) -> Option<String> {
    let (call, slot) = asked.now().filter(|_| busy.thread == executes)?;
    Some(format!("the service has not returned from {call} at slot {slot}"))
}

/// The replica whose message this is.
fn sender(input: &Input) -> Option<ReplicaId> {
    match input {
        Input::Message { peer: Peer::Replica(from), .. } => Some(*from),
        _ => None,
    }
}

/// What a thread reported before it ended.
pub(super) fn failure(completions: &[Completion]) -> Result<(), RunError> {
    completions.iter().try_for_each(|completion| match completion {
        Completion::Failed(reason) => Err(RunError::Disk(reason.clone())),
        Completion::TooLarge(error) => {
            let reason = format!("{error}. {OTHER_SEGMENTS}");
            tracing::error!("{reason}");
            Err(RunError::Halted(reason))
        }
        Completion::Service(panic) => Err(panicked::ended_by(panic.clone())),
        Completion::Panicked(thread) => Err(RunError::Panicked(thread)),
        Completion::Refused(reason) => {
            let reason = format!("{reason}. {NOT_THE_DISK}");
            tracing::error!("{reason}");
            Err(RunError::Halted(reason))
        }
        _ => Ok(()),
    })
}

/// Who may come in, and who has to wait.
struct Door<'a> {
    node: &'a Node,
}

impl Admission for Door<'_> {
    fn admit(&mut self, _: &Hello, key: PublicKey) -> Result<(), Refusal> {
        self.node.admit_client(key).map_err(|reason| match reason {
            NotAdmitted::Penalised => Refusal::for_now(reason),
            NotAdmitted::Unknown => Refusal(reason.to_string()),
        })
    }

    fn is_administrator(&self, key: PublicKey) -> bool {
        self.node.administrator() == key
    }

    fn holds_back(&self, peer: &LinkPeer) -> bool {
        self.node.holds_back(node_peer(*peer))
    }
}

#[cfg(test)]
mod tests;
