//! Replicas that lie, in test builds (feature `misbehave`): what the node says goes through an
//! [`Interceptor`] first. In any other build this is nothing.

use crate::node::{Input, Interceptor, Now, Peer, Said};
use bytes::Bytes;
use perdura_protocol::Configuration;
use std::collections::BTreeMap;

/// Messages kept for later.
const LATE: usize = 10_000;

/// Between two times at which it is told how many lies there were.
const TELL_MS: u64 = 1_000;

/// What stands between the node and its links.
#[derive(Default)]
pub struct Intercept {
    interceptor: Option<Box<dyn Interceptor>>,
    late: BTreeMap<(u64, u64), (Peer, Bytes)>,
    number: u64,
    // Lies that were told of, and when that was.
    told: u64,
    told_ms: u64,
    ready: Vec<(Peer, Bytes)>,
}

impl Intercept {
    pub fn new(interceptor: Option<Box<dyn Interceptor>>) -> Intercept {
        Intercept { interceptor, ..Intercept::default() }
    }

    /// Whether the node gets to see an input.
    pub fn hears(&mut self, now: Now, input: &Input) -> bool {
        let Some(interceptor) = &mut self.interceptor else { return true };
        let mut said = Vec::new();
        let hears = interceptor.hears(now, input, &mut said);
        self.take(now, said);
        hears
    }

    /// What leaves when the node says something; none: just that.
    pub fn says(&mut self, now: Now, peers: &[Peer], bytes: &Bytes) -> bool {
        let Some(interceptor) = &mut self.interceptor else { return false };
        let said = interceptor.says(now, peers, bytes);
        self.take(now, said);
        true
    }

    pub fn learn(&mut self, configuration: &Configuration) {
        if let Some(interceptor) = &mut self.interceptor {
            interceptor.learn(configuration);
        }
    }

    /// Time passes; returns what leaves now.
    pub fn due(&mut self, now: Now) -> Vec<(Peer, Bytes)> {
        if let Some(interceptor) = &mut self.interceptor {
            let said = interceptor.tick(now);
            self.take(now, said);
        }
        while let Some(entry) = self.late.first_entry()
            && entry.key().0 <= now.monotonic_ms
        {
            self.ready.push(entry.remove());
        }
        std::mem::take(&mut self.ready)
    }

    pub fn flips(&mut self, now: Now) -> Option<u64> {
        self.interceptor.as_mut().and_then(|interceptor| interceptor.flips(now))
    }

    /// How many lies there were so far, if there are new ones and it is time to tell.
    pub fn lies(&mut self, now: Now) -> Option<u64> {
        let lies = self.interceptor.as_ref().map_or(0, |interceptor| interceptor.lies());
        if lies == self.told || now.monotonic_ms < self.told_ms + TELL_MS {
            return None;
        }
        (self.told, self.told_ms) = (lies, now.monotonic_ms);
        Some(lies)
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
