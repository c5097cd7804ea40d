//! How full a partition is, where replicas say so and where they do not.

use crate::support::*;
use perdura_protocol::PartitionId;
use perdura_transactions::TransactionError;

/// An answer is waited for so long, milliseconds.
const TIMEOUT_MS: u64 = 10_000;

/// Now and then replicas do not agree, and in order it is no command.
#[test]
fn a_partition_says_how_full_it_is_or_that_nobody_knows() {
    let shared = Partitions::new(2, 11);
    let client = client(&shared, 1);
    let ask = |partition: u16| {
        let (client, deadline_ms) = (client.clone(), lock(&shared).now_ms + TIMEOUT_MS);
        run_one(&shared, async move { client.fullness(PartitionId(partition), deadline_ms).await })
    };
    let answers: Vec<Option<u8>> =
        (0..500).map(|turn| ask(turn % 2).unwrap().map(|fullness| fullness.percent())).collect();
    let unknown = answers.iter().filter(|answer| answer.is_none()).count();
    assert!((1..100).contains(&unknown), "{unknown}");
    assert!(answers.iter().flatten().all(|percent| *percent == 0));
    lock(&shared).down.insert(PartitionId(1));
    assert!(matches!(ask(1), Err(TransactionError::Call(_))));
}
