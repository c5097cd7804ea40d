//! Files that hold a key: `client.toml`, `client-NAME.toml`, `admin.toml`.

use super::error::{Context, EntropyError, Result, WriteError};
use super::files::{self, Secrecy};
use super::{CLUSTER_FILE, FORMAT_VERSION, secret_key};
use perdura_protocol::{ClusterId, Scheme, SecretKey};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What an administrator's file says first.
pub const ADMINISTRATORS: &str =
    "The administrator of a Perdura cluster: replaces replicas, certifies clients.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: u32,
    // For whoever reads the file: the cluster knows a client by its key.
    #[serde(rename = "name")]
    _name: String,
    secret_key: String,
    cluster: PathBuf,
    administrator_of: Option<String>,
}

/// A key, and of which cluster.
#[derive(Clone, Debug)]
pub struct KeyFile {
    /// The key.
    pub key: SecretKey,
    /// Where cluster.toml is, resolved.
    pub cluster: PathBuf,
    /// The cluster whose administrator it is the key of, if it took the place of the one in cluster.toml.
    pub administrator_of: Option<ClusterId>,
}

impl KeyFile {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<KeyFile> {
        let advice = "`perdura init` makes client.toml and admin.toml, `perdura client add NAME` \
                      the files of further clients";
        KeyFile::parse(path, &files::read(path, files::FileKind::Key, advice)?)
    }

    /// Checks `text`, which stands in the file at `path`.
    pub fn parse(path: &Path, text: &str) -> Result<KeyFile> {
        let raw: Raw = files::parse_as(path, text, files::FileKind::Key)?;
        let file = path.display().to_string();
        if raw.format != FORMAT_VERSION {
            bail!(
                "{file}: format is {}, and this program reads {FORMAT_VERSION}; use the program \
                 that wrote it",
                raw.format
            );
        }
        let key = secret_key(&raw.secret_key, &file, "secret_key")?;
        let administrator_of = match &raw.administrator_of {
            None => None,
            Some(text) => {
                Some(ClusterId(perdura_protocol::ids::from_hex(text).with_context(|| {
                    format!("{file}: administrator_of must be a cluster's id; it is {text:?}")
                })?))
            }
        };
        let cluster = files::resolve(path, &raw.cluster);
        Ok(KeyFile { key, cluster, administrator_of })
    }

    /// The text of a file with `key`, for the client registered as `name`; `cluster` is the path of cluster.toml as seen from there.
    pub fn render(purpose: &str, name: &str, key: &SecretKey, cluster: &str) -> String {
        format!(
            "# {purpose}\n# Whoever reads this file can act in its name: keep it to yourself.\n\
             format = {FORMAT_VERSION}\n\
             name = {}\n\
             secret_key = \"{}\"\n\
             # The public key is {}.\n\
             cluster = {}\n",
            quoted(name),
            key.to_secret_text(),
            key.public(),
            quoted(cluster),
        )
    }

    /// Writes the file of a key that takes the place of an administrator's, beside cluster.toml.
    pub fn write_administrator(
        path: &Path,
        key: &SecretKey,
        of: ClusterId,
    ) -> Result<(), WriteError> {
        let mut text = KeyFile::render(ADMINISTRATORS, "administrator", key, CLUSTER_FILE);
        text.push_str(&format!("administrator_of = \"{of}\"\n"));
        files::write(path, &text, Secrecy::Secret)
    }

    /// Writes such a file.
    pub fn write(
        path: &Path,
        purpose: &str,
        name: &str,
        key: &SecretKey,
        to: &str,
    ) -> Result<(), WriteError> {
        files::write(path, &KeyFile::render(purpose, name, key, to), Secrecy::Secret)
    }
}

/// A fresh Ed25519 key from the operating system's randomness.
pub fn fresh_key() -> Result<SecretKey, EntropyError> {
    Ok(SecretKey::from_seed(Scheme::Ed25519, random()?))
}

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N], EntropyError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(EntropyError)?;
    Ok(bytes)
}

/// A TOML string. JSON's escapes are among TOML's, which wants one more.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_goes_both_ways_and_its_errors_keep_the_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.toml");
        let key = fresh_key().unwrap();
        KeyFile::write(&path, "A client.", "a \"b\"\n\u{7f}", &key, "cluster.toml").unwrap();
        let read = KeyFile::load(&path).unwrap();
        assert_eq!(read.key.public(), key.public());
        assert_eq!(read.cluster, directory.path().join("cluster.toml"));
        assert_eq!(read.administrator_of, None);
        let (admin, of) = (directory.path().join("admin.toml"), ClusterId([7; 16]));
        KeyFile::write_administrator(&admin, &key, of).unwrap();
        let read = KeyFile::load(&admin).unwrap();
        assert_eq!((read.key.public(), read.administrator_of), (key.public(), Some(of)));
        assert_eq!(read.cluster, directory.path().join("cluster.toml"));

        let secret = key.to_secret_text();
        let text = std::fs::read_to_string(&path).unwrap();
        let number = format!("{}1", "9".repeat(17));
        for bad in [
            text.replace(&secret, &secret[1..]),
            text.replace(&secret, "\\q"),
            text.replace("secret_key = ", &format!("{secret} = ")),
            text.replace(&format!("\"{secret}\""), &number),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = format!("{:#}", KeyFile::load(&path).unwrap_err());
            assert!(error.contains("client.toml"), "{error}");
            assert!(!error.contains(&secret[1..]) && !error.contains(&number), "{error}");
        }
    }
}
