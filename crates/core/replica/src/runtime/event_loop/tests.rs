//! What stops a replica, and what does not.

use super::*;
use crate::node::{BACKLOG_BYTES, Boot, Found};
use crate::runtime::MakeService;
use crate::runtime::checkpointer;
use crate::runtime::device::Paced;
use crate::runtime::starting::Starting;
use bytes::Bytes;
use perdura_durability::{
    Expectation, FileDisk, Identity, NewState, OpenError, Opened, PieceName, StorageOptions,
};
use perdura_execution::{Genesis, any_service};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{ClusterId, Decode, Encode, Faults, Scheme, SecretKey, Slot};
use perdura_store::Store;
use perdura_transport::HubConfig;
use perdura_transport::Lane;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

fn config() -> ReplicaConfig {
    let key = |seed| SecretKey::from_seed(Scheme::Ed25519, [seed; 32]);
    let member = |seed| Member { key: key(seed).public(), incarnation: 0 };
    let members = (10..13).map(member).collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    ReplicaConfig {
        id: ReplicaId(0),
        incarnation: 0,
        key: key(10),
        parameters: Parameters {
            depth: 32,
            checkpoint_bytes: 1 << 24,
            ..Parameters::small(ClusterId([9; 16]), Faults::new(1, 0).unwrap(), key(1).public())
        },
        genesis: Genesis { configuration: configuration.clone(), clients: Vec::new() },
        latest: configuration,
        addresses: vec!["127.0.0.1:1".into(); 3],
        listen: "127.0.0.1:0".into(),
        http: None,
        data: "unused".into(),
        log_device: None,
        profile: false,
        lost_log_lines: Default::default(),
        checkpoint_bytes_per_s: 0,
        scrub_interval: Duration::from_secs(3600),
        place: None,
        read_threads: 2,
        state_transfer: Default::default(),
        on_server: None,
    }
}

/// A new data directory, formatted.
fn formatted(root: &std::path::Path, parameters: &Parameters) -> DataDisk {
    let identity = Identity {
        cluster: parameters.cluster,
        replica: ReplicaId(0),
        incarnation: 0,
        parameters: parameters.digest(),
        durability: parameters.durability,
        checksum_key: [1; 32],
        must_recover: None,
    };
    let mut disk = Paced::new(FileDisk::create_directory(root).unwrap(), None, Starting::default());
    storage::format(&mut disk, &identity).unwrap();
    disk
}

/// It is opened on a machine that was booted as `boot_id`.
fn opened(
    disk: DataDisk,
    parameters: &Parameters,
    boot_id: u8,
) -> Result<Opened<DataDisk>, OpenError> {
    let expectation = Expectation {
        cluster: parameters.cluster,
        replica: ReplicaId(0),
        incarnation: 0,
        parameters: parameters.digest(),
        boot_id: [boot_id; 16],
        nonce: [3; 16],
    };
    storage::open(disk, &expectation, &StorageOptions::default())
}

/// Of a new data directory.
fn checkpoints(root: &std::path::Path) -> Checkpoints<DataDisk> {
    let parameters = config().parameters;
    opened(formatted(root, &parameters), &parameters, 2).unwrap().checkpoints
}

/// A checkpoint under versions that nobody knows, or one with a field of a newer program.
fn newer_manifest(parameters: &Parameters, required: bool) -> Bytes {
    let mut parameters = parameters.clone();
    let machine = |parameters: &Parameters| {
        perdura_execution::Machine::new(parameters, config().genesis, Store::new(1 << 30)).unwrap()
    };
    parameters.versions = perdura_protocol::Versions::NEW;
    let mut manifest = machine(&parameters).snapshot().manifest();
    if !required {
        manifest.versions.rules += 1;
        return manifest.to_bytes();
    }
    let mut reader = perdura_protocol::Reader::new(manifest.to_bytes());
    let mut out = reader.take(8).unwrap().to_vec();
    let mut fields = perdura_protocol::fields::Fields::decode(&mut reader).unwrap();
    fields.require("colour", &7u8);
    fields.encode(&mut out);
    let rest = reader.remaining();
    out.extend_from_slice(&reader.take(rest).unwrap());
    out.into()
}

/// An older program is started by mistake and says so; nothing else came of it. With durability `async` a
/// run that did not end would be amnesia once the machine boots anew.
#[test]
fn a_state_of_a_newer_program_is_refused_and_kept() {
    for required in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let mut config = config();
        config.parameters.durability = Durability::Async;
        config.data = root.path().to_owned();
        let disk = formatted(root.path(), &config.parameters);
        let mut first = opened(disk, &config.parameters, 2).unwrap();
        let pieces: Vec<Bytes> = {
            let snapshot = perdura_execution::Machine::new(
                &config.parameters,
                config.genesis.clone(),
                Store::new(1 << 30),
            )
            .unwrap()
            .snapshot();
            (0..snapshot.pieces()).map(|index| snapshot.piece(index)).collect()
        };
        let manifest = newer_manifest(&config.parameters, required);
        let names: Vec<PieceName> =
            pieces.iter().map(|piece| PieceName::of(piece).unwrap()).collect();
        let state = NewState {
            slot: Slot(1),
            digest: perdura_execution::Manifest::digest_of(&manifest),
            manifest: &manifest,
            pieces: &names,
            content: &mut |index| pieces[index].clone(),
            pace: &mut |_| std::ops::ControlFlow::Continue(()),
        };
        first.checkpoints.store(state, Slot(0)).unwrap();
        storage::close(first.log, first.checkpoints).unwrap();
        let (config, make) =
            (Arc::new(config), Arc::new(any_service(|| Store::new(1 << 30))) as MakeService);
        let shutdown = Shutdown::new();
        let repairs = (Repairs::default(), &shutdown);
        let refused = crate::runtime::begin(&config, &make, &mut None, repairs);
        let words = refused.map(|_| ()).unwrap_err().to_string();
        let expected = if required {
            "\"colour\"".to_owned()
        } else {
            format!("the core is at version {}", perdura_protocol::versions::RULES + 1)
        };
        assert!(words.contains(&expected), "{words}");
        let disk = Paced::new(FileDisk::open(root.path()).unwrap(), None, Starting::default());
        let again = opened(disk, &config.parameters, 9).map(|opened| opened.boot.number);
        assert_eq!(again.map_err(|error| error.to_string()), Ok(3));
    }
}

fn event_loop() -> EventLoop {
    let config = config();
    let clock = Clock { origin: Instant::now() };
    let hub = HubConfig {
        id: config.id,
        incarnation: 0,
        cluster: config.parameters.cluster,
        parameters: config.parameters.digest(),
        key: config.key.clone(),
        listen: config.listen.clone(),
        named: false,
        seed: 1,
    };
    let transfers = Hub::dialling(&hub, Lane::Transfer, clock.origin).unwrap();
    let hubs = (Hub::bind(&hub, clock.origin).unwrap(), TransferLinks::new(transfers, 3));
    let boot = Boot {
        me: config.id,
        key: config.key.clone(),
        scheme: Scheme::Ed25519,
        parameters: config.parameters.clone(),
        genesis: config.genesis.clone(),
        latest: config.latest.clone(),
        entropy: [1; 32],
        make_service: Box::new(any_service(|| Store::new(1 << 30))),
        found: Found::default(),
        backlog_bytes: BACKLOG_BYTES,
        place: None,
        state_transfer: Default::default(),
    };
    let node = Node::boot(boot, clock.now()).unwrap();
    let shared = Shared::default();
    EventLoop::start(Arc::new(config), clock, hubs, node, shared, Repairs::default())
}

/// Piece 0 of a state is not what its manifest says, or the state is not newer; its disk is well.
#[test]
fn a_state_that_cannot_be_stored_halts_the_replica_and_is_not_laid_on_its_disk() {
    let event_loop = event_loop();
    let root = tempfile::tempdir().unwrap();
    let snapshot = event_loop.node.machine().snapshot();
    let manifest = snapshot.manifest();
    let pieces: Vec<Bytes> =
        (0..manifest.entries().len()).map(|index| snapshot.piece(index)).collect();
    let mut other = pieces.clone();
    other[0] = Bytes::from_static(b"other");
    for (told, states) in [("piece 0 is not", vec![other]), ("not newer", vec![pieces; 2])] {
        let checkpoints = checkpoints(&root.path().join(told));
        let completions = &event_loop.completions;
        let paces = Default::default();
        let checkpointer =
            Checkpointer::start(checkpoints, 0, Duration::ZERO, paces, completions.clone())
                .unwrap();
        for pieces in states {
            let (manifest, keep) = (manifest.clone(), Slot(0));
            checkpointer.send(checkpointer::Job::Install { manifest, pieces, keep });
        }
        let failed = loop {
            if let Err(failed) = failure(&completions.take()) {
                break failed;
            }
            std::thread::yield_now();
        };
        let RunError::Halted(reason) = &failed else { panic!("{failed}") };
        assert!(reason.contains(told) && reason.contains("report this"), "{reason}");
        assert!(!failed.to_string().contains("disk failed"));
    }
    let failed = failure(&[Completion::Failed("no space".into())]);
    assert!(matches!(failed, Err(RunError::Disk(_))));
}

/// What the event loop gives sets the pace, and whoever waits ends the pauses.
#[test]
fn the_digester_hears_of_each_boundary_and_of_who_waits() {
    let event_loop = event_loop();
    let snapshot = event_loop.node.machine().snapshot();
    let (rhythm, completions) = (Rhythm::default(), event_loop.completions.clone());
    let digester = Digester::start(Duration::ZERO, rhythm.clone(), completions).unwrap();
    assert!(!digester.is_hurried());
    digester.digest(snapshot.clone());
    std::thread::sleep(Duration::from_millis(2));
    digester.digest(snapshot);
    assert!(rhythm.between() >= Duration::from_millis(2));
    while event_loop.completions.take().is_empty() {
        std::thread::yield_now();
    }
    digester.hurry(true);
    assert!(digester.is_hurried());
    digester.hurry(false);
    digester.stop();
    let stuck = Digester::stuck();
    stuck.digest(event_loop.node.machine().snapshot());
    assert!(stuck.is_hurried(), "another one waits");
}

/// A byte of what it stored rots, and nothing else is stored; it hangs where nobody notices.
#[test]
fn a_stored_checkpoint_that_rots_is_reported_while_nothing_is_stored() {
    let event_loop = event_loop();
    let root = tempfile::tempdir().unwrap();
    let completions = &event_loop.completions;
    let (scrub, paces) = (Duration::from_millis(50), Default::default());
    let checkpointer =
        Checkpointer::start(checkpoints(root.path()), 0, scrub, paces, completions.clone())
            .unwrap();
    let snapshot = event_loop.node.machine().snapshot();
    let (slot, keep) = (snapshot.manifest().slot, Slot(0));
    checkpointer.send(checkpointer::Job::Store { snapshot, keep });
    let next = || loop {
        if let Some(completion) = completions.take().pop() {
            break completion;
        }
        std::thread::yield_now();
    };
    assert!(matches!(next(), Completion::CheckpointStored { .. }));
    let file = root.path().join(format!("checkpoint/{:020}", slot.0));
    let middle = std::fs::metadata(&file).unwrap().len() / 2;
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    assert!(matches!(next(), Completion::CheckpointDamaged(1)));
    assert!(checkpointer.stop().is_some());
}

#[test]
fn a_replica_whose_disk_failed_is_gone_for_others_though_a_thread_is_stuck_in_it() {
    let event_loop = event_loop();
    let (address, shared) = (event_loop.hub.local_address(), event_loop.shared.clone());
    assert!(std::net::TcpStream::connect(address).is_ok());
    let (keeper, checkpointer) = (Keeper::stuck(), Checkpointer::stuck());
    let reaper = Reaper::start(event_loop.completions.clone()).unwrap();
    let digester = Digester::stuck();
    let (stage, readers, read_threads) = (None, None, 1);
    let workers = Workers { keeper, checkpointer, digester, reaper, stage, readers, read_threads };
    // It returns, though neither of them ever ends.
    let outcome = event_loop.end(Err(RunError::Disk("full".into())), workers, &Shutdown::new());
    assert!(matches!(outcome, Err(RunError::Disk(_))));
    let said = shared.last().unwrap().report.state;
    assert_eq!(said, State::Stopped);
    assert!(std::net::TcpStream::connect(address).is_err());
}
