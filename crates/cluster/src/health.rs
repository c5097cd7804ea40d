//! Who is there, and what that means: whether a group can be written to, and what replacing a replica would do to it.
//!
//! What replicas say of themselves over the protocol port, each signed, and not what their HTTP ports say. Up to r may lie, so
//! this tells an operator how a group stands, and proves nothing.

mod upgrade;

pub use upgrade::Upgrade;

use crate::Cluster;
use perdura_client::Attendance;
use perdura_protocol::vitals::{Condition, DiskSpace, Vitals};
use perdura_protocol::{Faults, ReplicaId, View};
use std::collections::BTreeMap;
use std::fmt;

/// What can be done with a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Health {
    /// It can be written to, and read.
    Writes,
    /// Fast reads are answered, and nothing is ordered.
    ReadsOnly,
    /// Nobody knows: replicas run that did not let this client in, or may run where they cannot be asked.
    Unknown,
    /// Nothing.
    Neither,
}

impl Health {
    /// In words that need none beside them.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Health::Writes => "writes and reads",
            Health::ReadsOnly => "reads only",
            Health::Unknown => "unknown (too few of the replicas that may run could be asked)",
            Health::Neither => "neither writes nor reads",
        }
    }

    /// Its name, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Writes => "writes",
            Health::ReadsOnly => "reads only",
            Health::Unknown => "unknown",
            Health::Neither => "neither",
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the replicas of a group said of themselves.
#[derive(Clone, Debug)]
pub struct RollCall {
    faults: Faults,
    attendance: Vec<Attendance>,
}

impl RollCall {
    /// Of all replicas of a group with these bounds.
    #[must_use]
    pub fn new(faults: Faults, attendance: Vec<Attendance>) -> RollCall {
        RollCall { faults, attendance }
    }

    /// Of a cluster's replicas, as a client of it got it.
    #[must_use]
    pub fn of(cluster: &Cluster, attendance: Vec<Attendance>) -> RollCall {
        RollCall::new(cluster.parameters.faults, attendance)
    }

    /// What each said, ascending.
    #[must_use]
    pub fn attendance(&self) -> &[Attendance] {
        &self.attendance
    }

    fn vitals(&self) -> impl Iterator<Item = (ReplicaId, &Vitals)> {
        self.attendance.iter().filter_map(|one| Some((one.id, one.vitals.as_ref()?)))
    }

    /// Those that take part.
    #[must_use]
    pub fn active(&self) -> Vec<ReplicaId> {
        self.vitals().filter(|(_, vitals)| takes_part(vitals)).map(|(id, _)| id).collect()
    }

    /// Those that hold different states, signed for one slot, and whether one of these can still be certified.
    #[must_use]
    pub fn differing(&self) -> Vec<(ReplicaId, bool)> {
        self.vitals().filter_map(|(id, vitals)| Some((id, vitals.differing?))).collect()
    }

    /// Those on whose disks a tenth is left, or less: they stop when nothing is.
    #[must_use]
    pub fn nearly_full(&self) -> Vec<(ReplicaId, DiskSpace)> {
        let space = |vitals: &Vitals| vitals.space.filter(|space| space.is_nearly_full());
        self.vitals().filter_map(|(id, vitals)| Some((id, space(vitals)?))).collect()
    }

    /// The number of the group's configuration, if that is not the one of these files: who was replaced in between is not known by them.
    #[must_use]
    pub fn newer_configuration(&self, of_files: u64) -> Option<u64> {
        let mut said: Vec<u64> =
            self.attendance.iter().filter_map(|one| one.configuration).collect();
        said.sort_unstable_by(|a, b| b.cmp(a));
        // Up to r lie.
        said.get(self.faults.witnesses() - 1).copied().filter(|newest| *newest > of_files)
    }

    /// Those that do not take part, with what is known of why.
    #[must_use]
    pub fn missing(&self) -> Vec<(ReplicaId, String)> {
        let why = |one: &Attendance| match (&one.vitals, &one.failure) {
            (Some(vitals), _) if takes_part(vitals) => None,
            (Some(vitals), _) if vitals.stalled_ms > 0 => Some(format!(
                "its disk hangs: a write to its log has been under way for {}.{} s",
                vitals.stalled_ms / 1000,
                vitals.stalled_ms % 1000 / 100
            )),
            (Some(vitals), _) if vitals.condition == Condition::Active => {
                Some("its clock is wrong".to_owned())
            }
            (Some(vitals), _) if vitals.condition == Condition::Waiting => {
                Some(self.waits_for(vitals))
            }
            (Some(vitals), _) => Some(vitals.condition.to_string()),
            (None, Some(failure)) => Some(failure.clone()),
            (None, None) => Some("no answer in time".to_owned()),
        };
        self.attendance.iter().filter_map(|one| Some((one.id, why(one)?))).collect()
    }

    /// What a replica waits for, that hears of too few.
    fn waits_for(&self, vitals: &Vitals) -> String {
        let members = (0..self.faults.n() as u8).map(ReplicaId);
        let (heard, missing): (Vec<_>, Vec<_>) = members.partition(|id| vitals.hears(*id));
        if heard.is_empty() {
            // Its program is older, and does not say.
            return vitals.condition.to_string();
        }
        let (count, needed) = (heard.len(), self.faults.responsive());
        let first = match count < needed {
            true => format!("{count} members are there with itself, and {needed} are needed"),
            false => format!(
                "of the {count} members that are there with itself too few can vote, and {needed} are needed"
            ),
        };
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let missing = if missing.is_empty() { "none".to_owned() } else { missing.join(", ") };
        format!("waiting: {first}; missing: {missing}")
    }

    /// What can be done with the group, as far as its replicas say.
    #[must_use]
    pub fn health(&self) -> Health {
        let quorum = self.faults.agreement_quorum();
        let mut views: BTreeMap<View, Vec<ReplicaId>> = BTreeMap::new();
        for (id, vitals) in self.vitals() {
            if takes_part(vitals) {
                views.entry(vitals.view).or_default().push(id);
            }
        }
        let led = |(view, ids): (&View, &Vec<ReplicaId>)| {
            ids.len() >= quorum && ids.contains(&view.leader(self.faults.n()))
        };
        let answers = |vitals: &Vitals| vitals.condition != Condition::Recovering;
        let readers = self.vitals().filter(|(_, vitals)| answers(vitals)).count();
        let is_kept_out = |one: &&Attendance| one.runs && one.vitals.is_none();
        let unknown = self.attendance.iter().filter(is_kept_out).count();
        if views.iter().any(led) {
            Health::Writes
        } else if unknown > 0 && unknown + self.active().len() >= quorum {
            Health::Unknown
        } else if readers >= self.faults.fast_read_quorum() {
            Health::ReadsOnly
        } else {
            Health::Neither
        }
    }

    /// What it would mean to replace a replica now: until the new one has caught up it counts as failed.
    #[must_use]
    pub fn replacing(&self, id: ReplicaId) -> Replacement {
        let missing: Vec<_> =
            self.missing().into_iter().filter(|(other, _)| *other != id).collect();
        Replacement {
            id,
            faults: self.faults,
            takes_part: self.active().contains(&id),
            answers: self.vitals().any(|(other, _)| other == id),
            uncertifiable: self.differing().iter().filter(|(_, certifiable)| !certifiable).count()
                >= self.faults.witnesses(),
            missing,
        }
    }
}

/// One whose clock is wrong gives no votes to the others' proposals.
fn takes_part(vitals: &Vitals) -> bool {
    vitals.condition == Condition::Active && !vitals.clock_wrong
}

/// What replacing a replica would do.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// Which.
    pub id: ReplicaId,
    faults: Faults,
    /// Whether it takes part now.
    pub takes_part: bool,
    /// Whether it runs.
    pub answers: bool,
    /// Others that do not take part, and why.
    pub missing: Vec<(ReplicaId, String)>,
    /// Whether no state can be certified, and so none be given to a new replica.
    pub uncertifiable: bool,
}

impl Replacement {
    /// Whether the group goes on meanwhile.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.missing.len() < self.faults.u() && !self.uncertifiable
    }

    /// How it stands, in words: who is there, what will be, and what can be endured then.
    #[must_use]
    pub fn text(&self) -> String {
        let (n, quorum) = (self.faults.n(), self.faults.agreement_quorum());
        let left = n - 1 - self.missing.len();
        let mut text = match (self.takes_part, self.answers) {
            (true, _) => format!("replica {} runs and takes part.", self.id),
            (false, true) => format!("replica {} runs and does not take part.", self.id),
            (false, false) => format!("replica {} does not answer.", self.id),
        };
        for (other, why) in &self.missing {
            text.push_str(&format!("\nreplica {other} does not take part: {why}."));
        }
        if self.uncertifiable {
            text.push_str(
                "\nReplicas hold different states, and none can be certified: a new one would wait for a state for ever. See \
                 their logs",
            );
        }
        text.push_str(&format!(
            "\nUntil the new replica {} has caught up, {left} of {n} replicas take part, and {quorum} are needed",
            self.id
        ));
        text.push_str(&match left.checked_sub(quorum) {
            None => ": nothing will be ordered.".to_owned(),
            Some(0) => ": if one more fails, nothing will be ordered.".to_owned(),
            Some(spare) => format!(": {spare} more may fail."),
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter for each replica: its condition (active, waiting, recovering), active with a wrong clock or with states that
    /// differ, gone, or one that keeps us out.
    fn roll(faults: (u8, u8), view: u64, said: &str) -> RollCall {
        let condition = |letter| match letter {
            'a' | 'c' | 'd' => Some(Condition::Active),
            'w' => Some(Condition::Waiting),
            'r' => Some(Condition::Recovering),
            _ => None,
        };
        let attendance = (0u8..).zip(said.chars()).map(|(id, letter)| Attendance {
            id: ReplicaId(id),
            vitals: condition(letter).map(|condition| Vitals {
                condition,
                view: View(view),
                clock_wrong: letter == 'c',
                differing: (letter == 'd').then_some(false),
                ..Vitals::default()
            }),
            failure: matches!(letter, '-' | 'k').then(|| "connection refused".to_owned()),
            runs: letter == 'k',
            configuration: (letter != '-').then_some(view),
        });
        RollCall::new(Faults::new(faults.0, faults.1).unwrap(), attendance.collect())
    }

    #[test]
    fn a_group_is_written_to_while_a_quorum_has_its_leader() {
        for (faults, view, said, health) in [
            ((1, 0), 0, "aaa", Health::Writes),
            ((1, 0), 0, "aa-", Health::Writes),
            ((1, 0), 2, "aa-", Health::ReadsOnly),
            ((1, 0), 0, "acr", Health::ReadsOnly),
            ((1, 0), 0, "aca", Health::Writes),
            ((1, 0), 0, "w--", Health::Neither),
            ((1, 0), 0, "ar-", Health::Neither),
            ((1, 0), 0, "ww-", Health::ReadsOnly),
            ((1, 1), 0, "aaa-", Health::Writes),
            ((1, 1), 0, "aar-", Health::Neither),
            ((1, 1), 3, "aaa-", Health::ReadsOnly),
            ((2, 1), 1, "aaaa--", Health::Writes),
            ((1, 0), 0, "aak", Health::Writes),
            ((1, 0), 2, "aak", Health::Unknown),
            ((1, 0), 0, "a-k", Health::Unknown),
            ((1, 0), 0, "--k", Health::Neither),
            ((1, 1), 0, "a-kk", Health::Unknown),
        ] {
            assert_eq!(roll(faults, view, said).health(), health, "{faults:?} {view} {said}");
        }
    }

    #[test]
    fn who_waits_says_for_whom() {
        let mut alone = roll((1, 0), 0, "w--");
        let said = |roll: &RollCall| roll.missing()[0].clone();
        assert_eq!(said(&alone), (ReplicaId(0), "waiting".to_owned()), "an older program");
        let hears = |roll: &mut RollCall, bits| {
            roll.attendance[0].vitals.as_mut().unwrap().hears = bits;
        };
        hears(&mut alone, 0b001);
        let text = "waiting: 1 members are there with itself, and 2 are needed; missing: 1, 2";
        assert_eq!(said(&alone), (ReplicaId(0), text.to_owned()));
        hears(&mut alone, 0b111);
        let (_, text) = said(&alone);
        assert!(text.contains("of the 3 members") && text.contains("too few can vote"), "{text}");
    }

    #[test]
    fn files_are_old_where_one_who_can_be_believed_is_ahead_of_them() {
        assert_eq!(roll((1, 0), 2, "aa-").newer_configuration(2), None);
        assert_eq!(roll((1, 0), 2, "aa-").newer_configuration(1), Some(2));
        assert_eq!(roll((1, 0), 2, "---").newer_configuration(1), None);
        assert_eq!(roll((1, 1), 2, "a---").newer_configuration(1), None, "it may lie");
        assert_eq!(roll((1, 1), 2, "aa--").newer_configuration(1), Some(2));
    }

    #[test]
    fn a_replacement_that_leaves_too_few_is_not_safe() {
        let three = |said| roll((1, 0), 0, said).replacing(ReplicaId(0));
        assert!(three("aaa").is_safe() && three("-aa").is_safe());
        assert!(!three("aac").is_safe() && three("aac").text().contains("its clock is wrong"));
        assert!(!three("daa").is_safe() && three("daa").text().contains("none can be certified"));
        assert!(!three("aa-").is_safe() && !three("-ar").is_safe() && !three("a--").is_safe());
        let text = three("aa-").text();
        assert!(text.starts_with("replica 0 runs and takes part.\n"), "{text}");
        assert!(text.contains("replica 2 does not take part: connection refused."), "{text}");
        assert!(
            text.contains("1 of 3 replicas take part, and 2 are needed: nothing will"),
            "{text}"
        );
        let six = roll((2, 1), 0, "aaaaa-").replacing(ReplicaId(0));
        assert!(
            six.is_safe() && six.text().ends_with("if one more fails, nothing will be ordered.")
        );
        let six = roll((2, 1), 0, "aaaaaa").replacing(ReplicaId(0));
        assert!(six.text().ends_with("1 more may fail."), "{}", six.text());
    }
}
