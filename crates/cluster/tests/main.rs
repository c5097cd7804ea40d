//! A cluster from its first file to its last write, in one process.

use bytes::Bytes;
use perdura_client::{Options, Reply};
use perdura_cluster::ServiceKind;
use perdura_cluster::config::{CLIENT_FILE, REPLICA_FILE};
use perdura_cluster::connect::{KeyError, administrator, connect, key, load};
use perdura_cluster::create::{CreateError, Place, PlacesError, make};
use perdura_cluster::replica::{OpenError, Replica};
use perdura_cluster::{Cluster, ReplicaFile};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Decode, Encode, Faults};
use perdura_replica::runtime::Shutdown;
use perdura_store::{StoreCommand, StoreReply};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn made(dir: &Path) -> Cluster {
    let faults = Faults::new(1, 0).unwrap();
    let places = Place::all(faults.n(), &[], None, false).unwrap();
    let tune = |parameters: &mut perdura_protocol::configuration::Parameters| parameters.depth = 16;
    make(dir, faults, Durability::Sync, ServiceKind::KeyValue.name(), tune, &places).unwrap()
}

fn file_of(dir: &Path, id: usize) -> PathBuf {
    dir.join(format!("replica-{id}")).join(REPLICA_FILE)
}

fn write_and_read(dir: &Path, cluster: &Cluster) -> StoreReply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let key = key(&dir.join(CLIENT_FILE), cluster).unwrap();
        let client = connect(cluster, &key).unwrap();
        let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
        let (name, value) = (Bytes::from("key"), Bytes::from("value"));
        let put = StoreCommand::Put { key: name.clone(), value };
        let mut last = None;
        for command in [put, StoreCommand::Get { key: name }] {
            let reply = client.call(command.to_bytes(), &options).await.unwrap();
            let Reply::Service(reply) = reply else { panic!("{reply:?}") };
            last = Some(StoreReply::from_bytes(reply).unwrap());
        }
        client.close().await;
        last.unwrap()
    })
}

#[test]
fn a_cluster_is_made_runs_and_answers() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let cluster = made(&dir);
    assert_eq!(load(&dir).unwrap(), cluster);
    assert_eq!(cluster.parameters.depth, 16);
    let shutdown = Shutdown::new();
    let read = std::thread::scope(|scope| {
        let replicas: Vec<_> = (0..cluster.replicas.len())
            .map(|id| {
                let replica = Replica::open(&file_of(&dir, id)).unwrap();
                scope.spawn(|| replica.run(&shutdown))
            })
            .collect();
        // Whatever becomes of it, the replicas have to end.
        let read = std::panic::catch_unwind(|| write_and_read(&dir, &cluster));
        shutdown.request();
        for replica in replicas {
            replica.join().unwrap().unwrap();
        }
        read.unwrap()
    });
    assert_eq!(read, StoreReply::Value(Some(Bytes::from("value"))));
}

#[test]
fn what_is_wrong_is_an_error_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, other) = (directory.path().join("cluster"), directory.path().join("other"));
    let (cluster, foreign) = (made(&dir), made(&other));
    let again = make(
        &dir,
        Faults::new(1, 0).unwrap(),
        Durability::Sync,
        ServiceKind::KeyValue.name(),
        |_| {},
        &[],
    );
    assert!(matches!(again, Err(CreateError::HoldsCluster { .. })));
    let hosts = ["a".to_owned()];
    let places = Place::all(3, &hosts, None, false).map(|_| ()).unwrap_err();
    assert!(matches!(places, PlacesError::Hosts { given: 1, n: 3 }) && places.is_misuse());
    let wrong = key(&other.join(CLIENT_FILE), &cluster).unwrap_err();
    assert!(matches!(wrong, KeyError::OtherCluster { .. }), "{wrong}");
    std::fs::copy(dir.join("admin.toml"), other.join("admin.toml")).unwrap();
    let wrong = administrator(&other, &foreign).unwrap_err();
    assert!(matches!(wrong, KeyError::NotAdministrator { .. }), "{wrong}");
    let exposed = dir.join("admin.toml");
    std::fs::set_permissions(&exposed, std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .unwrap();
    let wrong = administrator(&dir, &cluster).unwrap_err();
    assert!(matches!(wrong, KeyError::Exposed { mode: 0o640, .. }), "{wrong}");
    let path = file_of(&dir, 2);
    let own = perdura_protocol::ServiceName::literal("ledger");
    let strange = perdura_cluster::replica::config(&path, &own).map(|_| ()).unwrap_err();
    assert!(
        strange.to_string().contains("service is \"kv\", and this program runs \"ledger\""),
        "{strange}"
    );
    assert!(perdura_cluster::replica::config(&path, &ServiceKind::KeyValue.name()).is_ok());
    std::fs::remove_dir_all(ReplicaFile::load(&path).unwrap().data()).unwrap();
    let blank = Replica::open(&path).map(|_| ()).unwrap_err();
    assert!(matches!(blank, OpenError::Blank { id: 2, what: "missing", .. }), "{blank}");
    let dir_text = dir.display();
    let reinit =
        format!("replace the replica with `perdura replica reinit --cluster {dir_text} --id 2`");
    assert!(blank.to_string().contains(&reinit), "{blank}");
}

/// A host has no more than what was copied there: nothing is said that works only where the administrator's key is.
#[test]
fn a_host_is_told_what_can_be_done_there() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    made(&dir);
    let path = file_of(&dir, 2);
    let why = || Replica::open(&path).map(|_| ()).unwrap_err().to_string();
    std::fs::remove_file(dir.join("admin.toml")).unwrap();
    let data = ReplicaFile::load(&path).unwrap().data();
    std::fs::remove_dir_all(&data).unwrap();
    let told = [
        "If its disk is not mounted",
        "on the machine where admin.toml is",
        "--cluster DIR --id 2`",
    ];
    assert!(told.iter().all(|one| why().contains(one)), "{}", why());
    // As a fresh file system is that nobody has put anything on.
    std::fs::create_dir_all(data.join("lost+found")).unwrap();
    assert!(told.iter().all(|one| why().contains(one)) && why().contains("is empty"), "{}", why());
    std::fs::remove_file(dir.join("cluster.toml")).unwrap();
    assert!(why().contains("copy it from another host") && !why().contains("init"), "{}", why());
}

#[test]
fn where_nothing_can_listen_what_is_to_change_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    made(&dir);
    let listening = |listen: &str| {
        let mut replica = Replica::open(&file_of(&dir, 1)).unwrap();
        (replica.config.listen, replica.config.http) = (listen.to_owned(), None);
        replica.run(&Shutdown::new()).unwrap_err().to_string()
    };
    // Of addresses for documents, which no machine has; and a name that there is not.
    for listen in ["192.0.2.1:7400", "no-such-host.invalid:7400"] {
        let why = listening(listen);
        assert!(why.contains("`listen` in replica.toml") && !why.contains("another"), "{why}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let why = listening(&taken.local_addr().unwrap().to_string());
    assert!(why.contains("port is in use") && why.contains("choose another one"), "{why}");
}
