//! Memory that rots: bits of a replica's state flip, in segments that change and in others. Its own
//! votes at the next boundary tell it so, or its scrub; it begins anew from what is certified.

use super::{Injected, Scene, Victim};
use crate::cluster::SCRUB;
use anyhow::Result;
use std::time::{Duration, Instant};

/// A bit flips within this time after the start, though the replica may have to fetch much first.
const FLIPPED: Duration = Duration::from_secs(60);

/// It is found within the scrub's interval and what its replica needs to look. A few flips, one in ten or
/// fewer, are overwritten before anybody looks (`load/bulk.rs`); the next comes within eight seconds, and
/// that all of the first three or four are happens once in thousands of times.
const FOUND: Duration = SCRUB.saturating_add(Duration::from_secs(15));

/// Once found, its status tells so within this time.
const TOLD: Duration = Duration::from_secs(20);

/// What a replica says when a bit flips,
pub const FLIP: &str = "a bit of the state was flipped";

/// when it has found that its state is wrong,
pub const DAMAGED: &str = "memory or disk of this replica is damaged";

/// when it, or another replica, holds what it signed against what others did,
pub const DIFFERENT: &str = "replicas signed different states after slot";

/// and after that.
const ANEW: &str = "begins anew from what is certified";

/// Restarts a replica with memory that rots, until that was found and it has begun anew; from then on
/// its memory is as good as any.
pub(super) fn rot(scene: &Scene, whom: Victim) -> Result<Injected> {
    let victim = whom.host;
    let host = scene.host(victim);
    host.stop(&scene.course)?;
    let length = host.log_length();
    scene.cluster.start_rotten(victim, whom.partition)?;
    let line = |what: &str| {
        let log = host.log_since(length);
        log.lines().find(|line| line.contains(what)).map(str::to_owned)
    };
    let ended = || host.ended().is_some().then(String::new);
    if scene.course.poll(FLIPPED, || line(FLIP).or_else(ended)).is_none_or(|line| line.is_empty()) {
        return Ok(Injected::new("no bit flipped".to_owned(), false));
    }
    let flipped = Instant::now();
    if scene.course.poll(FOUND, || line(ANEW).or_else(ended)).is_none_or(|line| line.is_empty()) {
        if scene.course.ends().is_none() {
            scene.course.violation(format!(
                "memory of replica {victim} rots, and in {FOUND:?} it did not begin anew: {}",
                host.last_line()
            ));
        }
        return Ok(Injected::new("not found".to_owned(), false));
    }
    let took = flipped.elapsed();
    let said = line(DAMAGED).unwrap_or_default();
    let why = said.split(&format!(": {DAMAGED}")).next().unwrap_or_default();
    let why = why.rsplit("event_loop: ").next().unwrap_or_default().to_owned();
    // Its status tells an operator.
    let since = Instant::now();
    let told = scene.course.poll(TOLD, || {
        scene.watch.report(victim, whom.partition, since).filter(|said| said.repairs > 0)
    });
    if told.is_none() && scene.course.ends().is_none() {
        scene.course.violation(format!("replica {victim} began anew, and its status says nothing"));
    }
    Injected::fired(format!("found after {:.1} s: {why}", took.as_secs_f64()))
}
