//! What may stand between a node and its links, and reach into its memory, so that tests have replicas that lie and memory that
//! rots ([`Interceptor`]). A replica in use has none: whatever the node says leaves, and it hears all that comes.

use super::Clock;
use crate::node::{Input, Interceptor, Now, Peer, Said};
use bytes::Bytes;
use perdura_execution::{FailingMemory, Service, flip_bit_of};
use perdura_protocol::Configuration;
use std::collections::BTreeMap;

/// Messages kept for later.
const LATE: usize = 10_000;

/// Between two times at which it is told how many lies there were.
const TELL_MS: u64 = 1_000;

/// Between a node and its links.
#[derive(Default)]
pub struct Tap {
    tapped: Option<Tapped>,
}

struct Tapped {
    interceptor: Box<dyn Interceptor>,
    flip_bit: fn(&mut dyn Service, u64) -> bool,
    late: BTreeMap<(u64, u64), (Peer, Bytes)>,
    number: u64,
    // Lies that were told of, and when that was.
    told: u64,
    told_ms: u64,
    ready: Vec<(Peer, Bytes)>,
}

impl Tap {
    /// For a node of a service `S`.
    pub fn new<S: Service + FailingMemory>(interceptor: Box<dyn Interceptor>) -> Tap {
        Tap {
            tapped: Some(Tapped {
                interceptor,
                flip_bit: flip_bit_of::<S>,
                late: BTreeMap::new(),
                number: 0,
                told: 0,
                told_ms: 0,
                ready: Vec::new(),
            }),
        }
    }

    /// Whether the node gets to see an input.
    pub fn hears(&mut self, now: Now, input: &Input) -> bool {
        let Some(tapped) = &mut self.tapped else { return true };
        let mut said = Vec::new();
        let hears = tapped.interceptor.hears(now, input, &mut said);
        tapped.take(now, said);
        hears
    }

    /// Whether something else leaves in place of what the node says, which is due then.
    pub fn says(&mut self, clock: Clock, peers: &[Peer], bytes: &Bytes) -> bool {
        let Some(tapped) = &mut self.tapped else { return false };
        let now = clock.now();
        let said = tapped.interceptor.says(now, peers, bytes);
        tapped.take(now, said);
        true
    }

    pub fn learn(&mut self, configuration: &Configuration) {
        if let Some(tapped) = &mut self.tapped {
            tapped.interceptor.learn(configuration);
        }
    }

    /// Time passes; returns what leaves now.
    pub fn due(&mut self, now: Now) -> Vec<(Peer, Bytes)> {
        self.tapped.as_mut().map(|tapped| tapped.due(now)).unwrap_or_default()
    }

    /// Flips a bit of the service's state, if one is to rot now. True if it did.
    pub fn rots(&mut self, now: Now, service: &mut dyn Service) -> bool {
        let Some(tapped) = &mut self.tapped else { return false };
        tapped.interceptor.flips(now).is_some_and(|at| (tapped.flip_bit)(service, at))
    }
}

impl Tapped {
    fn due(&mut self, now: Now) -> Vec<(Peer, Bytes)> {
        let said = self.interceptor.tick(now);
        self.take(now, said);
        while let Some(entry) = self.late.first_entry()
            && entry.key().0 <= now.monotonic_ms
        {
            self.ready.push(entry.remove());
        }
        let lies = self.interceptor.lies();
        if lies != self.told && now.monotonic_ms >= self.told_ms + TELL_MS {
            (self.told, self.told_ms) = (lies, now.monotonic_ms);
            tracing::info!("lies told so far: {lies}");
        }
        std::mem::take(&mut self.ready)
    }

    fn take(&mut self, now: Now, said: Vec<Said>) {
        for Said { after_ms, peer, bytes } in said {
            self.number += 1;
            if after_ms == 0 {
                self.ready.push((peer, bytes));
            } else if self.late.len() < LATE {
                self.late.insert((now.monotonic_ms + after_ms, self.number), (peer, bytes));
            }
        }
    }
}
