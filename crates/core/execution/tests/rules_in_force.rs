//! What is raised while a cluster runs: versions, the state's limit; and the administrator's key, which is replaced.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, Machine, Manifest, RestoreError, Service, Snapshot, StateLimit,
    StateSnapshot,
};
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::versions::{RULES, VersionError};
use perdura_protocol::{
    AdminCommand, Batch, ClientList, Decode, Encode, Outcome, PublicKey, RefusalReason, Time,
    Versions, limits,
};
use std::sync::Arc;

/// Answers under which version and limit it runs, and counts; by tens from version 2 on.
struct Versioned {
    newest: u16,
    told: (u16, u64),
    count: u64,
    // As it was told.
    segments: usize,
}

impl Versioned {
    fn new(newest: u16) -> Versioned {
        Versioned { newest, told: (0, 0), count: 0, segments: 0 }
    }
}

struct Frozen(u64);

impl Snapshot for Frozen {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, _: usize) -> Bytes {
        self.0.to_bytes()
    }
}

impl Service for Versioned {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        self.count += if self.told.0 >= 2 { 10 } else { 1 };
        Ok(Bytes::from(format!("{} {:?}", self.count, self.told)))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Frozen(self.count))
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        assert!(self.told.0 > 0, "it is told before, for that may say how to read the segments");
        self.count = u64::from_bytes(segment).unwrap();
        self.told = (0, 0);
        Ok(())
    }

    fn newest_version(&self) -> u16 {
        self.newest
    }

    fn set_version(&mut self, version: u16) {
        self.told.0 = version;
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        self.told.1 = limit.bytes;
        self.segments = limit.segments;
    }
}

const LIMIT: u64 = 1 << 30;

fn of(versions: Versions) -> Parameters {
    Parameters { versions, ..parameters() }
}

fn start(parameters: &Parameters, newest: u16) -> Replica<Versioned> {
    let machine = Machine::new(parameters, genesis(), Versioned::new(newest)).unwrap();
    let mut replica = Replica(machine);
    replica.open(session(ADMINISTRATOR, 1));
    replica.open(session(ALICE, 1));
    replica
}

fn restored(
    parameters: &Parameters,
    snapshot: &StateSnapshot,
    newest: u16,
) -> Result<Replica<Versioned>, RestoreError> {
    let manifest = Manifest::read(snapshot.manifest().to_bytes()).unwrap();
    Machine::restore(parameters, &manifest, pieces(snapshot), Versioned::new(newest)).map(Replica)
}

fn raise(rules: u16, service: u16) -> Bytes {
    admin(AdminCommand::RaiseVersions(Versions { rules, service }))
}

fn limit(bytes: u64) -> Bytes {
    admin(AdminCommand::RaiseStateLimit { bytes })
}

fn rotate(key: PublicKey) -> Bytes {
    admin(AdminCommand::ReplaceAdministrator { key })
}

fn refusal(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Refused(RefusalReason::Contradiction(text)) => text,
        other => panic!("{other:?}"),
    }
}

const DONE: Outcome = Outcome::Administered { configuration: 0, from_slot: 0 };
const MALFORMED: Outcome = Outcome::Refused(RefusalReason::Malformed);
const ROOT: PublicKey = ADMINISTRATOR;

#[test]
fn versions_are_raised_behind_their_slot_and_never_lowered() {
    let parameters = of(Versions::NEW);
    let mut replica = start(&parameters, 3);
    let (root, alice) = (session(ROOT, 1), session(ALICE, 1));
    let batch = Batch::requests(
        Time(1),
        vec![
            frame(root, 0, 1, &[raise(RULES, 2)]),
            frame(alice, 0, 1, &[service("count")]),
            frame(root, 0, 2, &[raise(RULES, 1)]),
        ],
    );
    let executed = replica.execute(&batch);
    assert_eq!(executed.outdated, None);
    let outcomes: Vec<Outcome> = executed.replies.into_iter().map(|one| one.outcome).collect();
    assert_eq!(outcomes[..2], [DONE, reply(&format!("1 (1, {LIMIT})"))], "not in the same slot");
    assert!(refusal(&outcomes[2]).contains("rules 3, service 2 already"), "it is ordered");
    assert_eq!(replica.0.versions(), Versions { rules: RULES, service: 2 });
    assert_eq!(replica.one(alice, 2, &service("count")), reply(&format!("11 (2, {LIMIT})")));
    let before = replica.0.snapshot().manifest();
    for (number, (command, text)) in (3..).zip([
        (raise(RULES, 1), "is lower"),
        (raise(0, 2), "no version 2 of a service under version 0"),
        (raise(RULES, 0), "no version 0"),
    ]) {
        let outcome = replica.one(root, number, &command);
        assert!(refusal(&outcome).contains(text), "{outcome:?}");
    }
    assert_eq!(
        replica.one(root, 9, &raise(RULES, 2)),
        DONE,
        "the same again, after an interruption"
    );
    assert_eq!(replica.0.versions(), before.versions);
    let stranger = replica.one(alice, 3, &raise(RULES, 3));
    assert_eq!(stranger, Outcome::Refused(RefusalReason::NotAdministrator));
}

#[test]
fn what_was_raised_is_in_the_state() {
    for schedule in [Schedule::Coordinated, Schedule::Sequential] {
        let parameters = Parameters { schedule, ..of(Versions::NEW) };
        let mut replica = start(&parameters, 2);
        let fresh = replica.0.snapshot().manifest();
        let outcomes =
            replica.order(&frame(session(ROOT, 1), 0, 1, &[raise(RULES, 2), limit(LIMIT + 5)]));
        assert_eq!(outcomes, [DONE, DONE]);
        assert_ne!(replica.0.snapshot().manifest().entries()[0], fresh.entries()[0]);
        let snapshot = replica.0.snapshot();
        let mut copy = restored(&parameters, &snapshot, 2).unwrap();
        assert_eq!(copy.0.snapshot().manifest(), snapshot.manifest());
        assert_eq!(copy.0.state_limit_bytes(), LIMIT + 5);
        let count = service("count");
        let expected = reply(&format!("10 (2, {})", LIMIT + 5));
        for replica in [&mut replica, &mut copy] {
            assert_eq!(replica.one(session(ALICE, 1), 1, &count), expected);
        }
        assert_eq!(replica.0.snapshot().manifest(), copy.0.snapshot().manifest());
        let older = restored(&parameters, &snapshot, 1).map(|_| ()).unwrap_err();
        assert!(matches!(older, RestoreError::Versions(VersionError::Newer { found: 2, .. })));
    }
}

#[test]
fn a_program_that_does_not_know_what_was_ordered_stops_and_a_newer_one_goes_on() {
    let parameters = of(Versions::NEW);
    let order = |newest| {
        let mut replica = start(&parameters, newest);
        let outcome = frame(session(ROOT, 1), 0, 1, &[raise(RULES, 2)]);
        let executed = replica.execute(&Batch::requests(Time(1), vec![outcome]));
        (replica, executed)
    };
    let (_, executed) = order(1);
    let newer = VersionError::Newer { what: "the service", found: 2, newest: 1 };
    assert_eq!(executed.outdated, Some(newer));
    let (replica, executed) = order(2);
    assert_eq!((executed.outdated, executed.replies[0].outcome.clone()), (None, DONE));
    assert_eq!(replica.0.versions().service, 2);
    // What no program can run is refused by all alike.
    let mut replica = start(&parameters, 1);
    let mut rules = |number, rules| {
        let ordered = frame(session(ROOT, 1), 0, number, &[raise(rules, 1)]);
        replica.execute(&Batch::requests(Time(1), vec![ordered])).outdated
    };
    assert_eq!(rules(1, 0), None);
    assert!(matches!(rules(2, u16::MAX), Some(VersionError::Newer { what: "the core", .. })));
}

#[test]
fn the_limit_is_raised_and_never_lowered() {
    let mut replica = start(&of(Versions::NEW), 1);
    let root = session(ROOT, 1);
    let most = limits::STATE_LIMIT_BYTES;
    for (number, (bytes, refused)) in (1..).zip([
        (LIMIT, None),
        (LIMIT - 1, Some("is lower")),
        (LIMIT + 1, None),
        (LIMIT, Some("is lower")),
        (most + 1, Some("the most allowed")),
        (most, None),
        (most, None),
    ]) {
        let outcome = replica.one(root, number, &limit(bytes));
        match refused {
            None => assert_eq!((outcome, replica.0.state_limit_bytes()), (DONE, bytes)),
            Some(text) => assert!(refusal(&outcome).contains(text), "{outcome:?}"),
        }
    }
}

#[test]
fn a_former_administrators_key_is_void_at_once_and_for_good() {
    let parameters = of(Versions::NEW);
    let mut replica = start(&parameters, 2);
    let (new, next) = (PublicKey([201; 32]), PublicKey([202; 32]));
    let (old, alice) = (session(ROOT, 1), session(ALICE, 1));
    replica.open(session(ROOT, 2));
    for (number, (key, text)) in
        (1..).zip([(ALICE, "alice"), (member(1).key, "replica's"), (ROOT, "")])
    {
        let outcome = replica.one(old, number, &rotate(key));
        match text {
            "" => assert_eq!(outcome, DONE, "it is that key already"),
            text => assert!(refusal(&outcome).contains(text), "{outcome:?}"),
        }
    }
    assert!(replica.0.is_client(ROOT) && !replica.0.is_client(new));
    let not = Outcome::Refused(RefusalReason::NotAdministrator);
    assert_eq!(replica.one(alice, 1, &rotate(ALICE)), not);
    // In the same frame, and in the same slot.
    let carol = admin(AdminCommand::AddClient { name: "carol".into(), key: PublicKey([3; 32]) });
    let batch = Batch::requests(
        Time(1),
        vec![
            frame(old, 0, 4, &[rotate(new), carol.clone()]),
            frame(old, 0, 6, std::slice::from_ref(&carol)),
            frame(session(ROOT, 2), 0, 1, std::slice::from_ref(&carol)),
            opening(session(ROOT, 3)),
            opening(session(new, 1)),
            frame(session(new, 1), 0, 1, std::slice::from_ref(&raise(RULES, 2))),
        ],
    );
    let replies = replica.execute(&batch).replies;
    let outcomes: Vec<Outcome> = replies.into_iter().map(|one| one.outcome).collect();
    let unknown = Outcome::Refused(RefusalReason::UnknownClient);
    let none = Outcome::NoSession;
    assert_eq!(outcomes, [DONE, not, none.clone(), none, unknown, Outcome::Opened, DONE]);
    assert!(!replica.0.is_client(ROOT) && replica.0.administrator() == new);
    let mut copy = restored(&parameters, &replica.0.snapshot(), 2).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
    for replica in [&mut replica, &mut copy] {
        let new = session(new, 1);
        assert!(refusal(&replica.one(new, 2, &rotate(ROOT))).contains("revoked"));
        let again = admin(AdminCommand::AddClient { name: "root".into(), key: ROOT });
        assert!(refusal(&replica.one(new, 3, &again)).contains("revoked"));
        assert_eq!(replica.one(new, 4, &rotate(next)), DONE);
        assert!(replica.0.is_client(next) && !replica.0.is_client(new.client));
    }
}

#[test]
fn clients_are_listed() {
    let mut replica = start(&of(Versions::NEW), 1);
    let list = admin(AdminCommand::ListClients);
    let before = replica.0.snapshot().manifest();
    let Outcome::Told(told) = replica.one(session(ROOT, 1), 1, &list) else { panic!() };
    let expected = vec![("alice".to_owned(), ALICE), ("bob".to_owned(), BOB)];
    assert_eq!(ClientList::from_bytes(told.clone()), Ok(ClientList(expected)));
    assert_eq!(replica.0.cached(session(ROOT, 1), 1), Some(Outcome::Told(told)));
    assert_eq!(replica.0.snapshot().manifest().entries()[0], before.entries()[0]);
    let stranger = replica.one(session(ALICE, 1), 1, &list);
    assert_eq!(stranger, Outcome::Refused(RefusalReason::NotAdministrator));
    let copy = restored(&of(Versions::NEW), &replica.0.snapshot(), 1).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), replica.0.snapshot().manifest());
}

/// To the rules of 0.1.0 these commands are malformed, whoever sends them: what it logged is replayed, and it may run beside this
/// program until the rules are raised.
#[test]
fn under_the_first_rules_only_the_administrator_raises_them() {
    let parameters = of(Versions::FIRST);
    let mut replica = start(&parameters, 2);
    let (root, alice) = (session(ROOT, 1), session(ALICE, 1));
    let before = pieces(&replica.0.snapshot())[0].clone();
    let list = admin(AdminCommand::ListClients);
    let newer = [limit(LIMIT + 1), list, rotate(PublicKey([201; 32]))];
    for (number, command) in (1..).zip(&newer) {
        assert_eq!(replica.one(root, number, command), MALFORMED);
        assert_eq!(replica.one(alice, number, command), MALFORMED);
    }
    assert_eq!(replica.one(alice, 4, &raise(RULES, 1)), MALFORMED);
    assert_eq!(pieces(&replica.0.snapshot())[0], before);
    assert_eq!(replica.0.state_limit_bytes(), LIMIT);
    assert_eq!(replica.0.service().segments, usize::MAX, "0.1.0 knows no bound");
    assert_eq!(replica.one(root, 4, &raise(RULES, 2)), DONE);
    assert_eq!(replica.0.service().segments, 400_000);
    let after = replica.0.snapshot();
    assert_eq!(after.manifest().versions, Versions { rules: RULES, service: 2 });
    assert_ne!(pieces(&after)[0], before);
    let mut copy = restored(&parameters, &after, 2).unwrap();
    for replica in [&mut replica, &mut copy] {
        assert_eq!(replica.0.state_limit_bytes(), LIMIT);
        assert_eq!(replica.0.administrator(), ROOT);
        for (number, command) in (5..).zip(&newer) {
            assert_ne!(replica.one(root, number, command), MALFORMED);
        }
        assert_eq!(replica.0.state_limit_bytes(), LIMIT + 1);
    }
    assert_eq!(replica.0.snapshot().manifest(), copy.0.snapshot().manifest());
}

/// Byte for byte what 0.1.0 wrote: time, in groups whose checkpoints go round the number of boundaries, and then configurations.
#[test]
fn the_core_of_the_first_rules_is_that_of_0_1_0() {
    for (schedule, turn) in [(Schedule::Coordinated, &[][..]), (Schedule::Sequential, &[0; 8])] {
        let parameters = Parameters { schedule, ..of(Versions::FIRST) };
        let mut replica = start(&parameters, 1);
        replica.execute(&Batch::tick(Time(77)));
        let mut head = Time(77).to_bytes().to_vec();
        head.extend(turn);
        head.extend(1u32.to_bytes());
        head.extend(replica.0.configurations()[0].to_bytes());
        assert!(pieces(&replica.0.snapshot())[0].starts_with(&head));
    }
}
