//! The answer as people read it: a table of all replicas, and what is notable of them below it.

use super::report::{Hanging, Line};
use crate::called;
use crate::partitions::label;
use perdura_cluster::protocol::PartitionId;
use perdura_cluster::protocol::text::Printable;
use perdura_replica::node::{offset_text, seconds};

/// Without slow disks or links.
const USUAL_TIMEOUT_MS: u64 = 1_000;

/// So many are named of those of whom the same is said.
const LABELS: usize = 3;

/// A clock that is off by more is told of.
const NOTABLE_MS: u64 = 250;

pub(super) fn table(lines: &[Line]) -> String {
    let mut rows = vec![
        ["ID", "ROLE", "STATE", "VIEW", "DECIDED", "EXECUTED", "LOGGED", "CHECKPOINT", "PID"]
            .map(str::to_owned),
    ];
    rows.extend(lines.iter().map(row));
    let mut text = aligned(&rows);
    text.push_str(&footer(lines.iter()));
    text
}

/// What is notable of all lines; one line for what is said of many.
pub(super) fn footer<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        let label = label(line.partition.map(PartitionId), line.id);
        for note in notes(line).iter().map(|note| called::here(note)) {
            match said.iter_mut().find(|(known, _)| *known == note) {
                Some((_, labels)) => labels.push(label.clone()),
                None => said.push((note, vec![label.clone()])),
            }
        }
    }
    let text = |(note, labels): (String, Vec<String>)| match labels.len() {
        0..=LABELS => format!("{}: {note}\n", labels.join("; ")),
        count => format!("{}; and {} more: {note}\n", labels[..LABELS].join("; "), count - LABELS),
    };
    said.into_iter().map(text).collect()
}

/// What of a line is in a table.
pub(super) fn row(line: &Line) -> [String; 9] {
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |n| n.to_string());
    let role = match (line.reachable, line.leader) {
        (false, _) => "-",
        (true, true) => "leader",
        (true, false) => "follower",
    };
    let checkpoint = line.checkpoint.as_ref().map_or("-".to_owned(), |point| {
        let digest = Printable(point.digest.get(..8).unwrap_or_default());
        format!("{} {digest}", point.slot)
    });
    [
        line.id.to_string(),
        role.to_owned(),
        Printable(line.state.as_deref().unwrap_or("unreachable")).to_string(),
        number(line.view),
        number(line.decided),
        number(line.executed),
        number(line.logged),
        checkpoint,
        number(line.pid.map(u64::from)),
    ]
}

/// What is notable of a line.
fn notes(line: &Line) -> Vec<String> {
    let mut notes = Vec::new();
    for Hanging { thread, at, ms } in &line.hanging {
        let (thread, at) = (Printable(thread), Printable(at));
        notes.push(format!("the {thread} hangs: {at}, for {}", seconds(*ms)));
    }
    for experiment in &line.experiments {
        notes.push(format!("experiment: {}", Printable(experiment)));
    }
    if let Some(why) = &line.why_not_ready {
        notes.push(format!("not ready: {}", Printable(why)));
    }
    if let Some(ms) = line.request_timeout_ms.filter(|ms| *ms > USUAL_TIMEOUT_MS) {
        notes.push(format!(
            "waits {ms} ms for a request before it suspects the leader: disks or links are slow"
        ));
    }
    for member in &line.members {
        if let Some(ms) = member.clock_offset_ms.filter(|ms| ms.unsigned_abs() > NOTABLE_MS) {
            let offset = offset_text(ms);
            notes.push(format!("the clock of replica {} is {offset} its own", member.id));
        }
    }
    if let Some(found) = &line.differing_states {
        let digest = |(id, digest): (&u8, &String)| {
            format!(" {id} {}", Printable(digest.get(..8).unwrap_or_default()))
        };
        let digests: String = found.digests.iter().map(digest).collect();
        let more = if found.certifiable { "" } else { ", and none can be certified" };
        notes.push(format!(
            "replicas signed different states after slot {}{more}, see its log:{digests}",
            found.slot
        ));
    }
    if line.repairs > 0 {
        notes.push(format!(
            "has replaced its state {} times since it started, for it was not the certified one: test its memory, and see its log",
            line.repairs
        ));
    }
    if line.checkpoint_damages > 0 {
        notes.push(format!(
            "parts of its stored checkpoints that it found damaged: {}; test its disk, and see its log",
            line.checkpoint_damages
        ));
    }
    notes.extend(line.error.clone());
    notes
}

/// Rows with their columns aligned to the left.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or_default();
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
