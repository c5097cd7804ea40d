//! A client process that attacks, with a key that all groups know. It knows what is pending, as anybody may ask, and has the keys of
//! liars. What is not what it should be costs it its links: then its process starts anew.

mod hog;

use super::desk::{Way, lock};
use super::plan::StorePlan;
use super::workload::{key, within};
use crate::random::Random;
use bytes::Bytes;
use perdura_client::Mode;
use perdura_protocol::attestation::attest;
use perdura_protocol::partitions::MAP_VERSION;
use perdura_protocol::{
    Decode, Digest, Encode, PartitionId, ReplicaId, SecretKey, SessionId, Signature,
};
use perdura_store::Operation;
use perdura_store::partition::{
    Certificate, Fence, Intent, Participant, PartitionCommand, PartitionReply, Statement,
    TransactionId, digest_of_part,
};
use perdura_transactions::{Groups, Transactions};

/// How long it waits for an answer, milliseconds.
const TIMEOUT_MS: u64 = 1_500;

/// Transactions that it hoards locks with at a time.
const HOARD: u64 = 6;

type Part = (PartitionId, Vec<Operation>);

/// See the module.
pub(crate) struct Hostile {
    client: Transactions<Way>,
    way: Way,
    /// By partition.
    liars: Vec<Vec<(ReplicaId, SecretKey)>>,
    plan: StorePlan,
    random: Random,
    counter: u64,
    /// Of its own transactions, for another use.
    seen: Vec<Certificate>,
    /// What it showed, with the words of other partitions.
    shown: Vec<(PartitionId, PartitionCommand)>,
    /// What it hogs.
    held: Option<Intent>,
    /// What it took of it the last time.
    places: Vec<Part>,
}

impl Hostile {
    pub fn new(
        client: Transactions<Way>,
        way: Way,
        liars: Vec<Vec<(ReplicaId, SecretKey)>>,
        plan: StorePlan,
        random: Random,
    ) -> Hostile {
        Hostile {
            client,
            way,
            liars,
            plan,
            random,
            counter: 0,
            seen: Vec::new(),
            shown: Vec::new(),
            held: None,
            places: Vec::new(),
        }
    }

    /// Attacks until it is to end.
    pub async fn work(mut self) {
        loop {
            let pause_ms = self.random.between(1, 300);
            self.way.sleep(pause_ms).await;
            if lock(&self.way.desk).closing {
                return;
            }
            lock(&self.way.desk).attacks += 1;
            let hogs = lock(&self.way.desk).hogs;
            if hogs {
                self.hog().await;
            } else {
                self.attack().await;
            }
        }
    }

    async fn attack(&mut self) {
        match self.random.below(16) {
            0 => self.leave(true).await,
            1 => self.leave(false).await,
            2 => self.hoard().await,
            3 => self.mismatch().await,
            4 | 5 => self.forge().await,
            6 => self.replay().await,
            7 => self.invent().await,
            8 => self.resolve_first().await,
            9 => self.prepare_below_fence().await,
            10 => self.use_counter_twice().await,
            11 => self.meddle().await,
            12 => self.fence_others().await,
            13 => self.introduce().await,
            14 => self.show_again().await,
            _ => self.end_half().await,
        }
    }

    async fn ask(
        &mut self,
        partition: PartitionId,
        command: &PartitionCommand,
    ) -> Option<(PartitionReply, Option<Certificate>)> {
        let deadline_ms = self.way.now_ms() + TIMEOUT_MS;
        let mode = if command.is_read() { Mode::Fast } else { Mode::Ordered };
        let answer = self.way.call(partition, command.to_bytes(), mode, deadline_ms).await.ok()?;
        if let Some(proof) = &answer.proof {
            self.seen.push(proof.clone());
            if self.seen.len() > 16 {
                self.seen.remove(0);
            }
        }
        Some((PartitionReply::from_bytes(answer.reply).ok()?, answer.proof))
    }

    /// Something that it sent is false, and costs it its links.
    fn start_anew(&self) {
        lock(&self.way.desk).dies = true;
    }

    fn partition(&mut self) -> PartitionId {
        PartitionId(self.random.below(self.plan.partitions as u64) as u16)
    }

    /// A key of the workload that a partition has, if there is one.
    fn key_in(&mut self, partition: PartitionId) -> Option<Bytes> {
        let families = ['m', 'r', 's'];
        let all = (0..self.plan.keys).flat_map(|number| families.map(|family| (family, number)));
        let keys: Vec<Bytes> = all
            .map(|(family, number)| key(self.plan.partitions, family, number))
            .filter(|key| self.way.map.partition_of(key) == partition)
            .collect();
        let index = self.random.below(keys.len().max(1) as u64) as usize;
        keys.get(index).cloned()
    }

    /// Parts in two partitions at least, which lock what others want and change nothing of it.
    fn parts(&mut self) -> Vec<Part> {
        let count = self.random.between(2, self.plan.partitions as u64);
        let mut partitions: Vec<u16> = (0..self.plan.partitions as u16).collect();
        while partitions.len() as u64 > count {
            partitions.remove(self.random.below(partitions.len() as u64) as usize);
        }
        let mut parts = Vec::new();
        for partition in partitions.into_iter().map(PartitionId) {
            let operation = match self.key_in(partition) {
                // Registers it may write as anybody may.
                Some(key) if within(&key, 'r') && self.random.percent(60) => {
                    let value = Bytes::from(format!("h{}", self.random.next()));
                    Operation::Write { key, value, only_if_present: false }
                }
                Some(key) => Operation::Read { key },
                None => {
                    let (start, end) = (Bytes::from_static(b"a"), None);
                    Operation::ReadRange { start, end, limit: 5, reverse: false }
                }
            };
            parts.push((partition, vec![operation]));
        }
        parts
    }

    async fn intent(&mut self, parts: &[Part], read_only: bool) -> Option<Intent> {
        let deadline_ms = self.way.now_ms() + TIMEOUT_MS;
        let mut participants = Vec::new();
        for (partition, operations) in parts {
            let nonce = self.way.session(*partition, deadline_ms).await.ok()?;
            let part = digest_of_part(operations);
            participants.push(Participant { partition: *partition, nonce, part });
        }
        self.counter += 1;
        Some(Intent {
            cluster: self.way.map.cluster,
            map: MAP_VERSION,
            client: self.way.client,
            counter: self.counter,
            read_only,
            participants,
        })
    }

    async fn prepare(
        &mut self,
        intent: &Intent,
        (partition, operations): &Part,
    ) -> Option<(PartitionReply, Option<Certificate>)> {
        let (intent, operations) = (intent.clone(), operations.clone());
        self.ask(*partition, &PartitionCommand::Prepare { intent, operations }).await
    }

    async fn prepare_last(
        &mut self,
        intent: &Intent,
        (partition, operations): &Part,
        votes: Vec<Certificate>,
    ) -> Option<(PartitionReply, Option<Certificate>)> {
        let (intent, operations) = (intent.clone(), operations.clone());
        self.ask(*partition, &PartitionCommand::PrepareLast { intent, operations, votes }).await
    }

    /// Prepares in all partitions or in one, and never ends it.
    async fn leave(&mut self, everywhere: bool) {
        let parts = self.parts();
        let read_only = parts.iter().all(|(_, part)| matches!(part[0], Operation::Read { .. }));
        let Some(intent) = self.intent(&parts, read_only).await else { return };
        for part in parts.iter().take(if everywhere { parts.len() } else { 1 }) {
            self.prepare(&intent, part).await;
        }
    }

    /// Locks as much as it can.
    async fn hoard(&mut self) {
        for _ in 0..HOARD {
            self.leave(true).await;
        }
    }

    /// Parts that are not those of the identifier, or another partition's.
    async fn mismatch(&mut self) {
        let mut parts = self.parts();
        let Some(mut intent) = self.intent(&parts, false).await else { return };
        match self.random.below(4) {
            0 => intent.participants[1].part = Digest([7; 32]),
            1 => intent.participants[1].nonce += 1,
            2 => intent.map += 1,
            _ => {
                let (first, second) = (parts[0].1.clone(), parts[1].1.clone());
                (parts[0].1, parts[1].1) = (second, first);
                intent.participants[0].part = digest_of_part(&parts[0].1);
                intent.participants[1].part = digest_of_part(&parts[1].1);
            }
        }
        for part in &parts {
            self.prepare(&intent, part).await;
        }
    }

    /// What one partition never voted, signed by as many of its members as it has the keys of, and others falsely.
    fn forged(&mut self, partition: PartitionId, statement: &Statement) -> Option<Certificate> {
        let group = self.way.map.group(partition)?;
        let wanted = group.faults.reply_quorum();
        let leaf = statement.to_bytes();
        let mut signers = Vec::new();
        for (id, secret) in &self.liars[partition.index()] {
            let signed = attest((group.id, 0), std::slice::from_ref(&leaf), (*id, secret));
            signers.extend(signed.into_iter().map(|one| (secret.public(), one)));
        }
        signers.truncate(wanted);
        let own = signers.first().cloned();
        let mut id = 0u8;
        while signers.len() < wanted {
            let free = signers.iter().all(|(_, one)| one.signer != ReplicaId(id));
            match (&own, self.random.below(3)) {
                // The same twice.
                (Some(own), 0) => signers.push(own.clone()),
                // A liar's, as if it were another's.
                (Some((_, one)), 1) if free => {
                    let key = group.members.get(usize::from(id)).copied()?;
                    let one =
                        perdura_protocol::Attestation { signer: ReplicaId(id), ..one.clone() };
                    signers.push((key, one));
                }
                _ if free => {
                    let key = group.members.get(usize::from(id)).copied()?;
                    let signature = Signature([self.random.next() as u8; 64]);
                    signers.push((
                        key,
                        perdura_protocol::Attestation {
                            signer: ReplicaId(id),
                            configuration: 0,
                            index: 0,
                            count: 1,
                            path: Vec::new(),
                            signature,
                        },
                    ));
                }
                _ => {}
            }
            id += 1;
        }
        signers.sort_by_key(|(_, one)| one.signer);
        Some(Certificate { partition, signers })
    }

    /// Prepares in one partition, and shows it votes that nobody gave.
    async fn forge(&mut self) {
        let parts = self.parts();
        let Some(intent) = self.intent(&parts, false).await else { return };
        self.prepare(&intent, &parts[0]).await;
        let (transaction, commit) = (intent.id(), self.random.percent(50));
        let mut votes = Vec::new();
        for (partition, _) in &parts[1..] {
            let statement = Statement::Vote { transaction, commit };
            let Some(vote) = self.forged(*partition, &statement) else { return };
            votes.push(vote);
        }
        if self.random.percent(50) {
            let finish = PartitionCommand::Finish { transaction, commit, votes };
            self.ask(parts[0].0, &finish).await;
        } else {
            // The first one is to decide, by what the others never said.
            self.prepare_last(&intent, &parts[0], votes).await;
        }
        self.start_anew();
    }

    /// Votes on another transaction, of another group, or too few of them.
    async fn replay(&mut self) {
        let parts = self.parts();
        let Some(intent) = self.intent(&parts, false).await else { return };
        let mut votes = Vec::new();
        for part in &parts {
            let reply = self.prepare(&intent, part).await;
            votes.extend(reply.and_then(|(_, proof)| proof));
        }
        let (transaction, at) = (intent.id(), parts[0].0);
        let others: Vec<Certificate> =
            votes.iter().filter(|vote| vote.partition != at).cloned().collect();
        let mut false_one = true;
        let votes = match self.random.below(5) {
            0 => self.seen.clone().into_iter().take(others.len()).collect(),
            1 => {
                let stranger = PartitionId(self.partition().0);
                others.into_iter().map(|vote| Certificate { partition: stranger, ..vote }).collect()
            }
            // Genuine ones, and none of some, or its own.
            2 => {
                false_one = false;
                Vec::new()
            }
            3 => {
                false_one = false;
                votes
            }
            _ => {
                let backwards = |mut vote: Certificate| {
                    vote.signers.reverse();
                    vote
                };
                others.into_iter().map(backwards).collect()
            }
        };
        if self.random.percent(30) {
            self.prepare_last(&intent, &parts[0], votes).await;
        } else {
            let commit = self.random.percent(70);
            self.ask(at, &PartitionCommand::Finish { transaction, commit, votes }).await;
        }
        if false_one {
            self.start_anew();
        }
    }

    /// Identifiers of nothing.
    async fn invent(&mut self) {
        let partition = self.partition();
        let transaction = TransactionId(Digest(self.random.bytes32()));
        let finish = PartitionCommand::Finish { transaction, commit: true, votes: Vec::new() };
        self.ask(partition, &finish).await;
        self.ask(partition, &PartitionCommand::Expire { transaction }).await;
        let parts = self.parts();
        let Some(mut intent) = self.intent(&parts, false).await else { return };
        intent.client = perdura_protocol::PublicKey(self.random.bytes32());
        let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
        self.ask(parts[0].0, &resolve).await;
        let statement = Statement::Expired { transaction: intent.id() };
        if let Some(expired) = self.forged(parts[1].0, &statement) {
            let resolve = PartitionCommand::Resolve { intent, expired: Some(expired) };
            self.ask(parts[0].0, &resolve).await;
            self.start_anew();
        }
    }

    /// Has a vote on what comes later.
    async fn resolve_first(&mut self) {
        let parts = self.parts();
        let Some(intent) = self.intent(&parts, false).await else { return };
        let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
        self.ask(parts[0].0, &resolve).await;
        for part in &parts {
            self.prepare(&intent, part).await;
        }
        if self.random.percent(50) {
            self.ask(parts[0].0, &resolve).await;
        }
    }

    async fn prepare_below_fence(&mut self) {
        let parts = self.parts();
        let Some(intent) = self.intent(&parts, false).await else { return };
        let Some(first) = intent.participants.first() else { return };
        let (at, session) = (first.partition, intent.session(first));
        let below = intent.counter + 1;
        if self.random.percent(50) {
            self.prepare(&intent, &parts[0]).await;
        }
        self.ask(at, &PartitionCommand::Fence { session, below }).await;
        for part in &parts {
            self.prepare(&intent, part).await;
        }
    }

    /// Two transactions under one number, and perhaps the votes on one for the other.
    async fn use_counter_twice(&mut self) {
        let (parts, others) = (self.parts(), self.parts());
        let Some(intent) = self.intent(&parts, false).await else { return };
        self.counter -= 1;
        let Some(other) = self.intent(&others, false).await else { return };
        for part in &parts {
            self.prepare(&intent, part).await;
        }
        for part in &others {
            self.prepare(&other, part).await;
        }
    }

    /// What is pending of others.
    async fn pending(&mut self, partition: PartitionId) -> Option<Intent> {
        let (reply, _) = self.ask(partition, &PartitionCommand::Pending { after: None }).await?;
        let PartitionReply::Pending { transactions, .. } = reply else { return None };
        let index = self.random.below(transactions.len().max(1) as u64) as usize;
        transactions.get(index).map(|waiting| waiting.intent.clone())
    }

    /// Would end what others are about, and may where all have voted.
    async fn meddle(&mut self) {
        let partition = self.partition();
        let Some(intent) = self.pending(partition).await else { return };
        let others: Vec<PartitionId> = intent.others(partition).map(|one| one.partition).collect();
        let Some(other) = others.first().copied() else { return };
        let (transaction, statement) =
            (intent.id(), Statement::Expired { transaction: intent.id() });
        match self.random.below(4) {
            0 => {
                let resolve = PartitionCommand::Resolve { intent, expired: None };
                self.ask(other, &resolve).await;
            }
            1 => {
                let Some(expired) = self.forged(partition, &statement) else { return };
                let resolve = PartitionCommand::Resolve { intent, expired: Some(expired) };
                self.ask(other, &resolve).await;
                self.start_anew();
            }
            2 => {
                let commit = intent.read_only;
                let finish = PartitionCommand::Finish { transaction, commit, votes: Vec::new() };
                self.ask(partition, &finish).await;
            }
            _ => {
                let deadline_ms = self.way.now_ms() + TIMEOUT_MS;
                self.client.resolve(&intent, deadline_ms).await;
            }
        }
    }

    /// Fences and forgets what is others'.
    async fn fence_others(&mut self) {
        let partition = self.partition();
        let Some(intent) = self.pending(partition).await else { return };
        let Some(one) = intent.participant(partition) else { return };
        let session: SessionId = intent.session(one);
        let fence = PartitionCommand::Fence { session, below: u64::MAX };
        let fenced = self.ask(partition, &fence).await;
        let fences = match fenced {
            Some((PartitionReply::Fenced { below, now: signed, .. }, Some(proof)))
                if self.random.percent(50) =>
            {
                vec![Fence { proof, nonce: one.nonce, below, signed }]
            }
            _ => Vec::new(),
        };
        self.ask(partition, &PartitionCommand::Forget { session, fences }).await;
    }

    /// Shows one partition what another one signs now.
    async fn introduce(&mut self) {
        let (one, other) = (self.partition(), self.partition());
        let deadline_ms = self.way.now_ms() + TIMEOUT_MS;
        let Ok(nonce) = self.way.session(one, deadline_ms).await else { return };
        let session = SessionId { client: self.way.client, nonce };
        let question = PartitionCommand::Fence { session, below: 0 };
        let Some((PartitionReply::Fenced { below, now: signed, .. }, Some(proof))) =
            self.ask(one, &question).await
        else {
            return;
        };
        let fences = vec![Fence { proof, nonce, below, signed }];
        self.show(other, PartitionCommand::Forget { session, fences }).await;
    }

    async fn show(&mut self, partition: PartitionId, command: PartitionCommand) {
        self.ask(partition, &command).await;
        self.shown.push((partition, command));
        if self.shown.len() > 16 {
            let oldest = self.random.below(16) as usize;
            self.shown.remove(oldest);
        }
    }

    /// Words that are old, again and again: they are genuine, and show nothing any more.
    async fn show_again(&mut self) {
        for _ in 0..4 {
            if self.shown.is_empty() {
                return;
            }
            let (partition, command) = self.random.pick(&self.shown[..]).clone();
            self.ask(partition, &command).await;
            self.way.sleep(900).await;
        }
    }

    /// Has the last partition decide, and leaves it pending in the others.
    async fn decide_and_leave(&mut self, intent: &Intent, parts: &[Part]) {
        let Some((last, first)) = parts.split_last() else { return };
        let mut votes = Vec::new();
        for part in first {
            let Some((_, Some(proof))) = self.prepare(intent, part).await else { return };
            votes.push(proof);
        }
        let (intent, operations) = (intent.clone(), last.1.clone());
        self.show(last.0, PartitionCommand::PrepareLast { intent, operations, votes }).await;
    }

    /// Ends a transaction in one partition, as it may, and leaves it in the others.
    async fn end_half(&mut self) {
        let parts = self.parts();
        let Some(intent) = self.intent(&parts, false).await else { return };
        if self.random.percent(40) {
            self.decide_and_leave(&intent, &parts).await;
            return;
        }
        let mut votes = Vec::new();
        let mut commit = true;
        for part in &parts {
            let Some((reply, Some(proof))) = self.prepare(&intent, part).await else { return };
            let voted = PartitionReply::statement(&reply.to_bytes());
            commit &= matches!(voted, Some(Statement::Vote { commit: true, .. }));
            votes.push(proof);
        }
        if commit {
            let (transaction, at) = (intent.id(), parts[0].0);
            votes.retain(|vote| vote.partition != at);
            self.ask(at, &PartitionCommand::Finish { transaction, commit, votes }).await;
            if let Some(one) = intent.participant(at).filter(|_| self.random.percent(60)) {
                let session = intent.session(one);
                let fence = PartitionCommand::Fence { session, below: self.counter + 1 };
                self.ask(at, &fence).await;
                self.ask(at, &PartitionCommand::Forget { session, fences: Vec::new() }).await;
            }
        }
    }
}
