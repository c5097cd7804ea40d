//! Guards A6: whoever asks for states again and again is answered now and then, for the answer makes
//! all who are asked repeat their votes.

use crate::violation::{Broken, Check};
use perdura_protocol::Message;
use std::collections::BTreeMap;

const RULE: &str = "BoundedAnswers (A6)";

/// Answers to queries of one replica within [`WINDOW_US`], those of two lives of a process among
/// them; a node gives one in 100 ms.
const ANSWERS: u32 = 4;

/// Virtual microseconds.
const WINDOW_US: u64 = 50_000;

/// The checker.
#[derive(Debug, Default)]
pub struct BoundedAnswers {
    // By who answers whom: since when, and how many.
    given: BTreeMap<(usize, usize), (u64, u32)>,
}

impl BoundedAnswers {
    /// `replica` says this to `peer`.
    pub fn answers(&mut self, replica: usize, peer: usize, message: &Message, now: u64) -> Check {
        let Message::StateInfo { .. } = message else { return Ok(()) };
        let place = self.given.entry((replica, peer)).or_insert((now, 0));
        if now > place.0 + WINDOW_US {
            *place = (now, 0);
        }
        place.1 += 1;
        if place.1 > ANSWERS {
            let what = format!("replica {replica} tells replica {peer} {} times at once", place.1);
            return Err(Broken::new(RULE, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Slot;
    use perdura_protocol::viewchange::PrefixCertificate;

    #[test]
    fn answers_are_counted_for_a_while() {
        let mut checker = BoundedAnswers::default();
        let prefix = PrefixCertificate::genesis();
        let answer = Message::StateInfo { delivered: Slot(1), state: None, prefix };
        for _ in 0..ANSWERS {
            assert!(checker.answers(0, 1, &answer, 5).is_ok());
        }
        assert!(checker.answers(0, 2, &answer, 5).is_ok());
        assert!(checker.answers(0, 1, &Message::StateQuery, 5).is_ok());
        assert!(checker.answers(0, 1, &answer, 5).is_err());
        assert!(checker.answers(0, 1, &answer, 5 + WINDOW_US + 1).is_ok());
    }
}
