//! Guards what replicas say of their surroundings (DESIGN.md section 12): who is in order is not called wrong.

use crate::violation::{Broken, Check};
use perdura_replica::node::{CompanyReport, Difference, offset_text};
use std::collections::BTreeSet;

const RULE: &str = "Sight (12)";

/// Replica `replica`, whose clock is right, sees its clock so.
pub fn own_clock(replica: usize, company: &CompanyReport) -> Check {
    if !company.is_clock_wrong() {
        return Ok(());
    }
    let offset = offset_text(company.clock_ahead_ms);
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
    use perdura_protocol::{Digest, ReplicaId, Slot};

    #[test]
    fn a_right_clock_is_not_called_wrong() {
        let company =
            CompanyReport { clock_ahead_ms: -499, max_skew_ms: 500, ..Default::default() };
        assert!(own_clock(0, &company).is_ok());
        let company = CompanyReport { clock_ahead_ms: -501, ..company };
        assert!(own_clock(0, &company).is_err());
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
}
