//! Guards liveness (A4, C1): every call ends by its deadline; with at most `u` replicas failed at
//! a time, calls with enough time get a result, soon if nothing else fails meanwhile; and once all
//! is well, all replicas take part and are equal.

use crate::violation::{Broken, Check};
use perdura_agreement::timing::{REQUEST_MS, VIEW_CHANGE_MS};

const RULE: &str = "Progress (A4, C1)";

/// Failed leaders in a row, and the one that works, at the largest `u` of a simulated group.
const LEADERS: u64 = 3;

/// Longest time that a call waits in a group with at most `u` failed replicas while no other one
/// fails, virtual microseconds. That many leaders are tried, each for the time-outs of a request
/// and of a view change, which double from one to the next; 1.5 s are for the client to send again.
pub const TIMEOUT_US: u64 = 1_000 * ((REQUEST_MS + VIEW_CHANGE_MS) * ((1 << LEADERS) - 1) + 1_500);

/// How much longer it may wait where a leader withholds single frames, virtual microseconds: it has to be
/// caught eight times, a second apart, and twice as often for each one after it.
pub const WITHHELD_US: u64 = 12_000_000;

/// Longest time that a call waits while failures come one after the other, never more than `u` at
/// a time, virtual microseconds: each may cost a view change with backed-off time-outs.
pub const TROUBLED_US: u64 = 60_000_000;

/// Longest time until all replicas are equal once all is well, virtual microseconds.
pub const CONVERGENCE_US: u64 = 300_000_000;

/// A call of `client` with enough time ended without result after `waited_us`.
pub fn gave_up(client: usize, waited_us: u64, what: &str) -> Check {
    if waited_us < TROUBLED_US {
        return Ok(());
    }
    let what = format!("client {client} waited {} ms in vain: {what}", waited_us / 1000);
    Err(Broken::new(RULE, what))
}

/// A call of `client` has waited for `calm_us` in which no replica failed that had not before, in a group
/// where it may for `timeout_us`.
pub fn waits(client: usize, record: usize, calm_us: u64, timeout_us: u64) -> Check {
    if calm_us < timeout_us {
        return Ok(());
    }
    let calm_ms = calm_us / 1000;
    let what =
        format!("client {client} waits for call {record}, {calm_ms} ms after the last failure");
    Err(Broken::new(RULE, what))
}

/// A call of `client` ended at `now_ms` by its clock.
pub fn ended_in_time(client: usize, record: usize, now_ms: u64, deadline_ms: u64) -> Check {
    if now_ms <= deadline_ms + 1 {
        return Ok(());
    }
    let late_ms = now_ms - deadline_ms;
    let what = format!("call {record} of client {client} ended {late_ms} ms after its deadline");
    Err(Broken::new("Deadline (C1)", what))
}

/// When a client was woken at `now_ms`, it next wants to be at `next_ms`.
pub fn sleeps(client: usize, now_ms: u64, next_ms: Option<u64>) -> Check {
    if next_ms.is_none_or(|next| next > now_ms) {
        return Ok(());
    }
    Err(Broken::new(
        RULE,
        format!("client {client} is woken at {now_ms} ms and wants to be again at once"),
    ))
}

/// The group does not come to rest.
#[must_use]
pub fn no_convergence(how: &str) -> Broken {
    Broken::new(RULE, format!("all is well for {} s, and {how}", CONVERGENCE_US / 1_000_000))
}

/// A correct replica says of another that it does what none does.
#[must_use]
pub fn accused(replica: usize, what: &str) -> Broken {
    Broken::new("NoFalseAccusation (A3)", format!("replica {replica} says: {what}"))
}

/// A replica stopped itself.
#[must_use]
pub fn halted(replica: usize, why: &str) -> Broken {
    Broken::new(RULE, format!("replica {replica} halted: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_ends() {
        assert!(gave_up(0, TROUBLED_US - 1, "x").is_ok());
        assert!(gave_up(0, TROUBLED_US, "x").is_err());
        assert_eq!(TIMEOUT_US, 12_000_000);
        assert!(waits(0, 1, TIMEOUT_US - 1, TIMEOUT_US).is_ok());
        assert!(waits(0, 1, TIMEOUT_US, TIMEOUT_US).is_err());
    }

    #[test]
    fn a_call_ends_by_its_deadline_or_with_the_tick_after_it() {
        assert!(ended_in_time(0, 1, 501, 500).is_ok());
        assert!(ended_in_time(0, 1, 502, 500).is_err());
    }
}
