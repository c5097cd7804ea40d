//! A server is killed and comes back during the mix: no call fails, and what was acknowledged is there, once.

use super::load::{Level, Load, Target, Working, Workload};
use super::loading::{load, names};
use super::race::Size;
use super::store::Sums;
use super::systems::{Programs, Running, SystemKind};
use super::{directory, tell};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls of each caller that are answered at least before a server is killed, while it is gone, and after it came back.
const CALLS: u64 = 5;

/// That takes no longer on any machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Kill a server during the mix, bring it back, and count what is in the store
///
/// Then another one is killed, without which nothing is answered unless the first one is back indeed.
///
/// Exit code 1 if a call fails on Perdura, or if posts or follows that were acknowledged are not in the store, or are there twice. What is found of Redis is told.
#[derive(Args)]
pub struct Survival {
    #[command(flatten)]
    programs: Programs,
    /// Which systems
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "crash-2,byzantine-2,redis-always"
    )]
    systems: Vec<SystemKind>,
    /// Where the load is put on
    #[arg(long, value_enum, default_value_t = Level::Http)]
    level: Level,
    #[command(flatten)]
    size: Size,
    /// Callers
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,
    /// Seconds before it is killed, while it is gone, and after it came back
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Which server is killed, by its number; of a single one that one
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1_000))]
    server: u16,
    /// Where data is while it runs
    #[arg(long, value_name = "DIR", default_value = "target/bench-buzzer")]
    out: PathBuf,
}

/// What a run came to.
#[derive(Debug)]
struct Outcome {
    failed: u64,
    first_failure: Option<String>,
    expected: Sums,
    found: Sums,
}

impl Outcome {
    /// What is not as it should be.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(why) = &self.first_failure {
            wrong.push(format!("{} calls failed; the first: {why}", self.failed));
        }
        let (expected, found) = (self.expected, self.found);
        for (what, expected, found) in [
            ("posts", expected.posts, found.posts),
            ("follows, with those who follow", expected.friends, found.friends),
            ("follows, with those who are followed", expected.followers, found.followers),
        ] {
            if expected != found {
                wrong.push(format!(
                    "{found} {what} are in the store, and {expected} were acknowledged"
                ));
            }
        }
        wrong
    }
}

impl Survival {
    /// Waits until callers have been at work for long enough, and have had answers if there is anybody to give them.
    async fn let_work(&self, working: &Working, answers: bool) -> Result<()> {
        let answered = || working.shared.answered.load(Ordering::Relaxed);
        let (since, wanted) = (Instant::now(), answered() + CALLS * u64::from(self.callers));
        let time = Duration::from_secs(self.seconds);
        while since.elapsed() < time || (answers && answered() < wanted) {
            ensure!(since.elapsed() < time + TIMEOUT, "too few calls are answered");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn kill_one_of(&self, system: SystemKind) -> Result<Outcome> {
        let servers = system.servers(&self.programs);
        let server = if servers == 1 { 0 } else { self.server };
        ensure!(
            server < servers,
            "{} has servers 0 to {}, not {server}",
            system.label(),
            servers - 1
        );
        let mut running = Running::start(system, &self.programs, &self.out).await?;
        let social = self.size.social(true);
        let store = running.open().await?;
        let loaded = load(&*store, &social, self.size.loading(true)).await?;
        store.network().close().await;
        let mut target = Target::open(&running, self.level, &social, self.size.sessions).await?;
        let (workload, callers, seed) = (Workload::Mix, self.callers, self.size.seed);
        let load = Load { workload, callers, characters: self.size.characters, seed };
        let working = Working::start(&target, &social, &load);
        let shared = working.shared.clone();
        self.let_work(&working, true).await?;
        running.kill(usize::from(server));
        tell(format_args!("  server {server} was killed"));
        self.let_work(&working, servers > 1).await?;
        running.restart(usize::from(server))?;
        tell(format_args!("  server {server} was started again"));
        self.let_work(&working, true).await?;
        if servers > 1 {
            let other = (server + 1) % servers;
            running.kill(usize::from(other));
            tell(format_args!("  server {other} was killed"));
            self.let_work(&working, true).await?;
            running.restart(usize::from(other))?;
        }
        working.end().await?;
        running.check()?;
        target.check()?;
        target.close().await;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (answered, posts, follows) =
            (of(&shared.answered), of(&shared.posts), of(&shared.follows));
        tell(format_args!(
            "  {answered} calls were answered, {posts} posts and {follows} follows of them"
        ));
        let (failed, first_failure) = shared.failures();
        let follows = loaded.follows + follows;
        let expected = Sums { posts: loaded.posts + posts, friends: follows, followers: follows };
        let store = running.open().await?;
        let found = store.sums(&names(&social)?).await?;
        store.network().close().await;
        Ok(Outcome { failed, first_failure, expected, found })
    }
}

/// Carries it out.
pub async fn run(mut arguments: Survival) -> Result<()> {
    let (out, _locked) = directory(&arguments.out)?;
    arguments.out = out;
    let mut is_wrong = false;
    for system in &arguments.systems {
        let label = system.label();
        let outcome = arguments.kill_one_of(*system).await.with_context(|| label.clone())?;
        let wrong = outcome.wrong();
        if wrong.is_empty() {
            let Sums { posts, friends, .. } = outcome.found;
            println!(
                "{label}: no call failed; {posts} posts and {friends} follows are there, as acknowledged"
            );
        }
        wrong.iter().for_each(|what| println!("{label}: {what}"));
        is_wrong |= !wrong.is_empty() && system.is_perdura();
    }
    if is_wrong {
        bail!("Perdura did not keep what it promises");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_or_doubled_or_failed_is_told() {
        let sums = Sums { posts: 5, friends: 7, followers: 7 };
        let outcome = |failed: u64, found| Outcome {
            failed,
            first_failure: (failed > 0).then(|| "late".to_owned()),
            expected: sums,
            found,
        };
        assert!(outcome(0, sums).wrong().is_empty());
        assert_eq!(outcome(2, sums).wrong().len(), 1);
        assert_eq!(outcome(0, Sums { posts: 4, ..sums }).wrong().len(), 1);
        assert_eq!(outcome(0, Sums { friends: 8, followers: 6, ..sums }).wrong().len(), 2);
    }
}
