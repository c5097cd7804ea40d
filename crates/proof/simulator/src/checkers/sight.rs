//! Guards what replicas say of their surroundings (docs/design.md, Who is there): who is in order is not called wrong, a clock that is
//! wrong is called so, by its own replica and by others; and only who hears of r + m + 1 members, itself included, is ready or leads.
//!
//! What holds is derived from what reaches replicas and what lies between them, with time to spare: who is there says so ten times a
//! second and counts as there for two seconds at least; vitals, by which clocks are compared, come once a second.

use crate::violation::{Broken, Check};
use perdura_protocol::{Faults, ReplicaId};
use perdura_replica::node::{Difference, PeerHealthReport, Report, State, offset_text};
use std::collections::BTreeSet;

const RULE: &str = "Sight (12)";

/// Two replicas between which nothing was wrong for so long hear of each other, microseconds.
const IN_TOUCH_US: u64 = 5_000_000;

/// And for so long know of each other's clocks what can be known.
pub const MEASURED_US: u64 = 10_000_000;

/// Who was not heard of for two seconds, or for four round trips, is missed: in milliseconds.
const WINDOW_MS: u64 = 2_000;

/// Until that is noticed, microseconds: time between two looks, of clocks that drift.
const NOTICE_US: u64 = 500_000;

/// A clock that is off by more than this is wrong, whatever other clocks show that are in order, and however long it takes to
/// ask them, milliseconds.
const ASTRAY_MS: u64 = 2_000;

/// What is known of a replica from outside.
#[derive(Clone, Debug)]
struct Seen {
    // By other replica: when word of where it is came last, on which connection they are, and since when nothing is between them.
    status_us: Vec<Option<u64>>,
    connection: Vec<u64>,
    near_us: Vec<Option<u64>>,
    // Since when nothing but a wall clock or a slow disk may be wrong with it.
    attentive_us: Option<u64>,
    // Since when its wall clock is in order, or far from that.
    right_us: Option<u64>,
    astray_us: Option<u64>,
    // Whether this process said that its clock is wrong; and that was so, and is.
    owned_up: bool,
    named: bool,
}

/// What lies between two replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// Number of the connection.
    pub connection: u64,
    /// Whether both run, have nothing else to do, and messages get through either way.
    pub clear: bool,
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Says<'a> {
    /// Whether it takes part.
    pub state: State,
    /// Whether it leads.
    pub leads: bool,
    /// Of the others.
    pub peer_health: &'a PeerHealthReport,
}

impl<'a> Says<'a> {
    /// In its report.
    #[must_use]
    pub fn of(report: &'a Report) -> Says<'a> {
        Says { state: report.state, leads: report.leader, peer_health: &report.peer_health }
    }
}

/// The checker.
#[derive(Debug)]
pub struct Sight {
    faults: Faults,
    replicas: Vec<Seen>,
    // Whose clock was off for so long that its replica and others had to say so.
    named: u64,
}

fn for_long(since_us: Option<u64>, us: u64, now_us: u64) -> bool {
    since_us.is_some_and(|since| since + us <= now_us)
}

fn broken(what: String) -> Check {
    Err(Broken::new(RULE, what))
}

impl Sight {
    /// For a group that has not started.
    #[must_use]
    pub fn new(faults: Faults) -> Sight {
        let n = faults.n();
        let seen = Seen {
            status_us: vec![None; n],
            connection: vec![0; n],
            near_us: vec![None; n],
            attentive_us: None,
            right_us: None,
            astray_us: None,
            owned_up: false,
            named: false,
        };
        Sight { faults, replicas: vec![seen; n], named: 0 }
    }

    /// A process starts: it has heard of nobody.
    pub fn started(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        here.status_us.fill(None);
        (here.owned_up, here.named) = (false, false);
    }

    /// Word of where `from` is reaches `replica`.
    pub fn status(&mut self, replica: usize, from: usize, now_us: u64) {
        self.replicas[replica].status_us[from] = Some(now_us);
    }

    /// `replica` notes something.
    pub fn notes(&mut self, replica: usize, text: &str) {
        self.replicas[replica].owned_up |= text.starts_with("the clock of this replica is");
    }

    /// The wall clock of a replica is off by so much; `right` if it is in order, and the replica does not lie about it.
    pub fn clock(&mut self, replica: usize, off_ms: u64, right: bool, now_us: u64) {
        let here = &mut self.replicas[replica];
        here.right_us = right.then_some(here.right_us.unwrap_or(now_us));
        let astray = off_ms > ASTRAY_MS;
        here.astray_us = astray.then_some(here.astray_us.unwrap_or(now_us));
        here.named &= astray;
    }

    /// Whether a replica is correct and does its work in time.
    pub fn is_attentive(&mut self, replica: usize, attentive: bool, now_us: u64) {
        let here = &mut self.replicas[replica];
        here.attentive_us = attentive.then_some(here.attentive_us.unwrap_or(now_us));
    }

    /// What lies between a replica and another one.
    pub fn between(&mut self, replica: usize, other: usize, between: Between, now_us: u64) {
        let here = &mut self.replicas[replica];
        let same = std::mem::replace(&mut here.connection[other], between.connection);
        let clear = between.clear && same == between.connection;
        here.near_us[other] = clear.then_some(here.near_us[other].unwrap_or(now_us));
    }

    /// Correct replicas between which and this one nothing was wrong for so long.
    #[must_use]
    pub fn near(&self, replica: usize, us: u64, now_us: u64) -> Vec<usize> {
        let near = self.replicas[replica].near_us.iter().enumerate();
        near.filter(|(_, since)| for_long(**since, us, now_us)).map(|(other, _)| other).collect()
    }

    /// Times that a replica and others saw a clock that was wrong for long.
    #[must_use]
    pub fn named(&self) -> u64 {
        self.named
    }

    /// What a correct replica that has nothing else to do says of the other members and of clocks.
    pub fn says(&mut self, replica: usize, now_us: u64, says: Says) -> Check {
        self.hears(replica, now_us, says)?;
        self.sees_clocks(replica, now_us, says.peer_health)
    }

    fn hears(&self, replica: usize, now_us: u64, says: Says) -> Check {
        let here = &self.replicas[replica];
        let near = self.near(replica, IN_TOUCH_US, now_us);
        let mut lately = 1;
        for member in &says.peer_health.members {
            let other = member.id.index();
            let window_ms = WINDOW_MS.max(4 * member.trip_ms.unwrap_or_default());
            // Its clock may be slow by a twentieth.
            let window_us = window_ms * 1_000 * 21 / 20 + NOTICE_US;
            let missed = here.status_us[other].is_none_or(|last| last + window_us < now_us);
            // Until then it may have had no time to notice.
            let heard = !missed || !for_long(here.attentive_us, window_us, now_us);
            lately += usize::from(heard);
            if member.heard && !heard {
                let last = here.status_us[other];
                return broken(format!(
                    "replica {replica} hears of replica {other}, of which it heard last at {last:?} us"
                ));
            }
            if !member.heard && near.contains(&other) {
                return broken(format!(
                    "replica {replica} does not hear of replica {other}, and nothing was between them for {} s",
                    IN_TOUCH_US / 1_000_000
                ));
            }
        }
        let needed = self.faults.responsive();
        let takes_part = matches!(says.state, State::Active | State::Recovering) || says.leads;
        if takes_part && lately < needed {
            return broken(format!(
                "replica {replica} is {:?} (leads: {}) and hears of {lately}; it takes {needed}",
                says.state, says.leads
            ));
        }
        if says.state == State::Waiting && 1 + near.len() >= needed {
            return broken(format!(
                "replica {replica} waits for others, and nothing was between it and {} of them",
                near.len()
            ));
        }
        Ok(())
    }

    fn sees_clocks(
        &mut self,
        replica: usize,
        now_us: u64,
        peer_health: &PeerHealthReport,
    ) -> Check {
        let near = self.near(replica, MEASURED_US, now_us);
        let is_right = |id: usize| for_long(self.replicas[id].right_us, MEASURED_US, now_us);
        let is_astray = |id: usize| for_long(self.replicas[id].astray_us, MEASURED_US, now_us);
        let others = near.iter().filter(|other| is_right(**other)).count();
        if is_astray(replica) && others > self.faults.u() {
            let seen = peer_health.is_clock_wrong();
            if !seen || !self.replicas[replica].owned_up {
                return broken(format!(
                    "the clock of replica {replica} is wrong, {others} others that are there show that, and it does not say so (sees \
                     it: {seen})"
                ));
            }
            self.named += 1;
        }
        let here = &mut self.replicas[replica];
        here.named |= here.astray_us.is_some() && here.owned_up && peer_health.is_clock_wrong();
        let is_right = |id: usize| for_long(self.replicas[id].right_us, MEASURED_US, now_us);
        let nobody_else = (0..self.replicas.len()).all(|other| other == replica || is_right(other));
        let is_astray = |id: usize| for_long(self.replicas[id].astray_us, MEASURED_US, now_us);
        let was_named = self.replicas[replica].named && is_astray(replica);
        if was_named && nobody_else && !peer_health.is_clock_wrong() {
            return broken(format!(
                "the clock of replica {replica} is wrong as before, nobody shows otherwise, and it calls it right"
            ));
        }
        let mut wrong = near.iter().filter(|other| is_right(replica) && is_astray(**other));
        let unseen = wrong.find(|other| {
            let id = ReplicaId(**other as u8);
            let member = peer_health.members.iter().find(|member| member.id == id);
            let offset_ms = member.and_then(|member| member.clock_offset_ms);
            offset_ms.is_none_or(|ms| ms.unsigned_abs() <= peer_health.max_skew_ms)
        });
        match unseen {
            None => Ok(()),
            Some(other) => broken(format!(
                "the clock of replica {other} is wrong, and replica {replica}, whose clock is right, does not see that: {:?}",
                peer_health.members
            )),
        }
    }
}

/// Replica `replica`, whose clock is right, sees its clock so.
pub fn own_clock(replica: usize, peer_health: &PeerHealthReport) -> Check {
    if !peer_health.is_clock_wrong() {
        return Ok(());
    }
    let offset = offset_text(peer_health.clock_ahead_ms);
    Err(Broken::new(RULE, format!("replica {replica} takes its clock to be {offset} the others'")))
}

/// Replica `replica` says that states differ: some were signed by those who `lied` or were damaged.
pub fn alarm(replica: usize, found: Option<&Difference>, lied: &BTreeSet<usize>) -> Check {
    let Some(found) = found else { return Ok(()) };
    let honest = found.digests.iter().filter(|(id, _)| !lied.contains(&id.index()));
    let digests: BTreeSet<_> = honest.map(|(_, digest)| *digest).collect();
    if digests.len() <= 1 {
        return Ok(());
    }
    Err(Broken::new(
        RULE,
        format!("replica {replica} has different states of correct ones: {found:?}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{Digest, Slot};
    use perdura_replica::node::MemberReport;

    #[test]
    fn a_right_clock_is_not_called_wrong() {
        let peer_health =
            PeerHealthReport { clock_ahead_ms: -499, max_skew_ms: 500, ..Default::default() };
        assert!(own_clock(0, &peer_health).is_ok());
        let peer_health = PeerHealthReport { clock_ahead_ms: -501, ..peer_health };
        assert!(own_clock(0, &peer_health).is_err());
    }

    #[test]
    fn states_of_correct_replicas_do_not_differ() {
        let digests = [1u8, 1, 2].map(|byte| Digest([byte; 32]));
        let digests = (0u8..).map(ReplicaId).zip(digests).collect();
        let found = Difference { slot: Slot(8), digests, certifiable: true };
        assert!(alarm(0, Some(&found), &BTreeSet::from([2])).is_ok());
        assert!(alarm(0, Some(&found), &BTreeSet::from([1])).is_err());
        assert!(alarm(0, None, &BTreeSet::new()).is_ok());
    }

    const SECOND_US: u64 = 1_000_000;

    /// Four replicas, one of which may lie, all in touch and with right clocks for 20 seconds.
    fn sight() -> Sight {
        let mut sight = Sight::new(Faults::new(1, 1).unwrap());
        (0..4).for_each(|replica| sight.clock(replica, 100, true, SECOND_US));
        for second in 1..=20 {
            look(&mut sight, second, |_, _| true);
        }
        sight
    }

    fn look(sight: &mut Sight, second: u64, clear: impl Fn(usize, usize) -> bool) {
        for replica in 0..4 {
            sight.is_attentive(replica, true, second * SECOND_US);
            for other in (0..4).filter(|other| *other != replica) {
                let clear = clear(replica, other);
                let between = Between { connection: 1, clear };
                sight.between(replica, other, between, second * SECOND_US);
                if clear {
                    sight.status(replica, other, second * SECOND_US);
                }
            }
        }
    }

    /// Replica 0 hears of these.
    fn peer_health(heard: &[u8]) -> PeerHealthReport {
        let member = |id| MemberReport {
            id: ReplicaId(id),
            heard: heard.contains(&id),
            silent_ms: None,
            trip_ms: None,
            clock_offset_ms: Some(100),
            vitals: None,
        };
        let members = (1..4).map(member).collect();
        PeerHealthReport { members, max_skew_ms: 500, ..PeerHealthReport::default() }
    }

    fn holds(sight: &mut Sight, second: u64, state: State, peer_health: &PeerHealthReport) -> bool {
        let leads = state == State::Active;
        sight.says(0, second * SECOND_US, Says { state, leads, peer_health }).is_ok()
    }

    #[test]
    fn who_is_there_is_heard_and_who_is_not_is_missed() {
        let mut sight = sight();
        assert!(holds(&mut sight, 20, State::Active, &peer_health(&[1, 2, 3])));
        assert!(!holds(&mut sight, 20, State::Active, &peer_health(&[1, 2])), "one is not heard");
        (21..24).for_each(|second| look(&mut sight, second, |a, b| a != 3 && b != 3));
        assert!(holds(&mut sight, 23, State::Active, &peer_health(&[1, 2])));
        assert!(!holds(&mut sight, 23, State::Active, &peer_health(&[1, 2, 3])), "one is gone");
    }

    #[test]
    fn only_who_hears_of_enough_is_ready_and_who_does_is() {
        let mut sight = sight();
        assert!(!holds(&mut sight, 20, State::Waiting, &peer_health(&[1, 2, 3])));
        (21..24).for_each(|second| look(&mut sight, second, |a, b| a + b == 1));
        assert!(!holds(&mut sight, 23, State::Active, &peer_health(&[1])));
        assert!(!holds(&mut sight, 23, State::Recovering, &peer_health(&[1])));
        assert!(holds(&mut sight, 23, State::Waiting, &peer_health(&[1])));
    }

    #[test]
    fn a_wrong_clock_is_called_so_by_its_replica_and_by_others() {
        let mut sight = sight();
        let mut peer_health = peer_health(&[1, 2, 3]);
        let astray = |sight: &mut Sight, id: usize| {
            for second in [20, 30] {
                look(sight, second, |_, _| true);
                sight.clock(id, 9_000, false, second * SECOND_US);
            }
        };
        astray(&mut sight, 0);
        assert!(!holds(&mut sight, 30, State::Active, &peer_health));
        peer_health.clock_ahead_ms = 8_900;
        assert!(!holds(&mut sight, 30, State::Active, &peer_health), "nobody was told");
        sight.notes(0, "the clock of this replica is 8.900 s ahead of those of the others");
        assert!(holds(&mut sight, 30, State::Active, &peer_health) && sight.named() == 1);
        look(&mut sight, 31, |_, _| false);
        sight.clock(0, 9_000, false, 31 * SECOND_US);
        peer_health.members.clear();
        assert!(holds(&mut sight, 31, State::Waiting, &peer_health));
        peer_health.clock_ahead_ms = 0;
        assert!(!holds(&mut sight, 31, State::Waiting, &peer_health), "others are gone");
        peer_health = self::peer_health(&[1, 2, 3]);
        let mut sight = self::sight();
        astray(&mut sight, 2);
        assert!(!holds(&mut sight, 30, State::Active, &peer_health));
        peer_health.members[1].clock_offset_ms = Some(-8_900);
        assert!(holds(&mut sight, 30, State::Active, &peer_health));
    }
}
