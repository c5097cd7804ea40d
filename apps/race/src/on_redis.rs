//! Filling Redis, with many commands at a time.

use super::retwis::values::PostValue;
use super::retwis::{Retwis, keys};
use super::store::{Aborted, Loaded, Store, Sums};
use anyhow::{Context, Result};
use async_trait::async_trait;
use perdura_buzzer::network::{Name, Network};
use redis::{Pipeline, pipe};
use std::sync::Arc;

/// Entries of a pipeline.
const ENTRIES: usize = 1_000;

/// Retwis on a server.
pub struct OnRedis {
    retwis: Arc<Retwis>,
}

impl OnRedis {
    /// This one.
    #[must_use]
    pub fn over(retwis: Retwis) -> OnRedis {
        OnRedis { retwis: Arc::new(retwis) }
    }

    async fn fill(&self, commands: &Pipeline) -> Result<()> {
        self.retwis.run(commands).await.context("filling Redis")
    }
}

#[async_trait]
impl Store for OnRedis {
    fn network(&self) -> Arc<dyn Network> {
        Arc::clone(&self.retwis) as _
    }

    async fn load_accounts(&self, names: &[Name], hash: &str) -> Result<()> {
        for part in names.chunks(ENTRIES) {
            let mut commands = pipe();
            for name in part {
                commands.cmd("SET").arg(keys::account(name)).arg(hash).ignore();
            }
            self.fill(&commands).await?;
        }
        Ok(())
    }

    async fn load_follows(&self, pairs: &[(Name, Name)]) -> Result<()> {
        for part in pairs.chunks(ENTRIES) {
            let mut commands = pipe();
            for (who, whom) in part {
                commands.cmd("RPUSH").arg(keys::friends(who)).arg(whom.as_str()).ignore();
                commands.cmd("RPUSH").arg(keys::followers(whom)).arg(who.as_str()).ignore();
            }
            self.fill(&commands).await?;
        }
        Ok(())
    }

    async fn load_posts(&self, posts: &[Loaded]) -> Result<()> {
        for part in posts.chunks(ENTRIES) {
            let count = pipe().cmd("INCRBY").arg(keys::NEXT_POST_ID).arg(part.len()).to_owned();
            let (last,): (u64,) = self.retwis.run(&count).await.context("filling Redis")?;
            let mut commands = pipe();
            for (number, post) in (last + 1 - part.len() as u64..).zip(part) {
                let value = PostValue::new(&post.author, &post.new, None).write()?;
                commands.cmd("SET").arg(keys::post(number)).arg(value).ignore();
                commands.cmd("LPUSH").arg(keys::posts(&post.author)).arg(number).ignore();
                for reader in post.followers.iter().chain([&post.author]) {
                    commands.cmd("LPUSH").arg(keys::timeline(reader)).arg(number).ignore();
                }
            }
            self.fill(&commands).await?;
        }
        Ok(())
    }

    async fn sums(&self, names: &[Name]) -> Result<Sums> {
        let mut sums = Sums::default();
        for part in names.chunks(ENTRIES) {
            let mut commands = pipe();
            for name in part {
                for list in [keys::posts(name), keys::friends(name), keys::followers(name)] {
                    commands.cmd("LLEN").arg(list);
                }
            }
            let lengths: Vec<u64> = self.retwis.run(&commands).await.context("counting")?;
            for of_user in lengths.chunks(3) {
                sums.posts += of_user[0];
                sums.friends += of_user[1];
                sums.followers += of_user[2];
            }
        }
        Ok(sums)
    }

    fn aborted(&self) -> Option<Aborted> {
        // It has no transactions.
        None
    }
}
