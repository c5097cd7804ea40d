//! Posts: one key for each, and its number in the lists of all who see it.

use super::values::PostValue;
use super::{Retwis, keys};
use perdura_buzzer::network::{Failure, Name, NewPost, Page, PostError, PostId, Shown};
use redis::pipe;
use std::collections::HashMap;

/// Posts that are looked through at a time for one that is known by its author's key.
const LOOKED_AT: usize = 100;

impl Retwis {
    /// Two round trips: the post's number with the followers, then the post with all lists that it is put into.
    pub(super) async fn add_post(&self, author: &Name, new: &NewPost) -> Result<(), PostError> {
        let answered = match &new.answers {
            None => None,
            Some(id) if id.key.time_ms() >= new.key.time_ms() => {
                return Err(PostError::BeforeAnswered);
            }
            Some(id) => match self.find(&keys::posts(&id.author), id).await? {
                Some((_, number)) => Some(number),
                None => return Err(PostError::AnswersNothing),
            },
        };
        let mut begin = pipe();
        begin.cmd("INCR").arg(keys::NEXT_POST_ID);
        begin.cmd("LRANGE").arg(keys::followers(author)).arg(0).arg(-1);
        let (number, followers): (u64, Vec<String>) = self.write(&begin).await?;
        let mut post = pipe();
        let value = PostValue::new(author, new, answered).write()?;
        post.cmd("SET").arg(keys::post(number)).arg(value).ignore();
        post.cmd("LPUSH").arg(keys::posts(author)).arg(number).ignore();
        post.cmd("LPUSH").arg(keys::timeline(author)).arg(number).ignore();
        for follower in &followers {
            let follower =
                Name::new(follower).map_err(|error| Failure::Broken(error.to_string()))?;
            post.cmd("LPUSH").arg(keys::timeline(&follower)).arg(number).ignore();
        }
        Ok(self.write::<()>(&post).await?)
    }

    /// Takes a post out of its author's list; timelines that have its number pass over it.
    pub(super) async fn remove_post(&self, id: &PostId) -> Result<bool, Failure> {
        let list = keys::posts(&id.author);
        let Some((_, number)) = self.find(&list, id).await? else { return Ok(false) };
        let mut remove = pipe();
        remove.cmd("DEL").arg(keys::post(number));
        remove.cmd("LREM").arg(list).arg(0).arg(number);
        let (was_there, _): (bool, u64) = self.write(&remove).await?;
        Ok(was_there)
    }

    pub(super) async fn one_post(&self, id: &PostId) -> Result<Option<Shown>, Failure> {
        let Some((_, number)) = self.find(&keys::posts(&id.author), id).await? else {
            return Ok(None);
        };
        let found = self.values(&[number]).await?;
        let shown = self.with_answered(found.into_iter().flatten().collect()).await?;
        Ok(shown.into_iter().next())
    }

    /// A page of a list of posts, behind that one.
    pub(super) async fn page(
        &self,
        list: &str,
        after: Option<&PostId>,
        limit: usize,
    ) -> Result<Page<Shown, PostId>, Failure> {
        let start = match after {
            None => 0,
            Some(after) => match self.find(list, after).await? {
                Some((place, _)) => place + 1,
                None => return Ok(Page { items: Vec::new(), next: None }),
            },
        };
        // One more says whether there are more.
        let mut numbers = self.numbers(list, start, limit + 1).await?;
        let more = numbers.len() > limit;
        numbers.truncate(limit);
        let found = self.values(&numbers).await?;
        let items = self.with_answered(found.into_iter().flatten().collect()).await?;
        let next = items.last().filter(|_| more).map(|shown| shown.post.id.clone());
        Ok(Page { items, next })
    }

    async fn numbers(&self, list: &str, start: usize, count: usize) -> Result<Vec<u64>, Failure> {
        let look = pipe().cmd("LRANGE").arg(list).arg(start).arg(start + count - 1).to_owned();
        let (numbers,): (Vec<u64>,) = self.read(&look).await?;
        Ok(numbers)
    }

    /// The posts of these numbers; none for each that is deleted.
    async fn values(&self, numbers: &[u64]) -> Result<Vec<Option<PostValue>>, Failure> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let mut look = pipe();
        look.cmd("MGET");
        for number in numbers {
            look.arg(keys::post(*number));
        }
        let (values,): (Vec<Option<Vec<u8>>>,) = self.read(&look).await?;
        values
            .into_iter()
            .map(|value| value.map(|bytes| PostValue::read(&bytes)).transpose())
            .collect()
    }

    /// Where in a list a post is, and its number: only the list knows.
    async fn find(&self, list: &str, id: &PostId) -> Result<Option<(usize, u64)>, Failure> {
        let mut start = 0;
        loop {
            let numbers = self.numbers(list, start, LOOKED_AT).await?;
            let values = self.values(&numbers).await?;
            let is_it =
                |value: &Option<PostValue>| value.as_ref().is_some_and(|post| post.id == *id);
            if let Some(at) = values.iter().position(is_it) {
                return Ok(Some((start + at, numbers[at])));
            }
            if numbers.len() < LOOKED_AT {
                return Ok(None);
            }
            start += LOOKED_AT;
        }
    }

    /// With what they answer.
    async fn with_answered(&self, posts: Vec<PostValue>) -> Result<Vec<Shown>, Failure> {
        let numbers =
            posts.iter().filter_map(|post| post.answers.as_ref().map(|(number, _)| *number));
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let found = self.values(&numbers).await?;
        let answered: HashMap<u64, PostValue> = numbers
            .into_iter()
            .zip(found)
            .filter_map(|(number, post)| Some((number, post?)))
            .collect();
        let shown = |post: PostValue| {
            let of = post.answers.as_ref().and_then(|(number, _)| answered.get(number)).cloned();
            Shown { post: post.into_post(), answered: of.map(PostValue::into_post) }
        };
        Ok(posts.into_iter().map(shown).collect())
    }
}
