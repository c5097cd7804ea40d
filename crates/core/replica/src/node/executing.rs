//! Delivery and replies.
//!
//! A reply leaves only after its command is decided, executed and logged here (rule D1), and what it states to those outside of the group
//! behind it; replies of one session leave together.

use super::egress::size_of_outcome;
use super::execution::{Delivery, Execution};
use super::serving::Past;
use super::{Node, Output, Peer, Stage};
use perdura_agreement::Now;
use perdura_execution::{Done, ExecutedBatch, Reply, StagedBatch};
use perdura_protocol::message::Message;
use perdura_protocol::{Outcome, PublicKey, SessionId, limits, seeded};

/// Bytes of outcomes in one message to a client; a larger single outcome has one to itself.
const REPLIES_BYTES: usize = 1024 * 1024;

/// Outcomes of one session that leave in one message.
pub(super) struct Ready {
    pub session: SessionId,
    pub outcomes: Vec<(u64, Outcome)>,
    pub bytes: usize,
}

impl Ready {
    fn has_room(&self, bytes: usize) -> bool {
        self.outcomes.len() < limits::SESSION_WINDOW as usize && self.bytes + bytes <= REPLIES_BYTES
    }

    fn add(&mut self, outcome: (u64, Outcome), bytes: usize) {
        self.outcomes.push(outcome);
        self.bytes += bytes;
    }
}

impl Node {
    /// Executes a batch, or has it executed.
    pub(super) fn deliver(&mut self, now: Now, delivery: Delivery) {
        if self.halted {
            return;
        }
        let administrator = self.execution.administrator();
        let Node { execution, egress, counters, journal, .. } = self;
        let executor = match execution {
            Execution::Here(executor) => executor,
            Execution::Apart(apart) => {
                let output = apart.hand_over(delivery);
                self.outputs.push_back(output);
                return;
            }
        };
        let before = self.stages.enter(Stage::Execute);
        let logged_at = journal.execute(delivery.logged_at);
        let at = if seeded!(ReplyBeforeLog) { 0 } else { logged_at };
        egress.close_line();
        let ran = executor.execute(delivery.slot, &delivery.batch, &mut |reply| {
            counters.commands += 1;
            egress.push(at, reply.session, (reply.number, reply.outcome), journal.bound());
        });
        self.conclude(now, delivery, ran, administrator);
        self.stages.go_back(before);
    }

    /// Agreement is told when it waits for this replica's own stage, and when it does no more.
    pub(super) fn mind_execution(&mut self, now: Now) {
        // What is decided here waits for the stage alone, as far as the pipeline reaches.
        let reach = self.execution.slot().plus(self.parameters.depth);
        let reach = if seeded!(StageWorkExcuses) { self.execution.slot().next() } else { reach };
        let held = self.execution.is_apart() && self.agreement.delivered() >= reach;
        self.agreement.on_execution_held(now, held && !seeded!(SlowStageBlamed));
    }

    /// The stage did a job.
    pub(super) fn on_done(&mut self, now: Now, done: Done, took_us: u64) {
        match done {
            Done::Executed(batch) => {
                let StagedBatch { machine, ran, replies, let_go, news, shared } = *batch;
                let Execution::Apart(apart) = &mut self.execution else { return };
                let administrator = apart.administrator();
                let Some(delivery) =
                    apart.executed(machine, (&ran, news), shared, now.monotonic_ms)
                else {
                    // Of a machine that another has taken the place of.
                    self.counters.stage.superseded += 1;
                    let snapshot = ran.boundary.map(|boundary| boundary.snapshot);
                    self.checkpointing.let_go.extend(snapshot);
                    return;
                };
                let frames = delivery.batch.frames().iter();
                let commands = frames.map(|frame| frame.commands().len()).sum();
                self.agreement.note_speed(commands, took_us);
                let logged_at = self.journal.execute(delivery.logged_at);
                let at = if seeded!(ReplyBeforeLog) { 0 } else { logged_at };
                self.counters.commands += replies.len() as u64 + let_go;
                self.counters.replies_let_go += let_go;
                self.counters.stage.replies_let_go += let_go;
                self.egress.close_line();
                for Reply { session, number, outcome } in replies {
                    self.egress.push(at, session, (number, outcome), self.journal.bound());
                }
                self.conclude(now, delivery, ran, administrator);
                self.install_overtaken(now);
            }
            Done::Read { number, slot, outcome, cost } => {
                self.on_read_apart(number, slot, outcome, cost);
            }
            Done::Shared { machine, state } => {
                if let Execution::Apart(apart) = &mut self.execution {
                    apart.shares(machine, state);
                }
            }
            Done::Taken { machine } => {
                if let Execution::Apart(apart) = &mut self.execution {
                    apart.took(machine);
                }
            }
            Done::Answered { retry, outcomes } => {
                self.asking.remove(retry.session, retry.numbers.start);
                self.give_again(retry.session, outcomes);
            }
        }
    }

    /// A batch was executed; the administrator's key was this before.
    fn conclude(
        &mut self,
        now: Now,
        delivery: Delivery,
        ran: ExecutedBatch,
        administrator: PublicKey,
    ) {
        let Delivery { slot, batch, history, .. } = delivery;
        let ExecutedBatch { history: came_to, executed, boundary, .. } = ran;
        if let Some(error) = executed.outdated {
            self.halt(format!(
                "the group goes on behind slot {slot} under newer versions: {error}. What was decided is in the log; start \
                 this replica with a newer program"
            ));
            return;
        }
        assert!(ran.slot == slot && came_to == history, "agreement and execution disagree: stop");
        self.ingress.shares.delivered(&batch, &executed.costs, &executed.put_off);
        self.agreement.note_costs(&batch, &executed.costs);
        let cost: u64 = executed.costs.values().sum();
        self.counters.cost = self.counters.cost.saturating_add(cost);
        self.counters.put_off += executed.put_off.values().sum::<u64>();
        self.counters.batches += 1;
        self.journal.executed(slot);
        self.remember(slot, Past { digest: batch.digest(), history });
        let configuration = executed.new_configuration;
        self.counters.configurations += u64::from(configuration.is_some());
        self.keep_decision(slot);
        if boundary.is_some() {
            self.checkpointing.note_boundary(slot);
        }
        self.agreement.on_executed(now, slot, configuration, boundary.is_some());
        self.agreement.set_due(self.execution.due());
        self.agreement.set_administrator(self.execution.administrator());
        match boundary {
            Some(boundary) => self.at_boundary(slot, boundary),
            None => self.judge_no_boundary(slot),
        }
        let latest = self.agreement.configurations().latest();
        if latest.id > 0 && latest.from_slot == slot.next() {
            let members = self.linked(latest);
            self.outputs.push_back(Output::Members(members));
        }
        if batch.frames().iter().any(|frame| frame.session.client == administrator) {
            // A key may have been revoked, or replaced: nobody would propose what it still has waiting, and
            // the leader would be suspected for it.
            let execution = &self.execution;
            self.agreement.retain_frames(|frame| execution.is_client(frame.session.client));
        }
    }

    pub(super) fn hold_replies(
        &mut self,
        logged_at: u64,
        session: SessionId,
        outcomes: Vec<(u64, Outcome)>,
    ) {
        let logged_at = if seeded!(ReplyBeforeLog) { 0 } else { logged_at };
        self.egress.close_line();
        for outcome in outcomes {
            self.egress.push(logged_at, session, outcome, self.journal.bound());
        }
    }

    /// Sends the replies whose commands are logged by now.
    pub(super) fn release_replies(&mut self) {
        self.journal.advance();
        let persisted = self.journal.persisted();
        if !self.egress.is_ready(persisted) {
            return;
        }
        let before = self.stages.enter(Stage::Reply);
        let mut ready: Vec<Ready> = Vec::new();
        while let Some(line) = self.egress.pop_logged(persisted) {
            let session = line.session;
            for outcome in line.outcomes {
                let bytes = size_of_outcome(&outcome.1);
                let open = ready.iter_mut().rev().find(|part| part.session == session);
                match open.filter(|part| part.has_room(bytes)) {
                    Some(part) => part.add(outcome, bytes),
                    None => ready.push(Ready { session, outcomes: vec![outcome], bytes }),
                }
            }
        }
        ready.retain(|part| self.egress.route(&part.session).is_some());
        let mut attested = self.attest(&ready).into_iter().peekable();
        let view = self.agreement.view();
        for (part, Ready { session, outcomes, .. }) in ready.into_iter().enumerate() {
            let Some(peer) = self.egress.route(&session) else { continue };
            self.counters.replies += outcomes.len() as u64;
            let nonce = session.nonce;
            self.send(&[peer], &Message::Replies { view, nonce, outcomes });
            while let Some((_, attested)) = attested.next_if(|(of, _)| *of == part) {
                self.send(&[peer], &Message::Attested(Box::new(attested)));
            }
        }
        self.stages.go_back(before);
    }

    pub(super) fn attach(&mut self, session: SessionId, connection: u64) {
        if self.egress.attach(session, connection) {
            let peer = Peer::Client { connection, key: session.client };
            let view = self.agreement.view();
            self.send(&[peer], &Message::Welcome { view });
        }
    }

    pub(super) fn on_link_up(&mut self, now: Now, peer: Peer) {
        match peer {
            Peer::Replica(id) => {
                self.agreement.on_link(now, id, true);
                self.on_boots_link(id);
                self.repeat_checkpoint_votes(id);
                self.ask_for_state_again(id);
                self.on_seeders_link(now, id, true);
            }
            Peer::Client { connection, key } => {
                self.egress.link(connection, key);
                let view = self.agreement.view();
                self.send(&[peer], &Message::Welcome { view });
            }
        }
    }

    pub(super) fn on_link_down(&mut self, now: Now, peer: Peer) {
        match peer {
            Peer::Replica(id) => {
                self.forget_questions(peer);
                self.agreement.on_link(now, id, false);
                self.peer_health.on_link_down(id);
                self.on_seeders_link(now, id, false);
            }
            Peer::Client { connection, .. } => self.egress.unlink(connection),
        }
    }
}
