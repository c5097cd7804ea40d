//! A server: one process with members of several groups, behind one address and one HTTP port.
//!
//! Each member is a replica as any other, on threads of its own; they have nothing in common but what is here. One that ends for good
//! (its disk is corrupt, its service panicked) takes no other with it: the server says so and goes on until all have ended.

use super::endpoints::Endpoints;
use super::http::{self, Served, Shared};
use super::threads;
use super::{RunError, Shutdown, most_sockets};
use perdura_protocol::{ClusterId, PartitionId};
use perdura_transport::{Doorman, Seat};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// What a replica shares with the others of its process.
#[derive(Clone)]
pub struct OnServer {
    seat: Seat,
    published: Shared,
    sharers: u64,
}

impl OnServer {
    /// Where its connections come from.
    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Where it says how it is.
    pub(super) fn published(&self) -> Shared {
        Arc::clone(&self.published)
    }

    /// Among how many the process's files are shared out.
    pub(super) fn sharers(&self) -> u64 {
        self.sharers
    }
}

/// Asks all members of a server to stop in order. Clones ask the same ones.
#[derive(Clone)]
pub struct ServerShutdown(Arc<Vec<(PartitionId, Shutdown)>>);

impl ServerShutdown {
    /// As [`Shutdown::request`], of each.
    pub fn request(&self) {
        self.0.iter().for_each(|(_, shutdown)| shutdown.request());
    }

    /// As [`Shutdown::hindrance`], of each member that has not stopped.
    #[must_use]
    pub fn hindrance(&self) -> String {
        // Who holds on to its own has not ended.
        let runs = |(_, shutdown): &&(PartitionId, Shutdown)| Arc::strong_count(&shutdown.0) > 1;
        let told = |(partition, shutdown): &(PartitionId, Shutdown)| {
            format!("partition {partition}: {}", shutdown.hindrance())
        };
        self.0.iter().filter(runs).map(told).collect::<Vec<_>>().join("; ")
    }
}

/// What a member does from its start to its end.
pub type Work = Box<dyn FnOnce(&Shutdown) -> Result<(), RunError> + Send>;

/// See the module.
pub struct Server {
    doorman: Doorman,
    endpoints: Arc<Endpoints>,
    groups: Vec<(PartitionId, ClusterId)>,
    shutdown: ServerShutdown,
    // Until its members have ended.
    serving: Option<http::Serving>,
}

impl Server {
    /// Server `id` with a member of each of these groups: listens on `listen` for all of them, and on `http` if that is given.
    /// `lost_log_lines` is as in [`super::ReplicaConfig`], and shown once.
    ///
    /// # Errors
    /// When one of the ports cannot be listened on.
    pub fn bind(
        id: usize,
        listen: &str,
        http: Option<&str>,
        groups: Vec<(PartitionId, ClusterId)>,
        lost_log_lines: Arc<AtomicU64>,
    ) -> Result<Server, RunError> {
        let ids: Vec<ClusterId> = groups.iter().map(|(_, group)| *group).collect();
        let mut doorman = Doorman::bind(listen, &ids, Instant::now())?;
        let sharers = sharers(groups.len());
        if let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current
            && let Some(sockets) = most_sockets(files, sharers)
        {
            doorman.limit_sockets(sockets);
        }
        let partitions = groups.iter().map(|(partition, _)| *partition);
        let endpoints = Arc::new(Endpoints::new(id, partitions.clone(), lost_log_lines));
        let served = || Served::All(Arc::clone(&endpoints));
        let serving = http.map(|address| http::serve(address, served())).transpose()?;
        let shutdowns = partitions.map(|partition| (partition, Shutdown::new())).collect();
        let shutdown = ServerShutdown(Arc::new(shutdowns));
        Ok(Server { doorman, endpoints, groups, shutdown, serving })
    }

    /// What its member of `partition` is run with; none if it has none.
    #[must_use]
    pub fn member(&self, partition: PartitionId) -> Option<OnServer> {
        let (_, group) = self.groups.iter().find(|(own, _)| *own == partition)?;
        let seat = self.doorman.seat(*group)?;
        let published = self.endpoints.published(partition)?;
        Some(OnServer { seat, published, sharers: sharers(self.groups.len()) })
    }

    /// What asks its members to stop.
    #[must_use]
    pub fn shutdown(&self) -> ServerShutdown {
        self.shutdown.clone()
    }

    /// Runs its members, each with what it does, until all have ended. Those that could not even be begun come with the reason.
    /// Gives how those ended that were not asked to, or not in order.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn run(
        self,
        members: Vec<(PartitionId, Result<Work, String>)>,
    ) -> Result<Vec<(PartitionId, String)>, RunError> {
        let Server { doorman, endpoints, shutdown, serving: _serving, .. } = self;
        let (own, of_doorman) = (Arc::clone(&endpoints), shutdown.clone());
        std::thread::Builder::new()
            .name("doorman".into())
            .spawn(move || watch_the_door(doorman, &own, &of_doorman))?;
        let mut running = Vec::new();
        let mut failures = Vec::new();
        for (partition, work) in members {
            let asked = shutdown.0.iter().find(|(own, _)| *own == partition);
            let asked = asked.map(|(_, asked)| asked.clone()).unwrap_or_default();
            let work = match work {
                Ok(work) => work,
                Err(why) => {
                    tracing::error!("partition {partition}: {why}");
                    endpoints.ended(partition, Some(why.clone()));
                    failures.push((partition, why));
                    continue;
                }
            };
            let endpoints = Arc::clone(&endpoints);
            let live = move || {
                let ended = catch_unwind(AssertUnwindSafe(|| work(&asked)));
                let ended = ended.unwrap_or(Err(RunError::Panicked("event loop")));
                let why = ended.err().map(|error| error.to_string());
                match &why {
                    Some(why) => tracing::error!("this member has ended, the others go on: {why}"),
                    None => tracing::info!("this member has stopped"),
                }
                endpoints.ended(partition, why.clone());
                why
            };
            running.push((partition, threads::spawn_first(partition, "loop", live)?));
        }
        for (partition, thread) in running {
            let why = thread.join().unwrap_or_else(|_| Some("its thread panicked".to_owned()));
            failures.extend(why.map(|why| (partition, why)));
        }
        failures.sort_by_key(|(partition, _)| *partition);
        Ok(failures)
    }
}

/// The doorman has a share too.
fn sharers(members: usize) -> u64 {
    members as u64 + 1
}

/// Without a doorman nobody can connect: then the process had better end, and be started again.
fn watch_the_door(mut doorman: Doorman, endpoints: &Endpoints, shutdown: &ServerShutdown) {
    loop {
        if let Err(error) = doorman.turn(Instant::now(), None) {
            tracing::error!("no connection is accepted any more, so all members stop: {error}");
            endpoints.doorman_ended(error.to_string());
            return shutdown.request();
        }
        endpoints.count(doorman.stats());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn group(number: u8) -> (PartitionId, ClusterId) {
        (PartitionId(number.into()), ClusterId([number; 16]))
    }

    #[track_caller]
    fn until(mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < TIMEOUT);
            std::thread::yield_now();
        }
    }

    /// Of five one cannot be begun, one panics, one fails, one ends in order too early, and one goes on until it is asked.
    #[test]
    fn members_that_end_take_no_other_with_them() {
        let groups = (0..5).map(group).collect();
        let server = Server::bind(7, "127.0.0.1:0", None, groups, Arc::default()).unwrap();
        let (endpoints, shutdown) = (Arc::clone(&server.endpoints), server.shutdown());
        let lasting = server.member(PartitionId(4)).unwrap();
        assert!(server.member(PartitionId(5)).is_none());
        let failing = || Err(RunError::Halted("the disk is full".to_owned()));
        let waits = |shutdown: &Shutdown| {
            until(|| shutdown.requested());
            Ok(())
        };
        let works: Vec<Result<Work, String>> = vec![
            Err("there is no data".to_owned()),
            Ok(Box::new(|_| panic!("as a test"))),
            Ok(Box::new(move |_| failing())),
            Ok(Box::new(|_| Ok(()))),
            Ok(Box::new(waits)),
        ];
        let members = (0..).map(PartitionId).zip(works).collect();
        let running = std::thread::spawn(move || server.run(members).unwrap());
        let told = [
            "partition 0: there is no data",
            "partition 1: stopped: the event loop panicked. This is a bug of Perdura",
            "partition 2: stopped: the disk is full",
            "partition 3: stopped",
        ];
        until(|| {
            let unwell = endpoints.unwell();
            unwell.len() == 4 && unwell.iter().zip(told).all(|(line, told)| line.starts_with(told))
        });
        assert!(!running.is_finished(), "one of them runs");
        let hindrance = shutdown.hindrance();
        assert!(hindrance.starts_with("partition 4: ") && !hindrance.contains("partition 3"));
        assert!(Arc::ptr_eq(&lasting.published(), &endpoints.published(PartitionId(4)).unwrap()));
        shutdown.request();
        let failures = running.join().unwrap();
        assert_eq!(failures.iter().map(|(of, _)| of.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
