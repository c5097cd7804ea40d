//! What is had for a lease: until when, by a clock of this machine, and how it is kept.
//!
//! The lease is the group's, and ends by agreed time. What is known of it here errs towards "lost": it counts from before the command
//! was sent that began or renewed it, on a clock that goes on in suspension, and a hundredth is taken off for clocks that do not go equally fast.
//! What no clock here can tell is that agreed time was led ahead meanwhile, as a new leader may by a part of a second: what is protected
//! looks at tokens.

use crate::call::Error;
use crate::clock::Moment;
use crate::milliseconds;
use crate::pause::Pauses;
use crate::space::Space;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// A timer stands still while the machine is suspended, and the clock of leases does not: it is looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// A lease whose renewals come too late so often in a row is too short for this group, and each is an ordered command.
const LATE: usize = 3;

/// What an error means of what the group has given.
const HAD: &str = "it was had, and may be had by nobody until its lease ends";

/// What it is that is had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Had {
    /// A tuple with a lease.
    Tuple(u64),
    /// A tuple that was taken under a lease, and its token.
    Job(u64, u64),
}

impl Had {
    /// Gives it up, so that it is the next one's; whether it was still had.
    pub(crate) async fn give_up(self, space: &Space) -> Result<bool, Error> {
        match self {
            Had::Tuple(number) => space.renew(number, Some(Duration::ZERO)).await,
            Had::Job(number, token) => space.give_back(number, token).await,
        }
    }
}

/// What the group has given, and no caller has yet. It is given up if that comes to nothing, by an error or a dropped future: else it would be nobody's for a whole lease.
struct Unclaimed {
    space: Space,
    had: Had,
    length: Duration,
    is_settled: bool,
}

impl Unclaimed {
    /// It is somebody's, or nothing is left of it.
    fn settled(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Unclaimed {
    /// Tries until the lease would be over: what kept it from being renewed may keep it from being given up for a while.
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let (space, had, length) = (self.space.clone(), self.had, self.length);
        self.space.runtime().spawn(async move {
            let (start, mut pauses) = (Instant::now(), Pauses::new());
            while had.give_up(&space).await.is_err_and(|error| error.may_pass())
                && start.elapsed() < length
            {
                pauses.rest().await;
            }
        });
    }
}

/// The lease of a [`Held`](crate::Held), a [`Leadership`](crate::Leadership) or a [`Job`](crate::Job). Clones are of the same one.
///
/// Of whether it is lost this errs towards "yes" (but for what stands with [`Lease::is_held`]), and never says "no" once it was released.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    space: Space,
    had: Had,
    length: Duration,
    /// Until when it is had for certain; none when it is over.
    until: watch::Sender<Option<Moment>>,
}

/// How long a lease that the group counts is counted on here.
fn safe(length: Duration) -> Duration {
    length - length / 100
}

impl Lease {
    /// The lease of what was asked for at `asked`, and given later; `None` if it was lost already, or is given up as its renewals come too late.
    ///
    /// What was waited for is had from a time that is not known here. So its lease is renewed once, and counts from then.
    ///
    /// # Errors
    /// Never a refusal, for it was had. It is given up, as far as that can be done.
    pub(crate) async fn begin(
        space: &Space,
        had: Had,
        lease: Duration,
        asked: Moment,
    ) -> Result<Option<Lease>, Error> {
        let length = Duration::from_millis(milliseconds(lease));
        let until = watch::Sender::new(Some(asked.after(safe(length))));
        let lease = Lease(Arc::new(Inner { space: space.clone(), had, length, until }));
        let unclaimed = Unclaimed { space: space.clone(), had, length, is_settled: false };
        let mut fresh = lease.is_held() && lease.remaining() >= length / 2;
        for _ in 0..LATE {
            if fresh {
                break;
            }
            match lease.renewed().await {
                Ok(false) => {
                    unclaimed.settled();
                    return Ok(None);
                }
                Err(error) if !lease.is_held() => return Err(error.after(HAD)),
                Ok(true) | Err(_) => fresh = lease.is_held(),
            }
        }
        if !fresh {
            return Ok(None);
        }
        unclaimed.settled();
        Ok(Some(lease))
    }

    /// How much longer it is had for certain, by a clock of this machine that goes on while it is suspended (on Linux; `Instant` elsewhere);
    /// nothing when it is lost or was given up.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.until.borrow().map_or(Duration::ZERO, Moment::left)
    }

    /// Whether some of it remains. Asking takes time, and so does what is done next: what must not be done by two has to look at the
    /// token as well. Agreed time, by which others get it, follows the clocks of the replicas' machines: where these differ, a change of leader can lead it ahead by as much
    /// (`max_skew_ms` of the cluster is the most), and the lease ends so much earlier than is known here. A lease of many times that is to be preferred.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Ends when it is lost, or was given up: when nothing of it remains, or a renewal found it gone, as when an operator broke a lock.
    /// It asks the group for nothing by itself: that is what keep-alive and [`Lease::renew`] do.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lease = self.clone();
        async move {
            let mut changes = lease.0.until.subscribe();
            loop {
                let left = changes.borrow_and_update().map_or(Duration::ZERO, Moment::left);
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = sleep(left.min(LOOK)) => {}
                    _ = changes.changed() => {}
                }
            }
        }
    }

    /// Has it for a whole lease from now on; `false` if it was lost or given up, or the answer came when the new lease had ended here, too.
    ///
    /// # Errors
    /// As [`Space`]'s calls. It is had then as long as before, and maybe longer.
    pub async fn renew(&self) -> Result<bool, Error> {
        Ok(self.renewed().await? && self.is_held())
    }

    /// Renews it; `false` if it is gone. If not, the answer may have come too late for it to be held.
    async fn renewed(&self) -> Result<bool, Error> {
        if self.0.until.borrow().is_none() {
            return Ok(false);
        }
        let Inner { space, had, length, .. } = &*self.0;
        let before = Moment::now();
        let renewed = match *had {
            Had::Tuple(number) => space.renew(number, Some(*length)).await?,
            Had::Job(number, token) => space.extend(number, token, *length).await?,
        };
        Ok(self.answered(before, renewed))
    }

    /// The renewal that was asked for at `asked` found it there, or not; whether it is not gone.
    fn answered(&self, asked: Moment, renewed: bool) -> bool {
        let Inner { length, until, .. } = &*self.0;
        let end = renewed.then(|| asked.after(safe(*length)));
        until.send_modify(|until| {
            *until = until.and_then(|until| end.map(|end| end.max(until)));
        });
        until.borrow().is_some()
    }

    /// Gives it up, so that it is the next one's; whether it was still had.
    pub(crate) async fn give_up(&self) -> Result<bool, Error> {
        self.end();
        self.0.had.give_up(self.space()).await
    }

    pub(crate) fn space(&self) -> &Space {
        &self.0.space
    }

    /// It is given up, whatever becomes of the command that says so: nothing renews it any more.
    pub(crate) fn end(&self) {
        self.0.until.send_replace(None);
    }

    async fn keep(&self) {
        tokio::select! {
            () = self.lost() => {}
            () = self.renew_again_and_again() => {}
        }
        // Others may be told of the loss later than this: it is not to come back.
        self.end();
    }

    async fn renew_again_and_again(&self) {
        let (length, third) = (self.0.length, self.0.length / 3);
        loop {
            loop {
                let early = self.remaining().saturating_sub(length - third);
                if early.is_zero() {
                    break;
                }
                sleep(early.min(LOOK)).await;
            }
            match self.renew().await {
                Ok(true) => {}
                Ok(false) => return,
                // There is time for some more tries.
                Err(_) => sleep(third / 4).await,
            }
        }
    }
}

/// What is had for a lease, and renewed each third of that as long as this is there.
///
/// ```no_run
/// # async fn f(lock: perdura_recipes::Lock, work: impl Future<Output = ()>) -> Result<(), perdura_recipes::Error> {
/// # use std::time::Duration;
/// if let Some(held) = lock.acquire(Duration::from_secs(60)).await? {
///     let kept = held.keep_alive();
///     tokio::select! {
///         () = work => {}
///         () = kept.lost() => {} // Another one may have it: the work is dropped half-done.
///     }
///     kept.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping it ends the renewals, and what was had is the next one's when the lease has ended; giving it up says so at once. A process that does not get to run cannot renew
/// anything: when the lease has ended here, [`Lease::lost`] ends, and nothing is renewed any more.
#[derive(Debug)]
#[must_use = "nothing renews the lease once this is dropped"]
pub struct Kept<T> {
    had: T,
    task: AbortHandle,
}

impl<T: Deref<Target = Lease>> Kept<T> {
    pub(crate) fn new(had: T) -> Kept<T> {
        let lease = Lease::clone(&had);
        let renewals = async move { lease.keep().await };
        Kept { task: had.space().runtime().spawn(renewals).abort_handle(), had }
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.had
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
