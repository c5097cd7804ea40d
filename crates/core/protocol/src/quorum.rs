//! Quorum sizes from the two fault bounds; the only place that computes them (docs/design.md, Bounds).
//!
//! `u` is the number of failures of any kind with which the group stays live; `r` the number of
//! failures by commission with which it stays safe. `r = 0` is Paxos, `u = r = f` is PBFT
//! (ThriftyPaxos, USENIX ATC 2016, and UpRight for the (u, r) notation).

/// The fault bounds of a group. `u` and `r` are at most [`Faults::MAXIMUM`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Faults {
    u: u8,
    r: u8,
}

/// Why a pair (u, r) is not usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultsError {
    /// A group that tolerates nothing needs no replication.
    #[error("u = {0}: at least one failure has to be tolerated; give u from 1 to 8")]
    UOutOfRange(u8),
    /// More liars than the arithmetic is checked for.
    #[error("r = {0}: give r from 0 (crash faults only) to 8")]
    ROutOfRange(u8),
}

impl Faults {
    /// Largest `u` and `r` that are supported and tested.
    pub const MAXIMUM: u8 = 8;

    /// Bounds for at most `u` failures (1 to 8), at most `r` of them by commission (0 to 8).
    ///
    /// # Errors
    /// When either is out of range.
    pub fn new(u: u8, r: u8) -> Result<Faults, FaultsError> {
        if u == 0 || u > Self::MAXIMUM {
            return Err(FaultsError::UOutOfRange(u));
        }
        if r > Self::MAXIMUM {
            return Err(FaultsError::ROutOfRange(r));
        }
        Ok(Faults { u, r })
    }

    /// Up to `u` failures, none by commission: 2u + 1 replicas.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn crash(u: u8) -> Result<Faults, FaultsError> {
        Faults::new(u, 0)
    }

    /// Up to `f` failures of any kind, lying included: 3f + 1 replicas.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn byzantine(f: u8) -> Result<Faults, FaultsError> {
        Faults::new(f, f)
    }

    /// Failures of any kind with which the group stays live.
    #[must_use]
    pub fn u(self) -> usize {
        usize::from(self.u)
    }

    /// Failures by commission with which the group stays safe.
    #[must_use]
    pub fn r(self) -> usize {
        usize::from(self.r)
    }

    /// `max(u, r)`.
    #[must_use]
    pub fn m(self) -> usize {
        self.u().max(self.r())
    }

    /// Agreement nodes: `u + r + m + 1`.
    #[must_use]
    pub fn n(self) -> usize {
        self.u() + self.r() + self.m() + 1
    }

    /// Agreement quorum `Q = r + m + 1`; any two share at least `r + 1` nodes. Equals `n - u`.
    #[must_use]
    pub fn agreement_quorum(self) -> usize {
        (self.r() + self.m() + 1).saturating_sub(crate::seeded!(QuorumOffByOne).into())
    }

    /// Replicas that answer even when `u` have failed: `n - u`.
    #[must_use]
    pub fn responsive(self) -> usize {
        self.n() - self.u()
    }

    /// Execution nodes when they are apart from agreement nodes: `u + m + 1`.
    #[must_use]
    pub fn execution_nodes(self) -> usize {
        self.u() + self.m() + 1
    }

    /// Execution nodes that are active in thrifty mode: `u + r + 1`.
    #[must_use]
    pub fn active_execution_nodes(self) -> usize {
        self.u() + self.r() + 1
    }

    /// Matching replies that a client needs: `r + 1`, one of them from a correct replica.
    #[must_use]
    pub fn reply_quorum(self) -> usize {
        self.r() + 1
    }

    /// Witnesses of which at least one is correct: `r + 1`.
    #[must_use]
    pub fn witnesses(self) -> usize {
        self.r() + 1
    }

    /// Equal signed digests that certify a state: `m + 1`.
    #[must_use]
    pub fn state_certificate(self) -> usize {
        (self.m() + 1).saturating_sub(crate::seeded!(StateCertifiedByOneLess).into())
    }

    /// Votes for a later view on which a replica joins it: `m + 1`.
    #[must_use]
    pub fn view_join(self) -> usize {
        self.m() + 1
    }

    /// Votes for a later view on which a replica joins that suspects its leader itself: `r + 1`.
    #[must_use]
    pub fn view_join_suspecting(self) -> usize {
        self.r() + 1
    }

    /// Signed "durable here" statements before a replica that does not execute may cut its log.
    #[must_use]
    pub fn durable_elsewhere(self) -> usize {
        self.u() + self.r() + 1
    }

    /// Matching replies for a read that was not ordered: `n - u`.
    #[must_use]
    pub fn fast_read_quorum(self) -> usize {
        if crate::seeded!(FastReadByFew) { self.witnesses() } else { self.responsive() }
    }

    /// Whether some replicas may lie, so that replicas exchange Writes and clients sign.
    #[must_use]
    pub fn is_byzantine(self) -> bool {
        self.r > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Faults> {
        (1..=8).flat_map(|u| (0..=8).map(move |r| Faults::new(u, r).unwrap()))
    }

    #[test]
    fn quorums_intersect_for_all_bounds() {
        for faults in all() {
            let (n, q, u, r) = (faults.n(), faults.agreement_quorum(), faults.u(), faults.r());
            // Two agreement quorums share at least r + 1 nodes, so at least one correct one.
            assert!(2 * q - n > r, "{faults:?}");
            // A quorum is there when u have failed.
            assert!(q <= n - u, "{faults:?}");
            // A quorum less u nodes is still at least r + 1.
            assert!(q - u > r, "{faults:?}");
            assert_eq!(q, faults.responsive());
        }
    }

    #[test]
    fn certificates_contain_correct_replicas() {
        for faults in all() {
            let (n, q, u, r, m) =
                (faults.n(), faults.agreement_quorum(), faults.u(), faults.r(), faults.m());
            assert!(faults.reply_quorum() > r && faults.witnesses() > r);
            // A state certificate holds a correct replica, exists when u have failed, and survives
            // the loss of any u of its signers' disks or the silence of any r liars among them.
            assert!(faults.state_certificate() > r && faults.state_certificate() <= n - u);
            assert!(faults.state_certificate() > u.min(m));
            // A fast read's replies meet every decision's quorum in more than r replicas.
            assert!(faults.fast_read_quorum() + q - n > r);
            // A view is not joined on the word of failed replicas alone, and is joined when all
            // correct ones want it (each counts the others).
            assert!(faults.view_join() > r && faults.view_join() > u);
            // An own suspicion stands in for the correct ones, not for the one who is no liar.
            assert!(faults.view_join_suspecting() > r, "{faults:?}");
            assert!(faults.view_join_suspecting() < n - u, "{faults:?}");
            // "Durable here" of that many: one remains when r lied and u disks are lost.
            assert!(faults.durable_elsewhere() > r + u && faults.durable_elsewhere() <= n - u + r);
        }
    }

    #[test]
    fn table_of_the_design() {
        let row = |u, r| {
            let f = Faults::new(u, r).unwrap();
            [
                f.n(),
                f.agreement_quorum(),
                f.execution_nodes(),
                f.active_execution_nodes(),
                f.reply_quorum(),
                f.state_certificate(),
                f.durable_elsewhere(),
                f.witnesses(),
            ]
        };
        assert_eq!(row(1, 0), [3, 2, 3, 2, 1, 2, 2, 1]);
        assert_eq!(row(1, 1), [4, 3, 3, 3, 2, 2, 3, 2]);
        assert_eq!(row(2, 1), [6, 4, 5, 4, 2, 3, 4, 2]);
    }

    #[test]
    fn a_group_is_byzantine_when_somebody_may_lie() {
        for faults in all() {
            assert_eq!(faults.is_byzantine(), faults.r() != 0, "{faults:?}");
        }
    }

    #[test]
    fn useless_bounds_are_refused() {
        assert_eq!(Faults::new(0, 1), Err(FaultsError::UOutOfRange(0)));
        assert_eq!(Faults::new(9, 0), Err(FaultsError::UOutOfRange(9)));
        assert_eq!(Faults::new(1, 9), Err(FaultsError::ROutOfRange(9)));
    }
}
