//! What a slot costs (version 2 of the rules), and what becomes of a command whose client has no share left.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    Executed, ExecutionContext, Executor, Failure, Machine, RestoreError, SESSION_BODIES, Service,
    Snapshot,
};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::limits::{COMMAND_COST, COST_PER_MS, SLOT_COST};
use perdura_protocol::{
    AdminCommand, Batch, Command, Encode, Frame, Outcome, PublicKey, RefusalReason, SessionId,
    Slot, Time, Versions,
};
use std::slice;
use std::sync::Arc;

/// Commands say what they cost, in KiB, how much they answer, in KiB, and whether they may be put off.
#[derive(Default)]
struct Works {
    done: u64,
}

struct Done(u64);

impl Service for Works {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        let (cost, answer, _) = read(command);
        context.meter.charge(cost)?;
        self.done += 1;
        Ok(vec![7; answer].into())
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        read(command).2
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Done(self.done))
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.done = u64::from_le_bytes(segment[..].try_into().unwrap());
        Ok(())
    }
}

impl Snapshot for Done {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, _: usize) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }
}

fn read(command: &[u8]) -> (usize, usize, bool) {
    let number = |at: usize| 1024 * usize::from(u16::from_le_bytes([command[at], command[at + 1]]));
    (number(0), number(2), command[4] == 0)
}

fn work(cost_kib: u64, answer_kib: u64) -> Bytes {
    command(cost_kib, answer_kib, true)
}

fn command(cost_kib: u64, answer_kib: u64, may_be_put_off: bool) -> Bytes {
    let [a, b] = u16::try_from(cost_kib).unwrap().to_le_bytes();
    let [c, d] = u16::try_from(answer_kib).unwrap().to_le_bytes();
    Command::Service(Bytes::copy_from_slice(&[a, b, c, d, u8::from(!may_be_put_off)])).to_bytes()
}

const KIB: u64 = 1024;
const PUT_OFF: Outcome = Outcome::Refused(RefusalReason::PutOff);

fn replica() -> Replica<Works> {
    let mut replica = Replica::around(Works::default());
    for (client, nonce) in [(ALICE, 5), (ALICE, 6), (BOB, 5)] {
        assert_eq!(replica.open(session(client, nonce)), Outcome::Opened);
    }
    replica
}

/// How many commands of a session were carried out, and how many were put off.
fn counted(executed: &Executed, of: SessionId) -> (usize, usize) {
    let own = || executed.replies.iter().filter(|reply| reply.session == of);
    let put_off = own().filter(|reply| reply.outcome == PUT_OFF).count();
    (own().count() - put_off, put_off)
}

fn many(of: SessionId, first: u64, count: usize, command: &Bytes) -> Frame {
    frame(of, first, first, &vec![command.clone(); count])
}

#[test]
fn keys_share_a_slot_by_their_number_whatever_others_ask_for() {
    let mut replica = replica();
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    let quarter = work(SLOT_COST / KIB / 4 + 1, 0);
    let alone = Batch::requests(Time(1), vec![many(alice, 1, 10, &quarter)]);
    let executed = replica.execute(&alone);
    assert_eq!(counted(&executed, alice), (4, 6));
    assert_eq!(
        (executed.put_off[&ALICE], executed.costs[&ALICE]),
        (6, 4 * (SLOT_COST / 4 + KIB - 6))
    );
    let both =
        vec![many(alice, 5, 6, &quarter), many(bob, 1, 9, &work(SLOT_COST / KIB / 8 + 1, 0))];
    let executed = replica.execute(&Batch::requests(Time(1), both));
    assert_eq!((counted(&executed, alice), counted(&executed, bob)), ((2, 4), (4, 5)));
    // A share is a key's, in whichever of its sessions.
    let two = vec![many(alice, 7, 4, &quarter), many(session(ALICE, 6), 1, 4, &quarter)];
    let executed = replica.execute(&Batch::requests(Time(1), two));
    assert_eq!(counted(&executed, alice), (4, 0));
    assert_eq!(counted(&executed, session(ALICE, 6)), (0, 4));
}

#[test]
fn the_first_command_of_a_key_is_begun_and_one_may_exceed_the_share() {
    let mut replica = replica();
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    let large = work(COMMAND_COST / KIB, 0);
    let both = vec![many(alice, 1, 2, &large), many(bob, 1, 2, &large)];
    let executed = replica.execute(&Batch::requests(Time(1), both));
    assert_eq!((counted(&executed, alice), counted(&executed, bob)), ((1, 1), (1, 1)));
    let cost: u64 = executed.costs.values().sum();
    assert!(cost <= SLOT_COST + 2 * COMMAND_COST, "{cost}");
}

#[test]
fn over_its_own_budget_a_command_is_refused_for_good_and_counts() {
    let mut replica = replica();
    let alice = session(ALICE, 5);
    let too_large = work(COMMAND_COST / KIB + 1, 0);
    let batch = Batch::requests(Time(1), vec![many(alice, 1, 2, &too_large)]);
    let executed = replica.execute(&batch);
    let Outcome::Refused(RefusalReason::Service(text)) = &executed.replies[0].outcome else {
        panic!("{:?}", executed.replies[0]);
    };
    assert!(text.contains("more work than one may"), "{text}");
    assert_eq!(executed.replies[1].outcome, PUT_OFF);
    assert_eq!(replica.0.cached(alice, 1), Some(executed.replies[0].outcome.clone()));
    assert_eq!(replica.0.service().done, 0);
}

#[test]
fn what_was_put_off_leaves_no_trace_and_runs_when_it_is_ordered_again() {
    let mut replica = replica();
    let alice = session(ALICE, 5);
    let half = work(SLOT_COST / KIB / 2 + 1, 0);
    let first = many(alice, 1, 4, &half);
    let executed = replica.execute(&Batch::requests(Time(1), vec![first.clone()]));
    assert_eq!(counted(&executed, alice), (2, 2));
    assert_eq!((replica.0.cached(alice, 3), replica.0.is_settled(alice, 3)), (None, false));
    // The same frame again: two are answered, two are carried out.
    let executed = replica.execute(&Batch::requests(Time(1), vec![first.clone()]));
    assert_eq!((counted(&executed, alice), replica.0.service().done), ((4, 0), 4));
    replica.execute(&Batch::requests(Time(1), vec![first]));
    assert_eq!(replica.0.service().done, 4);
}

#[test]
fn a_session_whose_commands_are_put_off_is_not_renewed_by_them() {
    let mut replica = replica();
    let (alice, other) = (session(ALICE, 5), session(ALICE, 6));
    let all = work(SLOT_COST / KIB, 0);
    let mut time = 1;
    let mut number = 1;
    // The other session spends the key's share in each slot.
    while replica.0.sessions().any(|live| live == alice) {
        time += 1_000;
        assert!(time < 90_000, "it lives by what was not carried out");
        let frames = vec![many(other, number, 1, &all), many(alice, 1, 1, &all)];
        number += 1;
        replica.execute(&Batch::requests(Time(time), frames));
    }
    assert!(time > 60_000 && replica.0.sessions().any(|live| live == other));
}

#[test]
fn what_follows_in_the_session_is_put_off_but_for_what_never_is() {
    let mut replica = replica();
    let (alice, other) = (session(ALICE, 5), session(ALICE, 6));
    let commands = [
        work(SLOT_COST / KIB / 2, 0),
        work(SLOT_COST / KIB / 2 + 1, 0),
        work(1, 0),
        work(0, 0),
        command(COMMAND_COST / KIB, 0, false),
        Command::Withdraw { number: 77 }.to_bytes(),
        work(0, 0),
    ];
    let renewal =
        frame(alice, 0, perdura_protocol::limits::FIRST_RENEWAL, &[Command::Renew.to_bytes()]);
    let frames = vec![frame(alice, 0, 1, &commands), renewal, opening(session(ALICE, 7))];
    let executed = replica.execute(&Batch::requests(Time(1), frames));
    let outcomes: Vec<bool> =
        executed.replies.iter().map(|reply| reply.outcome == PUT_OFF).collect();
    assert_eq!(outcomes, [false, false, true, true, false, false, false, true, false, false]);
    // The session goes on in the next slot, and the key's other one went on in this.
    let executed = replica.execute(&Batch::requests(
        Time(1),
        vec![many(alice, 3, 2, &work(1, 0)), many(other, 1, 1, &work(1, 0))],
    ));
    assert!(executed.put_off.is_empty());
}

#[test]
fn a_session_that_keeps_many_bytes_of_replies_waits_until_they_are_acknowledged() {
    let mut replica = replica();
    let alice = session(ALICE, 5);
    let mebibyte = work(0, 1024);
    let executed = replica.order(&frame(alice, 0, 1, &vec![mebibyte.clone(); 5]));
    let given = executed.iter().filter(|outcome| **outcome != PUT_OFF).count();
    assert_eq!(given, SESSION_BODIES.div_ceil(1 << 20));
    // Nothing was acknowledged: not one more, whatever it answers.
    assert_eq!(replica.order(&frame(alice, 0, 4, &[work(0, 0)])), [PUT_OFF]);
    // The lowest without a reply goes on in any case.
    let mut lone = Replica::around(Works::default());
    lone.open(alice);
    assert!(lone.order(&frame(alice, 0, 2, &vec![mebibyte.clone(); 4])).contains(&PUT_OFF));
    assert_ne!(lone.order(&frame(alice, 0, 1, std::slice::from_ref(&mebibyte))), [PUT_OFF]);
    let after = replica.order(&frame(alice, 4, 4, &[mebibyte.clone(), mebibyte]));
    assert!(!after.contains(&PUT_OFF));
    let (session, _) = replica.0.most_cached();
    assert!(session <= 3 << 20, "{session}");
}

/// A leader may order later frames of a session, before others or alone, slot after slot: what the client waits for first goes on all the same.
#[test]
fn the_order_of_frames_keeps_no_session_from_going_on() {
    let mut replica = replica();
    let alice = session(ALICE, 5);
    let large = work(0, 1024);
    let of = |first, count| frame(alice, 1, first, &vec![large.clone(); count]);
    let (first, later) = (of(1, 3), of(4, 8));
    let executed = replica.execute(&Batch::requests(Time(1), vec![later.clone()]));
    assert_eq!(counted(&executed, alice), (3, 5), "there is no room for more replies");
    let mut begun = Vec::new();
    for _ in 0..3 {
        let frames = vec![later.clone(), first.clone()];
        let executed = replica.execute(&Batch::requests(Time(1), frames));
        let outcome =
            |number| executed.replies.iter().find(|reply| reply.number == number).unwrap();
        begun.push((1..=3).filter(|number| outcome(*number).outcome != PUT_OFF).count());
    }
    assert_eq!(begun, [1, 1, 1], "the lowest, and what is above it when that is acknowledged");
    let acknowledged = frame(alice, 2, 2, &[large.clone(), large]);
    let frames = vec![later, acknowledged];
    let executed = replica.execute(&Batch::requests(Time(1), frames));
    assert_eq!(
        executed.replies.iter().filter(|one| one.number == 2 && one.outcome != PUT_OFF).count(),
        1
    );
}

/// Nor do replies that are given again, of this session or another one of the key.
#[test]
fn what_is_given_again_keeps_nothing_back() {
    let mut replica = replica();
    let (alice, idle) = (session(ALICE, 5), session(ALICE, 6));
    let answered = many(idle, 1, 4, &work(0, 900));
    replica.execute(&Batch::requests(Time(1), vec![answered.clone()]));
    // So many keys have frames that a share is less than those replies.
    let mut others: Vec<Frame> =
        (1..=60).map(|name| many(session(PublicKey([name; 32]), 1), 1, 1, &work(0, 0))).collect();
    others.extend([answered, many(alice, 1, 2, &work(1, 0))]);
    let executed = replica.execute(&Batch::requests(Time(1), others));
    assert_eq!(counted(&executed, alice), (1, 1));
}

#[test]
fn under_the_rules_before_everything_runs_and_is_counted() {
    let mut replica = Replica::of_rules_1(Works::default());
    let alice = session(ALICE, 5);
    replica.open(alice);
    let batch = Batch::requests(Time(1), vec![many(alice, 1, 4, &work(SLOT_COST / KIB, 1024))]);
    let executed = replica.execute(&batch);
    assert_eq!((counted(&executed, alice), executed.put_off.len()), ((4, 0), 0));
    assert!(executed.costs[&ALICE] > 4 * SLOT_COST);
}

/// Replies leave as they are made, and equal ones that follow each other share their bytes.
#[test]
fn replies_are_given_one_by_one_and_one_value_is_held_once() {
    let mut replica = replica();
    let (alice, bob) = (session(ALICE, 5), session(BOB, 5));
    let large = work(0, 64);
    let batch = Batch::requests(Time(1), vec![many(alice, 1, 3, &large), many(bob, 1, 3, &large)]);
    let mut places = Vec::new();
    let slot = replica.0.slot().next();
    let executed = replica.0.execute_to(slot, &batch, &mut |reply| {
        let Outcome::Service(bytes) = reply.outcome else { panic!("{reply:?}") };
        places.push(bytes.as_ptr());
    });
    assert!(executed.replies.is_empty() && places.len() == 6);
    places.dedup();
    assert_eq!(places.len(), 1);
}

/// Batches of random commands: a replica that was restored in between gives the same, to the byte.
#[test]
fn a_restored_replica_puts_off_the_same() {
    let clients: [PublicKey; 2] = [ALICE, BOB];
    let mut replica = replica();
    let mut drawn = 7u64;
    let mut below = move |bound: u64| {
        drawn =
            drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 33) % bound
    };
    let (mut next, mut put_off) = ([1u64, 1], 0);
    for round in 0..60 {
        let mut frames = Vec::new();
        for (index, client) in clients.iter().enumerate() {
            let commands: Vec<Bytes> = (0..1 + below(8))
                .map(|_| command(below(8_000), below(2_000), below(5) > 0))
                .collect();
            // Half of what was put off comes again, half is passed over.
            let first = next[index];
            next[index] += below(commands.len() as u64 + 1);
            frames.push(frame(session(*client, 5), first.saturating_sub(2), first, &commands));
        }
        let batch = Batch::requests(Time(1 + round), frames);
        let mut copy = replica.restored(Works::default()).unwrap();
        let executed = replica.execute(&batch);
        assert_eq!(copy.execute(&batch), executed);
        assert_eq!(pieces(&copy.0.snapshot()), pieces(&replica.0.snapshot()));
        put_off += executed.put_off.values().sum::<u64>();
    }
    assert!(put_off > 30, "{put_off}");
}

/// The first boundary of an executor whose batches are `apart` ms from each other and have a command each, and what the commands had cost then.
fn first_boundary(tune: impl FnOnce(&mut Parameters), apart: u64, command: &Bytes) -> (u64, u64) {
    let mut parameters = Parameters { checkpoint_interval: 300, ..parameters() };
    tune(&mut parameters);
    let machine = Machine::new(&parameters, genesis(), Box::new(Works::default()) as _).unwrap();
    let mut executor = Executor::first(&parameters, machine);
    let (of, mut cost) = (session(ALICE, 1_000_000), 0);
    for slot in 1..=300 {
        let asks = match slot {
            1 => opening(of),
            _ => frame(of, slot - 1, slot - 1, slice::from_ref(command)),
        };
        let batch = Batch::requests(Time(slot * apart), vec![asks]);
        let ran = executor.execute(Slot(slot), &batch, &mut |reply| {
            assert!(matches!(reply.outcome, Outcome::Service(_) | Outcome::Opened), "{reply:?}");
        });
        cost += ran.executed.costs.values().sum::<u64>();
        if ran.boundary.is_some() {
            return (slot, cost);
        }
    }
    panic!("no boundary in 300 slots");
}

#[test]
fn a_boundary_is_due_by_time_and_by_costs_too() {
    let second = |parameters: &mut Parameters| parameters.checkpoint_ms = Some(1_000);
    let light = work(1, 0);
    assert_eq!(first_boundary(|_| (), 1_000, &light).0, 300, "by slots");
    // As many slots as it takes, or as much time, from the first slot on.
    assert_eq!(first_boundary(second, 1_000, &light).0, 16);
    assert_eq!(first_boundary(second, 10, &light).0, 101);
    assert_eq!(first_boundary(second, 0, &light).0, 300);
    let heavy = work(COMMAND_COST / KIB - 1, 0);
    let (slot, cost) = first_boundary(second, 0, &heavy);
    let due = 1_000 * COST_PER_MS;
    assert!(cost >= due && cost < due + COMMAND_COST, "{cost} in slot {slot}");
    let before = |parameters: &mut Parameters| {
        second(parameters);
        parameters.versions = Versions { rules: 2, service: 1 };
    };
    assert_eq!(first_boundary(before, 0, &heavy).0, 300);
    assert_eq!(first_boundary(|_| (), 0, &heavy).0, 300, "as much as 20 s have");
}

/// What commands cost before the versions are raised makes no boundary due; and the next interval begins with the slot behind one, forced or not.
#[test]
fn costs_count_from_the_raised_versions_on_and_each_interval_for_itself() {
    let mut parameters = Parameters { checkpoint_interval: 1_000, ..parameters() };
    parameters.checkpoint_ms = Some(1_000);
    parameters.versions = Versions { rules: 2, service: 1 };
    let machine = Machine::new(&parameters, genesis(), Box::new(Works::default()) as _).unwrap();
    let mut executor = Executor::first(&parameters, machine);
    let (of, root) = (session(ALICE, 1_000_000), session(ADMINISTRATOR, 1_000_000));
    let heavy = work(COMMAND_COST / KIB - 1, 0);
    let (mut cost, mut boundaries) = (0, Vec::new());
    for slot in 1..=400 {
        let frames = match slot {
            1 => vec![opening(of), opening(root)],
            100 => vec![frame(
                root,
                0,
                1,
                &[admin(AdminCommand::RaiseVersions(Versions { rules: 3, service: 1 }))],
            )],
            _ if slot % 7 == 0 => Vec::new(),
            _ => vec![frame(of, slot - 1, slot - 1, slice::from_ref(&heavy))],
        };
        let batch = match frames.is_empty() {
            true => Batch::null(),
            false => Batch::requests(Time(1), frames),
        };
        let ran = executor.execute(Slot(slot), &batch, &mut drop);
        assert_eq!(ran.executed.outdated, None);
        let came: u64 = ran.executed.costs.values().sum();
        cost += if slot > 100 { came } else { 0 };
        if let Some(boundary) = ran.boundary {
            boundaries.push(slot);
            assert_eq!(boundary.snapshot.slot(), Slot(slot));
            assert!(cost >= 1_000 * COST_PER_MS, "{cost}");
            cost = 0;
        }
        assert!(cost < 1_000 * COST_PER_MS, "slot {slot}: none though {cost}");
    }
    assert!(boundaries[0] > 100 && boundaries.len() > 3, "{boundaries:?}");
}
