//! Replicas with real disks and sockets, each on a thread of its own, for a service.

#![allow(dead_code, missing_docs)]

use perdura_client::{Client, ClusterConfig, ReplicaAddress};
use perdura_durability::{FileDisk, storage};
use perdura_execution::{Genesis, Service};
use perdura_protocol::configuration::{Configuration, Durability, Member, Parameters};
use perdura_protocol::{ClusterId, Faults, PublicKey, ReplicaId, Scheme, SecretKey, Slot};
use perdura_replica::runtime::{ReplicaConfig, RunError, Shutdown, run};
use std::sync::Mutex;
use std::thread::JoinHandle;
use tokio::net::TcpSocket;

pub struct Group<S> {
    pub parameters: Parameters,
    pub keys: Vec<SecretKey>,
    /// Of the registered clients.
    pub client: SecretKey,
    pub other: SecretKey,
    pub addresses: Vec<String>,
    pub directory: tempfile::TempDir,
    pub running: Vec<Option<Running>>,
    /// The service with a limit of its state's bytes.
    make: fn(u64) -> S,
}

/// A replica's thread, and how it is asked to stop.
pub type Running = (Shutdown, JoinHandle<Result<(), RunError>>);

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

/// Bound, so that nobody else takes them, and not listened on, so that replicas can.
static TAKEN: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());

pub fn free_addresses(n: usize) -> Vec<String> {
    let mut taken = TAKEN.lock().unwrap();
    let mut free = || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        taken.push(socket);
        address.to_string()
    };
    (0..n).map(|_| free()).collect()
}

impl<S: Service> Group<S> {
    pub fn new(u: u8, r: u8, durability: Durability, make: fn(u64) -> S) -> Group<S> {
        let mut group = Group::formatted(u, r, durability, make);
        for i in 0..group.keys.len() {
            group.start(i);
        }
        group
    }

    /// None of them runs yet.
    pub fn formatted(u: u8, r: u8, durability: Durability, make: fn(u64) -> S) -> Group<S> {
        Group::formatted_with(u, r, durability, |parameters| parameters, make)
    }

    pub fn formatted_with(
        u: u8,
        r: u8,
        durability: Durability,
        change: impl FnOnce(Parameters) -> Parameters,
        make: fn(u64) -> S,
    ) -> Group<S> {
        let faults = Faults::new(u, r).unwrap();
        let keys: Vec<SecretKey> = (0..faults.n() as u8).map(|i| key(10 + i)).collect();
        let parameters = change(Parameters {
            durability,
            depth: 32,
            checkpoint_bytes: 1 << 24,
            checkpoint_stretch: 4,
            ..Parameters::small(ClusterId([9; 16]), faults, key(1).public())
        });
        let directory = tempfile::tempdir().unwrap();
        let running = keys.iter().map(|_| None).collect();
        let addresses = free_addresses(keys.len());
        let (client, other) = (key(2), key(3));
        let group = Group { parameters, keys, client, other, addresses, directory, running, make };
        for i in 0..group.keys.len() {
            group.format(i);
        }
        group
    }

    pub fn data(&self, i: usize) -> std::path::PathBuf {
        self.directory.path().join(format!("replica-{i}"))
    }

    pub fn format(&self, i: usize) {
        let mut disk = FileDisk::create_directory(&self.data(i)).unwrap();
        let identity = perdura_durability::Identity {
            cluster: self.parameters.cluster,
            replica: ReplicaId(i as u8),
            incarnation: 0,
            parameters: self.parameters.digest(),
            durability: self.parameters.durability,
            checksum_key: [i as u8; 32],
            must_recover: None,
        };
        storage::format(&mut disk, &identity).unwrap();
    }

    pub fn start(&mut self, i: usize) {
        self.start_with(i, |_| {});
    }

    pub fn start_with(&mut self, i: usize, change: impl FnOnce(&mut ReplicaConfig)) {
        let members: Vec<Member> =
            self.keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let configuration = Configuration { id: 0, from_slot: Slot(0), members };
        let mut config = ReplicaConfig {
            id: ReplicaId(i as u8),
            incarnation: 0,
            key: self.keys[i].clone(),
            parameters: self.parameters.clone(),
            genesis: Genesis {
                configuration: configuration.clone(),
                clients: vec![
                    ("client".into(), self.client.public()),
                    ("other".into(), self.other.public()),
                ],
            },
            latest: configuration,
            addresses: self.addresses.clone(),
            listen: self.addresses[i].clone(),
            http: None,
            data: self.data(i),
            log_device: None,
            profile: false,
            lost_log_lines: Default::default(),
            checkpoint_bytes_per_s: 0,
            scrub_interval: std::time::Duration::from_secs(3600),
            place: None,
            read_threads: 2,
            state_transfer: Default::default(),
            on_server: None,
        };
        change(&mut config);
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let (make, limit) = (self.make, self.parameters.state_limit_bytes);
        let thread = std::thread::spawn(move || run(config, move || make(limit), &asked));
        self.running[i] = Some((shutdown, thread));
    }

    /// Why a replica did not start.
    pub fn failure(&mut self, i: usize) -> RunError {
        let (_, thread) = self.running[i].take().unwrap();
        thread.join().unwrap().unwrap_err()
    }

    pub fn stop(&mut self, i: usize) {
        if let Some((shutdown, thread)) = self.running[i].take() {
            shutdown.request();
            thread.join().unwrap().unwrap();
        }
    }

    pub fn cluster(&self) -> ClusterConfig {
        let replica = |(i, key): (usize, &SecretKey)| ReplicaAddress {
            id: ReplicaId(i as u8),
            address: self.addresses[i].clone(),
            key: key.public(),
        };
        ClusterConfig {
            cluster: self.parameters.cluster,
            faults: self.parameters.faults,
            replicas: self.keys.iter().enumerate().map(replica).collect(),
            administrator: None::<PublicKey>,
            named: false,
            unreachable_after: None,
            takes_long: false,
        }
    }

    pub fn connect(&self) -> Client {
        self.connect_as(&self.client)
    }

    pub fn connect_as(&self, key: &SecretKey) -> Client {
        Client::connect(self.cluster(), key.clone()).unwrap()
    }
}

/// A test that fails because replicas have ended says why they did.
impl<S> Drop for Group<S> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (i, running) in self.running.iter_mut().enumerate() {
            if let Some((_, thread)) = running.take_if(|(_, thread)| thread.is_finished()) {
                eprintln!("replica {i} has ended: {:?}", thread.join());
            }
        }
    }
}
