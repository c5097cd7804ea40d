//! The load: callers with one operation in flight each, over a few clients.

mod bulk;
mod queue;
mod registers;
mod space;
mod store;
mod value;

use crate::course::{Course, lock};
use crate::files::{ClusterFile, secret_key};
use crate::history::{Book, Place, ShardId};
use crate::network::{Network, Party};
use crate::operation::{Call, Operation, Outcome, Return};
use crate::service::{Service, Workload};
use crate::waits::{Sample, Samples};
use anyhow::{Context, Result};
use bytes::Bytes;
use perdura_adversary::Random;
use perdura_client::{CallError, Client, Indeterminacy, Options, Refusal, Reply};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Clients that a load has.
pub fn clients(service: Service) -> usize {
    match service {
        Service::Kv => CLIENTS,
        Service::Tuples => CLIENTS + WAITING_CLIENTS,
    }
}

/// The load of a run.
pub struct Load {
    runtime: tokio::runtime::Runtime,
    shared: Arc<Shared>,
    callers: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    course: Arc<Course>,
    book: Arc<Book>,
    samples: Arc<Samples>,
    clients: Vec<Mutex<Client>>,
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

fn draw(place: &Place, values: &Values, random: &mut Random) -> Result<Drawn> {
    match place.shard.0 {
        Workload::Register | Workload::Transactions => Ok(store::draw(place, values, random)),
        Workload::Tuples => registers::draw(place, values, random),
        Workload::Queue => queue::draw(place, values, random),
    }
}

/// All that a shard holds, for the end of a run; of a queue it is taken.
fn everything(shard: ShardId) -> Result<Drawn> {
    match shard.0 {
        Workload::Register | Workload::Transactions => Ok(store::read_all(shard)),
        Workload::Tuples => registers::read_all(shard),
        Workload::Queue => queue::drain(shard),
    }
}

fn understand(drawn: &Drawn, reply: Reply) -> Result<Answer> {
    let Reply::Service(reply) = reply else {
        anyhow::bail!("it is of the administration");
    };
    match &drawn.call {
        Call::Store(_) => store::understand(drawn.shard.0, &drawn.call, reply),
        Call::Register(call) => registers::understand(drawn.shard, call, reply),
        Call::Queue(call) => queue::understand(drawn.shard, call, reply),
    }
}

/// Whether a call ended because of its deadline, sent or not.
fn is_over(error: &CallError) -> bool {
    match error {
        CallError::Refused { reason, .. } => *reason == Refusal::DeadlinePassed,
        CallError::Indeterminate { reason, .. } => *reason == Indeterminacy::DeadlinePassed,
    }
}

impl Shared {
    async fn caller(self: Arc<Shared>, workload: Workload, caller: usize, mut random: Random) {
        while !self.stopping.load(Ordering::Relaxed) {
            let place = self.book.choose(workload, random.next());
            match draw(&place, &self.values, &mut random) {
                Ok(drawn) => self.carry_out(caller, drawn).await,
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
            let _ = client.call(bulk::again(&mut random), &options).await;
            tokio::time::sleep(bulk::PAUSE).await;
        }
    }

    fn client(&self, caller: usize, way: Way) -> Client {
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
            Way::GivesUp(patience) => patience,
        };
        let options = Options { timeout, reply_quorum: None };
        let now = || self.course.now_us();
        let ticket = self.book.call(drawn.shard, process, drawn.call.clone(), now);
        let invoked = now();
        let answer = async {
            match drawn.way {
                Way::Fast => client.read(content, &options).await,
                Way::Ordered | Way::Waits(_) | Way::GivesUp(_) => {
                    client.call(content, &options).await
                }
            }
        };
        let late = options.timeout + GRACE;
        let answer = tokio::time::timeout(late, answer).await;
        let gave_up = matches!(drawn.way, Way::GivesUp(_))
            && matches!(&answer, Ok(Err(error)) if is_over(error));
        let ended = now();
        let mut seen = Vec::new();
        let call = &drawn.call;
        let (outcome, why) = match answer {
            Err(_) => {
                self.course.violation(format!("a call has no outcome after {late:?}: {call:?}"));
                (Outcome::Unknown, "hung".to_owned())
            }
            Ok(Err(error @ CallError::Refused { .. })) => (Outcome::Refused, error.to_string()),
            Ok(Err(error)) => (Outcome::Unknown, error.to_string()),
            Ok(Ok(reply)) => match understand(&drawn, reply) {
                Ok(answer) => {
                    seen = answer.seen;
                    (Outcome::Ok(answer.result), String::new())
                }
                Err(error) => {
                    self.course
                        .violation(format!("{call:?} got a reply that fits nothing: {error}"));
                    (Outcome::Unknown, error.to_string())
                }
            },
        };
        let ok = matches!(outcome, Outcome::Ok(_));
        let waits = matches!(drawn.way, Way::Waits(_) | Way::GivesUp(_));
        self.book.ended(ticket, outcome, ended, &seen);
        if !gave_up {
            self.samples.add(Sample { workload, invoked, ended, ok, waits }, why);
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
        (file, key): (&ClusterFile, &Path),
        (service, bulk, rate, seed): (Service, bool, u64, u64),
    ) -> Result<Load> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()?;
        let clients = (0..clients(service))
            .map(|client| Ok(Mutex::new(connect(&runtime, network, file, key, client)?)));
        let shared = Arc::new(Shared {
            course: Arc::clone(course),
            book: Arc::clone(book),
            samples: Arc::clone(samples),
            clients: clients.collect::<Result<_>>()?,
            stopping: AtomicBool::new(false),
            values: Values::default(),
            pause_us: 1_000_000 * CALLERS as u64 / rate.max(1),
        });
        if service == Service::Tuples {
            let client = lock(&shared.clients[0]).clone();
            let options = Options { timeout: DEADLINE, reply_quorum: None };
            let created = runtime.block_on(client.call(space::create()?, &options));
            created.context("creating a space")?;
        }
        let random = Random::new(seed).fork("load");
        let mut callers = Vec::new();
        if bulk {
            let mut random = random.fork("bulk");
            let client = lock(&shared.clients[0]).clone();
            let options = Options { timeout: DEADLINE, reply_quorum: None };
            for command in bulk::all(&mut random) {
                runtime.block_on(client.call(command, &options)).context("writing bulk")?;
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
        Ok(Load { runtime, shared, callers: Mutex::new(callers) })
    }

    /// New clients in place of the old ones, whose calls end as they will: after a replica was
    /// replaced, clients need its new key.
    pub fn reconnect(&self, network: &Network, file: &ClusterFile, key: &Path) -> Result<()> {
        for (number, client) in self.shared.clients.iter().enumerate() {
            let new = connect(&self.runtime, network, file, key, number)?;
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

    fn read_once(&self, shard: ShardId) -> Result<Operation> {
        let drawn = everything(shard)?;
        let client = self.shared.client(0, drawn.way);
        let options = Options { timeout: DEADLINE, reply_quorum: None };
        let invoked = self.shared.course.now_us();
        let reply = self.runtime.block_on(client.call(drawn.content.clone(), &options));
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

fn connect(
    runtime: &tokio::runtime::Runtime,
    network: &Network,
    file: &ClusterFile,
    key: &Path,
    number: usize,
) -> Result<Client> {
    let _inside = runtime.enter();
    let config = file.client_config(|to| network.address(Party::Client(number), to));
    Ok(Client::connect(config, secret_key(key)?)?)
}
