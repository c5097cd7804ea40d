//! The load: callers with one operation in flight each, over a few clients.

mod bank;
mod bulk;
mod connection;
mod hostile;
mod queue;
mod registers;
mod space;
mod store;
mod value;

use crate::course::{Course, lock};
use crate::files::ClusterFile;
use crate::history::{Book, OperationTarget, ShardId};
use crate::network::Network;
use crate::operation::{Call, Operation, Outcome, Return};
use crate::service::{Service, Workload};
use crate::waits::{Sample, Samples};
use anyhow::{Context, Result};
use bytes::Bytes;
use connection::{Connection, Failure};
use hostile::Leaves;
use perdura_adversary::Random;
use perdura_client::Options;
use perdura_store::{Operation as Asked, StoreCommand};
use perdura_transactions::Split;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use value::Values;

/// Clients for calls that do not wait, each with a session and connections of its own.
const CLIENTS: usize = 4;

/// Clients for calls that wait: such a call holds one of the four frames that a client has in
/// flight, so each is for four callers.
const WAITING_CLIENTS: usize = CALLERS / 4;

/// Callers of each workload.
const CALLERS: usize = 8;

/// Every call has an outcome by then (rule C1); one that waits so much later than its wait.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// What a busy machine may add to that.
const GRACE: Duration = Duration::from_secs(10);

/// Commands in which a shard is read back, at most: one takes more values than are put in a shard.
const MOST_READS: usize = 4;

/// Who reads everything back.
const READER: u64 = 1000;

/// Of a hundred transactions over several partitions, those that a hostile client begins and leaves.
const LEFT: u64 = 3;

/// The hostile client.
const HOSTILE: u64 = 900;

/// Clients that a load has.
pub fn clients(service: Service) -> usize {
    match service {
        Service::Kv => CLIENTS,
        Service::Tuples => CLIENTS + WAITING_CLIENTS,
        // The last one is hostile.
        Service::Partitions => CLIENTS + 1,
    }
}

/// Files with the keys of clients.
#[derive(Clone, Debug)]
pub struct Keys {
    /// That of most.
    pub usual: PathBuf,
    /// That of the hostile one, if there is one.
    pub hostile: Option<PathBuf>,
}

impl Keys {
    fn of(&self, client: usize) -> &PathBuf {
        self.hostile.as_ref().filter(|_| client == CLIENTS).unwrap_or(&self.usual)
    }
}

/// The load of a run.
pub struct Load {
    runtime: tokio::runtime::Runtime,
    shared: Arc<Shared>,
    keys: Keys,
    callers: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    course: Arc<Course>,
    book: Arc<Book>,
    samples: Arc<Samples>,
    clients: Vec<Mutex<Connection>>,
    has_hostile: bool,
    // How many the hostile one has begun.
    begun: AtomicU64,
    stopping: AtomicBool,
    values: Values,
    pause_us: u64,
}

/// How an operation is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// In the order of all others.
    Ordered,
    /// As a read that is not ordered.
    Fast,
    /// Ordered, and it may wait for so long.
    Waits(Duration),
    /// Ordered, it may wait for longer than this, and the client does not: it may never know what
    /// came of it.
    GivesUp(Duration),
}

/// An operation as it is drawn.
struct Drawn {
    shard: ShardId,
    call: Call,
    content: Bytes,
    way: Way,
}

/// What an answer says.
struct Answer {
    result: Return,
    // What keys of the shard are known to have held.
    seen: Vec<(usize, Option<String>)>,
}

fn draw(place: &OperationTarget, values: &Values, random: &mut Random) -> Result<Drawn> {
    match place.shard.0 {
        Workload::Register | Workload::Transactions | Workload::Bank => {
            Ok(store::draw(place, values, random))
        }
        Workload::Tuples => registers::draw(place, values, random),
        Workload::Queue => queue::draw(place, values, random),
    }
}

/// All that a shard holds, for the end of a run; of a queue it is taken.
fn everything(shard: ShardId) -> Result<Drawn> {
    match shard.0 {
        Workload::Register | Workload::Transactions | Workload::Bank => Ok(store::read_all(shard)),
        Workload::Tuples => registers::read_all(shard),
        Workload::Queue => queue::drain(shard),
    }
}

fn understand(drawn: &Drawn, reply: Bytes) -> Result<Answer> {
    match &drawn.call {
        Call::Store(_) => store::understand(drawn.shard.0, &drawn.call, reply),
        Call::Register(call) => registers::understand(drawn.shard, call, reply),
        Call::Queue(call) => queue::understand(drawn.shard, call, reply),
    }
}

impl Shared {
    async fn caller(self: Arc<Shared>, workload: Workload, caller: usize, mut random: Random) {
        while !self.stopping.load(Ordering::Relaxed) {
            let place = self.book.choose(workload, random.next());
            match draw(&place, &self.values, &mut random) {
                Ok(drawn) => match self.is_left(&drawn, &mut random) {
                    None => self.carry_out(caller, drawn).await,
                    Some(split) => {
                        self.leave(&drawn, &split, Leaves::draw(&mut random)).await;
                        self.look_after(caller, drawn.shard, &split, &mut random).await;
                    }
                },
                Err(error) => {
                    self.course.violation(format!("the load draws what no client may: {error}"));
                    return;
                }
            }
            let pause = random.between(self.pause_us / 2, self.pause_us * 3 / 2);
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    }

    /// Writes some of the bulk again and again; what comes of it is nobody's business.
    async fn rewrite_bulk(self: Arc<Shared>, mut random: Random) {
        let options = Options { timeout: DEADLINE, reply_quorum: None };
        while !self.stopping.load(Ordering::Relaxed) {
            let client = self.client(0, Way::Ordered);
            // What is not written now is written later.
            let _ = client.call(bulk::again(&mut random), false, &options).await;
            tokio::time::sleep(bulk::PAUSE).await;
        }
    }

    /// The parts of a transaction that the hostile client is to begin in place of the caller.
    fn is_left(&self, drawn: &Drawn, random: &mut Random) -> Option<Split> {
        let is = self.has_hostile && random.percent(LEFT);
        let hostile = is.then(|| lock(&self.clients[CLIENTS]).clone())?;
        hostile::parts(&hostile, drawn.content.clone())
    }

    /// The hostile client begins it and leaves it: nobody knows what comes of it.
    async fn leave(&self, drawn: &Drawn, split: &Split, leaves: Leaves) {
        let client = lock(&self.clients[CLIENTS]).clone();
        let now = || self.course.now_us();
        let ticket = self.book.call(drawn.shard, HOSTILE, drawn.call.clone(), now);
        let begun = hostile::begin(&client, &self.begun, split, leaves);
        // What hinders it is nobody's concern.
        let _ = tokio::time::timeout(DEADLINE, begun).await;
        self.book.ended(ticket, Outcome::Unknown, now(), &[]);
    }

    /// Now and then somebody looks at once at what a transaction writes, one after the other in the order of partitions.
    async fn look_after(&self, caller: usize, shard: ShardId, split: &Split, random: &mut Random) {
        if random.percent(50) {
            return;
        }
        let operations = split.parts.iter().flat_map(|part| &part.operations);
        let written = operations.filter_map(|operation| match operation {
            Asked::Write { key, .. } | Asked::Delete { key } => Some(key),
            _ => None,
        });
        for key in written {
            if !self.book.again(shard) {
                return;
            }
            let get = StoreCommand::Get { key: key.clone() };
            self.carry_out(caller, store::drawn(shard, &get, random.percent(50))).await;
        }
    }

    fn client(&self, caller: usize, way: Way) -> Connection {
        let number = match way {
            Way::Ordered | Way::Fast => caller % CLIENTS,
            Way::Waits(_) | Way::GivesUp(_) => CLIENTS + caller % WAITING_CLIENTS,
        };
        lock(&self.clients[number]).clone()
    }

    async fn carry_out(&self, caller: usize, drawn: Drawn) {
        let workload = drawn.shard.0;
        let client = self.client(caller, drawn.way);
        let content = drawn.content.clone();
        let process = (workload as u64) * CALLERS as u64 + caller as u64;
        let timeout = match drawn.way {
            Way::Ordered | Way::Fast => DEADLINE,
            Way::Waits(wait) => DEADLINE + wait,
            Way::GivesUp(timeout) => timeout,
        };
        let options = Options { timeout, reply_quorum: None };
        let now = || self.course.now_us();
        let ticket = self.book.call(drawn.shard, process, drawn.call.clone(), now);
        let invoked = now();
        let late = options.timeout + GRACE;
        let answer = client.call(content, drawn.way == Way::Fast, &options);
        let answer = tokio::time::timeout(late, answer).await;
        let over = matches!(&answer, Err(_) | Ok(Err(Failure::Over { .. })));
        let gave_up = matches!(drawn.way, Way::GivesUp(_))
            && matches!(&answer, Ok(Err(Failure::Over { .. })));
        let ended = now();
        let mut seen = Vec::new();
        let call = &drawn.call;
        let strange = |error: String| {
            let what = format!("{call:?} got a reply that fits nothing: {error}");
            self.course.violation(what);
            (Outcome::Unknown, error)
        };
        let (outcome, why) = match answer {
            Err(_) => {
                if self.course.ran_since(invoked) >= late {
                    self.course
                        .violation(format!("a call has no outcome after {late:?}: {call:?}"));
                }
                (Outcome::Unknown, "hung".to_owned())
            }
            Ok(Err(failure)) if failure.is_refusal() => (Outcome::Refused, failure.to_string()),
            Ok(Err(Failure::UnexpectedReply(error))) => strange(error),
            Ok(Err(failure)) => (Outcome::Unknown, failure.to_string()),
            Ok(Ok(reply)) => match understand(&drawn, reply) {
                Ok(answer) => {
                    seen = answer.seen;
                    (Outcome::Ok(answer.result), String::new())
                }
                Err(error) => strange(error.to_string()),
            },
        };
        let ok = matches!(outcome, Outcome::Ok(_));
        let waits = matches!(drawn.way, Way::Waits(_) | Way::GivesUp(_));
        self.book.ended(ticket, outcome, ended, &seen);
        if !gave_up {
            let may_take = options.timeout.as_micros() as u64;
            self.samples.add(Sample { workload, invoked, ended, ok, may_take, over, waits }, why);
        }
    }
}

impl Load {
    /// Makes the clients and starts the callers, with about `rate` operations per second and
    /// workload, and with `bulk` beside them if that is asked of a store.
    pub fn start(
        course: &Arc<Course>,
        book: &Arc<Book>,
        samples: &Arc<Samples>,
        network: &Network,
        (file, keys): (&ClusterFile, Keys),
        (service, bulk, rate, seed): (Service, bool, u64, u64),
    ) -> Result<Load> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()?;
        let clients = (0..clients(service)).map(|client| {
            let key = keys.of(client);
            Ok(Mutex::new(Connection::open(&runtime, network, file, key, client)?))
        });
        let shared = Arc::new(Shared {
            course: Arc::clone(course),
            book: Arc::clone(book),
            samples: Arc::clone(samples),
            clients: clients.collect::<Result<_>>()?,
            has_hostile: keys.hostile.is_some(),
            begun: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            values: Values::default(),
            pause_us: 1_000_000 * CALLERS as u64 / rate.max(1),
        });
        if service == Service::Tuples {
            let client = lock(&shared.clients[0]).clone();
            let options = Options { timeout: DEADLINE, reply_quorum: None };
            let created = runtime.block_on(client.call(space::create()?, false, &options));
            created.context("creating a space")?;
        }
        let random = Random::new(seed).fork("load");
        let mut callers = Vec::new();
        if bulk {
            let mut random = random.fork("bulk");
            let client = lock(&shared.clients[0]).clone();
            let options = Options { timeout: DEADLINE, reply_quorum: None };
            for command in bulk::all(&mut random) {
                runtime.block_on(client.call(command, false, &options)).context("writing bulk")?;
            }
            callers.push(runtime.spawn(Arc::clone(&shared).rewrite_bulk(random)));
        }
        for workload in service.workloads() {
            for caller in 0..CALLERS {
                let random = random.fork(&format!("{} {caller}", workload.name()));
                let shared = Arc::clone(&shared);
                callers.push(runtime.spawn(shared.caller(workload, caller, random)));
            }
        }
        Ok(Load { runtime, shared, keys, callers: Mutex::new(callers) })
    }

    /// New clients in place of the old ones, whose calls end as they will: after a replica was
    /// replaced, clients need its new key.
    pub fn reconnect(&self, network: &Network, file: &ClusterFile) -> Result<()> {
        for (number, client) in self.shared.clients.iter().enumerate() {
            let key = self.keys.of(number);
            let new = Connection::open(&self.runtime, network, file, key, number)?;
            *lock(client) = new;
        }
        Ok(())
    }

    /// No new calls; waits for those under way.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let callers = std::mem::take(&mut *lock(&self.callers));
        self.runtime.block_on(async {
            for caller in callers {
                if let Err(error) = caller.await {
                    self.shared.course.violation(format!("a caller ended: {error}"));
                }
            }
        });
    }

    /// Asks for all that a shard holds, ordered; of a queue until nothing is left.
    pub fn read_back(&self, shard: ShardId) -> Result<Vec<Operation>> {
        let mut read = Vec::new();
        for _ in 0..MOST_READS {
            let one = self.read_once(shard)?;
            let more = matches!(
                one.outcome,
                Outcome::Ok(Return::Queue(crate::queue::Return::FoundAll { more: true, .. }))
            );
            read.push(one);
            if !more {
                return Ok(read);
            }
        }
        anyhow::bail!("after {MOST_READS} times there is still more to read of {shard:?}")
    }

    /// All accounts of all banks, as every replica of each group has them.
    pub fn money_of_all_replicas(&self, replicas: usize) -> Result<Vec<(String, String)>> {
        let client = self.shared.client(0, Way::Ordered);
        let accounts = Workload::Bank.range();
        let accounts = (accounts.0.as_str(), accounts.1.as_str());
        self.runtime.block_on(client.read_from_all(accounts, replicas, DEADLINE))
    }

    fn read_once(&self, shard: ShardId) -> Result<Operation> {
        let drawn = everything(shard)?;
        let client = self.shared.client(0, drawn.way);
        let options = Options { timeout: DEADLINE, reply_quorum: None };
        let invoked = self.shared.course.now_us();
        let reply = self.runtime.block_on(client.call(drawn.content.clone(), false, &options));
        let answer = understand(&drawn, reply.context("reading everything back")?)?;
        Ok(Operation {
            process: READER,
            invoked,
            ended: Some(self.shared.course.now_us()),
            call: drawn.call,
            outcome: Outcome::Ok(answer.result),
        })
    }
}
