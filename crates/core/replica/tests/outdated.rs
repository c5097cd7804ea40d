//! A program that does not know what the group goes on under stops, with its log whole, and a newer one goes on from there.

use crate::real::{Group, free_addresses, key};
use crate::repair::status;
use bytes::Bytes;
use perdura_client::{Client, ClusterConfig, Options, Reply};
use perdura_durability::FileDisk;
use perdura_execution::{ExecutionContext, Failure, RestoreError, Service, Snapshot};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{AdminCommand, Versions};
use perdura_replica::runtime::RunError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// The newest version that the program knows.
static NEWEST: AtomicU16 = AtomicU16::new(1);

/// Says under which version it runs.
#[derive(Default)]
struct Versioned(u16);

struct Nothing;

impl Snapshot for Nothing {
    fn segments(&self) -> usize {
        0
    }

    fn segment(&self, _: usize) -> Bytes {
        Bytes::new()
    }
}

impl Service for Versioned {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        Ok(self.0.to_string().into())
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Nothing)
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }

    fn newest_version(&self) -> u16 {
        NEWEST.load(Ordering::SeqCst)
    }

    fn set_version(&mut self, version: u16) {
        self.0 = version;
    }
}

#[test]
fn a_program_that_is_too_old_stops_and_a_newer_one_goes_on() {
    let mut group = Group::formatted(1, 0, Durability::Sync, |_| Versioned::default());
    let http = free_addresses(3);
    for (i, address) in http.iter().enumerate() {
        group.start_with(i, |config| config.http = Some(address.clone()));
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
    let administrator = key(1);
    let cluster = ClusterConfig { administrator: Some(administrator.public()), ..group.cluster() };
    let (client, root) = runtime
        .block_on(async { (group.connect(), Client::connect(cluster, administrator).unwrap()) });
    let ask = || runtime.block_on(client.call(Bytes::new(), &options)).unwrap();
    assert_eq!(ask(), Reply::Service(Bytes::from("1")));
    let raised = runtime.spawn(async move {
        let versions = Versions { rules: perdura_protocol::versions::RULES, service: 2 };
        root.administer(AdminCommand::RaiseVersions(versions), &options).await
    });
    // One that is left alone decides nothing, and so has nothing to stop for.
    let stopped = |address: &&String| status(address).contains(r#""state":"stopped""#);
    while http.iter().filter(stopped).count() < 2 {
        std::thread::yield_now();
    }
    for running in &mut group.running {
        let (shutdown, thread) = running.take().unwrap();
        shutdown.request();
        if let Err(error) = thread.join().unwrap() {
            assert!(matches!(error, RunError::Halted(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains("the service is at version 2"), "{text}");
            assert!(text.contains("newer program"), "{text}");
        }
    }
    while (0..3).any(|i| FileDisk::open(&group.data(i)).is_err()) {
        std::thread::yield_now();
    }
    NEWEST.store(2, Ordering::SeqCst);
    (0..3).for_each(|i| group.start(i));
    let raised = runtime.block_on(raised).unwrap().unwrap();
    assert!(matches!(raised, Reply::Administered { .. }), "{raised:?}");
    assert_eq!(ask(), Reply::Service(Bytes::from("2")));
    runtime.block_on(client.close());
    (0..3).for_each(|i| group.stop(i));
}
