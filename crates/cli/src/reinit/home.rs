//! The files of a replica that is replaced, and what was found of an earlier run of it.

use anyhow::{Context, Result, ensure};
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::replica::Rates;
use perdura_cluster::config::server::{Member, pending_member_file};
use perdura_cluster::config::{
    Cluster, PENDING_REPLICA_FILE, PartitionedCluster, REPLICA_FILE, ReplicaEntry, ReplicaFile,
    SERVER_FILE, ServerFile, files,
};
use perdura_cluster::create::Place;
use perdura_protocol::{PartitionId, ReplicaId};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Where the files of a replica are.
pub(super) struct Home {
    pub(super) own: PathBuf,
    /// Where there are several partitions, of which this is a replica, and on which server.
    pub(super) member: Option<(PartitionId, usize)>,
}

impl Home {
    pub(super) fn of(dir: &Path, id: ReplicaId, cluster: &Cluster) -> Result<Home> {
        let Some(partition) = cluster.parameters.partition() else {
            return Ok(Home { own: dir.join(format!("replica-{id}")), member: None });
        };
        let whole = PartitionedCluster::load(&cluster.path)?;
        let server = whole.partitions[partition.index()].members[id.index()].server;
        let own = dir.join(format!("server-{server}"));
        Ok(Home { own, member: Some((partition, server)) })
    }

    /// Its file, or its server's.
    pub(super) fn file(&self) -> PathBuf {
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
    pub(super) fn finish(&self, new: &ReplicaFile) -> Result<()> {
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
pub(super) enum Earlier {
    /// There was none.
    None,
    /// It has made the key, and may have ordered the replacement.
    MayHaveOrdered,
    /// It has ordered it.
    Ordered,
}

impl Earlier {
    pub(super) fn of(home: &Home, id: ReplicaId, cluster: &Cluster) -> Earlier {
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
    pub(super) fn unchanged(self) -> &'static str {
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

/// The replica's next file: the one of an interrupted run, or a fresh one, stored.
pub(super) fn pending(home: &Home, id: ReplicaId, cluster: &Cluster) -> Result<ReplicaFile> {
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
        rates: Rates::default(),
    })
}

/// Moves a data directory that holds something to the first free name `data.old-N`. One that is a
/// mount of its own cannot be moved; then its content goes to `data/old-N`.
pub(super) fn move_aside(data: &Path) -> Result<Option<PathBuf>> {
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
