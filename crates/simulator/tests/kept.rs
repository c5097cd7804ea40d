//! Seeds that once failed, each with what it found. A seed stands for another run whenever more
//! is drawn from seeds than before; what it found has a test of its own wherever one could be
//! written. To add one: the command that the shrinker printed, as options.

use perdura_simulator::{Options, simulate};

/// Seed, steps, and what was wrong.
const KEPT: [(u64, u64, &str); 23] = [
    (7, 10_000, "a Prefix left before an earlier slot of it was on disk"),
    (16, 10_000, "a new incarnation executed slot 1 on a state with the latest members"),
    (45, 10_000, "a view change stood still when who asked for it had restarted"),
    (47, 10_000, "votes for a state were never repeated"),
    (49, 10_000, "votes for a state were never repeated"),
    (84, 10_000, "votes for a state were never repeated"),
    (115, 10_000, "an own checkpoint and a transferred one crossed on their way to the disk"),
    (130, 10_000, "votes for a state were never repeated"),
    (872, 10_000, "a new incarnation took genuine view changes for garbage"),
    (1049, 10_000, "correct replicas were accused over locks that lacked context"),
    (2266, 10_000, "correct replicas were accused over decisions that lacked context"),
    (4367, 10_000, "a state of an unknown configuration was taken for misbehaviour"),
    (5094, 10_000, "nobody offered the batches that a laggard lacked after a restart"),
    (5961, 10_000, "a lost Attach was never made up for"),
    (8, 10_000, "a state that the log gave back was awaited for ever"),
    (34, 10_000, "a state that the log gave back was awaited for ever"),
    (114, 10_000, "a state that the log gave back was awaited for ever"),
    (235, 10_000, "a state that the log gave back was awaited for ever"),
    (140, 10_000, "where each replica had lost some votes nobody certified a prefix"),
    (189, 10_000, "where each replica had lost some votes nobody certified a prefix"),
    (20439, 10_000, "the certificate of a state was forgotten by its last holder"),
    (20536, 10_000, "the certificate of a state was forgotten by its last holder"),
    (77, 10_000, "a new incarnation signed a state of its predecessor's time"),
];

#[test]
fn seeds_that_once_failed_keep_every_rule() {
    for (seed, steps, found) in KEPT {
        if let Err(violation) = simulate(&Options::new(seed, steps)) {
            panic!("{violation}\nkept for: {found}");
        }
    }
}
