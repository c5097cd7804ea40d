//! From a server's file to a process with members of several groups.

use crate::config::{Cluster, PartitionedCluster, ReadError, ServerFile};
use crate::connect::warn_of_exposed;
use crate::replica::{check_data, replica_config, run};
use crate::resolver::ResolverThread;
use crate::service::ServiceKind;
use perdura_protocol::PartitionId;
use perdura_replica::runtime::{self, LogDevice, ReplicaConfig, RunError, ServerShutdown, Work};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How a server ended that was not asked to, or not in order.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It did not start.
    #[error("server {id}: {source}")]
    Start {
        /// Which server.
        id: usize,
        /// Why.
        source: RunError,
    },
    /// All of its members have ended, and these not in order.
    #[error("server {id}: {}", lines(members))]
    Members {
        /// Which server.
        id: usize,
        /// Of which partitions, and why.
        members: Vec<(PartitionId, String)>,
    },
}

fn lines(members: &[(PartitionId, String)]) -> String {
    let line = |(partition, why): &(PartitionId, String)| format!("partition {partition}: {why}");
    members.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A server whose files fit each other.
pub struct Server {
    /// Its file.
    pub file: ServerFile,
    /// Its cluster's.
    pub cluster: PartitionedCluster,
    /// What the cluster replicates.
    pub service: ServiceKind,
    /// A device that the logs are written as slowly as, for experiments.
    pub log_device: Option<LogDevice>,
    /// Whether members measure what their event loops' time goes to.
    pub profile: bool,
    /// Lines of its log that were lost, as whoever writes that counts them.
    pub lost_log_lines: Arc<AtomicU64>,
}

/// A server that listens.
pub struct Listening {
    server: Server,
    runtime: runtime::Server,
}

/// A server's file and its cluster's, which fit each other.
pub fn load(path: &Path) -> Result<(ServerFile, PartitionedCluster), ReadError> {
    let file = ServerFile::load(path)?;
    let cluster = PartitionedCluster::load(&file.cluster()).map_err(ReadError::of_a_host)?;
    file.check(&cluster)?;
    Ok((file, cluster))
}

impl Server {
    /// The one whose file is at `path`. Nothing is changed, nor run.
    pub fn open(path: &Path) -> Result<Server, ReadError> {
        let (file, cluster) = load(path)?;
        let service = cluster.group(PartitionId(0)).service()?;
        let (log_device, profile, lost_log_lines) = (None, false, Arc::default());
        Ok(Server { file, cluster, service, log_device, profile, lost_log_lines })
    }

    /// Listens on its ports. From here on it can be asked to stop. If others may read its file, that is warned of in the log.
    pub fn listen(self) -> Result<Listening, ServerError> {
        warn_of_exposed(&self.file.path);
        let ServerFile { id, listen, http, members, .. } = &self.file;
        let group = |partition: PartitionId| self.cluster.map.groups[partition.index()].id;
        let groups = members.iter().map(|one| (one.partition, group(one.partition))).collect();
        let lost = Arc::clone(&self.lost_log_lines);
        let runtime = runtime::Server::bind(*id, listen, http.as_deref(), groups, lost)
            .map_err(|source| ServerError::Start { id: *id, source })?;
        Ok(Listening { server: self, runtime })
    }
}

impl Listening {
    /// What asks it to stop.
    #[must_use]
    pub fn shutdown(&self) -> ServerShutdown {
        self.runtime.shutdown()
    }

    /// Runs its members until all have ended: as asked, or each for a reason of its own, which ends no other.
    pub fn run(self) -> Result<(), ServerError> {
        self.run_as(|config, service| Box::new(move |shutdown| run(config, service, shutdown)))
    }

    /// The same, of members that do with what their files say something of the caller's.
    pub fn run_as(
        self,
        member_work: impl Fn(ReplicaConfig, ServiceKind) -> Work,
    ) -> Result<(), ServerError> {
        let Listening { server, runtime } = self;
        let id = server.file.id;
        let members = server.file.members.iter().map(|member| {
            let group = server.cluster.group(member.partition);
            let file = server.file.replica(member);
            let work = check_data(&file, &group)
                .map(|()| config_of(&server, &runtime, &group, file, member.partition))
                .map(|config| member_work(config, server.service))
                .map_err(|error| error.to_string());
            (member.partition, work)
        });
        let members = members.collect();
        let resolver = ResolverThread::start(&server.file, &server.cluster);
        let failures = runtime.run(members).map_err(|source| ServerError::Start { id, source });
        drop(resolver);
        let failures = failures?;
        if failures.is_empty() {
            Ok(())
        } else {
            Err(ServerError::Members { id, members: failures })
        }
    }
}

/// What a member is run with, as its files say.
fn config_of(
    server: &Server,
    runtime: &runtime::Server,
    group: &Cluster,
    file: crate::ReplicaFile,
    partition: PartitionId,
) -> ReplicaConfig {
    let mut config = replica_config(file, group);
    config.log_device = server.log_device;
    config.profile = server.profile;
    config.on_server = runtime.member(partition);
    config
}
