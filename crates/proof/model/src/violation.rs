//! What must not happen.

use std::fmt;

/// The rule that was broken, by its number in docs/design.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A1: two batches were delivered for a slot.
    Agreement,
    /// A2: something left a replica before it was on its disk.
    PersistBeforeSpeak,
    /// A5: a batch was delivered that no client sent.
    Validity,
    /// A4: slots come in order, each once.
    Contiguous,
    /// A decision without a valid certificate, or without a quorum whose disks hold the vote.
    Evidence,
    /// A3: a replica was accused that did nothing wrong.
    NoFalseAccusation,
    /// Everything was said and arrived, and yet a replica lacks a slot.
    Progress,
}

/// What was broken, and how.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Who and what.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}
