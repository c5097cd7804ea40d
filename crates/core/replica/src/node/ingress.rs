//! Ingress: bytes become messages, and only what is authenticated goes inward (rule A5).
//!
//! A frame from a client, or forwarded by a replica, waits for the end of the round and is then
//! verified together with all others. Frames inside a proposal are verified on arrival, except
//! those that wait here already and were verified before. So it is with the signatures in commands that their service wants to be genuine
//! (`claims`), but that those are looked at with r = 0 too, where frames come in: they passed through clients. Inside a proposal with r = 0
//! they are not: its leader, who does not lie, had the frame come in.

use super::asking::Added;
use super::attesting::ATTESTATION_BYTES;
use super::claims::{Claimed, Verified};
use super::egress::size_of_outcome;
use super::execution::Execution;
use super::questions::is_costly;
use super::shares::{Overdue, Shares};
use super::waiting::{Capacity, Lines};
use super::{Input, Node, Output, Peer, Stage};
use bytes::Bytes;
use perdura_agreement::pool::{Admission, Source};
use perdura_agreement::{Now, Penalty};
use perdura_execution::{Job, Retry};
use perdura_protocol::keys::Claim;
use perdura_protocol::message::Message;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{
    Batch, Decode, Frame, Outcome, PublicKey, ReplicaId, SessionId, View, seeded,
};
use std::collections::BTreeMap;

/// What waits to be verified: rounds are far shorter unless somebody floods.
pub const UNVERIFIED: Capacity = Capacity { items: 8192, bytes: 64 * 1024 * 1024 };

/// Frames looked at in a round, in turns between their senders: some milliseconds if all are to be
/// verified. More wait for the next round, behind what arrives from replicas.
const FRAMES_AT_ONCE: usize = 128;

/// Signatures in their commands looked at in a round; one frame may exceed it.
const CLAIMS_AT_ONCE: usize = 512;

/// Waiting frames looked at in a tick for whether they need no order any more. A pool of a session's
/// frames for each of a hundred clients is looked through in less than any suspicion takes.
const LOOKED_AT: usize = 1024;

/// A frame that comes again is handed to the leader again, but not sooner than this after the last
/// time.
const HAND_AGAIN_MS: u64 = 200;

/// Bytes of answers to retries that a client key gets in a tick: 50 MB/s. They are as large as the
/// replies that its sessions cache, and a retry is small; whoever asks for more asks again.
const RETRY_BYTES: usize = 1024 * 1024;

/// Frames of a client that has used up its share which wait here, beside those in its links: what it
/// may have looked at in the next ticks.
const HELD_BACK: usize = 64;

/// In whose line a frame waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Origin {
    /// It came on its client's link.
    Client(PublicKey),
    /// This replica forwarded it.
    Replica(ReplicaId),
    /// This replica forwarded it, and more than once.
    Overdue(ReplicaId),
}

#[derive(Debug)]
pub(super) struct WaitingFrame {
    peer: Peer,
    frame: Frame,
    // It gets in beside whatever else its client sends.
    overdue: bool,
}

impl WaitingFrame {
    fn origin(&self) -> Origin {
        match self.peer {
            Peer::Replica(id) if self.overdue => Origin::Overdue(id),
            Peer::Replica(id) => Origin::Replica(id),
            Peer::Client { key, .. } => Origin::Client(key),
        }
    }

    fn source(&self) -> Source {
        match self.peer {
            Peer::Client { .. } => Source::Client,
            Peer::Replica(id) => Source::Replica(id),
        }
    }

    /// Whether it may be looked at. What a replica forwarded never stands in the way of what it
    /// forwarded next.
    fn may_enter(&self, shares: &Shares) -> bool {
        match self.peer {
            Peer::Replica(_) => true,
            Peer::Client { key, .. } => shares.may(key),
        }
    }
}

/// A waiting frame, and the signatures in its commands that are to be verified.
type Unverified = (WaitingFrame, Vec<Claimed>);

/// Why a client's link is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// Somebody lately sent frames in its name that it had not signed.
    #[error(
        "frames on a link of this client key were not signed with it: see that no other program uses the key"
    )]
    Penalised,
    /// The key is not registered.
    #[error(
        "this client key is not registered, or was revoked; register it with `perdura client add \
         NAME`"
    )]
    Unknown,
}

/// What came in of clients and is not given to agreement, and what is known of those who sent it.
pub(super) struct Ingress {
    /// Frames that are not verified yet.
    pub frames: Lines<Origin, WaitingFrame>,
    /// Whose frames were not signed by whom they name.
    penalties: BTreeMap<Origin, Penalty>,
    /// Signatures in commands that are genuine.
    pub verified: Verified,
    pub shares: Shares,
    overdue: Overdue,
    // Bytes of answers to retries in this tick.
    retried: BTreeMap<PublicKey, usize>,
}

impl Default for Ingress {
    fn default() -> Ingress {
        Ingress {
            frames: Lines::new(UNVERIFIED),
            penalties: BTreeMap::new(),
            verified: Verified::default(),
            shares: Shares::default(),
            overdue: Overdue::default(),
            retried: BTreeMap::new(),
        }
    }
}

impl Ingress {
    /// The next frame that may be looked at, and in whose line it was.
    fn next(&mut self) -> Option<(Origin, WaitingFrame)> {
        let Ingress { frames, shares, .. } = self;
        frames.pop(|waiting| waiting.may_enter(shares))
    }

    /// Whether there is one.
    /// Whose frames are passed over for a while, or were lately.
    pub fn penalised(&self) -> usize {
        self.penalties.len()
    }

    pub fn has_frames(&self) -> bool {
        self.frames.any_first(|waiting| waiting.may_enter(&self.shares))
    }

    /// How long frames of this origin are passed over.
    pub fn penalty(&self, origin: Origin) -> Penalty {
        self.penalties.get(&origin).copied().unwrap_or_default()
    }

    /// Something of this origin was not genuine.
    pub fn strike(&mut self, origin: Origin, now_ms: u64) {
        self.penalties.entry(origin).or_default().strike(now_ms);
    }

    fn may_be_given_again(&self, client: PublicKey) -> bool {
        self.retried.get(&client).is_none_or(|spent| *spent < RETRY_BYTES)
    }

    fn tick(&mut self, now_ms: u64) {
        self.retried.clear();
        self.shares.tick(now_ms);
        self.penalties.retain(|_, penalty| !penalty.forgiven(now_ms));
    }
}

impl Node {
    pub(super) fn on_bytes(&mut self, now: Now, peer: Peer, bytes: Bytes) {
        let before = self.stages.enter(Stage::Decode);
        let decoded = Message::from_bytes(bytes);
        self.stages.go_back(before);
        let message = match decoded {
            Ok(message) => message,
            Err(error) => {
                self.malformed += 1;
                self.misbehaved(peer, format!("malformed message: {error}"));
                return;
            }
        };
        match peer {
            Peer::Replica(from) if is_costly(&message) => self.ask(now, from, message),
            Peer::Replica(from) => match message {
                Message::Frame(frame) => self.wait_frame(now, peer, frame, false),
                Message::Overdue(frame) => {
                    let within = self.ingress.overdue.take(now.monotonic_ms, from);
                    self.wait_frame(now, peer, frame, within);
                }
                Message::Propose { view, slot, ref batch, .. } => {
                    // What agreement will not take up needs no verification.
                    let wanted = self.agreement.wants_proposal(now, from, view, slot, batch);
                    if !wanted || self.authentic(batch) {
                        self.agreement.on_message(now, from, message);
                    } else {
                        // One is enough: a leader that does this has to go, and none of its other
                        // proposals is looked at.
                        self.agreement.on_forged_proposal(view);
                        let what = "proposed a frame that no client signed, or with false signatures in it";
                        self.misbehaved(peer, what.into());
                    }
                }
                Message::Status { .. } => {
                    self.peer_health.on_status(now, from);
                    self.agreement.on_message(now, from, message);
                }
                Message::Compare(boot) => self.on_compare(from, boot),
                Message::Announce(announcement) => self.on_announce(now, from, announcement),
                Message::Recall(recalled) => self.on_recall(now, from, *recalled),
                Message::Accept { view, slot, digest, signature } => {
                    self.hear_vote(from, (view, slot), digest, signature);
                    self.agreement.on_message(now, from, message);
                }
                Message::Vitals(vitals) => self.peer_health.on_vitals(now, from, *vitals),
                Message::Checkpoint { slot, digest, signature } => {
                    self.on_checkpoint_vote(now, from, slot, digest, signature);
                }
                Message::StateInfo { .. } | Message::Manifest { .. } | Message::Piece { .. } => {
                    self.on_transfer_message(now, from, message);
                }
                other => self.agreement.on_message(now, from, other),
            },
            Peer::Client { connection, key } => match message {
                Message::Frame(frame) if frame.session.client == key => {
                    // Its Attach may have been lost on the way; replies still have to find it.
                    if self.egress.route(&frame.session).is_none() {
                        self.attach(frame.session, connection);
                    }
                    self.wait_frame(now, peer, frame, false);
                }
                Message::Attach { nonce } => {
                    self.attach(SessionId { client: key, nonce }, connection);
                }
                Message::Read { id, command } => self.on_read(now, (connection, key), id, command),
                Message::ReadAt { id, slot, command } => {
                    self.on_read_at(now, (connection, key), id, (slot, command));
                }
                Message::RollCall { nonce } => self.on_roll_call(now, peer, key, nonce),
                _ => self.misbehaved(peer, "a message that no client sends".into()),
            },
        }
    }

    /// Messages that did not decode, so far: a driver closes the transfer link on which one came.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Lets a driver inject an input as bytes; for tests that want the whole path.
    pub fn handle_message(&mut self, now: Now, peer: Peer, bytes: Bytes) {
        self.handle(now, Input::Message { peer, bytes });
    }

    fn wait_frame(&mut self, now: Now, peer: Peer, frame: Frame, overdue: bool) {
        let waiting = WaitingFrame { peer, frame, overdue };
        let origin = waiting.origin();
        if self.ingress.penalty(origin).holds(now.monotonic_ms) {
            self.refuse_busy(peer, &waiting.frame);
            return;
        }
        let bytes = waiting.frame.raw().len();
        if let Err(refused) = self.ingress.frames.push(origin, waiting, bytes) {
            self.refuse_busy(peer, &refused.frame);
        }
    }

    /// Whether a link of a client with this key is taken now.
    ///
    /// # Errors
    /// Why not, in words for the client.
    pub fn admit_client(&self, key: PublicKey) -> Result<(), NotAdmitted> {
        if !self.execution.is_client(key) {
            Err(NotAdmitted::Unknown)
        } else if self.ingress.penalty(Origin::Client(key)).holds(self.ticked_ms) {
            Err(NotAdmitted::Penalised)
        } else {
            Ok(())
        }
    }

    fn refuse_busy(&mut self, peer: Peer, frame: &Frame) {
        self.counters.busy += 1;
        if let Peer::Client { .. } = peer {
            let (nonce, first_number) = (frame.session.nonce, frame.first_number);
            self.send(&[peer], &Message::Busy { nonce, first_number });
        }
    }

    /// Whether a frame needs a signature: clients sign when replicas may lie, the administrator
    /// always does.
    fn needs_signature(&self, frame: &Frame) -> bool {
        self.parameters.faults.is_byzantine()
            || frame.session.client == self.execution.administrator()
    }

    fn authentic(&mut self, batch: &Batch) -> bool {
        let before = self.stages.enter(Stage::Verify);
        let genuine = self.all_authentic(batch);
        self.stages.go_back(before);
        genuine
    }

    fn all_authentic(&mut self, batch: &Batch) -> bool {
        let looks_inside = self.parameters.faults.is_byzantine() && !seeded!(ClaimsUnverified);
        let mut claims: Vec<Claim<[u8; STATEMENT_BYTES]>> = Vec::new();
        let mut inside: Vec<Claimed> = Vec::new();
        for frame in batch.frames() {
            if self.agreement.holds_frame(frame) {
                continue;
            }
            claims.extend(self.signature_of(frame));
            if looks_inside {
                let Some(mut claimed) = self.claimed(frame) else { return false };
                inside.append(&mut claimed);
            }
        }
        self.counters.signatures_verified += claims.len() as u64;
        if seeded!(FirstFrameOnly) {
            claims.truncate(1);
        }
        self.verify_with(claims, &inside)
    }

    /// Verifies signatures of frames, and of what they claim, all in one batch; what holds is remembered of the latter.
    fn verify_with(
        &mut self,
        mut claims: Vec<Claim<[u8; STATEMENT_BYTES]>>,
        inside: &[Claimed],
    ) -> bool {
        claims.extend(self.ingress.verified.fresh(inside));
        if claims.is_empty() {
            return true;
        }
        let entropy = self.entropy();
        let genuine = self.scheme.verify_every(&claims, entropy);
        if genuine {
            self.ingress.verified.remember(inside);
        }
        genuine
    }

    /// The signatures in a frame's commands; none if no replica orders it, whatever they are.
    fn claimed(&mut self, frame: &Frame) -> Option<Vec<Claimed>> {
        Some(self.inspector.claims(frame)?.into_iter().map(Claimed::new).collect())
    }

    /// Verifies frames of this round, answers retries, and lets the rest wait to be ordered. What
    /// costs little is looked at first.
    pub(super) fn admit_frames(&mut self, now: Now) {
        let mut unverified: Vec<Unverified> = Vec::new();
        let mut claims = 0;
        // Copies that came from one sender in the same round are one frame. What another one sends
        // neither replaces a client's own copy nor is charged to it.
        let mut seen: BTreeMap<(Origin, SessionId, u64), Bytes> = BTreeMap::new();
        for _ in 0..FRAMES_AT_ONCE {
            if claims >= CLAIMS_AT_ONCE {
                break;
            }
            let Some((origin, waiting)) = self.ingress.next() else { break };
            let name = (origin, waiting.frame.session, waiting.frame.first_number);
            let raw = waiting.frame.raw().clone();
            if seen.get(&name) == Some(&raw) {
                self.counters.retransmissions += 1;
                continue;
            }
            seen.insert(name, raw);
            if self.ingress.penalty(origin).holds(now.monotonic_ms) {
                self.refuse_busy(waiting.peer, &waiting.frame);
            } else if !self.execution.is_client(waiting.frame.session.client) {
                self.counters.unknown_clients += 1;
            } else if self.agreement.holds_frame(&waiting.frame) {
                // A retransmission of what waits already.
                self.counters.retransmissions += 1;
                self.on_known(now, &waiting);
            } else if self.execution.is_awaited(&waiting.frame) || self.answer_retry(&waiting) {
                self.counters.retransmissions += 1;
            } else if !self.has_room(&waiting) {
                self.refuse_busy(waiting.peer, &waiting.frame);
            } else {
                if !waiting.overdue {
                    self.ingress.shares.take(&waiting.frame);
                }
                match self.claimed(&waiting.frame) {
                    Some(inside) if inside.is_empty() && !self.needs_signature(&waiting.frame) => {
                        self.admit(now, waiting);
                    }
                    Some(inside) => {
                        claims += inside.len();
                        unverified.push((waiting, inside));
                    }
                    None => {
                        self.ingress.strike(origin, now.monotonic_ms);
                        self.misbehaved(waiting.peer, "a frame that nobody orders".into());
                    }
                }
            }
        }
        self.verify_frames(now, unverified);
        self.refuse_displaced();
    }

    /// Whether a frame would be kept if it is genuine: asked first, for it costs nothing.
    fn has_room(&self, waiting: &WaitingFrame) -> bool {
        let frame = &waiting.frame;
        let may = waiting.overdue || self.ingress.shares.may(frame.session.client);
        may && self.agreement.has_room(frame, waiting.source())
    }

    /// Whether nothing is to be read from a peer for now: as much as it may have looked at waits
    /// here already. What it sends waits in its link, and TCP holds it back.
    #[must_use]
    pub fn holds_back(&self, peer: Peer) -> bool {
        match peer {
            Peer::Replica(_) => false,
            Peer::Client { key, .. } => {
                let waiting = self.ingress.frames.length(Origin::Client(key));
                waiting >= HELD_BACK && self.ingress.shares.is_sparse(key)
            }
        }
    }

    /// All in one batch; if that fails, each sender's in one of its own, and only those of senders
    /// of which some are not genuine one by one. Those are passed over afterwards.
    fn verify_frames(&mut self, now: Now, unverified: Vec<Unverified>) {
        if unverified.is_empty() {
            return;
        }
        let before = self.stages.enter(Stage::Verify);
        let mut of_origin: BTreeMap<Origin, Vec<Unverified>> = BTreeMap::new();
        let mut claims: Vec<Claim<[u8; STATEMENT_BYTES]>> = Vec::with_capacity(unverified.len());
        let mut inside: Vec<Claimed> = Vec::new();
        for (waiting, claimed) in unverified {
            claims.extend(self.signature_of(&waiting.frame));
            inside.extend(claimed.iter().cloned());
            of_origin.entry(waiting.origin()).or_default().push((waiting, claimed));
        }
        self.counters.signatures_verified += claims.len() as u64;
        let all = self.verify_with(claims, &inside);
        self.stages.go_back(before);
        for (origin, frames) in of_origin {
            let verdicts = if all { vec![true; frames.len()] } else { self.judge(&frames) };
            if verdicts.contains(&false) {
                self.ingress.strike(origin, now.monotonic_ms);
            }
            for ((waiting, _), genuine) in frames.into_iter().zip(verdicts) {
                if genuine {
                    self.admit(now, waiting);
                } else {
                    let what =
                        "a frame that its client did not sign, or with false signatures in it";
                    self.misbehaved(waiting.peer, what.into());
                }
            }
        }
    }

    /// Which of a sender's frames are genuine. What commands claim is looked at as a whole, and only in frames that their clients signed.
    fn judge(&mut self, frames: &[Unverified]) -> Vec<bool> {
        let signatures = frames.iter().map(|(waiting, _)| self.signature_of(&waiting.frame));
        let signatures: Vec<_> = signatures.collect();
        let claims: Vec<_> = signatures.iter().flatten().cloned().collect();
        let before = self.stages.enter(Stage::Verify);
        let mut genuine = Vec::new();
        if !claims.is_empty() {
            let entropy = self.entropy();
            genuine = self.scheme.verify_all(&claims, entropy);
        }
        let mut genuine = genuine.into_iter();
        let mut verdicts = Vec::with_capacity(frames.len());
        for (signature, (_, inside)) in signatures.into_iter().zip(frames) {
            let signed = signature.is_none() || genuine.next() == Some(true);
            verdicts.push(signed && self.verify_with(Vec::new(), inside));
        }
        self.stages.go_back(before);
        verdicts
    }

    /// What is to be verified for a frame to be its client's, if anything.
    fn signature_of(&self, frame: &Frame) -> Option<Claim<[u8; STATEMENT_BYTES]>> {
        self.needs_signature(frame).then(|| frame.claim(self.parameters.cluster))
    }

    /// Who had to make room hears so.
    fn refuse_displaced(&mut self) {
        for (session, first_number) in self.agreement.displaced() {
            self.counters.busy += 1;
            let Some(peer) = self.egress.route(&session) else { continue };
            self.send(&[peer], &Message::Busy { nonce: session.nonce, first_number });
        }
    }

    /// Allowances of the next tick.
    pub(super) fn tick_ingress(&mut self, now: Now) {
        self.ingress.tick(now.monotonic_ms);
        self.forget_answered();
    }

    /// Frames whose commands were all answered in other frames wait for nothing; a client that
    /// sends such would have the leader suspected for not ordering them.
    fn forget_answered(&mut self) {
        let execution = &self.execution;
        self.agreement.retain_some_frames(LOOKED_AT, |frame| execution.is_open(frame));
    }

    fn admit(&mut self, now: Now, waiting: WaitingFrame) {
        match self.agreement.on_frame(now, waiting.frame.clone(), waiting.source()) {
            Admission::Taken => self.counters.frames += 1,
            Admission::Known => {}
            Admission::Full => self.refuse_busy(waiting.peer, &waiting.frame),
        }
    }

    /// A client that sends again to a replica that does not lead has lost the leader, or the leader
    /// has lost the frame.
    fn on_known(&mut self, now: Now, waiting: &WaitingFrame) {
        if !matches!(waiting.peer, Peer::Client { .. }) {
            return;
        }
        self.agreement.on_frame(now, waiting.frame.clone(), Source::Client);
        if self.agreement.hand_again(now, &waiting.frame, HAND_AGAIN_MS) {
            let leader = Peer::Replica(self.agreement.leader());
            self.send(&[leader], &Message::Frame(waiting.frame.clone()));
        }
    }

    /// Clients that sent here and not to the leader have lost it, or it has lost them: hand over
    /// what they sent.
    pub(super) fn hand_over(&mut self, now: Now) {
        let leader = Peer::Replica(self.agreement.leader());
        for message in self.agreement.hand_over(now) {
            self.send(&[leader], &message);
        }
    }

    /// A retry is answered from the session, not run again (E4); one of a command that waits is answered
    /// when its reply is there. The link proves whose it is, so no
    /// signature is needed, but the client has an allowance. One that a replica forwarded is
    /// answered where its client is linked.
    fn answer_retry(&mut self, waiting: &WaitingFrame) -> bool {
        let (frame, forwarded) = (&waiting.frame, matches!(waiting.peer, Peer::Replica(_)));
        match &self.execution {
            Execution::Here(executor) => {
                let answers = executor.machine().answers(&Retry::of(frame));
                let Some(outcomes) = answers else { return false };
                if !forwarded {
                    self.give_again(frame.session, outcomes);
                }
            }
            Execution::Apart(_) if !self.execution.has_settled(frame) => return false,
            Execution::Apart(_) if forwarded => {}
            Execution::Apart(_) => self.ask_again(frame),
        }
        true
    }

    /// The stage is asked for answers that it has.
    fn ask_again(&mut self, frame: &Frame) {
        if !self.ingress.may_be_given_again(frame.session.client) {
            return;
        }
        match self.asking.add(frame.session, frame.first_number) {
            Added::New => {
                self.counters.stage.retries_asked += 1;
                self.outputs.push_back(Output::Stage(Job::Answer(Retry::of(frame))));
            }
            Added::Known => {}
            Added::Full => self.counters.stage.retries_passed_over += 1,
        }
    }

    /// Answers that the machine gave again.
    pub(super) fn give_again(&mut self, session: SessionId, outcomes: Vec<(u64, Outcome)>) {
        if outcomes.is_empty() || !self.ingress.may_be_given_again(session.client) {
            return;
        }
        let inspector = &self.inspector;
        let bytes = |outcome: &Outcome| {
            let attested = inspector.attested(outcome).is_some();
            size_of_outcome(outcome) + if attested { ATTESTATION_BYTES } else { 0 }
        };
        let bytes = outcomes.iter().map(|(_, outcome)| bytes(outcome)).sum::<usize>();
        *self.ingress.retried.entry(session.client).or_default() += bytes;
        let logged_at = if seeded!(RetryBeforeLog) { 0 } else { self.journal.executed_at() };
        self.hold_replies(logged_at, session, outcomes);
        if seeded!(RetryBeforeLog) {
            self.egress.rotate_right();
        }
    }

    pub(super) fn on_view_started(&mut self, view: View) {
        self.counters.views_started += 1;
        let clients = self.egress.linked();
        if !clients.is_empty() {
            self.send(&clients, &Message::Welcome { view });
        }
    }
}
