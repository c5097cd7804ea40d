//! Commands that come again: they are answered, and not executed once more.

use super::Machine;
use super::waits::about_session;
use crate::service::Service;
use crate::session::Token;
use perdura_protocol::{Command, Frame, Outcome, SessionId};
use std::ops::Range;

/// What of a frame matters when its commands were executed already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Whose they are.
    pub session: SessionId,
    /// Their numbers.
    pub numbers: Range<u64>,
    // How it opens its session, if it does.
    opening: Option<Command>,
}

impl Retry {
    /// Of a frame.
    #[must_use]
    pub fn of(frame: &Frame) -> Retry {
        let numbers = frame.first_number..frame.end_number();
        let opening = (numbers.start == 0).then(|| about_session(frame)).flatten();
        Retry { session: frame.session, numbers, opening }
    }
}

impl<S: Service> Machine<S> {
    /// The answer to who opens a session which is live.
    fn opened_again(&self, retry: &Retry) -> Option<Outcome> {
        let live = self.sessions.get(retry.session)?;
        match retry.opening.as_ref()? {
            Command::Open => Some(live.opened_again(Token::default())),
            Command::OpenBy { token } if self.rules() > 0 => Some(live.opened_again(*token)),
            _ => None,
        }
    }

    /// The answer to a retry, if it is known without ordering the command again.
    #[must_use]
    pub fn cached(&self, session: SessionId, number: u64) -> Option<Outcome> {
        let live = self.sessions.get(session)?;
        let waits = || (self.rules() > 0 && live.waits(number)).then_some(Outcome::Waits);
        live.answer(number).or_else(waits)
    }

    /// The answers to commands that need not be ordered again, those that are there; `None` if one has to be.
    #[must_use]
    pub fn answers(&self, retry: &Retry) -> Option<Vec<(u64, Outcome)>> {
        let mut outcomes = Vec::new();
        for number in retry.numbers.clone() {
            let opened = (number == 0).then(|| self.opened_again(retry)).flatten();
            match opened.or_else(|| self.cached(retry.session, number)) {
                Some(outcome) => outcomes.push((number, outcome)),
                None if self.is_settled(retry.session, number) => {}
                None => return None,
            }
        }
        Some(outcomes)
    }

    /// Whether ordering the command again would change nothing: its answer is known, or it waits and
    /// its answer comes by itself.
    #[must_use]
    pub fn is_settled(&self, session: SessionId, number: u64) -> bool {
        self.sessions.get(session).is_some_and(|live| live.is_settled(number))
    }
}
