//! Asks HTTP endpoints, all at once, and waits for none longer than [`TIMEOUT`].

use super::report::StatusReport;
use anyhow::{Context, Result, anyhow, bail, ensure};
use perdura_cluster::config::Cluster;
use perdura_cluster::create::is_of_one_machine;
use perdura_cluster::protocol::text::Printable;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The answer is there after this time, whoever has answered by then.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Largest answer that is read.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// What each replica says, by id.
pub fn ask_all(cluster: &Cluster) -> Vec<Result<StatusReport>> {
    let said = ask_each(cluster.replicas.iter().map(|entry| entry.http.clone()).collect(), ask);
    let all = said.into_iter().zip(&cluster.replicas);
    all.map(|(said, entry)| hinted(said, &entry.address, &entry.http)).collect()
}

/// What each says, in their order.
pub(super) fn ask_each<T: Send + 'static>(
    addresses: Vec<String>,
    ask: fn(usize, &str, Instant) -> Result<T>,
) -> Vec<Result<T>> {
    let deadline = Instant::now() + TIMEOUT;
    let (sender, answers) = mpsc::channel();
    let mut reports: Vec<Result<T>> =
        addresses.iter().map(|_| Err(anyhow::anyhow!("no answer in time"))).collect();
    for (id, address) in addresses.into_iter().enumerate() {
        let sender = sender.clone();
        // Resolving a name may take longer than there is time; such a thread is left behind.
        std::thread::spawn(move || {
            let report = ask(id, &address, deadline).with_context(|| format!("http://{address}"));
            let _ = sender.send((id, report));
        });
    }
    drop(sender);
    let limit = deadline + Duration::from_millis(100);
    while let Ok((id, report)) =
        answers.recv_timeout(limit.saturating_duration_since(Instant::now()))
    {
        reports[id] = report;
    }
    reports
}

fn ask(id: usize, address: &str, deadline: Instant) -> Result<StatusReport> {
    let body = get(address, "/status", deadline)?;
    let report: StatusReport = serde_json::from_str(&body).context("it gives no status")?;
    ensure!(
        usize::from(report.id) == id,
        "replica {} answers there; {}",
        report.id,
        where_else(address)
    );
    Ok(report)
}

/// What to do where each replica, or server, serves its status on the loopback of a host of its own.
pub(super) const ON_LOOPBACK: &str = "each serves it on the loopback of its own host: ask there, or ask all with `perdura health`, over the protocol port; or have it \
    served to the network (docs/deploy.md, \"Status over the network\")";

/// Why another one may answer at an address.
pub(super) fn where_else(address: &str) -> &'static str {
    if is_of_one_machine(address) { ON_LOOPBACK } else { "check http in cluster.toml" }
}

/// Whether status is served at `http` on the loopback of a host that others find at `address`: from elsewhere nobody can ask there.
pub(super) fn is_elsewhere(address: &str, http: &str) -> bool {
    is_of_one_machine(http) && !is_of_one_machine(address)
}

/// What was said, or why not, with what to do where the status is served on loopback of other hosts.
pub(super) fn hinted<T>(said: Result<T>, address: &str, http: &str) -> Result<T> {
    said.map_err(|error| {
        let text = format!("{error:#}");
        match is_elsewhere(address, http) && !text.contains(ON_LOOPBACK) {
            true => anyhow!("{text}; {ON_LOOPBACK}"),
            false => error,
        }
    })
}

/// The body of an HTTP answer with status 200.
pub fn get(address: &str, path: &str, deadline: Instant) -> Result<String> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        left if left.is_zero() => Err(anyhow::anyhow!("no answer in time")),
        left => Ok(left),
    };
    let resolved = address.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&resolved, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let length = stream.read(&mut chunk).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow::anyhow!("no answer in time"),
            _ => error.into(),
        })?;
        answer.extend_from_slice(&chunk[..length]);
        ensure!(answer.len() as u64 <= ANSWER_BYTES, "the answer is too long");
        if length == 0 {
            break;
        }
    }
    let answer = String::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => bail!("it says {}", Printable(body.lines().next().unwrap_or(head))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_asked_from_here_is_asked_otherwise() {
        let failed = |address: &str, http: &str| {
            let failed = Err::<(), _>(anyhow!("Connection refused").context("http://here"));
            format!("{:#}", hinted(failed, address, http).unwrap_err())
        };
        let told = failed("db1:7400", "127.0.0.1:7401");
        assert!(told.starts_with("http://here: Connection refused; each"), "{told}");
        assert!(told.contains("`perdura health`"), "{told}");
        for (address, http) in [("127.0.0.1:1", "127.0.0.1:2"), ("db1:7400", "db1:7401")] {
            assert_eq!(failed(address, http), "http://here: Connection refused");
        }
        let another = Err::<(), _>(anyhow!("x; {}", where_else("127.0.0.1:7401")));
        let told = format!("{:#}", hinted(another, "db1:7400", "127.0.0.1:7401").unwrap_err());
        assert_eq!(told.matches("perdura health").count(), 1);
    }
}
