//! The recipes on a group of real replicas.

#[path = "../../../core/replica/tests/real/mod.rs"]
mod real;

use bytes::Bytes;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::{SecretKey, Versions};
use perdura_recipes::{Barrier, Counter, Election, Error, Leader, Lock, Queue, SharedValue, Space};
use perdura_tuples::{
    Broken, CommandError, Entry, Field, Pattern, Purpose, SpaceOptions, Template,
};
use perdura_tuples::{Tuple, TupleSpaces};
use real::Group;
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

/// Far longer than any test takes: who waits for it is woken, or fails the test.
const LONG: Duration = Duration::from_secs(120);

fn space(group: &Group<TupleSpaces>, key: &SecretKey) -> Space {
    Space::connect(&group.cluster(), key, "s", Duration::from_secs(60)).unwrap()
}

/// Runs a course of events on a group with a space of two indexed fields; its two clients.
fn with_spaces<F: Future<Output = ()>>(u: u8, r: u8, course: impl FnOnce(Space, Space) -> F) {
    with_spaces_of(2, u, r, course);
}

/// The same under a version of the service's rules.
fn with_spaces_of<F: Future<Output = ()>>(
    service: u16,
    u: u8,
    r: u8,
    course: impl FnOnce(Space, Space) -> F,
) {
    let versions = Versions { service, ..Versions::NEW };
    let of_version = |parameters| Parameters { versions, ..parameters };
    let mut group = Group::formatted_with(u, r, Durability::Sync, of_version, TupleSpaces::new);
    for i in 0..group.keys.len() {
        group.start(i);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (one, other) = (space(&group, &group.client), space(&group, &group.other));
        let options = SpaceOptions { index_fields: 2, ..SpaceOptions::default() };
        one.create(options).await.unwrap();
        course(one.clone(), other.clone()).await;
        one.delete().await.unwrap();
        assert!(other.describe().await.is_err_and(|error| error.is_refusal()));
        one.close().await;
        other.close().await;
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}

/// Asks until so many commands wait.
async fn until_waiting(space: &Space, count: u64) {
    while space.describe().await.unwrap().waiters != count {}
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Until so much of agreed time has passed.
async fn pass(space: &Space, time: Duration) {
    let sand = || Tuple::new(&["sand".into()]).unwrap();
    let lease_ms = u64::try_from(time.as_millis()).unwrap();
    space.out(Entry::new(sand()).with_lease(lease_ms)).await.unwrap();
    let sand = || Template { fields: vec![Pattern::Value("sand".into())] };
    while space.rdp(sand()).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_lock_is_had_by_one_and_passed_on() {
    with_spaces(1, 1, |one, other| async move {
        let (mine, theirs) = (Lock::new(&one, "l", LONG), Lock::new(&other, "l", LONG));
        let first = mine.try_acquire().await.unwrap().unwrap();
        assert!(mine.try_acquire().await.unwrap().is_none(), "not even by its owner's client");
        assert!(theirs.try_acquire().await.unwrap().is_none());
        assert!(Lock::new(&other, "m", LONG).try_acquire().await.unwrap().is_some());
        // Nobody else's client can take it away.
        let all = Template { fields: vec![Pattern::Any; 4] };
        let stolen = other.in_all(all, 9).await.unwrap().0;
        assert_eq!(stolen.len(), 1, "its own lock m");
        let waiting = tokio::spawn(async move { theirs.acquire(LONG).await });
        until_waiting(&one, 1).await;
        assert!(first.renew().await.unwrap());
        assert!(first.release().await.unwrap());
        let second = waiting.await.unwrap().unwrap().unwrap();
        assert!(second.token() > first.token());
        // What was released is lost.
        assert!(!first.renew().await.unwrap() && !first.release().await.unwrap());
        assert!(second.release().await.unwrap());
        let third = mine.acquire(LONG).await.unwrap().unwrap();
        assert!(third.token() > second.token());
    });
}

#[test]
fn a_lock_whose_owner_died_is_free_after_its_lease() {
    with_spaces(1, 0, |one, other| async move {
        let lease = Duration::from_millis(400);
        // Who waits needs no lease of its own to pass.
        let (mine, theirs) = (Lock::new(&one, "l", lease), Lock::new(&other, "l", LONG));
        let lost = mine.try_acquire().await.unwrap().unwrap();
        let found = theirs.acquire(LONG).await.unwrap().unwrap();
        assert!(found.token() > lost.token());
        assert!(!lost.is_held() && lost.remaining().is_zero(), "it knows by itself");
        lost.lost().await;
        assert!(!lost.renew().await.unwrap() && !lost.release().await.unwrap());
        // A wait that is shorter than what is left gives up.
        let long = Lock::new(&one, "k", LONG);
        let held = long.try_acquire().await.unwrap().unwrap();
        let soon = Duration::from_millis(50);
        assert!(Lock::new(&other, "k", LONG).acquire(soon).await.unwrap().is_none());
        assert!(held.release().await.unwrap());
    });
}

/// Who waits is served in turn, past those who are gone, and overtaken by nobody.
#[test]
fn a_lock_goes_to_those_who_wait_in_turn() {
    with_spaces(1, 1, |one, other| async move {
        let (mine, theirs) = (Lock::new(&one, "l", LONG), Lock::new(&other, "l", LONG));
        let held = mine.try_acquire().await.unwrap().unwrap();
        let mut waiting = Vec::new();
        for number in 1..=3 {
            let lock = theirs.clone();
            waiting.push(tokio::spawn(async move { lock.acquire(LONG).await }));
            until_waiting(&one, number).await;
        }
        let last = waiting.pop().unwrap();
        waiting.pop().unwrap().abort();
        until_waiting(&one, 2).await;
        assert!(held.release().await.unwrap() && !held.is_held());
        assert!(mine.try_acquire().await.unwrap().is_none(), "it is the next one's");
        let first = waiting.pop().unwrap().await.unwrap().unwrap().unwrap();
        assert!(first.token() > held.token());
        assert!(first.remaining() > LONG / 2, "its lease began when it was handed over");
        assert!(!last.is_finished());
        assert!(first.release().await.unwrap());
        let last = last.await.unwrap().unwrap().unwrap();
        assert!(last.token() > first.token());
        assert!(last.release().await.unwrap());
        assert_eq!(one.describe().await.unwrap().tuples, 0);
    });
}

/// What is handed over just then is not taken for a caller who is gone: it would have it for a whole lease.
#[test]
fn a_wait_that_was_dropped_just_now_takes_nothing() {
    with_spaces(1, 0, |one, other| async move {
        let held = Lock::new(&one, "l", LONG).try_acquire().await.unwrap().unwrap();
        let lock = Lock::new(&other, "l", LONG);
        let gone = tokio::spawn(async move { lock.acquire(LONG).await });
        until_waiting(&one, 1).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert!(held.release().await.unwrap());
        let next = Lock::new(&one, "l", LONG).acquire(LONG / 2).await.unwrap();
        assert!(next.is_some_and(|next| next.token() > held.token()));
    });
}

#[test]
fn what_is_kept_alive_outlasts_its_lease() {
    with_spaces(1, 0, |one, other| async move {
        let (mine, theirs) = (Lock::new(&one, "l", seconds(1.2)), Lock::new(&other, "l", LONG));
        let kept = mine.try_acquire().await.unwrap().unwrap().keep_alive();
        pass(&other, seconds(2.6)).await;
        assert!(kept.is_held() && theirs.try_acquire().await.unwrap().is_none());
        // Not any more when it is dropped.
        let lost = kept.lost();
        let token = kept.token();
        drop(kept);
        let next = theirs.acquire(LONG).await.unwrap().unwrap();
        assert!(next.token() > token);
        lost.await;
        // Nor when it was released.
        let kept = next.keep_alive();
        assert!(kept.release().await.unwrap());
        kept.lost().await;
        assert!(!kept.is_held() && !kept.renew().await.unwrap());
        assert!(mine.try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn an_operator_breaks_a_lock_and_ends_a_wait() {
    with_spaces(1, 0, |one, other| async move {
        let (mine, theirs) = (Lock::new(&one, "l", LONG), Lock::new(&other, "l", seconds(3.0)));
        let kept = theirs.try_acquire().await.unwrap().unwrap().keep_alive();
        let lock = mine.clone();
        let waits = tokio::spawn(async move { lock.acquire(LONG).await });
        until_waiting(&one, 1).await;
        let lock = theirs.clone();
        let ended = tokio::spawn(async move { lock.acquire(LONG).await });
        until_waiting(&one, 2).await;
        let (listed, more) = one.waits(0, 9).await.unwrap();
        let clients: Vec<_> =
            listed.iter().map(|wait| (wait.session.client, wait.purpose)).collect();
        let claims = [one.key(), other.key()].map(|client| (client, Purpose::Claim));
        assert_eq!((clients.as_slice(), more), (claims.as_slice(), false));
        let (session, number) = (listed[1].session, listed[1].number);
        assert!(other.end_wait(session, number).await.is_err_and(|error| error.is_refusal()));
        assert!(one.end_wait(session, number).await.unwrap());
        assert!(!one.end_wait(session, number).await.unwrap());
        let error = ended.await.unwrap().unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("operator"), "{error}");
        assert!(other.break_lock(kept.token()).await.is_err_and(|error| error.is_refusal()));
        assert_eq!(one.break_lock(kept.token()).await.unwrap(), Broken::Removed);
        let next = waits.await.unwrap().unwrap().unwrap();
        assert!(next.token() > kept.token() && next.is_held());
        kept.lost().await;
        assert!(!kept.is_held() && !kept.release().await.unwrap());
        assert_eq!(one.break_lock(kept.token()).await.unwrap(), Broken::Absent);
    });
}

/// Of a group that was not upgraded.
#[test]
fn under_older_rules_it_is_said_what_to_do() {
    with_spaces_of(1, 1, 0, |one, _| async move {
        let lock = Lock::new(&one, "l", LONG).try_acquire().await.map(|held| held.is_some());
        let counter = Counter::new(&one, "c").add(1).await.map(|_| false);
        let queue = Queue::new(&one, "q");
        let leased = queue.lease(LONG, LONG).await.map(|job| job.is_some());
        for refused in [lock, counter, leased] {
            assert_eq!(refused, Err(Error::Command(CommandError::Version(2))));
        }
        queue.push(text("1")).await.unwrap();
        assert_eq!(queue.pop(LONG).await.unwrap(), Some(text("1")));
    });
}

#[test]
fn one_candidate_leads_at_a_time() {
    with_spaces(1, 0, |one, other| async move {
        let mine = Election::new(&one, "e", LONG);
        let theirs = Election::new(&other, "e", LONG);
        assert_eq!(mine.leader().await.unwrap(), None);
        let observer = theirs.clone();
        let observed = tokio::spawn(async move { observer.observe(LONG).await });
        until_waiting(&one, 1).await;
        let first = mine.campaign("ada", LONG).await.unwrap().unwrap();
        let ada = Leader { candidate: "ada".into(), term: first.term() };
        assert_eq!(observed.await.unwrap().unwrap(), Some(ada.clone()));
        assert_eq!(theirs.leader().await.unwrap(), Some(ada));
        let successor = theirs.clone();
        let won = tokio::spawn(async move { successor.campaign("bob", LONG).await });
        until_waiting(&one, 1).await;
        assert!(first.renew().await.unwrap() && first.resign().await.unwrap());
        let second = won.await.unwrap().unwrap().unwrap();
        assert!(second.term() > first.term());
        let bob = Leader { candidate: "bob".into(), term: second.term() };
        assert_eq!(mine.leader().await.unwrap(), Some(bob));
        assert!(!first.resign().await.unwrap());
    });
}

/// The tuples of its parties need not fit one reply.
#[test]
fn a_barrier_counts_parties_with_long_names() {
    with_spaces(1, 0, |one, _| async move {
        let barrier = Barrier::new(&one, "b", 4).unwrap();
        let soon = Duration::from_millis(50);
        for party in ["a", "b", "c"] {
            assert!(!barrier.enter(&party.repeat(400 * 1024), soon).await.unwrap());
        }
        // Those before waited in vain, and count.
        assert!(barrier.enter(&"d".repeat(400 * 1024), soon).await.unwrap());
        assert!(barrier.enter(&"a".repeat(400 * 1024), soon).await.unwrap());
        barrier.remove().await.unwrap();
    });
}

#[test]
fn a_barrier_opens_when_all_have_come() {
    with_spaces(1, 0, |one, other| async move {
        let barrier = Barrier::new(&one, "b", 3).unwrap();
        let soon = Duration::from_millis(50);
        assert!(!barrier.enter("a", soon).await.unwrap());
        // Who comes again counts once.
        assert!(!barrier.enter("a", soon).await.unwrap());
        let mut parties = Vec::new();
        for (space, party) in [(&one, "a"), (&other, "b")] {
            let barrier = Barrier::new(space, "b", 3).unwrap();
            parties.push(tokio::spawn(async move { barrier.enter(party, LONG).await }));
        }
        until_waiting(&one, 2).await;
        let last = Barrier::new(&other, "b", 3).unwrap();
        assert!(last.enter("c", LONG).await.unwrap());
        for party in parties {
            assert!(party.await.unwrap().unwrap());
        }
        assert!(barrier.enter("late", soon).await.unwrap());
        barrier.remove().await.unwrap();
        assert_eq!(one.describe().await.unwrap().tuples, 0);
        assert!(Barrier::new(&one, "b", 0).is_err() && Barrier::new(&one, "b", 513).is_err());
    });
}

/// The last party comes, and dies before it opens the barrier.
#[test]
fn a_barrier_opens_though_the_last_party_died() {
    with_spaces(1, 0, |one, other| async move {
        let mut parties = Vec::new();
        for (space, party) in [(&one, "a"), (&other, "b")] {
            let barrier = Barrier::new(space, "b", 3).unwrap();
            parties.push(tokio::spawn(async move { barrier.enter(party, LONG).await }));
        }
        until_waiting(&one, 2).await;
        let last: [Field; 3] = ["barrier".into(), "b".into(), "c".into()];
        other.out(Entry::new(Tuple::new(&last).unwrap())).await.unwrap();
        for party in parties {
            assert!(party.await.unwrap().unwrap());
        }
    });
}

/// Those who wait for what is not there hold up nobody who waits for what is.
#[test]
fn waits_on_one_space_are_not_in_each_others_way() {
    with_spaces(1, 0, |one, other| async move {
        let mut waits = tokio::task::JoinSet::new();
        for number in 0..300 {
            let empty = Queue::new(&one, format!("empty {number}"));
            waits.spawn(async move { empty.pop(LONG).await });
        }
        until_waiting(&other, 300).await;
        let queue = Queue::new(&one, "q");
        queue.push(text("item")).await.unwrap();
        assert_eq!(queue.pop(LONG).await.unwrap(), Some(text("item")));
        let late = queue.clone();
        waits.spawn(async move { late.pop(LONG).await });
        until_waiting(&other, 301).await;
        for number in 0..300 {
            let name = format!("empty {number}");
            Queue::new(&other, &name).push(text(&name)).await.unwrap();
        }
        queue.push(text("late")).await.unwrap();
        let mut served = BTreeSet::new();
        while let Some(item) = waits.join_next().await {
            served.insert(item.unwrap().unwrap().unwrap());
        }
        assert_eq!(served.len(), 301);
    });
}

#[test]
fn a_queue_is_first_in_first_out() {
    with_spaces(1, 0, |one, other| async move {
        let (mine, theirs) = (Queue::new(&one, "q"), Queue::new(&other, "q"));
        assert_eq!(theirs.try_pop().await.unwrap(), None);
        mine.push(text("1")).await.unwrap();
        mine.push_all(vec![text("2"), text("3")]).await.unwrap();
        Queue::new(&one, "another").push(text("x")).await.unwrap();
        for item in ["1", "2"] {
            assert_eq!(theirs.try_pop().await.unwrap(), Some(text(item)));
        }
        assert_eq!(theirs.pop(LONG).await.unwrap(), Some(text("3")));
        assert_eq!(theirs.pop(Duration::from_millis(50)).await.unwrap(), None);
        // Consumers that wait get one each, in turn.
        let mut consumers = Vec::new();
        for waiting in 1..=3 {
            let queue = theirs.clone();
            consumers.push(tokio::spawn(async move { queue.pop(LONG).await }));
            until_waiting(&one, waiting).await;
        }
        mine.push_all(vec![text("4"), text("5")]).await.unwrap();
        mine.push(text("6")).await.unwrap();
        for (consumer, item) in consumers.into_iter().zip(["4", "5", "6"]) {
            assert_eq!(consumer.await.unwrap().unwrap(), Some(text(item)));
        }
    });
}

#[test]
fn a_job_is_back_in_its_place_when_its_worker_is_gone() {
    with_spaces(1, 0, |one, other| async move {
        let (mine, theirs) = (Queue::new(&one, "q"), Queue::new(&other, "q"));
        assert!(mine.lease(Duration::ZERO, LONG).await.unwrap().is_none());
        mine.push_all(vec![text("1"), text("2")]).await.unwrap();
        let given_back = mine.lease(LONG, LONG).await.unwrap().unwrap();
        assert_eq!((given_back.item(), given_back.before()), (&text("1"), 0));
        let second = theirs.lease(LONG, LONG).await.unwrap().unwrap();
        assert_eq!(second.item(), &text("2"));
        assert_eq!(theirs.try_pop().await.unwrap(), None, "all are had");
        let queue = theirs.clone();
        let waits = tokio::spawn(async move { queue.lease(LONG, seconds(0.5)).await });
        until_waiting(&one, 1).await;
        assert!(given_back.give_back().await.unwrap() && !given_back.is_held());
        let died = waits.await.unwrap().unwrap().unwrap();
        assert_eq!((died.item(), died.before()), (&text("1"), 1));
        assert!(died.tokens() > given_back.tokens());
        assert!(!given_back.done().await.unwrap() && !given_back.give_back().await.unwrap());
        assert!(second.give_back().await.unwrap());
        // It is behind what comes back, and so there for who comes now.
        let second = theirs.lease(LONG, LONG).await.unwrap().unwrap().keep_alive();
        assert_eq!((second.item(), second.before()), (&text("2"), 1));
        let last = mine.lease(LONG, LONG).await.unwrap().unwrap();
        assert_eq!((last.item(), last.before()), (&text("1"), 2));
        assert!(!died.is_held() && !died.renew().await.unwrap() && !died.done().await.unwrap());
        assert!(last.renew().await.unwrap() && last.done().await.unwrap());
        assert!(second.done().await.unwrap() && !second.done().await.unwrap());
        second.lost().await;
        assert_eq!(one.describe().await.unwrap().tuples, 0);
    });
}

#[test]
fn a_value_is_shared() {
    with_spaces(1, 0, |one, other| async move {
        let (mine, theirs) = (SharedValue::new(&one, "v"), SharedValue::new(&other, "v"));
        assert_eq!(theirs.get().await.unwrap(), None);
        assert!(!theirs.compare_and_set(Some(text("a")), text("b")).await.unwrap());
        assert!(theirs.compare_and_set(None, text("a")).await.unwrap());
        assert!(!mine.compare_and_set(None, text("c")).await.unwrap());
        mine.set(text("b")).await.unwrap();
        assert_eq!(theirs.get().await.unwrap(), Some(text("b")));
        assert!(theirs.compare_and_set(Some(text("b")), text("c")).await.unwrap());
        assert_eq!(mine.get().await.unwrap(), Some(text("c")));
        assert!(mine.remove().await.unwrap() && !theirs.remove().await.unwrap());
        mine.set(text("d")).await.unwrap();
        // Who has it for a time keeps it from being written.
        let any = [Pattern::Value("value".into()), Pattern::Value("v".into()), Pattern::Any];
        let leased = one.lease(Template { fields: any.to_vec() }, LONG, LONG).await;
        let leased = leased.unwrap().unwrap();
        let set = tokio::spawn(async move { theirs.set(text("e")).await });
        pass(&one, seconds(0.1)).await;
        assert!(!set.is_finished() && mine.get().await.unwrap() == Some(text("d")));
        assert!(one.give_back(leased.number, leased.token).await.unwrap());
        set.await.unwrap().unwrap();
        assert_eq!(mine.get().await.unwrap(), Some(text("e")));
        assert_eq!(one.describe().await.unwrap().tuples, 1);
    });
}

#[test]
fn a_counter_counts_everybody_once() {
    with_spaces(1, 1, |one, other| async move {
        assert_eq!(Counter::new(&one, "c").get().await.unwrap(), 0);
        let mut tasks = Vec::new();
        for space in [&one, &other].repeat(4) {
            let counter = Counter::new(space, "c");
            tasks.push(tokio::spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..10 {
                    seen.push(counter.add(1).await.unwrap());
                }
                seen
            }));
        }
        let mut seen = BTreeSet::new();
        for task in tasks {
            seen.extend(task.await.unwrap());
        }
        assert_eq!(seen, (1..=80).collect());
        let counter = Counter::new(&other, "c");
        assert_eq!(counter.add(-90).await.unwrap(), -10);
        let error = counter.add(i64::MIN).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("64 bits"), "{error}");
        assert_eq!(counter.get().await.unwrap(), -10);
    });
}

/// What the recipes leave out: the plain operations.
#[test]
fn a_space_has_all_operations() {
    with_spaces(1, 0, |one, other| async move {
        let entry = |value: i64| Entry::new(Tuple::new(&["n".into(), value.into()]).unwrap());
        let any = || Template { fields: vec![Pattern::Value("n".into()), Pattern::Any] };
        let numbers = |found: &[perdura_tuples::Found]| -> Vec<u64> {
            found.iter().map(|found| found.number).collect()
        };
        let first = one.out(entry(1)).await.unwrap();
        assert_eq!(one.out_all(vec![entry(2), entry(3)]).await.unwrap(), first + 1);
        assert_eq!(other.rd(any(), LONG).await.unwrap().unwrap().number, first);
        let (some, more) = other.rd_all(any(), first, 1).await.unwrap();
        assert_eq!((numbers(&some), more), (vec![first + 1], true));
        assert!(one.renew(first, Some(Duration::ZERO)).await.unwrap());
        assert!(!one.renew(first, None).await.unwrap());
        let (all, more) = other.in_all(any(), 512).await.unwrap();
        assert_eq!((numbers(&all), more), (vec![first + 1, first + 2], false));
        let none = Template { fields: vec![] };
        assert!(one.rdp(none).await.is_err_and(|error| error.is_refusal()));
        assert!(one.create(SpaceOptions::default()).await.is_err_and(|error| error.is_refusal()));
    });
}
