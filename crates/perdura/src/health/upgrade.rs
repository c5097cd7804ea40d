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
    /// Of whom it is not known that they can run these, and why.
    pub doubtful: Vec<(ReplicaId, String)>,
}

impl Upgrade {
    /// Whether there is anything to raise.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.common != self.in_force
    }
}

impl RollCall {
    /// What a group that runs this service could run; none if so few say anything that r may lie.
    #[must_use]
    pub fn upgrade(&self, service: &ServiceName) -> Option<Upgrade> {
        let mut doubtful = self.missing();
        doubtful.retain(|(id, _)| self.vitals().all(|(other, _)| other != *id));
        let mut in_force = Vec::new();
        let mut common: Option<Versions> = None;
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
                    let newest = common.unwrap_or(runs.newest);
                    common = Some(newest.common(runs.newest));
                }
            }
        }
        doubtful.sort();
        in_force.sort_unstable_by(|a, b| b.cmp(a));
        let in_force = *in_force.get(self.faults.r())?;
        let common = common?;
        let common = if common.reach(in_force) { common } else { in_force };
        Some(Upgrade { in_force, common, doubtful })
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
        });
        RollCall::new(Faults::new(1, r).unwrap(), attendance.collect())
    }

    #[test]
    fn the_highest_that_all_can_run_is_ordered() {
        let (old, new) = (of(0, 1), of(1, 1));
        let all = roll(0, &[Some((old, of(1, 3))), Some((old, of(1, 2))), Some((old, of(2, 4)))]);
        let upgrade = all.upgrade(&KV).unwrap();
        assert_eq!((upgrade.in_force, upgrade.common), (old, of(1, 2)));
        assert!(upgrade.is_due() && upgrade.doubtful.is_empty());
        let done = roll(0, &[Some((new, new)), Some((new, new)), Some((new, of(1, 2)))]);
        assert!(!done.upgrade(&KV).unwrap().is_due());
        // One is behind: what is in force is what one that can be believed says.
        let behind =
            roll(1, &[Some((old, new)), Some((new, new)), Some((new, new)), Some((old, new))]);
        assert!(!behind.upgrade(&KV).unwrap().is_due());
        let liar =
            roll(1, &[Some((old, new)), Some((of(9, 9), new)), Some((old, new)), Some((old, new))]);
        let upgrade = liar.upgrade(&KV).unwrap();
        assert_eq!((upgrade.in_force, upgrade.common), (old, new));
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
