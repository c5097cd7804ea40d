//! `perdura txn`: transactions over several partitions that somebody left, for operators.

use crate::administer::confirmed;
use crate::connect::{ClusterArguments, administrator, connect_store, parse_duration, runtime};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use perdura_client::CallError;
use perdura_cluster::Cluster;
use perdura_cluster::config::KeyFile;
use perdura_protocol::{PartitionId, Time};
use perdura_store::partition::{
    Intent, PartitionCommand, PartitionReply, Reason, TransactionId, Vote,
};
use perdura_transactions::{Live, Resolution, StoreClient, Transactions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Transactions over several partitions: what is pending, and ending it
///
/// A client that dies leaves locks behind. Whoever meets them ends its transaction as the partitions have voted, so there is seldom anything to
/// do here; where a partition is gone for good, what it had not voted on stays pending in the others.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // What each is stands with its arguments.
    Pending(Pending),
    Show(Show),
    Finish(Finish),
    EndPartition(EndPartition),
}

/// Which cluster, and how long to wait for it.
#[derive(Args)]
struct How {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// How long to wait for each answer of the partitions
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

/// List the transactions that are pending, the oldest first
///
/// Those of clients that are at work come and go; one that is listed with an age of many seconds was left.
#[derive(Args)]
struct Pending {
    #[command(flatten)]
    how: How,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Show what each partition knows of a transaction
#[derive(Args)]
struct Show {
    /// Its identifier
    id: TransactionId,
    #[command(flatten)]
    how: How,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// End a transaction as the partitions have voted
///
/// Where one has not voted it votes to abort, if another has had the transaction pending for two seconds.
///
/// With --force the administrator decides for a partition that is gone for good and will never vote. It is refused where a partition that
/// answers has decided, or voted, otherwise. Chosen wrongly it is the end of atomicity: the partition that is gone may have voted otherwise, and what it knew be carried out there.
#[derive(Args)]
struct Finish {
    /// Its identifier
    id: TransactionId,
    #[command(flatten)]
    how: How,
    /// Decide without all votes, with the key in admin.toml
    #[arg(long, value_name = "HOW")]
    force: Option<Force>,
    /// Do so without being asked again
    #[arg(long, requires = "force")]
    yes: bool,
}

/// Tell all other partitions that one has ended for good
///
/// From then on they prepare nothing that names it, and forget what is over without waiting for it. What is pending on it stays so; for that see
/// `perdura txn finish --force`. There is no way back: should the partition run again, what it took part in may be carried out in it alone. Partitions that do not answer now are to be told later, by the
/// same command.
#[derive(Args)]
struct EndPartition {
    /// Its number
    partition: u16,
    #[command(flatten)]
    how: How,
    /// Do so without being asked
    #[arg(long)]
    yes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Force {
    /// What it writes is carried out where it is known
    Commit,
    /// Nothing of it is carried out
    Abort,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Pending(arguments) => pending(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Finish(arguments) => finish(arguments),
        Command::EndPartition(arguments) => end_partition(arguments),
    }
}

/// A client of all partitions.
struct Store {
    client: StoreClient,
    transactions: Transactions<Live>,
    partitions: u16,
    timeout: Duration,
}

impl Store {
    fn connect(groups: &[Cluster], key: &KeyFile, timeout: Duration) -> Result<Store> {
        let client = connect_store(groups, key)?;
        let StoreClient::Partitioned(transactions) = client.clone() else {
            bail!("the cluster has one partition, where nothing is ever pending");
        };
        Ok(Store { client, transactions, partitions: groups.len() as u16, timeout })
    }

    /// Of a question that is asked now: what one partition that is down takes is not taken from the next question.
    fn deadline_ms(&self) -> u64 {
        self.transactions.groups().deadline_ms(self.timeout)
    }

    fn all(&self) -> impl Iterator<Item = PartitionId> {
        (0..self.partitions).map(PartitionId)
    }

    async fn ask(&self, commands: Vec<(PartitionId, PartitionCommand)>) -> Answers {
        let answers = self.transactions.ask_all(commands, self.deadline_ms()).await;
        let words = |(partition, answer): (_, Result<_, CallError>)| {
            (partition, answer.map_err(|error| error.to_string()))
        };
        answers.into_iter().map(words).collect()
    }

    /// What each partition knows of a transaction.
    async fn show(&self, transaction: TransactionId) -> Answers {
        let show = PartitionCommand::Show { transaction };
        self.ask(self.all().map(|partition| (partition, show.clone())).collect()).await
    }
}

/// What each partition answers, or why it does not.
type Answers = BTreeMap<PartitionId, Result<PartitionReply, String>>;

/// Does something with a client of all partitions.
fn with_store<T>(
    how: &How,
    forced: bool,
    work: impl AsyncFnOnce(&Store) -> Result<T>,
) -> Result<T> {
    let groups = how.cluster.load_store()?;
    let key = match forced {
        true => administrator(&how.cluster.cluster, groups.first().context("no groups")?)?,
        false => how.cluster.key_of(&groups)?,
    };
    runtime()?.block_on(async {
        let store = Store::connect(&groups, &key, how.timeout)?;
        let done = work(&store).await;
        for client in store.client.clients() {
            client.close().await;
        }
        done
    })
}

/// A pending transaction, and in which partitions it is.
struct Found {
    intent: Intent,
    pending_in: Vec<u16>,
    oldest_ms: u64,
}

/// What is pending, and why partitions do not say what is pending there.
#[derive(Default)]
struct AllPending {
    found: BTreeMap<TransactionId, Found>,
    silent: BTreeMap<PartitionId, String>,
}

async fn all_pending(store: &Store) -> Result<AllPending> {
    let mut all = AllPending::default();
    let list = |partition, after| (partition, PartitionCommand::Pending { after });
    let mut asked: Vec<_> = store.all().map(|partition| list(partition, None)).collect();
    while !asked.is_empty() {
        let answers = store.ask(std::mem::take(&mut asked)).await;
        for (partition, answer) in answers {
            let reply = match answer {
                Ok(reply) => reply,
                Err(error) => {
                    all.silent.insert(partition, error);
                    continue;
                }
            };
            let PartitionReply::Pending { transactions, more, now } = reply else {
                bail!("partition {partition} gave an answer that fits no question");
            };
            let after = transactions.last().map(|last| (last.since, last.intent.id()));
            if more && after.is_some() {
                asked.push(list(partition, after));
            }
            for one in transactions {
                let age_ms = now.0.saturating_sub(one.since.0);
                let entry = all.found.entry(one.intent.id()).or_insert_with(|| Found {
                    intent: one.intent,
                    pending_in: Vec::new(),
                    oldest_ms: 0,
                });
                entry.pending_in.push(partition.0);
                entry.oldest_ms = entry.oldest_ms.max(age_ms);
            }
        }
    }
    Ok(all)
}

fn pending(arguments: &Pending) -> Result<ExitCode> {
    let AllPending { found, silent } =
        with_store(&arguments.how, false, async |store| all_pending(store).await)?;
    let mut found: Vec<(TransactionId, Found)> = found.into_iter().collect();
    found.sort_by_key(|(id, one)| (std::cmp::Reverse(one.oldest_ms), *id));
    for (id, Found { intent, pending_in, oldest_ms }) in &found {
        let of: Vec<u16> = intent.participants.iter().map(|one| one.partition.0).collect();
        if arguments.json {
            say!(
                "{}",
                json!({"id": id.to_string(), "pending_ms": oldest_ms, "partitions": of, "pending_in": pending_in,
                    "client": intent.client.to_string(), "read_only": intent.read_only})
            );
        } else {
            let kind = if intent.read_only { "reads" } else { "writes" };
            say!(
                "{id}  {:.1} s  {kind}  partitions {}, pending in {}  client {}",
                *oldest_ms as f64 / 1e3,
                listed(&of),
                listed(pending_in),
                intent.client
            );
        }
    }
    for (partition, error) in &silent {
        tell!("perdura: partition {partition} does not say what is pending there: {error}");
    }
    if found.is_empty() && silent.is_empty() {
        tell!("perdura: nothing is pending");
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn listed(numbers: &[u16]) -> String {
    let texts: Vec<String> = numbers.iter().map(u16::to_string).collect();
    texts.join(",")
}

fn why(reason: &Reason) -> &'static str {
    match reason {
        Reason::Failed { .. } => "an operation failed",
        Reason::Conflict(_) => "another transaction held what it needs",
        Reason::Cap { .. } => "its client had too many pending",
        Reason::Room => "there was no room",
        Reason::TooMuch => {
            "it read more than a reply holds, or would have taken more work than a command may"
        }
        Reason::Map => "its keys are elsewhere",
        Reason::Fenced => "its client had fenced it off",
        Reason::Unreachable { .. } => "another participant did not answer",
        Reason::Resolved => "it was ended before its part came",
        Reason::Writes => "it was said to only read",
    }
}

/// What a partition knows, in words and as JSON.
fn shown(answer: &Result<PartitionReply, String>) -> (String, Value) {
    match answer {
        Ok(PartitionReply::Shown {
            since: Time(since), now: Time(now), vote, committed, ..
        }) => {
            let state = match committed {
                None => format!("pending for {:.1} s", now.saturating_sub(*since) as f64 / 1e3),
                Some(true) => "committed".to_owned(),
                Some(false) => "aborted".to_owned(),
            };
            let (text, vote) = match vote {
                Vote::Commit => ("voted to commit".to_owned(), "commit"),
                Vote::Abort(reason) => (format!("voted to abort ({})", why(reason)), "abort"),
            };
            let age_ms = now.saturating_sub(*since);
            (
                format!("{text}; {state}"),
                json!({"vote": vote, "committed": committed, "since_ms": age_ms}),
            )
        }
        Ok(PartitionReply::Unknown { .. }) => {
            ("knows nothing of it".to_owned(), json!({"vote": null}))
        }
        Ok(_) => ("gave an answer that fits no question".to_owned(), Value::Null),
        Err(error) => (error.clone(), json!({"error": error})),
    }
}

fn intent_of(answers: &Answers) -> Option<Intent> {
    answers.values().find_map(|answer| match answer {
        Ok(PartitionReply::Shown { intent, .. }) => Some(intent.clone()),
        _ => None,
    })
}

/// A partition that answers, and has decided or voted otherwise: forced against that, the others would differ from it.
fn against(answers: &Answers, commit: bool) -> Option<(PartitionId, &'static str)> {
    let is_pending = |answer: &Result<PartitionReply, String>| {
        matches!(answer, Ok(PartitionReply::Shown { committed: None, .. }))
    };
    let any_pending = answers.values().any(is_pending);
    let mut all = answers.iter();
    all.find_map(|(partition, answer)| match answer {
        // Nobody forgets a vote on what is pending elsewhere.
        Ok(PartitionReply::Unknown { .. }) if commit && any_pending => {
            Some((*partition, "was never asked to vote on it"))
        }
        Ok(PartitionReply::Shown { committed: Some(true), .. }) if !commit => {
            Some((*partition, "has committed it"))
        }
        Ok(PartitionReply::Shown { committed: Some(false), .. }) if commit => {
            Some((*partition, "has aborted it"))
        }
        Ok(PartitionReply::Shown { vote: Vote::Abort(_), .. }) if commit => {
            Some((*partition, "voted to abort it"))
        }
        _ => None,
    })
}

/// Of the partitions that take part, if it is known which those are.
fn of_participants(answers: Answers) -> Answers {
    let Some(intent) = intent_of(&answers) else { return answers };
    answers.into_iter().filter(|(partition, _)| intent.participant(*partition).is_some()).collect()
}

fn print(id: TransactionId, answers: &Answers, as_json: bool) {
    if as_json {
        let partition = |(partition, answer): (&PartitionId, &Result<PartitionReply, String>)| {
            (partition.to_string(), shown(answer).1)
        };
        let partitions: serde_json::Map<String, Value> = answers.iter().map(partition).collect();
        let client = intent_of(answers).map(|intent| intent.client.to_string());
        say!("{}", json!({"id": id.to_string(), "client": client, "partitions": partitions}));
        return;
    }
    for (partition, answer) in answers {
        say!("partition {partition}: {}", shown(answer).0);
    }
}

fn show(arguments: &Show) -> Result<ExitCode> {
    let transaction = arguments.id;
    let answers = with_store(&arguments.how, false, async |store| {
        Ok(of_participants(store.show(transaction).await))
    })?;
    print(transaction, &answers, arguments.json);
    Ok(crate::ending::carried_out(intent_of(&answers).is_some()))
}

fn finish(arguments: &Finish) -> Result<ExitCode> {
    let transaction = arguments.id;
    if let Some(force) = arguments.force {
        let question = format!(
            "This ends {transaction} without all votes, and cannot be taken back: a partition that is gone may have decided otherwise. \
             Type yes to {} it:",
            if force == Force::Commit { "commit" } else { "abort" }
        );
        if !arguments.yes && !confirmed(&question, "yes")? {
            bail!(
                "nothing was changed: --force decides without all votes. If that is meant, give --yes"
            );
        }
    }
    with_store(&arguments.how, arguments.force.is_some(), async |store| {
        let answers = store.show(transaction).await;
        let intent = intent_of(&answers).context(
            "no partition that answers knows of it: it is over and forgotten, or was never prepared",
        )?;
        let Some(force) = arguments.force else {
            let ending = store.transactions.resolve(&intent, store.deadline_ms()).await;
            let answers = of_participants(store.show(transaction).await);
            print(transaction, &answers, false);
            let may_be_pending = |answer: &Result<PartitionReply, String>| {
                matches!(answer, Ok(PartitionReply::Shown { committed: None, .. }) | Err(_))
            };
            ensure!(
                ending == Resolution::Ended || !answers.values().any(may_be_pending),
                "it could not be ended: a partition that takes part does not answer, or has to have it pending for two seconds; try again. If \
                 a partition is gone for good, see --force"
            );
            return Ok(ExitCode::SUCCESS);
        };
        let commit = force == Force::Commit;
        let answers = of_participants(answers);
        // One that is back after the others were forced is brought to the same end.
        let is_ended = |answer: &Result<PartitionReply, String>| {
            matches!(answer, Ok(PartitionReply::Shown { committed: Some(_), .. }))
        };
        ensure!(
            answers.values().any(|answer| answer.is_err() || is_ended(answer)),
            "nothing was changed: all partitions that take part answer, so it can be ended as they vote; leave out --force"
        );
        if let Some((partition, how)) = against(&answers, commit) {
            bail!("nothing was changed: partition {partition} {how}, so all have to end it so");
        }
        let mut refused = false;
        let command = PartitionCommand::Force { intent: intent.clone(), commit };
        let participants = intent.participants.iter();
        for (partition, answer) in
            store.ask(participants.map(|one| (one.partition, command.clone())).collect()).await
        {
            match answer {
                Ok(PartitionReply::Finished { committed, .. }) => {
                    let how = if committed { "committed" } else { "aborted" };
                    say!("partition {partition}: {how}");
                }
                Ok(_) => bail!("partition {partition} gave an answer that fits no question"),
                Err(error) => {
                    refused = true;
                    say!("partition {partition}: {error}");
                }
            }
        }
        ensure!(
            !refused,
            "not all partitions ended it so; run it again for those that did not answer"
        );
        Ok(ExitCode::SUCCESS)
    })
}

fn end_partition(arguments: &EndPartition) -> Result<ExitCode> {
    let ended = PartitionId(arguments.partition);
    let question = format!(
        "This tells all other partitions that partition {ended} has ended, and cannot be taken back: it must never run again. Type yes to do so:"
    );
    if !arguments.yes && !confirmed(&question, "yes")? {
        bail!("nothing was changed: if partition {ended} is gone for good, give --yes");
    }
    with_store(&arguments.how, true, async |store| {
        ensure!(
            store.all().any(|one| one == ended),
            "there is no partition {ended}: they are numbered from 0 to {}",
            store.partitions - 1
        );
        let look = PartitionCommand::Roster { partition: ended };
        let answers = store.ask(vec![(ended, look)]).await;
        ensure!(
            !answers.values().any(Result::is_ok),
            "nothing was changed: partition {ended} answers, so it has not ended"
        );
        let command = PartitionCommand::End { partition: ended };
        let others = store.all().filter(|one| *one != ended);
        let mut told_all = true;
        for (partition, answer) in
            store.ask(others.map(|one| (one, command.clone())).collect()).await
        {
            match answer {
                Ok(PartitionReply::Ended { .. }) => {
                    say!("partition {partition}: takes partition {ended} for ended");
                }
                Ok(_) => bail!("partition {partition} gave an answer that fits no question"),
                Err(error) if error.contains("unknown tag") => {
                    told_all = false;
                    say!(
                        "partition {partition}: goes by older rules; raise them with `perdura upgrade` first"
                    );
                }
                Err(error) => {
                    told_all = false;
                    say!("partition {partition}: {error}");
                }
            }
        }
        ensure!(told_all, "not all partitions know it; run it again for those");
        Ok(ExitCode::SUCCESS)
    })
}
