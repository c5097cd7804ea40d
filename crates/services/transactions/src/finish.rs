//! Telling participants how a transaction ended.

use crate::{Groups, Transactions};
use futures_util::future::join_all;
use perdura_protocol::PartitionId;
use perdura_store::partition::{Certificate, Intent, PartitionCommand, PartitionReply};

/// How often the votes are asked for anew of a group that has other members now.
pub(crate) const SIGNED_AGAIN: usize = 4;

/// Time to sign anew, milliseconds.
const SIGNING_MS: u64 = 3_000;

impl<G: Groups> Transactions<G> {
    /// Tells these participants.
    pub(crate) async fn tell_all(
        &self,
        intent: &Intent,
        commit: bool,
        told: Vec<(PartitionId, Vec<Certificate>)>,
        end_ms: u64,
    ) {
        let tell = told
            .into_iter()
            .map(|(partition, votes)| self.tell(intent, partition, commit, votes, end_ms));
        join_all(tell).await;
    }

    /// Shows a participant the votes of others; whether it ended the transaction.
    pub(crate) async fn tell(
        &self,
        intent: &Intent,
        partition: PartitionId,
        commit: bool,
        mut votes: Vec<Certificate>,
        end_ms: u64,
    ) -> bool {
        let transaction = intent.id();
        for _ in 0..SIGNED_AGAIN {
            let finish = PartitionCommand::Finish { transaction, commit, votes: votes.clone() };
            match self.ask(partition, &finish, end_ms).await {
                Ok((PartitionReply::Finished { .. }, _)) => return true,
                Ok((PartitionReply::Outdated { partition: changed, configuration }, _)) => {
                    let of = (changed, configuration);
                    if !self.sign_again(intent, partition, of, &mut votes).await {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    /// A participant does not take the votes of a group that has other members now, or knows older ones than those who signed: it is told of
    /// them, and they sign anew.
    pub(crate) async fn sign_again(
        &self,
        intent: &Intent,
        recipient: PartitionId,
        (changed, configuration): (PartitionId, u64),
        votes: &mut [Certificate],
    ) -> bool {
        let end_ms = self.groups().now_ms().saturating_add(SIGNING_MS);
        self.teach(recipient, changed, configuration, end_ms).await;
        let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
        let Ok((PartitionReply::Voted { .. }, Some(proof))) =
            self.ask(changed, &resolve, end_ms).await
        else {
            return false;
        };
        let of_changed = votes.iter_mut().filter(|vote| vote.partition == changed);
        of_changed.for_each(|vote| *vote = proof.clone());
        true
    }
}
