//! What answers a post: keys beside the post say which posts do, and those are with their authors.
//!
//! A key stays as long as what it names, also where the post beside it is deleted, but not longer than its account: there are never more of them than answers. One whose
//! answer is not there, since a program that knew no such keys deleted it, is passed over.

use super::super::Page;
use super::super::error::Failure;
use super::super::keys;
use super::super::post::{PostId, Shown};
use super::posts::post_of;
use super::{Entries, Perdura};

fn answers_in(entries: &Entries) -> Result<Vec<PostId>, Failure> {
    let answer = |key: &[u8]| {
        let text = || Failure::Broken(format!("{} is no answer's", String::from_utf8_lossy(key)));
        keys::answer_in(key).ok_or_else(text)
    };
    entries.entries.iter().map(|(key, _)| answer(&key)).collect()
}

impl Perdura {
    /// The post and its keys in one read of its partition, then what these name. That is read later, and so nobody sees it who cannot see the post.
    pub(super) async fn answers_to(
        &self,
        to: &PostId,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Option<Page<Shown, PostId>>, Failure> {
        let all = keys::answers(to).limit(limit);
        let range = match after {
            Some(after) => all.after(&keys::answer(to, after)),
            None => all,
        };
        let mut look = self.begin();
        let (post, entries) = (look.read(keys::post(to)), look.read_range(range));
        let found = self.read(look).await?;
        let Some(value) = found.get(post) else { return Ok(None) };
        let answered = post_of(to.clone(), &value)?;
        let entries = found.get(entries);
        let ids = answers_in(&entries)?;
        let next = ids.last().filter(|_| entries.more).cloned();
        let mut posts = self.those_there(ids).await?;
        posts.retain(|post| post.answers.as_ref() == Some(to));
        let shown = |post| Shown { post, answered: Some(answered.clone()) };
        Ok(Some(Page { items: posts.into_iter().map(shown).collect(), next }))
    }
}
