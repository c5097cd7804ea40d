//! What is bounded.

use super::*;

/// Without the vote of the other one it may be; with it its room was kept.
#[test]
fn what_all_have_voted_for_is_never_refused() {
    for (shows, is_kept) in [(false, true), (true, false)] {
        let mut made = Made::new();
        let parts = pair("1");
        let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
        made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
        made.prepares((1, None), &intent, &parts[1], &[WRITTEN]);
        let vote = Certificate { partition: PartitionId(1), signers: Vec::new() };
        let votes = if shows { vec![vote] } else { Vec::new() };
        let finish = PartitionCommand::Finish { transaction: intent.id(), commit: true, votes };
        made.executes(0, 1, None, (finish.to_bytes(), Bytes::new()));
        if let Some(last) = made.orders[0].last_mut() {
            last.reply = Some(Err("there is no room".to_owned()));
        }
        made.ends(0, &intent, true);
        made.ends(1, &intent, true);
        let judged = made.judge().map(drop).map_err(|broken| broken.rule);
        assert_eq!(judged, if is_kept { Ok(()) } else { Err(RULE_ROOM) });
    }
}

#[test]
fn nobody_makes_a_partition_remember_without_end() {
    let most = u64::from(perdura_store::partition::limits::RECORDS_PER_CLIENT);
    let resolves = |made: &mut Made, who: u8, counter: u64| {
        let intent = made.intent(1, counter, [&[write("a1", "1")], &[write("b1", "1")]], false);
        let (transaction, vote) = (intent.id(), Vote::Abort(Reason::Resolved));
        let expired = Certificate { partition: PartitionId(1), signers: Vec::new() };
        let expired = (who != 1).then_some(expired);
        let resolve = PartitionCommand::Resolve { intent, expired };
        let voted = PartitionReply::Voted { transaction, attested: true, vote, results: None };
        made.executes(0, who, None, (resolve.to_bytes(), voted.to_bytes()));
    };
    let mut made = Made::new();
    (0..most).for_each(|counter| resolves(&mut made, 1, counter));
    // Others may, since it is pending elsewhere; and the same one again is none more.
    resolves(&mut made, 2, most);
    resolves(&mut made, 1, 0);
    made.judge().unwrap();
    let session = SessionId { client: client(1), nonce: 1 };
    let forget = PartitionCommand::Forget { session, fences: Vec::new() };
    let mut forgetful = Made { orders: made.orders.clone(), ..Made::new() };
    resolves(&mut made, 1, most + 1);
    assert_eq!(made.broken(), RULE_REMEMBERED);
    let forgotten = PartitionReply::Forgotten { count: 2 };
    forgetful.executes(0, 1, None, (forget.to_bytes(), forgotten.to_bytes()));
    resolves(&mut forgetful, 1, most + 1);
    forgetful.judge().unwrap();
}

#[test]
fn what_is_kept_takes_no_more_than_it_needs() {
    // What is held is kept until the transaction ends, its record and no more from then on.
    let value = "1".repeat(20_000);
    for (kept, held, ended) in [(1_000, true, true), (40_000, true, false), (400_000, false, false)]
    {
        let judge = |ends: bool| {
            let mut made = Made { limit_bytes: 100_000, ..Made::new() };
            let parts = pair(&value);
            let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
            made.prepares((1, None), &intent, &parts[1], &[WRITTEN]);
            if ends {
                made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
                // With the entry.
                made.state_bytes = kept + 20_066;
                made.ends(0, &intent, true);
            } else {
                made.state_bytes = kept;
                made.prepares((0, None), &intent, &parts[0], &[WRITTEN]);
                made.state_bytes = 0;
                made.ends(0, &intent, true);
            }
            made.state_bytes = 0;
            made.ends(1, &intent, true);
            made.judge().map(drop).map_err(|broken| broken.rule)
        };
        let so = |is_kept: bool| if is_kept { Ok(()) } else { Err(RULE_REMEMBERED) };
        assert_eq!((judge(false), judge(true)), (so(held), so(ended)), "{kept}");
    }
}

#[test]
fn no_partition_becomes_larger_than_it_may() {
    for (limit_bytes, is_kept) in [(67, true), (66, false)] {
        let mut made = Made { limit_bytes, ..Made::new() };
        writes_both(&mut made, 1, "1", [Some(true); 2]);
        assert_eq!(made.judge().map_err(|broken| broken.rule).is_ok(), is_kept);
    }
}
