//! A client that begins transactions over several partitions and leaves them: it is dead, or hostile. What it leaves is as good as a
//! call of unknown outcome: all of it has to be there in the end, or nothing, and nobody may be held up by its locks for long.

use super::connection::Connection;
use anyhow::Result;
use perdura_adversary::Random;
use perdura_store::StoreCommand;
use perdura_store::partition::{
    Certificate, Intent, Participant, PartitionCommand, PartitionReply, Vote, digest_of_part,
};
use perdura_transactions::{Groups, Live, Part, Split, StoreClient, Transactions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// It does not wait for longer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Until it comes back to what others must have ended.
const LATE: Duration = Duration::from_secs(5);

/// When it leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// All have its parts.
    Prepared,
    /// One has its part.
    HalfPrepared,
    /// All have their parts, and one is shown the others' votes.
    HalfFinished,
    /// As before, and the others are asked to abort it, and are shown votes to commit.
    Contradicting,
    /// One has its part, and when others have ended that for long the rest comes, and whoever votes for it is shown the first vote.
    Late,
}

impl Leaves {
    /// One of them.
    pub fn draw(random: &mut Random) -> Leaves {
        *random.pick(&[
            Leaves::Prepared,
            Leaves::HalfPrepared,
            Leaves::HalfFinished,
            Leaves::Contradicting,
            Leaves::Late,
        ])
    }
}

/// The parts of a command, if it has some in several partitions.
pub fn parts(connection: &Connection, content: bytes::Bytes) -> Option<Split> {
    let Ok(StoreClient::Partitioned(transactions)) = connection.store() else { return None };
    let Ok(StoreCommand::Transaction(transaction)) = StoreCommand::decode(&content) else {
        return None;
    };
    let split = Split::of(transactions.groups().map(), transaction);
    (split.parts.len() > 1).then_some(split)
}

/// Begins a transaction, and leaves it. `counter` is a number that it has used for no other.
pub async fn begin(
    connection: &Connection,
    counter: &AtomicU64,
    split: &Split,
    leaves: Leaves,
) -> Result<()> {
    let StoreClient::Partitioned(transactions) = connection.store()? else { return Ok(()) };
    let deadline_ms = transactions.groups().deadline_ms(TIMEOUT);
    let mut participants = Vec::new();
    for Part { partition, operations, .. } in &split.parts {
        let nonce = transactions.groups().session(*partition, deadline_ms).await?;
        let part = digest_of_part(operations);
        participants.push(Participant { partition: *partition, nonce, part });
    }
    let (cluster, map) = (transactions.groups().map().cluster, transactions.groups().map().version);
    let intent = Intent {
        cluster,
        map,
        client: transactions.groups().client(),
        counter: counter.fetch_add(1, Ordering::Relaxed),
        read_only: split.is_read(),
        participants,
    };
    let begun = matches!(leaves, Leaves::HalfPrepared | Leaves::Late);
    let count = if begun { 1 } else { split.parts.len() };
    let mut votes = prepare(&transactions, &intent, &split.parts[..count], deadline_ms).await?;
    if matches!(leaves, Leaves::Prepared | Leaves::HalfPrepared) || votes.len() < count {
        return Ok(());
    }
    let [first, others @ ..] = &split.parts[..] else { return Ok(()) };
    if leaves == Leaves::Late {
        tokio::time::sleep(LATE).await;
        let deadline_ms = transactions.groups().deadline_ms(TIMEOUT);
        votes.extend(prepare(&transactions, &intent, others, deadline_ms).await?);
        for other in others {
            // Which nobody votes for any more.
            finish(&transactions, &intent, (other, true), &votes, deadline_ms).await.ok();
        }
        return Ok(());
    }
    finish(&transactions, &intent, (first, true), &votes, deadline_ms).await?;
    if leaves == Leaves::Contradicting {
        for other in others {
            // Which they refuse.
            finish(&transactions, &intent, (other, false), &votes, deadline_ms).await.ok();
        }
    }
    Ok(())
}

/// Sends these parts, and gives proofs of the votes to commit.
async fn prepare(
    transactions: &Transactions<Live>,
    intent: &Intent,
    parts: &[Part],
    deadline_ms: u64,
) -> Result<Vec<Certificate>> {
    let mut votes = Vec::new();
    for part in parts {
        let (intent, operations) = (intent.clone(), part.operations.clone());
        let prepare = PartitionCommand::Prepare { intent, operations };
        let asked = transactions.ask(part.partition, &prepare, deadline_ms).await?;
        if let (PartitionReply::Voted { vote: Vote::Commit, .. }, Some(proof)) = asked {
            votes.push(proof);
        }
    }
    Ok(votes)
}

async fn finish(
    transactions: &Transactions<Live>,
    intent: &Intent,
    (part, commit): (&Part, bool),
    votes: &[Certificate],
    deadline_ms: u64,
) -> Result<()> {
    let others = votes.iter().filter(|vote| vote.partition != part.partition).cloned();
    let (transaction, votes) = (intent.id(), others.collect());
    let finish = PartitionCommand::Finish { transaction, commit, votes };
    transactions.ask(part.partition, &finish, deadline_ms).await?;
    Ok(())
}
