//! Which versions a group runs, and which all of it could.

use super::RollCall;
use perdura_protocol::{ReplicaId, ServiceName, Versions};

/// Versions by what the replicas say of themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upgrade {
    /// In force, or higher ones, as r + 1 replicas say.
    pub in_force: Versions,
    /// The highest that all who say anything can run; at least those in force.
    pub common: Versions,
    /// The highest that all but r of them can run, if so many say anything that some replica that does not lie can: more than those in
    /// common only if one has an older program, or says so and lies.
    pub of_most: Versions,
    /// The highest that one of them says it can run; at least those in force.
    pub newest: Versions,
    /// Those that say they cannot run these, and what they can.
    pub behind: Vec<(ReplicaId, Versions)>,
    /// Of whom it is not known that they can run these, and why.
    pub doubtful: Vec<(ReplicaId, String)>,
}

impl RollCall {
    /// What a group that runs this service could run; none if so few say anything that r may lie.
    #[must_use]
    pub fn upgrade(&self, service: &ServiceName) -> Option<Upgrade> {
        let mut doubtful = self.missing();
        doubtful.retain(|(id, _)| self.vitals().all(|(other, _)| other != *id));
        let (mut in_force, mut said) = (Vec::new(), Vec::new());
        for (id, vitals) in self.vitals() {
            match &vitals.runs {
                None => {
                    let program = vitals.program.as_str();
                    doubtful.push((id, format!("its program, {program}, does not say")));
                }
                Some(runs) if runs.service != *service => {
                    doubtful.push((id, format!("it runs the service {}", runs.service)));
                }
                Some(runs) => {
                    in_force.push(runs.versions);
                    said.push((id, runs.newest));
                }
            }
        }
        doubtful.sort();
        in_force.sort_unstable_by(|a, b| b.cmp(a));
        let in_force = *in_force.get(self.faults.r())?;
        let sorted = |version: fn(&Versions) -> u16| {
            let mut all: Vec<u16> = said.iter().map(|(_, newest)| version(newest)).collect();
            all.sort_unstable();
            all
        };
        let (rules, services) = (sorted(|one| one.rules), sorted(|one| one.service));
        // With fewer it could be the word of a liar, for something that nobody runs.
        let r = self.faults.r();
        let few = if rules.len() > 2 * r { r } else { 0 };
        let all_but = |few: usize| {
            let newest = Versions { rules: *rules.get(few)?, service: *services.get(few)? };
            Some(if newest.reach(in_force) { newest } else { in_force })
        };
        let newest = Versions {
            rules: in_force.rules.max(*rules.last()?),
            service: in_force.service.max(*services.last()?),
        };
        let (common, of_most) = (all_but(0)?, all_but(few)?);
        let behind = said.into_iter().filter(|(_, own)| !own.reach(newest)).collect();
        Some(Upgrade { in_force, common, of_most, newest, behind, doubtful })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_client::Attendance;
    use perdura_protocol::Faults;
    use perdura_protocol::vitals::{Condition, Program, Runs, Vitals};

    const KV: ServiceName = ServiceName::literal("kv");

    fn of(rules: u16, service: u16) -> Versions {
        Versions { rules, service }
    }

    /// In force and newest of each; none says nothing of it.
    fn roll(r: u8, said: &[Option<(Versions, Versions)>]) -> RollCall {
        let attendance = (0..).zip(said).map(|(id, said)| Attendance {
            id: ReplicaId(id),
            vitals: Some(Vitals {
                condition: Condition::Active,
                program: Program::new("0.1.0"),
                runs: said.map(|(versions, newest)| Runs { service: KV, versions, newest }),
                ..Vitals::default()
            }),
            failure: None,
            runs: true,
            configuration: None,
        });
        RollCall::new(Faults::new(1, r).unwrap(), attendance.collect())
    }

    #[test]
    fn the_highest_that_all_can_run_is_ordered() {
        let (old, new) = (of(0, 1), of(1, 1));
        let all = roll(0, &[Some((old, of(1, 3))), Some((old, of(1, 2))), Some((old, of(2, 4)))]);
        let upgrade = all.upgrade(&KV).unwrap();
        assert_eq!((upgrade.in_force, upgrade.common), (old, of(1, 2)));
        assert!(upgrade.doubtful.is_empty());
        let done = roll(0, &[Some((new, new)), Some((new, new)), Some((new, of(1, 2)))]);
        let done = done.upgrade(&KV).unwrap();
        assert_eq!((done.in_force, done.common), (new, new));
        // One is behind: what is in force is what one that can be believed says.
        let behind =
            roll(1, &[Some((old, new)), Some((new, new)), Some((new, new)), Some((old, new))]);
        let behind = behind.upgrade(&KV).unwrap();
        assert_eq!((behind.in_force, behind.common, behind.of_most), (new, new, new));
        let liar =
            roll(1, &[Some((old, new)), Some((of(9, 9), new)), Some((old, new)), Some((old, new))]);
        let upgrade = liar.upgrade(&KV).unwrap();
        assert_eq!((upgrade.in_force, upgrade.common), (old, new));
    }

    #[test]
    fn who_has_an_older_program_than_another_is_named() {
        let (old, new) = (of(1, 1), of(1, 2));
        let claims = |newest| Some((old, newest));
        let upgrade = roll(0, &[claims(new), claims(old), claims(old)]).upgrade(&KV).unwrap();
        assert_eq!((upgrade.common, upgrade.newest), (old, new));
        assert_eq!(upgrade.behind, [(ReplicaId(1), old), (ReplicaId(2), old)]);
        // Each may be behind in something else.
        let crossed = roll(0, &[claims(of(2, 1)), claims(new), claims(of(2, 2))]);
        let crossed = crossed.upgrade(&KV).unwrap();
        assert_eq!((crossed.common, crossed.newest), (old, of(2, 2)));
        assert_eq!(crossed.behind, [(ReplicaId(0), of(2, 1)), (ReplicaId(1), new)]);
        let same = roll(0, &[claims(new), claims(new), claims(new)]).upgrade(&KV).unwrap();
        assert!(same.newest == new && same.behind.is_empty());
    }

    /// Whether it lies, or has an older program, nobody else can know.
    #[test]
    fn r_that_claim_older_programs_do_not_keep_the_others_from_what_they_can_run() {
        let (old, new) = (of(0, 1), of(1, 2));
        let claims = |newest| Some((old, newest));
        let group = roll(1, &[claims(new), claims(new), claims(old), claims(new)]);
        let upgrade = group.upgrade(&KV).unwrap();
        assert_eq!((upgrade.common, upgrade.of_most), (old, new));
        let two = roll(1, &[claims(new), claims(old), claims(old), claims(new)]);
        assert_eq!(two.upgrade(&KV).unwrap().of_most, old);
        // Of two one may lie, and nothing is ever lowered.
        let few = roll(1, &[claims(of(1, 1)), claims(of(9, 9)), None, None]);
        assert_eq!(few.upgrade(&KV).unwrap().of_most, of(1, 1));
        let enough = roll(1, &[claims(of(1, 1)), claims(of(9, 9)), claims(of(1, 2)), None]);
        assert_eq!(enough.upgrade(&KV).unwrap().of_most, of(1, 2));
        // Where nobody lies it has an older program.
        let crash = roll(0, &[claims(new), claims(old), claims(new)]);
        assert_eq!(crash.upgrade(&KV).unwrap().of_most, old);
    }

    #[test]
    fn who_does_not_say_what_it_can_run_is_named() {
        let new = of(1, 1);
        let mut some = roll(0, &[Some((new, of(1, 2))), None, Some((new, of(1, 2)))]);
        let upgrade = some.upgrade(&KV).unwrap();
        assert_eq!(upgrade.common, of(1, 2));
        let doubtful = vec![(ReplicaId(1), "its program, 0.1.0, does not say".to_owned())];
        assert_eq!(upgrade.doubtful, doubtful);
        some.attendance[2].vitals = None;
        some.attendance[2].failure = Some("connection refused".into());
        let doubtful = some.upgrade(&KV).unwrap().doubtful;
        assert_eq!(doubtful[1], (ReplicaId(2), "connection refused".to_owned()));
        let other = roll(0, &[Some((new, new)), Some((new, new)), Some((new, new))]);
        assert_eq!(other.upgrade(&ServiceName::literal("tuples")), None);
        assert_eq!(roll(1, &[Some((new, new)), None, None, None]).upgrade(&KV), None);
    }
}
