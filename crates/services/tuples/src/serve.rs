//! Who gets a tuple that was inserted or given back, and what becomes of it with the time.

use crate::claims::Gone;
use crate::holds;
use crate::layout::{LEASE, Locator, Record, lease_key, leased, time_of, tuple_key};
use crate::limits;
use crate::operate::{Now, Spaces};
use crate::reply::{Found, Purpose, TupleReply};
use crate::space::Contents;
use crate::tuple::{Tuple, matches_encoded, split};
use crate::waiting::{self, Sought, Waiter, candidates, load};
use perdura_execution::Release;
use perdura_protocol::{Encode, Time, seeded};
use perdura_store::SegmentMap;
use std::collections::BTreeMap;

/// Leases that end within this time, milliseconds, do so together where nobody waits.
const TOGETHER_MS: u64 = 1_000;

impl Spaces {
    /// Serves those who wait for a tuple, in the order in which they began to. Each who reads gets a copy. The first who takes it is offered
    /// it; under version 1 of the rules it has it, and nobody behind it gets a copy.
    pub(crate) fn serve(
        &mut self,
        space: &mut Contents,
        number: u64,
        now: Now,
        released: &mut Vec<Release>,
    ) {
        if space.counters.waiters == 0 {
            return;
        }
        let Some(value) = self.map.get(&tuple_key(space.id, number)) else { return };
        let value = value.to_vec();
        let record = Record::of(&value);
        let mut is_free = !(self.has_holds(space) && holds::is_held(&self.map, space.id, number));
        let found = |expires| {
            let tuple = Tuple::of_raw(record.tuple);
            TupleReply::Found(Some(Found { number, expires, tuple })).to_bytes()
        };
        // Replies share their memory.
        let copy = found(if is_free { now.shown(record.expires) } else { None });
        let fields = split(record.tuple);
        for place in candidates(&self.map, space, &record) {
            let (head, template) = load(&self.map, &place);
            let client = head.session.client;
            let admitted = match head.purpose {
                Purpose::Read => record.read.admits(client),
                Purpose::Take | Purpose::Lease => is_free && record.take.admits(client),
                Purpose::Claim => false,
            };
            if !admitted || !matches_encoded(template, &fields) {
                continue;
            }
            if head.purpose != Purpose::Read {
                is_free = false;
                if self.version > 1 {
                    self.offer(space, number, &place, &record, released);
                    if head.purpose == Purpose::Take {
                        return;
                    }
                    continue;
                }
            }
            space.counters.waiters -= 1;
            waiting::remove(&mut self.map, &place);
            released.push(head.release(Ok(copy.clone()), false));
            if head.purpose == Purpose::Take {
                space.remove(&mut self.map, number);
                return;
            }
        }
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
    /// before the others.
    fn expire(&mut self, clock: Time, released: &mut Vec<Release>) {
        let end = clock.0.saturating_add(1 + u64::from(seeded!(LeaseEndsEarly)));
        let end = lease_key(end, 0, 0);
        let most = if self.version > 1 { limits::ENDED_AT_ONCE } else { limits::EXPIRED_AT_ONCE };
        // Whatever the space, in the order in which they ended: how the map divides itself goes by that.
        let mut spaces: BTreeMap<u64, (Contents, Gone, Vec<u64>)> = BTreeMap::new();
        for (id, number, index_fields) in ended_before(&self.map, &end, most) {
            let (space, gone, given) = spaces.entry(id).or_insert_with(|| {
                (Contents::load(&self.map, id, index_fields), Gone::new(), Vec::new())
            });
            if !holds::is_held(&self.map, id, number) {
                self.remove(space, number, gone);
            } else if self.give_back(space, number, clock, gone) && !seeded!(JobKept) {
                given.push(number);
            }
        }
        for (mut space, gone, mut given) in spaces.into_values() {
            given.sort_unstable();
            for number in given {
                self.serve(&mut space, number, Now::of(clock), released);
            }
            self.serve_claims(&mut space, gone, clock, released);
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
