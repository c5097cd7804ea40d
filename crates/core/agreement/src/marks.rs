//! Marks on rare branches: counted where they are taken, so that tests that exist for one can
//! assert that it was reached.

/// How often each was taken since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Views that started with batches locked before.
    pub locks_carried: u64,
    /// Views that started with empty batches in holes below them.
    pub holes_filled: u64,
    /// Times that a new leader asked for a locked batch that it did not hold.
    pub batches_asked_for: u64,
    /// Questions to a leader for batches that its view is bound to.
    pub reproposals_asked_for: u64,
    /// Times that a peer was told of the start of a view that it had missed.
    pub new_views_repeated: u64,
    /// Times that the next leaders did not keep up, and a later one was wished for.
    pub leaders_passed_over: u64,
    /// Writes withheld in the view of a restart (rule 6).
    pub writes_withheld: u64,
    /// Writes that waited until what was before them had been executed, each time counted.
    pub writes_behind_costs: u64,
    /// Prefixes signed because somebody waited for one.
    pub prefixes_attested: u64,
    /// Decisions by link whose Accepts were found genuine afterwards.
    pub decisions_proven: u64,
    /// Those where too few were.
    pub accepts_not_genuine: u64,
    /// Times that a state was asked for because nothing proved what was fetched.
    pub states_for_proofs: u64,
    /// Times that decisions of others moved this replica on.
    pub decisions_fetched: u64,
    /// Answers with decided batches that came before their turn.
    pub decisions_held: u64,
    /// Those of them that were here when the state before them was installed.
    pub decisions_beside_state: u64,
    /// Answers that came before their turn and were of no use when it came.
    pub held_in_vain: u64,
    /// Times that this replica stopped delivering because its log was too far behind.
    pub disk_lags: u64,
}
