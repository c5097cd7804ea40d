//! Who is there: asked of all replicas at once, each for itself, and never ordered.

use super::{CallId, ClientCore, Output};
use perdura_protocol::vitals::Presence;
use perdura_protocol::{Message, ReplicaId, Signature};
use std::collections::BTreeMap;

/// Who has not answered is asked again after this time, milliseconds: a replica answers few who ask at once.
const AGAIN_MS: u64 = 200;

/// What a replica said, and its signature.
pub type Answer = (Presence, Signature);

/// A question that was not answered by all yet.
#[derive(Debug)]
pub(super) struct RollCall {
    nonce: [u8; 16],
    deadline_ms: u64,
    again_ms: u64,
    answers: BTreeMap<ReplicaId, Answer>,
}

impl ClientCore {
    /// Asks who is there; the answers come as an output when all are there, or at the deadline. `nonce` has to be
    /// one that nobody could guess: an answer to it is new.
    pub fn roll_call(&mut self, now_ms: u64, id: CallId, nonce: [u8; 16], deadline_ms: u64) {
        let again_ms = now_ms + AGAIN_MS;
        self.roll_calls
            .insert(id, RollCall { nonce, deadline_ms, again_ms, answers: BTreeMap::new() });
        for replica in self.linked() {
            self.send(replica, Message::RollCall { nonce });
        }
    }

    pub(super) fn greet_with_roll_calls(&mut self, replica: ReplicaId) {
        let nonces: Vec<[u8; 16]> = self.roll_calls.values().map(|call| call.nonce).collect();
        for nonce in nonces {
            self.send(replica, Message::RollCall { nonce });
        }
    }

    pub(super) fn on_present(&mut self, from: ReplicaId, presence: Presence, signature: Signature) {
        let n = self.config.faults.n();
        let nonce = presence.nonce;
        let Some((id, call)) = self.roll_calls.iter_mut().find(|(_, call)| call.nonce == nonce)
        else {
            return;
        };
        call.answers.insert(from, (presence, signature));
        if call.answers.len() == n {
            let id = *id;
            self.end_roll_call(id);
        }
    }

    pub(super) fn next_roll_call(&self) -> Option<u64> {
        self.roll_calls.values().map(|call| call.deadline_ms.min(call.again_ms)).min()
    }

    pub(super) fn tick_roll_calls(&mut self, now_ms: u64) {
        if self.roll_calls.is_empty() {
            return;
        }
        let over = |(id, call): (&CallId, &RollCall)| (call.deadline_ms <= now_ms).then_some(*id);
        let over: Vec<CallId> = self.roll_calls.iter().filter_map(over).collect();
        over.into_iter().for_each(|id| self.end_roll_call(id));
        let linked = self.linked();
        let mut questions = Vec::new();
        for call in self.roll_calls.values_mut().filter(|call| call.again_ms <= now_ms) {
            call.again_ms = now_ms + AGAIN_MS;
            let silent = linked.iter().filter(|replica| !call.answers.contains_key(replica));
            questions.extend(silent.map(|replica| (*replica, call.nonce)));
        }
        for (replica, nonce) in questions {
            self.send(replica, Message::RollCall { nonce });
        }
    }

    pub(super) fn end_roll_calls(&mut self) {
        let ids: Vec<CallId> = self.roll_calls.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end_roll_call(id));
    }

    fn end_roll_call(&mut self, id: CallId) {
        if let Some(call) = self.roll_calls.remove(&id) {
            self.outputs.push_back(Output::Roll { id, answers: call.answers });
        }
    }
}
