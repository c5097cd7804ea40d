//! One round of the event loop: wait, take in everything that is there, let the node act, and carry out what it wants.

use super::{Door, EventLoop, REPORT_MS, failure, link_peer, node_peer, sender};
use crate::node::{Input, Now, Output, Peer, Restoration, Stage};
use crate::runtime::keeper::{self, Completion, Completions};
use crate::runtime::workers::Workers;
use crate::runtime::{RunError, checkpointer, taken_back, watch, worker};
use bytes::Bytes;
use perdura_agreement::timing::TICK_MS;
use perdura_protocol::configuration::Schedule;
use perdura_transport::{HubEvent, Lane, QueueError, SendError};
use std::time::{Duration, Instant};

impl EventLoop {
    /// One round: wait, take in everything that is there, let the node act, send.
    pub(super) fn round(
        &mut self,
        events: &mut Vec<HubEvent>,
        workers: &mut Workers,
    ) -> Result<(), RunError> {
        // What is left to do waits behind what has arrived, not the reverse.
        let more = self.node.has_more() || self.transfer_links.has_more();
        let gathers = self.node.gathers_ms(self.clock.now()).unwrap_or(TICK_MS);
        let timeout = Duration::from_millis(if more { 0 } else { gathers.min(TICK_MS) });
        self.node.stages().enter(Stage::Receive);
        let mut door = Door { node: &self.node };
        self.hub.poll(Instant::now(), Some(timeout), &mut door, events)?;
        self.node.stages().enter(Stage::Order);
        let begun = Instant::now();
        let now = self.clock.now();
        let completions = self.completions.take();
        failure(&completions)?;
        self.take_completions(now, completions, workers)?;
        self.take_events(now, events, workers)?;
        self.take_transfers(now, workers)?;
        self.node.begin_round(now);
        self.node.flush(now);
        while self.carry_out(workers)? {
            // What is durable at once (durability `none`) lets out more.
            self.node.flush(now);
        }
        let late = self.node.checkpoint_is_late() || self.node.digest_is_forced();
        workers.checkpointer.hurry(late);
        workers.digester.hurry(self.node.digest_is_late());
        for (peer, bytes) in self.tap.due(now) {
            self.send(peer, Lane::of(&bytes), bytes);
        }
        self.let_memory_fail(now, workers);
        self.flush_links();
        self.slowness.note("a round of the event loop", begun.elapsed());
        self.timings.rounds.observe(begun.elapsed().as_secs_f64());
        // A change of the view, or of what this replica does, is told at once.
        let changed = self.node.view() != self.view || Some(self.node.state()) != self.state;
        if now.monotonic_ms >= self.reported_ms + REPORT_MS || changed {
            self.reported_ms = now.monotonic_ms;
            self.report();
            self.close_revoked();
        }
        Ok(())
    }

    /// What other threads have done.
    fn take_completions(
        &mut self,
        now: Now,
        completions: Vec<Completion>,
        workers: &mut Workers,
    ) -> Result<(), RunError> {
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
                Completion::CheckpointDamaged(parts) => {
                    self.checkpoints.damages += parts;
                    continue;
                }
                Completion::Space(space) => {
                    self.node.set_space(space);
                    continue;
                }
                Completion::StateDigested { manifest, digest } => {
                    Input::StateDigested { manifest, digest }
                }
                Completion::StateRestored => Input::StateRestored,
                Completion::Done { done, took } => {
                    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                    Input::Done { done, took_us }
                }
                Completion::StateDamaged(what) => Input::StateDamaged { what },
                Completion::Carried(carried) => {
                    self.transfer_links.take_in(carried);
                    continue;
                }
                Completion::Refused(_)
                | Completion::TooLarge(_)
                | Completion::Failed(_)
                | Completion::Service(_)
                | Completion::Panicked(_) => continue,
            };
            self.node.handle(now, input);
            self.make_room(workers)?;
        }
        Ok(())
    }

    /// What came over links.
    fn take_events(
        &mut self,
        now: Now,
        events: &mut Vec<HubEvent>,
        workers: &mut Workers,
    ) -> Result<(), RunError> {
        for event in events.drain(..) {
            let input = match event {
                // The hub has told of it.
                HubEvent::LinkUp { peer } => Input::LinkUp(node_peer(peer)),
                HubEvent::LinkDown { peer, .. } => Input::LinkDown(node_peer(peer)),
                HubEvent::Message { peer, message } => {
                    Input::Message { peer: node_peer(peer), bytes: message }
                }
                HubEvent::Handed(handed) => {
                    self.transfer_links.adopt(handed);
                    continue;
                }
            };
            if !self.tap.hears(now, &input) {
                continue;
            }
            self.node.handle(now, input);
            self.make_room(workers)?;
        }
        Ok(())
    }

    /// As a tap says, for tests of what finds it.
    fn let_memory_fail(&mut self, now: Now, workers: &mut Workers) {
        if let Some(service) = self.node.service_mut()
            && self.tap.rots(now, service)
        {
            tracing::warn!("a bit of the state was flipped");
            // What is shared with an earlier snapshot would have been flipped there too.
            workers.digester.hold(self.node.machine().snapshot());
        }
    }

    /// What came over transfer links, up to its share of a round, after what agreement waits for.
    fn take_transfers(&mut self, now: Now, workers: &mut Workers) -> Result<(), RunError> {
        let mut taken = 0;
        while let Some(input) = self.transfer_links.next_input(&mut taken) {
            if !self.tap.hears(now, &input) {
                continue;
            }
            let (from, before) = (sender(&input), self.node.malformed());
            self.node.handle(now, input);
            if self.node.malformed() > before
                && let Some(from) = from
            {
                self.transfer_links.punish(from);
            }
            self.make_room(workers)?;
        }
        Ok(())
    }

    /// Lets answers out before more questions come in.
    fn make_room(&mut self, workers: &mut Workers) -> Result<(), RunError> {
        if self.node.is_full() {
            self.carry_out(workers)?;
            self.flush_links();
        }
        Ok(())
    }

    fn flush_links(&mut self) {
        let before = self.node.stages().enter(Stage::Send);
        self.hub.flush();
        self.node.stages().go_back(before);
    }

    /// Carries out what the node wants; true if that gave it new input.
    fn carry_out(&mut self, workers: &mut Workers) -> Result<bool, RunError> {
        let mut again = false;
        while let Some(output) = self.node.next_output() {
            match output {
                Output::Send { peers, lane, bytes } => {
                    if self.tap.says(self.clock, &peers, &bytes) {
                        continue;
                    }
                    let before = self.node.stages().enter(Stage::Send);
                    for peer in peers {
                        self.send(peer, lane, bytes.clone());
                    }
                    self.node.stages().go_back(before);
                }
                Output::Append { mark, .. } if self.in_memory => {
                    let now = self.clock.now();
                    self.node.handle(now, Input::Persisted(mark));
                    again = true;
                }
                Output::Append { records, mark } => {
                    self.appended = mark;
                    let before = self.node.stages().enter(Stage::Log);
                    workers.keeper.send(keeper::Job::Append { records, mark });
                    self.node.stages().go_back(before);
                }
                Output::Truncate(slot) => workers.keeper.send(keeper::Job::Truncate(slot)),
                Output::ReadDecisions { to, wanted } => {
                    workers.keeper.send(keeper::Job::Read { to, wanted });
                }
                Output::Stage(job) => workers.execute(job, &self.completions)?,
                Output::Read(read) => workers.read(read, &self.completions)?,
                Output::Scrub { snapshot } => workers.digester.hold(snapshot),
                Output::DigestState { snapshot } => workers.digester.digest(snapshot),
                Output::StoreCheckpoint { snapshot, keep } => {
                    // With another schedule it has been digested, and is held since.
                    if self.config.parameters.schedule != Schedule::Sequential {
                        workers.digester.hold(snapshot.clone());
                    }
                    workers.checkpointer.send(checkpointer::Job::Store { snapshot, keep });
                }
                Output::RestoreState(restoration) => self.restore(restoration)?,
                Output::InstallCheckpoint { manifest, pieces, keep } => {
                    tracing::info!(slot = %manifest.slot, pieces = pieces.len(), "state restored");
                    workers.checkpointer.send(checkpointer::Job::Install {
                        manifest,
                        pieces,
                        keep,
                    });
                }
                Output::LetGo(states) => workers.reaper.take(states),
                Output::Members(configuration) => self.set_members(&configuration),
                Output::Misbehaved { peer, what } => self.punish(peer, &what),
                Output::Suspects { view, why } => {
                    let leader = view.leader(self.config.parameters.faults.n());
                    tracing::info!(%view, %leader, "the leader is to be replaced: {why}");
                }
                Output::Notice(text) => tracing::warn!("{text}"),
                Output::Alarm(text) => tracing::error!("{text}"),
                Output::Diverged { trusted, what } => {
                    tracing::error!(
                        "{what}: memory or disk of this replica is damaged, or it runs another program"
                    );
                    self.trusted = trusted;
                    let repairs = self.repairs.recent(Instant::now());
                    return Err(RunError::Diverged { what, repairs });
                }
                Output::Halt(reason) => {
                    tracing::error!("{reason}");
                    return Err(RunError::Halted(reason));
                }
                Output::TakenBack(why) => return Err(taken_back::found(&self.config.data, why)),
            }
        }
        Ok(again)
    }

    /// In a thread of its own, that ends with it.
    fn restore(&self, restoration: Restoration) -> Result<(), RunError> {
        let Restoration { slot, pieces, .. } = restoration;
        tracing::info!(%slot, pieces, "state received");
        let work = move |completions: &Completions| {
            watch::at("restoring a state", || restoration.run());
            completions.push(Completion::StateRestored);
        };
        worker::spawn_patient("restorer", self.completions.clone(), work)?;
        Ok(())
    }

    fn send(&mut self, peer: Peer, lane: Lane, bytes: Bytes) {
        let sent = match (lane, peer) {
            (Lane::Transfer, Peer::Replica(id)) if self.transfer_links.is_up(id) => {
                self.transfer_links.send(id, bytes)
            }
            _ => self.hub.send(&link_peer(peer), bytes),
        };
        match sent {
            Ok(()) | Err(SendError::NoLink) => {}
            // Who made it has not held it against its bound: a bug, which must not be silent.
            Err(error @ SendError::Queue(QueueError::Size(_))) => {
                tracing::error!(?peer, "message dropped: {error}");
            }
            Err(error) => tracing::debug!(?peer, "message dropped: {error}"),
        }
    }
}
