//! Junk in place of decided batches: what a liar sends to a replica that catches up.
//!
//! Such an answer costs who asked for it most where it cannot be judged when it comes: while a state
//! is on its way, or what precedes it. So besides answers that are false there are those that take more
//! room or more questions than they look like.

use crate::liar::Liar;
use crate::memory::variant;
use perdura_protocol::message::Decision;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Batch, Certificate, ReplicaId, Slot, Time, View};

/// Bytes of the frames in a heavy batch, about.
const HEAVY_BYTES: usize = 512 * 1024;

/// Slots beyond what was asked for.
const BEYOND_SLOTS: u64 = 32;

/// How an answer is spoilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Junk {
    /// Other batches than those decided.
    False,
    /// The first half of it.
    Half,
    /// The right batches, with signatures that are none.
    Unsigned,
    /// The first one is genuine, so that it looks well.
    FirstTrue,
    /// One slot, and that one false: as many questions as can be.
    Single,
    /// Every other slot.
    Gaps,
    /// All genuine, with more behind it than was asked for, which is not.
    Beyond,
    /// From the last to the first.
    Backwards,
    /// The first slot, again and again.
    Repeated,
    /// Nothing at all.
    Empty,
    /// False, and larger than what was decided.
    Heavy,
}

impl Junk {
    const ALL: [Junk; 11] = [
        Junk::False,
        Junk::Half,
        Junk::Unsigned,
        Junk::FirstTrue,
        Junk::Single,
        Junk::Gaps,
        Junk::Beyond,
        Junk::Backwards,
        Junk::Repeated,
        Junk::Empty,
        Junk::Heavy,
    ];
}

impl Liar {
    /// Spoils an answer. For a while in one way: what does harm by the number of such answers is seen only
    /// so.
    pub(crate) fn spoil_decisions(
        &mut self,
        decisions: &mut Vec<Decision>,
        prefix: &mut Option<PrefixCertificate>,
    ) {
        let mut dice = self.dice(View(2), Slot(self.mood_number));
        let genuine = decisions.clone();
        self.spoil(*dice.pick(&Junk::ALL), decisions, prefix);
        // Of one decision most ways leave what it is.
        if *decisions == genuine {
            decisions.iter_mut().for_each(replace);
        }
    }

    fn spoil(
        &mut self,
        junk: Junk,
        decisions: &mut Vec<Decision>,
        prefix: &mut Option<PrefixCertificate>,
    ) {
        match junk {
            Junk::False => decisions.iter_mut().for_each(replace),
            Junk::Half => {
                decisions.truncate(decisions.len() / 2);
                *prefix = None;
            }
            Junk::Unsigned => {
                for decision in decisions.iter_mut() {
                    let signatures = (0..decision.accepts.len())
                        .map(|index| (ReplicaId(index as u8), self.noise()))
                        .collect();
                    decision.accepts = Certificate::new(signatures);
                }
            }
            Junk::FirstTrue => {
                decisions.iter_mut().skip(1).for_each(replace);
                *prefix = None;
            }
            Junk::Single => {
                decisions.truncate(1);
                decisions.iter_mut().for_each(replace);
                *prefix = None;
            }
            Junk::Gaps => {
                let mut index = 0;
                decisions.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            Junk::Beyond => {
                if let Some(last) = decisions.last().cloned() {
                    let beyond = (1..=BEYOND_SLOTS).map(|more| {
                        let mut decision = last.clone();
                        decision.slot = Slot(last.slot.0 + more);
                        replace(&mut decision);
                        decision
                    });
                    decisions.extend(beyond);
                }
            }
            Junk::Backwards => decisions.reverse(),
            Junk::Repeated => {
                if let Some(first) = decisions.first().cloned() {
                    decisions.fill(first);
                }
            }
            Junk::Empty => decisions.clear(),
            Junk::Heavy => {
                if let Some(first) = decisions.first_mut() {
                    enlarge(first);
                }
                decisions.iter_mut().skip(1).for_each(replace);
                *prefix = None;
            }
        }
    }
}

/// Another batch for the same slot.
fn replace(decision: &mut Decision) {
    let other = variant(&decision.batch);
    decision.batch = other.unwrap_or_else(|| Batch::tick(Time(decision.batch.time().0 + 1)));
}

/// A batch that repeats the frames of another one.
fn enlarge(decision: &mut Decision) {
    let frames = decision.batch.frames();
    let bytes = frames.iter().map(|frame| frame.raw().len()).sum::<usize>();
    let limit = perdura_protocol::limits::BATCH_FRAMES;
    let count = (HEAVY_BYTES / bytes.max(1)).min(limit / frames.len().max(1)).max(2);
    let repeated: Vec<_> =
        std::iter::repeat_n(frames, count).flatten().take(limit).cloned().collect();
    if repeated.is_empty() {
        return replace(decision);
    }
    decision.batch = Batch::requests(decision.batch.time(), repeated);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insider::Insider;
    use crate::strategy::Strategy;
    use bytes::Bytes;
    use perdura_protocol::{ClusterId, Faults, Frame, PublicKey, SessionId, Signature};

    fn decision(slot: u64) -> Decision {
        let session = SessionId { client: PublicKey([1; 32]), nonce: 0 };
        let command = [Bytes::from(vec![7; 100])];
        let frame = Frame::build(ClusterId([0; 16]), session, 0, slot, &command, None);
        let batch = Batch::requests(Time(slot), vec![frame]);
        let accepts = Certificate::new(vec![(ReplicaId(0), Signature::NONE)]);
        Decision { slot: Slot(slot), view: View(1), accepts, batch }
    }

    #[test]
    fn each_way_makes_another_answer() {
        let insider = Insider {
            me: ReplicaId(0),
            faults: Faults::new(1, 1).unwrap(),
            cluster: ClusterId([0; 16]),
            keys: Vec::new(),
            configurations: Vec::new(),
            coin: 7,
            statements: None,
        };
        let mut liar = Liar::new(insider, Strategy::CorruptTransfer, 1);
        let mut seen = vec![(5..9).map(decision).collect::<Vec<_>>()];
        for junk in Junk::ALL {
            let mut spoilt = seen[0].clone();
            liar.spoil(junk, &mut spoilt, &mut None);
            assert!(!seen.contains(&spoilt), "{junk:?}");
            seen.push(spoilt);
        }
        let bytes = seen.iter().flatten().map(|decision| decision.batch.raw().len()).max();
        assert!(bytes.is_some_and(|bytes| bytes > HEAVY_BYTES / 2), "{bytes:?}");
    }
}
