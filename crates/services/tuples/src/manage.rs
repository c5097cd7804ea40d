//! What operators do in a space, and counters.

use crate::access::Access;
use crate::claims::Gone;
use crate::command::Entry;
use crate::field::FieldRef;
use crate::holds::{self, Holder};
use crate::layout::{Record, space_of, tuple_key};
use crate::limits;
use crate::operate::{Caller, Now, Spaces, Unread, admit};
use crate::operation::counter;
use crate::reply::{Broken, Purpose, TupleReply, Waiting};
use crate::space::{Contents, Space};
use crate::steps::{PASSED_STEP, WAITER_STEP};
use crate::tuple::{Pattern, Template, Tuple, refs};
use crate::waiting;
use perdura_execution::{Meter, Release};
use perdura_protocol::{PublicKey, SessionId, Time};

/// The creator of a space manages it, and those it names.
fn manages(space: &Space, client: PublicKey) -> bool {
    client == space.creator() || space.options().manage.admits(client)
}

fn admit_manager(space: &Space, client: PublicKey, what: &str) -> Result<(), String> {
    if manages(space, client) { Ok(()) } else { admit(&Access::Only(Vec::new()), client, what) }
}

impl Spaces {
    /// Those who wait, for those who may read the space or manage it.
    pub(crate) fn waits(
        &self,
        (client, meter): (PublicKey, &Meter),
        now: Option<Now>,
        space: &Space,
        (after, limit): (u64, usize),
    ) -> Result<TupleReply, Unread> {
        if !manages(space, client) {
            admit(&space.options().read, client, "read")?;
        }
        let Contents { id, counters, .. } = space.contents;
        let all = usize::try_from(counters.waiters).unwrap_or(usize::MAX);
        meter.charge(all.saturating_mul(PASSED_STEP)).map_err(String::from)?;
        let (mut waits, mut bytes) = (Vec::new(), 0);
        // What ends at a time is shown by agreed time, which only an ordered command has.
        let Some(now) = now else {
            let is_none = !waiting::is_behind(&self.map, id, after);
            return is_none
                .then_some(TupleReply::Waits { waits, more: false })
                .ok_or(Unread::Timeless);
        };
        for place in waiting::in_order(&self.map, id, after, limit + 1) {
            // A page that would cost too much ends before.
            let read = meter.charge(WAITER_STEP + waiting::value_bytes(&self.map, &place));
            if let (Err(error), true) = (read, waits.is_empty()) {
                return Err(String::from(error).into());
            }
            let waiter = waiting::whole(&self.map, &place);
            let template = waiter.template();
            bytes += template.bytes();
            let is_full = waits.len() >= limit || bytes > limits::RESULT_BYTES || read.is_err();
            if is_full && !waits.is_empty() {
                return Ok(TupleReply::Waits { waits, more: true });
            }
            let head = waiter.head;
            waits.push(Waiting {
                place: waiting::number_in(&place),
                session: head.session,
                number: head.number,
                purpose: head.purpose,
                template,
                deadline: now.shown(head.deadline).unwrap_or(Time(0)),
            });
        }
        Ok(TupleReply::Waits { waits, more: false })
    }

    pub(crate) fn end_wait(
        &mut self,
        client: PublicKey,
        space: &mut Space,
        (session, number): (SessionId, u64),
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit_manager(space, client, "end waits")?;
        let contents = &mut space.contents;
        let place = waiting::find(&self.map, session, number);
        let Some(place) = place.filter(|place| space_of(place) == contents.id) else {
            return Ok(TupleReply::WaitEnded { ended: false });
        };
        contents.counters.waiters -= 1;
        let head = waiting::remove(&mut self.map, &place);
        released.push(head.release(Err("the wait was ended by an operator".to_owned()), false));
        Ok(TupleReply::WaitEnded { ended: true })
    }

    pub(crate) fn break_tuple(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        number: u64,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit_manager(space, caller.client(), "remove tuples of others")?;
        let (contents, clock) = (&mut space.contents, caller.now.clock);
        let Some(value) = self.map.get(&tuple_key(contents.id, number)) else {
            return Ok(TupleReply::Broken(Broken::Absent));
        };
        let ended = Record::of(value).expires().is_some_and(|expires| expires <= clock);
        let holder = holds::of(&self.map, contents.id, number).map(|hold| hold.holder);
        let broken = match holder.unwrap_or(Holder::Nobody) {
            Holder::Offered { .. } => {
                return Err(
                    "the tuple is offered to a client that has not said yet whether it has it; try again"
                        .to_owned(),
                );
            }
            Holder::Leased { .. } => {
                self.give_to_next(contents, number, caller.occasion(), released);
                Broken::Returned
            }
            Holder::Nobody if ended => Broken::Absent,
            Holder::Nobody => {
                self.take(caller.occasion(), contents, number, released);
                Broken::Removed
            }
        };
        Ok(TupleReply::Broken(broken))
    }

    /// Adds to a counter.
    pub(crate) fn add(
        &mut self,
        caller: Caller<'_>,
        space: &mut Space,
        fields: &Tuple,
        amount: i64,
        released: &mut Vec<Release>,
    ) -> Result<TupleReply, String> {
        admit(&space.options().insert, caller.client(), "insert")?;
        admit(&space.options().take, caller.client(), "take")?;
        let contents = &mut space.contents;
        let template = Template::of_counter(fields);
        let search = self.search(caller, contents, &template, Purpose::Take);
        let found = search.oldest().map_err(|stop| stop.text())?;
        let Some(found) = found else {
            if search.any().map_err(|stop| stop.text())? {
                return Err("somebody has the counter's tuple: take it for good, or return it, before it is added to".to_owned());
            }
            let tuple = counter(fields, amount).map_err(|error| error.to_string())?;
            let entry = Entry::new(tuple);
            self.check_room(contents.insertion_cost(&entry), 0)?;
            let number = self.insert(caller.occasion(), contents, &entry, released);
            return Ok(TupleReply::Added { number, value: amount });
        };
        let value = self.map.get(&tuple_key(contents.id, found.number));
        let mut record = value.expect("it was found").to_vec();
        let before = match refs(Record::of(&record).tuple).last() {
            Some(FieldRef::Integer(before)) => before,
            _ => unreachable!("the template ends with an integer"),
        };
        let Some(sum) = before.checked_add(amount) else {
            return Err(format!("{before} and {amount} have a sum of more than 64 bits"));
        };
        // An integer is encoded last in itself, and this one last in the tuple.
        let end = record.len() - 8;
        record[end..].copy_from_slice(&sum.to_le_bytes());
        let (mut gone, occasion) = (Gone::new(), caller.occasion());
        self.remove(contents, found.number, &mut gone, caller.meter);
        let number = contents.insert_record(&mut self.map, &record);
        self.serve(contents, number, occasion, released);
        self.serve_claims(contents, gone, occasion, released);
        Ok(TupleReply::Added { number, value: sum })
    }
}

impl Template {
    /// What matches the tuples of a counter.
    fn of_counter(fields: &Tuple) -> Template {
        let mut patterns: Vec<Pattern> = fields.fields().map(Pattern::Value).collect();
        patterns.push(Pattern::Kind(crate::field::Kind::Integer));
        Template { fields: patterns }
    }
}
