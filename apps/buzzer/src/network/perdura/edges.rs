//! Who follows whom: two keys for each, one with each of the two.

use super::super::error::{Failure, FollowError};
use super::super::keys::{self, KeyKind};
use super::super::name::Name;
use super::super::{FRIENDS, Page};
use super::{Entries, Perdura};
use ::perdura_cluster::transactions::Outcome;

/// The names in the keys of a range.
pub(super) fn names_in(entries: &Entries) -> Result<Vec<Name>, Failure> {
    let name = |key: &[u8]| {
        let text = || Failure::Broken(format!("{} ends in no name", String::from_utf8_lossy(key)));
        keys::name_in(key).ok_or_else(text)
    };
    entries.entries.iter().map(|(key, _)| name(&key)).collect()
}

impl Perdura {
    /// Adds both keys. In one server those of one follower take turns, so that the bound holds; servers that do so at once may go one beyond it each.
    pub(super) async fn add_edge(&self, who: &Name, whom: &Name) -> Result<bool, FollowError> {
        if who == whom {
            return Err(FollowError::Oneself);
        }
        let _turn = self.turn_of(who).await?;
        let friends = self.range(keys::all(who, KeyKind::Friends).limit(FRIENDS as u32)).await?;
        if names_in(&friends)?.contains(whom) {
            return Ok(false);
        }
        if friends.entries.len() >= FRIENDS {
            return Err(FollowError::TooMany);
        }
        let mut follow = self.begin();
        follow.cmp(keys::active(whom), keys::THERE);
        follow.cmp(keys::active(who), keys::THERE);
        follow.insert(keys::friend(who, whom), keys::THERE);
        follow.insert(keys::follower(whom, who), keys::THERE);
        match self.write(follow).await?.failed() {
            None => Ok(true),
            Some(0) => Err(FollowError::Nobody),
            Some(1) => Err(FollowError::NoAccount),
            // Another server was faster.
            Some(_) => Ok(false),
        }
    }

    pub(super) async fn remove_edge(&self, who: &Name, whom: &Name) -> Result<bool, Failure> {
        let mut unfollow = self.begin();
        let was = unfollow.delete(keys::friend(who, whom));
        unfollow.delete(keys::follower(whom, who));
        match self.write(unfollow).await? {
            Outcome::Committed(found) => Ok(found.get(was)),
            Outcome::ResultsGone => Ok(true),
            Outcome::Failed { .. } => Err(Failure::Broken("a delete failed".to_owned())),
        }
    }

    /// A page of the names of a kind.
    pub(super) async fn names(
        &self,
        of: &Name,
        kind: KeyKind,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        let all = keys::all(of, kind).limit(limit);
        let range = match (after, kind) {
            (None, _) => all,
            (Some(after), KeyKind::Followers) => all.after(&keys::follower(of, after)),
            (Some(after), _) => all.after(&keys::friend(of, after)),
        };
        let entries = self.range(range).await?;
        let items = names_in(&entries)?;
        let next = items.last().filter(|_| entries.more).cloned();
        Ok(Page { items, next })
    }
}
