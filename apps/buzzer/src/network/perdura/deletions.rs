//! Deleting an account, in steps that anybody can go on with.
//!
//! 1. It is marked, and noted among those that are being deleted: from then on nothing is added to it.
//! 2. Its sessions, its posts with all that names them, what says that others answer them, and who follows it and whom it follows, both keys of each, are
//!    deleted, some at a time.
//! 3. When nothing of that is left the account itself is, with the note. Its name is free then.
//!
//! Each step compares the mark, so that one that comes late does not touch a later account of that name.

use super::super::error::Failure;
use super::super::keys::{self, KeyKind};
use super::super::name::Name;
use super::super::post::Post;
use super::super::session::Proof;
use super::super::values::{self, AccountValue};
use super::edges::names_in;
use super::posts::posts_in;
use super::{Perdura, now_ms};
use ::perdura_cluster::protocol::PartitionId;
use ::perdura_cluster::transactions::{Outcome, Range};
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeMap;

/// Accounts that are gone on with in one call.
const ACCOUNTS: u32 = 64;

/// Of these so many at a time: one may wait for a partition that is down.
const ACCOUNTS_AT_A_TIME: usize = 8;

/// Steps for each of them in one call.
const STEPS: usize = 32;

/// Posts that one step deletes, or keys of what answers them.
const POSTS: u32 = 200;

/// Followers, or friends, that one step deletes, each in a transaction of its own.
const EDGES: u32 = 64;

/// Transactions of a step at a time.
const AT_A_TIME: usize = 8;

/// What a step came to.
enum Step {
    /// It deleted something, and there may be more.
    Deleted,
    /// There was nothing of its kind.
    Nothing,
    /// The account is not being deleted any more: somebody else did it.
    Over,
}

/// What transactions that deleted something came to, each of which compared the mark.
fn step_of(all: impl IntoIterator<Item = Result<Outcome, Failure>>) -> Result<Step, Failure> {
    let mut step = Step::Nothing;
    for outcome in all {
        step = match outcome?.failed() {
            None => Step::Deleted,
            Some(_) => return Ok(Step::Over),
        };
    }
    Ok(step)
}

impl Perdura {
    pub(super) async fn begin_deletion(&self, name: &Name, proof: &Proof) -> Result<bool, Failure> {
        let key = keys::account(name);
        let there = self.get(key.clone()).await?.filter(|there| Proof::of(there) == *proof);
        let Some(there) = there else { return Ok(false) };
        let account: AccountValue = values::read(&there)?;
        let marked = values::write(&AccountValue { deleting_ms: Some(now_ms()), ..account })?;
        let mut mark = self.begin();
        mark.cmp(key.clone(), there);
        mark.write(key, marked.clone());
        mark.delete(keys::active(name));
        mark.write(keys::deletion(name), keys::THERE);
        if self.write(mark).await?.failed().is_some() {
            return Ok(false);
        }
        // It is marked; what fails here is gone on with later.
        if let Err(error) = self.end_sessions(name, Some(&marked)).await {
            tracing::warn!(%error, "sessions of an account that is being deleted are left for later");
        }
        Ok(true)
    }

    /// Goes on with some accounts, and with others where these cannot be gone on with. Fails if none of what is left can be now.
    pub(super) async fn go_on_deleting(&self) -> Result<usize, Failure> {
        let all = || Range::prefix(Bytes::from_static(keys::DELETIONS.as_bytes())).limit(ACCOUNTS);
        let (mut range, mut left, mut failed) = (all(), 0, Vec::new());
        loop {
            let entries = self.range(range).await?;
            let names = names_in(&entries)?;
            let failed_before = failed.len();
            for some in names.chunks(ACCOUNTS_AT_A_TIME) {
                let done = join_all(some.iter().map(|name| self.delete_some_of(name))).await;
                for (name, done) in some.iter().zip(done) {
                    match done {
                        Ok(is_gone) => left += usize::from(!is_gone),
                        Err(failure) => {
                            tracing::warn!(%name, %failure, "an account that is being deleted is left for later");
                            failed.push(failure);
                        }
                    }
                }
            }
            let all_failed = failed.len() - failed_before == names.len();
            match names.last().filter(|_| entries.more) {
                Some(last) if all_failed => range = all().after(&keys::deletion(last)),
                more => {
                    left += usize::from(more.is_some());
                    break;
                }
            }
        }
        let count = failed.len();
        match failed.into_iter().next() {
            Some(failure) if left == 0 => Err(failure),
            _ => Ok(left + count),
        }
    }

    /// Takes some steps for an account; whether it is gone.
    async fn delete_some_of(&self, name: &Name) -> Result<bool, Failure> {
        let mark = self.get(keys::account(name)).await?;
        let account = mark.as_deref().map(values::read::<AccountValue>).transpose()?;
        let Some(mark) = mark.filter(|_| account.is_some_and(|one| one.deleting_ms.is_some()))
        else {
            return Ok(true);
        };
        self.end_sessions(name, Some(&mark)).await?;
        for _ in 0..STEPS {
            match self.delete_next(name, &mark).await? {
                Step::Deleted => {}
                Step::Over => return Ok(true),
                Step::Nothing => {
                    if !self.end_sessions(name, Some(&mark)).await? {
                        // They are gone with the next call, or are those of a later account.
                        return Ok(false);
                    }
                    return self.delete_mark(name, mark).await.map(|()| true);
                }
            }
        }
        Ok(false)
    }

    /// Deletes some of what is left. Where there are no posts any more nothing is added to what answers them.
    async fn delete_next(&self, name: &Name, mark: &Bytes) -> Result<Step, Failure> {
        for kind in [KeyKind::Posts, KeyKind::Answers, KeyKind::Followers, KeyKind::Friends] {
            let step = match kind {
                KeyKind::Posts => self.delete_posts(name, mark).await?,
                KeyKind::Answers => self.delete_answers(name, mark).await?,
                kind => self.delete_edges(name, mark, kind).await?,
            };
            if !matches!(step, Step::Nothing) {
                return Ok(step);
            }
        }
        Ok(Step::Nothing)
    }

    /// Those that answer posts of one partition together: a transaction is of two partitions at most.
    async fn delete_posts(&self, name: &Name, mark: &Bytes) -> Result<Step, Failure> {
        let entries = self.range(keys::all(name, KeyKind::Posts).limit(POSTS)).await?;
        let mut groups: BTreeMap<PartitionId, Vec<Post>> = BTreeMap::new();
        for post in posts_in(name, &entries)? {
            let other = keys::post(post.answers.as_ref().unwrap_or(&post.id));
            groups.entry(self.store.partition_of(&other)).or_default().push(post);
        }
        let groups: Vec<Vec<Post>> = groups.into_values().collect();
        let mut step = Step::Nothing;
        for some in groups.chunks(AT_A_TIME) {
            let deleted = some.iter().map(|posts| async move {
                let mut delete = self.begin();
                delete.cmp(keys::account(name), mark.clone());
                posts.iter().for_each(|post| self.delete_all_of(post, &mut delete));
                self.write(delete).await
            });
            step = step_of(join_all(deleted).await)?;
            if matches!(step, Step::Over) {
                break;
            }
        }
        Ok(step)
    }

    async fn delete_answers(&self, name: &Name, mark: &Bytes) -> Result<Step, Failure> {
        let answers = self.range(keys::all(name, KeyKind::Answers).limit(POSTS)).await?;
        if answers.entries.is_empty() {
            return Ok(Step::Nothing);
        }
        let mut delete = self.begin();
        delete.cmp(keys::account(name), mark.clone());
        for (key, _) in &answers.entries {
            delete.delete(key);
        }
        step_of([self.write(delete).await])
    }

    async fn delete_edges(
        &self,
        name: &Name,
        mark: &Bytes,
        kind: KeyKind,
    ) -> Result<Step, Failure> {
        let names = names_in(&self.range(keys::all(name, kind).limit(EDGES)).await?)?;
        let mut step = Step::Nothing;
        for others in names.chunks(AT_A_TIME) {
            let deleted = others.iter().map(|other| async move {
                let (follower, friend) = match kind {
                    KeyKind::Friends => (name, other),
                    _ => (other, name),
                };
                let mut delete = self.begin();
                delete.cmp(keys::account(name), mark.clone());
                delete.delete(keys::friend(follower, friend));
                delete.delete(keys::follower(friend, follower));
                self.write(delete).await
            });
            step = step_of(join_all(deleted).await)?;
            if matches!(step, Step::Over) {
                break;
            }
        }
        Ok(step)
    }

    async fn delete_mark(&self, name: &Name, mark: Bytes) -> Result<(), Failure> {
        let mut delete = self.begin();
        delete.cmp(keys::account(name), mark);
        delete.delete(keys::account(name));
        delete.delete(keys::logins(name));
        delete.delete(keys::deletion(name));
        self.write(delete).await.map(|_| ())
    }
}
