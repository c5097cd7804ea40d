//! What is asked of a group, each rule a checker with a name. They only look; none of them is
//! known to what runs.

pub mod agreement;
pub mod bounded_memory;
pub mod commit_order;
pub mod durability;
pub mod equal_states;
pub mod exactly_once;
pub mod persist_before_speak;
pub mod progress;

pub use agreement::Agreement;
pub use bounded_memory::BoundedMemory;
pub use durability::Durability;
pub use equal_states::EqualStates;
pub use exactly_once::ExactlyOnce;
pub use persist_before_speak::PersistBeforeSpeak;

use crate::plan::Plan;

/// All checkers of a run.
#[derive(Debug)]
pub struct Checkers {
    /// A1.
    pub agreement: Agreement,
    /// E4.
    pub exactly_once: ExactlyOnce,
    /// A2, D1.
    pub persist_before_speak: PersistBeforeSpeak,
    /// D1.
    pub durability: Durability,
    /// D7.
    pub equal_states: EqualStates,
    /// A6.
    pub bounded_memory: BoundedMemory,
}

impl Checkers {
    /// For one run.
    #[must_use]
    pub fn new(plan: &Plan) -> Checkers {
        let n = plan.faults.n();
        Checkers {
            agreement: Agreement::default(),
            exactly_once: ExactlyOnce::default(),
            persist_before_speak: PersistBeforeSpeak::new(n),
            durability: Durability::default(),
            equal_states: EqualStates::default(),
            bounded_memory: BoundedMemory { depth: plan.depth, replicas: n as u64 },
        }
    }
}
