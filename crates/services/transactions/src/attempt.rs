//! One try of a transaction.

use crate::finish::SIGNED_AGAIN;
use crate::forget::{SessionAt, sessions_at};
use crate::hot::Touches;
use crate::resolve::is_of_session;
use crate::split::Part;
use crate::waiting::SILENCE_MS;
use crate::{Answer, Cause, Groups, Outcome, Split, TransactionError, Transactions};
use futures_util::future::join_all;
use perdura_client::Mode;
use perdura_client::{CallError, Indeterminacy, Refusal};
use perdura_protocol::partitions::MAP_VERSION;
use perdura_protocol::{Decode, Encode, PartitionId, RefusalReason, Slot};
use perdura_store::partition::{
    Blocker, Certificate, Intent, Participant, PartitionCommand, PartitionReply, Reason,
    TransactionId, Vote, digest_of_part, limits,
};
use perdura_store::{OperationResult, StoreCommand, StoreReply, Transaction, TransactionResult};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

/// What was begun is ended for so long behind the deadline, milliseconds.
const GRACE_MS: u64 = 3_000;

/// What a try came to.
pub(crate) enum Attempt {
    Done(Outcome),
    Error(TransactionError),
    /// Somebody was in the way in these partitions, as far as that is known. Nothing happened.
    Conflict {
        blocker: Blocker,
        at: Vec<PartitionId>,
    },
    /// A session that it named had ended. Nothing happened.
    Stale(CallError),
    /// This partition does not answer another one, by what has been pending on it. Nothing happened.
    Unreachable {
        of: PartitionId,
        partition: PartitionId,
        oldest: Blocker,
    },
}

/// What a partition gave that carried out a part by itself.
pub(crate) enum LocalAnswer {
    /// What it came to, and behind which slot that holds if it was not ordered.
    Result(TransactionResult, Option<Slot>),
    /// Nothing: somebody holds some of it.
    Blocked(Blocker),
    UnexpectedReply,
}

/// A participant's vote, as far as it is known.
enum KnownVote {
    Commit {
        results: Option<Vec<OperationResult>>,
        proof: Option<Certificate>,
    },
    Abort {
        reason: Reason,
        proof: Option<Certificate>,
        /// Why its part was refused there, without a vote, before it was asked to end the transaction.
        refusal: Option<CallError>,
    },
    /// No vote, and why.
    Nothing(CallError),
    /// It was not asked.
    Unasked,
}

/// Whether the partition's store refused a command for good.
fn is_by_service(error: &CallError) -> bool {
    let CallError::Refused { reason, .. } = error else { return false };
    matches!(reason, Refusal::Ordered(RefusalReason::Service(_)))
}

/// What became of asking for votes.
struct Votes {
    /// By participant.
    heard: Vec<KnownVote>,
    /// Who decided, and so has ended it.
    decided: Option<usize>,
}

/// The vote in a participant's answer.
fn heard_in(
    of: TransactionId,
    called: Result<(PartitionReply, Option<Certificate>), CallError>,
) -> KnownVote {
    match called {
        Ok((PartitionReply::Voted { transaction, vote, results, .. }, proof))
            if of == transaction =>
        {
            match vote {
                Vote::Commit => KnownVote::Commit { results, proof },
                Vote::Abort(reason) => KnownVote::Abort { reason, proof, refusal: None },
            }
        }
        Ok(_) => KnownVote::Nothing(unexpected_reply()),
        Err(error) => KnownVote::Nothing(error),
    }
}

/// Of all operations that are known to fail that which is said to.
fn lowest_failure(split: &Split, heard: &[KnownVote]) -> Option<usize> {
    let failures = split.parts.iter().zip(heard).filter_map(|(part, vote)| match vote {
        KnownVote::Abort { reason: Reason::Failed { operation }, .. } => {
            Some(split.origin(part.partition, *operation))
        }
        _ => None,
    });
    failures.min_by_key(|origin| split.rank(*origin))
}

/// Whom to tell how it ended, with what.
type Told = Vec<(PartitionId, Vec<Certificate>)>;

/// In which order partitions are asked for their votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// All but one at once.
    AtOnce,
    /// The same, where it has its place in the first one: that one is not the one that decides, for the place is for locks that are kept.
    Placed,
    /// One after the other, so that who is in others' way in one of them is not in their way in those behind it.
    OneByOne,
}

/// Who holds something, and what shows him how it ended: nothing where it only reads. Behind them those of whom nothing was heard, who may.
/// Who does not answer is told by whoever meets its locks.
fn to_be_told(
    intent: &Intent,
    commit: bool,
    heard: &[KnownVote],
    decided: Option<usize>,
) -> (Told, Told) {
    let holds = |(index, vote): (usize, &KnownVote)| {
        matches!(vote, KnownVote::Commit { .. }) && decided != Some(index)
    };
    let may_hold = |(_, vote): (usize, &KnownVote)| matches!(vote, KnownVote::Nothing(error) if !error.is_refusal());
    (shown_to(intent, commit, heard, holds), shown_to(intent, commit, heard, may_hold))
}

fn shown_to(
    intent: &Intent,
    commit: bool,
    heard: &[KnownVote],
    whom: impl Fn((usize, &KnownVote)) -> bool,
) -> Told {
    let all = || heard.iter().zip(&intent.participants).enumerate();
    let told = all().filter(|(index, (vote, _))| whom((*index, *vote)));
    let shown = told.map(|(_, (_, one))| {
        let proofs = all().filter_map(|(_, (vote, of))| {
            let proof = match vote {
                KnownVote::Commit { proof, .. } if commit => proof.as_ref(),
                KnownVote::Abort { proof, .. } if !commit => proof.as_ref(),
                _ => None,
            };
            proof.filter(|_| of.partition != one.partition).cloned()
        });
        let mut votes: Vec<Certificate> = proofs.collect();
        // One is enough.
        votes.truncate(if commit { votes.len() } else { 1 });
        (one.partition, votes)
    });
    // Without a vote there is nothing to show: others end it when it has expired.
    shown.filter(|(_, votes)| intent.read_only || !votes.is_empty()).collect()
}

impl Split {
    /// In how many partitions it may have parts.
    pub(crate) fn most_participants(&self) -> usize {
        if self.is_read() { limits::READ_PARTICIPANTS } else { limits::UPDATE_PARTICIPANTS }
    }
}

/// An answer that fits no question.
pub(crate) fn unexpected_reply() -> CallError {
    CallError::Indeterminate { reason: Indeterminacy::UnexpectedReply, detail: String::new() }
}

/// A number that is in use.
struct Running<G> {
    of: Transactions<G>,
    counter: u64,
}

impl<G> Drop for Running<G> {
    fn drop(&mut self) {
        let mut state = self.of.inner.state();
        state.running.remove(&self.counter);
        state.hot.end(self.counter);
    }
}

impl<G: Groups> Transactions<G> {
    fn begin(&self, touches: &Arc<Touches>, participants: &[Participant]) -> Running<G> {
        let mut state = self.inner.state();
        state.counter += 1;
        state.counters.global += 1;
        let counter = state.counter;
        let places: Vec<SessionAt> = sessions_at(participants).collect();
        state.running.insert(counter, places.clone());
        state.hot.begin(counter, touches, places);
        Running { of: self.clone(), counter }
    }

    /// In one partition, in one round.
    pub(crate) async fn local(&self, part: &Part, fast: bool, deadline_ms: u64) -> Attempt {
        let mode = if fast { Mode::Fast } else { Mode::Ordered };
        match self.ask_for_part(part, mode, deadline_ms).await {
            Ok(LocalAnswer::Result(result, _)) => Attempt::Done(result.into()),
            Ok(LocalAnswer::Blocked(blocker)) => {
                // What is not ordered leaves no marks.
                let at = if fast { Vec::new() } else { vec![part.partition] };
                Attempt::Conflict { blocker, at }
            }
            Ok(LocalAnswer::UnexpectedReply) => Attempt::Error(TransactionError::UnexpectedReply),
            Err(error) => Attempt::Error(error.into()),
        }
    }

    /// Has a partition carry out a part by itself.
    pub(crate) async fn ask_for_part(
        &self,
        part: &Part,
        mode: Mode,
        deadline_ms: u64,
    ) -> Result<LocalAnswer, CallError> {
        let transaction = Transaction { operations: part.operations.clone() };
        let command = StoreCommand::Transaction(transaction).to_bytes();
        let call = self.groups().call(part.partition, command, mode, deadline_ms);
        let Answer { reply, slot, .. } = call.await?;
        if PartitionReply::is_one(&reply) {
            return Ok(match PartitionReply::from_bytes(reply) {
                Ok(PartitionReply::Blocked(blocker)) => LocalAnswer::Blocked(blocker),
                _ => LocalAnswer::UnexpectedReply,
            });
        }
        Ok(match StoreReply::from_bytes(reply) {
            Ok(StoreReply::Transaction(result)) => LocalAnswer::Result(result, slot),
            _ => LocalAnswer::UnexpectedReply,
        })
    }

    /// In several partitions, in this order.
    pub(crate) async fn global(
        &self,
        split: &Split,
        touches: &Arc<Touches>,
        order: Order,
        deadline_ms: u64,
    ) -> Attempt {
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
        let running = self.begin(touches, &participants);
        let intent = Intent {
            cluster: self.groups().map().cluster,
            map: MAP_VERSION,
            client: self.groups().client(),
            counter: running.counter,
            read_only: split.is_read(),
            participants,
        };
        let end_ms = deadline_ms.max(self.groups().now_ms()).saturating_add(GRACE_MS);
        let Votes { mut heard, decided } =
            self.ask_for_votes(&intent, parts, order, deadline_ms, end_ms).await;
        self.ask_for_failures(&intent, split, &mut heard, deadline_ms).await;
        self.leave_fenced_sessions(&intent, &heard).await;
        let commit = heard.iter().all(|vote| matches!(vote, KnownVote::Commit { .. }));
        let (holding, others) = to_be_told(&intent, commit, &heard, decided);
        let attempt = self.outcome(split, commit, heard);
        let left = if matches!(attempt, Attempt::Done(_)) {
            [holding, others].concat()
        } else {
            // Before it is tried again.
            self.tell_all(&intent, commit, holding, end_ms).await;
            others
        };
        let this = self.clone();
        let mut ending = Box::pin(async move {
            this.tell_all(&intent, commit, left, end_ms).await;
            drop(running);
            this.note_ended(intent);
        });
        // What is known is not held up by who else has to be told; what this client asks for next comes after that.
        if poll_fn(|context| Poll::Ready(ending.as_mut().poll(context))).await.is_pending() {
            self.groups().spawn(ending);
        }
        attempt
    }

    /// Where a partition prepares nothing more of the session that a transaction named there, the next try is to name another one.
    async fn leave_fenced_sessions(&self, intent: &Intent, heard: &[KnownVote]) {
        for (one, vote) in intent.participants.iter().zip(heard) {
            if matches!(vote, KnownVote::Abort { reason: Reason::Fenced, .. }) {
                self.groups().leave(one.partition, one.nonce).await;
            }
        }
    }

    /// Where something is changed, all but one vote first, and that one decides: it is shown their votes, and so holds its locks for no
    /// time. Which one goes round, where nobody is known to wait.
    async fn ask_for_votes(
        &self,
        intent: &Intent,
        parts: &[Part],
        order: Order,
        deadline_ms: u64,
        end_ms: u64,
    ) -> Votes {
        let last = match parts.len() {
            _ if intent.read_only => None,
            count if order == Order::AtOnce => Some((intent.counter % count as u64) as usize),
            count => Some(count - 1),
        };
        let mut heard: Vec<KnownVote> = parts.iter().map(|_| KnownVote::Unasked).collect();
        let first = parts.iter().zip(&mut heard).enumerate();
        let first = first.filter(|(index, _)| Some(*index) != last).map(|(_, one)| one);
        if order == Order::OneByOne {
            for (part, vote) in first {
                *vote = self.prepare(intent, part, deadline_ms).await;
                if !matches!(vote, KnownVote::Commit { .. }) {
                    break;
                }
            }
        } else {
            let ask = first
                .map(async |(part, vote)| *vote = self.prepare(intent, part, deadline_ms).await);
            join_all(ask).await;
        }
        let Some(last) = last else { return Votes { heard, decided: None } };
        self.settle(intent, &mut heard, None, end_ms).await;
        let others = heard.iter().enumerate().filter(|(index, _)| *index != last);
        let proof = |(_, vote): (usize, &KnownVote)| match vote {
            KnownVote::Commit { proof, .. } => proof.clone(),
            _ => None,
        };
        let Some(votes) = others.map(proof).collect::<Option<Vec<Certificate>>>() else {
            return Votes { heard, decided: None };
        };
        heard[last] = self.prepare_last(intent, &parts[last], votes, deadline_ms).await;
        self.settle(intent, &mut heard, Some(last), end_ms).await;
        let decided = matches!(heard[last], KnownVote::Commit { .. }).then_some(last);
        Votes { heard, decided }
    }

    /// Where an operation fails, those that were not asked yet are if one of theirs might be said to fail in its place.
    async fn ask_for_failures(
        &self,
        intent: &Intent,
        split: &Split,
        heard: &mut [KnownVote],
        deadline_ms: u64,
    ) {
        let Some(known) = lowest_failure(split, heard) else { return };
        // Others have locks meanwhile.
        let deadline_ms = deadline_ms.min(self.groups().now_ms() + SILENCE_MS);
        let all = split.parts.iter().zip(heard);
        let asked = all
            .filter(|(part, vote)| {
                matches!(vote, KnownVote::Unasked) && split.may_fail_before(part, known)
            })
            .map(async |(part, vote)| *vote = self.prepare(intent, part, deadline_ms).await);
        join_all(asked).await;
    }

    async fn prepare(&self, intent: &Intent, part: &Part, deadline_ms: u64) -> KnownVote {
        let (intent, operations) = (intent.clone(), part.operations.clone());
        let transaction = intent.id();
        let command = PartitionCommand::Prepare { intent, operations };
        let called = self.ask(part.partition, &command, deadline_ms).await;
        heard_in(transaction, called)
    }

    /// The vote that decides.
    async fn prepare_last(
        &self,
        intent: &Intent,
        part: &Part,
        mut votes: Vec<Certificate>,
        deadline_ms: u64,
    ) -> KnownVote {
        for _ in 0..SIGNED_AGAIN {
            let (intent_of, operations) = (intent.clone(), part.operations.clone());
            let command = PartitionCommand::PrepareLast {
                intent: intent_of,
                operations,
                votes: votes.clone(),
            };
            match self.ask(part.partition, &command, deadline_ms).await {
                Ok((PartitionReply::Outdated { partition, configuration }, _)) => {
                    let of = (partition, configuration);
                    let signed = self.sign_again(intent, part.partition, of, &mut votes);
                    if !signed.await {
                        break;
                    }
                }
                called => return heard_in(intent.id(), called),
            }
        }
        KnownVote::Nothing(unexpected_reply())
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
        let Answer { reply, proof, .. } = call.await?;
        match PartitionReply::from_bytes(reply) {
            Ok(reply) => Ok((reply, proof)),
            Err(_) => Err(unexpected_reply()),
        }
    }

    /// What each of these partitions answers to its command; they are asked at the same time, so that one that is down costs the others nothing.
    pub async fn ask_all(
        &self,
        commands: Vec<(PartitionId, PartitionCommand)>,
        deadline_ms: u64,
    ) -> Vec<(PartitionId, Result<PartitionReply, CallError>)> {
        let asked = commands.iter().map(async |(partition, command)| {
            let answer = self.ask(*partition, command, deadline_ms).await;
            (*partition, answer.map(|(reply, _)| reply))
        });
        join_all(asked).await
    }

    /// Where nothing was heard the vote may have been given, and is given now if it was not. Where no vote is known nothing is held; and one
    /// vote to abort is enough, which nobody who is down holds up.
    async fn settle(
        &self,
        intent: &Intent,
        heard: &mut [KnownVote],
        decider: Option<usize>,
        end_ms: u64,
    ) {
        let is_commit = |vote: &KnownVote| matches!(vote, KnownVote::Commit { .. });
        let is_abort = |vote: &KnownVote| matches!(vote, KnownVote::Abort { .. });
        if !heard.iter().any(is_commit) || heard.iter().any(is_abort) {
            return;
        }
        // Time to show what was found.
        let end_ms = end_ms.saturating_sub(GRACE_MS / 2);
        let silent = heard.iter_mut().zip(&intent.participants).enumerate();
        let asked = silent.filter_map(|(index, (vote, one))| {
            let KnownVote::Nothing(error) = &*vote else { return None };
            // It may have decided, others may have ended the transaction by that, and all may have forgotten it since.
            let may_be_forgotten = decider == Some(index) && !error.is_refusal();
            let refusal = is_by_service(error).then(|| error.clone());
            Some(async move {
                let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
                let called = self.ask(one.partition, &resolve, end_ms).await;
                match heard_in(intent.id(), called) {
                    KnownVote::Abort { reason: Reason::Fenced, .. } if may_be_forgotten => {}
                    KnownVote::Nothing(_) => {}
                    KnownVote::Abort { reason, proof, .. } => {
                        *vote = KnownVote::Abort { reason, proof, refusal };
                    }
                    resolved => *vote = resolved,
                }
            })
        });
        join_all(asked).await;
    }

    /// What it came to, by what was heard.
    fn outcome(&self, split: &Split, commit: bool, mut heard: Vec<KnownVote>) -> Attempt {
        if commit {
            let results = heard.into_iter().map(|vote| match vote {
                KnownVote::Commit { results, .. } => results,
                _ => None,
            });
            let results: Option<Vec<_>> = results.collect();
            return match results.map(|results| split.join(results)) {
                None => Attempt::Done(Outcome::ResultsGone),
                Some(Some(results)) => Attempt::Done(Outcome::Committed(results.into())),
                Some(None) => Attempt::Error(TransactionError::UnexpectedReply),
            };
        }
        if let Some(operation) = lowest_failure(split, &heard) {
            return Attempt::Done(Outcome::Failed { operation });
        }
        // What failed for good comes before what somebody was in the way of.
        let is_conflict =
            |vote: &KnownVote| matches!(vote, KnownVote::Abort { reason: Reason::Conflict(_), .. });
        let is_abort = |vote: &KnownVote| matches!(vote, KnownVote::Abort { .. });
        let why = heard
            .iter()
            .position(|vote| is_abort(vote) && !is_conflict(vote))
            .or_else(|| heard.iter().position(is_conflict));
        if let Some(index) = why {
            let partition = split.parts[index].partition;
            let at: Vec<PartitionId> = heard
                .iter()
                .zip(&split.parts)
                .filter(|(vote, _)| is_conflict(vote))
                .map(|(_, part)| part.partition)
                .collect();
            return match heard.swap_remove(index) {
                KnownVote::Abort { refusal: Some(error), .. } if is_of_session(&error) => {
                    Attempt::Stale(error)
                }
                KnownVote::Abort { refusal: Some(error), .. } => Attempt::Error(error.into()),
                KnownVote::Abort { reason: Reason::Conflict(blocker), .. } => {
                    Attempt::Conflict { blocker, at }
                }
                KnownVote::Abort { reason, .. } => self.why(split, partition, reason),
                _ => Attempt::Error(TransactionError::UnexpectedReply),
            };
        }
        // Some vote is not known. Where the part is certain not to be there, and not to come, it is aborted in the end.
        let certain = heard
            .iter()
            .position(|vote| matches!(vote, KnownVote::Nothing(error) if error.is_refusal()));
        let index =
            certain.or_else(|| heard.iter().position(|vote| matches!(vote, KnownVote::Nothing(_))));
        let incomplete = heard.iter().any(|vote| matches!(vote, KnownVote::Unasked));
        let Some((index, KnownVote::Nothing(error))) =
            index.map(|index| (index, heard.swap_remove(index)))
        else {
            return Attempt::Error(unexpected_reply().into());
        };
        if is_of_session(&error) {
            Attempt::Stale(error)
        } else if incomplete && !error.is_refusal() {
            // Who was not asked never votes for it.
            let partition = split.parts[index].partition;
            Attempt::Error(TransactionError::Refused { partition, cause: Cause::Silent })
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
            Reason::Unreachable { partition: silent, oldest } => {
                return Attempt::Unreachable { of: partition, partition: silent, oldest };
            }
            // Somebody ended it for us, or its session was fenced off: it is tried again, in another session.
            Reason::Conflict(_) | Reason::Resolved | Reason::Fenced => {
                return Attempt::Conflict { blocker: Blocker::Other, at: Vec::new() };
            }
            Reason::Cap { pending } => Cause::Cap { pending },
            Reason::Room => Cause::Room,
            Reason::TooMuch => Cause::TooMuch,
            Reason::Map => Cause::Map,
            Reason::Writes => Cause::Writes,
        };
        Attempt::Error(TransactionError::Refused { partition, cause })
    }
}
