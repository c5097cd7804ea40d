//! What each thread of a replica is at, and since when: a disk, a resolver or a service that does not come back is named while it hangs, and
//! not only when it has come back.
//!
//! Each thread has a place, where it says what it begins; a work of many parts says at each that it went on. A thread of its own looks at all
//! places and writes to the log, for the one that would has to be at work for that.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What takes longer hangs.
pub(super) const HANGS: Duration = Duration::from_secs(2);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

thread_local! {
    static PLACE: RefCell<Option<Arc<WatchedThread>>> = const { RefCell::new(None) };
}

/// The threads of one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Arc<Mutex<Vec<Arc<WatchedThread>>>>);

/// A thread.
#[derive(Debug)]
struct WatchedThread {
    thread: &'static str,
    now: Mutex<Option<At>>,
}

/// What it is at.
#[derive(Clone, Copy, Debug)]
struct At {
    what: &'static str,
    since: Instant,
}

/// A thread that is at something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Busy {
    /// Its name.
    pub thread: &'static str,
    /// What it does.
    pub what: &'static str,
    /// For how long it has not gone on with that.
    pub took: Duration,
}

fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// This thread is one of them while it holds what this gives.
    pub fn enter(&self, thread: &'static str) -> Here {
        let place = Arc::new(WatchedThread { thread, now: Mutex::new(None) });
        locked(&self.0).push(Arc::clone(&place));
        PLACE.set(Some(place));
        Here(PhantomData)
    }

    /// What each does that is at something; threads that have ended are forgotten.
    pub fn busy(&self, now: Instant) -> Vec<Busy> {
        let mut places = locked(&self.0);
        places.retain(|place| Arc::strong_count(place) > 1);
        let busy = |place: &Arc<WatchedThread>| {
            let At { what, since } = (*locked(&place.now))?;
            let took = now.saturating_duration_since(since);
            Some(Busy { thread: place.thread, what, took })
        };
        places.iter().filter_map(busy).collect()
    }

    /// Those of them that hang.
    pub fn hanging(&self, now: Instant) -> Vec<Busy> {
        self.busy(now).into_iter().filter(|busy| busy.took >= HANGS).collect()
    }

    /// Writes to the log what hangs, until the last of these threads has ended. `more` has more to say of one of them.
    pub fn tell(
        &self,
        more: impl Fn(&Busy) -> Option<String> + Send + 'static,
    ) -> std::io::Result<()> {
        let watch = self.clone();
        super::threads::spawn("watch", move || {
            let mut told = Told::default();
            loop {
                for news in told.news(&watch.hanging(Instant::now()), &more) {
                    tracing::warn!("{news}");
                }
                if locked(&watch.0).is_empty() {
                    return;
                }
                std::thread::sleep(LOOK);
            }
        })?;
        Ok(())
    }
}

/// This thread is watched.
#[must_use]
pub(super) struct Here(PhantomData<*const ()>);

impl Drop for Here {
    fn drop(&mut self) {
        PLACE.set(None);
    }
}

/// Does some work, and says so meanwhile. Where it is part of another one, that goes on afterwards.
pub(super) fn at<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let begins = |at: Option<At>| {
        PLACE.with_borrow(|place| {
            let place = place.as_ref()?;
            std::mem::replace(&mut *locked(&place.now), at)
        })
    };
    let before = begins(Some(At { what, since: Instant::now() }));
    let done = work();
    begins(before.map(|at| At { since: Instant::now(), ..at }));
    done
}

/// Waits on purpose, in the middle of some work.
pub(super) fn pausing(pause: impl FnOnce()) {
    let begins = |at: Option<At>| {
        PLACE.with_borrow(|place| Some(std::mem::replace(&mut *locked(&place.as_ref()?.now), at)))
    };
    let before = begins(None).flatten();
    pause();
    begins(before.map(|at| At { since: Instant::now(), ..at }));
}

/// A part of the work is done.
pub(super) fn went_on() {
    PLACE.with_borrow(|place| {
        if let Some(place) = place
            && let Some(at) = &mut *locked(&place.now)
        {
            at.since = Instant::now();
        }
    });
}

/// What was said of threads that hang.
#[derive(Default)]
struct Told(Vec<(Busy, Duration)>);

impl Told {
    /// What is new: a thread hangs, still does after twice as long, or has come back.
    fn news(&mut self, hanging: &[Busy], more: &dyn Fn(&Busy) -> Option<String>) -> Vec<String> {
        let mut news = Vec::new();
        self.0.retain(|(before, _)| {
            let same = |busy: &&Busy| busy.thread == before.thread && busy.took >= before.took;
            let hangs = hanging.iter().any(|busy| same(&busy));
            if !hangs {
                news.push(format!("the {} goes on: {} has come back", before.thread, before.what));
            }
            hangs
        });
        for busy in hanging {
            let known = self.0.iter_mut().find(|(before, _)| before.thread == busy.thread);
            let due = known.as_ref().is_none_or(|(_, said)| busy.took >= 2 * *said);
            if due {
                let more = more(busy).map(|more| format!(" ({more})")).unwrap_or_default();
                news.push(format!(
                    "the {} hangs: it has been at {} for {:.1} s{more}",
                    busy.thread,
                    busy.what,
                    busy.took.as_secs_f64()
                ));
            }
            match known {
                Some((before, said)) => {
                    *before = *busy;
                    if due {
                        *said = busy.took;
                    }
                }
                None => self.0.push((*busy, busy.took)),
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_is_seen_at_its_work_and_forgotten_at_its_end() {
        let watch = Watch::default();
        let (entered, (said, go_on)) = (watch.clone(), channel());
        let (begun, has_begun) = channel();
        let thread = std::thread::spawn(move || {
            let _here = entered.enter("keeper");
            at("an append", || {
                begun.send(()).unwrap();
                go_on.recv().unwrap();
                at("a flush", || begun.send(()).unwrap());
                begun.send(()).unwrap();
                go_on.recv().unwrap();
            });
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        });
        let busy = |later: u64| {
            has_begun.recv().unwrap();
            watch.hanging(Instant::now() + Duration::from_secs(later))
        };
        let first = busy(3);
        assert_eq!((first.len(), first[0].thread, first[0].what), (1, "keeper", "an append"));
        assert!(watch.hanging(Instant::now()).is_empty(), "it has just begun");
        said.send(()).unwrap();
        has_begun.recv().unwrap();
        assert_eq!(busy(3)[0].what, "an append", "the part of it is done");
        said.send(()).unwrap();
        assert!(busy(3).is_empty(), "it waits for work");
        said.send(()).unwrap();
        thread.join().unwrap();
        watch.busy(Instant::now());
        assert!(locked(&watch.0).is_empty());
    }

    #[test]
    fn who_hangs_is_named_less_and_less_and_who_comes_back_is_too() {
        let mut told = Told::default();
        let mut lines = |thread: &'static str, took: u64| {
            let took = Duration::from_secs(took);
            let hanging = Busy { thread, what: "an append", took };
            let hanging: Vec<Busy> = if took < HANGS { Vec::new() } else { vec![hanging] };
            told.news(&hanging, &|_| Some("the disk".to_owned()))
        };
        assert!(lines("keeper", 1).is_empty());
        let line = "the keeper hangs: it has been at an append for 2.0 s (the disk)";
        assert_eq!(lines("keeper", 2), [line]);
        let said = |all: Vec<usize>| all.iter().sum::<usize>();
        assert_eq!(said((3..=64).map(|took| lines("keeper", took).len()).collect()), 5);
        // It came back, and hangs anew.
        let anew = lines("keeper", 2);
        assert_eq!((anew.len(), anew[0].contains("has come back")), (2, true), "{anew:?}");
        assert_eq!(lines("", 0), ["the keeper goes on: an append has come back"]);
        assert!(lines("", 0).is_empty());
    }
}
