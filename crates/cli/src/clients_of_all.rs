//! `perdura client add|revoke|list` on a cluster of several partitions: the same is ordered in each group, and again with each further run
//! until all have it.

use crate::administer::{How, administer_each, is_refused};
use crate::client_keys::warn_of_anybodys;
use crate::connect::administrator;
use crate::status::aligned;
use anyhow::{Context, Result, bail};
use perdura_client::Reply;
use perdura_cluster::Cluster;
use perdura_cluster::config::KeyFile;
use perdura_protocol::text::Printable;
use perdura_protocol::{AdminCommand, ClientList, Decode, PublicKey};
use std::collections::BTreeMap;
use std::io::Write;

/// What became of an order in each group.
struct Ordered {
    /// By partition.
    results: Vec<Result<Reply>>,
}

impl Ordered {
    fn new(
        key: &KeyFile,
        groups: &[Cluster],
        how: &How,
        command: &AdminCommand,
    ) -> Result<Ordered> {
        Ok(Ordered { results: administer_each(key, groups, how, command)? })
    }

    /// Numbers of the partitions where it ended so.
    fn those(&self, ended: impl Fn(&Result<Reply>) -> bool) -> Vec<usize> {
        let all = self.results.iter().enumerate();
        all.filter(|(_, result)| ended(result)).map(|(partition, _)| partition).collect()
    }

    /// A line for each that ended so, with why.
    fn why(&self, ended: impl Fn(&anyhow::Error) -> bool) -> String {
        let line = |(partition, result): (usize, &Result<Reply>)| {
            let error = result.as_ref().err().filter(|error| ended(error))?;
            Some(format!("\npartition {partition}: {error:#}"))
        };
        self.results.iter().enumerate().filter_map(line).collect()
    }
}

fn refused(result: &Result<Reply>) -> bool {
    result.as_ref().is_err_and(is_refused)
}

fn unknown(result: &Result<Reply>) -> bool {
    result.as_ref().is_err_and(|error| !is_refused(error))
}

fn numbers(partitions: &[usize]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Registers a key under a name in each group.
///
/// # Errors
/// Where a group has another key under that name, or the key under another name, nothing is changed in any; else the command is to be run
/// again.
pub fn add(groups: &[Cluster], how: &How, name: &str, key: PublicKey) -> Result<()> {
    let own = administrator(&how.cluster, &groups[0])?;
    for (partition, clients) in lists(&own, groups, how)?.into_iter().enumerate() {
        // What a group does not say now it says when the key is ordered there.
        let Ok(ClientList(clients)) = clients else { continue };
        for (other, registered) in clients {
            if (other == name) != (registered == key) {
                bail!(
                    "client {name} is not registered: partition {partition} has {} with the public key {registered}. Nothing was changed",
                    Printable(&other)
                );
            }
        }
    }
    let command = AdminCommand::AddClient { name: name.to_owned(), key };
    let ordered = Ordered::new(&own, groups, how, &command)?;
    let missing = ordered.those(Result::is_err);
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "client {name} is registered in {} of {} partitions, and may not be in {}; run the command again until all have it{}",
        groups.len() - missing.len(),
        groups.len(),
        numbers(&missing),
        ordered.why(|_| true)
    )
}

/// Revokes the key of that name in each group.
///
/// # Errors
/// Where no group knows the name; where it is not known whether one has it still the command is to be run again.
pub fn revoke(groups: &[Cluster], how: &How, name: &str) -> Result<()> {
    let own = administrator(&how.cluster, &groups[0])?;
    let command = AdminCommand::RevokeClient { name: name.to_owned() };
    let mut ordered = Ordered::new(&own, groups, how, &command)?;
    let open = ordered.those(unknown);
    let without = ordered.those(refused);
    if !open.is_empty() {
        bail!(
            "client {name} may not be revoked in partition {}; run the command again until all have revoked it{}",
            numbers(&open),
            ordered.why(|error| !is_refused(error))
        );
    }
    if without.len() == groups.len() {
        let first = ordered.results.swap_remove(0);
        return first.map(drop).with_context(|| format!("client {name} is not revoked"));
    }
    if !without.is_empty() {
        say!(
            "partition {} had no client of that name, or has revoked it before",
            numbers(&without)
        );
    }
    Ok(())
}

/// The clients of each group, as far as it says.
fn lists(key: &KeyFile, groups: &[Cluster], how: &How) -> Result<Vec<Result<ClientList>>> {
    let results = administer_each(key, groups, how, &AdminCommand::ListClients)?;
    let list = |result: Result<Reply>| {
        let Reply::Told(told) = result? else { bail!("it gave an answer that is no list") };
        ClientList::from_bytes(told).context("the list is malformed")
    };
    Ok(results.into_iter().map(list).collect())
}

/// Shows the clients, and which partitions have them.
///
/// # Errors
/// When a group does not say, after what the others say.
pub fn list(groups: &[Cluster], how: &How, json: bool) -> Result<()> {
    let own = administrator(&how.cluster, &groups[0])?;
    let mut having: BTreeMap<(String, PublicKey), Vec<usize>> = BTreeMap::new();
    let mut silent = Vec::new();
    for (partition, clients) in lists(&own, groups, how)?.into_iter().enumerate() {
        match clients {
            Ok(ClientList(clients)) => {
                for client in clients {
                    having.entry(client).or_default().push(partition);
                }
            }
            Err(error) => silent.push(format!("partition {partition}: {error:#}")),
        }
    }
    warn_of_anybodys(having.keys());
    let said = groups.len() - silent.len();
    let mut out = std::io::stdout().lock();
    let mut rows = vec![["NAME", "PUBLIC KEY", "PARTITIONS"].map(str::to_owned)];
    for ((name, key), partitions) in having {
        if json {
            let line = serde_json::json!({"name": name, "public_key": key.to_string(), "partitions": partitions});
            writeln!(out, "{line}")?;
            continue;
        }
        let which = match partitions.len() == groups.len() {
            true => "all".to_owned(),
            false => format!("{} of {said}: {}", partitions.len(), numbers(&partitions)),
        };
        rows.push([Printable(&name).to_string(), key.to_string(), which]);
    }
    if !json {
        out.write_all(aligned(&rows).as_bytes())?;
    }
    if !silent.is_empty() {
        bail!("some partitions did not give their clients:\n{}", silent.join("\n"));
    }
    Ok(())
}
