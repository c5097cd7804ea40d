//! What the experiments of the durability layer compare: how the group logs, and on what.

use perdura_cluster::ServiceKind;
use perdura_protocol::configuration::Durability;
use perdura_replica::runtime::LogDevice;

/// A way to log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// As on the command line, in tables and in files.
    pub name: &'static str,
    /// How replicas log.
    pub durability: Durability,
    /// On what: a simulated device, or only the disk that is there.
    pub device: Option<&'static str>,
    /// What the paper measured in this way: milliseconds that a single client waits at least, and
    /// most writes in a second.
    pub paper: Option<(f64, f64)>,
    /// Most insertions of tuples in a second that it has (figure 9(b) and its text).
    pub paper_tuples: Option<f64>,
}

/// The paper's disk: a SCSI disk of 15000 revolutions a minute. It writes records of 4 MB, the largest
/// batches, with 135.6 MB/s and those of 1 MB with 96.1 (section 5); a flush waits for a turn of 4 ms
/// and for the head.
const DISK: &str = "delay_ms=5,mb_s=130";

/// The paper's SSD. It writes records of 4 MB with 130.7 MB/s (section 5). A write that waited for it
/// took 2.89 ms, and 1.98 without a log (table 1); 4 kB are 0.03 of the difference.
const SSD: &str = "delay_ms=0.88,mb_s=130";

const fn setting(
    name: &'static str,
    durability: Durability,
    device: Option<&'static str>,
    paper: Option<(f64, f64)>,
    paper_tuples: Option<f64>,
) -> Setting {
    Setting { name, durability, device, paper, paper_tuples }
}

/// All of them. The paper's table 1 has `none` and `async`; figure 9 and its text have the peak of `sync` on
/// its SSD and its disk.
pub const SETTINGS: [Setting; 5] = [
    setting("none", Durability::None, None, Some((1.98, 4772.0)), Some(14739.0)),
    setting("async", Durability::Async, None, Some((2.16, 4312.0)), None),
    setting("sync", Durability::Sync, None, None, None),
    setting("sync-ssd", Durability::Sync, Some(SSD), None, Some(9250.0)),
    setting("sync-disk", Durability::Sync, Some(DISK), None, Some(8430.0)),
];

impl Setting {
    /// The one with this name.
    pub fn parse(name: &str) -> Result<Setting, String> {
        let found = SETTINGS.into_iter().find(|setting| setting.name == name);
        let names = SETTINGS.map(|setting| setting.name).join(", ");
        found.ok_or_else(|| format!("give some of {names}"))
    }

    /// What the paper has for this service: the least latency, milliseconds, and the peak, operations in a
    /// second.
    pub fn in_paper(&self, service: ServiceKind) -> (Option<f64>, Option<f64>) {
        match service {
            ServiceKind::KeyValue => self.paper.unzip(),
            ServiceKind::TupleSpaces => (None, self.paper_tuples),
        }
    }

    /// The device that replicas are told of.
    pub fn log_device(&self) -> Result<Option<LogDevice>, String> {
        self.device.map(str::parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names_and_devices_of_their_own() {
        for setting in SETTINGS {
            assert_eq!(Setting::parse(setting.name), Ok(setting));
            assert_eq!(setting.log_device().unwrap().is_some(), setting.device.is_some());
        }
        assert!(Setting::parse("fast").unwrap_err().contains("sync-disk"));
    }
}
