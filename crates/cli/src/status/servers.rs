//! `perdura status` of a cluster of several partitions: asks each server once, and shows its members by partition.

use super::asking::{ask_each, get, hinted, where_else};
use super::report::{Line, StatusReport};
use super::table::{aligned, footer, row};
use super::{other_key, roll_call, same_group};
use crate::health::{exit_code, summary};
use crate::process::cpu_time;
use anyhow::{Context, Result, anyhow, ensure};
use perdura_cluster::PartitionedCluster;
use perdura_cluster::health::{Health, RollCall};
use perdura_cluster::protocol::PartitionId;
use perdura_cluster::protocol::text::Printable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::ExitCode;
use std::time::Instant;

/// What a server says; it may say more.
#[derive(Deserialize)]
struct Said {
    server: usize,
    pid: u32,
    partitions: Vec<Value>,
}

/// The whole answer.
#[derive(Serialize)]
struct Answer<'a> {
    partitions: Vec<Partition<'a>>,
    servers: Vec<Server>,
}

#[derive(Serialize)]
struct Partition<'a> {
    partition: u16,
    health: &'static str,
    replicas: &'a [Line],
}

/// A line of the answer. Fields of an unreachable server are null.
#[derive(Serialize)]
struct Server {
    id: usize,
    reachable: bool,
    address: String,
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The processes of those servers that run on this machine, by id.
pub fn here(cluster: &PartitionedCluster) -> Vec<Option<u32>> {
    let addresses = cluster.servers.iter().map(|server| server.http.clone()).collect();
    let said = ask_each(addresses, ask).into_iter().zip(&cluster.servers);
    let here = said.map(|(said, server)| {
        let (host, _) = server.http.rsplit_once(':')?;
        let is_here = ["127.0.0.1", "localhost", "[::1]"].contains(&host);
        said.ok().map(|said| said.pid).filter(|pid| is_here && cpu_time(*pid).is_some())
    });
    here.collect()
}

/// What all say, and the exit code of the partition that stands worst.
pub(super) fn answer(cluster: &PartitionedCluster, json: bool) -> Result<(String, ExitCode)> {
    let addresses = cluster.servers.iter().map(|server| server.http.clone()).collect();
    let said = ask_each(addresses, ask).into_iter().zip(&cluster.servers);
    let said: Vec<Result<Said>> =
        said.map(|(said, server)| hinted(said, &server.address, &server.http)).collect();
    let lines: Vec<Vec<Line>> = lines(cluster, &said);
    let server = |(id, said): (usize, &Result<Said>)| Server {
        id,
        reachable: said.is_ok(),
        address: cluster.servers[id].address.clone(),
        pid: said.as_ref().ok().map(|said| said.pid),
        error: said.as_ref().err().map(|error| format!("{error:#}")),
    };
    let servers: Vec<Server> = said.iter().enumerate().map(server).collect();
    let rolls: Vec<RollCall> =
        cluster.groups().iter().zip(&lines).map(|(group, lines)| roll_call(group, lines)).collect();
    let healths: Vec<Health> = rolls.iter().map(RollCall::health).collect();
    let text = if json {
        let all = (0..).zip(&lines).zip(&healths);
        let partitions = all
            .map(|((partition, replicas), health)| Partition {
                partition,
                health: health.as_str(),
                replicas,
            })
            .collect();
        serde_json::to_string(&Answer { partitions, servers })? + "\n"
    } else {
        text(&lines, &servers, &healths)
    };
    Ok((text, exit_code(healths.into_iter().max().unwrap_or(Health::Neither))))
}

fn ask(id: usize, address: &str, deadline: Instant) -> Result<Said> {
    let body = get(address, "/status", deadline)?;
    let said: Said = serde_json::from_str(&body).context("it gives no status of a server")?;
    ensure!(said.server == id, "server {} answers there; {}", said.server, where_else(address));
    Ok(said)
}

/// By partition, what its replicas say.
fn lines(cluster: &PartitionedCluster, said: &[Result<Said>]) -> Vec<Vec<Line>> {
    let of = |(partition, entry): (u16, &perdura_cluster::config::partitioned::PartitionEntry)| {
        let line = |(id, member): (u8, &perdura_cluster::config::partitioned::MemberEntry)| {
            let report = match &said[member.server] {
                Err(_) => Err(anyhow!("server {} gives no status", member.server)),
                Ok(said) => report(said, PartitionId(partition), id),
            };
            let group = &cluster.group(PartitionId(partition));
            let report = report.and_then(|report| same_group(&report, group).map(|()| report));
            let mut line = Line::new(id, report);
            line.error = line.error.take().or_else(|| other_key(&line, group));
            (line.partition, line.server) = (Some(partition), Some(member.server));
            line
        };
        (0..).zip(&entry.members).map(line).collect()
    };
    (0..).zip(&cluster.partitions).map(of).collect()
}

/// What the server says of its member of a partition.
fn report(said: &Said, partition: PartitionId, id: u8) -> Result<StatusReport> {
    let own = said.partitions.iter().find(|one| one["partition"] == partition.0);
    let own = own.with_context(|| format!("server {} has no member of it", said.server))?;
    if own.get("id").is_none() {
        let why = own["why_not_ready"].as_str().or(own["state"].as_str());
        return Err(anyhow!("{}", why.unwrap_or("it gives no status")));
    }
    let report: StatusReport = serde_json::from_value(own.clone()).context("it gives no status")?;
    ensure!(
        report.id == id,
        "it is replica {} on server {}; take the newer of cluster.toml and server.toml",
        report.id,
        said.server
    );
    Ok(report)
}

/// How many partitions stand how, members by partition, servers, and what is notable.
fn text(lines: &[Vec<Line>], servers: &[Server], healths: &[Health]) -> String {
    let mut text = summary(healths);
    let head = [
        "PARTITION",
        "ID",
        "SERVER",
        "ROLE",
        "STATE",
        "VIEW",
        "DECIDED",
        "EXECUTED",
        "LOGGED",
        "CHECKPOINT",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for (partition, lines) in lines.iter().enumerate() {
        for line in lines {
            let server = line.server.map_or_else(String::new, |server| server.to_string());
            let [id, role, state, view, decided, executed, logged, checkpoint, _] = row(line);
            rows.push([
                partition.to_string(),
                id,
                server,
                role,
                state,
                view,
                decided,
                executed,
                logged,
                checkpoint,
            ]);
        }
    }
    text.push('\n');
    text.push_str(&aligned(&rows));
    let mut rows = vec![["SERVER", "ADDRESS", "PID"].map(str::to_owned)];
    for server in servers {
        let pid = server.pid.map_or("-".to_owned(), |pid| pid.to_string());
        rows.push([server.id.to_string(), server.address.clone(), pid]);
    }
    text.push('\n');
    text.push_str(&aligned(&rows));
    let mut told: Vec<String> = Vec::new();
    for server in servers {
        if let Some(error) = &server.error {
            told.push(format!("server {}: {}\n", server.id, Printable(error)));
        }
    }
    // What was said of a server is not said again of each of its members.
    let reached = |line: &&Line| line.server.is_none_or(|server| servers[server].reachable);
    told.push(footer(lines.iter().flatten().filter(reached)));
    let told = told.concat();
    if told.is_empty() { text } else { text + "\n" + &told }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of eight groups of four on five servers, of which one does not answer.
    #[test]
    fn many_partitions_are_one_table_that_can_be_read() {
        let said = |partition: u16, id: u8| {
            serde_json::json!({"partition": partition, "id": id, "leader": id == 0, "view": 3, "decided": 90_000,
                "executed": 90_000, "logged": 90_000, "checkpoint": {"slot": 64, "digest": "abcdef0123"}, "boundary": null,
                "state": "active", "pid": 123, "ready": true})
        };
        let servers: Vec<Result<Said>> = (0..5)
            .map(|server| match server {
                4 => Err(anyhow!("connection refused")),
                _ => {
                    let partitions =
                        (0..8).map(|partition| said(partition, server as u8)).collect();
                    Ok(Said { server, pid: 100 + server as u32, partitions })
                }
            })
            .collect();
        let line = |partition: u16, id: u8| {
            let from = if partition == 7 && id == 3 { 4 } else { usize::from(id) };
            let report = match &servers[from] {
                Ok(said) => report(said, PartitionId(partition), id),
                Err(_) => Err(anyhow!("server 4 gives no status")),
            };
            let mut line = Line::new(id, report);
            (line.partition, line.server) = (Some(partition), Some(from));
            line
        };
        let lines: Vec<Vec<Line>> =
            (0..8).map(|partition| (0..4).map(|id| line(partition, id)).collect()).collect();
        let shown: Vec<Server> = servers
            .iter()
            .enumerate()
            .map(|(id, said)| Server {
                id,
                reachable: said.is_ok(),
                address: format!("10.0.0.{id}:7400"),
                pid: said.as_ref().ok().map(|said| said.pid),
                error: said.as_ref().err().map(ToString::to_string),
            })
            .collect();
        let mut healths = vec![Health::Writes; 8];
        healths[7] = Health::ReadsOnly;
        let text = text(&lines, &shown, &healths);
        assert!(text.starts_with("writes and reads: 7 of 8 partitions (0, 1, 2, 3, 4, 5, 6)\nreads only: 1 of 8 partitions (7)\n"), "{text}");
        assert_eq!(text.lines().count(), 2 + 1 + 33 + 1 + 6 + 1 + 1, "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert!(text.contains("\n0          0   0       leader    active"), "{text}");
        assert!(text.contains("\n7          3   4       -         unreachable"), "{text}");
        assert!(text.ends_with("\n\nserver 4: connection refused\n"), "{text}");
    }

    #[test]
    fn what_a_server_says_of_a_member_that_does_not_run_is_told() {
        let partitions = vec![
            serde_json::json!({"partition": 0, "state": "stopped", "ready": false, "why_not_ready": "the disk is full"}),
            serde_json::json!({"partition": 1, "state": "starting", "ready": false}),
        ];
        let said = Said { server: 2, pid: 7, partitions };
        let told = |partition| report(&said, PartitionId(partition), 0).unwrap_err().to_string();
        assert_eq!(told(0), "the disk is full");
        assert_eq!(told(1), "starting");
        assert_eq!(told(2), "server 2 has no member of it");
    }
}
