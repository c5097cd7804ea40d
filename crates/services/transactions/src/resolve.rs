//! Ending the transactions of others, who may be dead (Augustus, EuroSys 2013, section 3.4, case a.2).

use crate::waiting::SILENCE_MS;
use crate::{Groups, Transactions};
use futures_util::future::join_all;
use perdura_client::{CallError, Indeterminacy, Refusal};
use perdura_protocol::{PartitionId, RefusalReason};
use perdura_store::partition::{
    Certificate, Intent, PartitionCommand, PartitionReply, TransactionId, Vote,
};

/// Whether a part was refused since it was prepared in another session than the one that it names.
pub(crate) fn is_of_session(error: &CallError) -> bool {
    let CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(why)), .. } = error
    else {
        return false;
    };
    why.contains("in the session that it names")
}

/// Whether nothing was heard.
fn is_silence(error: &CallError) -> bool {
    match error {
        CallError::Refused { reason, .. } => {
            matches!(reason, Refusal::DeadlinePassed | Refusal::Unreachable | Refusal::KeptOut)
        }
        CallError::Indeterminate { reason, .. } => {
            matches!(reason, Indeterminacy::DeadlinePassed)
        }
    }
}

/// What became of an attempt to end a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// It is over, wherever it was pending.
    Ended,
    /// This client is about it already.
    Begun,
    /// Not now: its client has some time left, or a participant does not answer.
    Failed,
}

/// A transaction that this client ends for another one.
struct Rescuing<'a, G> {
    of: &'a Transactions<G>,
    transaction: TransactionId,
}

impl<G> Drop for Rescuing<'_, G> {
    fn drop(&mut self) {
        self.of.inner.state().resolving.remove(&self.transaction);
    }
}

impl<G: Groups> Transactions<G> {
    /// Ends a transaction as the votes have it, where all have voted; else where its client has had time enough.
    pub async fn resolve(&self, intent: &Intent, deadline_ms: u64) -> Resolution {
        let transaction = intent.id();
        if !self.inner.state().resolving.insert(transaction) {
            return Resolution::Begun;
        }
        let resolving = Rescuing { of: self, transaction };
        let ended = self.end_for_others(intent, deadline_ms).await;
        drop(resolving);
        if !ended {
            return Resolution::Failed;
        }
        let mut state = self.inner.state();
        state.silent.note(transaction, None);
        state.counters.ended_for_others += 1;
        Resolution::Ended
    }

    async fn end_for_others(&self, intent: &Intent, deadline_ms: u64) -> bool {
        let all: Vec<PartitionId> = intent.participants.iter().map(|one| one.partition).collect();
        // Whoever is down is not waited for to the end: one vote to abort is enough, and there has to be time left to show it.
        let half_ms = |now_ms: u64| now_ms + deadline_ms.saturating_sub(now_ms) / 2;
        let until_ms = half_ms(self.groups().now_ms());
        let mut votes = self.votes(intent, &all, None, until_ms).await;
        let silent: Vec<PartitionId> =
            all.iter().copied().filter(|one| !votes.iter().any(|vote| vote.of == *one)).collect();
        let is_aborted = votes.iter().any(|vote| !vote.commit);
        if !silent.is_empty() && !is_aborted {
            // Where it is not known it is only voted on with the word of one that has had it for long.
            let Some(expired) = self.expired(intent, &votes, deadline_ms).await else {
                return false;
            };
            let until_ms = half_ms(self.groups().now_ms());
            votes.extend(self.votes(intent, &silent, Some(&expired), until_ms).await);
        }
        let commit = votes.len() == all.len() && votes.iter().all(|vote| vote.commit);
        let proofs: Vec<Certificate> = votes
            .iter()
            .filter(|vote| vote.commit == commit)
            .map(|vote| vote.proof.clone())
            .collect();
        if proofs.is_empty() {
            return false;
        }
        let told = votes.iter().filter(|vote| vote.commit).map(|vote| {
            let others = proofs.iter().filter(|proof| proof.partition != vote.of).cloned();
            let shown = others.take(if commit { all.len() } else { 1 }).collect();
            self.tell(intent, vote.of, commit, shown, deadline_ms)
        });
        join_all(told).await.into_iter().all(|ended| ended)
    }

    /// Where it is not known who the members of another group are by now, it is told, if it is known in that group itself.
    pub(crate) async fn teach(
        &self,
        recipient: PartitionId,
        group: PartitionId,
        configuration: u64,
        deadline_ms: u64,
    ) {
        let roster = PartitionCommand::Roster { partition: group };
        if let Ok((PartitionReply::Roster { newest: Some(newest), .. }, _)) =
            self.ask(group, &roster, deadline_ms).await
            && newest.members.configuration > configuration
        {
            let known = self.ask(recipient, &PartitionCommand::Members(newest), deadline_ms).await;
            drop(known);
        }
    }

    /// The votes of these participants, as far as they give any.
    async fn votes(
        &self,
        intent: &Intent,
        of: &[PartitionId],
        expired: Option<&Certificate>,
        deadline_ms: u64,
    ) -> Vec<Known> {
        let resolve =
            PartitionCommand::Resolve { intent: intent.clone(), expired: expired.cloned() };
        let ask = |partition: &PartitionId| self.ask(*partition, &resolve, deadline_ms);
        let asked_ms = self.groups().now_ms();
        let answers = join_all(of.iter().map(ask)).await;
        for (of, answer) in of.iter().zip(&answers) {
            // With its next try.
            if let Ok((PartitionReply::Outdated { partition, configuration }, _)) = answer {
                self.teach(*of, *partition, *configuration, deadline_ms).await;
            }
        }
        // Where there was time for an answer, and another one gave it.
        if deadline_ms >= asked_ms + SILENCE_MS && answers.iter().any(Result::is_ok) {
            let mut all = of.iter().zip(&answers);
            let silent = all.find(|(_, answer)| matches!(answer, Err(error) if is_silence(error)));
            let silent = silent.map(|(partition, _)| *partition);
            self.inner.state().silent.note(intent.id(), silent);
        }
        let known = of.iter().zip(answers).filter_map(|(of, answer)| match answer {
            Ok((PartitionReply::Voted { vote, .. }, Some(proof))) => {
                Some(Known { of: *of, commit: vote == Vote::Commit, proof })
            }
            _ => None,
        });
        known.collect()
    }

    /// The word of one that has had it pending for long.
    async fn expired(
        &self,
        intent: &Intent,
        votes: &[Known],
        deadline_ms: u64,
    ) -> Option<Certificate> {
        let expire = PartitionCommand::Expire { transaction: intent.id() };
        for vote in votes.iter().filter(|vote| vote.commit) {
            match self.ask(vote.of, &expire, deadline_ms).await {
                Ok((PartitionReply::Expired { .. }, proof)) => return proof,
                Ok((PartitionReply::Young { left_ms, .. }, _)) => {
                    let now_ms = self.groups().now_ms();
                    if now_ms + left_ms >= deadline_ms {
                        return None;
                    }
                    self.groups().sleep(left_ms).await;
                    if let Ok((PartitionReply::Expired { .. }, proof)) =
                        self.ask(vote.of, &expire, deadline_ms).await
                    {
                        return proof;
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// A vote, and the proof of it.
struct Known {
    of: PartitionId,
    commit: bool,
    proof: Certificate,
}
