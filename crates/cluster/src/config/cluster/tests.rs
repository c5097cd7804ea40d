//! What a cluster's file may say, and what is said of one that may not.

use super::*;
use std::collections::BTreeSet;

fn sample(path: &Path) -> Cluster {
    let faults = Faults::new(1, 1).unwrap();
    let administrator = PublicKey([9; 32]);
    let parameters =
        Cluster::default_parameters(ClusterId([7; 16]), faults, Durability::Sync, administrator);
    let entry = |id: u8| ReplicaEntry {
        address: format!("127.0.0.1:{}", 7400 + u16::from(id)),
        http: format!("127.0.0.1:{}", 7500 + u16::from(id)),
        key: PublicKey([id; 32]),
        incarnation: u32::from(id == 2),
        first_key: PublicKey([if id == 2 { 20 } else { id }; 32]),
    };
    Cluster {
        path: path.to_owned(),
        parameters,
        configuration: 1,
        from_slot: Slot(77),
        replicas: (0..4).map(entry).collect(),
        clients: vec![("default".to_owned(), PublicKey([8; 32]))],
        optional: Table::new(),
    }
}

#[test]
fn a_cluster_goes_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = sample(&directory.path().join("cluster.toml"));
    cluster.store().unwrap();
    assert_eq!(Cluster::load(&cluster.path).unwrap(), cluster);
}

/// The service is part of what data directories and handshakes are held against.
#[test]
fn a_cluster_has_one_service_for_good() {
    let mut cluster = sample(Path::new("cluster.toml"));
    let of_before = cluster.render().replace("service = \"kv\"\n", "");
    assert_eq!(Cluster::parse(&cluster.path, &of_before).unwrap(), cluster);
    let digest = cluster.parameters.digest();
    cluster.parameters.service = ServiceKind::TupleSpaces.name();
    assert_eq!(Cluster::parse(&cluster.path, &cluster.render()).unwrap(), cluster);
    assert_ne!(cluster.parameters.digest(), digest);
}

/// Clusters that were made before there was a choice go on as they were.
#[test]
fn a_cluster_has_one_schedule_of_checkpoints_for_good() {
    let mut cluster = sample(Path::new("cluster.toml"));
    let digest = cluster.parameters.digest();
    let of_before = cluster.render().replace("checkpoint_schedule = \"sequential\"\n", "");
    cluster.parameters.schedule = Schedule::Coordinated;
    assert_eq!(Cluster::parse(&cluster.path, &of_before).unwrap(), cluster);
    assert_ne!(cluster.parameters.digest(), digest);
    let wrong = cluster.render().replace("\"coordinated\"", "\"random\"");
    let error = format!("{:#}", Cluster::parse(&cluster.path, &wrong).unwrap_err());
    assert!(error.contains("coordinated, sequential") && !error.contains("kv export"), "{error}");
    let mut digests = BTreeSet::new();
    for schedule in Schedule::ALL {
        cluster.parameters.schedule = schedule;
        assert_eq!(Cluster::parse(&cluster.path, &cluster.render()).unwrap(), cluster);
        digests.insert(cluster.parameters.digest());
    }
    assert_eq!(digests.len(), Schedule::ALL.len());
}

/// A cluster goes by what it was made with for good, so whoever has such a file has to make another cluster.
#[test]
fn a_baseline_that_is_gone_is_refused_with_what_to_do() {
    let cluster = sample(Path::new("cluster.toml"));
    for (field, has, had) in [
        ("checkpoint_schedule", "sequential", "stop-the-world"),
        ("durability", "sync", "sync-naive"),
    ] {
        let line = |value: &str| format!("{field} = \"{value}\"\n");
        let text = cluster.render();
        assert!(text.contains(&line(has)), "{text}");
        let text = text.replace(&line(has), &line(had));
        let error = Cluster::parse(&cluster.path, &text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cluster.toml: {field} is {had:?}: it was")), "{error}");
        for words in [
            "baseline",
            "the program that made the cluster",
            "`perdura kv export`",
            "`perdura init`",
            "`perdura kv import`",
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}

/// So do those without a word on how much rarer checkpoints of a large state may be: never.
#[test]
fn a_cluster_without_a_stretch_of_checkpoints_keeps_what_it_had() {
    let mut cluster = sample(Path::new("cluster.toml"));
    let of_before = cluster.render().replace("checkpoint_stretch = 16\n", "");
    assert_ne!(of_before, cluster.render());
    assert_eq!(Cluster::parse(&cluster.path, &cluster.render()).unwrap(), cluster);
    cluster.parameters.checkpoint_stretch = 1;
    assert_eq!(Cluster::parse(&cluster.path, &of_before).unwrap(), cluster);
    let wrong = cluster.render().replace("checkpoint_stretch = 1\n", "checkpoint_stretch = 0\n");
    let error = format!("{:#}", Cluster::parse(&cluster.path, &wrong).unwrap_err());
    assert!(error.contains("checkpoint_stretch must be 1 to 64"), "{error}");
}

/// Files of 0.1.0, whose digest stands in data directories.
#[test]
fn a_file_of_format_1_stays_one() {
    let mut cluster = sample(Path::new("cluster.toml"));
    let digest = cluster.parameters.digest();
    cluster.parameters.versions = Versions::FIRST;
    let text = cluster.render();
    assert!(text.contains("format = 1\n") && !text.contains("rules"), "{text}");
    assert_eq!(Cluster::parse(&cluster.path, &text).unwrap(), cluster);
    assert_ne!(cluster.parameters.digest(), digest);
    for wrong in [text.replace("\"kv\"", "\"ledger\""), format!("{text}[optional]\na = 1\n")] {
        assert!(Cluster::parse(&cluster.path, &wrong).is_err());
    }
}

#[test]
fn a_service_of_another_program_is_known_by_name_and_not_run() {
    let mut cluster = sample(Path::new("cluster.toml"));
    assert_eq!(cluster.service().unwrap(), ServiceKind::KeyValue);
    cluster.parameters.service = ServiceName::literal("ledger");
    assert_eq!(Cluster::parse(&cluster.path, &cluster.render()).unwrap(), cluster);
    let error = cluster.service().unwrap_err().to_string();
    assert!(error.contains("\"ledger\"") && error.contains("kv and tuples"), "{error}");
}

/// Where a newer program puts it they are no part of what all have to agree on, and stay when this one
/// writes the file; elsewhere they are refused by name.
#[test]
fn fields_of_a_newer_program_are_passed_over_or_refused() {
    let cluster = sample(Path::new("cluster.toml"));
    let text = format!(
        "{}\n[optional]\ncolour = \"red\"\nsizes = [1, 2]\n[optional.lamp]\nwatts = 7\n[[optional.client]]\nname = \"a\"\n",
        cluster.render()
    );
    let read = Cluster::parse(&cluster.path, &text).unwrap();
    assert_eq!(read.parameters.digest(), cluster.parameters.digest());
    assert_eq!((read.optional.len(), read.clients.len()), (4, 1));
    assert_eq!(Cluster::parse(&cluster.path, &read.render()).unwrap(), read);
    let required = text.replace("depth = 32", "depth = 32\ncolour = \"red\"");
    let error = format!("{:#}", Cluster::parse(&cluster.path, &required).unwrap_err());
    assert!(error.contains("colour"), "{error}");
}

#[test]
fn each_durability_has_a_name() {
    for known in Durability::ALL {
        assert_eq!(durability(known.name()).unwrap(), known);
    }
    let error = durability("naive").unwrap_err().to_string();
    assert!(error.contains("sync, async, none") && !error.contains("kv export"), "{error}");
}

#[test]
fn who_was_replaced_starts_from_the_latest_configuration_and_the_others_from_the_first() {
    let cluster = sample(Path::new("cluster.toml"));
    let first = cluster.genesis(ReplicaId(0)).configuration;
    assert_eq!((first.id, first.from_slot), (0, Slot(0)));
    assert_eq!(first.members[2], Member { key: PublicKey([20; 32]), incarnation: 0 });
    let latest = cluster.genesis(ReplicaId(2)).configuration;
    assert_eq!((latest.id, latest.from_slot), (1, Slot(77)));
    assert_eq!(latest.members[2], Member { key: PublicKey([2; 32]), incarnation: 1 });
}

#[test]
fn each_wrong_field_is_named_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = sample(&directory.path().join("cluster.toml"));
    let good = cluster.render();
    for (from, to, named) in [
        ("format = 2", "format = 4\ncolour = 1", "format is 4"),
        ("format = 2", "format = 1", "format 1 has no rules"),
        ("rules = 3\n", "", "`rules` is missing"),
        ("rules = 3", "rules = 9", "rules is 9, and this program knows 1 to 3"),
        ("service_version = 1\n", "", "`service_version` is missing"),
        ("service_version = 1", "service_version = 0", "service_version must be"),
        ("depth = 32", "depth = 0", "depth must be 1 to 256"),
        ("depth = 32", "depth = \"x\"", "line 15 (depth)"),
        ("service = \"kv\"", "service = \"S QL\"", "service is \"S QL\""),
        ("depth = 32", "", "depth"),
        ("depth = 32", "depth = 32\ndeepness = 1", "deepness"),
        ("u = 1", "u = 0", "[faults]"),
        ("r = 1", "r = 0", "[[replica]]"),
        ("\"sync\"", "\"maybe\"", "durability"),
        ("id = 1", "id = 3", "replica[1].id"),
        ("127.0.0.1:7402", "127.0.0.1", "replica[2].address"),
        ("127.0.0.1:7503", ":1", "replica[3].http"),
        ("127.0.0.1:7403", "127.0.0.1:7401", "replicas 1 and 3 have the same address"),
        ("127.0.0.1:7503", "127.0.0.1:7501", "replicas 1 and 3 have the same http address"),
        (
            "127.0.0.1:7502",
            "127.0.0.1:7402",
            "http address of replica 2 is the address of replica 2",
        ),
        (
            "127.0.0.1:7501",
            "127.0.0.1:7403",
            "http address of replica 1 is the address of replica 3",
        ),
        ("incarnation = 1\n", "incarnation = 0\n", "replica[2].incarnation"),
        (&"08".repeat(32), "08", "client[0].public_key"),
        (&"07".repeat(16), "zz", "cluster must be"),
        ("format = 2", "format = [", "line 4"),
    ] {
        assert!(good.contains(from), "{from}");
        std::fs::write(&cluster.path, good.replacen(from, to, 1)).unwrap();
        let error = format!("{:#}", Cluster::load(&cluster.path).unwrap_err());
        assert!(error.contains("cluster.toml") && error.contains(named), "{named}: {error}");
    }
}

/// On machines of their own replicas may have the same address for HTTP, if it means the machine it is used on.
#[test]
fn the_same_http_address_is_refused_where_it_is_the_same_place() {
    let mut cluster = sample(Path::new("cluster.toml"));
    let mut read = |hosts: [&str; 4], http: &str| {
        for (entry, host) in cluster.replicas.iter_mut().zip(hosts) {
            entry.address = format!("{host}:7400");
            entry.http = http.to_owned();
        }
        Cluster::parse(&cluster.path, &cluster.render()).map_err(|error| format!("{error:#}"))
    };
    let apart = ["10.0.0.1", "10.0.0.2", "c.example", "[fe80::1]"];
    for own in ["127.0.0.1:7401", "localhost:7401", "[::1]:7401", "0.0.0.0:7401", "[::]:7401"] {
        assert!(read(apart, own).is_ok(), "{own}");
    }
    assert!(read(apart, "10.0.0.1:7401").unwrap_err().contains("same http address, 10.0.0.1:7401"));
    // Four names of one machine.
    let here = ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"];
    assert!(read(here, "127.0.0.1:7401").unwrap_err().contains("replicas 0 and 1"));
}
