//! Waits until the HTTP endpoint can be listened on. What keeps it may pass (a process that has the port, an address that comes with its
//! interface) or not (a mistake in the file), so it is tried on, and said again as long as it lasts: an operator who looks at the newest lines
//! of the log finds it there.

use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(2);

/// Between two looks at whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// It is said again so long after it was said first, for the second time, ...
const SAID_AGAIN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// ... and then each time that this has gone by.
const SAID_EVERY: Duration = Duration::from_secs(3600);

/// So many reasons are each said at once: those of a resolver may change without end.
const REASONS: usize = 8;

/// A listener that does not block, and whether it serves this machine only; none when it `stops` before there is one.
pub(super) fn wait(address: &str, mut stops: impl FnMut() -> bool) -> Option<(TcpListener, bool)> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        let is_local = listener.local_addr()?.ip().is_loopback();
        listener.set_nonblocking(true)?;
        Ok((listener, is_local))
    };
    let mut said = Said::new(Instant::now());
    loop {
        let failure: std::io::Error = match bind() {
            Ok(listening) => {
                if !said.reasons.is_empty() {
                    tracing::info!("status and metrics are served at {address} now");
                }
                return Some(listening);
            }
            Err(error) => error,
        };
        let reason = failure.to_string();
        if said.is_due(&reason, Instant::now()) {
            tracing::error!(
                "status and metrics are not served, for {address} cannot be listened on: {reason}. It is tried on; if it stays so, change `http` in \
                 the own file of this replica or server, and in cluster.toml, where others look it up"
            );
        }
        let tried = Instant::now();
        while tried.elapsed() < AGAIN {
            if stops() {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// What was said of it.
struct Said {
    begun: Instant,
    reasons: Vec<String>,
    // How often it was said again.
    again: usize,
    last: Instant,
}

impl Said {
    fn new(now: Instant) -> Said {
        Said { begun: now, reasons: Vec::new(), again: 0, last: now }
    }

    /// Whether it is to be said now.
    fn is_due(&mut self, reason: &str, now: Instant) -> bool {
        if self.reasons.len() < REASONS && !self.reasons.iter().any(|known| known == reason) {
            self.reasons.push(reason.to_owned());
            self.last = now;
            return true;
        }
        let due = match SAID_AGAIN.get(self.again) {
            Some(after) => self.begun + *after,
            None => self.last + SAID_EVERY,
        };
        let is_due = now >= due;
        if is_due {
            self.again += 1;
            self.last = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it is said, in seconds, within two hours and a half.
    fn said(reason: impl Fn(u64) -> String) -> Vec<u64> {
        let begun = Instant::now();
        let mut said = Said::new(begun);
        let mut is_due =
            |second: &u64| said.is_due(&reason(*second), begun + Duration::from_secs(*second));
        (0..9_000).step_by(2).filter(|second| is_due(second)).collect()
    }

    #[test]
    fn what_lasts_is_said_now_and_then() {
        let lasting = said(|_| "permission denied".to_owned());
        assert_eq!(lasting, [0, 60, 600, 4_200, 7_800]);
    }

    #[test]
    fn another_reason_is_said_at_once_and_reasons_without_end_are_not() {
        let two = said(|second| if second < 30 { "in use" } else { "no such address" }.to_owned());
        assert_eq!(two, [0, 30, 60, 600, 4_200, 7_800]);
        assert_eq!(said(|second| second.to_string()).len(), REASONS + 4);
    }
}
