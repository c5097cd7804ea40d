//! One try of a transaction.

use crate::split::Part;
use crate::{Answer, Cause, Groups, Outcome, Split, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::Mode;
use perdura_client::{CallError, Indeterminacy};
use perdura_protocol::partitions::MAP_VERSION;
use perdura_protocol::{Decode, Encode, PartitionId};
use perdura_store::partition::{
    Blocker, Certificate, Intent, Participant, PartitionCommand, PartitionReply, Reason,
    TransactionId, Vote, digest_of_part, limits,
};
use perdura_store::{OperationResult, StoreCommand, StoreReply, Transaction};

/// What was begun is ended for so long behind the deadline, milliseconds.
const GRACE_MS: u64 = 3_000;

/// How often the votes are asked for anew of a group that has other members now.
const SIGNED_AGAIN: usize = 3;

/// What a try came to.
pub(crate) enum Attempt {
    Done(Outcome),
    Error(TransactionError),
    /// Somebody was in the way. Nothing happened.
    Conflict(Blocker),
    /// A session that it named had ended. Nothing happened.
    Stale(CallError),
    /// This partition does not answer another one, by what has been pending on it. Nothing happened.
    Unreachable {
        of: PartitionId,
        partition: PartitionId,
        oldest: Blocker,
    },
}

/// A participant's vote, as far as it is known.
enum Heard {
    Commit {
        results: Option<Vec<OperationResult>>,
        proof: Option<Certificate>,
    },
    Abort {
        reason: Reason,
        proof: Option<Certificate>,
    },
    /// No vote, and why.
    Nothing(CallError),
}

impl Split {
    /// In how many partitions it may have parts.
    pub(crate) fn most_participants(&self) -> usize {
        if self.is_read() { limits::READ_PARTICIPANTS } else { limits::UPDATE_PARTICIPANTS }
    }
}

/// An answer that fits no question.
pub(crate) fn nonsense() -> CallError {
    CallError::Indeterminate { reason: Indeterminacy::Nonsense, detail: String::new() }
}

/// A number that is in use.
struct Running<'a, G> {
    of: &'a Transactions<G>,
    counter: u64,
}

impl<G> Drop for Running<'_, G> {
    fn drop(&mut self) {
        self.of.inner.state().running.remove(&self.counter);
    }
}

impl<G: Groups> Transactions<G> {
    fn begin(&self) -> Running<'_, G> {
        let mut state = self.inner.state();
        state.counter += 1;
        state.counters.global += 1;
        let counter = state.counter;
        state.running.insert(counter);
        Running { of: self, counter }
    }

    /// In one partition, in one round.
    pub(crate) async fn local(&self, part: &Part, fast: bool, deadline_ms: u64) -> Attempt {
        let transaction = Transaction { operations: part.operations.clone() };
        let mode = if fast { Mode::Fast } else { Mode::Ordered };
        let command = StoreCommand::Transaction(transaction).to_bytes();
        let answer = match self.groups().call(part.partition, command, mode, deadline_ms).await {
            Ok(answer) => answer,
            Err(error) => return Attempt::Error(error.into()),
        };
        if PartitionReply::is_one(&answer.reply) {
            return match PartitionReply::from_bytes(answer.reply) {
                Ok(PartitionReply::Blocked(blocker)) => Attempt::Conflict(blocker),
                _ => Attempt::Error(TransactionError::Nonsense),
            };
        }
        let Ok(StoreReply::Transaction(result)) = StoreReply::from_bytes(answer.reply) else {
            return Attempt::Error(TransactionError::Nonsense);
        };
        match result.failed {
            Some(operation) => Attempt::Done(Outcome::Failed { operation: operation as usize }),
            None => Attempt::Done(Outcome::Committed { results: Some(result.results) }),
        }
    }

    /// In several partitions: all at once, or one after the other.
    pub(crate) async fn global(&self, split: &Split, in_turn: bool, deadline_ms: u64) -> Attempt {
        let parts = &split.parts;
        let sessions = parts.iter().map(|part| self.groups().session(part.partition, deadline_ms));
        let mut participants = Vec::with_capacity(parts.len());
        for (part, nonce) in parts.iter().zip(join_all(sessions).await) {
            match nonce {
                Ok(nonce) => participants.push(Participant {
                    partition: part.partition,
                    nonce,
                    part: digest_of_part(&part.operations),
                }),
                Err(error) => return Attempt::Error(error.into()),
            }
        }
        let running = self.begin();
        let intent = Intent {
            cluster: self.groups().map().cluster,
            map: MAP_VERSION,
            client: self.groups().client(),
            counter: running.counter,
            read_only: split.is_read(),
            participants,
        };
        let mut heard: Vec<Heard> = Vec::with_capacity(parts.len());
        if in_turn {
            for part in parts {
                let vote = self.prepare(&intent, part, deadline_ms).await;
                let go_on = matches!(vote, Heard::Commit { .. });
                heard.push(vote);
                if !go_on {
                    break;
                }
            }
        } else {
            let votes = parts.iter().map(|part| self.prepare(&intent, part, deadline_ms));
            heard = join_all(votes).await;
        }
        let end_ms = deadline_ms.max(self.groups().now_ms()).saturating_add(GRACE_MS);
        let is_known = |vote: &Heard| !matches!(vote, Heard::Nothing(_));
        if !intent.read_only && heard.iter().any(is_known) {
            self.settle(&intent, &mut heard, end_ms).await;
        }
        let attempt = self.conclude(split, &intent, heard, end_ms).await;
        drop(running);
        self.note_ended(intent);
        attempt
    }

    async fn prepare(&self, intent: &Intent, part: &Part, deadline_ms: u64) -> Heard {
        let (intent, operations) = (intent.clone(), part.operations.clone());
        let transaction = intent.id();
        let command = PartitionCommand::Prepare { intent, operations };
        self.vote(part.partition, transaction, &command, deadline_ms).await
    }

    /// What a command comes to that asks for a vote.
    async fn vote(
        &self,
        partition: PartitionId,
        transaction: TransactionId,
        command: &PartitionCommand,
        deadline_ms: u64,
    ) -> Heard {
        let called = self.ask(partition, command, deadline_ms).await;
        match called {
            Ok((PartitionReply::Voted { transaction: of, vote, results, .. }, proof))
                if of == transaction =>
            {
                match vote {
                    Vote::Commit => Heard::Commit { results, proof },
                    Vote::Abort(reason) => Heard::Abort { reason, proof },
                }
            }
            Ok(_) => Heard::Nothing(nonsense()),
            Err(error) => Heard::Nothing(error),
        }
    }

    /// A partition's answer to a command of its own, with the proof of what it states.
    ///
    /// # Errors
    /// As [`Groups::call`].
    pub async fn ask(
        &self,
        partition: PartitionId,
        command: &PartitionCommand,
        deadline_ms: u64,
    ) -> Result<(PartitionReply, Option<Certificate>), CallError> {
        let mode = if command.is_read() { Mode::Fast } else { Mode::Ordered };
        let call = self.groups().call(partition, command.to_bytes(), mode, deadline_ms);
        let Answer { reply, proof } = call.await?;
        match PartitionReply::from_bytes(reply) {
            Ok(reply) => Ok((reply, proof)),
            Err(_) => Err(nonsense()),
        }
    }

    /// Where nothing was heard the vote may have been given, and is given now if it was not.
    async fn settle(&self, intent: &Intent, heard: &mut [Heard], end_ms: u64) {
        let silent = heard.iter_mut().zip(&intent.participants);
        let asked = silent.filter_map(|(vote, one)| match vote {
            Heard::Nothing(_) => Some(async move {
                let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
                let resolved = self.vote(one.partition, intent.id(), &resolve, end_ms).await;
                if !matches!(resolved, Heard::Nothing(_)) {
                    *vote = resolved;
                }
            }),
            _ => None,
        });
        join_all(asked).await;
    }

    /// Ends it where it was prepared, as the votes have it.
    async fn conclude(
        &self,
        split: &Split,
        intent: &Intent,
        mut heard: Vec<Heard>,
        end_ms: u64,
    ) -> Attempt {
        let all = heard.len() == split.parts.len();
        let commit = all && heard.iter().all(|vote| matches!(vote, Heard::Commit { .. }));
        self.finish(intent, commit, &heard, end_ms).await;
        if commit {
            let results = heard.into_iter().map(|vote| match vote {
                Heard::Commit { results, .. } => results,
                _ => None,
            });
            let results: Option<Vec<_>> = results.collect();
            return match results.map(|results| split.join(results)) {
                Some(None) => Attempt::Error(TransactionError::Nonsense),
                joined => Attempt::Done(Outcome::Committed { results: joined.flatten() }),
            };
        }
        // What failed for good comes before what somebody was in the way of.
        let is_conflict =
            |vote: &Heard| matches!(vote, Heard::Abort { reason: Reason::Conflict(_), .. });
        let is_abort = |vote: &Heard| matches!(vote, Heard::Abort { .. });
        let why = heard
            .iter()
            .position(|vote| is_abort(vote) && !is_conflict(vote))
            .or_else(|| heard.iter().position(is_conflict));
        if let Some(index) = why {
            let partition = split.parts[index].partition;
            let Heard::Abort { reason, .. } = heard.swap_remove(index) else {
                return Attempt::Error(TransactionError::Nonsense);
            };
            return self.why(split, partition, reason);
        }
        // Some vote is not known. Where the part is certain not to be there, and not to come, it is aborted in the end.
        let certain = heard
            .iter()
            .position(|vote| matches!(vote, Heard::Nothing(error) if error.is_refusal()));
        let index =
            certain.or_else(|| heard.iter().position(|vote| matches!(vote, Heard::Nothing(_))));
        let error = match index.map(|index| heard.swap_remove(index)) {
            Some(Heard::Nothing(error)) => error,
            _ => nonsense(),
        };
        if crate::rescue::is_of_session(&error) {
            Attempt::Stale(error)
        } else {
            Attempt::Error(error.into())
        }
    }

    fn why(&self, split: &Split, partition: PartitionId, reason: Reason) -> Attempt {
        match &reason {
            Reason::Unreachable { .. } => self.inner.state().counters.unreachable += 1,
            Reason::Cap { .. } | Reason::Room => self.inner.state().counters.unaffordable += 1,
            _ => {}
        }
        let cause = match reason {
            Reason::Failed { operation } => {
                let operation = split.origin(partition, operation);
                return Attempt::Done(Outcome::Failed { operation });
            }
            Reason::Conflict(blocker) => return Attempt::Conflict(blocker),
            Reason::Unreachable { partition: silent, oldest } => {
                return Attempt::Unreachable { of: partition, partition: silent, oldest };
            }
            // Somebody ended it for us, or the session did: it is tried again.
            Reason::Resolved | Reason::Fenced => return Attempt::Conflict(Blocker::Other),
            Reason::Cap { pending } => Cause::Cap { pending },
            Reason::Room => Cause::Room,
            Reason::TooMuch => Cause::TooMuch,
            Reason::Map => Cause::Map,
            Reason::Writes => Cause::Writes,
        };
        Attempt::Error(TransactionError::Refused { partition, cause })
    }

    /// Tells all that may hold something how it ended. Who does not answer is told by whoever meets its locks.
    async fn finish(&self, intent: &Intent, commit: bool, heard: &[Heard], end_ms: u64) {
        let told = heard.iter().zip(&intent.participants).filter(|(vote, _)| match vote {
            Heard::Commit { .. } => true,
            Heard::Abort { .. } => false,
            // It may have been prepared.
            Heard::Nothing(error) => !error.is_refusal(),
        });
        let tell = told.map(|(_, one)| {
            let proofs = heard.iter().zip(&intent.participants).filter_map(|(vote, of)| {
                let proof = match vote {
                    Heard::Commit { proof, .. } if commit => proof.as_ref(),
                    Heard::Abort { proof, .. } if !commit => proof.as_ref(),
                    _ => None,
                };
                proof.filter(|_| of.partition != one.partition).cloned()
            });
            let mut votes: Vec<Certificate> = proofs.collect();
            // One is enough.
            votes.truncate(if commit { votes.len() } else { 1 });
            async move {
                // Without a vote there is nothing to show: others end it when it has expired.
                if intent.read_only || !votes.is_empty() {
                    self.tell(intent, one.partition, commit, votes, end_ms).await;
                }
            }
        });
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
        for _ in 0..=SIGNED_AGAIN {
            let finish = PartitionCommand::Finish { transaction, commit, votes: votes.clone() };
            match self.ask(partition, &finish, end_ms).await {
                Ok((PartitionReply::Finished { .. }, _)) => return true,
                Ok((PartitionReply::Outdated { partition: changed, configuration }, _)) => {
                    self.teach(partition, changed, configuration, end_ms).await;
                    let resolve =
                        PartitionCommand::Resolve { intent: intent.clone(), expired: None };
                    let Ok((_, Some(proof))) = self.ask(changed, &resolve, end_ms).await else {
                        return false;
                    };
                    votes
                        .iter_mut()
                        .filter(|vote| vote.partition == changed)
                        .for_each(|vote| *vote = proof.clone());
                }
                _ => return false,
            }
        }
        false
    }
}
