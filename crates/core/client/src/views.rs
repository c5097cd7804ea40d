//! Which replica leads, as far as a client can know.

use perdura_protocol::{Faults, ReplicaId, View};

/// The view that each replica said it is in. The client believes the (r + 1)-th largest: at least
/// one correct replica is in that view or a later one, so that liars cannot steer it away.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    by_replica: Vec<View>,
    witnesses: usize,
}

impl Views {
    pub(crate) fn new(faults: Faults) -> Views {
        Views { by_replica: vec![View(0); faults.n()], witnesses: faults.witnesses() }
    }

    /// Notes a replica's word; views only grow. Returns whether the believed view changed.
    pub(crate) fn note(&mut self, from: ReplicaId, view: View) -> bool {
        let Some(known) = self.by_replica.get_mut(from.index()) else { return false };
        if view <= *known {
            return false;
        }
        let before = self.believed();
        self.by_replica[from.index()] = view;
        self.believed() != before
    }

    pub(crate) fn believed(&self) -> View {
        let mut views = self.by_replica.clone();
        views.sort_unstable_by(|a, b| b.cmp(a));
        views[self.witnesses - 1]
    }

    pub(crate) fn leader(&self) -> ReplicaId {
        self.believed().leader(self.by_replica.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_liar_cannot_steer_and_witnesses_can() {
        let mut views = Views::new(Faults::new(1, 1).unwrap());
        assert!(!views.note(ReplicaId(3), View(u64::MAX)));
        assert_eq!(views.leader(), ReplicaId(0));
        assert!(views.note(ReplicaId(1), View(2)));
        assert_eq!(views.leader(), ReplicaId(2));
        assert!(!views.note(ReplicaId(1), View(1)));
        assert!(!views.note(ReplicaId(200), View(9)));
        let mut crash = Views::new(Faults::new(1, 0).unwrap());
        assert!(crash.note(ReplicaId(2), View(1)));
        assert_eq!(crash.leader(), ReplicaId(1));
    }
}
