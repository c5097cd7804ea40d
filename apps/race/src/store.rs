//! A network with what a race needs of it besides: filling it, and counting what is in it.

use anyhow::Result;
use async_trait::async_trait;
use perdura_buzzer::network::{Name, Network, NewPost};
use serde::Serialize;
use std::sync::Arc;

/// What is in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sums {
    /// Posts.
    pub posts: u64,
    /// Follows, as those who follow have them.
    pub friends: u64,
    /// The same, as those who are followed have them.
    pub followers: u64,
}

/// Tries that came to nothing since they met others, and were made again; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aborted(pub u64);

/// A post that is loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Whose.
    pub author: Name,
    /// Who follows the author: what has timelines ready puts it into theirs.
    pub followers: Arc<Vec<Name>>,
    /// The post.
    pub new: NewPost,
}

/// A store with a network on it.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The network.
    fn network(&self) -> Arc<dyn Network>;

    /// Makes accounts whose password has this hash.
    async fn load_accounts(&self, names: &[Name], hash: &str) -> Result<()>;

    /// Makes the first of each pair follow the second.
    async fn load_follows(&self, pairs: &[(Name, Name)]) -> Result<()>;

    /// Adds posts, in this order.
    async fn load_posts(&self, posts: &[Loaded]) -> Result<()>;

    /// Counts what is there of these users.
    async fn sums(&self, names: &[Name]) -> Result<Sums>;

    /// What its client met so far; none where nothing can be met, as in one partition, and nothing is counted.
    fn aborted(&self) -> Option<Aborted>;
}
