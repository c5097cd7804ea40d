//! Reading and writing whole files.

use super::error::{ReadError, Result, WriteError};
use super::{CLIENT_FILE, CLUSTER_FILE, REPLICA_FILE, SERVER_FILE};
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Whether others than its owner may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secrecy {
    /// Mode 0644.
    Public,
    /// Mode 0600.
    Secret,
}

/// A secret file that others than its owner can read, or write to. Shown, it says so and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposed {
    /// Which.
    pub file: String,
    /// Its mode.
    pub mode: u32,
}

impl Exposed {
    /// Whether the secret file at `path` is one; none as well if it is not there.
    #[must_use]
    pub fn look(path: &Path) -> Option<Exposed> {
        let mode = fs::metadata(path).ok()?.mode() & 0o777;
        (mode & 0o077 != 0).then(|| Exposed { file: path.display().to_string(), mode })
    }
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exposed { file, mode } = self;
        write!(
            f,
            "{file}: others may read it or write to it (mode {mode:03o}), and whoever has its secret key acts in its name; `chmod 600` it"
        )
    }
}

/// The files of a cluster, each of which may be given where another one is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// `cluster.toml`.
    Cluster,
    /// A replica's own.
    Replica,
    /// A server's own.
    Server,
    /// A client's key, or the administrator's.
    Key,
}

impl FileKind {
    /// Which it is, by the fields that only one has; none if it looks like none of them.
    fn of(text: &str) -> Option<FileKind> {
        let table: toml::Table = toml::from_str(text).ok()?;
        let has = |field: &str| table.contains_key(field);
        match () {
            () if has("administrator") && (has("replica") || has("partition")) => {
                Some(FileKind::Cluster)
            }
            () if has("member") => Some(FileKind::Server),
            () if has("secret_key") && has("data") => Some(FileKind::Replica),
            () if has("secret_key") && has("name") => Some(FileKind::Key),
            () => None,
        }
    }

    /// What it is.
    fn name(self) -> &'static str {
        match self {
            FileKind::Cluster => "the file of a cluster",
            FileKind::Replica => "a replica's own file",
            FileKind::Server => "a server's own file",
            FileKind::Key => "a key's file",
        }
    }

    /// How such a one is called, as a rule.
    fn file_name(self) -> &'static str {
        match self {
            FileKind::Cluster => CLUSTER_FILE,
            FileKind::Replica => REPLICA_FILE,
            FileKind::Server => SERVER_FILE,
            FileKind::Key => CLIENT_FILE,
        }
    }

    /// One in this directory, or in one of those in which a cluster's directory has those of replicas and servers: the first of them.
    fn within(self, directory: &Path) -> Option<PathBuf> {
        let name = self.file_name();
        let below = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path().join(name));
        let is_own =
            |path: &PathBuf| matches!(self, FileKind::Replica | FileKind::Server) && path.is_file();
        let own = directory.join(name);
        if own.is_file() { Some(own) } else { below.filter(is_own).min() }
    }

    /// What takes such a one.
    fn goes_to(self) -> &'static str {
        match self {
            FileKind::Cluster => "commands take its directory, with --cluster",
            FileKind::Replica => "`perdura replica --config FILE` runs it",
            FileKind::Server => "`perdura server --config FILE` runs it",
            FileKind::Key => "commands take it with --client",
        }
    }
}

/// The text of the file at `path`, which is to be of that kind; `advice` says what to do when it is missing.
pub fn read(path: &Path, wanted: FileKind, advice: &'static str) -> Result<String> {
    let file = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(match above(path) {
            Some(above) => ReadError::Above { file, above },
            None => ReadError::Missing { file, advice },
        }),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(ReadError::NoDirectory { file: directory_of(path).display().to_string() })
        }
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            let instead = wanted.within(path).map(|found| found.display().to_string());
            Err(ReadError::Directory { file, instead })
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(ReadError::NotText { file }),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(ReadError::Forbidden { file, user: user() })
        }
        Err(source) => Err(ReadError::Unreadable { file, source }),
    }
}

/// As whom this process runs: a name, or a number where the system has no name for it.
pub fn user() -> String {
    let Ok(own) = fs::metadata("/proc/self") else { return "who runs this".to_owned() };
    let number = own.uid().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    named.unwrap_or(number)
}

/// The directory above that one, if the file is there: who names a replica's directory may mean its cluster's.
fn above(path: &Path) -> Option<String> {
    let directory = directory_of(path);
    let above = directory_of(&directory);
    let found = directory.is_dir() && above != directory && above.join(path.file_name()?).is_file();
    found.then(|| above.display().to_string())
}

/// What `text` says, which stands in the file at `path` and is to be of that kind.
pub fn parse_as<T: DeserializeOwned>(path: &Path, text: &str, wanted: FileKind) -> Result<T> {
    parse(path, text).map_err(|error| match FileKind::of(text) {
        Some(kind) if kind != wanted => ReadError::OtherKind {
            file: path.display().to_string(),
            is: kind.name(),
            wanted: wanted.name(),
            goes_to: kind.goes_to(),
        },
        _ => error,
    })
}

/// What `text` says, which stands in the file at `path`.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| ReadError::Syntax {
        file: path.display().to_string(),
        place: error.span().map_or(String::new(), |span| hidden(&place_of(text, span.start))),
        message: hidden(error.message().trim()),
    })
}

/// What has so many letters and digits in a row may be a secret: a key has 64.
const SECRET_LETTERS: usize = 16;

/// The text without what is as long as a secret: a wrong type, or a wrong place, is no reason to show one.
fn hidden(text: &str) -> String {
    let letters = |at: char| at.is_ascii_alphanumeric();
    let words = text.split_inclusive(|at: char| !letters(at)).map(|word| {
        let length = word.trim_end_matches(|at| !letters(at)).len();
        let secret = length >= SECRET_LETTERS && word.bytes().any(|byte| byte.is_ascii_digit());
        if secret { format!("(hidden){}", &word[length..]) } else { word.to_owned() }
    });
    words.collect()
}

/// The line at `offset` and the field on it. Not the line itself, which may hold a secret key.
fn place_of(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    match line.split_once('=') {
        Some((field, _)) => format!(", line {number} ({})", field.trim()),
        None => format!(", line {number}"),
    }
}

/// Writes `content` under the name `path` so that after a crash there is either this or what was
/// there before.
pub fn write(path: &Path, content: &str, secrecy: Secrecy) -> Result<(), WriteError> {
    let directory = directory_of(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = directory.join(format!(".{name}.tmp"));
    let mode = match secrecy {
        Secrecy::Public => 0o644,
        Secrecy::Secret => 0o600,
    };
    let write = || -> std::io::Result<()> {
        // A leftover may have other permissions.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_directory(&directory)
    };
    write().map_err(|source| WriteError::Write { file: path.display().to_string(), source })
}

/// Gives `from` the name `to` in the same directory, durably.
pub fn rename(from: &Path, to: &Path) -> Result<(), WriteError> {
    fs::rename(from, to).and_then(|()| sync_directory(&directory_of(to))).map_err(|source| {
        let (from, to) = (from.display().to_string(), to.display().to_string());
        WriteError::Rename { from, to, source }
    })
}

/// As long as what it gives is kept, no other process has this of `directory`; none if one has it now.
pub fn lock_directory(directory: &Path) -> std::io::Result<Option<File>> {
    let file = File::open(directory)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes the names in `directory` durable.
pub fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that `path` stands in.
pub fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// `relative` as it stands in the file at `file`.
pub fn resolve(file: &Path, relative: &Path) -> PathBuf {
    directory_of(file).join(relative)
}

/// The shortest way to write `path`, without `..`; as it is, if nothing is there.
pub fn plain(path: PathBuf) -> PathBuf {
    let Ok(absolute) = fs::canonicalize(&path) else { return path };
    let current = std::env::current_dir().unwrap_or_default();
    match absolute.strip_prefix(&current) {
        Ok(within) if within.as_os_str().is_empty() => PathBuf::from("."),
        Ok(within) => within.to_owned(),
        Err(_) => absolute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_in_the_place_of_another_is_known_for_what_it_is() {
        #[derive(serde::Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        struct Wanted {
            #[expect(dead_code)]
            other: u8,
        }
        let said = |text: &str, wanted| {
            parse_as::<Wanted>(Path::new("x.toml"), text, wanted).unwrap_err().to_string()
        };
        for (text, told) in [
            ("administrator = \"a\"\n[[replica]]\nid = 0", "the file of a cluster"),
            ("id = 0\n[[member]]\npartition = 0", "`perdura server --config FILE` runs it"),
            ("secret_key = \"s\"\ndata = \"d\"", "`perdura replica --config FILE` runs it"),
            ("secret_key = \"s\"\nname = \"d\"", "commands take it with --client"),
        ] {
            let other = if told.contains("cluster") { FileKind::Key } else { FileKind::Cluster };
            assert!(said(text, other).contains(told), "{}", said(text, other));
        }
        // Of its own kind, or of none: what is wrong with it.
        assert!(said("secret_key = \"s\"\nname = \"d\"", FileKind::Key).contains("unknown field"));
        assert!(said("id = 0", FileKind::Server).contains("unknown field"));
    }

    #[test]
    fn a_directory_below_the_one_that_is_meant_is_told_from_a_missing_one() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("replica-0");
        fs::create_dir(&own).unwrap();
        let told =
            |path: PathBuf| read(&path, FileKind::Cluster, "make one").unwrap_err().to_string();
        assert!(told(own.join("cluster.toml")).ends_with("; make one"));
        fs::write(root.path().join("cluster.toml"), "").unwrap();
        let text = told(own.join("cluster.toml"));
        assert!(text.contains(&format!("give {}", root.path().display())), "{text}");
        assert!(told(root.path().join("x/cluster.toml")).ends_with("; make one"));
        let text = told(root.path().join("cluster.toml").join("cluster.toml"));
        assert!(text.contains("a file, and a directory is wanted"), "{text}");
    }

    #[test]
    fn whoever_runs_this_has_a_name() {
        let own = std::process::Command::new("id").arg("-un").output().unwrap();
        let numbered = std::process::Command::new("id").arg("-u").output().unwrap();
        let told = [own, numbered].map(|ran| String::from_utf8(ran.stdout).unwrap());
        assert!(told.iter().any(|name| name.trim() == user()), "{} of {told:?}", user());
    }

    #[test]
    fn a_secret_file_is_replaced_as_a_whole_and_readable_by_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.toml");
        write(&path, "a", Secrecy::Public).unwrap();
        write(&path, "b", Secrecy::Secret).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_secret_file_that_others_can_read_or_write_to_is_exposed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.toml");
        assert_eq!(Exposed::look(&path), None);
        write(&path, "a", Secrecy::Secret).unwrap();
        assert_eq!(Exposed::look(&path), None);
        for mode in [0o640, 0o604, 0o620, 0o602, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let exposed = Exposed::look(&path).unwrap();
            assert_eq!(exposed.mode, mode);
            let said = exposed.to_string();
            let told = ["key.toml", &format!("{mode:o}"), "`chmod 600`"];
            assert!(told.iter().all(|one| said.contains(one)), "{said}");
        }
    }

    #[test]
    fn one_alone_has_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = lock_directory(directory.path()).unwrap();
        assert!(first.is_some());
        assert!(lock_directory(directory.path()).unwrap().is_none());
        drop(first);
        assert!(lock_directory(directory.path()).unwrap().is_some());
        assert!(lock_directory(&directory.path().join("absent")).is_err());
    }

    #[test]
    fn paths_resolve_against_the_file_they_stand_in() {
        let resolved = resolve(Path::new("a/replica-0/replica.toml"), Path::new("../cluster.toml"));
        assert_eq!(resolved, Path::new("a/replica-0/../cluster.toml"));
        assert_eq!(resolve(Path::new("c.toml"), Path::new("data")), Path::new("./data"));
        let absolute = resolve(Path::new("a/c.toml"), Path::new("/data"));
        assert_eq!(absolute, Path::new("/data"));
    }
}
