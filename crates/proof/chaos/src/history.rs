//! What clients did and saw, in *shards*: a few keys that are used together for some hundreds of
//! operations and then left alone, so that each history is judged by itself, and quickly.
//!
//! A shard that is full is written to a file and judged while the run goes on. At the end all its
//! keys are read once more, and it is judged again with what they held.

use crate::clocks::Clocks;
use crate::course::lock;
use crate::judge;
use crate::operation::{Call, History, Operation, Outcome};
use crate::queue;
use crate::service::Workload;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};

/// Operations on a shard.
const SHARD_OPERATIONS: usize = 300;

/// Shards of a workload that are in use at once.
pub const OPEN_SHARDS: usize = 4;

/// A shard's name.
pub type ShardId = (Workload, u64);

/// Where an operation is to be.
#[derive(Clone, Debug)]
pub struct OperationTarget {
    /// Its shard.
    pub shard: ShardId,
    /// Whether it is the shard's first.
    pub first: bool,
    /// What the shard's keys held when somebody last looked.
    pub seen: Vec<Option<String>>,
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    shard: ShardId,
    index: usize,
}

#[derive(Default)]
struct Shard {
    operations: Vec<Operation>,
    // Places given, and those whose operation has not ended.
    taken: usize,
    open: usize,
    // What the keys held when somebody last looked.
    seen: Vec<Option<String>>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<ShardId, Shard>,
    // Full, with operations under way.
    ending: BTreeMap<ShardId, Shard>,
    next: BTreeMap<Workload, u64>,
}

/// A shard that is full, and all that happened in it.
type Full = (ShardId, Vec<Operation>);

/// The histories of a run.
pub struct Book {
    directory: PathBuf,
    state: Mutex<State>,
    full: Mutex<Option<mpsc::Sender<Full>>>,
}

/// What came of judging.
#[derive(Clone, Copy, Default, Debug)]
pub struct Judged {
    /// Shards.
    pub shards: u64,
    /// Of these, queues of whose order nothing is said.
    pub in_part: u64,
    /// Operations with a result that were checked.
    pub operations: u64,
    /// Operations of unknown outcome.
    pub unknown: u64,
    /// Operations that were refused.
    pub refused: u64,
}

impl Book {
    /// Histories go to `directory`; full shards to the receiver.
    pub fn create(directory: &Path) -> Result<(Book, mpsc::Receiver<Full>)> {
        fs::create_dir_all(directory)?;
        let (sender, receiver) = mpsc::channel();
        let book = Book {
            directory: directory.to_owned(),
            state: Mutex::default(),
            full: Mutex::new(Some(sender)),
        };
        Ok((book, receiver))
    }

    /// A place for the next operation, in one of the shards in use, chosen by `chance`. The
    /// operation has to be called and to end.
    pub fn choose(&self, workload: Workload, chance: u64) -> OperationTarget {
        let mut state = lock(&self.state);
        let shards = state.open.keys().filter(|shard| shard.0 == workload);
        let mut shards: Vec<ShardId> = shards.copied().collect();
        while shards.len() < OPEN_SHARDS {
            let next = state.next.entry(workload).or_default();
            let id = (workload, *next);
            *next += 1;
            let seen = vec![None; workload.keys()];
            state.open.insert(id, Shard { seen, ..Shard::default() });
            shards.push(id);
        }
        let id = shards[(chance % shards.len() as u64) as usize];
        let shard = state.open.entry(id).or_default();
        let place =
            OperationTarget { shard: id, first: shard.taken == 0, seen: shard.seen.clone() };
        shard.taken += 1;
        shard.open += 1;
        if shard.taken == SHARD_OPERATIONS
            && let Some(full) = state.open.remove(&id)
        {
            state.ending.insert(id, full);
        }
        place
    }

    /// A place for one more operation in this shard, unless it has been handed over. It has to be called and to end.
    pub fn again(&self, shard: ShardId) -> bool {
        let mut state = lock(&self.state);
        let State { open, ending, .. } = &mut *state;
        let held = open.get_mut(&shard).or(ending.get_mut(&shard));
        held.map(|held| held.open += 1).is_some()
    }

    /// Notes a call, before it is made.
    pub fn call(&self, shard: ShardId, process: u64, call: Call, now: impl Fn() -> u64) -> Ticket {
        let mut state = lock(&self.state);
        let State { open, ending, .. } = &mut *state;
        let index = match open.get_mut(&shard).or(ending.get_mut(&shard)) {
            Some(held) => {
                let (invoked, outcome) = (now(), Outcome::Unknown);
                held.operations.push(Operation { process, invoked, ended: None, call, outcome });
                held.operations.len() - 1
            }
            None => usize::MAX,
        };
        Ticket { shard, index }
    }

    /// Notes how it ended, at `ended`, and what its shard's keys are known to have held.
    pub fn ended(
        &self,
        ticket: Ticket,
        outcome: Outcome,
        ended: u64,
        seen: &[(usize, Option<String>)],
    ) {
        let mut state = lock(&self.state);
        let State { open, ending, .. } = &mut *state;
        let Some(shard) = open.get_mut(&ticket.shard).or(ending.get_mut(&ticket.shard)) else {
            return;
        };
        shard.open -= 1;
        if let Some(operation) = shard.operations.get_mut(ticket.index) {
            operation.ended = (outcome != Outcome::Unknown).then_some(ended);
            operation.outcome = outcome;
        }
        for (key, value) in seen {
            if let Some(place) = shard.seen.get_mut(*key) {
                place.clone_from(value);
            }
        }
        let over = shard.open == 0;
        if over && let Some(shard) = state.ending.remove(&ticket.shard) {
            self.hand_over(ticket.shard, shard.operations);
        }
    }

    fn hand_over(&self, id: ShardId, operations: Vec<Operation>) {
        if let Some(full) = lock(&self.full).as_ref() {
            // The receiver lives until the sender is dropped.
            let _ = full.send((id, operations));
        }
    }

    /// No more operations; every shard is handed over, and the receiver ends.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        let State { open, ending, .. } = &mut *state;
        for (id, shard) in std::mem::take(open).into_iter().chain(std::mem::take(ending)) {
            self.hand_over(id, shard.operations);
        }
        *lock(&self.full) = None;
    }

    /// All shards there ever were.
    pub fn shards(&self) -> Vec<ShardId> {
        let state = lock(&self.state);
        let all = |(workload, count): (&Workload, &u64)| {
            let workload = *workload;
            (0..*count).map(move |shard| (workload, shard))
        };
        state.next.iter().flat_map(all).collect()
    }

    fn file(&self, (workload, shard): ShardId) -> PathBuf {
        self.directory.join(format!("{}-{shard}.jsonl", workload.name()))
    }

    /// Writes a shard's operations to its file, and judges them.
    pub fn judge(
        &self,
        id: ShardId,
        history: &History,
        clocks: &Clocks,
    ) -> Result<Result<Judged, String>> {
        fs::write(self.file(id), history.to_json_lines()).context("writing a history")?;
        Ok(self.verdict(id, &history.operations, clocks))
    }

    /// Judges a shard again, with its last operations.
    pub fn judge_again(
        &self,
        id: ShardId,
        last: Vec<Operation>,
        clocks: &Clocks,
    ) -> Result<Result<Judged, String>> {
        let text = fs::read_to_string(self.file(id)).context("reading a history")?;
        let mut history = History::from_json_lines(&text).map_err(anyhow::Error::msg)?;
        history.operations.extend(last);
        self.judge(id, &history, clocks)
    }

    fn verdict(
        &self,
        id: ShardId,
        operations: &[Operation],
        clocks: &Clocks,
    ) -> Result<Judged, String> {
        let in_part = u64::from(id.0 == Workload::Queue && queue::is_judged_in_part(operations));
        let mut judged = Judged { shards: 1, in_part, ..Judged::default() };
        for operation in operations {
            match operation.outcome {
                Outcome::Ok(_) => judged.operations += 1,
                Outcome::Refused => judged.refused += 1,
                Outcome::Unknown => judged.unknown += 1,
            }
        }
        match judge::check(id.0, operations, clocks) {
            Ok(()) => Ok(judged),
            Err(why) => Err(format!("{why} ({})", self.file(id).display())),
        }
    }
}

impl Judged {
    /// Both together.
    pub fn add(&mut self, other: Judged) {
        self.shards += other.shards;
        self.in_part += other.in_part;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.refused += other.refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Return;
    use perdura_oracle as store;

    fn run(answer: Option<&str>) -> Result<Judged, String> {
        let directory = tempfile::tempdir().unwrap();
        let (book, full) = Book::create(directory.path()).unwrap();
        let key = || "key".to_owned();
        for number in 0..SHARD_OPERATIONS as u64 {
            let place = book.choose(Workload::Register, 0);
            assert_eq!(place.shard, (Workload::Register, 0));
            assert_eq!(place.first, number == 0);
            let (key, value) = (key(), format!("v{number}"));
            let call = Call::Store(store::Call::Put { key, value });
            let ticket = book.call(place.shard, 0, call, || 10 * number + 1);
            let done = Outcome::Ok(Return::Store(store::Return::Put));
            if number == 7 {
                // Two at a time, and the shard is full when both have ended.
                assert!(book.again(place.shard));
                let get = Call::Store(store::Call::Get { key: "key".to_owned() });
                let again = book.call(place.shard, 1, get, || 10 * number + 1);
                book.ended(again, Outcome::Unknown, 10 * number + 2, &[]);
            }
            book.ended(ticket, done, 10 * number + 2, &[]);
        }
        let (id, operations) = full.try_recv().unwrap();
        assert_eq!((id.1, operations.len()), (0, SHARD_OPERATIONS + 1));
        assert!(!book.again(id));
        book.judge(id, &History { operations }, &Clocks::exact()).unwrap().unwrap();
        let last = Operation {
            process: 0,
            invoked: 1_000_000,
            ended: Some(1_000_001),
            call: Call::Store(store::Call::Get { key: key() }),
            outcome: Outcome::Ok(Return::Store(store::Return::Value(answer.map(str::to_owned)))),
        };
        book.close();
        assert_eq!(book.shards().len(), OPEN_SHARDS);
        book.judge_again(id, vec![last], &Clocks::exact()).unwrap()
    }

    #[test]
    fn a_full_shard_is_judged_and_a_lost_write_is_found_in_the_end() {
        let judged = run(Some("v299")).unwrap();
        assert_eq!(judged.operations, SHARD_OPERATIONS as u64 + 1);
        for wrong in [Some("v298"), None] {
            assert!(run(wrong).unwrap_err().contains("not linearizable"));
        }
    }
}
