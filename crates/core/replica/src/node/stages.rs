//! What the thread of the event loop spends its processor time on, while somebody wants to know. The clock is an
//! argument; without one nothing is measured, and nothing it says has any effect.

/// What the time goes to. Each moment belongs to one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Stage {
    /// Reading from connections, with decryption and framing.
    Receive,
    /// Messages from bytes.
    Decode,
    /// Signatures of clients.
    Verify,
    /// Agreement, with the signatures of replicas; and what belongs to no other stage.
    #[default]
    Order,
    /// What is decided becomes effects and replies.
    Execute,
    /// Records on their way to the thread that writes the log.
    Log,
    /// Replies, as bytes.
    Reply,
    /// Writing to connections, with framing and encryption.
    Send,
}

impl Stage {
    /// All, in the order in which a command passes them.
    pub const ALL: [Stage; 8] = [
        Stage::Receive,
        Stage::Decode,
        Stage::Verify,
        Stage::Order,
        Stage::Log,
        Stage::Execute,
        Stage::Reply,
        Stage::Send,
    ];

    /// In `/status`, in metrics and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Decode => "decode",
            Stage::Verify => "verify",
            Stage::Order => "order",
            Stage::Execute => "execute",
            Stage::Log => "log",
            Stage::Reply => "reply",
            Stage::Send => "send",
        }
    }
}

/// What a stage took so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Processor time, nanoseconds.
    pub nanoseconds: u64,
    /// How often it was entered.
    pub entries: u64,
}

/// Stages with what they took.
#[derive(Debug, Default)]
pub struct Stages {
    // Nanoseconds of processor time of the thread that asks.
    clock: Option<fn() -> u64>,
    current: Stage,
    since: u64,
    spent: [Spent; Stage::ALL.len()],
}

impl Stages {
    /// Measured by this clock, nanoseconds, from the first stage that is entered on.
    #[must_use]
    pub fn by(clock: fn() -> u64) -> Stages {
        Stages { clock: Some(clock), since: clock(), ..Stages::default() }
    }

    /// From now on the time belongs to `stage`. Gives the one before, for [`Stages::go_back`].
    pub fn enter(&mut self, stage: Stage) -> Stage {
        if self.clock.is_some() {
            self.spent[stage as usize].entries += 1;
        }
        self.go_back(stage)
    }

    /// From now on the time belongs to `stage` again. Gives the one before.
    pub fn go_back(&mut self, stage: Stage) -> Stage {
        if let Some(clock) = self.clock {
            let now = clock();
            self.spent[self.current as usize].nanoseconds += now.saturating_sub(self.since);
            self.since = now;
        }
        std::mem::replace(&mut self.current, stage)
    }

    /// What each took; none if nobody wanted to know.
    #[must_use]
    pub fn spent(&self) -> Option<Vec<(Stage, Spent)>> {
        self.clock?;
        Some(Stage::ALL.map(|stage| (stage, self.spent[stage as usize])).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn pass(nanoseconds: u64) {
        NOW.set(NOW.get() + nanoseconds);
    }

    #[test]
    fn each_moment_belongs_to_one_stage() {
        let mut stages = Stages::by(|| NOW.get());
        pass(3);
        let order = stages.enter(Stage::Decode);
        assert_eq!(order, Stage::Order);
        pass(5);
        let decode = stages.enter(Stage::Verify);
        pass(7);
        assert_eq!(stages.go_back(decode), Stage::Verify);
        pass(11);
        stages.go_back(order);
        pass(13);
        stages.enter(Stage::Send);
        let spent = stages.spent().unwrap();
        let of = |stage| spent.iter().find(|(one, _)| *one == stage).unwrap().1;
        let is = |nanoseconds, entries| Spent { nanoseconds, entries };
        assert_eq!(of(Stage::Decode), is(16, 1));
        assert_eq!(of(Stage::Verify), is(7, 1));
        assert_eq!(of(Stage::Order), is(16, 0));
        assert_eq!(of(Stage::Send), is(0, 1));
        assert_eq!(spent.iter().map(|(_, spent)| spent.nanoseconds).sum::<u64>(), NOW.get());
    }

    #[test]
    fn without_a_clock_nothing_is_measured() {
        let mut stages = Stages::default();
        stages.enter(Stage::Execute);
        assert_eq!(stages.spent(), None);
        assert_eq!(stages.go_back(Stage::Order), Stage::Execute);
    }

    #[test]
    fn all_are_in_the_list_once() {
        let mut all = Stage::ALL.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Stage::ALL.len());
        assert!(all.iter().enumerate().all(|(index, stage)| *stage as usize == index));
    }
}
