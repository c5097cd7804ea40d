//! The bulk of a store: state that clients change rarely or never, as most state is. What rots in a
//! few keys that are written all the time is overwritten before anybody can find it.

use bytes::Bytes;
use perdura_adversary::Random;
use perdura_protocol::Encode;
use perdura_store::StoreCommand;
use std::time::Duration;

/// Keys that are written once, and as many that are written again and again. They are in segments of
/// their own: about a dozen each, beside one or two of what the workloads write.
const KEYS: u64 = 120;

/// A segment has about ten of them.
const VALUE_BYTES: usize = 4096;

/// Between two writes: one key is written about every half minute, a segment every few seconds. So
/// some damage is found by the scrub and some by the votes on a boundary's digest.
pub const PAUSE: Duration = Duration::from_millis(250);

/// All of it, a command for each key.
pub fn all(random: &mut Random) -> Vec<Bytes> {
    let keys = (0..KEYS).flat_map(|number| [still(number), moving(number)]);
    keys.map(|key| put(key, random)).collect()
}

/// Writes one of the keys that change once more.
pub fn again(random: &mut Random) -> Bytes {
    put(moving(random.below(KEYS)), random)
}

// Not what a shard's keys begin with.
fn still(number: u64) -> String {
    format!("a{number:04}")
}

fn moving(number: u64) -> String {
    format!("b{number:04}")
}

fn put(key: String, random: &mut Random) -> Bytes {
    let mut value = vec![0; VALUE_BYTES];
    value.fill_with(|| random.below(256) as u8);
    StoreCommand::Put { key: key.into(), value: value.into() }.to_bytes()
}
