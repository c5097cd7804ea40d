//! When replicas stored checkpoints, received states, and gave leaders up, by what they say in their logs.

use anyhow::{Context, Result};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const DAY_S: f64 = 86_400.0;

/// Seconds since midnight, UTC.
pub fn second_of_day(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() % DAY_S
}

/// A checkpoint of one replica, in seconds from the start of the run; before it if negative.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored {
    /// Which replica.
    pub replica: usize,
    /// When it began to be written.
    pub from_s: f64,
    /// When it was durable.
    pub to_s: f64,
    /// Bytes of its file.
    pub written_bytes: u64,
}

/// A replica's wish for another leader.
#[derive(Clone, PartialEq, Debug)]
pub struct GivenUp {
    /// Whose.
    pub replica: usize,
    /// Since when, seconds from the start of the run.
    pub at_s: f64,
    /// What there is against the leader, in words.
    pub why: String,
}

/// When the replica of this log wished for another leader.
pub fn given_up(log: &Path, replica: usize, start: f64) -> Result<Vec<GivenUp>> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(text.lines().filter_map(|line| parse_given_up(line, replica, start)).collect())
}

fn parse_given_up(line: &str, replica: usize, start: f64) -> Option<GivenUp> {
    let (_, said) = line.split_once("the leader is to be replaced: ")?;
    let why = said.split(" view=").next()?.to_owned();
    Some(GivenUp { replica, at_s: said_s(line, start)?, why })
}

/// What the log of a replica, of a run that began at `start` seconds of the day, says.
pub fn read(log: &Path, replica: usize, start: f64) -> Result<Vec<Stored>> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(text.lines().filter_map(|line| parse(line, replica, start)).collect())
}

/// When the replica of this log had received states, seconds from the start of the run.
pub fn received(log: &Path, start: f64) -> Result<Vec<f64>> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let lines = text.lines().filter(|line| line.contains("state received "));
    Ok(lines.filter_map(|line| said_s(line, start)).collect())
}

/// When a line was written, seconds from the start of the run.
fn said_s(line: &str, start: f64) -> Option<f64> {
    let time = line.split_once('T')?.1.split_once('Z')?.0;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let said_s = hour * 3600.0 + minute * 60.0 + second - start;
    // Over midnight.
    Some(if said_s < -DAY_S / 2.0 { said_s + DAY_S } else { said_s })
}

fn parse(line: &str, replica: usize, start: f64) -> Option<Stored> {
    let (_, fields) = line.split_once("checkpoint stored ")?;
    let field = |name: &str| {
        let value = fields.split_whitespace().find_map(|field| field.strip_prefix(name))?;
        value.strip_prefix('=')?.parse::<u64>().ok()
    };
    let to_s = said_s(line, start)?;
    let from_s = to_s - field("took_ms")? as f64 / 1000.0;
    Some(Stored { replica, from_s, to_s, written_bytes: field("written_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_why_a_leader_was_given_up() {
        let line = "2026-01-02T10:00:03.5Z  INFO perdura_replica::runtime::event_loop: the leader is to be \
                    replaced: another one is tried view=4 leader=0";
        let why = "another one is tried".to_owned();
        let expected = GivenUp { replica: 1, at_s: 2.5, why };
        assert_eq!(parse_given_up(line, 1, 36_001.0), Some(expected));
        assert_eq!(parse_given_up("2026-01-02T10:00:03.5Z INFO another leader", 1, 0.0), None);
    }

    #[test]
    fn a_line_says_from_when_to_when_also_over_midnight() {
        let line = |time: &str| {
            format!(
                "2026-01-02T{time}Z DEBUG perdura_replica::runtime::checkpointer: checkpoint stored \
                 slot=77 written_bytes=4096 linked_bytes=0 linked_files=0 took_ms=1500"
            )
        };
        let stored = parse(&line("10:00:03.250000"), 2, 36_000.0).unwrap();
        assert_eq!((stored.replica, stored.written_bytes), (2, 4096));
        assert!((stored.from_s - 1.75).abs() < 1e-6 && (stored.to_s - 3.25).abs() < 1e-6);
        let stored = parse(&line("00:00:01.000000"), 0, 86_399.0).unwrap();
        assert!((stored.to_s - 2.0).abs() < 1e-6, "{stored:?}");
        assert_eq!(parse("2026-01-02T10:00:03Z INFO replica starts", 0, 0.0), None);
    }
}
