//! Who gets a tuple that was inserted or given back, and what becomes of it with the time.

use crate::claims::Gone;
use crate::holds;
use crate::layout::{LEASE, Locator, Record, lease_key, leased, locator_of, time_of, tuple_key};
use crate::limits;
use crate::operate::{Now, Spaces};
use crate::reply::{Found, Purpose, TupleReply};
use crate::space::Contents;
use crate::steps::{PASSED_STEP, SERVED_STEP, WAITER_STEP};
use crate::tuple::{Tuple, matches_encoded, split};
use crate::waiting::{self, Glance, Sought, Waiter};
use perdura_execution::{Meter, Release};
use perdura_protocol::limits::COMMAND_COST;
use perdura_protocol::{Encode, Time, seeded};
use perdura_store::SegmentMap;
use std::collections::BTreeMap;

/// Leases that end within this time, milliseconds, do so together where nobody waits.
const TOGETHER_MS: u64 = 1_000;

/// When those who wait are served, and what is told of what that costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occasion<'a> {
    pub now: Now,
    pub meter: &'a Meter,
    /// Whether somebody may wait in the space to read: so it is where nobody has looked.
    pub reads: bool,
}

impl<'a> Occasion<'a> {
    /// Between commands: agreed time is not known.
    pub(crate) fn of(clock: Time, meter: &'a Meter) -> Occasion<'a> {
        Occasion { now: Now::of(clock), meter, reads: true }
    }
}

/// What there was before many tuples were inserted or taken by one command. Those who wait for them are served one tuple after the other, and
/// what that costs is known when it is done: where it is more than a command may, nothing is done.
#[derive(Debug)]
pub(crate) struct Before {
    // It shares what does not change.
    map: SegmentMap,
    space: Contents,
    told: usize,
}

impl Spaces {
    /// That of now, if what follows may cost so much that it has to be undone.
    pub(crate) fn before(
        &self,
        meter: &Meter,
        most: usize,
        space: &Contents,
        released: &[Release],
    ) -> Option<Before> {
        let most = meter.spent().saturating_add(most as u64);
        let may_be_undone = meter.is_bounded() && most > COMMAND_COST;
        let before = || Before { map: self.map.clone(), space: *space, told: released.len() };
        may_be_undone.then(before)
    }

    /// Goes back to it.
    pub(crate) fn undo(
        &mut self,
        before: Before,
        space: &mut Contents,
        released: &mut Vec<Release>,
    ) {
        self.map = before.map;
        *space = before.space;
        released.truncate(before.told);
    }

    /// Serves those who wait for a tuple, in the order in which they began to. Each who reads gets a copy. The first who takes it is offered
    /// it; under version 1 of the rules it has it, and nobody behind it gets a copy.
    pub(crate) fn serve(
        &mut self,
        space: &mut Contents,
        number: u64,
        occasion: Occasion<'_>,
        released: &mut Vec<Release>,
    ) {
        if space.counters.waiters == 0 {
            return;
        }
        let Some(value) = self.map.get(&tuple_key(space.id, number)) else { return };
        // As all that is charged here: counted, and not refused. No more can wait than a space has room for.
        let _ = occasion.meter.charge(value.len());
        let is_free = !(self.has_holds(space) && holds::is_held(&self.map, space.id, number));
        let served = self.those_served(space, &Record::of(value), is_free, occasion);
        if served.is_empty() {
            return;
        }
        let value = value.to_vec();
        let record = Record::of(&value);
        // Replies share their memory.
        let expires = if is_free { occasion.now.shown(record.expires) } else { None };
        let tuple = Tuple::of_raw(record.tuple);
        let copy = TupleReply::Found(Some(Found { number, expires, tuple })).to_bytes();
        for place in served {
            let _ = occasion.meter.charge(SERVED_STEP);
            let head = waiting::head(&self.map, &place);
            if head.purpose != Purpose::Read && self.version > 1 {
                self.offer(space, number, &place, &record, released);
                continue;
            }
            space.counters.waiters -= 1;
            waiting::remove(&mut self.map, &place);
            released.push(head.release(Ok(copy.clone()), false));
            if head.purpose == Purpose::Take {
                space.remove(&mut self.map, number);
            }
        }
    }

    /// Those for whom a tuple is: who read, and the first who takes it, behind whom those who read have nothing of one that is taken for good.
    fn those_served(
        &self,
        space: &Contents,
        record: &Record<'_>,
        mut is_free: bool,
        occasion: Occasion<'_>,
    ) -> Vec<Locator> {
        let fields = split(record.tuple);
        let ranges = waiting::ranges_for(space, record);
        let mut served = Vec::new();
        for (key, value) in waiting::in_turn(&self.map, &ranges) {
            if !is_free && !occasion.reads {
                break;
            }
            let Glance { client, purpose, template } = Glance::of(value);
            let admitted = match purpose {
                Purpose::Read => record.read.admits(client),
                Purpose::Take | Purpose::Lease => is_free && record.take.admits(client),
                Purpose::Claim => false,
            };
            let _ = occasion.meter.charge(if admitted { WAITER_STEP } else { PASSED_STEP });
            if !admitted || !matches_encoded(template, &fields) {
                continue;
            }
            served.extend(locator_of(key));
            is_free &= purpose == Purpose::Read;
            if purpose == Purpose::Take {
                break;
            }
        }
        served
    }
}

impl Spaces {
    /// Offers a tuple that nobody has to one who waits for it.
    fn offer(
        &mut self,
        space: &mut Contents,
        number: u64,
        place: &Locator,
        record: &Record<'_>,
        released: &mut Vec<Release>,
    ) {
        let Waiter { head, sought } = waiting::whole(&self.map, place);
        waiting::remove(&mut self.map, place);
        space.counters.waiters -= 1;
        let lease_ms = if let Sought::Lease { lease_ms, .. } = sought { lease_ms } else { 0 };
        let command = (head.session, head.number);
        let hold = holds::offer(&mut self.map, space, number, command, head.purpose, lease_ms);
        let tuple = Tuple::of_raw(record.tuple);
        let reply = match head.purpose {
            Purpose::Lease => TupleReply::Leased(Some(holds::leased(number, &hold, tuple))),
            // No lease of its own ends it.
            _ => TupleReply::Found(Some(Found { number, expires: None, tuple })),
        };
        released.push(head.release(Ok(reply.to_bytes()), true));
    }

    /// The clock shows this: waits are over, and leases end.
    pub(crate) fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        waiting::end_waits(&mut self.map, clock, released);
        self.expire(clock, released);
    }

    /// The time on the clock at which that has to be done again.
    pub(crate) fn due(&self) -> Option<Time> {
        let waits = waiting::due(&self.map);
        // Under version 1 what has ended is removed with whatever batch comes next. Where nobody waits, no batch is ordered for one lease alone.
        let lease = || {
            let (key, _) = self.map.range(&[LEASE], Some(&[LEASE + 1])).next()?;
            let end = time_of(key)?;
            let together = end.checked_next_multiple_of(TOGETHER_MS).unwrap_or(end);
            Some(Time(if waits.is_some() { end } else { together }))
        };
        let lease = if self.version > 1 { lease() } else { None };
        lease.into_iter().chain(waits).min()
    }

    /// Removes tuples whose leases have ended, and gives those back that somebody has until now, of all spaces, those that ended first
    /// before the others. What is left goes before the next batch, which is due at once.
    fn expire(&mut self, clock: Time, released: &mut Vec<Release>) {
        let end = clock.0.saturating_add(1 + u64::from(seeded!(LeaseEndsEarly)));
        let end = lease_key(end, 0, 0);
        let most = if self.version > 1 { limits::ENDED_AT_ONCE } else { limits::EXPIRED_AT_ONCE };
        // What agreed time ends by itself is nobody's cost.
        let meter = Meter::without_limit();
        let occasion = Occasion::of(clock, &meter);
        // Whatever the space, in the order in which they ended: how the map divides itself goes by that.
        let mut spaces: BTreeMap<u64, (Contents, Gone, Vec<u64>)> = BTreeMap::new();
        let mut looks = 0;
        for (id, number, index_fields) in ended_before(&self.map, &end, most) {
            if self.version > 2 && looks >= limits::ENDED_LOOKS {
                break;
            }
            let (space, gone, given) = spaces.entry(id).or_insert_with(|| {
                (Contents::load(&self.map, id, index_fields), Gone::new(), Vec::new())
            });
            let claims = gone.len();
            if !holds::is_held(&self.map, id, number) {
                self.remove(space, number, gone, &meter);
            } else if self.give_back(space, number, (clock, &meter), gone) && !seeded!(JobKept) {
                given.push(number);
                looks += space.counters.waiters;
            }
            let searched = space.counters.tuples.min(limits::SCANNED_TUPLES as u64);
            looks += (gone.len() - claims) as u64 * searched;
        }
        for (mut space, gone, mut given) in spaces.into_values() {
            given.sort_unstable();
            for number in given {
                self.serve(&mut space, number, occasion, released);
            }
            self.serve_claims(&mut space, gone, occasion, released);
            space.save(&mut self.map);
        }
    }
}

/// The space, number and indexed fields of the tuples whose leases end before `end`, as many as go at once.
fn ended_before(map: &SegmentMap, end: &[u8], most: usize) -> Vec<(u64, u64, u8)> {
    let entry = |(key, width): (&[u8], &[u8])| {
        let (space, number) = leased(key)?;
        Some((space, number, *width.first()?))
    };
    map.range(&[LEASE], Some(end)).take(most).filter_map(entry).collect()
}
