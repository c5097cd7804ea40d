//! Posts: one key for each, with its author's; for one that answers another a second one, with that one's author's; and for some one that lists them among the newest.
//!
//! Invariant: all keys of a post are written, and removed, in one transaction.

use super::super::Page;
use super::super::error::{Failure, PostError};
use super::super::keys::{self, KeyKind};
use super::super::name::Name;
use super::super::post::{NewPost, Post, PostId, PostKey, Shown};
use super::super::values::{self, PostValue};
use super::fullness::NO_POSTS;
use super::{Entries, Perdura};
use ::perdura_cluster::transactions::Builder;
use bytes::Bytes;
use std::collections::HashMap;

/// A post as the store has it.
pub(super) fn post_of(id: PostId, value: &[u8]) -> Result<Post, Failure> {
    let PostValue { text, answers } = values::read(value)?;
    Ok(Post { id, text, answers })
}

/// The posts in a range of an author's.
pub(super) fn posts_in(author: &Name, entries: &Entries) -> Result<Vec<Post>, Failure> {
    let post = |(key, value): (Bytes, Bytes)| {
        let text = || Failure::Broken(format!("{} is no post's", String::from_utf8_lossy(&key)));
        let key = keys::post_key_in(&key).ok_or_else(text)?;
        post_of(PostId { author: author.clone(), key }, &value)
    };
    entries.entries.iter().map(post).collect()
}

impl Perdura {
    /// One insert, in its author's partition; where it answers another post that one is compared, so that it is there, and a key is written beside it.
    pub(super) async fn add_post(&self, author: &Name, new: &NewPost) -> Result<(), PostError> {
        let id = PostId { author: author.clone(), key: new.key };
        let content =
            PostValue { text: new.text.as_str().to_owned(), answers: new.answers.clone() };
        let value = values::write(&content)?;
        if self.has_no_room(&id) || new.answers.as_ref().is_some_and(|one| self.has_no_room(one)) {
            return self.posted_before(&id, &value, PostError::Full).await;
        }
        let mut post = self.begin();
        post.cmp(keys::active(author), keys::THERE);
        post.insert(keys::post(&id), value.clone());
        if let Some(answered) = &new.answers {
            if answered.key.time_ms() >= new.key.time_ms() {
                return Err(PostError::BeforeAnswered);
            }
            let there = self.get(keys::post(answered)).await?;
            let Some(there) = there else {
                return self.posted_before(&id, &value, PostError::AnswersNothing).await;
            };
            post.cmp(keys::post(answered), there);
            post.write(keys::answer(answered, &id), keys::THERE);
        }
        let listed = self.to_be_listed(&id);
        if let Some(key) = &listed {
            post.write(key.clone(), keys::THERE);
        }
        match self.write(post).await?.failed() {
            None => {
                if listed.is_some() {
                    self.was_listed(&id);
                }
                Ok(())
            }
            Some(0) => Err(PostError::NoAccount),
            Some(1) => self.posted_before(&id, &value, PostError::KeyTaken).await,
            Some(_) => self.posted_before(&id, &value, PostError::AnswersNothing).await,
        }
    }

    /// Whether nothing is posted where this post's author's data is.
    fn has_no_room(&self, id: &PostId) -> bool {
        self.is_full(&keys::post(id), NO_POSTS)
    }

    /// Whether it is there already, since it was sent before; else this is why it is not.
    async fn posted_before(
        &self,
        id: &PostId,
        value: &Bytes,
        otherwise: PostError,
    ) -> Result<(), PostError> {
        match self.get(keys::post(id)).await? {
            Some(there) if there == *value => Ok(()),
            _ => Err(otherwise),
        }
    }

    /// Adds to a transaction that all keys of a post are removed.
    pub(super) fn delete_all_of(&self, post: &Post, transaction: &mut Builder) {
        transaction.delete(keys::post(&post.id));
        transaction.delete(self.listed(&post.id));
        if let Some(answered) = &post.answers {
            transaction.delete(keys::answer(answered, &post.id));
        }
    }

    pub(super) async fn remove_post(&self, id: &PostId) -> Result<bool, Failure> {
        let Some(there) = self.get(keys::post(id)).await? else { return Ok(false) };
        let post = post_of(id.clone(), &there)?;
        let mut delete = self.begin();
        delete.cmp(keys::post(id), there);
        self.delete_all_of(&post, &mut delete);
        // Where it is not as it was somebody else deleted it.
        Ok(self.write(delete).await?.failed().is_none())
    }

    pub(super) async fn one_post(&self, id: &PostId) -> Result<Option<Shown>, Failure> {
        let Some(value) = self.get(keys::post(id)).await? else { return Ok(None) };
        let shown = self.with_answered(vec![post_of(id.clone(), &value)?]).await?;
        Ok(shown.into_iter().next())
    }

    pub(super) async fn posts_of(
        &self,
        of: &Name,
        after: Option<PostKey>,
        limit: u32,
    ) -> Result<Page<Shown, PostKey>, Failure> {
        let all = keys::all(of, KeyKind::Posts).limit(limit);
        let range = match after {
            Some(key) => all.after(&keys::post(&PostId { author: of.clone(), key })),
            None => all,
        };
        let entries = self.range(range).await?;
        let posts = posts_in(of, &entries)?;
        let next = posts.last().filter(|_| entries.more).map(|post| post.id.key);
        Ok(Page { items: self.with_answered(posts).await?, next })
    }

    /// With what they answer. That is read later than they are, and so there if it was not deleted.
    pub(super) async fn with_answered(&self, posts: Vec<Post>) -> Result<Vec<Shown>, Failure> {
        let mut wanted: Vec<PostId> =
            posts.iter().filter_map(|post| post.answers.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let found = self.those_there(wanted).await?;
        let answered: HashMap<PostId, Post> =
            found.into_iter().map(|post| (post.id.clone(), post)).collect();
        let shown = |post: Post| {
            let answered = post.answers.as_ref().and_then(|id| answered.get(id)).cloned();
            Shown { post, answered }
        };
        Ok(posts.into_iter().map(shown).collect())
    }

    /// Those of some posts that are there, in their order.
    pub(super) async fn those_there(&self, ids: Vec<PostId>) -> Result<Vec<Post>, Failure> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut look = self.begin();
        let asked: Vec<_> = ids.into_iter().map(|id| (look.read(keys::post(&id)), id)).collect();
        let found = self.read(look).await?;
        let there = asked.into_iter().filter_map(|(read, id)| Some((id, found.get(read)?)));
        there.map(|(id, value)| post_of(id, &value)).collect()
    }
}
