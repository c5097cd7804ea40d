//! `perdura client add|revoke|list`: client keys, by ordered commands, while the cluster runs.
//!
//! The new key is in its file (with `.pending` behind its name) before it is ordered, so that a
//! run that was interrupted can be repeated and nothing is registered whose key is lost.

use crate::Usage;
use crate::administer::{How, administer, is_refused};
use crate::called;
use crate::clients_of_all;
use crate::command::CLUSTER_VARIABLE;
use crate::connect::{administrator, load_groups};
use crate::ending::tell_in_time;
use crate::shell;
use crate::status::aligned;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use perdura_client::Reply;
use perdura_cluster::config::keys::fresh_key;
use perdura_cluster::config::{CLIENT_FILE, CLUSTER_FILE, KeyFile, files};
use perdura_protocol::text::{Printable, is_printable};
use perdura_protocol::{AdminCommand, ClientList, Decode, PublicKey, limits};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Certify, revoke and list client keys, while the cluster runs
///
/// With the administrator's key, and without a restart.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key, register it under a name, and write it to a file
    Add {
        /// Unique, 1 to 64 bytes
        name: String,
        /// Where the key goes [default: client-NAME.toml in DIR]
        #[arg(long, value_name = "FILE")]
        key_out: Option<PathBuf>,
        /// Register this public key, as `perdura client key` prints it; its secret one stays where it was made
        #[arg(long, value_name = "HEX", conflicts_with = "key_out", value_parser = parse_public_key)]
        public_key: Option<PublicKey>,
        #[command(flatten)]
        how: How,
    },
    /// Make a key without registering it, and print its public key for `perdura client add NAME --public-key`: so whoever administers
    /// the cluster never has the secret one
    Key {
        /// Where the key goes
        #[arg(long, value_name = "FILE")]
        key_out: PathBuf,
        /// The directory with the cluster's cluster.toml
        #[arg(long, value_name = "DIR", env = CLUSTER_VARIABLE, hide_env_values = true)]
        cluster: PathBuf,
    },
    /// Revoke the key that is registered under a name; it is never registered again
    Revoke {
        /// As registered; the key that `perdura init` made is named "default"
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Show the registered clients, as replicas agree on them: name and public key
    List {
        /// A JSON object for each client, one a line: {"name":...,"public_key":...}
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        how: How,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Add { name, key_out, public_key: None, how } => {
            add(name, key_out.as_deref(), how)?
        }
        Command::Add { name, key_out: _, public_key: Some(key), how } => register(name, *key, how)?,
        Command::Key { key_out, cluster } => make_key(key_out, cluster)?,
        Command::Revoke { name, how } => {
            match &load_groups(&how.cluster)?[..] {
                [cluster] => {
                    administer(cluster, how, AdminCommand::RevokeClient { name: name.clone() })?;
                }
                groups => clients_of_all::revoke(groups, how, name)?,
            }
            say!("client {name} is revoked, and its sessions are closed");
        }
        Command::List { json, how } => list(*json, how)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool, how: &How) -> Result<()> {
    let groups = load_groups(&how.cluster)?;
    let [cluster] = &groups[..] else { return clients_of_all::list(&groups, how, json) };
    let reply = administer(cluster, how, AdminCommand::ListClients)?;
    let Reply::Told(told) = reply else { bail!("the cluster gave an answer that is no list") };
    let ClientList(clients) = ClientList::from_bytes(told).context("the list is malformed")?;
    warn_of_anybodys(&clients);
    let mut out = std::io::stdout().lock();
    if json {
        for (name, key) in &clients {
            let line = serde_json::json!({"name": name, "public_key": key.to_string()});
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    let mut rows = vec![["NAME".to_owned(), "PUBLIC KEY".to_owned()]];
    rows.extend(clients.iter().map(|(name, key)| [Printable(name).to_string(), key.to_string()]));
    out.write_all(aligned(&rows).as_bytes())?;
    Ok(())
}

/// As `perdura client key` prints it.
fn parse_public_key(text: &str) -> Result<PublicKey, String> {
    let key = perdura_protocol::ids::from_hex(text).map(PublicKey);
    let key = key.ok_or_else(|| "a public key is 64 hexadecimal digits".to_owned())?;
    if key.is_anybodys() {
        return Err(called::here(
            "anybody can sign in the name of this key: it stands for a point of small order, as no key does that was made by chance. \
             Have whoever gave it to you make another one, with `perdura client key`",
        ));
    }
    Ok(key)
}

/// Says of registered keys under which anybody can sign, as older programs registered them, what to do about them.
pub fn warn_of_anybodys<'a>(clients: impl IntoIterator<Item = &'a (String, PublicKey)>) {
    for (name, _) in clients.into_iter().filter(|(_, key)| key.is_anybodys()) {
        tell_in_time(&format!(
            "anybody can sign in the name of client {}: its key stands for a point of small order; revoke it, with `perdura client revoke`",
            Printable(name)
        ));
    }
}

/// A name is shown to people, in lists and logs.
fn check_name(name: &str) -> Result<()> {
    let most = limits::CLIENT_NAME_BYTES;
    if name.is_empty() || name.len() > most {
        bail!(Usage(format!("a client's name has 1 to {most} bytes")));
    }
    if !is_printable(name) {
        bail!(Usage(format!("a client's name has no control characters: {}", Printable(name))));
    }
    Ok(())
}

/// What is certain where nothing could be sent.
fn not_registered(name: &str) -> String {
    format!("client {name} is not registered, and nothing was sent")
}

fn register(name: &str, key: PublicKey, how: &How) -> Result<()> {
    check_name(name)?;
    let groups = load_groups(&how.cluster)?;
    administrator(&how.cluster, &groups[0]).with_context(|| not_registered(name))?;
    match &groups[..] {
        [cluster] => {
            let command = AdminCommand::AddClient { name: name.to_owned(), key };
            administer(cluster, how, command).map_err(|error| {
                let said = match is_refused(&error) {
                    true => format!("client {name} is not registered"),
                    false => format!("client {name} may not be registered; run the command again"),
                };
                error.context(said)
            })?;
        }
        groups => clients_of_all::add(groups, how, name, key)?,
    }
    say!("client {name} is registered with the public key {key}");
    Ok(())
}

/// That a key can go to this file; so it may be called in a directory.
fn check_free(path: &Path, name: &str) -> Result<()> {
    if path.is_dir() {
        let within = path.join(name);
        bail!(
            "{} is a directory, and a file is wanted: {}, perhaps",
            path.display(),
            within.display()
        );
    }
    if path.exists() {
        bail!(
            "{} is there already, and nothing is overwritten; give another file with --key-out",
            path.display()
        );
    }
    Ok(())
}

fn make_key(path: &Path, directory: &Path) -> Result<()> {
    check_free(path, CLIENT_FILE)?;
    load_groups(directory)?;
    let key = fresh_key()?;
    let to = path_from(&files::directory_of(path), &directory.join(CLUSTER_FILE))?;
    KeyFile::write(path, "A client of a Perdura cluster.", "unregistered", &key, &to)?;
    say!("{}", key.public());
    Ok(())
}

fn add(name: &str, key_out: Option<&Path>, how: &How) -> Result<()> {
    check_name(name)?;
    let path = match key_out {
        Some(path) => path.to_owned(),
        None if name.contains('/') => {
            bail!(Usage(format!("{name:?} makes no file name; give --key-out FILE")))
        }
        None => how.cluster.join(format!("client-{name}.toml")),
    };
    let _alone = alone(&files::directory_of(&path))?;
    check_free(&path, &format!("client-{name}.toml"))?;
    let mut pending = path.clone().into_os_string();
    pending.push(".pending");
    let pending = PathBuf::from(pending);
    let groups = load_groups(&how.cluster)?;
    administrator(&how.cluster, &groups[0]).with_context(|| not_registered(name))?;
    let key = match pending.exists() {
        true => KeyFile::load(&pending)?.key,
        false => {
            let key = fresh_key()?;
            let to = path_from(&files::directory_of(&path), &how.cluster.join(CLUSTER_FILE))?;
            KeyFile::write(&pending, "A client of a Perdura cluster.", name, &key, &to)?;
            key
        }
    };
    let ordered = match &groups[..] {
        [cluster] => {
            let command = AdminCommand::AddClient { name: name.to_owned(), key: key.public() };
            administer(cluster, how, command).map(drop)
        }
        groups => clients_of_all::add(groups, how, name, key.public()),
    };
    match ordered {
        Ok(()) => {}
        Err(error) if groups.len() > 1 => {
            return Err(error).with_context(|| format!("the key waits in {}", pending.display()));
        }
        Err(error) if is_refused(&error) => {
            // Certain, so the key is of no use.
            let _ = std::fs::remove_file(&pending);
            return Err(error).with_context(|| format!("client {name} is not registered"));
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "client {name} may not be registered; run the command again: it goes on with \
                     the key in {}",
                    pending.display()
                )
            });
        }
    }
    files::rename(&pending, &path)?;
    say!("client {name} is registered; its key is in {}", path.display());
    if groups.len() > 1 {
        return Ok(());
    }
    say!(
        "use it with: perdura kv get KEY --cluster {} --client {}",
        shell::path(&how.cluster),
        shell::path(&path)
    );
    Ok(())
}

/// That no other command makes or replaces keys in this directory: two that make one of the same name would each
/// order theirs, and one file would be left.
pub fn alone(directory: &Path) -> Result<File> {
    let lock = files::lock_directory(directory);
    if lock.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        bail!(
            "there is no directory {}; --cluster takes one that `perdura init` made",
            directory.display()
        );
    }
    let lock =
        lock.with_context(|| format!("cannot lock the directory {}", directory.display()))?;
    lock.with_context(|| {
        format!(
            "another command is changing keys in {}; wait until it has ended, and run this one again",
            directory.display()
        )
    })
}

/// `file` as seen from `directory`: its name if it stands there, else the whole path.
fn path_from(directory: &Path, file: &Path) -> Result<String> {
    let absolute = |path: &Path| {
        std::fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))
    };
    let (directory, file) = (absolute(directory)?, absolute(file)?);
    let seen = file.strip_prefix(&directory).unwrap_or(&file);
    Ok(seen.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cluster::ServiceKind;
    use perdura_cluster::config::ADMIN_FILE;
    use perdura_cluster::create::{self, Place};
    use perdura_protocol::Faults;
    use perdura_protocol::configuration::Durability;
    use std::time::Duration;

    /// Nobody runs that could be asked: it is known before.
    #[test]
    fn without_the_administrators_key_nothing_is_sent_and_nothing_left() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let (faults, service) = (Faults::new(1, 0).unwrap(), ServiceKind::KeyValue.name());
            let places = Place::all(3, &[], Some(7000), false).unwrap();
            let dir = directory.path().join(name);
            create::make(&dir, faults, Durability::Sync, service, |_| (), &places).unwrap();
            dir
        };
        let (cluster, other) = (make("one"), make("other"));
        std::fs::copy(other.join(ADMIN_FILE), cluster.join(ADMIN_FILE)).unwrap();
        let how = How { cluster: cluster.clone(), timeout: Duration::from_secs(60) };
        let key = fresh_key().unwrap().public();
        for error in [add("eve", None, &how), register("eve", key, &how)] {
            let told = format!("{:#}", error.unwrap_err());
            assert!(told.contains("nothing was sent") && told.contains("admin.toml"), "{told}");
        }
        let left = std::fs::read_dir(&cluster).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().contains("eve")), "{left:?}");
    }

    #[test]
    fn a_key_that_is_anybodys_is_refused_in_each_encoding() {
        let key = fresh_key().unwrap().public();
        assert_eq!(parse_public_key(&key.to_string()), Ok(key));
        let zero = "00".repeat(32);
        for (first, last) in [("00", "00"), ("00", "80"), ("01", "00"), ("01", "80")] {
            let text = format!("{first}{}{last}", &zero[4..]);
            let refused = parse_public_key(&text).unwrap_err();
            assert!(refused.contains("perdura client key"), "{text}: {refused}");
        }
        assert!(parse_public_key("12").unwrap_err().contains("64 hexadecimal digits"));
    }
}
