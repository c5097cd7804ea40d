//! The event loop: one thread for network, agreement and execution, so that no request hops
//! between threads. It moves bytes, time and completions, and decides nothing.

use super::checkpointer::{self, Checkpointer};
use super::http::{Shared, Snapshot};
use super::keeper::{self, Completion, Completions, Keeper};
use super::{Clock, ReplicaConfig, RunError, Shutdown};
use crate::node::{Input, Node, Output, Peer};
use bytes::Bytes;
use perdura_agreement::timing::TICK_MS;
use perdura_durability::{Checkpoints, FileDisk, Log, storage};
use perdura_execution::Service;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Configuration, PublicKey, ReplicaId};
use perdura_transport::Peer as LinkPeer;
use perdura_transport::{
    Admission, Hello, Hub, HubEvent, MemberAddress, Misbehaviour, Refusal, SendError,
};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two reports to the HTTP thread.
const REPORT_MS: u64 = 100;

/// How long a replica that was asked to stop waits for what it took on to become durable.
const DRAIN: Duration = Duration::from_secs(5);

pub(super) struct EventLoop<S> {
    config: ReplicaConfig,
    clock: Clock,
    hub: Hub,
    node: Node<S>,
    shared: Shared,
    completions: Completions,
    reported_ms: u64,
    appended: u64,
    persisted: u64,
    in_memory: bool,
    #[cfg(feature = "misbehave")]
    intercept: super::intercept::Intercept,
}

struct Workers {
    keeper: Keeper,
    checkpointer: Checkpointer,
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
        #[cfg_attr(not(feature = "misbehave"), allow(unused_mut))] mut config: ReplicaConfig,
        clock: Clock,
        hub: Hub,
        node: Node<S>,
        shared: Shared,
    ) -> io::Result<EventLoop<S>> {
        let completions =
            Completions { waiting: Arc::new(Mutex::new(Vec::new())), waker: hub.waker() };
        let in_memory = config.parameters.durability == Durability::None;
        #[cfg(feature = "misbehave")]
        let intercept = super::intercept::Intercept::new(config.interceptor.take());
        Ok(EventLoop {
            config,
            clock,
            hub,
            node,
            shared,
            completions,
            reported_ms: 0,
            appended: 0,
            persisted: 0,
            in_memory,
            #[cfg(feature = "misbehave")]
            intercept,
        })
    }

    pub fn run(
        mut self,
        log: Log<FileDisk>,
        checkpoints: Checkpoints<FileDisk>,
        shutdown: &Shutdown,
    ) -> Result<(), RunError> {
        let workers = Workers {
            keeper: Keeper::start(log, self.completions.clone())?,
            checkpointer: Checkpointer::start(checkpoints, self.completions.clone())?,
        };
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
        let (keeper, checkpointer) = (workers.keeper.stop(), workers.checkpointer.stop());
        if let Err(RunError::Halted(_)) = &outcome {
            self.stand_still(shutdown);
        }
        outcome?;
        if let (Some(log), Some(checkpoints)) = (keeper, checkpointer) {
            storage::close(log, checkpoints)?;
        }
        tracing::info!("stopped");
        Ok(())
    }

    /// A node that must not go on says and answers nothing any more, but its last report stays to
    /// be seen until an operator stops the process.
    fn stand_still(self, shutdown: &Shutdown) {
        self.report();
        drop(self.hub);
        while !shutdown.requested() {
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
        for completion in self.completions.take() {
            let input = match completion {
                Completion::Persisted(mark) => {
                    self.persisted = self.persisted.max(mark);
                    Input::Persisted(mark)
                }
                Completion::DecisionsRead { to, decisions } => {
                    Input::DecisionsRead { to, decisions }
                }
                Completion::CheckpointStored(manifest) => Input::CheckpointStored { manifest },
                Completion::Failed(reason) => return Err(RunError::Disk(reason)),
            };
            self.node.handle(now, input);
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
        #[cfg(feature = "misbehave")]
        for (peer, bytes) in self.intercept.due(now) {
            self.send(peer, bytes);
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
                Output::StoreCheckpoint(snapshot) => {
                    workers.checkpointer.send(checkpointer::Job::Store(snapshot));
                }
                Output::InstallCheckpoint { manifest, pieces } => {
                    tracing::info!(slot = %manifest.slot, pieces = pieces.len(), "state received");
                    workers.checkpointer.send(checkpointer::Job::Install { manifest, pieces });
                }
                Output::Members(configuration) => self.set_members(&configuration),
                Output::Misbehaved { peer, what } => self.punish(peer, &what),
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
            Peer::Replica(id) => tracing::warn!(replica = %id, "misbehaves: {what}"),
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
                LinkPeer::Client { key, .. } => !self.node.accepts_client(*key),
                LinkPeer::Replica(_) => false,
            })
            .collect();
        for peer in revoked {
            self.hub.close(&peer, "its key was revoked");
        }
    }

    fn report(&self) {
        let snapshot =
            Snapshot { report: self.node.report(), network: self.hub.stats(), at: Instant::now() };
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }
}

/// Who may come in, and who has to wait.
struct Door<'a, S> {
    node: &'a Node<S>,
}

impl<S: Service> Admission for Door<'_, S> {
    fn admit(&mut self, _: &Hello, key: PublicKey) -> Result<(), Refusal> {
        if self.node.is_penalised(key) {
            Err(Refusal(
                "frames on a link of this client key were not signed with it: try again later, \
                 and see that no other program uses the key"
                    .into(),
            ))
        } else if self.node.accepts_client(key) {
            Ok(())
        } else {
            Err(Refusal(
                "this client key is not registered, or was revoked; register it with \
                 `perdura client add NAME`"
                    .into(),
            ))
        }
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
