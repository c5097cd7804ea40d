//! A data directory that is taken back to a copy of itself, as happens to whoever restores a snapshot of a machine.
//!
//! A replica that starts on it does not know what it said since the copy. What others can know of that they tell it
//! before it votes (`crates/core/replica/src/node/boots.rs`), and it stands still for good. Certain is this where it was
//! started once more between copy and end: every other one has kept that boot. Else only votes show it, which it may
//! have caught up with before it is told of them; and where r = 0 they are not signed, so that nothing does.

use super::disk::{STARTED, ended_members, replace};
use super::{Injected, Scene, Victim};
use crate::files::{copy_moving_tree, copy_tree, empty_directory};
use anyhow::{Result, bail};
use perdura_adversary::Random;
use std::fs;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// What a replica says of such a directory.
pub const OLDER: &str = "is older than what it said";

/// Slots that it takes part in after the copy, at least.
const SAID: u64 = 20;

/// The same where the others are to have cut their logs meanwhile, so that what the copy lacks is a state: two boundaries and more.
const SAID_LONG: u64 = 1_500;

/// Of a hundred times, those with that.
const LONG_AGO: u64 = 25;

/// All have told what they know of a replica within this time after it takes part.
const TOLD: Duration = Duration::from_secs(2);

/// When the directory is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    /// While it does not run; then it is started.
    Stopped,
    /// While it runs; then it is started once more.
    RunningBefore,
    /// While it runs, in the same run whose end it is taken back from.
    Running,
}

/// Whether a copy is of one moment, as a snapshot of a machine is. Else files change while they are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    One,
    Many,
}

/// Of a hundred copies of a running replica, those of one moment.
const SNAPSHOTS: u64 = 70;

/// What becomes of the replica.
enum Outcome {
    StandsStill,
    Ends(ExitStatus),
    TakesPart,
}

/// Copies the directory of a replica, lets it go on, and starts it on the copy. Of a server it is that of one member; the others go on.
pub(super) fn taken_back(scene: &Scene, whom: Victim, random: &mut Random) -> Result<Injected> {
    let victim = whom.host;
    let host = scene.host(victim);
    let data = host.data(whom.partition);
    let copied = match scene.cluster.faults.r() {
        0 => *random.pick(&[Copied::Stopped, Copied::RunningBefore]),
        _ => *random.pick(&[Copied::Stopped, Copied::RunningBefore, Copied::Running]),
    };
    let copy = scene.cluster.path(&format!("copy-{victim}"));
    let moment = match copied {
        Copied::Stopped => {
            host.stop(&scene.course)?;
            copy_tree(&data, &copy)?;
            Moment::One
        }
        _ if random.percent(SNAPSHOTS) => {
            host.pause()?;
            let done = copy_tree(&data, &copy);
            host.resume()?;
            done?;
            Moment::One
        }
        _ => {
            copy_moving_tree(&data, &copy)?;
            Moment::Many
        }
    };
    if copied == Copied::RunningBefore {
        host.kill();
    }
    if copied != Copied::Running {
        scene.cluster.start(victim)?;
    }
    let slots = if random.percent(LONG_AGO) { SAID_LONG } else { SAID };
    if !goes_on(scene, whom, slots) {
        scene
            .course
            .violation(format!("replica {victim} does not go on beside a copy of its data"));
        bail!("replica {victim} does not go on");
    }
    let time = scene.hold(200, 10_000, random);
    if random.percent(50) {
        host.kill();
    } else {
        host.stop(&scene.course)?;
    }
    empty_directory(&data)?;
    copy_tree(&copy, &data)?;
    fs::remove_dir_all(&copy)?;
    let of = if moment == Moment::One { "" } else { " and changing" };
    let seconds = time.as_secs_f64();
    let what = format!("copied {copied:?}{of}, {slots} slots and {seconds:.1} s before");
    let (length, since) = (host.log_length(), Instant::now());
    scene.cluster.start_doubtful(victim)?;
    let killed = random.percent(50);
    judge(scene, whom, (copied, moment, killed), (length, since), &what)
}

/// Whether the replica takes part, and does so for so many slots more.
fn goes_on(scene: &Scene, whom: Victim, slots: u64) -> bool {
    let report = |since| scene.watch.report(whom.host, whom.partition, since);
    let active = |since| report(since).filter(|said| said.state == "active");
    let began = Instant::now();
    let Some(first) = scene.course.poll(STARTED, || active(began)) else { return false };
    let further = || active(began).filter(|said| said.executed >= first.executed + slots);
    scene.course.poll(STARTED, further).is_some()
}

/// What was found out once is found at each further start, and before anything is said.
fn starts_no_more(scene: &Scene, whom: Victim) -> Result<()> {
    let victim = whom.host;
    let host = scene.host(victim);
    let since = Instant::now();
    scene.cluster.start_doubtful(victim)?;
    if host.is_server() {
        // Its other members go on.
        let why = scene.course.poll(STARTED, || {
            let ended = ended_members(scene, victim, since)?;
            ended.into_iter().find(|(partition, _)| *partition == whom.partition)
        });
        if why.as_ref().is_none_or(|(_, why)| !why.contains(OLDER)) {
            scene.course.violation(format!(
                "the member of partition {} of server {victim} is started again on a directory that was found to be taken back, \
                 and does not end for that: {why:?}",
                whom.partition
            ));
        }
        return Ok(());
    }
    let status = scene.course.poll(STARTED, || host.ended());
    let last = host.last_line();
    if status.is_none_or(|status| status.code() != Some(1)) || !last.contains(OLDER) {
        scene.course.violation(format!(
            "replica {victim} is started again on a directory that was found to be taken back, and does not end for that \
             ({status:?}): {last}"
        ));
    }
    Ok(())
}

/// Holds what the replica does on the copy against what it may do, and replaces it if it has to be.
fn judge(
    scene: &Scene,
    whom: Victim,
    (copied, moment, killed): (Copied, Moment, bool),
    (length, since): (u64, Instant),
    what: &str,
) -> Result<Injected> {
    let victim = whom.host;
    let (host, course) = (scene.host(victim), &scene.course);
    let state = || {
        if let Some(status) = host.ended() {
            return Some(Outcome::Ends(status));
        }
        match scene.watch.report(victim, whom.partition, since)?.state.as_str() {
            "stopped" => Some(Outcome::StandsStill),
            "active" => Some(Outcome::TakesPart),
            _ => None,
        }
    };
    let mut outcome = course.poll(STARTED, state);
    if matches!(outcome, Some(Outcome::TakesPart)) {
        if copied != Copied::Running {
            course.violation(format!(
                "replica {victim} takes part on a directory that was taken back over a start that all others have kept"
            ));
        }
        course.sleep(TOLD);
        outcome = state().or(outcome);
    }
    let log = host.log_since(length);
    let told = log.lines().find(|line| line.contains(OLDER) && line.contains("reinit"));
    let how = match outcome {
        Some(Outcome::StandsStill) if told.is_some() => {
            // It has taken a note before it stands still: how it ends does not matter.
            if killed {
                host.expect_end();
                host.kill();
            }
            let status = if killed { None } else { host.ask_to_end(course)? };
            if !killed && status.is_none_or(|status| status.code() != Some(1)) {
                course
                    .violation(format!("replica {victim} must not vote, and ends with {status:?}"));
            }
            starts_no_more(scene, whom)?;
            let told = told.unwrap_or_default();
            let told = told.split("what it said: ").nth(1).unwrap_or(told);
            told.split(". It was").next().unwrap_or(told).to_owned()
        }
        // It may be no directory that opens.
        Some(Outcome::Ends(status))
            if moment == Moment::Many
                && status.code() == Some(1)
                && host.last_line().contains("reinit") =>
        {
            host.last_line()
        }
        // Nor has a member of a server, of which nothing but its own word tells how it ended.
        Some(Outcome::StandsStill)
            if host.is_server() && moment == Moment::Many && log.contains("reinit") =>
        {
            "its directory does not open".to_owned()
        }
        Some(Outcome::TakesPart) => {
            host.survived();
            let back = format!("{what}; it had caught up with all that others knew of it");
            return Ok(Injected::new(back, false));
        }
        Some(Outcome::StandsStill | Outcome::Ends(_)) => {
            let last = host.last_line();
            course.violation(format!(
                "replica {victim} stops on a directory that was taken back, and not for that: {last}"
            ));
            bail!("replica {victim} is lost");
        }
        None => bail!("replica {victim} neither takes part nor stops: {}", host.last_line()),
    };
    replace(scene, victim, &[whom.partition])?;
    Injected::fired(format!("{what}; replaced, since {how}"))
}
