//! What is answered, as JSON.

use crate::network::{Count, Name, Page, Post, PostId, Profile, Shown};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct PostJson {
    author: Name,
    key: String,
    time_ms: u64,
    text: String,
    answers: Option<AnswersJson>,
}

#[derive(Serialize)]
struct AnswersJson {
    author: Name,
    key: String,
    /// Null if it is deleted.
    text: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ChangedJson {
    /// False if some other session may be left.
    pub(super) others_ended: bool,
}

#[derive(Serialize)]
pub(super) struct PageJson<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<String>,
}

#[derive(Serialize)]
struct CountJson {
    count: u32,
    /// Whether there are more than these.
    more: bool,
}

#[derive(Serialize)]
pub(super) struct ProfileJson {
    name: Name,
    posts: CountJson,
    followers: CountJson,
    friends: CountJson,
}

#[derive(Serialize)]
pub(super) struct WhoJson {
    pub(super) name: Option<Name>,
}

#[derive(Serialize)]
pub(super) struct PostedJson {
    author: Name,
    key: String,
}

impl From<PostId> for PostedJson {
    fn from(id: PostId) -> PostedJson {
        PostedJson { author: id.author, key: id.key.to_string() }
    }
}

impl From<Shown> for PostJson {
    fn from(shown: Shown) -> PostJson {
        let Post { id, text, answers } = shown.post;
        let answered = shown.answered.map(|post| post.text);
        let answers = answers.map(|id| AnswersJson {
            author: id.author,
            key: id.key.to_string(),
            text: answered,
        });
        let (key, time_ms) = (id.key.to_string(), id.key.time_ms());
        PostJson { author: id.author, key, time_ms, text, answers }
    }
}

impl From<Count> for CountJson {
    fn from(count: Count) -> CountJson {
        CountJson { count: count.counted, more: count.more }
    }
}

impl From<Profile> for ProfileJson {
    fn from(profile: Profile) -> ProfileJson {
        ProfileJson {
            name: profile.name,
            posts: profile.posts.into(),
            followers: profile.followers.into(),
            friends: profile.friends.into(),
        }
    }
}

/// A page with its items as they are told.
pub(super) fn page<T, C: ToString, J: From<T>>(page: Page<T, C>) -> PageJson<J> {
    let next = page.next.map(|next| next.to_string());
    PageJson { items: page.items.into_iter().map(J::from).collect(), next }
}
