//! What people and programs write: the files of a cluster, the JSON lines of `perdura kv batch`, and
//! histories.

use crate::Seed;
use crate::memory::Memory;
use perdura_cli::kv_json::Parsed;
use perdura_cli::space_json;
use perdura_cluster::config::partitioned::{MemberEntry, PartitionEntry, ServerEntry};
use perdura_cluster::config::placement::place;
use perdura_cluster::config::replica::Rates;
use perdura_cluster::config::server::Member;
use perdura_cluster::config::{Cluster, KeyFile, PartitionedCluster, ReplicaFile, ServerFile};
use perdura_oracle::{DEFAULT_BUDGET, History, check};
use perdura_protocol::configuration::Durability;
use perdura_protocol::partitions::Distribution;
use perdura_protocol::{ClusterId, Faults, PartitionId, PublicKey, Scheme, SecretKey, Slot};
use std::path::Path;

/// A parsed document: a tree of nodes of some 100 bytes, of which each takes one byte at least; and
/// what shows a line with many errors in it, of which each byte may be one.
const TREE: Memory = Memory { times: 600, plus: 256 * 1024 };

const FILE: &str = "directory/file.toml";

/// What is written after it was read is read as the same, and written as the same.
fn file<T>(data: &[u8], parse: impl Fn(&str) -> Option<T>, render: impl Fn(&T) -> String) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Some(read) = TREE.hold(data.len(), || parse(text)) else { return false };
    let written = render(&read);
    let again =
        parse(&written).unwrap_or_else(|| panic!("refused after it was written: {written}"));
    assert_eq!(render(&again), written);
    true
}

/// Of one group, or of several.
pub fn cluster_file(data: &[u8]) -> bool {
    let several = |text: &str| PartitionedCluster::parse(Path::new(FILE), text).ok();
    file(data, |text| Cluster::parse(Path::new(FILE), text).ok(), Cluster::render)
        || file(data, several, PartitionedCluster::render)
}

/// Of a replica, or of a server with members of several groups.
pub fn replica_file(data: &[u8]) -> bool {
    let server = |text: &str| ServerFile::parse(Path::new(FILE), text).ok();
    file(data, |text| ReplicaFile::parse(Path::new(FILE), text).ok(), ReplicaFile::render)
        || file(data, server, ServerFile::render)
}

pub fn key_file(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let parse = |text: &str| KeyFile::parse(Path::new(FILE), text).ok();
    let Some(read) = TREE.hold(data.len(), || parse(text)) else { return false };
    let path = read.cluster.to_string_lossy();
    let written = KeyFile::render("A client.", "a client", &read.key, &path);
    let again = parse(&written).expect("refused after it was written");
    assert_eq!(again.key.public(), read.key.public());
    true
}

/// A line is a command within the store's limits, or it is refused in words.
pub fn json_line(data: &[u8]) -> bool {
    match TREE.hold(data.len(), || Parsed::from_line(data)) {
        Ok((_, parsed)) => {
            assert_eq!(parsed.command.validate(), Ok(()));
            true
        }
        Err((_, error)) => {
            assert!(!error.is_empty());
            false
        }
    }
}

pub fn space_line(data: &[u8]) -> bool {
    match TREE.hold(data.len(), || space_json::from_line(data)) {
        Ok((_, command)) => {
            assert_eq!(command.validate(), Ok(()));
            true
        }
        Err((_, error)) => {
            assert!(!error.is_empty());
            false
        }
    }
}

/// What is written after it was read is the same; the search has a verdict on it.
pub fn history(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(read) = TREE.hold(data.len(), || History::from_json_lines(text)) else { return false };
    let written = read.to_json_lines();
    assert_eq!(History::from_json_lines(&written).as_ref(), Ok(&read));
    let _ = check(&read, DEFAULT_BUDGET / 100);
    true
}

fn secret(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

pub fn cluster_files() -> Vec<Seed> {
    let faults = Faults::new(1, 1).expect("in range");
    let parameters = Cluster::default_parameters(
        ClusterId([7; 16]),
        faults,
        Durability::Sync,
        PublicKey([9; 32]),
    );
    let entry = |id: u8| perdura_cluster::config::ReplicaEntry {
        address: format!("127.0.0.1:{}", 7400 + u16::from(id)),
        http: format!("localhost:{}", 7500 + u16::from(id)),
        key: PublicKey([id; 32]),
        incarnation: u32::from(id == 2),
        first_key: PublicKey([if id == 2 { 20 } else { id }; 32]),
    };
    let cluster = Cluster {
        path: FILE.into(),
        parameters,
        configuration: 1,
        from_slot: Slot(77),
        replicas: (0..4).map(entry).collect(),
        clients: vec![("a \"client\"\n".to_owned(), PublicKey([8; 32]))],
        optional: "newer = [1, 2]\n[lamp]\nwatts = 7\n[[client]]\nname = \"a\""
            .parse()
            .expect("a table"),
    };
    let bounds = vec!["a \"b\"\n".into(), vec![255, 0].into()];
    vec![
        ("cluster", cluster.render().into_bytes()),
        ("hashed", partitioned(Distribution::Hash).render().into_bytes()),
        ("ranged", partitioned(Distribution::Range { bounds }).render().into_bytes()),
    ]
}

/// Three partitions on four servers.
fn partitioned(distribution: Distribution) -> PartitionedCluster {
    let faults = Faults::new(1, 0).expect("in range");
    let administrator = secret(9);
    let parameters = Cluster::default_parameters(
        ClusterId([7; 16]),
        faults,
        Durability::Sync,
        administrator.public(),
    );
    let server = |id: usize| ServerEntry {
        address: format!("127.0.0.1:{}", 7400 + id),
        http: format!("localhost:{}", 7500 + id),
        resolver: PublicKey([30 + id as u8; 32]),
    };
    let member = |server: usize| {
        let replaced = server == 2;
        let key = |number: u8| PublicKey([number; 32]);
        let first_key = key(server as u8);
        let (key, incarnation) = if replaced { (key(20), 1) } else { (first_key, 0) };
        MemberEntry { server, key, incarnation, first_key }
    };
    let partition = |servers: Vec<usize>| PartitionEntry {
        configuration: 1,
        from_slot: Slot(77),
        members: servers.into_iter().map(member).collect(),
    };
    let partitions = place(3, 3, 4).into_iter().map(partition).collect();
    let servers = (0..4).map(server).collect();
    let path = FILE.into();
    let mut cluster = PartitionedCluster::new(
        path,
        parameters,
        distribution,
        servers,
        partitions,
        &administrator,
    );
    cluster.clients.push(("a client".to_owned(), PublicKey([8; 32])));
    cluster
}

pub fn key_files() -> Vec<Seed> {
    let text = KeyFile::render("A client.", "a \"b\"\n\u{7f}", &secret(1), "../cluster.toml");
    vec![("client", text.into_bytes())]
}

pub fn replica_files() -> Vec<Seed> {
    let file = |http: Option<&str>, checkpoint_mb_s| ReplicaFile {
        path: FILE.into(),
        id: 2,
        incarnation: 1,
        key: secret(1),
        cluster_path: "../cluster.toml".into(),
        data_path: "data".into(),
        listen: "[::1]:7400".to_owned(),
        http: http.map(str::to_owned),
        rates: Rates { checkpoint_mb_s, ..Rates::default() },
    };
    vec![
        ("replica", file(Some("127.0.0.1:7500"), 0).render().into_bytes()),
        ("without_http", file(None, 20).render().into_bytes()),
        ("server", server_file().render().into_bytes()),
    ]
}

fn server_file() -> ServerFile {
    let member = |partition: u16| Member {
        partition: PartitionId(partition),
        replica: 2,
        incarnation: u32::from(partition),
        key: secret(partition as u8),
        data_path: format!("partition-{partition}").into(),
    };
    ServerFile {
        path: FILE.into(),
        id: 1,
        cluster_path: "../cluster.toml".into(),
        listen: "[::1]:7400".to_owned(),
        http: Some("127.0.0.1:7500".to_owned()),
        rates: Rates { checkpoint_mb_s: 20, ..Rates::default() },
        resolver: Some(secret(31)),
        members: vec![member(0), member(3)],
    }
}

pub fn space_lines() -> Vec<Seed> {
    let lines: [(&str, &str); 11] = [
        ("list", r#"{"id":1,"op":"list","after":"a","limit":9}"#),
        (
            "create",
            r#"{"op":"create","space":"s","index_fields":2,"insert":["0101010101010101010101010101010101010101010101010101010101010101"],"read":null,"take":[],"manage":[]}"#,
        ),
        ("delete", r#"{"op":"delete","space":"s"}"#),
        (
            "out",
            r#"{"id":2,"op":"out","space":"s","tuple":["a",-7,1.5e9,true,{"b64":"/w=="},{"float":"-inf"}],"lease_ms":9,"read":[],"take":null}"#,
        ),
        ("out_all", r#"{"op":"outall","space":"s","tuples":[["a"],[1],[2.5]],"lease_ms":5}"#),
        ("rdp", r#"{"op":"rdp","space":"s","template":["a",null,{"type":"float"}]}"#),
        ("in", r#"{"op":"in","space":"s","template":[{"type":"bytes"}],"wait_ms":500}"#),
        ("rd_all", r#"{"op":"rdall","space":"s","template":[null],"after":7,"limit":2}"#),
        ("cas", r#"{"op":"cas","space":"s","template":["l",null],"tuple":["l",1]}"#),
        ("replace", r#"{"op":"replace","space":"s","template":["l"],"tuple":["l"],"lease_ms":7}"#),
        ("renew", r#"{"op":"renew","space":"s","number":3,"lease_ms":0}"#),
    ];
    lines.map(|(name, line)| (name, line.as_bytes().to_vec())).into()
}

pub fn json_lines() -> Vec<Seed> {
    let lines: [(&str, &str); 9] = [
        ("put", r#"{"id":1,"op":"put","key":"a","value":{"b64":"/w=="}}"#),
        ("get", r#"{"id":[7,{"x":null}],"op":"get","key":"a"}"#),
        ("del", r#"{"op":"del","key":{"b64":"ZA=="}}"#),
        ("scan", r#"{"id":4,"op":"scan","start":"a","end":"b","limit":9,"reverse":true}"#),
        ("scan_all", r#"{"op":"scan"}"#),
        ("cas", r#"{"id":5,"op":"cas","key":"a","expect":null,"value":"x"}"#),
        ("cas_away", r#"{"op":"cas","key":"a","expect":"x","value":null}"#),
        (
            "txn",
            r#"{"op":"txn","ops":[{"cmp":{"key":"a","value":null}},{"read":"b"},{"read":{"key":"b"}},{"range":{"start":"a","end":null,"limit":3}},{"insert":{"key":"c","value":"1"}},{"delete":"d"},{"write":{"key":"e","value":"2","only_if_present":true}}]}"#,
        ),
        ("escapes", r#"{"op":"get","key":"\u00e9\n\ud83d\ude00"}"#),
    ];
    lines.iter().map(|(name, line)| (*name, line.as_bytes().to_vec())).collect()
}

pub fn histories() -> Vec<Seed> {
    let lines = concat!(
        r#"{"process":0,"invoked":1,"ended":4,"call":{"op":"put","key":"a","value":"1"},"outcome":{"ok":"put"}}"#,
        "\n",
        r#"{"process":1,"invoked":2,"ended":3,"call":{"op":"get","key":"a"},"outcome":{"ok":{"value":null}}}"#,
        "\n",
        r#"{"process":0,"invoked":5,"ended":null,"call":{"op":"delete","key":"a"},"outcome":"unknown"}"#,
        "\n",
        r#"{"process":1,"invoked":6,"ended":7,"call":{"op":"transaction","steps":[{"cmp":{"key":"a","value":"1"}},{"range":{"start":"","end":null,"limit":5,"reverse":false}},{"write":{"key":"b","value":"2","only_if_present":false}}]},"outcome":{"ok":{"committed":["done",{"entries":{"entries":[["a","1"]],"more":false}},"done"]}}}"#,
        "\n",
        r#"{"process":1,"invoked":8,"ended":9,"call":{"op":"transaction","steps":[{"insert":{"key":"b","value":"3"}}]},"outcome":{"ok":{"failed":0}}}"#,
        "\n",
        r#"{"process":1,"invoked":10,"ended":11,"call":{"op":"get","key":"b"},"outcome":"refused"}"#,
        "\n",
    );
    vec![("each_kind", lines.as_bytes().to_vec())]
}
