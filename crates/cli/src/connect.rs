//! From `--cluster DIR` to a client.

use crate::command::CLUSTER_VARIABLE;
use crate::ending::tell_in_time;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use perdura_cluster::ServiceKind;
use perdura_cluster::config::files::Exposed;
use perdura_cluster::config::{CLIENT_FILE, Cluster, KeyFile, ReadError};
use perdura_cluster::connect::StoreConnectError;
use perdura_transactions::StoreClient;
use std::path::PathBuf;
use std::time::Duration;

pub use perdura_cluster::connect::{administrator, connect, connect_store_with, load, load_groups};

/// Which cluster, and as which client.
#[derive(Args, Clone)]
pub struct ClusterArguments {
    /// The directory of the cluster's files
    #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
    pub cluster: PathBuf,
    /// The client's key [default: client.toml in DIR]
    #[arg(long, value_name = "FILE")]
    pub client: Option<PathBuf>,
}

impl ClusterArguments {
    /// The cluster.
    pub fn load(&self) -> Result<Cluster> {
        Ok(load(&self.cluster)?)
    }

    /// Its replica groups, by partition: one, or several.
    pub fn load_groups(&self) -> Result<Vec<Cluster>> {
        Ok(load_groups(&self.cluster)?)
    }

    /// The cluster, of one group, which has to run this service.
    pub fn load_of(&self, service: ServiceKind) -> Result<Cluster> {
        let cluster = match load(&self.cluster) {
            Err(ReadError::Partitioned { file }) => {
                let instead = match service {
                    ServiceKind::TupleSpaces => {
                        "the key-value store over several partitions; use `perdura kv`"
                    }
                    ServiceKind::KeyValue => {
                        "over several partitions, and this measures one replica group; `perdura bench txn` measures several (puts: --global 0 --reads 0 --writes 1)"
                    }
                };
                bail!("{file}: the cluster runs {instead}. Nothing was done")
            }
            one => one?,
        };
        runs(&cluster, service)?;
        Ok(cluster)
    }

    /// The groups of the cluster, by partition, which has to run the key-value store.
    pub fn load_store(&self) -> Result<Vec<Cluster>> {
        let groups = self.load_groups()?;
        groups.iter().try_for_each(|group| runs(group, ServiceKind::KeyValue))?;
        Ok(groups)
    }

    /// The client's key for all of these groups of a cluster.
    pub fn key_of(&self, groups: &[Cluster]) -> Result<KeyFile> {
        self.key(groups.first().context("the cluster has no groups")?)
    }

    /// The client's key. If others may read its file, that is told.
    pub fn key(&self, cluster: &Cluster) -> Result<KeyFile> {
        let path = self.client.clone().unwrap_or_else(|| self.cluster.join(CLIENT_FILE));
        let key = perdura_cluster::connect::key(&path, cluster)?;
        // A command that is over soon keeps no log in which it could be said.
        if let Some(exposed) = Exposed::look(&path) {
            tell_in_time(&exposed.to_string());
        }
        Ok(key)
    }
}

/// That the cluster runs this service.
fn runs(cluster: &Cluster, service: ServiceKind) -> Result<()> {
    let runs = cluster.service()?;
    let (found, command) = match runs {
        ServiceKind::KeyValue => ("the key-value store", "perdura kv"),
        ServiceKind::TupleSpaces => ("tuple spaces", "perdura space"),
    };
    ensure!(
        runs == service,
        "{}: the cluster runs {found}; use `{command}`",
        cluster.path.display()
    );
    Ok(())
}

/// A client of a store, for one thing that is waited for as long as its time-out allows.
pub fn connect_store(groups: &[Cluster], key: &KeyFile) -> Result<StoreClient, StoreConnectError> {
    connect_store_with(groups, key, None)
}

/// A runtime on this thread alone: no call wakes up another core.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")
}

/// A time on the command line: `10s`, `500ms`, `2m`, `1h`, `1d`, or a number of seconds; at most a day.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse_any_duration(text)? {
        time if time.is_zero() => Err("the time must be more than nothing".to_owned()),
        time if time > Duration::from_secs(86_400) => Err("a day is the most".to_owned()),
        time => Ok(time),
    }
}

/// The same without bounds.
pub fn parse_any_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let per_second = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("give a time as in 10s, 500ms, 2m or 1d".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "give a time as in 10s, 500ms, 2m or 1d")?;
    Duration::try_from_secs_f64(number * per_second).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse_any_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_any_duration("3650d"), Ok(Duration::from_secs(3650 * 86_400)));
        for bad in ["", "s", "0", "-1", "10 s", "2d", "1e9", "25h", "1.2.3s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
