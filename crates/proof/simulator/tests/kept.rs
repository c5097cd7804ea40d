//! Bugs of the production code that seeds found, and what would see each of them again.
//!
//! The seeds are not kept for their own sake: what a seed stands for changes whenever more is drawn
//! from seeds than before, and none of these runs is the one that failed any more. What remains of
//! them is the list: a test that the bug would not get past; `Kept::Checker` says
//! that nothing but the checker named there, in whichever runs come to it, would see the bug.

use std::path::PathBuf;

/// What was wrong, whether something of its own keeps it, and what and where that is, from the
/// repository's root.
const KEPT: [(&str, Kept, &str, &str); 43] = [
    (
        "slots before a transferred state that no prefix reaches were held beside a window above it (789221675937)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "what_was_said_of_slots_before_a_transferred_state_is_forgotten",
    ),
    (
        "a false signature beside enough genuine ones was taken over and passed on (86097516)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "a_false_signature_in_the_certificate_of_a_transferred_state_is_left_out",
    ),
    (
        "Accepts that a prefix made needless were passed on, false ones too (50708)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "accepts_that_a_prefix_made_needless_are_not_passed_on",
    ),
    (
        "a new incarnation attested to slots of its predecessor (30730)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "who_is_known_by_the_newest_configuration_only_signs_no_prefix_of_older_slots",
    ),
    (
        "a state that had waited for the log was stored after a newer, transferred one (335)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "a_state_that_waited_for_the_log_gives_way_to_a_newer_one_on_its_way_to_the_disk",
    ),
    (
        "a state taken over went to disk behind a later own one that waited for the same flush (258)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "a_state_taken_over_goes_to_disk_before_a_later_own_one_that_waits_for_the_same_flush",
    ),
    (
        "a leader withheld one frame of a client that it served otherwise (83025164)",
        Kept::Test,
        "crates/core/agreement/tests/suspicion.rs",
        "a_leader_that_withholds_one_frame_is_deposed",
    ),
    (
        "a state transfer waited a minute for one lost piece (80001421, 80005587, 80005774)",
        Kept::Test,
        "crates/core/replica/src/node/fetching/tests.rs",
        "the_timeout_grows_when_nobody_gave_anything_and_within_bounds",
    ),
    (
        "a replacement waited for the NewView of a configuration that was over (61045158)",
        Kept::Test,
        "crates/core/agreement/tests/suspicion.rs",
        "who_waits_alone_for_a_view_to_start_joins_who_wants_the_next",
    ),
    (
        "whose log began at slot 1 could not serve what came before its first mark (61060112)",
        Kept::Test,
        "crates/core/agreement/src/restart.rs",
        "what_lies_on_either_side_of_a_lost_batch_still_serves_laggards",
    ),
    (
        "a Prefix left before an earlier slot of it was on disk (7)",
        Kept::Test,
        "crates/proof/simulator/src/checkers/persist_before_speak.rs",
        "another_batch_of_the_slot_is_not_the_one_decided",
    ),
    (
        "a new incarnation executed slot 1 on a state with the latest members (16)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/equal_states.rs",
        "EqualStates",
    ),
    (
        "a view change stood still when who asked for it had restarted (45)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "a_view_change_goes_on_when_who_asked_for_it_has_restarted",
    ),
    (
        "votes for a state were never repeated (47, 49, 84, 130)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "who_asks_for_a_state_is_told_the_votes_for_one_that_is_not_certified",
    ),
    (
        "an own checkpoint and a transferred one crossed on their way to the disk (115)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/persist_before_speak.rs",
        "not on its disk",
    ),
    (
        "a new incarnation took genuine view changes for garbage (872)",
        Kept::Test,
        "crates/core/agreement/src/evidence/tests.rs",
        "locks_older_than_the_oldest_known_configuration_are_not_judged",
    ),
    (
        "correct replicas were accused over locks that lacked context (1049)",
        Kept::Test,
        "crates/core/agreement/src/evidence/tests.rs",
        "locks_older_than_the_oldest_known_configuration_are_not_judged",
    ),
    (
        "correct replicas were accused over decisions that lacked context (2266)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "who_sends_decisions_without_their_proof_is_not_blamed",
    ),
    (
        "a state of an unknown configuration was taken for misbehaviour (4367)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/progress.rs",
        "NoFalseAccusation",
    ),
    (
        "nobody offered the batches that a laggard lacked after a restart (5094)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/progress.rs",
        "no_convergence",
    ),
    (
        "a lost Attach was never made up for (5961)",
        Kept::Test,
        "crates/core/replica/tests/floods.rs",
        "a_frame_attaches_its_session_where_the_attach_was_lost",
    ),
    (
        "a state that the log gave back was awaited for ever (8, 34, 114, 235)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/progress.rs",
        "no_convergence",
    ),
    (
        "where each replica had lost some votes nobody certified a prefix (140, 189)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "who_lost_some_votes_signs_the_prefix_that_it_delivered",
    ),
    (
        "the certificate of a state was forgotten by its last holder (20439, 20536)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/progress.rs",
        "no_convergence",
    ),
    (
        "a state was stored before the log that proves it (39)",
        Kept::Scenario,
        "scenarios/last_slot_unproven.txt",
        "the machine of r0 stops",
    ),
    (
        "a prefix was signed where its signer did not know the configuration (183)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "who_is_known_by_the_newest_configuration_only_signs_no_prefix_of_older_slots",
    ),
    (
        "after a restart the state that the log proves was not offered, for a newer one was there (800048)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "after_a_restart_the_state_is_offered_that_the_log_proves",
    ),
    (
        "a laggard knew too few of the keys with which a state was certified (800663)",
        Kept::Test,
        "crates/core/replica/tests/offers.rs",
        "a_certificate_has_the_signatures_of_all_who_voted",
    ),
    (
        "a replica left a view that works, and nobody followed it (5004663, 5005924)",
        Kept::Test,
        "crates/core/agreement/tests/suspicion.rs",
        "a_replica_that_left_alone_is_followed",
    ),
    (
        "a lock whose log file had rotted was taken for one that there never was (5001704)",
        Kept::Test,
        "crates/core/agreement/src/restart.rs",
        "accepts_without_their_batch_show_that_a_vote_is_lost",
    ),
    (
        "what lay on either side of a lost batch served nobody (5001162)",
        Kept::Test,
        "crates/core/agreement/src/restart.rs",
        "what_lies_on_either_side_of_a_lost_batch_still_serves_laggards",
    ),
    (
        "what followed a lost batch was proven by no mark any more once it had come (5001162)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "once_a_lost_batch_has_come_the_log_proves_what_follows_it",
    ),
    (
        "after a restart what followed a transferred state served nobody (12007344)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "the_log_after_a_transferred_state_proves_what_follows_it_also_after_a_restart",
    ),
    (
        "a restarted replica wrote, on a vote made since, other than before (20069502, 20072249)",
        Kept::Test,
        "crates/core/agreement/src/rules.rs",
        "a_restarted_replica_repeats_a_write_that_its_vote_proves",
    ),
    (
        "a state was signed in the oldest known configuration, and an older one governs it (20065679)",
        Kept::Checker,
        "crates/proof/simulator/src/checkers/evidence.rs",
        "Evidence",
    ),
    (
        "correct replicas were accused over prefixes of a configuration that was not known (30008449)",
        Kept::Test,
        "crates/core/agreement/tests/laggard.rs",
        "who_knows_the_newest_configuration_only_accuses_nobody_over_older_slots",
    ),
    (
        "who had lost the newest state, which it alone had stored, got none in an idle group (50001067)",
        Kept::Scenario,
        "scenarios/sequential_checkpoints.txt",
        "The others still hold the state of the newest boundary",
    ),
    (
        "a start wiped out what alone told that a lost group had held no open vote (115004975)",
        Kept::Test,
        "crates/core/durability/tests/torn.rs",
        "what_headers_tell_of_a_lost_group_is_never_forgotten",
    ),
    (
        "votes for states that one replica each knew pushed out those for what two had digested (280795714024)",
        Kept::Test,
        "crates/core/replica/src/node/certificates.rs",
        "a_late_vote_for_a_state_that_is_digested_here_takes_no_place_and_loses_none",
    ),
    (
        "a client gave two of its sessions one number while agreed time stood (3079)",
        Kept::Test,
        "crates/core/client/src/core/tests/lifetime.rs",
        "one_time_that_is_told_twice_gives_two_numbers",
    ),
    (
        "what a member had said of its disk a minute before lengthened time-outs when it came back (1704)",
        Kept::Test,
        "crates/core/replica/src/node/peer_health/tests.rs",
        "what_a_member_said_long_ago_lengthens_nothing",
    ),
    (
        "what a member had said of its disk at its start counted when it came after all that it had said since (998154928012)",
        Kept::Test,
        "crates/core/replica/src/node/peer_health/tests.rs",
        "what_was_overtaken_tells_of_no_member",
    ),
    (
        "a state that one replica has was asked for from the beginning when one of its pieces was lost (991154432759)",
        Kept::Test,
        "crates/core/replica/src/node/fetching/tests.rs",
        "what_may_be_lost_is_asked_for_again_before_its_time_is_over",
    ),
];

/// How a bug is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// A test that the bug fails.
    Test,
    /// A scenario that the bug fails.
    Scenario,
    /// By a checker only.
    Checker,
}

#[test]
fn what_keeps_each_bug_is_there() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for (bug, kept, path, what) in KEPT {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let what = if kept == Kept::Test { format!("fn {what}()") } else { what.to_owned() };
        assert!(text.contains(&what), "{bug}: no {what} in {path}");
    }
}
