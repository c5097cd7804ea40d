//! Mistakes made on purpose about what is attested, claimed in commands, and planned, and about disks that hang, are found. The other ones are the simulator's to find.

mod common;
mod follower;
mod harness {
    pub(crate) use crate::settings;
}
mod notary;
#[path = "../../agreement/tests/planning.rs"]
mod planning;
#[path = "../../agreement/tests/harness/settings.rs"]
mod settings;
#[allow(dead_code, reason = "what is asked with mistakes is a part of it")]
mod stage;
#[allow(dead_code, reason = "as above")]
mod stalled;

use notary::single::{
    a_proposal_with_false_claims_is_not_voted_for, nothing_is_attested_before_it_is_logged,
};
use perdura_protocol::seeded::Bug;
use std::panic::catch_unwind;

/// One test: a bug is switched on for the whole process.
#[test]
fn mistakes_that_the_simulator_does_not_see_are_found() {
    let checks: [(Bug, fn()); 9] = [
        (
            Bug::SlowStageBlamed,
            stage::a_leader_is_not_suspected_for_a_stage_that_holds_the_pipeline,
        ),
        (Bug::StageWorkExcuses, stage::a_leader_is_suspected_though_a_stage_has_work),
        (Bug::MomentExcuses, stage::a_pipeline_that_is_full_for_a_moment_excuses_nothing),
        (Bug::DecidedForgotten, stage::a_retry_of_what_waits_for_the_stage_waits_too),
        (
            Bug::StalledLeads,
            stalled::a_leader_whose_disk_hangs_is_replaced_unless_all_disks_are_slow,
        ),
        (
            Bug::StalledCounts,
            stalled::who_says_that_its_disk_hangs_is_not_one_of_those_that_are_needed,
        ),
        (Bug::CostsUnplanned, planning::costly_slots_are_proposed_one_after_the_other),
        (Bug::ReplyBeforeLog, nothing_is_attested_before_it_is_logged),
        (Bug::ClaimsUnverified, a_proposal_with_false_claims_is_not_voted_for),
    ];
    checks.iter().for_each(|(_, check)| check());
    for (bug, check) in checks {
        bug.activate().unwrap();
        assert!(catch_unwind(check).is_err(), "{} is not found", bug.name());
    }
}
