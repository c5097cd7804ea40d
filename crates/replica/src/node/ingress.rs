//! Ingress: bytes become messages, and only what is authenticated goes inward (rule A5).
//!
//! A frame from a client, or forwarded by a replica, waits for the end of the round and is then
//! verified together with all others. Frames inside a proposal are verified on arrival, except
//! those that wait here already and were verified before.

use super::{Input, Node, Peer};
use bytes::Bytes;
use perdura_agreement::Now;
use perdura_agreement::pool::Admission;
use perdura_execution::Service;
use perdura_protocol::keys::Claim;
use perdura_protocol::message::Message;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{Batch, Decode, Frame, Outcome, ReplicaId, SessionId, View};
use std::collections::BTreeMap;

/// Frames that wait for the end of a round; a link's read budget keeps rounds far shorter.
const WAITING_FRAMES: usize = 8192;

/// Between two looks at waiting frames that need no order any more; shorter than any suspicion.
const FORGET_MS: u64 = 500;

/// Bytes of waiting frames that are handed to a new leader at once.
const FORWARDED_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct WaitingFrame {
    peer: Peer,
    frame: Frame,
}

impl<S: Service> Node<S> {
    pub(super) fn on_bytes(&mut self, now: Now, peer: Peer, bytes: Bytes) {
        let message = match Message::from_bytes(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.misbehaved(peer, format!("malformed message: {error}"));
                return;
            }
        };
        match peer {
            Peer::Replica(from) if !self.may_ask(from, &message) => self.counters.throttled += 1,
            Peer::Replica(from) => match message {
                Message::Frame(frame) => self.wait_frame(peer, frame),
                Message::Propose { view, slot, ref batch, .. } => {
                    // What agreement will not take up needs no verification.
                    let wanted = self.agreement.wants_proposal(from, view, slot);
                    if !wanted || self.authentic(batch) {
                        self.agreement.on_message(now, from, message);
                    } else {
                        self.misbehaved(peer, "proposed a frame that no client signed".into());
                    }
                }
                Message::Checkpoint { slot, digest, signature } => {
                    self.on_checkpoint_vote(from, slot, digest, signature);
                }
                Message::StateQuery
                | Message::StateInfo { .. }
                | Message::FetchManifest { .. }
                | Message::Manifest { .. }
                | Message::FetchPiece { .. }
                | Message::Piece { .. } => self.on_transfer_message(now, from, message),
                other => self.agreement.on_message(now, from, other),
            },
            Peer::Client { connection, key } => match message {
                Message::Frame(frame) if frame.session.client == key => {
                    // Its Attach may have been lost on the way; replies still have to find it.
                    if !self.routes.contains_key(&frame.session) {
                        self.attach(frame.session, connection);
                    }
                    self.wait_frame(peer, frame);
                }
                Message::Attach { nonce } => {
                    self.attach(SessionId { client: key, nonce }, connection);
                }
                Message::Read { id, command } => self.on_read(connection, key, id, command),
                _ => self.misbehaved(peer, "a message that no client sends".into()),
            },
        }
    }

    /// Questions with large answers are counted; whoever asks too often gets no answer.
    fn may_ask(&mut self, from: ReplicaId, message: &Message) -> bool {
        let costly = matches!(
            message,
            Message::Fetch { .. }
                | Message::FetchBatch { .. }
                | Message::FetchManifest { .. }
                | Message::FetchPiece { .. }
                | Message::StateQuery
        );
        let Some(left) = self.questions.get_mut(from.index()) else { return false };
        if costly {
            let allowed = *left > 0;
            *left = left.saturating_sub(1);
            return allowed;
        }
        true
    }

    /// Lets a driver inject an input as bytes; for tests that want the whole path.
    pub fn handle_message(&mut self, now: Now, peer: Peer, bytes: Bytes) {
        self.handle(now, Input::Message { peer, bytes });
    }

    fn wait_frame(&mut self, peer: Peer, frame: Frame) {
        if self.frames.len() < WAITING_FRAMES {
            self.frames.push(WaitingFrame { peer, frame });
        } else {
            self.refuse_busy(peer, &frame);
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
        self.parameters.faults.byzantine() || frame.session.client == self.parameters.administrator
    }

    fn authentic(&mut self, batch: &Batch) -> bool {
        let claims: Vec<Claim<[u8; STATEMENT_BYTES]>> = batch
            .frames()
            .iter()
            .filter(|frame| self.needs_signature(frame) && !self.agreement.holds_frame(frame))
            .map(|frame| frame.claim(self.parameters.cluster))
            .collect();
        if claims.is_empty() {
            return true;
        }
        self.counters.signatures_verified += claims.len() as u64;
        let entropy = self.entropy();
        self.scheme.verify_all(&claims, entropy).into_iter().all(|genuine| genuine)
    }

    /// Verifies the frames of this round in one batch, answers retries, and lets the rest wait to
    /// be ordered.
    pub(super) fn admit_frames(&mut self, now: Now) {
        if self.frames.is_empty() {
            return;
        }
        let mut unverified: Vec<WaitingFrame> = Vec::new();
        // Copies that came in the same round are one frame.
        let mut seen: BTreeMap<(SessionId, u64), Bytes> = BTreeMap::new();
        for waiting in std::mem::take(&mut self.frames) {
            let name = (waiting.frame.session, waiting.frame.first_number);
            let raw = waiting.frame.raw().clone();
            if seen.get(&name) == Some(&raw) {
                self.counters.retransmissions += 1;
                continue;
            }
            seen.insert(name, raw);
            if !self.machine.is_client(waiting.frame.session.client) {
                self.counters.unknown_clients += 1;
            } else if self.agreement.holds_frame(&waiting.frame) {
                // A retransmission of what waits already.
                self.counters.retransmissions += 1;
                self.forward(&waiting);
            } else if self.needs_signature(&waiting.frame) {
                unverified.push(waiting);
            } else {
                self.admit(now, waiting);
            }
        }
        if unverified.is_empty() {
            return;
        }
        let cluster = self.parameters.cluster;
        let claims: Vec<Claim<[u8; STATEMENT_BYTES]>> =
            unverified.iter().map(|waiting| waiting.frame.claim(cluster)).collect();
        self.counters.signatures_verified += claims.len() as u64;
        let entropy = self.entropy();
        let verdicts = self.scheme.verify_all(&claims, entropy);
        for (waiting, genuine) in unverified.into_iter().zip(verdicts) {
            if genuine {
                self.admit(now, waiting);
            } else {
                self.misbehaved(waiting.peer, "a frame that its client did not sign".into());
            }
        }
    }

    /// Frames whose commands were all answered in other frames wait for nothing; a client that
    /// sends such would have the leader suspected for not ordering them.
    pub(super) fn forget_answered(&mut self, now: Now) {
        if now.monotonic_ms < self.forgot_ms + FORGET_MS {
            return;
        }
        self.forgot_ms = now.monotonic_ms;
        let machine = &self.machine;
        let open = |frame: &Frame| {
            (frame.first_number..frame.end_number())
                .any(|number| machine.cached(frame.session, number).is_none())
        };
        self.agreement.retain_frames(open);
    }

    fn admit(&mut self, now: Now, waiting: WaitingFrame) {
        if self.answer_retry(&waiting.frame) {
            return;
        }
        match self.agreement.on_frame(now, waiting.frame.clone()) {
            Admission::Taken => {
                self.counters.frames += 1;
                self.forward(&waiting);
            }
            Admission::Known => {}
            Admission::Full => self.refuse_busy(waiting.peer, &waiting.frame),
        }
    }

    /// A client that sends to a replica that does not lead has lost the leader, or the leader has
    /// lost it: hand the frame on.
    fn forward(&mut self, waiting: &WaitingFrame) {
        if let (Peer::Client { .. }, false) = (waiting.peer, self.agreement.leads()) {
            let leader = Peer::Replica(self.agreement.leader());
            self.send(&[leader], &Message::Frame(waiting.frame.clone()));
        }
    }

    /// A retry is answered from the session, not run again (E4).
    fn answer_retry(&mut self, frame: &Frame) -> bool {
        let known: Option<Vec<(u64, Outcome)>> = (frame.first_number..frame.end_number())
            .map(|number| self.machine.cached(frame.session, number).map(|o| (number, o)))
            .collect();
        let Some(outcomes) = known else { return false };
        self.counters.retransmissions += 1;
        let logged_at = self.logged_at;
        self.hold_replies(logged_at, frame.session, outcomes);
        true
    }

    pub(super) fn on_view_started(&mut self, view: View) {
        self.counters.views_started += 1;
        if !self.agreement.leads() {
            let leader = Peer::Replica(self.agreement.leader());
            let mut bytes = 0;
            let frames: Vec<Frame> = self
                .agreement
                .waiting_frames()
                .take_while(|frame| {
                    bytes += frame.raw().len();
                    bytes <= FORWARDED_BYTES
                })
                .cloned()
                .collect();
            for frame in frames {
                self.send(&[leader], &Message::Frame(frame));
            }
        }
        let clients: Vec<Peer> = self
            .connections
            .iter()
            .map(|(connection, key)| Peer::Client { connection: *connection, key: *key })
            .collect();
        if !clients.is_empty() {
            self.send(&clients, &Message::Welcome { view });
        }
    }
}
