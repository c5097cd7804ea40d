//! The command line.

use crate::faults::FaultKind;
use crate::service::Service;
use clap::{ArgGroup, Parser};
use perdura_protocol::Faults;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Exit codes: 0, nothing was violated and (in runs of 10 minutes and more) every kind of fault that \
was asked for and that this machine offers fired; 1, something was violated, and DIR is kept with logs, histories and data; 2, the run could not be \
made; 130, it was interrupted.

It runs in namespaces of its own, and each replica has a file system of its own, which can be full \
and can fail. That takes root, and loop devices; without them some faults are left out. The report \
names each kind that was left out, and why. \
scripts/chaos-setup installs what it uses of Debian.";

/// Faults on a cluster of real processes, with a judge of what clients saw.
#[derive(Parser, Debug)]
#[command(name = "perdura-chaos", version, max_term_width = 100, after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("bounds").args(["crash", "byzantine", "faults"]))]
pub struct ChaosOptions {
    /// A group that tolerates F crashed replicas: 2 F + 1 of them
    #[arg(long, value_name = "F")]
    pub crash: Option<u8>,
    /// A group that tolerates F replicas that fail in any way: 3 F + 1 of them [default: 1]
    #[arg(long, value_name = "F")]
    pub byzantine: Option<u8>,
    /// A group that is live with U failures and safe with R liars
    #[arg(long, value_name = "U,R", value_parser = parse_faults)]
    pub faults: Option<Faults>,
    /// What the replicas run, and is judged
    #[arg(long, value_enum, default_value_t = Service::Kv)]
    pub service: Service,
    /// With --service partitions: into how many of them the keys are spread; each server has a member of each one's group
    #[arg(long, value_name = "P", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub partitions: u16,
    /// How long faults are injected: 120, 120s, 2m, 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    pub duration: Duration,
    /// What decides kinds, victims, times and operations [default: by the clock]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Only these kinds of faults
    #[arg(
        long,
        value_name = "FAULT,...",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    pub only: Vec<FaultKind>,
    /// Lists the kinds of faults
    #[arg(long)]
    pub list: bool,
    /// Report, chart and logs go there; must be missing or empty [default: chaos-SEED in the system's directory
    /// for temporary files]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Operations per second of each of the two workloads, about
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=2000))]
    pub rate: u64,
    /// Keep histories and data of a run without violations too
    #[arg(long)]
    pub keep: bool,
    /// The program under test [default: perdura beside this program]
    #[arg(long, value_name = "FILE")]
    pub perdura: Option<PathBuf>,
    /// Make all replicas with this mistake, by its name in `perdura-lab simulate --list-bugs`; needs a test build
    #[arg(long, value_name = "NAME", hide = true)]
    pub bug: Option<String>,
    /// Inside of namespaces already
    #[arg(long, hide = true)]
    pub inside: bool,
}

impl ChaosOptions {
    /// What the cluster is, as `perdura init` takes it: its bounds, and its service if it is not the
    /// usual one.
    pub fn cluster(&self) -> Vec<String> {
        let service = match self.service {
            Service::Kv => Vec::new(),
            Service::Tuples => vec!["--service".to_owned(), self.service.name().to_owned()],
            Service::Partitions => vec!["--partitions".to_owned(), self.partitions.to_string()],
        };
        [self.bounds(), service].concat()
    }

    /// Whether liars are not expected.
    pub fn is_crash_only(&self) -> bool {
        self.crash.is_some() || self.faults.is_some_and(|faults| faults.r() == 0)
    }

    /// Whether what clients see is judged: not where the memory of a replica rots whose word alone counts.
    pub fn judged(&self) -> bool {
        !self.is_crash_only() || self.only != [FaultKind::MemoryRot]
    }

    /// The group's bounds.
    fn bounds(&self) -> Vec<String> {
        match (self.crash, self.byzantine, self.faults) {
            (Some(f), _, _) => vec!["--crash".to_owned(), f.to_string()],
            (_, Some(f), _) => vec!["--byzantine".to_owned(), f.to_string()],
            (_, _, Some(faults)) => {
                vec!["--faults".to_owned(), format!("{},{}", faults.u(), faults.r())]
            }
            _ => vec!["--byzantine".to_owned(), "1".to_owned()],
        }
    }
}

fn parse_faults(text: &str) -> Result<Faults, String> {
    let numbers = text.split_once(',').and_then(|(u, r)| Some((u.parse().ok()?, r.parse().ok()?)));
    let (u, r) = numbers.ok_or("give two numbers, as in 2,1")?;
    Faults::new(u, r).map_err(|error| error.to_string())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("give a time as in 120, 90s, 2m or 1h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "give a time as in 120, 90s, 2m or 1h")?;
    match number.checked_mul(seconds) {
        Some(seconds @ 1..=604_800) => Ok(Duration::from_secs(seconds)),
        _ => Err("from a second to a week".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_clusters_are_as_for_init() {
        use clap::CommandFactory;
        ChaosOptions::command().debug_assert();
        let help = ChaosOptions::command().render_long_help().to_string();
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
        let bounds = |arguments: &[&str]| {
            let all = [&["perdura-chaos"], arguments].concat();
            ChaosOptions::try_parse_from(all).map(|options| options.cluster().join(" "))
        };
        assert_eq!(bounds(&[]).unwrap(), "--byzantine 1");
        assert_eq!(bounds(&["--crash", "1"]).unwrap(), "--crash 1");
        assert_eq!(bounds(&["--faults", "2,1"]).unwrap(), "--faults 2,1");
        assert!(bounds(&["--faults", "0,0"]).is_err());
        assert!(bounds(&["--crash", "1", "--byzantine", "1"]).is_err());
        assert_eq!(bounds(&["--service", "tuples"]).unwrap(), "--byzantine 1 --service tuples");
        assert_eq!(bounds(&["--service", "kv"]).unwrap(), "--byzantine 1");
        assert_eq!(bounds(&["--service", "partitions"]).unwrap(), "--byzantine 1 --partitions 2");
        let four = ["--service", "partitions", "--partitions", "4", "--crash", "1"];
        assert_eq!(bounds(&four).unwrap(), "--crash 1 --partitions 4");
        assert!(bounds(&["--partitions", "1"]).is_err());
        assert!(bounds(&["--service", "sql"]).is_err());
        assert!(bounds(&["--only", "kill,no-such"]).is_err());
        let judged = |arguments: &[&str]| {
            let all = [&["perdura-chaos", "--only"], arguments].concat();
            ChaosOptions::try_parse_from(all).unwrap().judged()
        };
        assert!(judged(&["memory-rot"]) && judged(&["kill", "--crash", "1"]));
        assert!(!judged(&["memory-rot", "--crash", "1"]));
        assert!(!judged(&["memory-rot", "--faults", "2,0"]));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("0").is_err() && parse_duration("1d").is_err());
    }
}
