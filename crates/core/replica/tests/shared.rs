//! What `stage.rs` and `stalled.rs` say, as tests. Those files are part of another program of tests too, which switches mistakes on for all of itself
//! while it asks them: so they have no tests of their own, which would run beside that.

use crate::{stage, stalled};

#[test]
fn a_stage_of_its_own_is_nobodys_fault_and_no_excuse() {
    stage::a_leader_is_not_suspected_for_a_stage_that_holds_the_pipeline();
    stage::a_leader_is_suspected_though_a_stage_has_work();
    stage::a_pipeline_that_is_full_for_a_moment_excuses_nothing();
    stage::a_retry_of_what_waits_for_the_stage_waits_too();
}

#[test]
fn what_waits_for_the_stage_is_reported() {
    stage::what_waits_for_the_stage_is_reported();
}

#[test]
fn reads_are_answered_beside_the_stage_in_the_state_that_they_wait_for() {
    stage::reads_are_answered_beside_the_stage_in_the_state_that_they_wait_for();
}

#[test]
fn a_read_of_one_slot_is_answered_by_the_state_after_it_alone() {
    stage::a_read_of_one_slot_is_answered_by_the_state_after_it_alone();
}

#[test]
fn a_replay_that_is_to_stop_does_so_behind_a_batch() {
    stage::a_replay_that_is_to_stop_does_so_behind_a_batch();
}

#[test]
fn who_waits_for_its_disk_for_two_seconds_takes_no_part_until_it_comes_back() {
    stalled::who_waits_for_its_disk_for_two_seconds_takes_no_part_until_it_comes_back();
}

#[test]
fn a_leader_whose_disk_hangs_is_replaced_unless_all_disks_are_slow() {
    stalled::a_leader_whose_disk_hangs_is_replaced_unless_all_disks_are_slow();
}

#[test]
fn who_says_that_its_disk_hangs_is_not_one_of_those_that_are_needed() {
    stalled::who_says_that_its_disk_hangs_is_not_one_of_those_that_are_needed();
}
