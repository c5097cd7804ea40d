//! What is explored: how many replicas, slots and views, who lies, who crashes, what is wrong on
//! purpose.

use perdura_agreement::canonical::Form;
use perdura_protocol::{Faults, ReplicaId, Slot, View};

/// Something wrong on purpose, outside the machine: the check has to find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A quorum is complete with one vote too few: the missing one is made up.
    QuorumOffByOne,
    /// A restarted replica finds no votes in its log.
    VotesLostAtRestart,
    /// A restarted replica finds no views in its log.
    ViewsLostAtRestart,
    /// The disk reports a record durable when it is handed over; a crash loses it.
    DurableTooEarly,
    /// The same, and what leaves a replica is not held against its disk: agreement itself has to
    /// break.
    DurableTooEarlyUnseen,
    /// View changes report no locks.
    ViewChangeWithoutLocks,
    /// Twice as many liars as the group is made for.
    LiarTooMany,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 7] = [
        Flaw::QuorumOffByOne,
        Flaw::VotesLostAtRestart,
        Flaw::ViewsLostAtRestart,
        Flaw::DurableTooEarly,
        Flaw::DurableTooEarlyUnseen,
        Flaw::ViewChangeWithoutLocks,
        Flaw::LiarTooMany,
    ];
}

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Fault bounds of the group.
    pub faults: Faults,
    /// Slots 1 to this are proposed for.
    pub slots: u64,
    /// Views 0 to one less than this are entered.
    pub views: u64,
    /// Replicas that say whatever can be said; no machine runs for them.
    pub liars: Vec<ReplicaId>,
    /// Liars sign their Accepts falsely where they vote; what they show as proof is signed well.
    pub forging: bool,
    /// A replica of which two copies run with one key.
    pub twin: Option<ReplicaId>,
    /// Replicas (by seat) that may crash, with what is on disk at any moment.
    pub crashing: Vec<usize>,
    /// How often each of them may.
    pub crashes: u8,
    /// After this slot the prefix is signed, as at a checkpoint.
    pub boundary: Option<Slot>,
    /// [`Form::Live`] explores the reduced space, [`Form::Whole`] every delivery by itself.
    pub form: Form,
    /// What is wrong on purpose.
    pub flaw: Option<Flaw>,
}

impl Scope {
    /// A group without faults; the caller adds to it.
    ///
    /// # Panics
    /// When (u, r) is no pair of fault bounds.
    #[must_use]
    pub fn new(u: u8, r: u8, slots: u64, views: u64) -> Scope {
        Scope {
            faults: Faults::new(u, r).expect("fault bounds of a scope"),
            slots,
            views,
            liars: Vec::new(),
            forging: false,
            twin: None,
            crashing: Vec::new(),
            crashes: 1,
            boundary: None,
            form: Form::Live,
            flaw: None,
        }
    }

    /// With these liars.
    #[must_use]
    pub fn liars(mut self, liars: &[u8]) -> Scope {
        self.liars = liars.iter().map(|id| ReplicaId(*id)).collect();
        self
    }

    /// With Accepts of liars that count by their link alone.
    #[must_use]
    pub fn forging(mut self) -> Scope {
        self.forging = true;
        self
    }

    /// With two copies of this replica.
    #[must_use]
    pub fn twin(mut self, id: u8) -> Scope {
        self.twin = Some(ReplicaId(id));
        self
    }

    /// With one crash of the replica in each of these seats.
    #[must_use]
    pub fn crashing(mut self, seats: &[usize]) -> Scope {
        self.crashing = seats.to_vec();
        self
    }

    /// With a signed prefix after this slot.
    #[must_use]
    pub fn boundary(mut self, slot: u64) -> Scope {
        self.boundary = Some(Slot(slot));
        self
    }

    /// With something wrong on purpose.
    #[must_use]
    pub fn flaw(mut self, flaw: Flaw) -> Scope {
        self.flaw = Some(flaw);
        self
    }

    /// Without the reductions.
    #[must_use]
    pub fn whole(mut self) -> Scope {
        self.form = Form::Whole;
        self
    }

    /// Who sits where: one seat per running machine.
    #[must_use]
    pub fn seats(&self) -> Vec<ReplicaId> {
        let mut seats = Vec::new();
        for index in 0..self.faults.n() {
            let id = ReplicaId(index as u8);
            if self.liars.contains(&id) {
                continue;
            }
            seats.push(id);
            if self.twin == Some(id) {
                seats.push(id);
            }
        }
        seats
    }

    /// Whether the replica keeps its promises, so that it is judged.
    #[must_use]
    pub fn honest(&self, id: ReplicaId) -> bool {
        !self.liars.contains(&id) && self.twin != Some(id)
    }

    /// Whether the log of the seat's replica lags behind, in its `lives`-th life. Where no crash
    /// follows nobody can tell when something became durable (see the crate's head).
    #[must_use]
    pub fn lags(&self, seat: usize, lives: u8) -> bool {
        self.crashing.contains(&seat) && lives < self.crashes
    }

    /// The views after `view` that may be joined.
    pub fn later_views(&self, view: View) -> impl Iterator<Item = View> + use<> {
        (view.0 + 1..self.views).map(View)
    }

    /// Whether the reductions are on.
    #[must_use]
    pub fn reduced(&self) -> bool {
        self.form == Form::Live
    }
}
