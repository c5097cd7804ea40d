//! Mistakes made on purpose about what is attested, and claimed in commands, are found. The other ones are the simulator's to find.

mod common;
mod notary;

use notary::single::{
    a_proposal_with_false_claims_is_not_voted_for, nothing_is_attested_before_it_is_logged,
};
use perdura_protocol::seeded::Bug;
use std::panic::catch_unwind;

/// One test: a bug is switched on for the whole process.
#[test]
fn mistakes_about_attestations_are_found() {
    let checks: [(Bug, fn()); 2] = [
        (Bug::ReplyBeforeLog, nothing_is_attested_before_it_is_logged),
        (Bug::ClaimsUnverified, a_proposal_with_false_claims_is_not_voted_for),
    ];
    checks.iter().for_each(|(_, check)| check());
    for (bug, check) in checks {
        bug.activate().unwrap();
        assert!(catch_unwind(check).is_err(), "{} is not found", bug.name());
    }
}
