//! Clients that ask who is there. An answer costs a signature, so that there are few in a tick; who asks more than is answered waits for its
//! turn.
//!
//! Invariants: of one key one question waits at most, and one is answered in a tick; those that wait are answered in the order in
//! which they came, before any that comes later. So however many keys ask without end, another one is answered when each of them was
//! once. The administrator's is answered at once, once in a tick.

use super::waiting::{Capacity, Lines};
use super::{Node, Peer};
use perdura_agreement::Now;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::vitals::{Presence, Runs, Vitals};
use perdura_protocol::{Encode, PublicKey, Slot, View, limits};
use std::collections::BTreeSet;

/// Answers in a tick, beside one for the administrator.
const ANSWERS: usize = 4;

/// Bytes of a question.
const QUESTION_BYTES: usize = 16;

/// One question of each registered key and of the administrator's; nobody else is linked.
const WAITING: Capacity =
    Capacity { items: limits::CLIENTS + 1, bytes: (limits::CLIENTS + 1) * QUESTION_BYTES };

/// What was asked, and on which link.
type Question = (Peer, [u8; 16]);

/// See the module.
#[derive(Debug)]
pub(super) struct RollCalls {
    /// Whose were answered in this tick.
    answered: BTreeSet<PublicKey>,
    /// How many more may be, beside one of the administrator.
    left: usize,
    waiting: Lines<PublicKey, Question>,
}

impl Default for RollCalls {
    fn default() -> RollCalls {
        RollCalls { answered: BTreeSet::new(), left: ANSWERS, waiting: Lines::new(WAITING) }
    }
}

impl RollCalls {
    /// Whether a question is to be answered now; else it waits, or is dropped where one of its key waits already.
    fn ask(&mut self, key: PublicKey, question: Question, is_administrator: bool) -> bool {
        let has_turn = self.left > 0 && self.waiting.held().0 == 0;
        if (has_turn || is_administrator) && self.answered.insert(key) {
            self.left -= usize::from(!is_administrator);
            return true;
        }
        if self.waiting.length(key) == 0 {
            // Where there is no room it is asked again.
            let _ = self.waiting.push(key, question, QUESTION_BYTES);
        }
        false
    }

    /// Time passes: those whose turn it is.
    fn tick(&mut self) -> Vec<(PublicKey, Question)> {
        self.answered.clear();
        let turns = std::iter::from_fn(|| self.waiting.pop(|_| true)).take(ANSWERS);
        let turns: Vec<_> = turns.collect();
        self.answered.extend(turns.iter().map(|(key, _)| *key));
        self.left = ANSWERS - turns.len();
        turns
    }
}

impl Node {
    /// A client asks who is there. It asks again where it gets no answer.
    pub(super) fn on_roll_call(&mut self, now: Now, peer: Peer, key: PublicKey, nonce: [u8; 16]) {
        let is_administrator = key == self.execution.administrator();
        if self.roll_calls.ask(key, (peer, nonce), is_administrator) {
            self.say_present(now, peer, nonce);
        }
    }

    pub(super) fn tick_roll_calls(&mut self, now: Now) {
        for (key, (peer, nonce)) in self.roll_calls.tick() {
            // It may have been revoked while it waited.
            if self.execution.is_client(key) {
                self.say_present(now, peer, nonce);
            }
        }
    }

    fn say_present(&mut self, now: Now, peer: Peer, nonce: [u8; 16]) {
        let runs = Runs {
            service: self.parameters.service.clone(),
            versions: self.execution.versions(),
            newest: self.execution.newest_versions(),
        };
        let vitals = Vitals { runs: Some(runs), ..self.vitals(now) }.to_bytes();
        let digest = Vitals::present_digest(&nonce, &vitals);
        let configuration = self.agreement.configurations().latest().id;
        let cluster = self.parameters.cluster;
        let context = perdura_protocol::Context { cluster, configuration };
        let signature =
            self.key.sign(&context.statement(StatementKind::Present, View(0), Slot(0), digest));
        let presence = Presence { nonce, configuration, vitals };
        self.send(&[peer], &Message::Present { presence, signature });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: u8) -> PublicKey {
        PublicKey([of; 32])
    }

    fn asks(calls: &mut RollCalls, of: u8) -> bool {
        let peer = Peer::Client { connection: of.into(), key: key(of) };
        calls.ask(key(of), (peer, [of; 16]), of == 0)
    }

    fn next(calls: &mut RollCalls) -> Vec<u8> {
        calls.tick().into_iter().map(|(key, _)| key.0[0]).collect()
    }

    #[test]
    fn who_asks_alone_is_answered_at_once_and_once_in_a_tick() {
        let mut calls = RollCalls::default();
        assert!(asks(&mut calls, 1));
        assert!(!asks(&mut calls, 1) && !asks(&mut calls, 1));
        assert_eq!(next(&mut calls), [1], "one of them waited");
        assert!(!asks(&mut calls, 1));
        assert_eq!(next(&mut calls), [1]);
        assert_eq!(next(&mut calls), [0; 0]);
        assert!(asks(&mut calls, 1));
    }

    #[test]
    fn each_key_has_its_turn_however_many_ask_without_end() {
        let mut calls = RollCalls::default();
        let mut answers = [0; 12];
        for tick in 0..300 {
            let mut in_tick = [0; 12];
            next(&mut calls).iter().for_each(|of| in_tick[usize::from(*of)] += 1);
            // Eleven ask all the time; one comes once in ten ticks, when they have asked.
            for of in (2..12).cycle().take(50) {
                in_tick[of] += u32::from(asks(&mut calls, of as u8));
            }
            if tick % 10 == 0 {
                in_tick[1] += u32::from(asks(&mut calls, 1));
            }
            assert!(in_tick.iter().all(|of| *of <= 1) && in_tick.iter().sum::<u32>() == 4);
            answers.iter_mut().zip(in_tick).for_each(|(all, now)| *all += now);
        }
        assert_eq!(answers[1], 30, "each time");
        // Of eleven one waits for three ticks at most.
        assert!(answers[2..].iter().all(|of| *of >= 100), "{answers:?}");
    }

    #[test]
    fn the_administrator_waits_for_nobody() {
        let mut calls = RollCalls::default();
        (1..=9).for_each(|of| _ = asks(&mut calls, of));
        assert!(asks(&mut calls, 0));
        assert!(!asks(&mut calls, 0), "once in a tick");
    }

    #[test]
    fn the_administrator_takes_nobodys_place() {
        let mut calls = RollCalls::default();
        assert!(asks(&mut calls, 0));
        assert!((1..=ANSWERS as u8).all(|of| asks(&mut calls, of)));
        assert!(!asks(&mut calls, 99));
    }

    #[test]
    fn all_keys_that_there_may_be_wait_and_no_more() {
        let mut calls = RollCalls::default();
        for index in 0..2 * limits::CLIENTS as u64 {
            let mut key = PublicKey([0; 32]);
            key.0[..8].copy_from_slice(&index.to_le_bytes());
            let peer = Peer::Client { connection: index, key };
            calls.ask(key, (peer, [0; 16]), false);
        }
        assert_eq!(calls.waiting.held().0, limits::CLIENTS + 1);
    }
}
