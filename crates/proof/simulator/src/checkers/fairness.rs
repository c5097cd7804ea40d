//! Guards A6 and A4: with r > 0 no leader serves some clients and passes another one over for long.
//! What a client waits counts only while others are served, so that view changes and slow times
//! are nobody's fault.

use crate::violation::{Broken, Check};
use perdura_protocol::Faults;
use std::collections::BTreeMap;

const RULE: &str = "Fairness (A6)";

/// Longest wait of a client while others are served, virtual microseconds, for each liar that may
/// come to lead: its own time-out, after which it turns to all replicas, and the times of their
/// suspicion (`crates/core/agreement/src/demand.rs`), twice.
const TIMEOUT_US: u64 = 4_000_000;

/// Rounds of turns that may pass a client by (the same file).
const FAIR_ROUNDS: u64 = 8;

/// Longest time between two calls that are served which counts as one in which others are served.
const GAP_US: u64 = 250_000;

/// Since when a client waits: in time that counts, and calls of others.
#[derive(Clone, Copy, Debug)]
struct Since {
    counted_us: u64,
    served: u64,
}

/// The checker.
#[derive(Debug)]
pub struct Fairness {
    timeout_us: u64,
    calls: u64,
    // Time that counts until the last call was served, that moment, and calls served so far.
    counted_us: u64,
    last_us: u64,
    served: u64,
    waiting: BTreeMap<usize, Since>,
}

impl Fairness {
    /// For a run with so many clients of so many callers.
    ///
    /// A leader is suspected after the slots that were in agreement when it was asked, and then
    /// `FAIR_ROUNDS` rounds of turns. A slot has no more calls than there are callers; a round has
    /// a turn for each client, and the one that ends it. Half as many again are granted.
    #[must_use]
    pub fn new(faults: Faults, depth: u64, clients: u64, callers: u64) -> Fairness {
        let (slots, turns) = (depth + depth / 4, FAIR_ROUNDS * (clients + 1));
        Fairness {
            timeout_us: TIMEOUT_US * faults.r() as u64,
            calls: callers * (slots * clients + turns) * 3 / 2,
            counted_us: 0,
            last_us: 0,
            served: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// A client asks for something to be ordered.
    pub fn asks(&mut self, client: usize) {
        let since = Since { counted_us: self.counted_us, served: self.served };
        self.waiting.entry(client).or_insert(since);
    }

    /// A client waits for nothing any more.
    pub fn leaves(&mut self, client: usize) {
        self.waiting.remove(&client);
    }

    /// A client got the result of something that was ordered.
    pub fn served(&mut self, client: usize, now_us: u64) -> Check {
        self.counted_us += now_us.saturating_sub(self.last_us).min(GAP_US);
        self.last_us = now_us;
        self.served += 1;
        self.waiting.remove(&client);
        for (other, since) in &self.waiting {
            let (waited_us, calls) =
                (self.counted_us - since.counted_us, self.served - since.served);
            if waited_us > self.timeout_us && calls > self.calls {
                let what = format!(
                    "client {other} waits for {} ms in which {calls} calls of others were served",
                    waited_us / 1000
                );
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Client 1 is served every 100 ms, so many times.
    fn served(checker: &mut Fairness, from_us: u64, times: u64) -> Check {
        (1..=times).try_for_each(|time| checker.served(1, from_us + time * 100_000))
    }

    #[test]
    fn who_is_passed_over_is_noticed() {
        let mut checker = Fairness::new(Faults::new(1, 1).unwrap(), 2, 2, 1);
        checker.asks(0);
        assert!(served(&mut checker, 0, 40).is_ok());
        assert!(served(&mut checker, 4_000_000, 3).is_err());
    }

    #[test]
    fn nobody_is_passed_over_while_nobody_is_served() {
        let mut checker = Fairness::new(Faults::new(1, 1).unwrap(), 2, 2, 1);
        checker.asks(0);
        assert!(served(&mut checker, 0, 20).is_ok());
        assert!(served(&mut checker, 60_000_000, 15).is_ok());
        checker.leaves(0);
        assert!(served(&mut checker, 63_000_000, 100).is_ok());
    }
}
