//! Turns of users: what one user does that has to be done one after the other.
//!
//! Invariants:
//! - Of one user one has the turn, and [`WAITING_FOR_ONE`] wait for it at most: whoever asks for very much at once takes no room of others.
//! - All users together have [`WAITING`] that wait at most. With those that wait for partitions they are fewer than requests may be.
//! - A user is in the table as long as somebody has, or waits for, a turn of his.

use super::super::error::FollowError;
use super::super::name::Name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// So many wait for a turn of one user, behind the one that has it.
pub(super) const WAITING_FOR_ONE: usize = 4;

/// So many wait for a turn at a time, of whichever user.
const WAITING: usize = 256;

/// A user's.
#[derive(Default)]
struct Line {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Those that have the turn or wait for it.
    under_way: usize,
}

#[derive(Default)]
struct Table {
    lines: HashMap<Name, Line>,
    /// In each line, all but one.
    waiting: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Turns(Mutex<Table>);

/// A place in the line of a user, until it is dropped.
struct TurnGuard<'a> {
    of: &'a Turns,
    name: Name,
}

/// A user's turn, until it is dropped.
pub(super) struct Turn<'a> {
    // Dropped in this order: while anybody has the turn he is in the line.
    _turn: OwnedMutexGuard<()>,
    _place: TurnGuard<'a>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a user's turn. What has to be waited for too long is given up by dropping this.
    ///
    /// # Errors
    /// At once: [`FollowError::AtOnce`] and [`FollowError::Busy`].
    pub(super) async fn turn_of(&self, name: &Name) -> Result<Turn<'_>, FollowError> {
        let (place, turn) = self.enter(name)?;
        Ok(Turn { _turn: turn.lock_owned().await, _place: place })
    }

    fn enter(
        &self,
        name: &Name,
    ) -> Result<(TurnGuard<'_>, Arc<tokio::sync::Mutex<()>>), FollowError> {
        let mut table = self.lock();
        let before = table.lines.get(name).map_or(0, |line| line.under_way);
        if before > WAITING_FOR_ONE {
            return Err(FollowError::AtOnce);
        }
        if before > 0 {
            if table.waiting >= WAITING {
                return Err(FollowError::Busy);
            }
            table.waiting += 1;
        }
        let line = table.lines.entry(name.clone()).or_default();
        line.under_way += 1;
        let turn = Arc::clone(&line.turn);
        Ok((TurnGuard { of: self, name: name.clone() }, turn))
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.of.lock();
        let left = table.lines.get_mut(&self.name).map_or(0, |line| {
            line.under_way -= 1;
            line.under_way
        });
        if left == 0 {
            table.lines.remove(&self.name);
        } else {
            table.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn name(index: usize) -> Name {
        Name::new(&format!("user{index}")).unwrap()
    }

    /// What became of asking for a turn at once; none while it is waited for.
    fn ask<'a>(
        turns: &'a Turns,
        name: &'a Name,
    ) -> (Option<Result<Turn<'a>, FollowError>>, impl Future<Output = Result<Turn<'a>, FollowError>>)
    {
        let mut asked = Box::pin(turns.turn_of(name));
        ((&mut asked).now_or_never(), asked)
    }

    #[tokio::test]
    async fn few_wait_for_one_user_and_none_of_them_for_another() {
        let turns = Turns::default();
        let (amy, bob) = (name(1), name(2));
        let first = turns.turn_of(&amy).await.ok().unwrap();
        let mut waiting: Vec<_> = (0..WAITING_FOR_ONE).map(|_| ask(&turns, &amy)).collect();
        assert!(waiting.iter().all(|(at_once, _)| at_once.is_none()));
        assert!(matches!(ask(&turns, &amy).0, Some(Err(FollowError::AtOnce))));
        assert!(matches!(ask(&turns, &bob).0, Some(Ok(_))));
        // Whoever gives up makes room, and so does whoever is done; turns come in order.
        waiting.pop();
        let last = ask(&turns, &amy);
        assert!(last.0.is_none());
        drop(first);
        assert!(waiting.remove(0).1.now_or_never().is_some());
        drop((waiting, last));
        let table = turns.lock();
        assert!(table.lines.is_empty() && table.waiting == 0);
    }

    #[tokio::test]
    async fn all_together_are_bounded() {
        let turns = Turns::default();
        let names: Vec<Name> = (0..WAITING / WAITING_FOR_ONE + 1).map(name).collect();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for name in &names[1..] {
            held.push(turns.turn_of(name).await.ok().unwrap());
            waiting.extend((0..WAITING_FOR_ONE).map(|_| ask(&turns, name)));
        }
        assert!(waiting.iter().all(|(at_once, _)| at_once.is_none()));
        // One who has to wait for nobody does not count.
        held.push(turns.turn_of(&names[0]).await.ok().unwrap());
        assert!(matches!(ask(&turns, &names[0]).0, Some(Err(FollowError::Busy))));
        waiting.pop();
        assert!(ask(&turns, &names[0]).0.is_none());
    }
}
