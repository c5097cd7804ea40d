//! What shows that another partition answers: only what is signed, and new.

use super::world::*;
use crate::support::{read, write};
use perdura_protocol::Time;
use perdura_store::partition::{
    Certificate, Fence, PartitionCommand, Reason, Signed, Statement, limits,
};

const SILENT_MS: u64 = limits::UNREACHABLE_MS + 1_001;

/// Partition 0 with a transaction that has been pending on partition 1 for long.
fn stuck() -> World {
    let mut world = World::new(2);
    let parts = two_writes("1");
    let stuck = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&stuck, client(1), &parts[0])));
    world.pass(SILENT_MS);
    world
}

/// Whether it prepares something that needs partition 1.
fn prepares(world: &mut World, counter: u64) -> bool {
    let parts = [(0, vec![read("a2")]), (1, vec![read("b2")])];
    let intent = world.intent(client(2), counter, true, &parts);
    let voted = world.prepare(&intent, client(2), &parts[0]);
    if is_commit(&voted) {
        world.finish(0, client(2), (intent.id(), true), &[]);
        return true;
    }
    assert!(matches!(reason(voted), Reason::Unreachable { .. }));
    false
}

/// Partition 0 is shown what partition 1 signed then.
fn show(world: &mut World, signed: Signed) {
    let session = client(2);
    let proof = world.certificate(1, &Statement::Fence { session, below: 0, now: signed });
    let fences = vec![Fence { proof, nonce: session.nonce, below: 0, signed }];
    world.ask(0, session, &PartitionCommand::Forget { session, fences });
}

/// An old vote, shown again and again, had one that is down taken for one that answers.
#[test]
fn a_vote_may_be_any_time_old_and_shows_nothing() {
    let replay = |world: &mut World, counter| {
        let parts = [(1, vec![write("b3", "1", false)]), (0, vec![write("a3", "1", false)])];
        let parts = [parts[1].clone(), parts[0].clone()];
        let intent = world.intent(client(3), counter, false, &parts);
        let vote = Statement::Vote { transaction: intent.id(), commit: true };
        let votes: Vec<Certificate> = vec![world.certificate(1, &vote)];
        let operations = parts[0].1.clone();
        world.ask(0, client(3), &PartitionCommand::PrepareLast { intent, operations, votes })
    };
    let mut world = stuck();
    assert!(is_commit(&replay(&mut world, 1)));
    assert!(!prepares(&mut world, 1));
    let mut before = stuck();
    before.go_on_under(2);
    assert!(is_commit(&replay(&mut before, 1)));
    assert!(prepares(&mut before, 1));
}

/// Clocks of groups stand still while these do; agreed time does not.
#[test]
fn outages_of_either_group_shift_nothing() {
    // This one stood still for an hour: its clock is behind that of the other one.
    let mut world = stuck();
    world.stood_ms = 3_600_000;
    let long_ago = Time(world.time().0 - SILENT_MS - 1);
    show(&mut world, Signed::Agreed(long_ago));
    assert!(!prepares(&mut world, 1), "it is old");
    let now = Signed::Agreed(world.time());
    show(&mut world, now);
    world.restart();
    assert!(prepares(&mut world, 2), "it is new, however far behind this one's clock is");
    world.pass(SILENT_MS);
    assert!(!prepares(&mut world, 3), "that was a while ago");
    show(&mut world, now);
    assert!(!prepares(&mut world, 4), "and stays so");
    // What is ahead counts from when it came.
    let ahead = Signed::Agreed(Time(world.time().0 + 60_000));
    show(&mut world, ahead);
    assert!(prepares(&mut world, 5));
    world.pass(SILENT_MS);
    assert!(!prepares(&mut world, 6));
}

/// Groups are raised one after another.
#[test]
fn each_kind_of_time_is_read_under_each_version() {
    let mut world = stuck();
    let (old, now) = (Time(world.clock - SILENT_MS), Time(world.clock));
    show(&mut world, Signed::Clock(old));
    assert!(!prepares(&mut world, 1));
    show(&mut world, Signed::Clock(now));
    assert!(prepares(&mut world, 2), "of one that goes by the rules before");
    let mut before = stuck();
    before.go_on_under(2);
    show(&mut before, Signed::Agreed(now));
    assert!(prepares(&mut before, 3), "by one that does");
}
