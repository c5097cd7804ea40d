//! Guards liveness (A4, C1): every call ends by its deadline; with at most `u` replicas failed at
//! a time, calls with enough time get a result; and once all is well, all replicas take part and
//! are equal.

use crate::violation::{Broken, Check};

const RULE: &str = "Progress (A4, C1)";

/// Longest time that a group with at most `u` failed replicas keeps a call waiting, virtual
/// microseconds: failures come one after the other here, and each may cost a view change with
/// backed-off time-outs.
pub const PATIENCE_US: u64 = 60_000_000;

/// Longest time until all replicas are equal once all is well, virtual microseconds.
pub const CONVERGENCE_US: u64 = 300_000_000;

/// A call of `client` ended without result after `waited_us`.
pub fn gave_up(client: usize, waited_us: u64, what: &str) -> Check {
    if waited_us < PATIENCE_US {
        return Ok(());
    }
    let what = format!("client {client} waited {} ms in vain: {what}", waited_us / 1000);
    Err(Broken::new(RULE, what))
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
    fn patience_ends() {
        assert!(gave_up(0, PATIENCE_US - 1, "x").is_ok());
        assert!(gave_up(0, PATIENCE_US, "x").is_err());
    }
}
