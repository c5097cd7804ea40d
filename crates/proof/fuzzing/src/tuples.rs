//! Commands, replies and segments of the tuple spaces (`crates/services/tuples`).

use crate::memory::Memory;
use crate::{Seed, round_trip, seed};
use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Release, Service};
use perdura_protocol::{ClusterId, Decode, Digest, Encode, PublicKey, SessionId, Slot, Time};
use perdura_tuples::{
    Access, Entry, Field, Float, Kind, Operation, Pattern, SpaceOptions, Template, Tuple,
    TupleCommand, TupleReply, TupleSpaces,
};

const CLIENT: PublicKey = PublicKey([1; 32]);

fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(1000),
        clock: Time(1000),
        session: SessionId { client: CLIENT, nonce: 1 },
        number: 1,
        cluster: ClusterId([1; 16]),
        batch: Digest::ZERO,
        administrator: PublicKey([200; 32]),
        other: None,
        meter: Default::default(),
    }
}

fn on(space: &str, operation: Operation) -> TupleCommand {
    TupleCommand::On { space: space.into(), operation }
}

/// Two values, which is within the limits.
fn pair(name: &str, value: i64) -> Tuple {
    Tuple::new(&[name.into(), value.into()]).expect("two short fields")
}

fn newest() -> TupleSpaces {
    let mut spaces = TupleSpaces::new(1 << 20);
    spaces.set_version(spaces.newest_version());
    spaces
}

fn spaces() -> TupleSpaces {
    let mut spaces = newest();
    for operation in [
        Operation::Create(SpaceOptions::default()),
        Operation::Out(Entry::new(pair("job", 1))),
        Operation::Out(Entry::new(pair("job", 2)).with_lease(500)),
        Operation::Out(Entry { take: Access::only(vec![CLIENT]), ..Entry::new(pair("x", 3)) }),
    ] {
        let command = on("s", operation).to_bytes();
        spaces.order(&context(), &command).expect("an empty state has room");
    }
    spaces
}

/// A command is carried out only if it decodes; what it touches is found for any bytes; its reply
/// decodes, and a read that is not ordered gives the same.
pub fn command(data: &[u8]) -> bool {
    let mut spaces = spaces();
    let decoded = Memory::FRAME.hold(data.len(), || TupleCommand::decode(data));
    let _ = spaces.interface().footprint(data);
    let queried = spaces.answer(CLIENT, data);
    let executed = spaces.order(&context(), data);
    assert_eq!(spaces.waiters(), [], "who does not wait leaves no trace");
    let Ok(decoded) = decoded else {
        assert!(executed.is_err(), "carried out, and does not decode");
        return false;
    };
    assert_eq!(decoded.to_bytes(), data, "not encoded as it was");
    assert_eq!(decoded.validate(), Ok(()));
    if let Some(read) = queried {
        assert!(decoded.is_read());
        assert_eq!(read, executed, "a read that is ordered gives something else");
    }
    if let Ok(reply) = executed {
        TupleReply::from_bytes(reply).expect("a reply decodes");
    }
    true
}

pub fn reply(data: &[u8]) -> bool {
    round_trip::<TupleReply>(Memory::FRAME, data).is_some()
}

/// A state in one segment: what is restored gives the same segment, and goes on.
pub fn segment(data: &[u8]) -> bool {
    let mut spaces = newest();
    let piece = Bytes::copy_from_slice(data);
    if spaces.restore(vec![piece.clone()]).is_err() {
        return false;
    }
    let snapshot = spaces.snapshot();
    assert_eq!((snapshot.segments(), snapshot.segment(0)), (1, piece));
    let mut released = Vec::new();
    // Of a session that the state knows nothing of: no number executes twice.
    let session = SessionId { client: PublicKey([9; 32]), nonce: 9 };
    for (number, (_, command)) in (100..).zip(all()) {
        let context = ExecutionContext { session, number, ..context() };
        let _ = spaces.order_or_wait(&context, &command.to_bytes(), &mut released);
    }
    while let Some(due) = spaces.due() {
        spaces.on_time(due, &mut released);
        // What was offered is had, or not, which may offer more.
        while let Some(Release { session, number, offer, .. }) = released.pop() {
            match (offer, number % 2) {
                (true, 0) => spaces.waiting().unwrap().confirm(due, session, number, &mut released),
                (true, _) => {
                    spaces.waiting().unwrap().take_back(due, session, number, &mut released)
                }
                (false, _) => {}
            }
        }
    }
    true
}

fn template() -> Template {
    Template { fields: vec![Pattern::Value("job".into()), Pattern::Kind(Kind::Integer)] }
}

fn all() -> Vec<(&'static str, TupleCommand)> {
    let every = [
        Field::String("text".into()),
        Field::Bytes(Bytes::from_static(b"bytes")),
        Field::Integer(-7),
        Field::Float(Float::new(1.5).expect("a number")),
        Field::Bool(true),
    ];
    let listed = Access::only(vec![CLIENT, PublicKey([2; 32])]);
    let closed = SpaceOptions {
        index_fields: 3,
        insert: listed.clone(),
        read: listed.clone(),
        take: Access::Only(Vec::new()),
        manage: listed.clone(),
    };
    let entry = || Entry::new(pair("job", 4));
    let wild = Template { fields: vec![Pattern::Any; 2] };
    let counter = Tuple::new(&["n".into()]).expect("one short field");
    let small = Tuple::new(&[Field::Bool(true)]).expect("one short field");
    let tuple = Tuple::new(&every).expect("five short fields");
    vec![
        ("spaces", TupleCommand::Spaces { after: "a".into(), limit: 512 }),
        ("create", on("t", Operation::Create(closed))),
        ("describe", on("s", Operation::Describe)),
        ("out", on("s", Operation::Out(Entry { lease_ms: Some(9), ..Entry::new(tuple) }))),
        ("out_listed", on("s", Operation::Out(Entry { read: listed.clone(), ..entry() }))),
        ("out_all", on("s", Operation::OutAll(vec![Entry::new(small); 512]))),
        ("rdp", on("s", Operation::Rdp(template()))),
        ("rdp_every", on("s", Operation::Rdp(Template::of(&every)))),
        ("inp", on("s", Operation::Inp(template()))),
        ("rd_all", on("s", Operation::RdAll { template: wild.clone(), after: 1, limit: 2 })),
        ("in_all", on("s", Operation::InAll { template: wild, limit: 512 })),
        ("cas", on("s", Operation::Cas { template: template(), entry: entry() })),
        ("replace", on("s", Operation::Replace { template: template(), entry: entry() })),
        ("renew", on("s", Operation::Renew { number: 2, lease_ms: Some(100) })),
        ("renew_for_good", on("s", Operation::Renew { number: 2, lease_ms: None })),
        ("rd", on("s", Operation::Rd { template: template(), wait_ms: 5 })),
        ("in", on("s", Operation::In { template: Template::of(&every), wait_ms: 500 })),
        ("claim", on("s", Operation::Claim { key: 2, entry: entry().with_lease(9), wait_ms: 0 })),
        ("claim_waits", on("s", Operation::Claim { key: 1, entry: entry(), wait_ms: 7 })),
        ("lease", on("s", Operation::Lease { template: template(), lease_ms: 9, wait_ms: 0 })),
        (
            "lease_waits",
            on("s", Operation::Lease { template: Template::of(&every), lease_ms: 9, wait_ms: 7 }),
        ),
        ("extend", on("s", Operation::Extend { number: 1, token: 1, lease_ms: 5 })),
        ("return", on("s", Operation::Return { number: 1, token: 1 })),
        ("finish", on("s", Operation::Finish { number: 1, token: 2 })),
        ("add", on("s", Operation::Add { fields: counter, amount: -3 })),
        ("waits", on("s", Operation::Waits { after: 0, limit: 9 })),
        ("end_wait", on("s", Operation::EndWait { session: context().session, number: 1 })),
        ("break", on("s", Operation::Break { number: 2 })),
        ("delete", on("s", Operation::Delete)),
    ]
}

pub fn commands() -> Vec<Seed> {
    all().into_iter().map(|(name, command)| seed(name, &command)).collect()
}

pub fn replies() -> Vec<Seed> {
    let mut spaces = spaces();
    let reply = |(name, command): (&'static str, TupleCommand)| {
        let reply = spaces.order(&context(), &command.to_bytes()).ok()?;
        Some((name, reply.to_vec()))
    };
    all().into_iter().filter_map(reply).collect()
}

pub fn segments() -> Vec<Seed> {
    let piece = |spaces: &TupleSpaces| spaces.snapshot().segment(0).to_vec();
    let mut larger = spaces();
    for (name, command) in all() {
        if name != "delete" && name != "out_all" {
            let _ = larger.order(&context(), &command.to_bytes());
        }
    }
    let mut waited = spaces();
    for number in 1..4 {
        let wait =
            Operation::In { template: Template { fields: vec![Pattern::Any; 3] }, wait_ms: number };
        let context = ExecutionContext { number, ..context() };
        let _ = waited.order_or_wait(&context, &on("s", wait).to_bytes(), &mut Vec::new());
    }
    vec![
        ("waiters", piece(&waited)),
        ("held", piece(&held())),
        ("empty", piece(&TupleSpaces::new(1 << 20))),
        ("three_tuples", piece(&spaces())),
        ("after_commands", piece(&larger)),
    ]
}

/// A tuple under a lease, one that is offered, and a claim that waits for one that is there.
fn held() -> TupleSpaces {
    let mut held = spaces();
    let wild = || Template { fields: vec![Pattern::Any; 2] };
    let one = || Entry::new(pair("one", 1));
    let operations = [
        Operation::Lease { template: wild(), lease_ms: 50, wait_ms: 0 },
        Operation::In { template: Template::of(&["one".into(), 1.into()]), wait_ms: 70 },
        Operation::Out(one()),
        Operation::Claim { key: 1, entry: one().with_lease(9), wait_ms: 70 },
        Operation::Lease { template: Template::of(&["two".into()]), lease_ms: 5, wait_ms: 70 },
    ];
    for (number, operation) in (1..).zip(operations) {
        let context = ExecutionContext { number, ..context() };
        let _ = held.order_or_wait(&context, &on("s", operation).to_bytes(), &mut Vec::new());
    }
    held
}
