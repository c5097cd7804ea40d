//! Guards what replicas keep of each other's starts (docs/design.md, Boots): what is given back is on disk, stays there, and is the newest; nobody
//! announces a start before n - u have compared, nor says anything that restricts votes before n - u have that on disk; whom a correct
//! replica gave back a start that its directory never had goes no further, and nobody else is sent away.

use crate::violation::{Broken, Check};
use perdura_protocol::boots::Recalled;
use perdura_protocol::{BootId, Digest, Faults, Message, PublicKey, Record, ReplicaId, Slot, View};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "Boots (12)";

/// A replica found its directory an older one, which is the newest that it had.
#[must_use]
pub fn sent_away(replica: usize, why: &str) -> Broken {
    Broken::new(
        RULE,
        format!("replica {replica} is sent away, and its directory is the newest: {why}"),
    )
}

/// Of a replica.
#[derive(Clone, Debug, Default)]
struct Kept {
    // Of others, on its disk: with the key that announced it.
    held: BTreeMap<ReplicaId, (PublicKey, BootId)>,
    // The same of their newest Accepts.
    votes: BTreeMap<ReplicaId, (PublicKey, (View, Slot))>,
    // The newest Accept of each that its process knows of, and what it heard since it spoke last.
    accepts: BTreeMap<usize, (View, Slot)>,
    fresh: Vec<(usize, (View, Slot))>,
    // Votes that its directory held when it started: it may give them again.
    voted: BTreeSet<(View, Slot, Digest)>,
    // Whether its directory could be an old one.
    compares: bool,
    own: Option<BootId>,
    // Those of its directory before that, as far as it knows them.
    former: Vec<BootId>,
    compared: BTreeSet<usize>,
    // Who has its boot on disk.
    keep: BTreeSet<usize>,
    // That a correct one gave back a boot that its directory never had.
    outdated: Option<(usize, BootId)>,
    // Whose announcements are of no use any more, as that one was replaced.
    replaced: BTreeSet<ReplicaId>,
}

impl Kept {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Boot { replica, key, announcement } => {
                let before = self.held.insert(*replica, (*key, announcement.boot));
                let of_another = before.is_some_and(|(by, _)| by != *key);
                self.votes.retain(|of, _| of != replica || !of_another);
            }
            Record::Heard { replica, key, vote } => {
                self.votes.insert(*replica, (*key, (vote.view, vote.slot)));
            }
            Record::Vote { view, slot, batch, .. } if self.own.is_none() => {
                self.voted.insert((*view, *slot, batch.digest()));
            }
            _ => {}
        }
    }
}

/// The checker.
#[derive(Debug)]
pub struct Boots {
    faults: Faults,
    replicas: Vec<Kept>,
    // Those whose disks are gone, and whose successors are not there yet.
    gone: BTreeSet<usize>,
}

impl Boots {
    /// For a group with empty disks.
    #[must_use]
    pub fn new(faults: Faults) -> Boots {
        let (replicas, gone) = (vec![Kept::default(); faults.n()], BTreeSet::new());
        Boots { faults, replicas, gone }
    }

    /// The disk of `replica` has these records for good.
    pub fn appended(&mut self, replica: usize, records: &[Record]) -> Check {
        let here = &mut self.replicas[replica];
        for record in records {
            let before = match record {
                Record::Boot { replica: of, key, announcement } => here
                    .held
                    .get(of)
                    .filter(|(by, held)| by == key && held.number > announcement.boot.number)
                    .copied(),
                _ => None,
            };
            here.take(record);
            if let Some((_, held)) = before {
                let number = held.number;
                let what = format!(
                    "replica {replica} had boot {number} of another one on its disk, and keeps {record:?} in its place"
                );
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }

    /// The disk of `replica` is gone, and so is that one.
    pub fn wiped(&mut self, replica: usize) {
        self.forgotten(replica);
        self.gone.insert(replica);
    }

    /// The next incarnation of `replica` starts on an empty disk. What others heard of the former one is nothing of this one's.
    pub fn succeeded(&mut self, replica: usize) {
        self.forgotten(replica);
        self.gone.remove(&replica);
    }

    fn forgotten(&mut self, replica: usize) {
        self.replicas[replica] = Kept::default();
        let id = ReplicaId(replica as u8);
        for kept in &mut self.replicas {
            kept.accepts.remove(&replica);
            kept.fresh.retain(|(from, _)| *from != replica);
            kept.replaced.insert(id);
        }
    }

    /// `replica` hears an Accept of another one, which is correct.
    pub fn hears_accept(&mut self, replica: usize, from: usize, place: (View, Slot)) {
        self.replicas[replica].fresh.push((from, place));
    }

    /// A process starts in this boot, if its directory could be an old one, and had these before; all have these keys.
    pub fn started(
        &mut self,
        replica: usize,
        own: Option<BootId>,
        former: Vec<BootId>,
        keys: &[PublicKey],
    ) {
        let here = &mut self.replicas[replica];
        (here.compares, here.own, here.former) = (own.is_some(), own, former);
        here.outdated = None;
        here.compared.clear();
        here.keep.clear();
        here.fresh.clear();
        let of = |(id, (key, place)): (&ReplicaId, &(PublicKey, (View, Slot)))| {
            (keys[id.index()] == *key).then_some((id.index(), *place))
        };
        here.accepts = here.votes.iter().filter_map(of).collect();
    }

    /// A damaged or older disk gave this.
    pub fn reread(&mut self, replica: usize, records: &[Record]) {
        let here = &mut self.replicas[replica];
        *here = Kept { replaced: std::mem::take(&mut here.replaced), ..Kept::default() };
        records.iter().for_each(|record| here.take(record));
    }

    /// After a crash `replica` read this: it knows the same of the others' starts, or more.
    pub fn reopened(&mut self, replica: usize, records: &[Record]) -> Check {
        let before = self.replicas[replica].held.clone();
        self.reread(replica, records);
        let here = &self.replicas[replica];
        let now = &here.held;
        let is_there = |of: &ReplicaId, (key, boot): &(PublicKey, BootId)| {
            now.get(of).is_some_and(|(by, found)| by != key || found.number >= boot.number)
                || here.replaced.contains(of)
        };
        match before.iter().find(|(of, known)| !is_there(of, known)) {
            None => Ok(()),
            Some((of, (_, boot))) => {
                let (number, found) = (boot.number, now.get(of));
                let what = format!(
                    "replica {replica} had boot {number} of replica {of} on its disk, and finds {found:?} there"
                );
                Err(Broken::new(RULE, what))
            }
        }
    }

    /// `replica` hears what another one, which is correct if `correct`, holds of it under `key`.
    pub fn hears(
        &mut self,
        replica: usize,
        key: PublicKey,
        (from, correct): (usize, bool),
        recalled: &Recalled,
    ) {
        let holds = self.replicas[from].held.get(&ReplicaId(replica as u8)).copied();
        let here = &mut self.replicas[replica];
        let boot = recalled.announcement.as_ref().map(|held| held.boot);
        let Some(own) = here.own.filter(|own| recalled.asked == *own) else { return };
        here.compared.insert(from);
        let Some(boot) = boot else { return };
        if boot == own {
            here.keep.insert(from);
        }
        let oldest = here.former.last().unwrap_or(&own).number;
        if correct
            && boot != own
            && holds == Some((key, boot))
            && boot.number >= oldest
            && !here.former.contains(&boot)
        {
            here.outdated.get_or_insert((from, boot));
        }
    }

    /// `replica` did all that followed from what it heard, and runs.
    pub fn goes_on(&mut self, replica: usize) -> Check {
        let here = &mut self.replicas[replica];
        for (from, place) in here.fresh.drain(..) {
            let newest = here.accepts.entry(from).or_insert(place);
            *newest = place.max(*newest);
        }
        match (here.outdated, here.own) {
            (Some((from, boot)), Some(own)) => {
                let (number, own) = (boot.number, own.number);
                let what = format!(
                    "replica {replica} was given back a boot {number} of its own by replica {from}, and goes on as another boot {own}"
                );
                Err(Broken::new(RULE, what))
            }
            _ => Ok(()),
        }
    }

    /// `replica` sends this to another one, whose key is this.
    pub fn speaks(
        &mut self,
        replica: usize,
        (to, key): (usize, PublicKey),
        message: &Message,
    ) -> Check {
        let here = &mut self.replicas[replica];
        match message {
            Message::Recall(recalled) => {
                let id = ReplicaId(to as u8);
                let held = here.held.get(&id).filter(|(by, _)| *by == key);
                if held.is_none() && here.replaced.contains(&id) {
                    return Ok(()); // Of the former one, or nothing.
                }
                if self.gone.contains(&to) && recalled.announcement.is_none() {
                    return Ok(()); // It knows of the next one already, which nobody has heard.
                }
                gives_back(replica, to, recalled, held, here.accepts.get(&to))
            }
            Message::Announce(announcement) => {
                let logged = here.held.get(&ReplicaId(replica as u8)).map(|(_, boot)| *boot);
                if logged != Some(announcement.boot) {
                    let what = format!("replica {replica} announces a boot that its log lacks");
                    return Err(Broken::new(RULE, what));
                }
                here.enough(replica, message, &here.compared, self.faults)
            }
            Message::Write { view, slot, digest, .. }
            | Message::Accept { view, slot, digest, .. }
                if here.voted.contains(&(*view, *slot, *digest)) =>
            {
                Ok(())
            }
            Message::Propose { .. }
            | Message::Write { .. }
            | Message::Accept { .. }
            | Message::ViewChange(_)
            | Message::NewView(_) => here.enough(replica, message, &here.keep, self.faults),
            _ => Ok(()),
        }
    }
}

impl Kept {
    /// Whether as many answered as have to before `replica` says this.
    fn enough(
        &self,
        replica: usize,
        message: &Message,
        answered: &BTreeSet<usize>,
        faults: Faults,
    ) -> Check {
        let (found, needed) = (1 + answered.len(), faults.responsive());
        if !self.compares || found >= needed {
            return Ok(());
        }
        let what = format!(
            "replica {replica} says {message:?} when {found} have answered for its boot, and {needed} have to"
        );
        Err(Broken::new(RULE, what))
    }
}

/// `replica` gives this back, and has `held` on its disk and heard an Accept so new.
fn gives_back(
    replica: usize,
    to: usize,
    recalled: &Recalled,
    held: Option<&(PublicKey, BootId)>,
    heard: Option<&(View, Slot)>,
) -> Check {
    let boot = recalled.announcement.as_ref().map(|held| held.boot);
    let vote = recalled.vote.as_ref().map(|vote| (vote.view, vote.slot));
    let what = if held.map(|(_, held)| *held) != boot {
        format!("{boot:?} of replica {to}, and has {held:?} on its disk")
    } else if heard.copied() > vote {
        format!("{vote:?} as the newest vote of replica {to}, and heard of {heard:?}")
    } else {
        return Ok(());
    };
    Err(Broken::new(RULE, format!("replica {replica} gives back {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::boots::{Announcement, HeldVote};
    use perdura_protocol::{Batch, Certificate, Signature};

    const KEY: PublicKey = PublicKey([1; 32]);

    fn announcement(number: u64, nonce: u8) -> Announcement {
        let boot = BootId { number, nonce: [nonce; 16] };
        Announcement { boot, configuration: 0, signature: Signature::NONE }
    }

    fn record(of: u8, number: u64) -> Record {
        let announcement = announcement(number, 0);
        Record::Boot { replica: ReplicaId(of), key: KEY, announcement }
    }

    fn boot(number: u64, nonce: u8) -> BootId {
        BootId { number, nonce: [nonce; 16] }
    }

    /// Asked in boot 7.
    fn recalled(number: u64, nonce: u8) -> Recalled {
        let announcement = (number > 0).then(|| announcement(number, nonce));
        Recalled { asked: boot(7, 0), announcement, replaced: None, vote: None }
    }

    fn checker() -> Boots {
        Boots::new(Faults::new(1, 1).unwrap())
    }

    #[test]
    fn what_is_given_back_is_on_disk_and_stays_there() {
        let mut checker = checker();
        let gives = |checker: &mut Boots, number| {
            checker.speaks(0, (2, KEY), &Message::Recall(Box::new(recalled(number, 0))))
        };
        assert!(gives(&mut checker, 4).is_err() && gives(&mut checker, 0).is_ok());
        checker.appended(0, &[record(2, 4)]).unwrap();
        assert!(gives(&mut checker, 4).is_ok() && gives(&mut checker, 5).is_err());
        assert!(gives(&mut checker, 0).is_err(), "it has one");
        assert!(checker.reopened(0, &[record(2, 3), record(2, 4)]).is_ok());
        assert!(checker.reopened(0, &[record(1, 9), record(2, 3)]).is_err());
        checker.reread(0, &[]);
        assert!(checker.reopened(0, &[]).is_ok(), "that it is gone was known");
    }

    /// What it said last comes to the disk when others know who follows it.
    #[test]
    fn of_a_replica_that_is_gone_nothing_need_be_given_back_until_the_next_one_starts() {
        let mut checker = checker();
        let gives = |checker: &mut Boots, number| {
            checker.speaks(0, (2, KEY), &Message::Recall(Box::new(recalled(number, 0))))
        };
        checker.wiped(2);
        checker.appended(0, &[record(2, 4)]).unwrap();
        assert!(gives(&mut checker, 0).is_ok() && gives(&mut checker, 4).is_ok());
        assert!(gives(&mut checker, 5).is_err());
        checker.succeeded(2);
        assert!(gives(&mut checker, 0).is_err());
    }

    #[test]
    fn what_is_kept_and_given_back_is_the_newest() {
        let mut checker = checker();
        checker.appended(0, &[record(2, 4), record(1, 1), record(2, 5)]).unwrap();
        let held = |view, slot| HeldVote {
            view: View(view),
            slot: Slot(slot),
            digest: Digest::ZERO,
            configuration: 0,
            signature: Signature::NONE,
        };
        let gives = |checker: &mut Boots, vote: Option<(u64, u64)>| {
            let vote = vote.map(|(view, slot)| held(view, slot));
            let recalled = Recalled { vote, ..recalled(5, 0) };
            checker.speaks(0, (2, KEY), &Message::Recall(Box::new(recalled))).is_ok()
        };
        assert!(gives(&mut checker, None));
        for (view, slot) in [(1, 3), (0, 9)] {
            checker.hears_accept(0, 2, (View(view), Slot(slot)));
        }
        assert!(gives(&mut checker, None), "it said that before it heard them");
        checker.goes_on(0).unwrap();
        assert!(gives(&mut checker, Some((1, 3))) && gives(&mut checker, Some((2, 1))));
        assert!(!gives(&mut checker, Some((0, 9))) && !gives(&mut checker, None));
        // What is on disk it remembers, and no more has to.
        let heard = Record::Heard { replica: ReplicaId(2), key: KEY, vote: held(1, 2) };
        checker.appended(0, &[heard]).unwrap();
        checker.started(0, Some(boot(3, 0)), vec![], &[KEY; 4]);
        assert!(gives(&mut checker, Some((1, 2))) && !gives(&mut checker, Some((1, 1))));
        assert!(checker.appended(0, &[record(2, 4)]).is_err());
        checker.wiped(2);
        let nothing = Message::Recall(Box::new(recalled(0, 0)));
        assert!(checker.speaks(0, (2, PublicKey([9; 32])), &nothing).is_ok(), "of a new one");
    }

    #[test]
    fn nobody_votes_before_n_less_u_have_its_boot() {
        let mut checker = checker();
        let accept = Message::Accept {
            view: View(0),
            slot: Slot(1),
            digest: Digest::ZERO,
            signature: Signature::NONE,
        };
        let batch = Batch::null();
        let again = Message::Accept {
            view: View(0),
            slot: Slot(9),
            digest: batch.digest(),
            signature: Signature::NONE,
        };
        let writes = Certificate::default();
        checker.reread(0, &[Record::Vote { view: View(0), slot: Slot(9), batch, writes }]);
        checker.started(0, Some(boot(7, 0)), vec![boot(6, 0)], &[KEY; 4]);
        let announces = Message::Announce(announcement(7, 0));
        assert!(checker.speaks(0, (1, KEY), &again).is_ok(), "it voted so before");
        for from in [1, 1, 2] {
            assert!(checker.speaks(0, (1, KEY), &announces).is_err());
            checker.hears(0, KEY, (from, true), &recalled(6, 0));
            assert!(
                checker.speaks(0, (1, KEY), &accept).is_err(),
                "that was asked before it announced"
            );
        }
        assert!(checker.speaks(0, (1, KEY), &announces).is_err(), "it is not in its log");
        checker.appended(0, &[record(0, 7)]).unwrap();
        assert!(checker.speaks(0, (1, KEY), &announces).is_ok());
        for from in [1, 1, 2] {
            assert!(checker.speaks(0, (1, KEY), &accept).is_err());
            checker.hears(0, KEY, (from, true), &recalled(7, 0));
        }
        assert!(checker.speaks(0, (1, KEY), &accept).is_ok());
        checker.started(0, None, vec![], &[KEY; 4]);
        assert!(checker.speaks(0, (1, KEY), &accept).is_ok());
    }

    #[test]
    fn who_is_given_back_a_boot_that_it_never_had_goes_no_further() {
        for (number, nonce, correct, may) in [
            (4, 1, true, true),
            (5, 0, true, true),
            (6, 0, true, true),
            (6, 1, true, false),
            (7, 1, true, false),
            (8, 0, true, false),
            (7, 1, false, true),
            (7, 0, true, true),
        ] {
            let mut checker = checker();
            checker.started(0, Some(boot(7, 0)), vec![boot(6, 0), boot(5, 0)], &[KEY; 4]);
            let announcement = announcement(number, nonce);
            let record = Record::Boot { replica: ReplicaId(0), key: KEY, announcement };
            checker.appended(1, &[record]).unwrap();
            checker.hears(0, KEY, (1, correct), &recalled(number, nonce));
            assert_eq!(checker.goes_on(0).is_ok(), may, "{number} {nonce} {correct}");
        }
    }
}
