//! Filling a store with the social network, with progress.

use super::social::{Social, name, now_ms, text};
use super::store::{Loaded, Store};
use super::tell;
use anyhow::Result;
use perdura_buzzer::network::{Name, NewPost, PostKey};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries between two looks at the time.
const PIECE: usize = 8_000;

/// How often progress is told.
const TOLD: Duration = Duration::from_secs(5);

/// The hash of no password: nobody logs in with one.
pub const NO_PASSWORD: &str = "*";

/// What is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loading {
    /// Whether anybody follows anybody, and posts.
    pub relations: bool,
    /// Posts of each user.
    pub posts: u64,
    /// Characters of each.
    pub characters: usize,
}

/// What was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub posts: u64,
    pub follows: u64,
}

/// Tells how far it is, now and then.
struct Progress {
    what: &'static str,
    all: usize,
    done: usize,
    told: Instant,
}

impl Progress {
    fn new(what: &'static str, all: usize) -> Progress {
        Progress { what, all, done: 0, told: Instant::now() }
    }

    fn add(&mut self, count: usize) {
        self.done += count;
        if self.told.elapsed() >= TOLD {
            self.told = Instant::now();
            tell(format_args!("  {} of {} {}", self.done, self.all, self.what));
        }
    }
}

/// All names.
pub fn names(social: &Social) -> Result<Vec<Name>> {
    Ok((0..social.users()).map(name).collect::<Result<_, _>>()?)
}

/// Fills an empty store.
pub async fn load(store: &dyn Store, social: &Social, what: Loading) -> Result<Totals> {
    let (since, names) = (Instant::now(), names(social)?);
    let mut progress = Progress::new("accounts", names.len());
    for piece in names.chunks(PIECE) {
        store.load_accounts(piece, NO_PASSWORD).await?;
        progress.add(piece.len());
    }
    let mut totals = Totals::default();
    if what.relations {
        totals.follows = load_follows(store, social, &names).await?;
        totals.posts = load_posts(store, social, &names, what).await?;
    }
    let (users, took) = (names.len(), since.elapsed().as_secs_f64());
    let Totals { posts, follows } = totals;
    tell(format_args!(
        "  loaded {users} accounts, {follows} follows, {posts} posts in {took:.1} s"
    ));
    Ok(totals)
}

async fn load_follows(store: &dyn Store, social: &Social, names: &[Name]) -> Result<u64> {
    let pairs: Vec<(Name, Name)> = names
        .iter()
        .zip(&social.loaded)
        .flat_map(|(who, friends)| {
            friends.iter().map(|whom| (who.clone(), names[*whom as usize].clone()))
        })
        .collect();
    let mut progress = Progress::new("follows", pairs.len());
    for piece in pairs.chunks(PIECE) {
        store.load_follows(piece).await?;
        progress.add(piece.len());
    }
    Ok(pairs.len() as u64)
}

/// One post of each user after the other, so that timelines are mixed; of the last minutes.
async fn load_posts(
    store: &dyn Store,
    social: &Social,
    names: &[Name],
    what: Loading,
) -> Result<u64> {
    let name_of = |user: &u32| names[*user as usize].clone();
    let followers: Vec<Arc<Vec<Name>>> = social
        .followers()
        .iter()
        .map(|followers| Arc::new(followers.iter().map(name_of).collect()))
        .collect();
    let all = what.posts * names.len() as u64;
    let begin_ms = now_ms().saturating_sub(all);
    let mut progress = Progress::new("posts", usize::try_from(all)?);
    for turn in 0..what.posts {
        for (piece, users) in names.chunks(PIECE).enumerate() {
            let post = |(index, author): (usize, &Name)| {
                let user = piece * PIECE + index;
                let number = turn * names.len() as u64 + user as u64;
                let key = PostKey::new(begin_ms + number, user as u32);
                let new = NewPost { key, text: text(what.characters, number)?, answers: None };
                Ok(Loaded { author: author.clone(), followers: Arc::clone(&followers[user]), new })
            };
            let posts: Vec<Loaded> = users.iter().enumerate().map(post).collect::<Result<_>>()?;
            store.load_posts(&posts).await?;
            progress.add(posts.len());
        }
    }
    Ok(all)
}
