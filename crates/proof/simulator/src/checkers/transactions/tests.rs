mod allowed;
mod bounds;
mod snapshots;

use super::*;
use crate::deployment::history::Operation as Asked;
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::{ClusterId, Digest, Encode, Faults, Slot, Time};
use perdura_store::partition::{Blocker, Certificate, Intent, Participant, digest_of_part};
use perdura_store::{Transaction, TransactionResult};

/// Histories of two partitions, `a...` and `b...`, made by hand: what each executed, and what clients saw.
struct Made {
    map: Map,
    orders: [Vec<Execution>; 2],
    calls: [Vec<Called>; 2],
    asked: Vec<Asked>,
    moment: u64,
    hostile: BTreeSet<PublicKey>,
    treasury: Treasury,
    limit_bytes: u64,
    state_bytes: u64,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn write(key: &str, value: &str) -> Operation {
    Operation::Write { key: bytes(key), value: bytes(value), only_if_present: false }
}

fn read(key: &str) -> Operation {
    Operation::Read { key: bytes(key) }
}

fn range(start: &str, end: &str) -> Operation {
    Operation::ReadRange { start: bytes(start), end: Some(bytes(end)), limit: 10, reverse: false }
}

fn value(value: Option<&str>) -> OperationResult {
    OperationResult::Value(value.map(bytes))
}

fn committed(results: Vec<OperationResult>) -> Told {
    Told::Over(Outcome::Committed(results.into()))
}

fn failed_at(operation: usize) -> Told {
    Told::Over(Outcome::Failed { operation })
}

fn client(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

impl Made {
    fn new() -> Made {
        let (cluster, faults) = (ClusterId([1; 16]), Faults::new(1, 0).unwrap());
        let group = |index| Group {
            id: group_id(cluster, PartitionId(index), 2),
            faults,
            members: vec![PublicKey([index as u8; 32]); 3],
        };
        let distribution = Distribution::Range { bounds: vec![bytes("b")] };
        let groups = vec![group(0), group(1)];
        let resolvers = Vec::new();
        let map = Map { cluster, version: MAP_VERSION, distribution, groups, resolvers };
        Made {
            map,
            orders: Default::default(),
            calls: Default::default(),
            asked: Vec::new(),
            moment: 0,
            hostile: BTreeSet::new(),
            treasury: Treasury { accounts: Vec::new(), total: 0 },
            limit_bytes: 1_000,
            state_bytes: 0,
        }
    }

    fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A client asks for a transaction.
    fn asks(&mut self, operations: &[Operation]) -> usize {
        let asked = StoreCommand::Transaction(Transaction { operations: operations.to_vec() });
        self.asks_command(asked)
    }

    fn asks_command(&mut self, asked: StoreCommand) -> usize {
        let invoked = self.moment();
        let (looks, ended, told, calls) = (false, None, None, Vec::new());
        let (invoked_ms, ended_ms, process) = (0, None, 0);
        self.asked.push(Asked {
            process,
            asked,
            looks,
            invoked,
            ended,
            invoked_ms,
            ended_ms,
            told,
            calls,
        });
        self.asked.len() - 1
    }

    fn told(&mut self, operation: usize, told: Told) {
        let moment = self.moment();
        self.asked[operation].ended = Some(moment);
        self.asked[operation].told = Some(told);
    }

    /// A partition executes a command, of an operation if one is given, with this reply.
    fn executes(
        &mut self,
        partition: usize,
        who: u8,
        operation: Option<usize>,
        (command, reply): (Bytes, Bytes),
    ) {
        let number = self.orders[partition].len() as u64;
        let session = SessionId { client: client(who), nonce: 1 };
        self.orders[partition].push(Execution {
            slot: Slot(number),
            batch: Digest([1; 32]),
            session,
            number,
            command: command.clone(),
            time: perdura_protocol::Time(0),
            ahead_ms: 0,
            state_bytes: self.state_bytes,
            work: 0,
            cost: None,
            reply: Some(Ok(reply.clone())),
        });
        let (invoked, ended) = (self.moment(), Some(self.moment()));
        if let Some(operation) = operation {
            let record = self.calls[partition].len();
            let (number, seen) = (Some((session, number)), Seen::Ok(reply));
            self.calls[partition].push(Called { command, invoked, ended, number, seen });
            self.asked[operation].calls.push((partition, record));
        }
    }

    fn local(
        &mut self,
        partition: usize,
        operation: Option<usize>,
        operations: &[Operation],
        results: &[OperationResult],
    ) {
        let command = StoreCommand::Transaction(Transaction { operations: operations.to_vec() });
        let (committed, failed, results) = (true, None, results.to_vec());
        let reply = StoreReply::Transaction(TransactionResult { committed, failed, results });
        self.executes(partition, 1, operation, (command.to_bytes(), reply.to_bytes()));
    }

    fn intent(&self, who: u8, counter: u64, parts: [&[Operation]; 2], read_only: bool) -> Intent {
        let participant = |(index, part): (usize, &&[Operation])| Participant {
            partition: PartitionId(index as u16),
            nonce: 1,
            part: digest_of_part(part),
        };
        let participants = parts.iter().enumerate().map(participant).collect();
        let (cluster, map, client) = (self.map.cluster, MAP_VERSION, client(who));
        Intent { cluster, map, client, counter, read_only, participants }
    }

    fn prepares(
        &mut self,
        (partition, operation): (usize, Option<usize>),
        intent: &Intent,
        operations: &[Operation],
        results: &[OperationResult],
    ) {
        let vote = Vote::Commit;
        self.votes((partition, operation), intent, operations, (vote, Some(results.to_vec())));
    }

    fn votes(
        &mut self,
        (partition, operation): (usize, Option<usize>),
        intent: &Intent,
        operations: &[Operation],
        (vote, results): (Vote, Option<Vec<OperationResult>>),
    ) {
        let (transaction, attested) = (intent.id(), !intent.read_only);
        let reply = PartitionReply::Voted { transaction, attested, vote, results };
        let (intent, operations) = (intent.clone(), operations.to_vec());
        let command = PartitionCommand::Prepare { intent, operations };
        self.executes(partition, 1, operation, (command.to_bytes(), reply.to_bytes()));
    }

    /// Shown votes of the other partition, or given back by its client.
    fn ends(&mut self, partition: usize, intent: &Intent, committed: bool) {
        let other = PartitionId(1 - partition as u16);
        let vote = Certificate { partition: other, signers: Vec::new() };
        let votes = if intent.read_only { Vec::new() } else { vec![vote] };
        let transaction = intent.id();
        let command = PartitionCommand::Finish { transaction, commit: committed, votes };
        let reply = PartitionReply::Finished { transaction, committed };
        let who = intent.client.0[0];
        self.executes(partition, who, None, (command.to_bytes(), reply.to_bytes()));
    }

    fn judge(&self) -> Result<TransactionCounts, Broken> {
        let groups = [0, 1].map(|index: usize| Ran {
            order: self.orders[index].iter().collect(),
            limit_bytes: self.limit_bytes,
            calls: self.calls[index].clone(),
        });
        judge(&groups, &self.asked, &self.map, &self.hostile, &self.treasury)
    }

    fn broken(&self) -> &'static str {
        self.judge().expect_err("it is broken").rule
    }
}

const WRITTEN: OperationResult = OperationResult::Written;

/// Writes one key in each partition, in both or in the first alone.
fn pair(value: &str) -> [Vec<Operation>; 2] {
    [vec![write("a1", value)], vec![write("b1", value)]]
}

fn whole(parts: &[Vec<Operation>; 2]) -> Vec<Operation> {
    parts.concat()
}

/// A transaction that writes both keys and is told of, with ends as they are given.
fn writes_both(made: &mut Made, counter: u64, value: &str, ends: [Option<bool>; 2]) -> usize {
    let parts = pair(value);
    let operation = made.asks(&whole(&parts));
    let intent = made.intent(1, counter, [&parts[0], &parts[1]], false);
    for (index, part) in parts.iter().enumerate() {
        made.prepares((index, Some(operation)), &intent, part, &[WRITTEN]);
    }
    for (index, end) in ends.into_iter().enumerate() {
        if let Some(committed) = end {
            made.ends(index, &intent, committed);
        }
    }
    operation
}

#[test]
fn what_is_in_order_is_counted() {
    let mut made = Made::new();
    let operation = writes_both(&mut made, 1, "1", [Some(true); 2]);
    made.told(operation, committed(vec![WRITTEN, WRITTEN]));
    let parts = [vec![read("a1")], vec![read("b1")]];
    let reader = made.asks(&whole(&parts));
    let intent = made.intent(2, 1, [&parts[0], &parts[1]], true);
    for (index, part) in parts.iter().enumerate() {
        made.prepares((index, Some(reader)), &intent, part, &[value(Some("1"))]);
    }
    made.ends(0, &intent, true);
    made.ends(1, &intent, false);
    made.told(reader, committed(vec![value(Some("1")); 2]));
    let counts = made.judge().unwrap();
    assert_eq!((counts.committed, counts.global, counts.global_committed), (2, 2, 1));
    assert!(counts.edges >= 4, "{counts:?}");
}

#[test]
fn half_of_a_transaction_is_none() {
    let mut made = Made::new();
    writes_both(&mut made, 1, "1", [Some(true), Some(false)]);
    assert_eq!(made.broken(), RULE_ATOMIC);
    let mut made = Made::new();
    writes_both(&mut made, 1, "1", [Some(true), None]);
    assert_eq!(made.broken(), "Progress (transactions)", "it is locked for ever");
    // The other one voted to abort it.
    let mut made = Made::new();
    let parts = pair("1");
    let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
    made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
    made.votes((1, None), &intent, &parts[1], (Vote::Abort(Reason::Room), None));
    made.ends(0, &intent, true);
    assert_eq!(made.broken(), RULE_ATOMIC);
}

#[test]
fn a_vote_is_final_and_so_is_an_end() {
    let mut made = Made::new();
    let parts = pair("1");
    let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    let (transaction, attested, results) = (intent.id(), true, None);
    let vote = Vote::Abort(Reason::Resolved);
    let reply = PartitionReply::Voted { transaction, attested, vote, results };
    made.executes(0, 1, None, (resolve.to_bytes(), reply.to_bytes()));
    made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
    assert_eq!(made.broken(), RULE_ATOMIC);
    let mut made = Made::new();
    let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
    made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
    made.ends(0, &intent, false);
    made.ends(0, &intent, true);
    assert_eq!(made.broken(), RULE_ATOMIC);
}

#[test]
fn clients_are_told_what_happened() {
    for (told, ends) in [
        (Told::Refused(String::new()), [Some(true); 2]),
        (failed_at(0), [Some(true); 2]),
        (committed(vec![WRITTEN, WRITTEN]), [Some(false); 2]),
        (committed(vec![WRITTEN, value(None)]), [Some(true); 2]),
        (Told::Over(Outcome::ResultsGone), [Some(false); 2]),
    ] {
        let mut made = Made::new();
        let operation = writes_both(&mut made, 1, "1", ends);
        made.told(operation, told.clone());
        assert_eq!(made.broken(), RULE_TOLD, "{told:?}");
    }
    // Tried again, and done twice.
    let mut made = Made::new();
    let operation = writes_both(&mut made, 1, "1", [Some(true); 2]);
    let again = writes_both(&mut made, 2, "1", [Some(true); 2]);
    let calls = made.asked[again].calls.clone();
    made.asked[operation].calls.extend(calls);
    made.asked.remove(again);
    made.told(operation, Told::Unknown(String::new()));
    assert_eq!(made.broken(), RULE_TOLD);
}

fn compare(key: &str, value: Option<&str>) -> Operation {
    Operation::Cmp { key: bytes(key), value: value.map(bytes) }
}

/// A transaction of a client that failed in a partition: where, and for what reason.
fn fails(made: &mut Made, asked: &[Operation], (partition, reason): (usize, Reason)) -> usize {
    let parts = [0, 1].map(|index| {
        let is_here = |one: &&Operation| match one {
            Operation::Cmp { key, .. } | Operation::Write { key, .. } => {
                made.map.partition_of(key).index() == index
            }
            _ => true,
        };
        asked.iter().filter(is_here).cloned().collect::<Vec<Operation>>()
    });
    let intent = made.intent(3, 1, [&parts[0], &parts[1]], false);
    let operation = made.asks(asked);
    let vote = (Vote::Abort(reason), None);
    made.votes((partition, Some(operation)), &intent, &parts[partition], vote);
    operation
}

#[test]
fn what_failed_is_what_its_client_is_told() {
    let asked = [compare("a1", None), write("b2", "1"), compare("b1", Some("9"))];
    let failed = || Reason::Failed { operation: 1 };
    let in_the_way = || Reason::Conflict(Blocker::Other);
    for (reason, told, is_so) in
        [(failed(), 2, true), (failed(), 1, false), (failed(), 0, false), (in_the_way(), 2, false)]
    {
        let mut made = Made::new();
        let operation = fails(&mut made, &asked, (1, reason.clone()));
        made.told(operation, failed_at(told));
        let judged = made.judge().map(drop).map_err(|broken| broken.rule);
        assert_eq!(judged, if is_so { Ok(()) } else { Err(RULE_TOLD) }, "{reason:?} {told}");
    }
    // Of one partition alone.
    for (told, is_so) in [(1, true), (0, false)] {
        let mut made = Made::new();
        let asked = [write("a1", "1"), compare("a2", Some("9"))];
        let operation = made.asks(&asked);
        let command = StoreCommand::Transaction(Transaction { operations: asked.to_vec() });
        let (committed, failed, results) = (false, Some(1), Vec::new());
        let reply = StoreReply::Transaction(TransactionResult { committed, failed, results });
        made.executes(0, 1, Some(operation), (command.to_bytes(), reply.to_bytes()));
        made.told(operation, failed_at(told));
        assert_eq!(made.judge().is_ok(), is_so, "{told}");
    }
}

/// A comparison that is decided while somebody holds the key, whose client knows already that he has written it.
#[test]
fn what_failed_was_read() {
    for (is_told, is_kept) in [(true, false), (false, true)] {
        let mut made = Made::new();
        let parts = pair("1");
        let writer = made.asks(&whole(&parts));
        let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
        for (index, part) in parts.iter().enumerate() {
            made.prepares((index, Some(writer)), &intent, part, &[WRITTEN]);
        }
        made.ends(1, &intent, true);
        made.told(writer, committed(vec![WRITTEN, WRITTEN]));
        let asked = [compare("a1", Some("1")), write("b2", "1")];
        let operation = fails(&mut made, &asked, (0, Reason::Failed { operation: 0 }));
        made.ends(0, &intent, true);
        if is_told {
            made.told(operation, failed_at(0));
        }
        let judged = made.judge().map(drop).map_err(|broken| broken.rule);
        assert_eq!(judged, if is_kept { Ok(()) } else { Err(RULE_ORDER) });
    }
}

#[test]
fn money_is_neither_made_nor_lost() {
    for (held, is_kept) in [("60", true), ("61", false)] {
        let mut made = Made::new();
        made.treasury = Treasury { accounts: vec![bytes("a1"), bytes("b1")], total: 100 };
        made.local(0, None, &[write("a1", "40")], &[WRITTEN]);
        made.local(1, None, &[write("b1", held)], &[WRITTEN]);
        assert_eq!(made.judge().is_ok(), is_kept);
    }
    // A look at one moment that never was: between both halves.
    let mut made = Made::new();
    made.treasury = Treasury { accounts: vec![bytes("a1"), bytes("b1")], total: 100 };
    made.local(0, None, &[write("a1", "40")], &[WRITTEN]);
    made.local(1, None, &[write("b1", "60")], &[WRITTEN]);
    let parts = [vec![read("a1")], vec![read("b1")]];
    let look = made.asks(&whole(&parts));
    made.asked[look].looks = true;
    let intent = made.intent(2, 1, [&parts[0], &parts[1]], true);
    made.prepares((0, Some(look)), &intent, &parts[0], &[value(Some("40"))]);
    made.ends(0, &intent, true);
    made.local(0, None, &[write("a1", "30")], &[WRITTEN]);
    made.local(1, None, &[write("b1", "70")], &[WRITTEN]);
    made.prepares((1, Some(look)), &intent, &parts[1], &[value(Some("70"))]);
    made.ends(1, &intent, true);
    made.told(look, committed(vec![value(Some("40")), value(Some("70"))]));
    assert_eq!(made.broken(), RULE_MONEY);
}

/// Two that read what the other one writes (Adya's G2), for which nobody held the locks that he should have.
#[test]
fn write_skew_has_no_order() {
    let mut made = Made::new();
    let first = [vec![read("a1")], vec![write("b1", "1")]];
    let second = [vec![write("a1", "2")], vec![read("b1")]];
    let one = made.intent(1, 1, [&first[0], &first[1]], false);
    let two = made.intent(2, 1, [&second[0], &second[1]], false);
    made.prepares((0, None), &one, &first[0], &[value(None)]);
    made.prepares((1, None), &two, &second[1], &[value(None)]);
    made.prepares((1, None), &one, &first[1], &[WRITTEN]);
    made.prepares((0, None), &two, &second[0], &[WRITTEN]);
    for index in 0..2 {
        made.ends(index, &one, true);
        made.ends(index, &two, true);
    }
    let broken = made.judge().unwrap_err();
    assert!(broken.rule == RULE_ORDER && broken.what.contains("-rw a1 in 0->"), "{broken:?}");
    // What a hostile reader saw counts for nothing.
    let mut made = Made::new();
    let one = made.intent(1, 1, [&[read("a1")], &[read("b1")]], true);
    made.prepares((0, None), &one, &[read("a1")], &[value(None)]);
    made.ends(0, &one, true);
    let operation = writes_both(&mut made, 2, "1", [Some(true); 2]);
    made.told(operation, committed(vec![WRITTEN, WRITTEN]));
    made.prepares((1, None), &one, &[read("b1")], &[value(Some("1"))]);
    made.ends(1, &one, true);
    assert!(made.judge().is_ok(), "nobody was told");
}

/// Two readers that saw two writes in different orders.
#[test]
fn a_long_fork_has_no_order() {
    let mut made = Made::new();
    let readers: Vec<(usize, Intent)> = (0..2)
        .map(|number| {
            let reader = made.asks(&[read("a1"), read("b1")]);
            (reader, made.intent(2 + number, 1, [&[read("a1")], &[read("b1")]], true))
        })
        .collect();
    let sees = |made: &mut Made, reader: usize, partition: usize, seen: Option<&str>| {
        let key = ["a1", "b1"][partition];
        let (operation, intent) = &readers[reader];
        made.prepares((partition, Some(*operation)), intent, &[read(key)], &[value(seen)]);
        made.ends(partition, intent, true);
    };
    sees(&mut made, 0, 1, None);
    sees(&mut made, 1, 0, None);
    made.local(0, None, &[write("a1", "1")], &[WRITTEN]);
    made.local(1, None, &[write("b1", "1")], &[WRITTEN]);
    sees(&mut made, 0, 0, Some("1"));
    sees(&mut made, 1, 1, Some("1"));
    let told = |seen: [Option<&str>; 2]| committed(seen.map(value).to_vec());
    made.told(readers[0].0, told([Some("1"), None]));
    made.told(readers[1].0, told([None, Some("1")]));
    assert_eq!(made.broken(), RULE_ORDER);
}

#[test]
fn an_order_respects_real_time() {
    let mut made = Made::new();
    let first = made.asks(&[write("a1", "1")]);
    made.local(0, Some(first), &[write("a1", "1")], &[WRITTEN]);
    made.told(first, committed(vec![WRITTEN]));
    // A reader that began afterwards sees the other partition as it is, and this one as it was.
    let reader = made.asks_command(StoreCommand::Get { key: bytes("a1") });
    let get = StoreCommand::Get { key: bytes("a1") }.to_bytes();
    let reply = StoreReply::Value(None).to_bytes();
    let (invoked, ended) = (made.moment(), Some(made.moment()));
    let seen = Seen::Ok(reply);
    made.calls[0].push(Called { command: get, invoked, ended, number: None, seen });
    made.asked[reader].calls.push((0, 1));
    made.told(reader, committed(vec![value(None)]));
    assert_eq!(made.broken(), RULE_ORDER);
    // Across partitions, where no two touched the same: what ended first comes first.
    let mut graph = Graph::default();
    let (one, two) = (Node::Local(0, 1), Node::Local(1, 1));
    graph.real_time(&[(one, 1, Some(2)), (two, 3, Some(4))]);
    assert_eq!(graph.cycle(), None);
    graph.real_time(&[(two, 5, Some(6)), (one, 7, Some(8))]);
    assert!(graph.cycle().is_some());
}

/// A member that comes while a range is being read, of which nothing was there to be locked.
#[test]
fn a_phantom_has_no_order() {
    let mut made = Made::new();
    let entries = |of: &[&str]| OperationResult::Entries {
        entries: of.iter().map(|key| (bytes(key), bytes("1"))).collect(),
        more: false,
    };
    let parts = [vec![range("a", "b")], vec![range("b", "c")]];
    let reader = made.asks(&[range("a", "c")]);
    let intent = made.intent(2, 1, [&parts[0], &parts[1]], true);
    made.prepares((0, Some(reader)), &intent, &parts[0], &[entries(&[])]);
    let both = pair("1");
    let writer = made.intent(1, 1, [&both[0], &both[1]], false);
    made.prepares((0, None), &writer, &both[0], &[WRITTEN]);
    made.prepares((1, None), &writer, &both[1], &[WRITTEN]);
    made.ends(0, &writer, true);
    made.ends(1, &writer, true);
    made.prepares((1, Some(reader)), &intent, &parts[1], &[entries(&["b1"])]);
    made.ends(0, &intent, true);
    made.ends(1, &intent, true);
    made.told(reader, committed(vec![entries(&["b1"])]));
    assert_eq!(made.broken(), RULE_ORDER);
}

/// A reader is told that there is more, of what somebody deletes whom it comes behind elsewhere.
#[test]
fn there_stays_more_where_somebody_was_told_so() {
    let entries = |of: &[&str], more: bool| OperationResult::Entries {
        entries: of.iter().map(|key| (bytes(key), bytes("1"))).collect(),
        more,
    };
    let few = |limit: u32, reverse: bool| Operation::ReadRange {
        start: bytes("a"),
        end: Some(bytes("b")),
        limit,
        reverse,
    };
    let delete = |key: &str| Operation::Delete { key: bytes(key) };
    let deleted = || OperationResult::Deleted { existed: true };
    // Which key goes, and how the reader reads; that of nothing more is read while one key is deleted that is not the next one.
    for (goes, limit, reverse, seen, is_kept) in [
        ("a2", 1, false, &["a1"][..], false),
        ("a3", 1, false, &["a1"][..], true),
        ("a2", 1, true, &["a3"][..], false),
        ("a1", 1, true, &["a3"][..], true),
        ("a3", 2, false, &["a1", "a2"][..], false),
    ] {
        let mut made = Made::new();
        let all = ["a1", "a2", "a3"].map(|key| write(key, "1"));
        made.local(0, None, &all, &[WRITTEN; 3]);
        let parts = [vec![few(limit, reverse)], vec![read("b1")]];
        let reader = made.intent(2, 1, [&parts[0], &parts[1]], false);
        made.prepares((0, None), &reader, &parts[0], &[entries(seen, true)]);
        let goes = [vec![delete(goes)], vec![write("b1", "1")]];
        let writer = made.intent(1, 1, [&goes[0], &goes[1]], false);
        made.prepares((0, None), &writer, &goes[0], &[deleted()]);
        made.prepares((1, None), &writer, &goes[1], &[WRITTEN]);
        made.ends(0, &writer, true);
        made.ends(1, &writer, true);
        made.prepares((1, None), &reader, &parts[1], &[value(Some("1"))]);
        made.ends(0, &reader, true);
        made.ends(1, &reader, true);
        let judged = made.judge().map(drop).map_err(|broken| broken.rule);
        let so = if is_kept { Ok(()) } else { Err(RULE_ORDER) };
        assert_eq!(judged, so, "{goes:?} {limit} {reverse}");
    }
}

#[test]
fn nothing_is_read_while_it_is_being_written() {
    let mut made = Made::new();
    let parts = pair("1");
    let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
    made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
    let writer = made.asks(&[]);
    made.asked[writer].calls.clear();
    let replies = made.moment();
    let get = StoreCommand::Get { key: bytes("a1") }.to_bytes();
    // Behind the prepare, as somebody had heard of it.
    let session = made.orders[0][0].session;
    made.calls[0].push(Called {
        command: made.orders[0][0].command.clone(),
        invoked: replies,
        ended: Some(replies + 1),
        number: Some((session, 0)),
        seen: Seen::Ok(Bytes::new()),
    });
    made.calls[0].push(Called {
        command: get,
        invoked: replies + 2,
        ended: Some(replies + 3),
        number: None,
        seen: Seen::Ok(StoreReply::Value(None).to_bytes()),
    });
    made.prepares((1, None), &intent, &parts[1], &[WRITTEN]);
    made.ends(0, &intent, true);
    made.ends(1, &intent, true);
    let broken = made.judge().unwrap_err();
    assert!(broken.rule == RULE_ORDER && broken.what.contains("fast read"), "{broken:?}");
}
