//! What there is to do with a cluster's files once they are made, as commands that can be copied. docs/deploy.md says the same, and packaging/systemd
//! has the units; `scripts/hosts` runs what is printed for several hosts.

use crate::local::Kind;
use crate::shell;
use perdura_cluster::config::{ADMIN_FILE, CLIENT_FILE, CLUSTER_FILE};
use std::fmt::Write;
use std::path::Path;

/// Whom the units run as, and what he owns on each host.
const USER: &str = "perdura";
const HOME: &str = "/var/lib/perdura";

/// What to do, in order, with `n` replicas, or servers, on these hosts, or all on this one.
pub fn after_init(dir: &Path, what: Kind, n: usize, hosts: &[String]) -> String {
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

fn here(dir: &Path, what: Kind, last: usize) -> String {
    let (name, file) = (what.name(), what.own_file());
    let config = shell::path(&dir.join(format!("{name}-I")).join(file));
    format!(
        "Start {name} I (all of 0 to {last}) with:\n  perdura {name} --config {config}\nThen, for example:\n  perdura health --cluster {}\n",
        shell::path(dir)
    )
}

/// The same for a program with a service of its own, which is called so.
pub fn after_init_of_own(program: &str, dir: &Path, n: usize, hosts: &[String]) -> String {
    let (cluster, client) = (dir.join(CLUSTER_FILE), dir.join(CLIENT_FILE));
    let admin = shell::path(&dir.join(ADMIN_FILE));
    let program = shell::word(program);
    let mut text = if hosts.is_empty() {
        let config = shell::path(&dir.join("replica-I").join(Kind::Replica.own_file()));
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

fn on_hosts(dir: &Path, what: Kind, hosts: &[String]) -> String {
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
        let text = after_init(Path::new("my prod"), Kind::Replica, 3, &hosts);
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

    /// Units, user and directory are those of packaging/systemd, and the commands those of docs/deploy.md.
    #[test]
    fn what_is_printed_is_what_units_and_documents_have() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let documented = read("docs/deploy.md");
        let hosts = ["10.0.0.10".to_owned()];
        for what in [Kind::Replica, Kind::Server] {
            let (name, file) = (what.name(), what.own_file());
            let unit = read(&format!("packaging/systemd/perdura-{name}@.service"));
            for wanted in [
                format!("User={USER}\n"),
                format!("ExecStart=/usr/bin/perdura {name} --config {HOME}/{name}-%i/{file}\n"),
            ] {
                assert!(unit.contains(&wanted), "no {wanted} in {unit}");
            }
            let text = after_init(Path::new("prod"), what, 1, &hosts);
            let shown = |line: &&str| what == Kind::Replica && !line.contains("-I/");
            for line in commands(&text).into_iter().filter(shown) {
                let line = line.strip_prefix("ssh root@10.0.0.10 ").unwrap_or(line);
                assert!(documented.contains(line), "no {line} in docs/deploy.md");
            }
        }
    }

    #[test]
    fn what_runs_on_this_machine_is_started_from_its_files() {
        let text = after_init(Path::new("a b"), Kind::Server, 4, &[]);
        let wanted = [
            "perdura server --config 'a b/server-I/server.toml'",
            "perdura health --cluster 'a b'",
        ];
        assert_eq!(commands(&text), wanted);
    }
}
