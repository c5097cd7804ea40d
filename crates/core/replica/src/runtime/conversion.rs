//! When a data directory of an older format is converted: once others of the group run a program that speaks as this one does, and no
//! sooner. One replica that was updated by mistake, or first of all, can go back to the older program until then, with its votes whole:
//! nothing in its directory has changed, and it has said nothing.

use super::ReplicaConfig;
use super::starting::Starting;
use super::threads;
use perdura_durability::FORMAT_VERSION;
use perdura_protocol::ReplicaId;
use perdura_transport::{Hello, Hub, HubConfig, MemberAddress, PROTOCOL_VERSION, version_of};
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Between two questions to one replica.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long those who come meanwhile wait to be told that this replica starts.
const TURN: Duration = Duration::from_millis(100);

/// What another replica answered last: its version of the protocol, or why there is none.
type Answered = (ReplicaId, Result<u16, String>);

/// Waits until so many others that one of them is no liar speak this program's version of the protocol, and answers those who ask the same.
/// False when `stops` says first that the replica is to end.
///
/// # Errors
/// When the system gives no threads, or the hub fails.
pub(super) fn is_due(
    format: u32,
    config: &ReplicaConfig,
    (links, hub): (&HubConfig, &mut Hub),
    starting: &Starting,
    stops: impl Fn() -> bool,
) -> io::Result<bool> {
    let needed = config.parameters.faults.r() + 1;
    let (told, answers) = channel();
    for member in config.addresses_of(&config.latest) {
        if member.id != config.id {
            ask(links.clone(), member, told.clone())?;
        }
    }
    // Their threads hold on to theirs.
    drop(told);
    let mut admits = |_: &Hello, _| Ok(());
    let mut last = BTreeMap::new();
    let mut events = Vec::new();
    tracing::warn!("{}", waits_for(format, needed, &last));
    while !stops() {
        starting.waits(waits_for(format, needed, &last));
        // Nobody is admitted, so nothing comes of it.
        hub.poll(Instant::now(), Some(TURN), &mut admits, &mut events)?;
        events.clear();
        last.extend(answers.try_iter());
        if last.values().filter(|answered| **answered == Ok(PROTOCOL_VERSION)).count() >= needed {
            tracing::info!(
                "the data directory is converted from format {format} to {FORMAT_VERSION}, which older programs do not read"
            );
            return Ok(true);
        }
    }
    Ok(false)
}

/// Asks this replica again and again, on a thread of its own, until nobody wants to know.
fn ask(links: HubConfig, member: MemberAddress, told: Sender<Answered>) -> io::Result<()> {
    threads::spawn("versions", move || {
        loop {
            let answered = version_of(&links, &member).map_err(|error| error.to_string());
            if told.send((member.id, answered)).is_err() {
                return;
            }
            std::thread::sleep(ASK_AGAIN);
        }
    })?;
    Ok(())
}

fn waits_for(
    format: u32,
    needed: usize,
    last: &BTreeMap<ReplicaId, Result<u16, String>>,
) -> String {
    let mut text = format!(
        "starting: the data directory is of format {format}, and is converted to {FORMAT_VERSION} once {needed} other replica{} \
         run a program that speaks version {PROTOCOL_VERSION} of the protocol; until then the older program may still be started on it",
        if needed == 1 { "" } else { "s" },
    );
    for (id, answered) in last {
        match answered {
            Ok(version) => text += &format!("; replica {id} speaks version {version}"),
            Err(why) => text += &format!("; replica {id}: {why}"),
        }
    }
    text
}
