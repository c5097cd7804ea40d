//! Guards what a group does with a service of somebody else's: run again alone, in the order in which everything was executed, the service
//! gives the replies that replicas gave, and that clients were told; that order respects real time, reads without order included; and what its
//! author says of every state holds in each of them.

use super::commit_order::Seen;
use super::real_time::{self, Span};
use crate::guest::Guest;
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use bytes::Bytes;
use perdura_execution::{AnyService, ExecutionContext, Failure, Meter, QueryContext, Service};
use perdura_protocol::{ClusterId, PublicKey, SessionId, Slot, Time, limits};
use std::collections::BTreeMap;

const RULE: &str = "Replicated service";

/// A call of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its number in the order, if it was sent for ordering.
    pub number: Option<(SessionId, u64)>,
    /// Whose it is.
    pub client: PublicKey,
    /// Its command.
    pub command: Bytes,
    /// When it was called.
    pub invoked: u64,
    /// When it ended; none if never.
    pub ended: Option<u64>,
    /// How it ended.
    pub seen: Seen<Bytes>,
}

/// The rule of what an author says of his service.
pub const INVARIANT: &str = "Invariant of the service";

/// Under which versions of the service slots were executed.
#[derive(Clone, Copy, Debug)]
pub struct Versions<'a> {
    /// The first one.
    pub first: u16,
    /// Slots in which something was executed under another one than before.
    pub later: &'a BTreeMap<Slot, u16>,
    /// The one that is in force in the end.
    pub last: u16,
}

/// The service that runs again.
struct Again<'a> {
    guest: &'a dyn Guest,
    service: AnyService,
    cluster: ClusterId,
    slot: Slot,
    // As the group has it; the service knows no newer one than its own.
    version: u16,
}

impl Again<'_> {
    /// Another version comes into force, one after the other: reads may be answered under each.
    fn raise(&mut self, to: u16, (reads, place): (&mut [Read], usize)) {
        while self.version < to {
            self.version += 1;
            self.service.set_version(self.version.min(self.service.newest_version()));
            self.answer(reads, place);
        }
    }

    fn execute(&mut self, execution: &Execution) -> Result<Bytes, String> {
        let Execution { slot, batch, session, number, time, ahead_ms, .. } = *execution;
        let clock = Time(time.0 - ahead_ms);
        if slot > self.slot {
            self.service.on_time(clock, &mut Vec::new());
            self.slot = slot;
        }
        let context = ExecutionContext {
            slot,
            time,
            clock,
            session,
            number,
            cluster: self.cluster,
            batch,
            administrator: PublicKey([0; 32]),
            other: None,
            meter: match execution.cost {
                Some(_) => Meter::up_to(limits::COMMAND_COST),
                None => Meter::without_limit(),
            },
        };
        match self.service.execute(&context, &execution.command) {
            Ok(reply) => Ok(reply),
            Err(Failure::Refused(words) | Failure::FatalHere(words)) => Err(words),
        }
    }

    /// What the state answers to those of these reads that it may answer.
    fn answer(&self, reads: &mut [Read], place: usize) {
        for read in reads {
            let meter = Meter::up_to(limits::COMMAND_COST);
            let context = QueryContext { client: read.client, meter: &meter };
            let answer = self.service.query(&context, &read.command);
            let is_known = read.fits.last() == Some(&place);
            if !is_known && answer.and_then(Result::ok).is_some_and(|answer| answer == read.reply) {
                read.fits.push(place);
            }
        }
    }

    fn holds(&self, after: Option<&Execution>) -> Check {
        let Err(words) = self.guest.holds(&*self.service) else { return Ok(()) };
        let what = match after {
            None => format!("in its first state: {words}"),
            Some(Execution { slot, command, .. }) => {
                format!("after {} at slot {slot}: {words}", self.guest.show(command))
            }
        };
        Err(Broken::new(INVARIANT, what))
    }
}

/// A read that was answered without order, and the places in the order whose states give that answer.
struct Read {
    index: usize,
    client: PublicKey,
    command: Bytes,
    reply: Bytes,
    fits: Vec<usize>,
}

/// Holds what clients were told against the order of execution.
pub fn check<'a>(
    (guest, state_limit_bytes): (&dyn Guest, u64),
    cluster: ClusterId,
    (order, versions): (impl Iterator<Item = &'a Execution>, Versions<'_>),
    calls: &[Told],
) -> Check {
    let fail = |what: String| Err(Broken::new(RULE, what));
    let show = |command: &[u8]| guest.show(command);
    let numbers = calls.iter().enumerate();
    let by_number: BTreeMap<(SessionId, u64), usize> =
        numbers.filter_map(|(index, call)| Some((call.number?, index))).collect();
    let mut reads = reads_of(calls);
    let mut service = guest.make(state_limit_bytes);
    service.set_version(versions.first.min(service.newest_version()));
    let mut again = Again { guest, service, cluster, slot: Slot(0), version: versions.first };
    again.answer(&mut reads, 0);
    again.holds(None)?;
    // Where each call stands in the order, from 1.
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    let mut places_in_all = 0;
    for (place, execution) in (1..).zip(order) {
        places_in_all = place;
        let Execution { slot, command, reply, .. } = execution;
        if let Some((_, version)) = versions.later.range(..=*slot).next_back() {
            again.raise(*version, (&mut reads, place - 1));
        }
        let expected = again.execute(execution);
        if reply.as_ref() != Some(&expected) {
            let (gave, alone) = (shown(guest, reply.as_ref()), shown(guest, Some(&expected)));
            return fail(format!(
                "{} at slot {slot}: replicas answered {gave}, and the service, run again alone with the same commands, {alone}",
                show(command)
            ));
        }
        again.holds(Some(execution))?;
        again.answer(&mut reads, place);
        let Some(index) = by_number.get(&(execution.session, execution.number)) else { continue };
        places.insert(*index, place);
        match (&calls[*index].seen, &expected) {
            (Seen::Unknown, _) | (Seen::RefusedInOrder, Err(_)) => {}
            (Seen::Ok(seen), Ok(reply)) if seen == reply => {}
            (seen, _) => {
                let gave = shown(guest, Some(&expected));
                let told = match seen {
                    Seen::Ok(reply) => guest.show_reply(reply),
                    Seen::NotSent => "that it never happens".to_owned(),
                    Seen::RefusedInOrder | Seen::Unknown => "of a refusal".to_owned(),
                };
                return fail(format!("{} gave {gave}, its client was told {told}", show(command)));
            }
        }
    }
    again.raise(versions.last, (&mut reads, places_in_all));
    let fits: BTreeMap<usize, Vec<usize>> =
        reads.into_iter().map(|read| (read.index, read.fits)).collect();
    in_real_time(guest, &places, &fits, calls)
}

fn reads_of(calls: &[Told]) -> Vec<Read> {
    let read = |(index, call): (usize, &Told)| match &call.seen {
        Seen::Ok(reply) if call.number.is_none() => Some(Read {
            index,
            client: call.client,
            command: call.command.clone(),
            reply: reply.clone(),
            fits: Vec::new(),
        }),
        _ => None,
    };
    calls.iter().enumerate().filter_map(read).collect()
}

/// A reply, for who looks for what went wrong.
pub fn shown(guest: &dyn Guest, reply: Option<&Result<Bytes, String>>) -> String {
    match reply {
        None => "nothing yet".to_owned(),
        Some(Ok(reply)) => guest.show_reply(reply),
        Some(Err(words)) => format!("a refusal ({words})"),
    }
}

/// Each call must stand behind everything that had ended when it was made.
fn in_real_time(
    guest: &dyn Guest,
    places: &BTreeMap<usize, usize>,
    fits: &BTreeMap<usize, Vec<usize>>,
    calls: &[Told],
) -> Check {
    let fail = |what: String| Broken::new(RULE, what);
    let span = |(index, call): (usize, &Told)| Span {
        invoked: call.invoked,
        ended: call.ended.filter(|_| matches!(call.seen, Seen::Ok(_) | Seen::RefusedInOrder)),
        places: places.get(&index).map(|place| (*place, *place)),
    };
    let spans: Vec<Span> = calls.iter().enumerate().map(span).collect();
    let choose = |index: usize, behind: usize| {
        let call = &calls[index];
        let Seen::Ok(reply) = &call.seen else { return Ok(None) };
        let (what, reply) = (guest.show(&call.command), guest.show_reply(reply));
        let Some(fits) = fits.get(&index) else {
            return Err(fail(format!("{what} was never executed and gave {reply}")));
        };
        // The earliest state that gives this answer is the best choice for all that comes later.
        fits.get(fits.partition_point(|place| *place < behind)).map(|place| Some(*place)).ok_or_else(
            || {
                fail(format!(
                    "the read {what}, called at {}, gave {reply}, which no state from number {behind} on gives",
                    call.invoked
                ))
            },
        )
    };
    real_time::check(&spans, choose, |index, (place, behind)| {
        let call = &calls[index];
        fail(format!(
            "{} called at {} was executed as number {place}, behind which stands {behind}, that had ended by then",
            guest.show(&call.command),
            call.invoked
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Drawn;
    use crate::random::Random;
    use perdura_execution::{RestoreError, Snapshot};
    use perdura_protocol::Digest;
    use std::sync::Arc;

    /// Counts, and answers with the count.
    #[derive(Default)]
    struct Counter(u64);

    impl Service for Counter {
        fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
            match command {
                b"add" => self.0 += 1,
                _ => return Err("it adds".into()),
            }
            Ok(self.0.to_string().into())
        }

        fn query(&self, _: &QueryContext<'_>, _: &[u8]) -> Option<Result<Bytes, String>> {
            Some(Ok(self.0.to_string().into()))
        }

        fn snapshot(&self) -> Arc<dyn Snapshot> {
            unreachable!("nobody takes one")
        }

        fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
            unreachable!("nobody has one")
        }
    }

    struct Counts;

    impl Guest for Counts {
        fn make(&self, _: u64) -> AnyService {
            Box::new(Counter::default())
        }

        fn draw(&self, _: &mut Random) -> Drawn {
            Drawn { command: Bytes::from_static(b"add"), is_read: false }
        }

        fn holds(&self, service: &dyn Service) -> Result<(), String> {
            let client = PublicKey([1; 32]);
            let meter = Meter::without_limit();
            let context = QueryContext { client, meter: &meter };
            match service.query(&context, b"get") {
                Some(Ok(count)) if count == "4" => Err("four is too many".to_owned()),
                _ => Ok(()),
            }
        }

        fn show(&self, command: &[u8]) -> String {
            String::from_utf8_lossy(command).into_owned()
        }

        fn show_reply(&self, reply: &[u8]) -> String {
            String::from_utf8_lossy(reply).into_owned()
        }
    }

    const SESSION: SessionId = SessionId { client: PublicKey([1; 32]), nonce: 1 };

    fn executed(number: u64, reply: Result<&'static str, &str>) -> Execution {
        Execution {
            slot: Slot(number),
            batch: Digest([1; 32]),
            session: SESSION,
            number,
            command: Bytes::from(if reply.is_ok() { "add" } else { "take" }),
            time: Time(number),
            ahead_ms: 0,
            state_bytes: 0,
            work: 0,
            cost: None,
            reply: Some(reply.map(Bytes::from).map_err(str::to_owned)),
        }
    }

    fn told(number: Option<u64>, (invoked, ended): (u64, u64), seen: Seen<Bytes>) -> Told {
        Told {
            number: number.map(|number| (SESSION, number)),
            client: SESSION.client,
            command: Bytes::from(if number.is_some() { "add" } else { "get" }),
            invoked,
            ended: Some(ended),
            seen,
        }
    }

    fn ok(reply: &'static str) -> Seen<Bytes> {
        Seen::Ok(reply.into())
    }

    fn judge(order: &[Execution], calls: &[Told]) -> Result<(), String> {
        let versions = Versions { first: 1, later: &BTreeMap::new(), last: 1 };
        let order = (order.iter(), versions);
        check((&Counts, 1 << 20), ClusterId([0; 16]), order, calls)
            .map_err(|broken| format!("{}: {}", broken.rule, broken.what))
    }

    fn order() -> Vec<Execution> {
        vec![executed(1, Ok("1")), executed(2, Err("it adds")), executed(3, Ok("2"))]
    }

    #[test]
    fn what_fits_the_order_passes() {
        let calls = [
            told(None, (1, 2), ok("0")),
            told(Some(1), (3, 6), ok("1")),
            // While the first was under way, and after it.
            told(None, (4, 5), ok("0")),
            told(None, (4, 5), ok("1")),
            told(Some(2), (7, 8), Seen::RefusedInOrder),
            told(Some(3), (9, 10), Seen::Unknown),
            told(None, (11, 12), ok("1")),
            told(None, (13, 14), ok("2")),
            told(Some(9), (15, 16), Seen::NotSent),
        ];
        assert_eq!(judge(&order(), &calls), Ok(()));
    }

    #[test]
    fn each_lie_is_found() {
        for (call, words) in [
            (told(Some(1), (1, 2), ok("7")), "its client was told"),
            (told(Some(1), (1, 2), Seen::NotSent), "its client was told"),
            (told(Some(2), (1, 2), ok("1")), "its client was told"),
            (told(Some(9), (1, 2), ok("3")), "was never executed"),
            (told(None, (1, 2), ok("3")), "which no state from number 0 on gives"),
        ] {
            let said = judge(&order(), &[call]).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        // Read after the second was answered, and called after the second was.
        let second = || told(Some(3), (1, 2), ok("2"));
        let stale = judge(&order(), &[second(), told(None, (3, 4), ok("1"))]).unwrap_err();
        assert!(stale.contains("which no state from number 3 on gives"), "{stale}");
        let late = judge(&order(), &[second(), told(Some(1), (3, 4), ok("1"))]).unwrap_err();
        assert!(late.contains("executed as number 1, behind which stands 3"), "{late}");
    }

    #[test]
    fn replies_are_those_of_the_service_alone_and_its_invariant_holds() {
        let mut wrong = order();
        wrong[2].reply = Some(Ok("3".into()));
        let said = judge(&wrong, &[]).unwrap_err();
        assert!(said.contains("add at slot 3: replicas answered 3, and the service"), "{said}");
        let four = [executed(1, Ok("1")), executed(2, Ok("2")), executed(3, Ok("3"))];
        assert_eq!(judge(&four, &[]), Ok(()));
        let said = judge(&[&four[..], &[executed(4, Ok("4"))]].concat(), &[]).unwrap_err();
        assert!(said.contains("Invariant of the service: after add at slot 4: four is"), "{said}");
    }
}
