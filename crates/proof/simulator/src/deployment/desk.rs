//! What the tasks of one client process and the driver of the run share: what the tasks ask for, and what becomes of it. To
//! [`perdura_transactions::Transactions`] it is the world ([`Groups`]).
//!
//! Invariant: a ticket is answered once, and whoever waits for it is woken then.

use crate::random::Random;
use bytes::Bytes;
use perdura_client::{CallError, Indeterminacy, Mode, Refusal};
use perdura_protocol::{Map, PartitionId, PublicKey};
use perdura_transactions::{Answer, Groups};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A call goes out so late at most, milliseconds.
const LATE_MS: u64 = 60;

/// What runs in a process.
pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a task waits for.
pub(crate) type Number = u64;

/// Something that a task asks the driver for.
#[derive(Clone, Debug)]
pub(crate) enum Asking {
    Call {
        ticket: Number,
        operation: Option<usize>,
        partition: PartitionId,
        command: Bytes,
        fast: bool,
        deadline_ms: u64,
    },
    Session {
        ticket: Number,
        partition: PartitionId,
        deadline_ms: u64,
    },
    Leave {
        partition: PartitionId,
        session: u64,
    },
}

/// What becomes of it.
#[derive(Clone, Debug)]
pub(crate) enum Answered {
    Called(Result<Answer, CallError>),
    Session(Result<u64, CallError>),
    /// Time has passed.
    Slept,
}

#[derive(Debug, Default)]
struct Waiting {
    waker: Option<Waker>,
    answer: Option<Answered>,
}

/// See the module.
pub(crate) struct Desk {
    pub now_ms: u64,
    pub random: Random,
    /// Whether tasks begin nothing more.
    pub closing: bool,
    /// Whether one that attacks takes all that it can.
    pub hogs: bool,
    /// Whether the process ends now.
    pub dies: bool,
    /// Of a hundred calls so many go out late.
    pub stutters: u64,
    /// How often it attacked.
    pub attacks: u64,
    /// The task that is at work.
    pub at_work: u64,
    /// The operations of the workload that tasks are about.
    pub operations: BTreeMap<u64, usize>,
    tickets: Number,
    asked: Vec<Asking>,
    waiting: BTreeMap<Number, Waiting>,
    timers: BTreeSet<(u64, Number)>,
    spawned: Vec<Running>,
}

pub(crate) type SharedDesk = Arc<Mutex<Desk>>;

pub(crate) fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    pub fn new(now_ms: u64, random: Random) -> SharedDesk {
        Arc::new(Mutex::new(Desk {
            now_ms,
            random,
            closing: false,
            hogs: false,
            dies: false,
            stutters: 0,
            attacks: 0,
            at_work: 0,
            operations: BTreeMap::new(),
            tickets: 0,
            asked: Vec::new(),
            waiting: BTreeMap::new(),
            timers: BTreeSet::new(),
            spawned: Vec::new(),
        }))
    }

    fn ticket(&mut self) -> Number {
        self.tickets += 1;
        self.waiting.insert(self.tickets, Waiting::default());
        self.tickets
    }

    /// By how much a call goes out late, if it does, milliseconds.
    fn late_ms(&mut self) -> Option<u64> {
        let is_late = self.stutters > 0 && self.random.percent(self.stutters);
        is_late.then(|| self.random.between(1, LATE_MS))
    }

    /// What was asked for since this was taken last.
    pub fn take_asked(&mut self) -> Vec<Asking> {
        std::mem::take(&mut self.asked)
    }

    /// What is to run beside the other tasks.
    pub fn take_spawned(&mut self) -> Vec<Running> {
        std::mem::take(&mut self.spawned)
    }

    /// Answers a ticket, if anybody waits for it.
    pub fn answer(&mut self, ticket: Number, answer: Answered) {
        let Some(waiting) = self.waiting.get_mut(&ticket) else { return };
        if waiting.answer.is_none() {
            waiting.answer = Some(answer);
            waiting.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// When the first timer is due, milliseconds.
    pub fn due_ms(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// It is that late: what is due ends.
    pub fn comes(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        while let Some((at, ticket)) = self.timers.first().copied()
            && at <= self.now_ms
        {
            self.timers.pop_first();
            self.answer(ticket, Answered::Slept);
        }
    }
}

/// What a ticket comes to.
struct Coming {
    desk: SharedDesk,
    ticket: Number,
}

impl Future for Coming {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let mut desk = lock(&self.desk);
        let waiting = desk.waiting.entry(self.ticket).or_default();
        match waiting.answer.clone() {
            Some(answer) => Poll::Ready(answer),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        lock(&self.desk).waiting.remove(&self.ticket);
    }
}

/// A client process's way to the groups.
#[derive(Clone)]
pub(crate) struct Way {
    pub map: Arc<Map>,
    pub client: PublicKey,
    pub desk: SharedDesk,
}

pub(crate) fn too_late() -> CallError {
    CallError::Refused { reason: Refusal::DeadlinePassed, detail: String::new() }
}

fn unexpected_reply() -> CallError {
    CallError::Indeterminate { reason: Indeterminacy::UnexpectedReply, detail: String::new() }
}

impl Way {
    fn wait(&self, ticket: Number) -> Coming {
        Coming { desk: Arc::clone(&self.desk), ticket }
    }
}

impl Groups for Way {
    fn map(&self) -> &Map {
        &self.map
    }

    fn client(&self) -> PublicKey {
        self.client
    }

    async fn session(&self, partition: PartitionId, deadline_ms: u64) -> Result<u64, CallError> {
        let coming = {
            let mut desk = lock(&self.desk);
            let ticket = desk.ticket();
            desk.asked.push(Asking::Session { ticket, partition, deadline_ms });
            self.wait(ticket)
        };
        match coming.await {
            Answered::Session(session) => session,
            Answered::Slept | Answered::Called(_) => Err(unexpected_reply()),
        }
    }

    async fn leave(&self, partition: PartitionId, session: u64) {
        lock(&self.desk).asked.push(Asking::Leave { partition, session });
    }

    async fn call(
        &self,
        partition: PartitionId,
        command: Bytes,
        mode: Mode,
        deadline_ms: u64,
    ) -> Result<Answer, CallError> {
        let late_ms = lock(&self.desk).late_ms();
        if let Some(late_ms) = late_ms {
            self.sleep(late_ms).await;
        }
        let coming = {
            let mut desk = lock(&self.desk);
            let ticket = desk.ticket();
            let operation = desk.operations.get(&desk.at_work).copied();
            let fast = mode == Mode::Fast;
            let asking = Asking::Call { ticket, operation, partition, command, fast, deadline_ms };
            desk.asked.push(asking);
            self.wait(ticket)
        };
        match coming.await {
            Answered::Called(answer) => answer,
            Answered::Slept | Answered::Session(_) => Err(unexpected_reply()),
        }
    }

    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send + use<> {
        let desk = Arc::clone(&self.desk);
        async move {
            let coming = {
                let mut at = lock(&desk);
                let ticket = at.ticket();
                let until_ms = at.now_ms + ms;
                at.timers.insert((until_ms, ticket));
                Coming { desk: Arc::clone(&desk), ticket }
            };
            coming.await;
        }
    }

    fn now_ms(&self) -> u64 {
        lock(&self.desk).now_ms
    }

    fn random(&self, below: u64) -> u64 {
        lock(&self.desk).random.below(below.max(1))
    }

    fn spawn(&self, task: Running) {
        lock(&self.desk).spawned.push(task);
    }
}
