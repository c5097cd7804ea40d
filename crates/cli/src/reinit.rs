//! `perdura replica reinit`: replaces a replica that no longer knows what it promised by a new
//! incarnation (rule D8).
//!
//! Each step may be the last before an interruption, and running the command again goes on:
//!
//! 1. the new key goes to `replica.toml.pending`, so that a second run orders the same;
//! 2. the replacement is ordered; ordering the same one again is answered as the first time;
//! 3. cluster.toml gets the new key, so that the old file can no longer be run;
//!    Of a partition's replica the others are told who the members are now;
//! 4. the old data is moved aside and the data directory formatted. Nobody can have run on it
//!    before step 5;
//! 5. `replica.toml.pending` becomes `replica.toml`.
//!
//! Of a partition's replica the pending file is one of its own beside `server.toml`, and its content goes there in step 5.

mod home;

use crate::Usage;
use crate::administer::confirmed;
use crate::called;
use crate::client_keys::alone;
use crate::command::CLUSTER_VARIABLE;
use crate::connect::{administrator, connect, load_groups, parse_duration, runtime};
use crate::health;
use crate::local::ChildKind;
use crate::members::make_known;
use crate::shell;
use crate::steps::Replaced;
use anyhow::{Context, Result, bail};
use clap::Args;
use home::{Earlier, Home, move_aside, pending};
use perdura_client::{CallError, Options, Refusal, Reply};
use perdura_cluster::config::{Cluster, PartitionedCluster, ReplicaFile, ServerFile, files};
use perdura_cluster::create::is_of_one_machine;
use perdura_durability::FileDisk;
use perdura_protocol::{AdminCommand, RefusalReason, ReplicaId, Slot};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Replace a replica that lost its disk, or its memory
///
/// Orders a new incarnation with the administrator's key, makes the replica a new key, and formats its data directory. The others must be
/// running; what it has of data is moved aside, not deleted. Interrupted, it may be run again.
///
/// First asks all replicas how they are, and says what the replacement does to the group: until the new replica has caught up it
/// counts as failed. Where too few would be left to order anything it is refused. A replica that runs is replaced after a
/// confirmation only.
#[derive(Args)]
pub struct Arguments {
    /// The directory of the cluster's files, with admin.toml
    #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
    cluster: PathBuf,
    /// The replica to replace
    #[arg(long, value_name = "I")]
    id: u8,
    /// Of which partition, where there are several
    #[arg(long, value_name = "P")]
    partition: Option<u16>,
    /// How long to wait for the cluster
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace it though it runs, without being asked again: it may be one that lies
    #[arg(long)]
    yes: bool,
    /// Replace it though too few others take part: nothing is ordered until they are back, and if they do not come back
    /// the data is lost
    #[arg(long)]
    force: bool,
}

/// Longest wait for replicas that do not answer, before anything is changed.
const ASK: Duration = Duration::from_secs(3);

/// Longest wait for those that have just started.
const START: Duration = Duration::from_secs(10);

/// Runs the command; `program` is how one with a service of its own is called.
pub fn run(arguments: &Arguments, program: Option<&str>) -> Result<ExitCode> {
    let dir = &arguments.cluster;
    // The file names one replacement after the other; two at once would lose one of them.
    load_groups(dir)?;
    let _alone = alone(dir)?;
    let mut cluster = group(arguments)?;
    let id = ReplicaId(arguments.id);
    if id.index() >= cluster.replicas.len() {
        let last = cluster.replicas.len() - 1;
        bail!(Usage(format!("--id {id}: the replicas of this cluster are 0 to {last}")));
    }
    let home = Home::of(dir, id, &cluster)?;
    let earlier = Earlier::of(&home, id, &cluster);
    look_first(arguments, &cluster, id, earlier)?;
    if arguments.dry_run {
        say!("{}: --dry-run", earlier.unchanged());
        return Ok(ExitCode::SUCCESS);
    }
    let new = pending(&home, id, &cluster)?;
    // Held until the end: an old incarnation that still runs would lose its files under its feet.
    let lock = match FileDisk::open(&new.data()) {
        Ok(disk) => Some(disk),
        Err(perdura_durability::OpenError::Missing { .. }) => None,
        Err(error) => return Err(error).context("the old incarnation has to be stopped first"),
    };
    let (configuration, from_slot) = order(arguments, &cluster, id, &new)?;

    let entry = &mut cluster.replicas[id.index()];
    entry.key = new.key.public();
    entry.incarnation = new.incarnation;
    // Answers to an order that was given before another one are older than the file.
    (cluster.configuration, cluster.from_slot) =
        (cluster.configuration, cluster.from_slot).max((configuration, from_slot));
    cluster.store()?;
    if let Some(partition) = cluster.parameters.partition() {
        let key = administrator(dir, &cluster)?;
        make_known(&load_groups(dir)?, partition, &key, arguments.timeout)?;
    }
    let moved = move_aside(&new.data())?;
    drop(lock);
    let parameters = &cluster.parameters;
    perdura_cluster::format::data_directory(
        &new.data(),
        parameters,
        id,
        new.incarnation,
        Some(from_slot),
    )?;
    home.finish(&new)?;

    say!(
        "{}replica {id} is in incarnation {} from slot {from_slot} on, configuration {configuration}",
        cluster.partition_text(),
        new.incarnation
    );
    say!("{}", what_is_left(&home, &cluster, id, &new, moved.as_deref(), program)?);
    Ok(ExitCode::SUCCESS)
}

/// What whoever replaces it has to do now: nearly nothing where it runs here.
fn what_is_left(
    home: &Home,
    cluster: &Cluster,
    id: ReplicaId,
    new: &ReplicaFile,
    moved: Option<&Path>,
    program: Option<&str>,
) -> Result<String> {
    let is_here = is_of_one_machine(&cluster.replicas[id.index()].address);
    let mut text = String::new();
    if let Some(moved) = moved {
        let what = if is_here { "its old data" } else { "what this machine had of its data" };
        text = format!("{what} is in {}; delete it when you no longer want it\n", moved.display());
    }
    let config = shell::path(&home.file());
    match home.member {
        None if is_here => {
            let program = program.map_or_else(|| "perdura".to_owned(), |_| shell::program());
            return Ok(text + &format!("start it with: {program} replica --config {config}"));
        }
        Some(_) if is_here => {
            let how = "stop its server if that runs, and start it with: perdura server --config";
            return Ok(text + &format!("{how} {config}"));
        }
        _ => {}
    }
    let (what, number, addresses): (_, _, Vec<String>) = match home.member {
        None => {
            let addresses = cluster.replicas.iter().map(|one| one.address.clone());
            (ChildKind::Replica, id.index(), addresses.collect())
        }
        Some((_, server)) => {
            let whole = PartitionedCluster::load(&cluster.path)?;
            if lacks_members(&home.file(), &whole) {
                text += &format!(
                    "{} has not all that its server had. Where the old one is still on its host, take the other [[member]]s and resolver_key from \
                     there into this one before it is copied over it; else replace the other members too\n",
                    home.file().display()
                );
            }
            let addresses = whole.servers.into_iter().map(|one| one.address).collect();
            (ChildKind::Server, server, addresses)
        }
    };
    let (dir, data, former) =
        (files::directory_of(&cluster.path), &new.data_path, new.incarnation.saturating_sub(1));
    let of = Replaced { dir: &dir, what, number, data, former, addresses: &addresses, program };
    Ok(text + &of.steps())
}

/// Whether a server's file that took the place of a lost one is not yet all that one was.
fn lacks_members(path: &Path, cluster: &PartitionedCluster) -> bool {
    let file = ServerFile::load(path);
    file.is_ok_and(|file| file.resolver.is_none() || file.check(cluster).is_err())
}

/// The group of which a replica is to be replaced.
fn group(arguments: &Arguments) -> Result<Cluster> {
    let mut groups = load_groups(&arguments.cluster)?;
    let last = groups.len() - 1;
    match arguments.partition.map(usize::from) {
        None if last == 0 => {}
        Some(_) if last == 0 => {
            bail!(Usage("--partition: this cluster has one group, and no partitions".to_owned()))
        }
        Some(partition) if partition <= last => return Ok(groups.swap_remove(partition)),
        _ => bail!(Usage(format!("--partition P: the partitions of this cluster are 0 to {last}"))),
    }
    Ok(groups.swap_remove(0))
}

/// Who is there, and what the replacement would do; refused where it would end the group, or where a replica that runs is
/// not meant.
fn look_first(
    arguments: &Arguments,
    cluster: &Cluster,
    id: ReplicaId,
    earlier: Earlier,
) -> Result<()> {
    let key = administrator(&arguments.cluster, cluster)?;
    let begun = Instant::now();
    let mut told = false;
    let replacement = loop {
        let roll = health::ask(cluster, &key, arguments.timeout.min(ASK))?;
        let replacement = roll.replacing(id);
        if replacement.is_safe() || begun.elapsed() > arguments.timeout.min(START) {
            break replacement;
        }
        if !told {
            let missing: Vec<String> =
                replacement.missing.iter().map(|(id, _)| id.to_string()).collect();
            say!(
                "waiting up to {} s for replica {} to take part",
                START.as_secs(),
                missing.join(", ")
            );
            told = true;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    say!("{}", called::here(&replacement.text()));
    if !replacement.is_safe() {
        let others: Vec<String> =
            replacement.missing.iter().map(|(id, _)| id.to_string()).collect();
        let others = others.join(", ");
        if !arguments.force {
            bail!(
                "replica {id} is not replaced now, for the group would not go on; {}. Start or mend replica {others} first. With \
                 --force it is replaced all the same: then nothing is ordered before enough of them are back, and if they do \
                 not come back the data is lost",
                earlier.unchanged()
            );
        }
        say!("--force: nothing will be ordered before enough of replica {others} are back");
    }
    let question = format!("replica {id} runs. Type its number to replace it:");
    let asks = replacement.answers && !arguments.yes && !arguments.dry_run;
    if asks && !confirmed(&question, &id.to_string())? {
        bail!(
            "replica {id} runs; {}. If it is the one that is meant (it lies, or another process has its \
             key), give --yes",
            earlier.unchanged()
        );
    }
    Ok(())
}

/// Orders the replacement; gives the configuration and the first slot in which it counts.
fn order(
    arguments: &Arguments,
    cluster: &Cluster,
    id: ReplicaId,
    new: &ReplicaFile,
) -> Result<(u64, Slot)> {
    let key = administrator(&arguments.cluster, cluster)?;
    let command = AdminCommand::ReplaceReplica {
        replica: id,
        incarnation: new.incarnation,
        key: new.key.public(),
    };
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    let result = runtime()?.block_on(async {
        let client = connect(cluster, &key)?;
        let result = client.administer(command, &options).await;
        client.close().await;
        anyhow::Ok(result)
    })?;
    match result {
        Ok(Reply::Administered { configuration, from_slot }) => {
            Ok((configuration, Slot(from_slot)))
        }
        Ok(_) => {
            bail!("the cluster gave an answer that fits no replacement")
        }
        Err(CallError::Refused {
            reason: Refusal::Ordered(RefusalReason::Contradiction(why)),
            ..
        }) => bail!(
            "the cluster does not replace replica {id}: {why}. This run changed nothing there. If the \
             incarnation is the reason, {} is older than the replica's last replacement: take the \
             newer one, and remove {}",
            cluster.path.display(),
            new.path.display()
        ),
        Err(error) => Err(error).with_context(|| {
            format!(
                "replica {id} is not replaced yet; see that the other replicas run, and run the \
                 command again: it goes on with the same key"
            )
        }),
    }
}
