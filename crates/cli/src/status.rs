//! `perdura status`: how each replica stands, by what it says at its HTTP endpoint.

mod asking;
mod report;
pub mod servers;
mod table;

use asking::is_elsewhere;
pub use asking::{ask_all, get};
pub use report::{Differing, Hanging, Member, Point, Spent, StatusReport};
pub use table::aligned;

use crate::command::CLUSTER_VARIABLE;
use crate::connect::parse_duration;
use crate::health::exit_code;
use anyhow::{Result, ensure};
use clap::Args;
use perdura_cluster::client::Attendance;
use perdura_cluster::config::{CLUSTER_FILE, Cluster, PartitionedCluster, ReadError};
use perdura_cluster::health::RollCall;
use perdura_cluster::protocol::text::Printable;
use perdura_cluster::protocol::vitals::{Condition, Vitals};
use perdura_cluster::protocol::{ReplicaId, View};
use report::Line;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use table::table;

/// How each replica stands
///
/// Its role, its view, how far it has decided, executed and logged, its last checkpoint.
///
/// Of a cluster of several partitions: its members by partition, and its servers.
///
/// Asks the HTTP ports; `perdura health` asks over the protocol port. Exit code, by what the replicas say: 0 the cluster can be
/// written to, 3 it can be read only, 4 neither, 1 it could not be asked, 2 used wrongly.
#[derive(Args)]
pub struct Arguments {
    /// The directory of the cluster's files
    #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
    cluster: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show it again and again, after this time [default: 2s], until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = parse_duration)]
    watch: Option<Duration>,
}

/// The whole answer.
#[derive(Serialize)]
struct Answer<'a> {
    replicas: &'a [Line],
}

/// What answers at a replica's address has to be of its group. It says so itself, and nothing proves it: whom two clusters gave one port is told of it.
fn same_group(report: &StatusReport, group: &Cluster) -> Result<()> {
    let Some(said) = &report.cluster else { return Ok(()) };
    let own = group.parameters.cluster.to_string();
    ensure!(
        *said == own,
        "another cluster answers there: {}, and {} is of {own}; two clusters have one port, or the file is of another one",
        Printable(said),
        group.path.display()
    );
    Ok(())
}

/// What to say of one whose key is not that of the file.
fn other_key(line: &Line, group: &Cluster) -> Option<String> {
    let said = line.key.as_ref()?;
    let own = group.replicas.get(usize::from(line.id))?.key.to_string();
    (*said != own).then(|| {
        format!(
            "its key is not the one in {}: it was replaced since that file was written, or is no replica of this cluster; take the newest file",
            group.path.display()
        )
    })
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let out = &mut std::io::stdout();
    let Some(pause) = arguments.watch else { return show(arguments, out, false) };
    let clears = out.is_terminal() && !arguments.json;
    loop {
        show(arguments, out, clears)?;
        std::thread::sleep(pause);
    }
}

/// Asks, and only then shows what was said, all at once: who watches sees the former answer until there is a new one.
fn show(arguments: &Arguments, out: &mut impl Write, clears: bool) -> Result<ExitCode> {
    let (answer, code) = answer(arguments)?;
    let mut text = String::new();
    if clears {
        // The cursor to the first place, and nothing behind it.
        text = format!("\x1b[H\x1b[2J{}: {}\n", arguments.cluster.display(), clock());
    }
    text.push_str(&answer);
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(code)
}

/// The time of day, UTC.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (hours, minutes, seconds) = (now / 3600 % 24, now / 60 % 60, now % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02} UTC")
}

/// What is said of all, and the exit code.
fn answer(arguments: &Arguments) -> Result<(String, ExitCode)> {
    let path = arguments.cluster.join(CLUSTER_FILE);
    let cluster = match Cluster::load(&path) {
        Err(ReadError::Partitioned { .. }) => {
            return servers::answer(&PartitionedCluster::load(&path)?, arguments.json);
        }
        one => one?,
    };
    let line = |(id, said): (u8, Result<StatusReport>)| {
        let said = said.and_then(|report| same_group(&report, &cluster).map(|()| report));
        let mut line = Line::new(id, said);
        line.error = line.error.take().or_else(|| other_key(&line, &cluster));
        line
    };
    let lines: Vec<Line> = (0..).zip(ask_all(&cluster)).map(line).collect();
    let text = match arguments.json {
        true => serde_json::to_string(&Answer { replicas: &lines })? + "\n",
        false => table(&lines),
    };
    Ok((text, exit_code(roll_call(&cluster, &lines).health())))
}

/// As if each had been asked over the protocol port. Of whom nobody here can ask it is not known whether they run.
fn roll_call(cluster: &Cluster, lines: &[Line]) -> RollCall {
    let is_elsewhere = |id: u8| {
        let entry = cluster.replicas.get(usize::from(id));
        entry.is_some_and(|entry| is_elsewhere(&entry.address, &entry.http))
    };
    let attendance = lines.iter().map(|line| Attendance {
        id: ReplicaId(line.id),
        vitals: line.state.as_deref().map(|state| Vitals {
            condition: match state {
                "active" => Condition::Active,
                "waiting" => Condition::Waiting,
                _ => Condition::Recovering,
            },
            view: View(line.view.unwrap_or_default()),
            // It would be ready else.
            clock_wrong: state == "active" && !line.ready,
            ..Vitals::default()
        }),
        failure: line.error.clone(),
        runs: line.state.is_none() && is_elsewhere(line.id),
        configuration: None,
    });
    RollCall::of(cluster, attendance.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cluster::ServiceKind;
    use perdura_cluster::create::{self, Place};
    use perdura_cluster::health::Health;
    use perdura_cluster::protocol::Faults;
    use perdura_cluster::protocol::configuration::Durability;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// What is shown, and how many replicas had been asked when that began.
    struct Screen {
        asked: Arc<AtomicUsize>,
        asked_before: Option<usize>,
        text: String,
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.asked_before.get_or_insert(self.asked.load(Ordering::SeqCst));
            self.text.push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_screen_is_cleared_once_all_were_asked() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = directory.path().join("cluster");
        let asked = Arc::new(AtomicUsize::new(0));
        // Each gives no answer, at once.
        let endpoint = |id: u16| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, asked) = (listener.local_addr().unwrap(), Arc::clone(&asked));
            std::thread::spawn(move || {
                for connection in listener.incoming() {
                    asked.fetch_add(1, Ordering::SeqCst);
                    drop(connection);
                }
            });
            let protocol = format!("127.0.0.1:{}", 1 + id);
            Place::new(protocol.clone(), protocol, address.to_string())
        };
        let places: Vec<Place> = (0..3).map(endpoint).collect();
        let faults = Faults::new(1, 0).unwrap();
        create::make(
            &cluster,
            faults,
            Durability::Sync,
            ServiceKind::KeyValue.name(),
            |_| (),
            &places,
        )
        .unwrap();
        let arguments = Arguments { cluster, json: false, watch: None };
        let mut screen = Screen { asked, asked_before: None, text: String::new() };
        show(&arguments, &mut screen, true).unwrap();
        assert_eq!(screen.asked_before, Some(3));
        let (head, table) = screen.text.split_once(" UTC\n").unwrap();
        assert!(head.starts_with("\x1b[H\x1b[2J"), "{head}");
        assert!(table.starts_with("ID  ROLE"), "{table}");
    }

    /// Each runs perhaps, on a host of its own: that is no reason to say that nothing can be written.
    #[test]
    fn who_cannot_be_asked_from_here_is_not_taken_for_failed() {
        let directory = tempfile::tempdir().unwrap();
        let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceKind::KeyValue.name());
        let lines: Vec<Line> =
            (0..3).map(|id| Line::new(id, Err(anyhow::anyhow!("gone")))).collect();
        let hosts = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(str::to_owned);
        for (name, hosts, public, health) in [
            ("elsewhere", &hosts[..], false, Health::Unknown),
            ("public", &hosts, true, Health::Neither),
            ("here", &[], false, Health::Neither),
        ] {
            let places = Place::all(3, hosts, Some(7000), public).unwrap();
            let dir = directory.path().join(name);
            let service = service.clone();
            let cluster =
                create::make(&dir, faults, Durability::Sync, service, |_| (), &places).unwrap();
            assert_eq!(roll_call(&cluster, &lines).health(), health, "{name}");
        }
    }

    #[test]
    fn json_is_as_promised() {
        let said = r#"{"id":0,"leader":true,"view":3,"decided":90,"executed":90,"logged":90,
            "checkpoint":{"slot":64,"digest":"ab"},"boundary":null,"state":"active","pid":123,
            "ready":true,"more":1}"#;
        let line = Line::new(0, Ok(serde_json::from_str(said).unwrap()));
        assert_eq!(
            serde_json::to_value(line).unwrap(),
            serde_json::json!({"id":0,"reachable":true,"leader":true,"view":3,"decided":90,
                "executed":90,"logged":90,"checkpoint":{"slot":64,"digest":"ab"},"boundary":null,
                "state":"active","ready":true,"pid":123})
        );
        let terms =
            "\"rules_version\":1,\"service_version\":2,\"state_bytes\":3,\"state_limit_bytes\":4";
        let line =
            Line::new(0, Ok(serde_json::from_str(&said.replace("\"more\":1", terms)).unwrap()));
        let shown = serde_json::to_value(line).unwrap();
        assert_eq!(
            (&shown["service_version"], &shown["state_limit_bytes"]),
            (&2.into(), &4.into())
        );
        let repaired = said.replace("\"more\":1", "\"repairs\":2");
        let line = Line::new(0, Ok(serde_json::from_str(&repaired).unwrap()));
        assert!(table(&[line]).contains("\nreplica 0: has replaced its state 2 times"));
        let rotten = said.replace("\"more\":1", "\"checkpoint_damages\":3");
        let line = Line::new(0, Ok(serde_json::from_str(&rotten).unwrap()));
        assert!(
            table(&[line])
                .contains("\nreplica 0: parts of its stored checkpoints that it found damaged: 3")
        );
        let said = said.replace("\"more\":1", "\"experiments\":[\"a slow log\"]");
        let line = Line::new(0, Ok(serde_json::from_str(&said).unwrap()));
        assert!(table(&[line]).ends_with("\nreplica 0: experiment: a slow log\n"));
        let hostile = said.replace("active", "\\u001b[2J");
        let line = Line::new(0, Ok(serde_json::from_str(&hostile).unwrap()));
        assert!(table(&[line]).contains("\\u{1b}[2J"));
        let line = serde_json::to_value(Line::new(1, Err(anyhow::anyhow!("gone")))).unwrap();
        assert_eq!((&line["reachable"], &line["id"]), (&false.into(), &1.into()));
    }
}
