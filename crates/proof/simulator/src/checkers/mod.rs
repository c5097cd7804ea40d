//! What is asked of a group, each rule a checker with a name. They only look; none of them is
//! known to what runs.

pub mod agreed_time;
pub mod agreement;
pub mod boots;
pub mod boundaries;
pub mod bounded_answers;
pub mod bounded_memory;
pub mod commit_order;
pub mod durability;
pub mod equal_states;
pub mod evidence;
pub mod exactly_once;
pub mod fairness;
pub mod fast_reads;
pub mod fencing;
pub mod footprints;
pub mod guest;
pub mod lifetimes;
pub mod pace;
pub mod persist_before_speak;
pub mod progress;
mod real_time;
pub mod revocation;
pub mod rules_in_force;
pub mod sight;
pub mod slot_cost;
pub mod spaces;
pub mod standstill;
pub(crate) mod transactions;
pub mod validity;
pub mod view_grounds;
pub mod votes;
pub mod waits;

pub use agreed_time::AgreedTime;
pub use agreement::Agreement;
pub use boots::Boots;
pub use boundaries::Boundaries;
pub use bounded_answers::BoundedAnswers;
pub use bounded_memory::BoundedMemory;
pub use durability::Durability;
pub use equal_states::EqualStates;
pub use evidence::Evidence;
pub use exactly_once::ExactlyOnce;
pub use fairness::Fairness;
pub use fast_reads::FastReads;
pub use fencing::Fencing;
pub use lifetimes::Lifetimes;
pub use pace::Pace;
pub use persist_before_speak::PersistBeforeSpeak;
pub use revocation::Revocation;
pub use rules_in_force::RulesInForce;
pub use sight::Sight;
pub use slot_cost::SlotCost;
pub use standstill::Standstill;
pub use validity::Validity;
pub use view_grounds::ViewGrounds;
pub use votes::Votes;
pub use waits::Waits;

use crate::options::ServiceKind;
use crate::plan::Plan;
use crate::violation::{Broken, Check};
use perdura_execution::Genesis;
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{Outcome, SessionId};

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
    /// A6.
    pub bounded_answers: BoundedAnswers,
    /// What slots cost.
    pub slot_cost: SlotCost,
    /// A1, A2, A4, D8.
    pub votes: Votes,
    /// A3.
    pub evidence: Evidence,
    /// A4.
    pub view_grounds: ViewGrounds,
    /// D6, D7.
    pub boundaries: Boundaries,
    /// E3.
    pub agreed_time: AgreedTime,
    /// E4.
    pub revocation: Revocation,
    /// A6.
    pub fairness: Fairness,
    /// C2.
    pub fast_reads: FastReads,
    /// A4.
    pub standstill: Standstill,
    /// Section 12: boots.
    pub boots: Boots,
    /// Section 12: other members and clocks.
    pub sight: Sight,
    /// Section 12: time-outs.
    pub pace: Pace,
    /// Section 12: sessions.
    pub lifetimes: Lifetimes,
    /// E1.
    pub rules_in_force: RulesInForce,
    /// A5.
    pub validity: Validity,
    /// E3, E4: tuple spaces.
    pub waits: Waits,
    /// Tuple spaces.
    pub fencing: Fencing,
    /// What its author says does not hold in the state of a replica.
    pub guest_doubt: Option<Broken>,
    /// The versions under which somebody else's service ran.
    pub guest_versions: std::collections::BTreeMap<perdura_protocol::Slot, u16>,
}

impl Checkers {
    /// For one run.
    #[must_use]
    pub fn new(plan: &Plan, parameters: &Parameters, genesis: &Genesis) -> Checkers {
        let first = &genesis.configuration;
        let n = plan.faults.n();
        let cluster = parameters.cluster;
        let least = parameters.boundary(0);
        let timed = parameters.versions.rules > 0
            && !matches!(plan.service, ServiceKind::TupleSpaces | ServiceKind::Partitions);
        Checkers {
            agreement: Agreement::default(),
            exactly_once: ExactlyOnce::default(),
            persist_before_speak: PersistBeforeSpeak::new(n, parameters.schedule),
            durability: Durability::default(),
            equal_states: EqualStates::default(),
            bounded_memory: BoundedMemory {
                depth: plan.depth,
                replicas: n as u64,
                shrunk: plan.shrunk,
            },
            bounded_answers: BoundedAnswers::default(),
            slot_cost: SlotCost::default(),
            votes: Votes::new(n, plan.depth),
            evidence: Evidence::new(cluster, plan.scheme, plan.faults, first.clone()),
            view_grounds: ViewGrounds::new(plan.faults),
            boundaries: Boundaries::new(least, parameters.schedule),
            agreed_time: AgreedTime::new(parameters.max_skew_ms, plan.faults),
            revocation: Revocation::default(),
            fairness: Fairness::new(
                plan.faults,
                plan.depth,
                plan.workload.clients as u64,
                plan.workload.callers as u64,
            ),
            fast_reads: FastReads::new(n),
            standstill: Standstill::new(n),
            boots: Boots::new(plan.faults),
            sight: Sight::new(plan.faults),
            pace: Pace::new(n, plan.faults.r()),
            lifetimes: Lifetimes::new(timed),
            rules_in_force: RulesInForce::new(parameters.administrator),
            validity: Validity::new(genesis),
            waits: Waits::new(parameters.offer_ms()),
            fencing: Fencing::default(),
            guest_doubt: None,
            guest_versions: std::collections::BTreeMap::new(),
        }
    }

    /// `replica` signs what the commands with these numbers gave, for the client of `session` to show to others.
    pub(crate) fn check_attested(
        &self,
        replica: usize,
        session: SessionId,
        mut numbers: impl Iterator<Item = u64>,
    ) -> Check {
        numbers.try_for_each(|number| {
            let slot = self.exactly_once.slot_of(session, number);
            self.persist_before_speak.attests(replica, number, slot, &self.agreement)
        })
    }

    /// `replica` sends these outcomes to the client of `session`.
    pub(crate) fn check_replies(
        &self,
        replica: usize,
        session: SessionId,
        outcomes: &[(u64, Outcome)],
    ) -> Check {
        let place = |number: u64| {
            let executed = self.exactly_once.place_of(session, number)?;
            // What waited has its reply from a later batch.
            Some(match self.waits.answered(session, number) {
                None => (executed.0, Some(executed.1)),
                Some(answered) => (answered.slot, self.agreement.decided(answered.slot)),
            })
        };
        // That it waits is so from its own batch on, also where it is answered by now.
        let began = |number: u64| {
            let executed = self.exactly_once.place_of(session, number)?;
            Some((executed.0, Some(executed.1)))
        };
        let (waits, replies): (Vec<_>, Vec<_>) =
            outcomes.iter().cloned().partition(|(_, outcome)| *outcome == Outcome::Waits);
        self.persist_before_speak.replies(replica, &waits, began)?;
        self.persist_before_speak.replies(replica, &replies, place)
    }
}
