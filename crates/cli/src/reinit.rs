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

use crate::Usage;
use crate::administer::confirmed;
use crate::client_keys::alone;
use crate::command::CLUSTER_VARIABLE;
use crate::connect::{administrator, connect, load_groups, parse_duration, runtime};
use crate::health;
use crate::local::Kind;
use crate::members::make_known;
use crate::shell;
use crate::steps::Replaced;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use perdura_client::{CallError, Options, Refusal, Reply};
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::replica::{Rates, SCRUB_INTERVAL_S};
use perdura_cluster::config::server::{Member, pending_member_file};
use perdura_cluster::config::{
    Cluster, PENDING_REPLICA_FILE, PartitionedCluster, REPLICA_FILE, ReplicaEntry, ReplicaFile,
    SERVER_FILE, ServerFile, files,
};
use perdura_cluster::create::{Place, is_of_one_machine};
use perdura_durability::FileDisk;
use perdura_protocol::{AdminCommand, PartitionId, RefusalReason, ReplicaId, Slot};
use perdura_replica::node::StateTransfer;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
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
            let program = shell::word(program.unwrap_or("perdura"));
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
            (Kind::Replica, id.index(), addresses.collect())
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
            (Kind::Server, server, addresses)
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

/// Where the files of a replica are.
struct Home {
    own: PathBuf,
    /// Where there are several partitions, of which this is a replica, and on which server.
    member: Option<(PartitionId, usize)>,
}

impl Home {
    fn of(dir: &Path, id: ReplicaId, cluster: &Cluster) -> Result<Home> {
        let Some(partition) = cluster.parameters.partition() else {
            return Ok(Home { own: dir.join(format!("replica-{id}")), member: None });
        };
        let whole = PartitionedCluster::load(&cluster.path)?;
        let server = whole.partitions[partition.index()].members[id.index()].server;
        let own = dir.join(format!("server-{server}"));
        Ok(Home { own, member: Some((partition, server)) })
    }

    /// Its file, or its server's.
    fn file(&self) -> PathBuf {
        let name = if self.member.is_some() { SERVER_FILE } else { REPLICA_FILE };
        self.own.join(name)
    }

    fn pending(&self) -> PathBuf {
        match self.member {
            None => self.own.join(PENDING_REPLICA_FILE),
            Some((partition, _)) => pending_member_file(&self.file(), partition),
        }
    }

    /// What its file says of it; none if there is no file.
    fn current(&self) -> Result<Option<ReplicaFile>> {
        if !self.file().exists() {
            return Ok(None);
        }
        let Some((partition, _)) = self.member else {
            return Ok(Some(ReplicaFile::load(&self.file())?));
        };
        let server = ServerFile::load(&self.file())?;
        let own = server.members.iter().find(|member| member.partition == partition);
        Ok(own.map(|member| server.replica(member)))
    }

    /// The new replica's file takes its place.
    fn finish(&self, new: &ReplicaFile) -> Result<()> {
        let Some((partition, id)) = self.member else {
            return Ok(files::rename(&new.path, &self.file())?);
        };
        let mut server = match self.file().exists() {
            true => ServerFile::load(&self.file())?,
            // Its other members are to be replaced too: it starts when all are there.
            false => ServerFile {
                path: self.file(),
                id,
                cluster_path: new.cluster_path.clone(),
                listen: new.listen.clone(),
                http: new.http.clone(),
                rates: Rates::default(),
                resolver: None,
                members: Vec::new(),
            },
        };
        server.members.retain(|member| member.partition != partition);
        server.members.push(Member {
            partition,
            replica: new.id,
            incarnation: new.incarnation,
            key: new.key.clone(),
            data_path: new.data_path.clone(),
        });
        server.members.sort_by_key(|member| member.partition);
        server.store(&self.file())?;
        fs::remove_file(&new.path).with_context(|| format!("cannot remove {}", new.path.display()))
    }
}

/// What is known of a run before this one that was interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Earlier {
    /// There was none.
    None,
    /// It has made the key, and may have ordered the replacement.
    MayHaveOrdered,
    /// It has ordered it.
    Ordered,
}

impl Earlier {
    fn of(home: &Home, id: ReplicaId, cluster: &Cluster) -> Earlier {
        let path = home.pending();
        if !path.exists() {
            return Earlier::None;
        }
        // One that does not read is told of when it is needed.
        match ReplicaFile::load(&path) {
            Ok(file) if is_ordered(&file, &cluster.replicas[id.index()]) => Earlier::Ordered,
            _ => Earlier::MayHaveOrdered,
        }
    }

    /// What a run that ends here has changed, in words.
    fn unchanged(self) -> &'static str {
        match self {
            Earlier::None => "nothing was changed",
            Earlier::MayHaveOrdered => {
                "this run changed nothing, but an earlier run was interrupted and may have replaced the replica already; \
                 the command goes on where that one stopped"
            }
            Earlier::Ordered => {
                "this run changed nothing, but an earlier run was interrupted that has replaced the replica already; \
                 the command goes on where that one stopped"
            }
        }
    }
}

/// Whether the replica's next file is that of a replacement which cluster.toml has already.
fn is_ordered(file: &ReplicaFile, entry: &ReplicaEntry) -> bool {
    file.incarnation == entry.incarnation && file.key.public() == entry.key
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
    say!("{}", replacement.text());
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

/// The replica's next file: the one of an interrupted run, or a fresh one, stored.
fn pending(home: &Home, id: ReplicaId, cluster: &Cluster) -> Result<ReplicaFile> {
    let path = home.pending();
    let entry = &cluster.replicas[id.index()];
    if path.exists() {
        let file = ReplicaFile::load(&path)?;
        let next = entry.incarnation.saturating_add(1);
        ensure!(
            is_ordered(&file, entry) || file.incarnation == next,
            "{} is for incarnation {}, and replica {id} is in incarnation {}; remove the file",
            path.display(),
            file.incarnation,
            entry.incarnation
        );
        return Ok(file);
    }
    let own = &home.own;
    // As init makes it: keys and data are in it.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(own);
    made.with_context(|| format!("cannot make {}", own.display()))?;
    let data = match home.member {
        None => "data".to_owned(),
        Some((partition, _)) => format!("partition-{partition}"),
    };
    let places = match home.current()? {
        Some(current) => current,
        None => without_a_file(home, id, entry, data)?,
    };
    let incarnation = entry.incarnation.checked_add(1).context("no incarnation is left")?;
    let file = ReplicaFile { path: path.clone(), incarnation, key: fresh_key()?, ..places };
    file.store(&path)?;
    Ok(file)
}

/// What `init` would have made of a replica whose file is not here: the others know where it is found, and nobody what else it said.
fn without_a_file(
    home: &Home,
    id: ReplicaId,
    entry: &ReplicaEntry,
    data: String,
) -> Result<ReplicaFile> {
    let place = Place::found_at(&entry.address, &entry.http);
    // A server's file that is here stays as it is but for the member.
    if !home.file().exists() {
        say!(
            "there is no {}: the new one listens on {}, serves HTTP on {}, and has what init gives for all else, checkpoint_mb_s, \
             scrub_interval_s and state_transfer among it. Where the old one, on its host, said otherwise, change it before it is copied there",
            home.file().display(),
            place.listen(),
            place.http_listen()
        );
    }
    Ok(ReplicaFile {
        path: home.file(),
        id: id.0,
        incarnation: entry.incarnation,
        key: fresh_key()?,
        cluster_path: Path::new("..").join(perdura_cluster::config::CLUSTER_FILE),
        data_path: PathBuf::from(data),
        listen: place.listen().to_owned(),
        http: Some(place.http_listen().to_owned()),
        checkpoint_mb_s: 0,
        scrub_interval_s: SCRUB_INTERVAL_S,
        state_transfer: StateTransfer::default(),
    })
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

/// Moves a data directory that holds something to the first free name `data.old-N`. One that is a
/// mount of its own cannot be moved; then its content goes to `data/old-N`.
fn move_aside(data: &Path) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(data) {
        Ok(entries) => entries,
        Err(_) if !data.exists() => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", data.display())),
    };
    if entries.flatten().all(|entry| entry.file_name() == "lock") {
        return Ok(None);
    }
    let name = data.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = first_free(|number| data.with_file_name(format!("{name}.old-{number}")))?;
    match fs::rename(data, &free) {
        Ok(()) => files::sync_directory(&files::directory_of(data))?,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => return move_content_aside(data),
        Err(error) => {
            return Err(error).with_context(|| {
                format!("cannot rename {} to {}", data.display(), free.display())
            });
        }
    }
    Ok(Some(free))
}

fn first_free(name: impl Fn(u32) -> PathBuf) -> Result<PathBuf> {
    (0..u32::MAX).map(name).find(|path| !path.exists()).context("no name is left for the old data")
}

/// Moves what is in a data directory to the first free name `old-N` in it. The lock is held, and
/// `lost+found` is the file system's. After an interruption the rest goes to the next name.
fn move_content_aside(data: &Path) -> Result<Option<PathBuf>> {
    let stays = |name: &str| matches!(name, "lock" | "lost+found") || name.starts_with("old-");
    let entries = fs::read_dir(data)?.collect::<std::io::Result<Vec<_>>>()?;
    let names = entries.iter().map(|entry| entry.file_name());
    let names: Vec<_> = names.filter(|name| !stays(&name.to_string_lossy())).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let free = first_free(|number| data.join(format!("old-{number}")))?;
    fs::create_dir(&free).with_context(|| format!("cannot make {}", free.display()))?;
    for name in names {
        fs::rename(data.join(&name), free.join(&name))
            .with_context(|| format!("cannot move {} aside", data.join(&name).display()))?;
    }
    files::sync_directory(&free)?;
    files::sync_directory(data)?;
    Ok(Some(free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cluster::ServiceKind;
    use perdura_cluster::config::CLUSTER_FILE;
    use perdura_protocol::Faults;
    use perdura_protocol::configuration::Durability;
    use std::os::unix::fs::PermissionsExt;

    /// Where what `init` said to remove was removed, the replica listens again where it did.
    #[test]
    fn a_file_that_is_gone_comes_back_as_init_made_it() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = ["db0", "10.0.0.2", "fe80::1"].map(str::to_owned);
        for (name, hosts, public) in
            [("on", &hosts[..], false), ("open", &hosts, true), ("here", &[], false)]
        {
            let dir = directory.path().join(name);
            let places = Place::all(3, hosts, Some(7000), public).unwrap();
            let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceKind::KeyValue.name());
            perdura_cluster::create::make(&dir, faults, Durability::Sync, service, |_| {}, &places)
                .unwrap();
            let cluster = Cluster::load(&dir.join(CLUSTER_FILE)).unwrap();
            for id in (0..3).map(ReplicaId) {
                let home = Home::of(&dir, id, &cluster).unwrap();
                let made = home.current().unwrap().unwrap();
                fs::remove_dir_all(&home.own).unwrap();
                let new = pending(&home, id, &cluster).unwrap();
                let told = |file: &ReplicaFile| {
                    (file.listen.clone(), file.http.clone(), file.data_path.clone())
                };
                assert_eq!(told(&new), told(&made));
                assert_eq!(fs::metadata(&home.own).unwrap().permissions().mode() & 0o777, 0o700);
            }
        }
    }

    #[test]
    fn the_content_of_a_directory_that_cannot_be_moved_goes_into_it() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path();
        for name in ["log", "lost+found", "old-0"] {
            fs::create_dir(data.join(name)).unwrap();
        }
        for name in ["superblock", "lock", "log/1"] {
            fs::write(data.join(name), name).unwrap();
        }
        let moved = move_content_aside(data).unwrap().unwrap();
        assert_eq!(moved, data.join("old-1"));
        assert_eq!(fs::read_to_string(moved.join("log/1")).unwrap(), "log/1");
        assert!(moved.join("superblock").exists());
        let mut left: Vec<_> =
            fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "lost+found", "old-0", "old-1"]);
        assert_eq!(move_content_aside(data).unwrap(), None);
    }
}
