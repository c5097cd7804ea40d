//! What clients do about what they have under leases, and as operators about what others have, by what they remember: rightly, twice,
//! too late, and in the wrong space.

use super::spaces::{POOL, SPACE};
use crate::checkers::commit_order::Seen;
use crate::random::Random;
use perdura_protocol::SessionId;
use perdura_tuples::{Operation, TupleReply};

/// What a client remembers of each kind.
const REMEMBERED: usize = 8;

/// What one client knows of what is had and waited for; whether in the pool, or in the space that stays.
#[derive(Clone, Debug)]
pub struct Holders {
    // Where each caller's last command was.
    pooled: Vec<bool>,
    // Numbers and tokens of leases.
    leases: Vec<(bool, u64, u64)>,
    waits: Vec<(bool, SessionId, u64)>,
    // Numbers of tuples.
    seen: Vec<(bool, u64)>,
    // Tokens of locks.
    locks: Vec<u64>,
}

fn remember<T>(list: &mut Vec<T>, what: T) {
    list.push(what);
    if list.len() > REMEMBERED {
        list.remove(0);
    }
}

impl Holders {
    /// Of a client with so many callers.
    pub fn new(callers: usize) -> Holders {
        let (leases, waits, seen, locks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Holders { pooled: vec![false; callers], leases, waits, seen, locks }
    }

    /// The space of a caller's next command.
    pub fn asks(&mut self, caller: usize, pooled: bool) -> &'static str {
        self.pooled[caller] = pooled;
        if pooled { POOL } else { SPACE }
    }

    /// A caller has a lock.
    pub fn locked(&mut self, token: u64) {
        remember(&mut self.locks, token);
    }

    /// A caller's command ended.
    pub fn ended(&mut self, caller: usize, seen: &Seen<TupleReply>) {
        let pooled = self.pooled[caller];
        match seen {
            Seen::Ok(TupleReply::Leased(Some(leased))) => {
                remember(&mut self.leases, (pooled, leased.number, leased.token));
                remember(&mut self.seen, (pooled, leased.number));
            }
            Seen::Ok(TupleReply::Waits { waits, .. }) => {
                for wait in waits {
                    remember(&mut self.waits, (pooled, wait.session, wait.number));
                }
            }
            _ => {}
        }
    }

    /// What is done about something of it, and whether in the pool; nothing if there is nothing yet. `numbers` are of tuples that
    /// the client inserted.
    pub fn draw(
        &mut self,
        random: &mut Random,
        numbers: &[u64],
        lease_ms: u64,
    ) -> Option<(bool, Operation)> {
        match random.below(100) {
            0..70 if !self.leases.is_empty() => {
                let at = random.below(self.leases.len() as u64) as usize;
                let (pooled, number, token) = self.leases[at];
                let operation = match random.below(10) {
                    0..5 => Operation::Finish { number, token },
                    5..8 => Operation::Return { number, token },
                    _ => Operation::Extend { number, token, lease_ms },
                };
                // Some do it again.
                let goes_on = matches!(operation, Operation::Extend { .. });
                if !goes_on && random.percent(60) {
                    self.leases.remove(at);
                }
                Some((pooled, operation))
            }
            70..82 if !self.waits.is_empty() => {
                let at = random.below(self.waits.len() as u64) as usize;
                let (pooled, session, number) = self.waits.remove(at);
                Some((pooled, Operation::EndWait { session, number }))
            }
            82..91 if !self.locks.is_empty() => {
                // The last one, which somebody may have.
                let number = self.locks.pop()?;
                Some((false, Operation::Break { number }))
            }
            91..97 if !self.seen.is_empty() => {
                let (pooled, number) = *random.pick(&self.seen);
                Some((pooled, Operation::Break { number }))
            }
            97.. if !numbers.is_empty() => {
                Some((false, Operation::Break { number: *random.pick(numbers) }))
            }
            _ => None,
        }
    }
}
