//! Clients that never finish what they prepare (the paper's section 4.3, attack (a.2) of its section 3.4).

use super::run::Run;
use perdura_cluster::transactions::Groups;
use perdura_cluster::transactions::{Live, Split, StoreClient, Transactions};
use perdura_protocol::partitions::MAP_VERSION;
use perdura_store::partition::{
    Intent, Participant, PartitionCommand, PartitionReply, Vote, digest_of_part,
};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A group answers a liar within this time, or is not heard.
const ANSWER: Duration = Duration::from_secs(10);

/// How often one looks whether it is its turn.
const TURN: Duration = Duration::from_millis(5);

/// Clients, each with a key of its own.
pub struct Liars {
    /// Of partitioned stores.
    pub clients: Vec<StoreClient>,
    /// What they prepare is over two partitions.
    pub next: Rc<dyn Fn() -> perdura_store::Transaction>,
}

/// One of them.
pub struct Liar {
    client: StoreClient,
    next: Rc<dyn Fn() -> perdura_store::Transaction>,
    everywhere: bool,
}

/// What became of their parts.
#[derive(Default)]
pub struct Done {
    prepared: Cell<u64>,
    voted_down: Cell<u64>,
    unheard: Cell<u64>,
}

impl Done {
    /// Prepared, voted down, without an answer.
    pub fn counts(&self) -> [u64; 3] {
        [self.prepared.get(), self.voted_down.get(), self.unheard.get()]
    }
}

impl Liars {
    /// Every other one prepares everywhere, and the rest at one participant only.
    pub fn into_each(self) -> impl Iterator<Item = Liar> {
        let next = self.next;
        self.clients.into_iter().enumerate().map(move |(number, client)| Liar {
            client,
            next: Rc::clone(&next),
            everywhere: number.is_multiple_of(2),
        })
    }
}

impl Liar {
    /// Prepares one transaction after the other, as many as a correct caller ends.
    pub async fn lie(self, run: Rc<Run>, done: Rc<Done>) {
        let StoreClient::Partitioned(transactions) = &self.client else { return };
        let mut counter = 0;
        while !run.is_over() {
            if counter > run.pace() {
                tokio::time::sleep(TURN).await;
                continue;
            }
            counter += 1;
            self.prepare(transactions, counter, &done).await;
        }
        self.client.close().await;
    }

    async fn prepare(&self, transactions: &Transactions<Live>, counter: u64, done: &Done) {
        let groups = transactions.groups();
        let deadline_ms = groups.deadline_ms(ANSWER);
        let split = Split::of(groups.map(), (self.next)());
        let mut participants = Vec::new();
        for part in &split.parts {
            let Ok(nonce) = groups.session(part.partition, deadline_ms).await else { return };
            let (partition, part) = (part.partition, digest_of_part(&part.operations));
            participants.push(Participant { partition, nonce, part });
        }
        let intent = Intent {
            cluster: groups.map().cluster,
            map: MAP_VERSION,
            client: groups.client(),
            counter,
            read_only: split.is_read(),
            participants,
        };
        let parts = if self.everywhere { split.parts.len() } else { 1 };
        let mut asked = Vec::new();
        for part in split.parts.iter().take(parts) {
            let (intent, operations) = (intent.clone(), part.operations.clone());
            let (partition, transactions) = (part.partition, transactions.clone());
            asked.push(tokio::task::spawn_local(async move {
                let prepare = PartitionCommand::Prepare { intent, operations };
                transactions.ask(partition, &prepare, deadline_ms).await
            }));
        }
        for answer in asked {
            let count = match answer.await {
                Ok(Ok((PartitionReply::Voted { vote: Vote::Commit, .. }, _))) => &done.prepared,
                Ok(Ok((PartitionReply::Voted { .. }, _))) => &done.voted_down,
                _ => &done.unheard,
            };
            count.set(count.get() + 1);
        }
    }
}
