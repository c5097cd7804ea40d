//! Filling Perdura, past the application: rows as Buzzer writes them, many in a transaction.

use super::store::{Aborted, Loaded, Store, Sums};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use perdura_buzzer::network::keys::{self, KeyKind};
use perdura_buzzer::network::values::{self, AccountValue, PostValue};
use perdura_buzzer::network::{Name, Network, Perdura, PostId, Settings};
use perdura_cluster::client::Options;
use perdura_cluster::connect::{self, connect_store};
use perdura_cluster::transactions::Counters as Tries;
use perdura_cluster::transactions::{Range, StoreClient};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Rows of a transaction.
const ROWS: usize = 400;

/// Transactions under way at a time.
const AT_A_TIME: usize = 16;

/// Keys that are counted at a time.
const COUNTED: u32 = 5_000;

/// A transaction that fills has this time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Buzzer on a cluster.
pub struct OnPerdura {
    network: Arc<Perdura>,
    store: StoreClient,
}

impl OnPerdura {
    /// On the cluster in this directory; each transaction of the network ends within `timeout`.
    pub fn open(cluster: &Path, timeout: Duration) -> Result<OnPerdura> {
        let settings = Settings { cluster: cluster.to_owned(), key: None, timeout };
        let network = Arc::new(Perdura::open(&settings)?);
        let groups = connect::load_groups(cluster)?;
        let first = groups.first().context("a cluster without groups")?;
        let key = connect::key(&cluster.join(perdura_cluster::config::CLIENT_FILE), first)?;
        Ok(OnPerdura { network, store: connect_store(&groups, &key)? })
    }

    /// Writes rows, those of one partition together as far as that goes.
    async fn fill(&self, mut rows: Vec<(Bytes, Bytes)>) -> Result<()> {
        rows.sort_unstable();
        let options = Options { timeout: TIMEOUT, reply_quorum: None };
        let mut parts = Vec::new();
        for part in rows.chunks(ROWS) {
            let mut write = self.store.transaction();
            for (key, value) in part {
                write.write(key.clone(), value.clone());
            }
            parts.push(async move {
                let ended = write.run(&options).await.context("filling the store")?;
                ensure!(ended.failed().is_none(), "the store refused what fills it");
                Ok(())
            });
        }
        stream::iter(parts).buffer_unordered(AT_A_TIME).try_collect().await
    }
}

#[async_trait]
impl Store for OnPerdura {
    fn network(&self) -> Arc<dyn Network> {
        Arc::clone(&self.network) as _
    }

    async fn load_accounts(&self, names: &[Name], hash: &str) -> Result<()> {
        let account = AccountValue { hash: hash.to_owned(), made_ms: 0, deleting_ms: None };
        let (account, there) = (values::write(&account)?, Bytes::from_static(keys::THERE));
        let rows = names.iter().flat_map(|name| {
            [(keys::account(name), account.clone()), (keys::active(name), there.clone())]
        });
        self.fill(rows.collect()).await
    }

    async fn load_follows(&self, pairs: &[(Name, Name)]) -> Result<()> {
        let there = Bytes::from_static(keys::THERE);
        let rows = pairs.iter().flat_map(|(who, whom)| {
            [(keys::friend(who, whom), there.clone()), (keys::follower(whom, who), there.clone())]
        });
        self.fill(rows.collect()).await
    }

    async fn load_posts(&self, posts: &[Loaded]) -> Result<()> {
        let row = |post: &Loaded| {
            let id = PostId { author: post.author.clone(), key: post.new.key };
            let answers = post.new.answers.clone();
            let value = PostValue { text: post.new.text.as_str().to_owned(), answers };
            Ok((keys::post(&id), values::write(&value)?))
        };
        self.fill(posts.iter().map(row).collect::<Result<_>>()?).await
    }

    /// Counts all keys of the store, whosever they are.
    async fn sums(&self, _names: &[Name]) -> Result<Sums> {
        let options = Options { timeout: TIMEOUT, reply_quorum: None };
        let mut sums = Sums::default();
        let mut range = Range::all().limit(COUNTED);
        loop {
            let page = self.store.read_range(range, &options).await.context("counting")?;
            for (key, _) in &page.entries {
                match kind_of(&key) {
                    Some(kind) if kind == KeyKind::Posts.letter() => sums.posts += 1,
                    Some(kind) if kind == KeyKind::Friends.letter() => sums.friends += 1,
                    Some(kind) if kind == KeyKind::Followers.letter() => sums.followers += 1,
                    _ => {}
                }
            }
            match page.entries.iter().last() {
                Some((last, _)) if page.more => range = Range::all().limit(COUNTED).after(&last),
                _ => return Ok(sums),
            }
        }
    }

    fn aborted(&self) -> Option<Aborted> {
        let aborted = |counters: Tries| {
            let Tries { conflicts, changed, unreachable, unaffordable, .. } = counters;
            conflicts + changed + unreachable + unaffordable
        };
        self.network.counters().map(aborted).map(Aborted)
    }
}

/// The letter of a key of a user that has any number of its kind: `HASH/NAME/LETTER/...`.
fn kind_of(key: &[u8]) -> Option<char> {
    let mut parts = std::str::from_utf8(key).ok()?.splitn(4, '/');
    let kind = parts.nth(2)?;
    parts.next()?;
    kind.chars().next().filter(|_| kind.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let (amy, bob) = (Name::new("amy").unwrap(), Name::new("bob").unwrap());
        let post = keys::post(&"amy/0123456789abcdef0123".parse().unwrap());
        assert_eq!(kind_of(&post), Some(KeyKind::Posts.letter()));
        assert_eq!(kind_of(&keys::friend(&amy, &bob)), Some(KeyKind::Friends.letter()));
        assert_eq!(kind_of(&keys::follower(&amy, &bob)), Some(KeyKind::Followers.letter()));
        assert_eq!(kind_of(&keys::account(&amy)), None);
        assert_eq!(kind_of(&keys::active(&amy)), None);
        assert_eq!(kind_of(b"!d/amy"), None);
    }
}
