//! The thread that executes, where the event loop does not (`perdura_execution::ExecutionStage`).

use super::keeper::{Completion, Completions};
use super::{watch, worker};
use perdura_execution::{ExecutionStage, Job, JobQueue};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// The name of its thread among those that are watched.
pub(super) const EXECUTION: &str = "execution";

/// Its queue has no bound of its own: what waits in it the node counts, and bounds.
pub(super) struct StageThread {
    jobs: Sender<Job>,
    // What waits is done no more.
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl StageThread {
    pub fn start(completions: Completions) -> io::Result<StageThread> {
        let (jobs, queue) = channel();
        let stops = Arc::new(AtomicBool::new(false));
        let given = Arc::clone(&stops);
        let work = move |completions: &Completions| work(&queue, &given, completions);
        let thread = worker::spawn(EXECUTION, completions, work)?;
        Ok(StageThread { jobs, stops, thread })
    }

    pub fn send(&self, job: Job) {
        // A thread that is gone has reported its panic (`worker`).
        let _ = self.jobs.send(job);
    }

    /// It begins nothing more.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
    }

    /// Waits until what it is at has ended.
    pub fn join(self) {
        self.stop();
        drop(self.jobs);
        // A panic was reported.
        let _ = self.thread.join();
    }
}

fn work(given: &Receiver<Job>, stops: &AtomicBool, completions: &Completions) {
    let (mut stage, mut queue) = (ExecutionStage::default(), JobQueue::default());
    loop {
        if queue.is_empty() {
            match given.recv() {
                Ok(job) => queue.push(job),
                Err(_) => return,
            }
        }
        given.try_iter().for_each(|job| queue.push(job));
        if stops.load(Ordering::SeqCst) {
            return;
        }
        let Some(job) = queue.pop() else { continue };
        let begun = Instant::now();
        let work = || stage.carry_out_telling(job, &mut watch::went_on);
        if let Some(done) = watch::at("executing", work) {
            completions.push(Completion::Done { done, took: begun.elapsed() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RunError;
    use crate::runtime::event_loop::failure;
    use bytes::Bytes;
    use perdura_execution::{
        Call, Done, ExecutionContext, Executor, Failure, Genesis, Machine, QueryContext,
        RestoreError, Service, Shown, Snapshot,
    };
    use perdura_protocol::configuration::{Member, Parameters};
    use perdura_protocol::{
        Batch, ClusterId, Command, Configuration, Encode, Faults, Frame, PublicKey, ServiceName,
        SessionId, Slot, Time,
    };
    use std::sync::mpsc::SyncSender;
    use std::sync::mpsc::sync_channel;
    use std::sync::{Mutex, PoisonError};

    const CLIENT: PublicKey = PublicKey([1; 32]);
    const SESSION: SessionId = SessionId { client: CLIENT, nonce: 1_000 };

    /// Is its last command. Some cannot be executed, and one takes until it is told to go on.
    struct Last {
        is: Bytes,
        // Says that it was begun.
        begun: SyncSender<()>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Service for Last {
        fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
            assert!(command != b"boom", "cannot stand it");
            if command == b"fatal" {
                return Err(Failure::FatalHere("the disk is gone".into()));
            }
            if command == b"hold" {
                self.begun.send(()).unwrap();
                self.goes_on.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap();
            }
            self.is = Bytes::copy_from_slice(command);
            Ok(self.is.clone())
        }

        fn query(&self, _: &QueryContext<'_>, _: &[u8]) -> Option<Result<Bytes, String>> {
            Some(Ok(self.is.clone()))
        }

        fn snapshot(&self) -> Arc<dyn Snapshot> {
            Arc::new(Segment(self.is.clone()))
        }

        fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
            self.is = segment;
            Ok(())
        }
    }

    struct Segment(Bytes);

    impl Snapshot for Segment {
        fn segments(&self) -> usize {
            1
        }

        fn segment(&self, _: usize) -> Bytes {
            self.0.clone()
        }
    }

    fn parameters() -> Parameters {
        Parameters {
            service: ServiceName::literal("last"),
            ..Parameters::small(ClusterId([9; 16]), Faults::crash(1).unwrap(), PublicKey([200; 32]))
        }
    }

    /// The thread, and what is heard of it.
    struct Staged {
        stage: StageThread,
        completions: Completions,
        poll: mio::Poll,
        begun: Receiver<()>,
        go_on: SyncSender<()>,
        last: Option<Last>,
    }

    impl Staged {
        /// One that executes the opening of a session, and then these commands, each in a slot of its own.
        fn new(commands: &[&'static str]) -> Staged {
            let poll = mio::Poll::new().unwrap();
            let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
            let completions = Completions::new(waker);
            let stage = StageThread::start(completions.clone()).unwrap();
            let (begins, begun) = sync_channel(1);
            let (go_on, goes_on) = sync_channel(1);
            let goes_on = Mutex::new(goes_on);
            let last = Some(Last { is: Bytes::new(), begun: begins, goes_on });
            let mut staged = Staged { stage, completions, poll, begun, go_on, last };
            staged.take(0);
            staged.execute(0, 1, 0, Command::Open.to_bytes());
            for (number, command) in (1..).zip(commands) {
                staged.execute(0, number + 1, number, command_of(command));
            }
            staged
        }

        /// Gives it a machine; those after the first hold nobody up.
        fn take(&mut self, machine: u64) {
            let members =
                (0..3).map(|id| Member { key: PublicKey([100 + id; 32]), incarnation: 0 });
            let configuration =
                Configuration { id: 0, from_slot: Slot(0), members: members.collect() };
            let genesis = Genesis { configuration, clients: vec![("client".into(), CLIENT)] };
            let last = self.last.take().unwrap_or_else(|| Last {
                is: Bytes::from_static(b"another"),
                begun: sync_channel(0).0,
                goes_on: Mutex::new(sync_channel(0).1),
            });
            let one = Machine::new(&parameters(), genesis, Box::new(last) as _).unwrap();
            let executor = Box::new(Executor::first(&parameters(), one));
            self.stage.send(Job::Take { machine, executor });
        }

        fn execute(&self, machine: u64, slot: u64, number: u64, command: Bytes) {
            let cluster = parameters().cluster;
            let frame = Frame::build(cluster, SESSION, 0, number, &[command], None);
            let batch = Batch::requests(Time(1_000), vec![frame]);
            self.stage.send(Job::Execute { machine, slot: Slot(slot), batch });
        }

        fn read(&self, number: u64) {
            self.stage.send(Job::Read { number, key: CLIENT, command: command_of("read") });
        }

        /// So many things that are heard of it, as they are told.
        fn hears(&mut self, count: usize) -> Vec<Completion> {
            let (mut heard, mut events) = (Vec::new(), mio::Events::with_capacity(1));
            while heard.len() < count {
                self.poll.poll(&mut events, None).unwrap();
                heard.append(&mut self.completions.take());
            }
            heard
        }
    }

    fn command_of(content: &str) -> Bytes {
        Command::Service(Bytes::copy_from_slice(content.as_bytes())).to_bytes()
    }

    fn told(heard: &[Completion]) -> Vec<String> {
        let told = |completion: &Completion| match completion {
            Completion::Done { done: Done::Executed(batch), .. } => {
                format!("executed {} on {}", batch.ran.slot, batch.machine)
            }
            Completion::Done { done: Done::Taken { machine }, .. } => format!("took {machine}"),
            Completion::Done { done: Done::Read { number, slot, .. }, .. } => {
                format!("read {number} after {slot}")
            }
            _ => "something else".to_owned(),
        };
        heard.iter().map(told).collect()
    }

    #[test]
    fn a_panic_of_the_service_is_named_and_ends_the_replica_as_that() {
        let mut staged = Staged::new(&["fine", "boom", "never"]);
        let heard = staged.hears(4);
        assert_eq!(told(&heard[..3]), ["took 0", "executed 1 on 0", "executed 2 on 0"]);
        let Err(error) = failure(&heard) else { panic!("it goes on") };
        let RunError::Service(panic) = &error else { panic!("{error}") };
        assert_eq!((panic.call, panic.slot, panic.fatal), (Call::Execute, Slot(3), false));
        let shown = Shown { first: b"boom".to_vec(), bytes: 4 };
        assert_eq!(panic.command, Some((SESSION, 2, Some(shown))));
        for part in ["panicked in `execute` at slot 3", "command 2", "\"boom\"", "cannot stand it"]
        {
            assert!(error.to_string().contains(part), "{error}");
        }
        // Nobody is held up by that it is gone.
        staged.read(1);
        staged.stage.join();
        assert!(staged.completions.take().is_empty());
    }

    #[test]
    fn what_is_fatal_here_ends_the_replica_as_that() {
        let mut staged = Staged::new(&["fatal", "never"]);
        let heard = staged.hears(3);
        assert_eq!(told(&heard[..2]), ["took 0", "executed 1 on 0"]);
        let Err(error) = failure(&heard) else { panic!("it goes on") };
        let RunError::FatalHere(panic) = &error else { panic!("{error}") };
        assert_eq!((panic.call, panic.slot, panic.fatal), (Call::Execute, Slot(2), true));
        assert!(panic.text.contains("the disk is gone"), "{panic}");
        staged.stage.join();
        assert!(staged.completions.take().is_empty());
    }

    #[test]
    fn who_is_stopped_ends_what_it_is_at_and_begins_nothing_more() {
        let mut staged = Staged::new(&["hold", "never"]);
        staged.begun.recv().unwrap();
        staged.read(1);
        staged.stage.stop();
        staged.go_on.send(()).unwrap();
        let heard = staged.hears(3);
        assert_eq!(told(&heard), ["took 0", "executed 1 on 0", "executed 2 on 0"]);
        staged.stage.join();
        assert!(staged.completions.take().is_empty());
    }

    #[test]
    fn a_machine_that_comes_while_a_batch_is_executed_takes_the_place_of_the_other_behind_it() {
        let mut staged = Staged::new(&["hold", "dropped", "dropped"]);
        staged.begun.recv().unwrap();
        staged.read(1);
        staged.take(1);
        staged.execute(0, 5, 4, command_of("dropped"));
        staged.execute(1, 1, 0, Command::Open.to_bytes());
        staged.read(2);
        staged.go_on.send(()).unwrap();
        let heard = staged.hears(7);
        assert_eq!(
            told(&heard),
            [
                "took 0",
                "executed 1 on 0",
                "executed 2 on 0",
                "read 1 after 2",
                "took 1",
                "read 2 after 0",
                "executed 1 on 1"
            ]
        );
        assert!(failure(&heard).is_ok());
        staged.stage.join();
        assert!(staged.completions.take().is_empty());
    }
}
