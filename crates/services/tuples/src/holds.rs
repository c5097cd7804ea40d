//! Tuples that somebody has and that are there all the same: offered to a client that waited, until it confirms that it has it, or
//! under a lease, until the job is done.
//!
//! While somebody has a tuple nothing is inserted where it must not be, nobody else takes, replaces or renews it, and
//! its own lease does not end it. It can be read, unless it is offered to a command that takes it for good: that has taken it as far as others see, so that
//! all of what is put and taken has one order as long as who waits is there. Given back it is as old as before, and as it would be had nobody had it: gone, if its lease has
//! ended meanwhile.
//!
//! Invariants, which [`crate::restore`] checks as well: what is held is there; each offer stands under the session and number of its
//! command, and no other does.

use crate::claims::Gone;
use crate::layout::{
    Record, hold_key, hold_range, lease_key, offer_key, offered, read_offered, tuple_key,
};
use crate::operate::{Caller, Spaces, admit};
use crate::reply::{Leased, Purpose, TupleReply};
use crate::serve::Occasion;
use crate::space::{Contents, Space, cost, end_of, lease_cost, put};
use crate::tuple::{Template, Tuple};
use crate::waiting::Sought;
use bytes::Bytes;
use perdura_execution::{Meter, Release};
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Reader, SessionId, Time, seeded};
use perdura_store::SegmentMap;

/// Who has a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    /// How often it was handed out under a lease, offers that nobody confirmed included: the last one's token.
    pub token: u64,
    /// Leases that began.
    pub leases: u64,
    pub holder: Holder,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// It was leased before.
    Nobody,
    /// A command that had waited, whose client has not said that it has it.
    Offered {
        session: SessionId,
        number: u64,
        /// Any but [`Purpose::Read`].
        purpose: Purpose,
        /// The lease that begins with the confirmation; 0 for none.
        lease_ms: u64,
    },
    /// A client, until a time on the clock.
    Leased { client: PublicKey, until: u64 },
}

impl Hold {
    const NONE: Hold = Hold { token: 0, leases: 0, holder: Holder::Nobody };

    pub(crate) fn is_held(&self) -> bool {
        self.holder != Holder::Nobody
    }

    /// Whether it is offered to a command that takes it for good.
    pub(crate) fn leaves(&self) -> bool {
        matches!(self.holder, Holder::Offered { purpose: Purpose::Take, .. })
    }
}

impl Encode for Hold {
    fn encode(&self, out: &mut Vec<u8>) {
        self.token.encode(out);
        self.leases.encode(out);
        match self.holder {
            Holder::Nobody => out.push(0),
            Holder::Offered { session, number, purpose, lease_ms } => {
                out.push(1);
                session.encode(out);
                number.encode(out);
                purpose.encode(out);
                lease_ms.encode(out);
            }
            Holder::Leased { client, until } => {
                out.push(2);
                client.encode(out);
                until.encode(out);
            }
        }
    }
}

impl Decode for Hold {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (token, leases) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let holder = match u8::decode(reader)? {
            0 => Holder::Nobody,
            1 => Holder::Offered {
                session: Decode::decode(reader)?,
                number: Decode::decode(reader)?,
                purpose: Decode::decode(reader)?,
                lease_ms: Decode::decode(reader)?,
            },
            2 => Holder::Leased { client: Decode::decode(reader)?, until: Decode::decode(reader)? },
            tag => return Err(DecodeError::UnknownTag(tag)),
        };
        Ok(Hold { token, leases, holder })
    }
}

/// What is known about who has a tuple, or had it.
pub(crate) fn of(map: &SegmentMap, space: u64, number: u64) -> Option<Hold> {
    let hold = Hold::from_bytes(Bytes::copy_from_slice(map.get(&hold_key(space, number))?));
    Some(hold.expect("it was encoded here, or checked when it was restored"))
}

/// Whether somebody has it.
pub(crate) fn is_held(map: &SegmentMap, space: u64, number: u64) -> bool {
    of(map, space, number).is_some_and(|hold| hold.is_held())
}

/// Whether anything is known about who has any tuple of a space.
pub(crate) fn any(map: &SegmentMap, space: u64) -> bool {
    let (start, end) = hold_range(space);
    map.range(&start, Some(&end)).next().is_some()
}

/// When a tuple, whose own lease ends then, stands in the order of leases; 0 if it does not.
pub(crate) fn due(expires: u64, hold: Option<&Hold>) -> u64 {
    match hold.map(|hold| hold.holder) {
        None | Some(Holder::Nobody) => expires,
        Some(Holder::Offered { .. }) if seeded!(OfferExpires) => expires,
        Some(Holder::Offered { .. }) => 0,
        Some(Holder::Leased { until, .. }) => until,
    }
}

/// Bytes that an offer adds.
pub(crate) fn offer_cost() -> u64 {
    let session = SessionId::LAST;
    let holder = Holder::Offered { session, number: 0, purpose: Purpose::Take, lease_ms: 0 };
    let hold = Hold { holder, ..Hold::NONE };
    cost(hold_key(0, 0).len(), hold.to_bytes().len())
        + cost(offer_key(session, 0).len(), offered(0, 0, 0).len())
}

fn expires(map: &SegmentMap, space: &Contents, number: u64) -> u64 {
    map.get(&tuple_key(space.id, number)).map_or(0, |value| Record::of(value).expires)
}

/// Writes who has a tuple, and moves it in the order of leases.
fn change(map: &mut SegmentMap, space: &Contents, number: u64, to: Hold) {
    let expires = expires(map, space, number);
    let from = of(map, space.id, number);
    let (before, after) = (due(expires, from.as_ref()), due(expires, Some(&to)));
    if let Some(Hold { holder: Holder::Offered { session, number, .. }, .. }) = from {
        map.remove(&offer_key(session, number));
    }
    if before != after {
        if before != 0 {
            map.remove(&lease_key(before, space.id, number));
        }
        if after != 0 {
            put(map, &lease_key(after, space.id, number), &[space.index_fields]);
        }
    }
    if let Holder::Offered { session, number: command, .. } = to.holder {
        let value = offered(space.id, number, space.index_fields);
        put(map, &offer_key(session, command), &value);
    }
    if to == Hold::NONE {
        map.remove(&hold_key(space.id, number));
    } else {
        put(map, &hold_key(space.id, number), &to.to_bytes());
    }
}

/// Offers a tuple that nobody has to a command that waited; how often it was leased before then, and the token.
pub(crate) fn offer(
    map: &mut SegmentMap,
    space: &Contents,
    number: u64,
    (session, command): (SessionId, u64),
    purpose: Purpose,
    lease_ms: u64,
) -> Hold {
    let holder = Holder::Offered { session, number: command, purpose, lease_ms };
    let before = of(map, space.id, number).unwrap_or(Hold::NONE);
    let hold =
        Hold { token: before.token + u64::from(purpose == Purpose::Lease), holder, ..before };
    change(map, space, number, hold);
    hold
}

impl Spaces {
    fn offered(&self, session: SessionId, number: u64) -> Option<(Contents, u64, Hold)> {
        let (id, number, index_fields) = read_offered(self.map.get(&offer_key(session, number))?)?;
        let space = Contents::load(&self.map, id, index_fields);
        Some((space, number, of(&self.map, id, number)?))
    }

    /// The client has what its command was offered.
    pub(crate) fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        command: u64,
        released: &mut Vec<Release>,
    ) {
        let Some((mut space, number, hold)) = self.offered(session, command) else { return };
        let Holder::Offered { purpose, lease_ms, .. } = hold.holder else { return };
        // This is no command, and what waits for one tuple is bounded.
        let meter = Meter::without_limit();
        let occasion = Occasion::of(clock, &meter);
        match purpose {
            Purpose::Take => {
                self.take(occasion, &mut space, number, released);
            }
            Purpose::Lease => {
                let holder =
                    Holder::Leased { client: session.client, until: end_of(Some(lease_ms), clock) };
                let hold = Hold { leases: hold.leases + 1, holder, ..hold };
                change(&mut self.map, &space, number, hold);
            }
            Purpose::Claim | Purpose::Read => {
                change(&mut self.map, &space, number, Hold::NONE);
                if lease_ms != 0 && !seeded!(LeaseFromOffer) {
                    space.renew(&mut self.map, number, end_of(Some(lease_ms), clock));
                }
                self.serve(&mut space, number, occasion, released);
            }
        }
        space.save(&mut self.map);
    }

    /// What the command was offered is the next one's.
    pub(crate) fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        command: u64,
        released: &mut Vec<Release>,
    ) {
        let Some((mut space, number, hold)) = self.offered(session, command) else { return };
        // This is no command, and what waits for one tuple is bounded.
        let meter = Meter::without_limit();
        let (mut gone, occasion) = (Gone::new(), Occasion::of(clock, &meter));
        if matches!(hold.holder, Holder::Offered { purpose: Purpose::Claim, .. }) {
            self.remove(&mut space, number, &mut gone, &meter);
        } else if self.give_back(&mut space, number, (clock, &meter), &mut gone) {
            let number = if seeded!(TakenBackToTheEnd) {
                space.again(&mut self.map, number)
            } else {
                number
            };
            self.serve(&mut space, number, occasion, released);
        }
        self.serve_claims(&mut space, gone, occasion, released);
        space.save(&mut self.map);
    }

    /// Gives a tuple back that somebody has; whether it is there for others then.
    pub(crate) fn give_back(
        &mut self,
        space: &mut Contents,
        number: u64,
        (clock, meter): (Time, &Meter),
        gone: &mut Gone,
    ) -> bool {
        let expires = expires(&self.map, space, number);
        if space.counters.deleting || (expires != 0 && expires <= clock.0) {
            self.remove(space, number, gone, meter);
            return false;
        }
        let hold = of(&self.map, space.id, number).unwrap_or(Hold::NONE);
        change(&mut self.map, space, number, Hold { holder: Holder::Nobody, ..hold });
        true
    }

    pub(crate) fn lease(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        template: &Template,
        lease_ms: u64,
        wait_ms: u64,
    ) -> Result<Option<TupleReply>, String> {
        admit(&space.options().take, caller.client(), "take")?;
        let search = self.search(caller, &space.contents, template, Purpose::Lease);
        let Some(found) = search.oldest().map_err(|stop| stop.text())? else {
            if wait_ms == 0 {
                return Ok(Some(TupleReply::Leased(None)));
            }
            let sought = Sought::Lease { template: template.clone(), lease_ms };
            return self.wait(caller, &mut space.contents, sought, wait_ms, Purpose::Lease);
        };
        let (number, space) = (found.number, &space.contents);
        let before = of(&self.map, space.id, number);
        let from = before.unwrap_or(Hold::NONE);
        let until = end_of(Some(lease_ms), caller.now.clock);
        let holder = Holder::Leased { client: caller.client(), until };
        let hold = Hold { token: from.token + 1, leases: from.leases + 1, holder };
        let key = hold_key(space.id, number).len();
        let had = before.map_or(0, |before| cost(key, before.to_bytes().len()))
            + found.expires.map_or(0, |_| lease_cost());
        let has = cost(key, hold.to_bytes().len()) + lease_cost();
        self.check_room_to_hold(has, had)?;
        change(&mut self.map, space, number, hold);
        Ok(Some(TupleReply::Leased(Some(Leased {
            number,
            token: hold.token,
            before: from.leases,
            until: caller.now.shown(until),
            tuple: found.tuple,
        }))))
    }

    /// Whether the client has this tuple under this lease.
    fn has_leased(
        &self,
        caller: Caller<'_>,
        space: &Contents,
        number: u64,
        token: u64,
    ) -> Option<Hold> {
        let hold = of(&self.map, space.id, number)?;
        let Holder::Leased { client, until } = hold.holder else { return None };
        let is_this = hold.token == token || seeded!(TokenIgnored);
        let has = client == caller.client() && is_this && until > caller.now.clock.0;
        has.then_some(hold)
    }

    pub(crate) fn finish(
        &mut self,
        caller: Caller<'_>,
        space: &mut Contents,
        number: u64,
        token: u64,
        released: &mut Vec<Release>,
    ) -> TupleReply {
        let held = self.has_leased(caller, space, number, token).is_some();
        if held {
            self.take(caller.occasion(), space, number, released);
        }
        TupleReply::Holding { held, until: None }
    }

    pub(crate) fn hand_back(
        &mut self,
        caller: Caller<'_>,
        space: &mut Contents,
        number: u64,
        token: u64,
        released: &mut Vec<Release>,
    ) -> TupleReply {
        let held = self.has_leased(caller, space, number, token).is_some();
        if held {
            self.give_to_next(space, number, caller.occasion(), released);
        }
        TupleReply::Holding { held, until: None }
    }

    /// Ends the lease under which somebody has a tuple.
    pub(crate) fn give_to_next(
        &mut self,
        space: &mut Contents,
        number: u64,
        occasion: Occasion<'_>,
        released: &mut Vec<Release>,
    ) {
        let (mut gone, clock) = (Gone::new(), occasion.now.clock);
        if self.give_back(space, number, (clock, occasion.meter), &mut gone) {
            self.serve(space, number, occasion, released);
        }
        self.serve_claims(space, gone, occasion, released);
    }

    pub(crate) fn extend(
        &mut self,
        caller: Caller<'_>,
        space: &Contents,
        number: u64,
        token: u64,
        lease_ms: u64,
    ) -> TupleReply {
        let Some(hold) = self.has_leased(caller, space, number, token) else {
            return TupleReply::Holding { held: false, until: None };
        };
        let until = end_of(Some(lease_ms), caller.now.clock);
        let holder = Holder::Leased { client: caller.client(), until };
        change(&mut self.map, space, number, Hold { holder, ..hold });
        TupleReply::Holding { held: true, until: caller.now.shown(until) }
    }
}

/// What a reply to a command that had waited says that it is offered.
pub(crate) fn leased(number: u64, hold: &Hold, tuple: Tuple) -> Leased {
    Leased { number, token: hold.token, before: hold.leases, until: None, tuple }
}
