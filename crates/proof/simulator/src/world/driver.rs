//! Drives nodes: inputs in, rounds ended, outputs carried out (the driver's duties as
//! `perdura_replica::node` lists them), and every output shown to the checkers first.

use super::{Event, TICK_US, World};
use crate::checkers::{boots, progress};
use crate::report::FaultKind;
use crate::world::replica::StateJob;
use bytes::Bytes;
use perdura_protocol::message::Lane;
use perdura_replica::node::{Input, Output, Peer};

/// Inputs in a hundred after which a round stays open for more, where rounds are long.
const OPEN_ROUNDS: u64 = 30;

impl World {
    /// One input for a replica; its round ends with it, or stays open for a moment.
    pub(crate) fn input(&mut self, replica: usize, input: Input) {
        let now = self.replicas[replica].clock.now(self.now_us);
        self.checkers.agreed_time.clock(replica, now.wall);
        let long = self.plan.long_rounds && self.random.percent(OPEN_ROUNDS);
        let (life, slow) = (self.replicas[replica].life, self.replicas[replica].slow_round_us);
        if !self.liar_hears(replica, now, &input) {
            return;
        }
        if let Input::Message { peer, bytes } = &input {
            self.note_hearing(replica, peer, bytes);
        }
        self.work(replica, |process| process.node.handle(now, input));
        let Some(process) = &mut self.replicas[replica].process else { return };
        if process.round_open {
            return;
        }
        if long || slow > 0 {
            process.round_open = true;
            let delay = slow + self.random.below(500);
            self.push(delay, Event::Round { replica, life });
        } else {
            self.end_round(replica);
        }
    }

    pub(crate) fn end_round(&mut self, replica: usize) {
        let now = self.replicas[replica].clock.now(self.now_us);
        self.checkers.agreed_time.clock(replica, now.wall);
        let Some(process) = &mut self.replicas[replica].process else { return };
        process.round_open = false;
        self.work(replica, |process| {
            process.node.begin_round(now);
            process.node.flush(now);
        });
        self.witness(replica);
        self.carry_out(replica);
    }

    pub(crate) fn on_tick(&mut self, replica: usize) {
        let life = self.replicas[replica].life;
        // At the pace of the replica's own clock, and never later than it asks for.
        let delay = self.random.between(TICK_US * 3 / 4, TICK_US * 9 / 10);
        self.push(delay, Event::Tick { replica, life });
        let slow = self.replicas[replica].slow_round_us > 0;
        let open = self.replicas[replica].process.as_ref().is_some_and(|p| p.round_open);
        if self.is_paused(replica) || (slow && open) {
            return;
        }
        let before = self.report.steps;
        self.end_round(replica);
        if self.report.steps == before && self.outputs > 0 {
            self.step();
        }
        self.outputs = 0;
        self.liar_ticks(replica);
        self.scrub(replica);
        self.reread(replica);
        if self.is_liar(replica) {
            return;
        }
        self.check_memory(replica);
        self.check_standstill(replica);
        self.check_sight(replica);
    }

    /// Carries out what a node wants, oldest first; the process may die on the way.
    pub(crate) fn carry_out(&mut self, replica: usize) {
        while !self.failed() {
            let Some(process) = &mut self.replicas[replica].process else { return };
            let Some(output) = process.node.next_output() else { break };
            self.outputs += 1;
            match output {
                Output::Send { peers, lane, bytes } => {
                    if !self.send_all(replica, &peers, lane, &bytes) {
                        return;
                    }
                }
                Output::Append { records, mark } => process.appends.push_back((records, mark)),
                Output::Stage(job) => self.give_job(replica, job),
                Output::Read(read) => self.give_read(replica, read),
                Output::Scrub { snapshot } => drop(snapshot),
                Output::LetGo(states) => drop(states),
                Output::DigestState { snapshot } => self.digest_state(replica, snapshot),
                Output::StoreCheckpoint { snapshot, keep } => {
                    if !self.is_liar(replica) {
                        self.checkers.boundaries.stored(replica, snapshot.slot());
                    }
                    self.store_state(replica, StateJob::Store { snapshot, keep });
                }
                Output::RestoreState(restoration) => {
                    restoration.run();
                    self.restore_state(replica);
                }
                Output::InstallCheckpoint { manifest, pieces, keep } => {
                    self.store_state(replica, StateJob::Install { manifest, pieces, keep });
                }
                Output::Truncate(slot) => process.truncate = Some(slot),
                Output::ReadDecisions { to, wanted } => {
                    let life = self.replicas[replica].life;
                    let delay = self.random.between(100, 3_000);
                    self.push(delay, Event::Read { replica, life, to, wanted });
                }
                Output::Members(configuration) => self.on_members(replica, configuration),
                Output::Misbehaved { peer, what } => self.on_accusation(replica, peer, &what),
                Output::Notice(text) => {
                    self.tell(format_args!("r{replica} notes: {text}"));
                    self.checkers.sight.notes(replica, &text);
                    self.check_own_clock(replica);
                }
                Output::Alarm(text) => self.on_alarm(replica, &text),
                Output::Suspects { view, why } => {
                    self.tell(format_args!("r{replica} would leave view {view}: {why}"));
                }
                Output::Diverged { trusted, what } if self.is_liar(replica) => {
                    self.repair(replica, trusted, &what);
                    return;
                }
                Output::Diverged { what, .. } => self.fail(progress::halted(replica, &what)),
                Output::Halt(why) if self.is_liar(replica) => {
                    self.stumbles(replica, &why);
                    return;
                }
                Output::Halt(why) if self.is_damaged(replica) => {
                    self.tell(format_args!("r{replica} halts: {why}"));
                    self.crash_process(replica);
                    return;
                }
                Output::TakenBack(why) if self.is_liar(replica) => {
                    self.stumbles(replica, &why);
                    return;
                }
                // Of a disk that was damaged otherwise, too: nothing that it still holds may look so.
                Output::TakenBack(why) if self.forgot(replica) => {
                    self.notice_old_disk(replica, &why);
                    return;
                }
                Output::TakenBack(why) => self.fail(boots::sent_away(replica, &why)),
                Output::Halt(why) => self.fail(progress::halted(replica, &why)),
            }
            if self.dies_now(replica) {
                return;
            }
        }
        if !self.is_liar(replica) {
            let check = self.checkers.boots.goes_on(replica);
            self.check(check);
        }
        self.keep(replica);
    }

    /// Counts outputs down to the one after which the process dies.
    fn dies_now(&mut self, replica: usize) -> bool {
        let armed = &mut self.replicas[replica].armed.at_send;
        match armed {
            None => false,
            Some(0) => {
                *armed = None;
                self.fired(FaultKind::CrashAtSend);
                self.tell(format_args!("the machine of r{replica} stops"));
                self.crash_either(replica);
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    /// Sends to each peer; false when the process died meanwhile.
    fn send_all(&mut self, replica: usize, peers: &[Peer], lane: Lane, bytes: &Bytes) -> bool {
        if self.is_liar(replica) {
            self.liar_says(replica, peers, bytes);
            return true;
        }
        self.check_speech(replica, peers, bytes);
        for peer in peers {
            if let Some(station) = self.station(replica, *peer) {
                self.send(replica, station, lane, bytes);
            }
            if self.dies_now(replica) {
                return false;
            }
        }
        true
    }

    /// The station that a replica knows as this peer.
    pub(crate) fn station(&mut self, replica: usize, peer: Peer) -> Option<usize> {
        match peer {
            Peer::Replica(id) => Some(id.index()),
            Peer::Client { connection, .. } => self.station_of(replica, connection),
        }
    }

    fn station_of(&mut self, replica: usize, connection: u64) -> Option<usize> {
        (self.n()..self.network.stations()).find(|station| {
            let link = self.network.link(replica, *station);
            link.up && link.connection == connection
        })
    }
}
