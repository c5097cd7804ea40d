//! The stage, and the view that follows its machine.

use crate::support::*;
use crate::waiting::Bell;
use bytes::Bytes;
use perdura_execution::{
    Done, ExecutionContext, ExecutionStage, Executor, Failure, Job, Machine, Meter, QueryContext,
    ReadState, Readable, RestoreError, Retry, Service, Snapshot, StagedBatch, View,
};
use perdura_protocol::{
    AdminCommand, Batch, Command, Encode, Frame, Outcome, PublicKey, RefusalReason, SessionId,
    Slot, Time, Versions, limits,
};
use std::sync::Arc;

/// Small numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

const CAROL: PublicKey = PublicKey([3; 32]);

const LAST: u64 = 24;

fn sessions() -> impl Iterator<Item = SessionId> {
    [ALICE, BOB, CAROL, ADMINISTRATOR]
        .into_iter()
        .flat_map(|client| (1..4).map(move |nonce| session(client, nonce)))
}

fn drawn_frame(draw: &mut Draw) -> Frame {
    let id = sessions().nth(draw.below(12) as usize).unwrap();
    let (first, acked) = (1 + draw.below(LAST), draw.below(8));
    let of = 1 + draw.below(LAST);
    let command = match draw.below(12) {
        0..3 => return opening(id),
        3 if draw.below(4) == 0 => Command::Close.to_bytes(),
        3 | 4 => {
            let number = limits::FIRST_RENEWAL + draw.below(3);
            return frame(id, 0, number, &[Command::Renew.to_bytes()]);
        }
        5 => Command::Withdraw { number: of }.to_bytes(),
        6 => Command::Confirm { number: of }.to_bytes(),
        7 => service(&format!("wait {}", 50 * draw.below(40))),
        8 => service("ring"),
        9 if id.client == ADMINISTRATOR && draw.below(6) == 0 => {
            admin(AdminCommand::RevokeClient { name: "carol".into() })
        }
        9 if id.client == ADMINISTRATOR => {
            admin(AdminCommand::AddClient { name: "carol".into(), key: CAROL })
        }
        _ => service("count"),
    };
    let more = draw.below(3);
    let commands: Vec<_> =
        std::iter::once(command).chain((0..more).map(|_| service("count"))).collect();
    frame(id, acked, first, &commands)
}

/// What a view says after any batch is what the machine says, and no more.
fn follows(seed: u64, versions: Versions) -> usize {
    let parameters = perdura_protocol::configuration::Parameters { versions, ..parameters() };
    let machine = Machine::new(&parameters, genesis(), Box::new(Bell::default()) as _).unwrap();
    let mut view = View::of(&machine);
    let mut stage = ExecutionStage::default();
    let executor = Box::new(Executor::first(&parameters, machine));
    assert!(matches!(
        stage.carry_out(Job::Take { machine: 3, executor }),
        Some(Done::Taken { machine: 3 })
    ));
    let (mut draw, mut time, mut settled) = (Draw(seed), 1_000, 0);
    for slot in 1..120 {
        time += if draw.below(20) == 0 { 40_000 } else { draw.below(300) };
        let frames: Vec<Frame> = (0..draw.below(5)).map(|_| drawn_frame(&mut draw)).collect();
        let batch = match frames.is_empty() {
            true => Batch::tick(Time(time)),
            false => Batch::requests(Time(time), frames),
        };
        let job = Job::Execute { machine: 3, slot: Slot(slot), batch };
        let Some(Done::Executed(executed)) = stage.carry_out(job) else {
            panic!("the batch of slot {slot} was not executed");
        };
        let StagedBatch { machine, ran, news, .. } = *executed;
        assert_eq!((machine, ran.slot), (3, Slot(slot)));
        view.follow(news);
        let machine = stage.executor().unwrap().machine();
        assert_eq!(ran.history, machine.history());
        assert_eq!((view.slot(), view.due()), (machine.slot(), machine.due()));
        assert_eq!(view.versions(), machine.versions());
        assert_eq!(view.administrator(), machine.administrator());
        assert_eq!(view.session_count(), machine.session_count());
        assert_eq!(view.configurations(), machine.configurations());
        assert_eq!(view.is_client(CAROL), machine.is_client(CAROL));
        let anew = View::of(machine);
        for id in sessions() {
            let renewals = limits::FIRST_RENEWAL..limits::FIRST_RENEWAL + 4;
            for number in (0..LAST + 8).chain(renewals) {
                let [seen, is, looked] = [
                    view.is_settled(id, number),
                    machine.is_settled(id, number),
                    anew.is_settled(id, number),
                ];
                assert_eq!(looked, is, "seed {seed}, slot {slot}: {id:?} {number}");
                let fewer = versions.rules == 0 && is && !seen;
                assert!(seen == is || fewer, "seed {seed}, slot {slot}: {id:?} {number}");
                settled += usize::from(is);
            }
        }
    }
    settled
}

#[test]
fn a_view_follows_the_machine_by_news_alone() {
    let mut settled = 0;
    for seed in 0..40 {
        settled += follows(seed, Versions::NEW);
        settled += follows(seed, Versions::FIRST);
    }
    assert!(settled > 10_000, "{settled}");
}

#[test]
fn a_stage_executes_on_the_machine_that_it_was_given_last() {
    let counter = || {
        let machine = Replica::around(Box::new(Counter::default()) as _).0;
        Box::new(Executor::first(&parameters(), machine))
    };
    let mut stage = ExecutionStage::default();
    let tick = |machine, slot| {
        let (slot, batch) = (Slot(slot), Batch::tick(Time(1_000)));
        Job::Execute { machine, slot, batch }
    };
    assert!(stage.carry_out(tick(0, 1)).is_none(), "it has none");
    let take = Job::Take { machine: 0, executor: counter() };
    let read = Job::Read { number: 1, key: ALICE, command: service("get") };
    assert!(take.may_overtake() && read.may_overtake(), "so that none overtakes the other");
    assert!(!tick(0, 1).may_overtake());
    stage.carry_out(take);
    assert!(stage.carry_out(tick(0, 1)).is_some());
    stage.carry_out(Job::Take { machine: 1, executor: counter() });
    assert!(stage.carry_out(tick(0, 2)).is_none(), "that is of the machine before");
    assert_eq!(stage.executor().unwrap().machine().slot(), Slot(0));
    assert!(stage.carry_out(tick(1, 1)).is_some());
}

/// Reads and retries are answered between batches, in the state as it is then.
#[test]
fn a_stage_answers_in_the_state_of_the_batch_before() {
    let machine = Replica::around(Box::new(Counter::default()) as _).0;
    let mut stage = ExecutionStage::default();
    let executor = Box::new(Executor::first(&parameters(), machine));
    stage.carry_out(Job::Take { machine: 0, executor });
    let id = session(ALICE, 1_000);
    let adds = frame(id, 0, 1, &[service("add 5")]);
    let batch = Batch::requests(Time(1_000), vec![opening(id), adds.clone()]);
    let read = |number| Job::Read { number, key: ALICE, command: service("get") };
    let Some(Done::Read { number: 7, slot: Slot(0), .. }) = stage.carry_out(read(7)) else {
        panic!("it was not answered");
    };
    stage.carry_out(Job::Execute { machine: 0, slot: Slot(1), batch });
    let Some(Done::Read { number: 8, slot, outcome, .. }) = stage.carry_out(read(8)) else {
        panic!("it was not answered");
    };
    assert_eq!((slot, outcome), (Slot(1), Some(reply("5"))));
    let again = Job::Answer(Retry::of(&adds));
    let Some(Done::Answered { retry, outcomes }) = stage.carry_out(again) else {
        panic!("it was not answered");
    };
    assert_eq!((retry.session, outcomes), (id, vec![(1, reply("5"))]));
    let unknown = Job::Answer(Retry::of(&frame(id, 0, 2, &[service("get")])));
    let Some(Done::Answered { outcomes, .. }) = stage.carry_out(unknown) else {
        panic!("it was not answered");
    };
    assert_eq!(outcomes, Vec::<(u64, Outcome)>::new());
}

/// Of a batch that answers more than may leave the stage the replies beyond that are let go, of each client key those beyond its part; the machine
/// has them for who asks again.
#[test]
fn a_stage_lets_go_what_a_batch_answers_too_much() {
    let machine = Replica::around(Box::new(Counter::default()) as _).0;
    let mut stage = ExecutionStage::default();
    // 128 bytes in all, 16 of them of one key.
    stage.shrink(20);
    let executor = Box::new(Executor::first(&parameters(), machine));
    stage.carry_out(Job::Take { machine: 0, executor });
    let [alice, bob] = [ALICE, BOB].map(|client| session(client, 1_000));
    let adds = |id| frame(id, 0, 1, &vec![service("add 1000"); 6]);
    let frames = vec![opening(alice), opening(bob), adds(alice), adds(bob)];
    let batch = Batch::requests(Time(1_000), frames);
    let job = Job::Execute { machine: 0, slot: Slot(1), batch };
    let Some(Done::Executed(batch)) = stage.carry_out(job) else { panic!("not executed") };
    let of = |id| batch.replies.iter().filter(|reply| reply.session == id).count();
    // The openings, and of four or five bytes each what fits.
    assert_eq!((of(alice), of(bob), batch.let_go), (5, 4, 5));
    let again = Job::Answer(Retry::of(&adds(bob)));
    let Some(Done::Answered { outcomes, .. }) = stage.carry_out(again) else {
        panic!("not answered");
    };
    assert_eq!(outcomes.len(), 6);
}

/// A counter that is read beside its commands.
#[derive(Default)]
struct Read(Counter);

struct Was(u64);

impl Readable for Was {
    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        assert_ne!(command, b"panic", "as it was asked to");
        Some(Ok(self.0.to_string().into()))
    }
}

impl Service for Read {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        self.0.execute(context, command)
    }

    fn readable(&self) -> Option<Arc<dyn Readable>> {
        let meter = Meter::without_limit();
        let context = QueryContext { client: ALICE, meter: &meter };
        let count = self.0.query(&context, b"get")?.ok()?;
        Some(Arc::new(Was(std::str::from_utf8(&count).ok()?.parse().ok()?)))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.0.snapshot()
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.0.install(index, segment)
    }
}

#[test]
fn a_stage_shares_states_up_to_the_slot_that_it_was_told() {
    let machine = Replica::around(Box::new(Read::default()) as _).0;
    let asked = machine.asked().clone();
    let mut stage = ExecutionStage::default();
    let executor = Box::new(Executor::first(&parameters(), machine));
    stage.carry_out(Job::Take { machine: 3, executor });
    assert!(stage.carry_out(Job::Share { machine: 2, through: Slot(9) }).is_none(), "another's");
    let id = session(ALICE, 1_000);
    let mut add = |slot: u64| {
        let adds = frame(id, slot - 1, slot, &[service("add 5")]);
        let frames = if slot == 1 { vec![opening(id), adds] } else { vec![adds] };
        let batch = Batch::requests(Time(1_000 + slot), frames);
        match stage.carry_out(Job::Execute { machine: 3, slot: Slot(slot), batch }) {
            Some(Done::Executed(ran)) if slot == 1 => {
                assert!(ran.shared.is_none());
                let told = stage.carry_out(Job::Share { machine: 3, through: Slot(2) });
                let Some(Done::Shared { machine: 3, state: Some(state) }) = told else {
                    panic!("it shares nothing: {told:?}");
                };
                Some(state)
            }
            Some(Done::Executed(ran)) => ran.shared,
            other => panic!("it was not executed: {other:?}"),
        }
    };
    let (first, second, third) = (add(1).unwrap(), add(2).unwrap(), add(3));
    assert!(third.is_none());
    let meter = Meter::without_limit();
    let read = |state: &ReadState, key, command: &str| {
        (state.slot(), state.query_within(key, &service(command), &meter))
    };
    assert_eq!(read(&first, ALICE, "get"), (Slot(1), Some(reply("5"))));
    assert_eq!(read(&second, ALICE, "get"), (Slot(2), Some(reply("10"))));
    let unknown = Outcome::Refused(RefusalReason::UnknownClient);
    assert_eq!(read(&second, CAROL, "get").1, Some(unknown));
    assert_eq!(second.query_within(ALICE, &Command::Renew.to_bytes(), &meter), None);
    assert_eq!(read(&second, ALICE, "panic").1, None);
    let panic = asked.take_caught().unwrap().to_string();
    assert!(panic.contains("at slot 2") && panic.contains("as it was asked to"), "{panic}");
}
