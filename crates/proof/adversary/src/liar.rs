//! A liar: decides what becomes of each message that its replica hears or wants to say.

use crate::insider::Insider;
use crate::memory::Memory;
use crate::random::Random;
use crate::strategy::Strategy;
use crate::traffic::withholds;
use crate::twin::Shadow;
use bytes::Bytes;
use perdura_protocol::message::Message;
use perdura_protocol::{Configuration, Decode, Digest, Encode, PublicKey, ReplicaId, Slot, View};
use perdura_replica::node::{Input, Interceptor, Now, Peer, Said};

/// For so long a liar keeps to a choice: whom to be silent to, which strategy of a medley.
const MOOD_MS: u64 = 1_500;

/// Between two bits that flip in a memory, at most.
const FLIP_MS: u64 = 8_000;

/// What a liar says instead of one message to one peer.
pub(crate) struct Speech<'a> {
    pub peer: Peer,
    pub message: &'a Message,
    pub bytes: &'a Bytes,
    pub out: &'a mut Vec<Said>,
}

impl Speech<'_> {
    /// What the replica wanted to say.
    pub fn plainly(&mut self) {
        self.after(0, self.bytes.clone());
    }

    /// Something else.
    pub fn instead(&mut self, message: &Message) {
        self.after(0, message.to_bytes());
    }

    /// Something, later.
    pub fn after(&mut self, after_ms: u64, bytes: Bytes) {
        self.out.push(Said { after_ms, peer: self.peer, bytes });
    }

    /// The replica that is spoken to.
    pub fn replica(&self) -> Option<ReplicaId> {
        match self.peer {
            Peer::Replica(id) => Some(id),
            Peer::Client { .. } => None,
        }
    }
}

/// A liar.
pub struct Liar {
    pub(crate) insider: Insider,
    pub(crate) random: Random,
    pub(crate) memory: Memory,
    pub(crate) victim: Option<PublicKey>,
    strategy: Strategy,
    mood: Strategy,
    mood_ms: u64,
    pub(crate) mood_number: u64,
    pub(crate) now_ms: u64,
    // When the next bit flips.
    flip_ms: u64,
    // When it last asked for prefixes.
    pub(crate) asked_ms: u64,
    // When it last let out a piece of a state.
    pub(crate) trickled_ms: u64,
    twin: Option<Box<dyn Shadow + Send>>,
    // Lies told, so that a run can tell whether a strategy had an effect.
    lies: u64,
}

impl Liar {
    /// One that has not said anything. `seed` decides what is left to chance.
    #[must_use]
    pub fn new(insider: Insider, strategy: Strategy, seed: u64) -> Liar {
        Liar {
            insider,
            random: Random::new(seed),
            memory: Memory::default(),
            victim: None,
            strategy,
            mood: strategy,
            mood_ms: 0,
            mood_number: 0,
            now_ms: 0,
            flip_ms: 0,
            asked_ms: 0,
            trickled_ms: 0,
            twin: None,
            lies: 0,
        }
    }

    /// With a second replica that has the same key; the strategy has to be [`Strategy::Twins`].
    #[must_use]
    pub fn with_twin(mut self, twin: Box<dyn Shadow + Send>) -> Liar {
        self.twin = Some(twin);
        self
    }

    /// Its way of lying.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    fn say(&mut self, mut speech: Speech<'_>) {
        match self.mood {
            Strategy::Equivocate => self.equivocate(speech),
            Strategy::DoubleVote => self.vote_twice(speech),
            Strategy::WrongDigests => self.vote_wrongly(speech),
            Strategy::ForgetLocks => self.forget_locks(speech),
            Strategy::StaleEvidence => self.reuse_evidence(speech),
            Strategy::ForgedEvidence => self.forge_evidence(speech),
            Strategy::TwoNewViews => self.start_twice(speech),
            Strategy::SelectiveSilence => self.keep_silent(speech),
            Strategy::SlowLeader => self.lead_slowly(speech),
            Strategy::ForgedCheckpoints => self.forge_checkpoints(speech),
            Strategy::FalseStatus => self.boast(speech),
            Strategy::CorruptTransfer => self.corrupt_transfer(speech),
            Strategy::SlowTransfer => self.slow_transfer(speech),
            Strategy::FalseReplies => self.reply_falsely(speech),
            Strategy::StaleReads => self.answer_from_memory(speech),
            Strategy::Replay => self.replay(speech),
            Strategy::OtherContext => self.sign_elsewhere(speech),
            Strategy::GarbageSignatures => self.sign_badly(speech),
            Strategy::Malformed => self.garble(speech),
            Strategy::ForgedFrames => self.invent_frames(speech),
            Strategy::Mutate => self.mutate(speech),
            Strategy::PassOver => self.accept_unprovably(speech),
            Strategy::Twins => {
                if self.side(speech.peer) == Side::First {
                    speech.plainly();
                } else {
                    self.lies += 1;
                }
            }
            Strategy::HastyAccept
            | Strategy::Rebel
            | Strategy::Censor
            | Strategy::Withhold
            | Strategy::Flood
            | Strategy::RottenMemory
            | Strategy::Medley => speech.plainly(),
        }
    }

    fn new_mood(&mut self, now: Now) {
        self.now_ms = now.monotonic_ms;
        if now.monotonic_ms < self.mood_ms + MOOD_MS {
            return;
        }
        self.mood_ms = now.monotonic_ms;
        self.mood_number += 1;
        if self.strategy == Strategy::Medley {
            let choices = Strategy::ALL;
            // Neither itself nor a second replica, which is there from the start or not at all.
            let mood = *self.random.pick(&choices[..choices.len() - 1]);
            self.mood = if mood == Strategy::Twins { Strategy::Mutate } else { mood };
        }
    }

    /// Whether a replica belongs to those who are told the other story about this slot. The same
    /// for all accomplices, who themselves are told the first.
    pub(crate) fn other_half(&self, view: View, slot: Slot, replica: ReplicaId) -> bool {
        if self.insider.accomplice(replica) {
            return false;
        }
        let mut text = Vec::new();
        self.insider.coin.encode(&mut text);
        view.encode(&mut text);
        (slot.0 / 8).encode(&mut text);
        replica.encode(&mut text);
        Digest::of(&text).0[0] & 1 == 1
    }

    fn side(&self, peer: Peer) -> Side {
        side(self.mood_number, peer)
    }
}

impl Interceptor for Liar {
    fn learn(&mut self, configuration: &Configuration) {
        self.insider.learn(configuration);
    }

    fn hears(&mut self, now: Now, input: &Input, out: &mut Vec<Said>) -> bool {
        self.new_mood(now);
        let mut message = None;
        if let Input::Message { peer, bytes } = input {
            message = Message::from_bytes(bytes.clone()).ok();
            if let Some(message) = &message {
                let from = match peer {
                    Peer::Replica(id) => Some(*id),
                    Peer::Client { .. } => None,
                };
                self.memory.note(from, message, bytes);
            }
        }
        if let Some(twin) = &mut self.twin {
            return hear_as_twins(self.mood_number, twin.as_mut(), now, input, out);
        }
        let Some(message) = message else { return true };
        match self.mood {
            Strategy::Censor => {
                let censored = self.censors(&message);
                self.lies += u64::from(censored);
                !censored
            }
            Strategy::Withhold => {
                let withheld = withholds(&message);
                self.lies += u64::from(withheld);
                !withheld
            }
            Strategy::HastyAccept => {
                self.accept_hastily(&message, out);
                self.lies += out.len() as u64;
                true
            }
            Strategy::PassOver => {
                if let Input::Message { peer: Peer::Replica(from), .. } = input {
                    self.hand_out_prefix(*from, &message, out);
                    self.lies += out.len() as u64;
                }
                true
            }
            _ => true,
        }
    }

    fn says(&mut self, now: Now, peers: &[Peer], bytes: &Bytes) -> Vec<Said> {
        self.new_mood(now);
        let mut out = Vec::new();
        let Ok(message) = Message::from_bytes(bytes.clone()) else { return out };
        self.memory.note(Some(self.insider.me), &message, bytes);
        for peer in peers {
            let before = out.len();
            let speech = Speech { peer: *peer, message: &message, bytes, out: &mut out };
            self.say(speech);
            let honest = Said { after_ms: 0, peer: *peer, bytes: bytes.clone() };
            self.lies += u64::from(out[before..] != [honest]);
        }
        out
    }

    fn tick(&mut self, now: Now) -> Vec<Said> {
        self.new_mood(now);
        let mut out = Vec::new();
        match self.mood {
            Strategy::Rebel => self.rebel(&mut out),
            Strategy::Flood => self.flood(&mut out),
            Strategy::PassOver => self.ask_for_prefixes(now, &mut out),
            _ => {}
        }
        if let Some(twin) = &mut self.twin {
            let number = self.mood_number;
            for (peers, bytes) in twin.tick(now) {
                speak_as_second(number, &peers, &bytes, &mut out);
            }
        }
        self.lies += out.len() as u64;
        out
    }

    fn flips(&mut self, now: Now) -> Option<u64> {
        if self.mood != Strategy::RottenMemory || now.monotonic_ms < self.flip_ms {
            return None;
        }
        self.flip_ms = now.monotonic_ms + self.random.below(FLIP_MS);
        self.lies += 1;
        Some(self.random.next())
    }

    fn lies(&self) -> u64 {
        self.lies
    }
}

/// Which of the twins a peer talks to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    First,
    Second,
}

fn side(mood: u64, peer: Peer) -> Side {
    let name = match peer {
        Peer::Replica(id) => u64::from(id.0),
        Peer::Client { connection, .. } => 1_000 + connection,
    };
    let mixed = crate::random::mix(mood.wrapping_mul(0x9e37_79b9).wrapping_add(name));
    if mixed & 1 == 0 { Side::First } else { Side::Second }
}

fn speak_as_second(mood: u64, peers: &[Peer], bytes: &Bytes, out: &mut Vec<Said>) {
    for peer in peers.iter().filter(|peer| side(mood, **peer) == Side::Second) {
        out.push(Said { after_ms: 0, peer: *peer, bytes: bytes.clone() });
    }
}

/// Passes an input to the twin that the peer talks to; false if that is not the first.
fn hear_as_twins(
    mood: u64,
    twin: &mut dyn Shadow,
    now: Now,
    input: &Input,
    out: &mut Vec<Said>,
) -> bool {
    match input {
        Input::Message { peer, bytes } => {
            let first = side(mood, *peer) == Side::First;
            if !first {
                let input = Input::Message { peer: *peer, bytes: bytes.clone() };
                for (peers, bytes) in twin.hear(now, input) {
                    speak_as_second(mood, &peers, &bytes, out);
                }
            }
            first
        }
        Input::LinkUp(peer) => {
            for (peers, bytes) in twin.hear(now, Input::LinkUp(*peer)) {
                speak_as_second(mood, &peers, &bytes, out);
            }
            true
        }
        Input::LinkDown(peer) => {
            for (peers, bytes) in twin.hear(now, Input::LinkDown(*peer)) {
                speak_as_second(mood, &peers, &bytes, out);
            }
            true
        }
        _ => true,
    }
}
