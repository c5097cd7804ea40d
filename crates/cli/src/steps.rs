//! What there is to do with a cluster's files once they are made, as commands that can be copied. docs/deploy.md and
//! docs/operations/replacing.md say the same, and packaging/systemd has the units; `scripts/hosts` runs what is printed for several hosts.

use crate::local::ChildKind;
use crate::shell;
use perdura_cluster::config::{ADMIN_FILE, CLIENT_FILE, CLUSTER_FILE};
use std::fmt::Write;
use std::path::{Component, Path};

/// Whom the units run as, and what he owns on each host.
const USER: &str = "perdura";
const HOME: &str = "/var/lib/perdura";

/// What to do, in order, with `n` replicas, or servers, on these hosts, or all on this one.
pub fn after_init(dir: &Path, what: ChildKind, n: usize, hosts: &[String]) -> String {
    let text = match hosts {
        [] => here(dir, what, n - 1),
        hosts => on_hosts(dir, what, hosts),
    };
    text + &format!(
        "{} can replace replicas and certify clients: keep it {}.",
        shell::path(&dir.join(ADMIN_FILE)),
        if hosts.is_empty() { "safe" } else { "offline" }
    )
}

fn here(dir: &Path, what: ChildKind, last: usize) -> String {
    let (name, file) = (what.name(), what.own_file());
    let config = shell::path(&dir.join(format!("{name}-I")).join(file));
    format!(
        "Start {name} I (all of 0 to {last}) with:\n  perdura {name} --config {config}\nThen, for example:\n  perdura health --cluster {}\n",
        shell::path(dir)
    )
}

/// The same for a program with a service of its own, which is called so where it is found by its name; here it may not be.
pub fn after_init_of_own(program: &str, dir: &Path, n: usize, hosts: &[String]) -> String {
    let (cluster, client) = (dir.join(CLUSTER_FILE), dir.join(CLIENT_FILE));
    let admin = shell::path(&dir.join(ADMIN_FILE));
    let program = if hosts.is_empty() { shell::program() } else { shell::word(program) };
    let mut text = if hosts.is_empty() {
        let config = shell::path(&dir.join("replica-I").join(ChildKind::Replica.own_file()));
        format!(
            "Start replica I (all of 0 to {}) with:\n  {program} replica --config {config}\n",
            n - 1
        )
    } else {
        let mut text =
            "1. Copy to each host its own directory, once, and cluster.toml beside it:\n"
                .to_owned();
        for (id, host) in hosts.iter().enumerate() {
            let own = shell::path(&dir.join(format!("replica-{id}")));
            let to = shell::word(&format!("{}:DIR/", bracketed(host)));
            let _ = writeln!(text, "  rsync -a {} {own} {to}", shell::path(&cluster));
        }
        text + &format!(
            "2. Start replica I on its host, in any order (packaging/systemd of Perdura has a unit to begin from):\n  \
             {program} replica --config DIR/replica-I/replica.toml\n\
             3. Remove here what was copied, for a copy that is started too takes the place of the original.\n"
        )
    };
    let _ = write!(
        text,
        "Then, from where {} and {} are, which clients need:\n  {program} health --cluster {}\n\
         {admin} can replace replicas and certify clients: keep it {}.",
        shell::path(&cluster),
        shell::path(&client),
        shell::path(dir),
        if hosts.is_empty() { "safe" } else { "offline" }
    );
    text
}

fn on_hosts(dir: &Path, what: ChildKind, hosts: &[String]) -> String {
    let (name, file) = (what.name(), what.own_file());
    let (cluster, client) = (dir.join(CLUSTER_FILE), dir.join(CLIENT_FILE));
    let mut text = format!(
        "1. Have on each host the program, /usr/bin/perdura, the unit perdura-{name}@.service, and the user {USER}, who owns {HOME}. A package \
         brings all of them; without one take the unit from packaging/systemd to /etc/systemd/system, and make the user:\n  \
         useradd --system --home-dir {HOME} --create-home {USER}\n\
         2. Copy to each host its own directory, once, and cluster.toml beside it:\n"
    );
    // Writing to a string does not fail.
    for (id, host) in hosts.iter().enumerate() {
        let own = shell::path(&dir.join(format!("{name}-{id}")));
        let to = shell::word(&format!("root@{}:{HOME}/", bracketed(host)));
        let cluster = shell::path(&cluster);
        let _ = writeln!(text, "  rsync -a --chown={USER}:{USER} {cluster} {own} {to}");
    }
    text.push_str("3. Start each on its host, in any order:\n");
    for (id, host) in hosts.iter().enumerate() {
        let at = shell::word(&format!("root@{}", bare(host)));
        let _ = writeln!(text, "  ssh {at} systemctl enable --now perdura-{name}@{id}");
    }
    let _ = write!(
        text,
        "Without systemd, {name} I on its host as the user {USER}:\n  perdura {name} --config {HOME}/{name}-I/{file}\n\
         4. Ask whether it can be written to, from where {} and {} are, which clients need:\n  perdura health --cluster {}\n\
         5. Remove here what was copied, for a copy that is started too takes the place of the original:\n  rm -r {}/{name}-*\n",
        shell::path(&cluster),
        shell::path(&client),
        shell::path(dir),
        shell::path(dir),
    );
    text
}

/// A replica in a new incarnation, whose files are here and belong on another host.
pub struct Replaced<'a> {
    /// The directory of the cluster's files.
    pub dir: &'a Path,
    /// Whether it is a replica of its own, or a member of a server.
    pub what: ChildKind,
    /// Of the replica, or of its server.
    pub number: usize,
    /// Its data directory, as its file has it.
    pub data: &'a Path,
    /// The incarnation that it replaces.
    pub former: u32,
    /// Where others find each replica, or each server: `host:port`.
    pub addresses: &'a [String],
    /// How a program with a service of its own is called, which has neither unit nor user of this one's.
    pub program: Option<&'a str>,
}

impl Replaced<'_> {
    /// What to do, in order.
    pub fn steps(&self) -> String {
        let (name, number) = (self.what.name(), self.number);
        let home = if self.program.is_some() { "DIR" } else { HOME };
        let own = format!("{name}-{number}");
        let mut text = self.stop(home, &own);
        // Nothing else of its directory: there is what was moved aside here, and of a server older data of other members.
        let here = |file: &str| shell::path(&self.dir.join(format!("./{file}")));
        let (cluster, file) =
            (here(CLUSTER_FILE), here(&format!("{own}/{}", self.what.own_file())));
        let data = match self.data_is_below() {
            true => format!(" {}", here(&format!("{own}/{}", self.data.display()))),
            false => String::new(),
        };
        let _ = writeln!(
            text,
            "2. Copy the new files there:\n  {} {cluster} {file}{data} {}",
            self.rsync(),
            self.to(number, home)
        );
        let mut told = vec![host(&self.addresses[number])];
        let mut others = String::new();
        for (other, address) in self.addresses.iter().enumerate() {
            if !told.contains(&host(address)) {
                told.push(host(address));
                let _ = writeln!(others, "  {} {cluster} {}", self.rsync(), self.to(other, home));
            }
        }
        let _ = writeln!(
            text,
            "3. Copy the new cluster.toml to the other hosts, and to clients; what runs needs no restart:\n{}",
            others.trim_end()
        );
        text + &self.start(home, &own)
    }

    fn stop(&self, home: &str, own: &str) -> String {
        let (name, number) = (self.what.name(), self.number);
        let mut text = format!(
            "1. On {}, stop the old one, if it runs, and move its data aside, if any is left",
            bare(host(&self.addresses[number]))
        );
        if self.what == ChildKind::Server {
            text.push_str(". Other members of the server stop with it, and come back with it");
        }
        let old = format!("{home}/{own}/{}", self.data.display());
        let aside = format!("{old}.old-{}", self.former);
        let is_below = self.data_is_below();
        if !is_below {
            let _ = write!(
                text,
                ". Its data directory is {} there: take the one that was formatted here to the same place",
                self.data.display()
            );
        } else {
            text.push_str(". Where its data directory is a mount of its own, move what is in it");
        }
        text.push_str(":\n");
        let at = self.at();
        if self.program.is_none() {
            let _ = writeln!(text, "  ssh {at} systemctl stop perdura-{name}@{number}");
        }
        if is_below {
            // The shell there reads it once more.
            let word = |path: &str| shell::word(&shell::word(path));
            let _ = writeln!(text, "  ssh {at} mv -T {} {}", word(&old), word(&aside));
        }
        text
    }

    fn start(&self, home: &str, own: &str) -> String {
        let (name, number, file) = (self.what.name(), self.number, self.what.own_file());
        let start = match self.program {
            None => format!("ssh {} systemctl enable --now perdura-{name}@{number}", self.at()),
            Some(program) => {
                format!("{} {name} --config {home}/{own}/{file}", shell::word(program))
            }
        };
        let health = shell::word(self.program.unwrap_or("perdura"));
        format!(
            "4. Start it on its host:\n  {start}\n\
             5. See from here that it has caught up, and only then remove here what was copied, for a copy that is started too takes the place of the \
             original:\n  {health} health --cluster {}\n  rm -r {}",
            shell::path(self.dir),
            shell::path(&self.dir.join(own))
        )
    }

    /// Whether it is copied with the directory that it is in.
    fn data_is_below(&self) -> bool {
        self.data.components().all(|part| matches!(part, Component::Normal(_)))
    }

    fn rsync(&self) -> String {
        match self.program {
            None => format!("rsync -aR --chown={USER}:{USER}"),
            Some(_) => "rsync -aR".to_owned(),
        }
    }

    fn to(&self, number: usize, home: &str) -> String {
        let host = bracketed(host(&self.addresses[number]));
        shell::word(&match self.program {
            None => format!("root@{host}:{home}/"),
            Some(_) => format!("{host}:{home}/"),
        })
    }

    fn at(&self) -> String {
        let host = bare(host(&self.addresses[self.number]));
        shell::word(&if self.program.is_some() { host.to_owned() } else { format!("root@{host}") })
    }
}

/// That of `host:port`.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// As it stands before a colon.
fn bracketed(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{}]", bare(host)),
        false => host.to_owned(),
    }
}

/// As it stands alone.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(text: &str) -> Vec<&str> {
        let commands = text.lines().filter_map(|line| line.strip_prefix("  "));
        commands.filter(|line| !line.starts_with(' ')).collect()
    }

    #[test]
    fn what_is_printed_for_hosts_can_be_copied() {
        let hosts = ["db0", "fe80::1", "[fe80::2]"].map(str::to_owned);
        let text = after_init(Path::new("my prod"), ChildKind::Replica, 3, &hosts);
        assert_eq!(
            commands(&text),
            [
                "useradd --system --home-dir /var/lib/perdura --create-home perdura",
                "rsync -a --chown=perdura:perdura 'my prod/cluster.toml' 'my prod/replica-0' root@db0:/var/lib/perdura/",
                "rsync -a --chown=perdura:perdura 'my prod/cluster.toml' 'my prod/replica-1' 'root@[fe80::1]:/var/lib/perdura/'",
                "rsync -a --chown=perdura:perdura 'my prod/cluster.toml' 'my prod/replica-2' 'root@[fe80::2]:/var/lib/perdura/'",
                "ssh root@db0 systemctl enable --now perdura-replica@0",
                "ssh root@fe80::1 systemctl enable --now perdura-replica@1",
                "ssh root@fe80::2 systemctl enable --now perdura-replica@2",
                "perdura replica --config /var/lib/perdura/replica-I/replica.toml",
                "perdura health --cluster 'my prod'",
                "rm -r 'my prod'/replica-*",
            ]
        );
        assert!(text.ends_with(
            "'my prod/admin.toml' can replace replicas and certify clients: keep it offline."
        ));
    }

    /// Units, user and directory are those of packaging/systemd, and the commands those of docs/deploy.md and docs/operations/replacing.md.
    #[test]
    fn what_is_printed_is_what_units_and_documents_have() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let documented = read("docs/deploy.md");
        let hosts = ["10.0.0.10".to_owned()];
        for what in [ChildKind::Replica, ChildKind::Server] {
            let (name, file) = (what.name(), what.own_file());
            let unit = read(&format!("packaging/systemd/perdura-{name}@.service"));
            for wanted in [
                format!("User={USER}\n"),
                format!("ExecStart=/usr/bin/perdura {name} --config {HOME}/{name}-%i/{file}\n"),
            ] {
                assert!(unit.contains(&wanted), "no {wanted} in {unit}");
            }
            let text = after_init(Path::new("prod"), what, 1, &hosts);
            let shown = |line: &&str| what == ChildKind::Replica && !line.contains("-I/");
            for line in commands(&text).into_iter().filter(shown) {
                let line = line.strip_prefix("ssh root@10.0.0.10 ").unwrap_or(line);
                assert!(documented.contains(line), "no {line} in docs/deploy.md");
            }
        }
        let addresses = ["10.0.0.10:7400", "10.0.0.10:7402", "10.0.0.12:7400"].map(str::to_owned);
        let replaced = Replaced {
            dir: Path::new("prod"),
            what: ChildKind::Replica,
            number: 2,
            data: Path::new("data"),
            former: 0,
            addresses: &addresses,
            program: None,
        };
        let (text, documented) = (replaced.steps(), read("docs/operations/replacing.md"));
        for line in commands(&text) {
            assert!(documented.contains(line), "no {line} in docs/operations/replacing.md");
        }
    }

    #[test]
    fn what_is_printed_of_a_replacement_can_be_copied() {
        let addresses = ["db0:7400", "[fe80::1]:7400", "db0:7402", "db3:7400"].map(str::to_owned);
        let of = |what, number, data| Replaced {
            dir: Path::new("my prod"),
            what,
            number,
            data: Path::new(data),
            former: 4,
            addresses: &addresses,
            program: None,
        };
        let text = of(ChildKind::Replica, 1, "data").steps();
        assert_eq!(
            commands(&text),
            [
                "ssh root@fe80::1 systemctl stop perdura-replica@1",
                "ssh root@fe80::1 mv -T /var/lib/perdura/replica-1/data /var/lib/perdura/replica-1/data.old-4",
                "rsync -aR --chown=perdura:perdura 'my prod/./cluster.toml' 'my prod/./replica-1/replica.toml' 'my prod/./replica-1/data' \
                 'root@[fe80::1]:/var/lib/perdura/'",
                "rsync -aR --chown=perdura:perdura 'my prod/./cluster.toml' root@db0:/var/lib/perdura/",
                "rsync -aR --chown=perdura:perdura 'my prod/./cluster.toml' root@db3:/var/lib/perdura/",
                "ssh root@fe80::1 systemctl enable --now perdura-replica@1",
                "perdura health --cluster 'my prod'",
                "rm -r 'my prod/replica-1'",
            ]
        );
        let text = of(ChildKind::Server, 2, "partition-0").steps();
        let told = [
            "ssh root@db0 mv -T /var/lib/perdura/server-2/partition-0 /var/lib/perdura/server-2/partition-0.old-4",
            "rsync -aR --chown=perdura:perdura 'my prod/./cluster.toml' 'my prod/./server-2/server.toml' 'my prod/./server-2/partition-0' \
             root@db0:/var/lib/perdura/",
        ];
        assert!(told.iter().all(|one| commands(&text).contains(one)), "{text}");
        let text = of(ChildKind::Replica, 0, "/srv/d").steps();
        assert!(text.contains("directory is /srv/d there") && !text.contains("mv -T"), "{text}");
        let text =
            Replaced { program: Some("counter"), ..of(ChildKind::Replica, 0, "data") }.steps();
        assert!(!text.contains("systemctl") && !text.contains("root@"), "{text}");
        assert!(commands(&text).contains(&"counter replica --config DIR/replica-0/replica.toml"));
    }

    #[test]
    fn what_runs_on_this_machine_is_started_from_its_files() {
        let text = after_init(Path::new("a b"), ChildKind::Server, 4, &[]);
        let wanted = [
            "perdura server --config 'a b/server-I/server.toml'",
            "perdura health --cluster 'a b'",
        ];
        assert_eq!(commands(&text), wanted);
    }
}
