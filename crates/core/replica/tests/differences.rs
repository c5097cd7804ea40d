//! A service that gives other results on each replica: nothing that it replicates is worth anything, and that is said at once.

use crate::real::{Group, free_addresses};
use bytes::Bytes;
use perdura_client::Options;
use perdura_execution::{ExecutionContext, Failure, RestoreError, Service, Snapshot};
use perdura_protocol::configuration::{Durability, Parameters};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As a clock, or a random number: no two replicas see the same.
static UNAGREED: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Default)]
struct Unagreed(u64);

impl Service for Unagreed {
    fn execute(&mut self, _: &ExecutionContext, _: &[u8]) -> Result<Bytes, Failure> {
        self.0 = UNAGREED.fetch_add(1, Ordering::SeqCst);
        Ok(Bytes::new())
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.clone())
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.0 = u64::from_le_bytes(segment[..].try_into().unwrap());
        Ok(())
    }
}

impl Snapshot for Unagreed {
    fn segments(&self) -> usize {
        1
    }

    fn segment(&self, _: usize) -> Bytes {
        self.0.to_le_bytes().to_vec().into()
    }
}

fn ask(address: &str, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

#[test]
fn replicas_whose_states_all_differ_say_so_though_none_is_certified() {
    let change = |parameters| Parameters { checkpoint_interval: 16, ..parameters };
    let make = |_| Unagreed::default();
    let mut group = Group::formatted_with(1, 0, Durability::Sync, change, make);
    let http = free_addresses(3);
    for (i, address) in http.iter().enumerate() {
        group.start_with(i, |config| config.http = Some(address.clone()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        let options = Options { timeout: Duration::from_secs(30), ..Options::default() };
        let begun = Instant::now();
        loop {
            client.call(Bytes::from_static(b"any"), &options).await.unwrap();
            let said = http.iter().map(|address| ask(address, "/status"));
            let alarm = |said: &String| said.contains(r#""certifiable":false"#);
            if said.filter(alarm).count() == 3 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody says that states differ");
        }
        client.close().await;
    });
    assert!(ask(&http[0], "/metrics").contains("\nperdura_differing_states 1\n"));
}
