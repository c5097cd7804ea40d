//! What no log may say: that another one lies, where it does not; and an error stops a replica, but for a rotten batch that others have too.
//!
//! What may be said depends on what was done to whom before it. Where in a log that is, is known by how long it was, since no clock of a
//! replica can be trusted.

use crate::cluster::Host;
use crate::course::Course;
use crate::faults::FaultKind;
use crate::files::ClusterFile;
use crate::inject::{DAMAGED, DIFFERENT, FLIP, MISBEHAVES, OLDER, Scene};
use anyhow::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a server says of a member that has ended for a reason of its own.
const MEMBER_ENDED: &str = "this member has ended, the others go on";

/// What one says that has to be replaced.
const REPLACE: &str = "reinit";

/// What was done by when one replica's log had so many bytes.
#[derive(Clone, Debug, Default)]
struct Done {
    is_server: bool,
    /// Its own memory was made to rot, or anybody's.
    rotten: bool,
    any_rotten: bool,
    taken_back: bool,
    /// From where on others may say what they want of these processes, since they have lied.
    lied: BTreeMap<usize, u64>,
    /// Where it may have ended for what was done to it.
    may_end: Vec<Range<u64>>,
}

impl Done {
    /// Whether a line is wrong that begins there; who is who is in the file.
    fn is_wrong(&self, at: u64, line: &str, file: &ClusterFile) -> bool {
        (line.contains(MISBEHAVES) && !self.is_guilty(at, line, file))
            || line.contains("panicked")
            || (line.contains(" ERROR ") && !self.is_harmless(at, line, file))
    }

    /// Whether whom it accuses has lied before.
    fn is_guilty(&self, at: u64, line: &str, file: &ClusterFile) -> bool {
        let (partition, replica) = accused(line);
        replica.is_some_and(|replica| self.has_lied(at, (partition, replica), file))
    }

    fn has_lied(
        &self,
        at: u64,
        (partition, replica): (Option<usize>, usize),
        file: &ClusterFile,
    ) -> bool {
        let process = file.process_of(partition, replica);
        let lied = process.and_then(|process| self.lied.get(&process));
        lied.is_some_and(|from| *from <= at)
    }

    /// Whether all that signed one state have lied before, of those that signed one and another.
    fn is_forged(&self, at: u64, line: &str, file: &ClusterFile) -> bool {
        let (partition, _) = accused(line);
        let states = states(line);
        let others = |state: &str| {
            let others = states.iter().filter(|(_, other)| *other != state);
            others.map(|(replica, _)| *replica).collect::<Vec<usize>>()
        };
        states.iter().any(|(_, state)| {
            let others = others(state);
            !others.is_empty()
                && others.into_iter().all(|other| self.has_lied(at, (partition, other), file))
        })
    }

    fn is_harmless(&self, at: u64, line: &str, file: &ClusterFile) -> bool {
        let may_end = || self.may_end.iter().any(|range| range.contains(&at));
        let of_its_end = line.contains(MEMBER_ENDED) || line.contains(REPLACE);
        line.contains("left for other replicas to send")
            || (self.rotten && line.contains(DAMAGED))
            || (line.contains(DIFFERENT) && (self.any_rotten || self.is_forged(at, line, file)))
            || (self.taken_back && line.contains(OLDER))
            || (self.is_server && of_its_end && may_end())
    }

    /// The first line of a log that is wrong; what comes from `until` on does not count.
    fn first_wrong<'a>(&self, log: &'a str, until: u64, file: &ClusterFile) -> Option<&'a str> {
        let mut at = 0;
        let lines = log.split_inclusive('\n').map(|line| {
            let begins = at;
            at += line.len() as u64;
            (begins, line.trim_end())
        });
        let mut lines = lines.take_while(|(begins, _)| *begins < until);
        lines.find(|(begins, line)| self.is_wrong(*begins, line, file)).map(|(_, line)| line)
    }
}

/// Whom a line accuses: a replica, of the partition whose member says so if there are several.
fn accused(line: &str) -> (Option<usize>, Option<usize>) {
    let number = |name: &str| {
        let (_, named) = line.rsplit_once(name)?;
        named.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    (number("member{partition="), number(" replica="))
}

/// The replicas that a line says to have signed different states, and what each signed.
fn states(line: &str) -> Vec<(usize, &str)> {
    let said = line.split_once(DIFFERENT).and_then(|(_, said)| said.split_once(": "));
    let words = said.and_then(|(_, said)| said.split('.').next()).unwrap_or_default();
    let words: Vec<&str> = words.split_whitespace().collect();
    let pairs = words.as_chunks::<2>().0.iter();
    pairs.filter_map(|[replica, state]| Some((replica.parse().ok()?, *state))).collect()
}

/// Looks at all logs. What one says that has lied does not count from there on.
pub fn look(scene: &Scene, course: &Course) -> Result<()> {
    let file = scene.cluster.file()?;
    let (events, hosts) = (scene.timeline.events(), &scene.cluster.hosts);
    let lies = scene.cluster.lies();
    // Whoever holds the digests of one with rotten memory against others says so.
    let any_rotten = hosts.iter().any(|host| host.log_since(0).contains(FLIP));
    let done = |host: &Host, log: &str| Done {
        is_server: host.is_server(),
        // Memory that was made to rot.
        rotten: log.contains(FLIP),
        any_rotten,
        taken_back: events
            .iter()
            .any(|event| event.kind == FaultKind::TakenBack && event.replicas.contains(&host.id)),
        lied: lies.iter().map(|(liar, lengths)| (*liar, lengths[host.id])).collect(),
        may_end: host.ends_expected(),
    };
    for host in hosts {
        let log = host.log_since(0);
        let done = done(host, &log);
        let until = done.lied.get(&host.id).copied().unwrap_or(u64::MAX);
        if let Some(line) = done.first_wrong(&log, until, &file) {
            course.violation(format!("the log of replica {} says: {line}", host.id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS: &str =
        "2026-11-28T10:42:33.7Z  INFO member{partition=0}: replica starts replica=0\n";

    fn accuses(whom: usize) -> String {
        format!(
            "2026-11-28T10:42:34.7Z  WARN member{{partition=1}}: misbehaves: a vote replica={whom}\n"
        )
    }

    /// Of two partitions, whose replicas are on servers 0 to 3, and 1 to 0.
    fn file() -> ClusterFile {
        ClusterFile::placed(vec![vec![0, 1, 2, 3], vec![1, 2, 3, 0]])
    }

    #[test]
    fn nobody_is_accused_who_has_not_lied_by_then() {
        let from = BEGINS.len() as u64;
        let lied =
            |id: usize, from: u64| Done { lied: BTreeMap::from([(id, from)]), ..Done::default() };
        let log = BEGINS.to_owned() + &accuses(2);
        let is_wrong = |done: Done| done.first_wrong(&log, u64::MAX, &file()).is_some();
        assert!(is_wrong(Done::default()));
        // Replica 2 of partition 1 is on server 3.
        assert!(!is_wrong(lied(3, from)));
        // Another one lied, or it did later.
        assert!(is_wrong(lied(2, 0)) && is_wrong(lied(3, from + 1)));
        // Who has lied itself says what it wants.
        assert!(Done::default().first_wrong(&log, from, &file()).is_none());
        assert_eq!(accused(&accuses(12)), (Some(1), Some(12)));
        assert_eq!(accused("misbehaves: a vote replica=3"), (None, Some(3)));
        assert_eq!(accused("misbehaves: a vote"), (None, None));
    }

    #[test]
    fn other_states_are_of_those_who_have_lied() {
        let differ = |states: &str| {
            format!(
                "{BEGINS}2026-11-28T16:52:33Z ERROR member{{partition=1}}: {DIFFERENT} 9595: {states}. Those in the minority run another program\n"
            )
        };
        let is_wrong = |states: &str, lied: &[(usize, u64)]| {
            let done = Done { lied: lied.iter().copied().collect(), ..Done::default() };
            done.first_wrong(&differ(states), u64::MAX, &file()).is_some()
        };
        let from = BEGINS.len() as u64;
        // Replica 3 of partition 1 is on server 0.
        let one = "0 a53c 1 a53c 2 a53c 3 61e2";
        assert!(!is_wrong(one, &[(0, from)]) && is_wrong(one, &[(0, from + 1)]));
        assert!(is_wrong(one, &[(1, 0)]) && is_wrong(one, &[]));
        assert!(!is_wrong("2 a53c 3 61e2", &[(0, 0)]) && is_wrong("1 a53c 2 61e2", &[(0, 0)]));
        let two = "0 a53c 1 a53c 2 77ff 3 61e2";
        assert!(is_wrong(two, &[(0, 0)]) && !is_wrong(two, &[(0, 0), (3, 0)]));
    }

    #[test]
    fn a_member_ends_only_for_what_was_done_to_its_server() {
        let ends =
            format!("2026-11-28T10:42:34.7Z ERROR member{{partition=1}}: {MEMBER_ENDED}: reinit\n");
        let log = BEGINS.to_owned() + &ends;
        let from = BEGINS.len() as u64;
        let is_wrong = |is_server: bool, may_end: Range<u64>| {
            let done = Done { is_server, may_end: vec![may_end], ..Done::default() };
            done.first_wrong(&log, u64::MAX, &file()).is_some()
        };
        assert!(!is_wrong(true, 0..u64::MAX) && !is_wrong(true, from..from + 1));
        assert!(is_wrong(true, 0..from) && is_wrong(true, from + 1..u64::MAX));
        assert!(is_wrong(false, 0..u64::MAX));
    }
}
