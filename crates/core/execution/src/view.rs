//! What a replica knows of its machine while that is elsewhere: enough to admit frames and to tell retries from what is new.
//!
//! A view is of one slot. It follows the machine by [`News`], one for each batch, and never looks at it: so all that is decided by a view
//! holds for the same slot. It has which numbers of live sessions are settled, and not their answers, for the machine has these and is asked
//! for them. A view may know fewer settled numbers than its machine, and such a number is ordered again and answered then; it never knows
//! more.

use crate::administration::Registry;
use crate::machine::{Machine, newest_versions};
use crate::measure::Measure;
use crate::rules_in_force::RulesInForce;
use crate::service::Service;
use crate::session::Session;
use perdura_protocol::{Configuration, Frame, PublicKey, SessionId, Slot, Time, Versions, limits};
use std::collections::{BTreeMap, BTreeSet};

/// What a batch changed in what a [`View`] has.
#[derive(Clone, Debug)]
pub struct News {
    figures: Figures,
    registry: Registry,
    // Those that the batch touched: what is settled of the numbers that it touched, or nothing if the session is over.
    sessions: Vec<(SessionId, Option<Settled>)>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct View {
    figures: Figures,
    registry: Registry,
    newest: Versions,
    sessions: BTreeMap<SessionId, Settled>,
}

#[derive(Clone, Debug)]
struct Figures {
    slot: Slot,
    due: Option<Time>,
    rules: RulesInForce,
    state_bytes: u64,
    measures: Vec<Measure>,
}

impl Figures {
    fn of<S: Service>(machine: &Machine<S>) -> Figures {
        Figures {
            slot: machine.slot(),
            due: machine.due(),
            rules: machine.rules,
            state_bytes: machine.state_bytes(),
            measures: machine.measures(),
        }
    }
}

/// The numbers of a live session that need no execution any more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Settled {
    // All below it.
    acked_below: u64,
    // The largest number that renewed the session.
    renewal: u64,
    // At or above `acked_below`; those of renewals are not among them.
    numbers: BTreeSet<u64>,
}

impl Settled {
    fn of(session: &Session, numbers: impl Iterator<Item = u64>) -> Settled {
        let (acked_below, renewal) = (session.acked_below(), session.renewal());
        let numbers = numbers.filter(|number| {
            *number >= acked_below && *number < limits::FIRST_RENEWAL && session.is_settled(*number)
        });
        Settled { acked_below, renewal, numbers: numbers.collect() }
    }

    fn has(&self, number: u64) -> bool {
        number < self.acked_below.max(1)
            || (limits::FIRST_RENEWAL..=self.renewal).contains(&number)
            || self.numbers.contains(&number)
    }

    fn follow(&mut self, newer: Settled) {
        if newer.acked_below > self.acked_below {
            self.numbers = self.numbers.split_off(&newer.acked_below);
        }
        (self.acked_below, self.renewal) = (newer.acked_below, newer.renewal);
        self.numbers.extend(newer.numbers);
    }
}

/// The numbers of sessions that a batch touched, as it is executed.
#[derive(Debug, Default)]
pub(crate) struct Touched(BTreeMap<SessionId, BTreeSet<u64>>);

impl Touched {
    pub(crate) fn frame(&mut self, frame: &Frame) {
        let numbers = self.0.entry(frame.session).or_default();
        numbers.extend(frame.first_number..frame.end_number());
    }

    pub(crate) fn number(&mut self, session: SessionId, number: u64) {
        self.0.entry(session).or_default().insert(number);
    }

    pub(crate) fn session(&mut self, session: SessionId) {
        self.0.entry(session).or_default();
    }
}

impl News {
    /// Of the batch that a machine executed last.
    pub(crate) fn of<S: Service>(machine: &Machine<S>, touched: Touched) -> News {
        let settled = |(id, numbers): (SessionId, BTreeSet<u64>)| {
            let session = machine.sessions.get(id);
            (id, session.map(|session| Settled::of(session, numbers.into_iter())))
        };
        News {
            figures: Figures::of(machine),
            registry: machine.registry.clone(),
            sessions: touched.0.into_iter().map(settled).collect(),
        }
    }
}

impl View {
    /// Of a machine as it is. As long as it takes to look at all sessions.
    #[must_use]
    pub fn of<S: Service>(machine: &Machine<S>) -> View {
        let settled = |id: SessionId| {
            let session = machine.sessions.get(id)?;
            Some((id, Settled::of(session, session.settled())))
        };
        View {
            figures: Figures::of(machine),
            registry: machine.registry.clone(),
            newest: newest_versions(&machine.service),
            sessions: machine.sessions().filter_map(settled).collect(),
        }
    }

    /// The machine has executed the next slot.
    ///
    /// # Panics
    /// When these are the news of another one.
    pub fn follow(&mut self, news: News) {
        assert_eq!(news.figures.slot, self.figures.slot.next(), "a view follows slot by slot");
        (self.figures, self.registry) = (news.figures, news.registry);
        for (id, settled) in news.sessions {
            match settled {
                Some(settled) => self.sessions.entry(id).or_default().follow(settled),
                None => drop(self.sessions.remove(&id)),
            }
        }
    }

    /// The slot of which it is.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.figures.slot
    }

    /// [`Machine::due`].
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.figures.due
    }

    /// [`Machine::versions`].
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.figures.rules.versions
    }

    /// The newest versions that the program knows.
    #[must_use]
    pub fn newest_versions(&self) -> Versions {
        self.newest
    }

    /// [`Machine::state_limit_bytes`].
    #[must_use]
    pub fn state_limit_bytes(&self) -> u64 {
        self.figures.rules.state_limit_bytes
    }

    /// [`Machine::state_bytes`].
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.figures.state_bytes
    }

    /// [`Machine::measures`].
    #[must_use]
    pub fn measures(&self) -> &[Measure] {
        &self.figures.measures
    }

    /// [`Machine::administrator`].
    #[must_use]
    pub fn administrator(&self) -> PublicKey {
        self.registry.administrator()
    }

    /// [`Machine::is_client`].
    #[must_use]
    pub fn is_client(&self, key: PublicKey) -> bool {
        self.registry.is_client(key)
    }

    /// [`Machine::configurations`].
    #[must_use]
    pub fn configurations(&self) -> &[Configuration] {
        self.registry.configurations()
    }

    /// [`Machine::session_count`].
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// [`Machine::is_settled`], as far as it knows.
    #[must_use]
    pub fn is_settled(&self, session: SessionId, number: u64) -> bool {
        self.sessions.get(&session).is_some_and(|settled| settled.has(number))
    }
}
