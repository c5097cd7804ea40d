//! What the file of a cluster of several partitions may say, and what is said of one that may not.

use super::*;
use crate::config::replica::Rates;
use crate::config::server::{Member, ServerFile};
use crate::config::{ReadError, keys};
use perdura_protocol::configuration::Durability;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

/// Member `id` of partition `partition`.
fn member_key(partition: usize, id: usize) -> SecretKey {
    key(10 * (partition as u8 + 1) + id as u8)
}

fn sample(distribution: Distribution) -> PartitionedCluster {
    let placed = crate::config::placement::place(3, 3, 4);
    let administrator = key(1);
    let parameters = Cluster::default_parameters(
        ClusterId([7; 16]),
        Faults::new(1, 0).unwrap(),
        Durability::Sync,
        administrator.public(),
    );
    let server = |id: usize| ServerEntry {
        address: format!("10.0.0.{id}:7400"),
        http: "127.0.0.1:7401".to_owned(),
        resolver: key(200 + id as u8).public(),
    };
    let partition = |(partition, on): (usize, Vec<usize>)| {
        let member = |(id, server): (usize, usize)| {
            let first_key = member_key(partition, id).public();
            MemberEntry { server, key: first_key, incarnation: 0, first_key }
        };
        let members = on.into_iter().enumerate().map(member).collect();
        PartitionEntry { configuration: 0, from_slot: Slot(0), members }
    };
    let partitions = placed.into_iter().enumerate().map(partition).collect();
    let servers = (0..4).map(server).collect();
    let path = PathBuf::from("cluster.toml");
    let mut cluster = PartitionedCluster::new(
        path,
        parameters,
        distribution,
        servers,
        partitions,
        &administrator,
    );
    cluster.clients.push(("default".to_owned(), key(2).public()));
    cluster
}

fn ranges() -> Distribution {
    let bounds = vec![Bytes::from_static(b"a \"b\"\n\x7f"), Bytes::from_static(b"\xff\x00")];
    Distribution::Range { bounds }
}

fn refusal(text: &str) -> String {
    PartitionedCluster::parse(Path::new("cluster.toml"), text).unwrap_err().to_string()
}

/// As in a file of one group.
#[test]
fn a_baseline_that_is_gone_is_refused_with_what_to_do() {
    let text = sample(Distribution::Hash).render();
    let had = text.replace("\"sequential\"", "\"stop-the-world\"");
    assert!(had != text && refusal(&had).contains("`perdura kv export`"), "{}", refusal(&had));
}

#[test]
fn it_goes_both_ways_and_bounds_are_any_keys() {
    for distribution in [Distribution::Hash, ranges()] {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = sample(distribution);
        cluster.path = directory.path().join("cluster.toml");
        cluster.store().unwrap();
        assert_eq!(PartitionedCluster::load(&cluster.path).unwrap(), cluster);
        // For people it is text where it can be.
        let text = cluster.render();
        assert!(
            !text.contains("bounds") || text.contains(r#"["a \"b\"\n\u007f", { b64 = "/wA=" }]"#)
        );
    }
}

/// Whoever works on one group sees one that is like any other, and that is no other's.
#[test]
fn each_partition_is_a_group_of_its_own() {
    let cluster = sample(Distribution::Hash);
    let groups = cluster.groups();
    assert_eq!(groups.len(), 3);
    for (index, group) in groups.iter().enumerate() {
        let partition = PartitionId(index as u16);
        assert_eq!(group.parameters.partition(), Some(partition));
        assert_eq!(group.parameters.cluster, group_id(ClusterId([7; 16]), partition, 3));
        assert_eq!(group.parameters.whole_cluster(), ClusterId([7; 16]));
        let config = group.client_config();
        assert!(config.named && config.cluster == group.parameters.cluster);
        for (id, replica) in group.replicas.iter().enumerate() {
            assert_eq!(replica.key, member_key(index, id).public());
            let server = cluster.partitions[index].members[id].server;
            assert_eq!(replica.address, cluster.servers[server].address);
        }
    }
    let digests: Vec<_> = groups.iter().map(|group| group.parameters.digest()).collect();
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
}

/// What `replica reinit` writes: the rest of the file stays, and so does the map, which has the first keys.
#[test]
fn a_group_is_stored_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = sample(ranges());
    cluster.path = directory.path().join("cluster.toml");
    cluster.store().unwrap();
    let mut group = cluster.group(PartitionId(1));
    (group.configuration, group.from_slot) = (1, Slot(700));
    (group.replicas[2].key, group.replicas[2].incarnation) = (key(99).public(), 1);
    group.store().unwrap();
    let read = PartitionedCluster::load(&cluster.path).unwrap();
    assert_eq!(read.group(PartitionId(1)), group);
    let entry = &mut cluster.partitions[1];
    (entry.configuration, entry.from_slot) = (1, Slot(700));
    (entry.members[2].key, entry.members[2].incarnation) = (key(99).public(), 1);
    assert_eq!(read, cluster);
}

#[test]
fn what_the_administrator_did_not_sign_is_refused() {
    let text = sample(ranges()).render();
    assert!(PartitionedCluster::parse(Path::new("cluster.toml"), &text).is_ok());
    let key = |partition, id| member_key(partition, id).public().to_string();
    for (from, to) in [
        ("/wA=", "/wE="),
        (&*key(0, 1), &*key(5, 1)),
        ("r = 0", "r = 1"),
        ("cluster = \"0707", "cluster = \"0708"),
    ] {
        assert!(text.contains(from), "{from}");
        let told = refusal(&text.replacen(from, to, 1));
        let words =
            if from == "r = 0" { "by [faults] there are 4" } else { "partitioning.signature" };
        assert!(told.contains("cluster.toml") && told.contains(words), "{told}");
    }
    // Somebody else's signature.
    let own = sample(ranges());
    let other = own.map.sign(&keys::fresh_key().unwrap());
    let told = refusal(&text.replace(&own.signature.to_string(), &other.to_string()));
    assert!(told.contains("is not the administrator's over this map"), "{told}");
}

#[test]
fn what_is_wrong_is_named_with_its_field() {
    let (hashed, ranged) = (sample(Distribution::Hash).render(), sample(ranges()).render());
    let key = member_key(1, 0).public().to_string();
    let replaced = "incarnation = 1\n[[partition.member]]";
    for (text, from, to, words) in [
        (&hashed, "by = \"hash\"", "by = \"list\"", "partitioning.by is \"list\""),
        (&hashed, "by = \"hash\"", "by = \"range\"", "bounds are missing"),
        (&hashed, "by = \"hash\"", "by = \"hash\"\nbounds = []", "has no bounds"),
        (&ranged, "/wA=", "%", "partitioning.bounds[1] is not Base64"),
        (&ranged, ", { b64 = \"/wA=\" }", "", "3 partitions by range have 2 bounds"),
        (&ranged, "{ b64 = \"/wA=\" }", "\"a\"", "bound 1 is not above"),
        (&hashed, "id = 2\naddress", "id = 3\naddress", "server[2].id must be 2"),
        (&hashed, "10.0.0.1:7400", "10.0.0.1", "server[1].address must be host:port"),
        (&hashed, "10.0.0.1:7400", "10.0.0.2:7400", "servers 1 and 2 have the same address"),
        (&hashed, "server = 2", "server = 4", "member[2].server is 4, and the servers are 0 to 3"),
        (
            &hashed,
            "server = 2",
            "server = 1",
            "partition[0].member[2].server is 1, which has another",
        ),
        (&hashed, &key, "12", "partition[1].member[0].public_key must be a public key"),
        (&hashed, "incarnation = 0\n[[partition.member]]", replaced, "contradict each other"),
        (&hashed, "id = 1\nconfiguration", "id = 2\nconfiguration", "partition[1].id must be 1"),
        (&hashed, "depth = 32", "depth = 999", "depth must be 1 to 256"),
        (&hashed, "depth = 32", "deep = 32", "unknown field `deep`"),
        (&hashed, "\ndepth = 32", "", "missing field `depth`"),
        (&hashed, "\nrules = ", "\n# rules = ", "`rules` is missing"),
        (&hashed, "format = 3", "format = 2", "format is 2"),
        (
            &hashed,
            "\n[faults]",
            "\n[configuration]\nnumber = 0\nfrom_slot = 0\n[faults]",
            "has no configuration",
        ),
    ] {
        let wrong = text.replacen(from, to, 1);
        assert_ne!(*text, wrong, "{from}");
        let told = refusal(&wrong);
        assert!(told.contains("cluster.toml") && told.contains(words), "{words}: {told}");
    }
}

/// Programs and commands that know one group only do not take it for one.
#[test]
fn it_is_no_file_of_one_group_and_that_is_none_of_several() {
    let path = Path::new("cluster.toml");
    let error = Cluster::parse(path, &sample(Distribution::Hash).render()).unwrap_err();
    assert!(matches!(error, ReadError::Partitioned { .. }), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let faults = Faults::new(1, 0).unwrap();
    let places = crate::create::Place::all(3, &[], Some(7000), false).unwrap();
    let kv = crate::ServiceKind::KeyValue.name();
    let one = crate::create::make(&dir, faults, Durability::Sync, kv, |_| {}, &places).unwrap();
    let told = PartitionedCluster::load(&one.path).unwrap_err().to_string();
    assert!(told.contains("format is 2") && told.contains("perdura replica"), "{told}");
    assert_eq!(groups(&one.path).unwrap(), [one]);
}

fn server(cluster: &PartitionedCluster, id: usize) -> ServerFile {
    let mut members = Vec::new();
    for (partition, entry) in cluster.partitions.iter().enumerate() {
        for (replica, member) in entry.members.iter().enumerate() {
            if member.server == id {
                members.push(Member {
                    partition: PartitionId(partition as u16),
                    replica: replica as u8,
                    incarnation: member.incarnation,
                    key: member_key(partition, replica),
                    data_path: format!("partition-{partition}").into(),
                });
            }
        }
    }
    ServerFile {
        path: "server-0/server.toml".into(),
        id,
        cluster_path: "../cluster.toml".into(),
        listen: "127.0.0.1:7400".to_owned(),
        http: Some("127.0.0.1:7401".to_owned()),
        rates: Rates { checkpoint_mb_s: 20, ..Rates::default() },
        resolver: Some(key(200 + id as u8)),
        members,
    }
}

#[test]
fn a_servers_file_goes_both_ways_and_fits_its_cluster() {
    let cluster = sample(Distribution::Hash);
    for id in 0..cluster.servers.len() {
        let file = server(&cluster, id);
        assert!((2..=3).contains(&file.members.len()));
        let read = ServerFile::parse(&file.path, &file.render()).unwrap();
        assert_eq!(read.render(), file.render());
        read.check(&cluster).unwrap();
        let replica = read.replica(&read.members[0]);
        assert_eq!(replica.rates.checkpoint_mb_s, 20);
        assert_eq!(replica.data(), Path::new("server-0").join(&file.members[0].data_path));
        replica.check_member(&cluster.group(read.members[0].partition)).unwrap();
    }
}

/// Its data may be moved aside yet: nobody is to have run on that.
#[test]
fn a_server_does_not_start_while_a_replacement_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = sample(Distribution::Hash);
    let mut file = server(&cluster, 0);
    file.path = directory.path().join("server.toml");
    let (partition, replica) = (file.members[0].partition, file.members[0].replica);
    let pending = crate::config::server::pending_member_file(&file.path, partition);
    // It may have been ordered or not.
    let mut next = file.replica(&file.members[0]);
    next.incarnation = 1;
    next.store(&pending).unwrap();
    file.check(&cluster).unwrap();
    let entry = &mut cluster.partitions[partition.index()].members[usize::from(replica)];
    entry.incarnation = 1;
    let told = |file: &ServerFile| file.check(&cluster).unwrap_err().to_string();
    let words = format!("reinit --cluster . --partition {partition} --id {replica}");
    assert!(told(&file).contains(&words), "{}", told(&file));
    // It stands in the server's file already, and the other one is not removed yet.
    file.members[0].incarnation = 1;
    assert!(told(&file).contains(&words), "{}", told(&file));
    std::fs::remove_file(&pending).unwrap();
    file.check(&cluster).unwrap();
}

#[test]
fn a_servers_file_that_fits_no_cluster_is_refused_with_what_to_do() {
    let cluster = sample(Distribution::Hash);
    let check = |change: &dyn Fn(&mut ServerFile)| {
        let mut file = server(&cluster, 0);
        change(&mut file);
        file.check(&cluster).unwrap_err().to_string()
    };
    let first = server(&cluster, 0).members[0].partition;
    for (told, words) in [
        (check(&|file| file.id = 9), "the servers in cluster.toml are 0 to 3".to_owned()),
        (
            check(&|file| drop(file.members.remove(0))),
            format!("no [[member]] has partition {first}"),
        ),
        (
            check(&|file| file.members[0].key = key(77)),
            "older than the replica's last replacement".to_owned(),
        ),
        (
            check(&|file| file.members[0].incarnation = 3),
            "older than the replica's last replacement".to_owned(),
        ),
        (check(&|file| file.members[1].partition.0 = 9), "which has none on".to_owned()),
    ] {
        let other = "no [[member]] has partition";
        assert!(told.contains(&words) || told.contains(other), "{words}: {told}");
        assert!(told.contains("server.toml"), "{told}");
    }
    let file = server(&cluster, 0);
    let secret = file.members[0].key.to_secret_text();
    for (from, to, words) in [
        ("format = 1", "format = 7", "format is 7"),
        ("listen = \"127.0.0.1:7400\"", "listen = \"7400\"", "listen must be host:port"),
        (&*secret, &secret[1..], "member[0].secret_key must be a secret key"),
        ("checkpoint_mb_s = 20", "checkpoint_mb_s = 2000000", "checkpoint_mb_s is 2000000"),
        ("partition = 1\n", "partition = 0\n", "member[1].partition is 0, behind 0"),
    ] {
        let wrong = file.render().replacen(from, to, 1);
        assert_ne!(wrong, file.render(), "{from}");
        let told = ServerFile::parse(&file.path, &wrong).unwrap_err().to_string();
        assert!(told.contains(words) && !told.contains(&secret[1..]), "{told}");
    }
}
