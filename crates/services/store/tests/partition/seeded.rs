//! Mistakes made on purpose that the simulator does not see, or seldom: each fails a test of this suite. Such a test runs in a process of its own, since a mistake is
//! switched on for all of it ([`super::world::World::of`] does so where the environment names one).

use perdura_protocol::seeded::ARE_BUILT_IN;
use std::process::Command;

/// The variable that names a mistake.
pub const NAMES_BUG: &str = "PERDURA_TEST_BUG";

const FOUND_BY: [(&str, &str); 9] = [
    ("marks-ignored", "marks::one_who_writes_gets_in_though_readers_never_end"),
    ("later-first", "marks::they_come_in_the_order_of_their_marks"),
    (
        "ranges-last",
        "marks::one_who_reads_a_range_comes_behind_older_marks_and_before_younger_ones",
    ),
    ("marked-again", "wasteful::who_wastes_others_time_has_void_marks_for_a_while"),
    ("old-words-show-life", "hearing::outages_of_either_group_shift_nothing"),
    ("votes-show-life", "hearing::a_vote_may_be_any_time_old_and_shows_nothing"),
    ("commit-refused", "bounds_by_key::room_is_kept_for_what_was_prepared"),
    ("reader-ended-by-others", "steps::one_that_only_reads_is_ended_by_its_client_without_votes"),
    (
        "validated-under-lock",
        "snapshots::what_is_being_written_does_not_hold_though_nothing_has_changed",
    ),
];

#[test]
fn mistakes_that_the_simulator_does_not_see_are_found() {
    if !ARE_BUILT_IN {
        panic!("run it with --features perdura-protocol/seeded-bugs");
    }
    let this = std::env::current_exe().expect("it runs");
    for (bug, test) in FOUND_BY {
        let passes = |named: &str| {
            let test = format!("partition::{test}");
            let mut command = Command::new(&this);
            let output = command.args(["--exact", &test]).env(NAMES_BUG, named).output();
            let output = output.expect("it runs again");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("running 1 test"), "there is no test {test}: {said}");
            output.status.success()
        };
        assert!(passes(""), "{test} fails without it");
        assert!(!passes(bug), "{bug} is not found");
    }
}
