//! Whether anybody sees an answer without the post that it answers, with authors and readers at work at the same time.
//!
//! Authors answer each other's newest posts, readers follow all of them and look at their timelines. What a post on a page answers has to be told with it, and to
//! be in the same timeline: on that page, or on those behind it. Others who follow the authors make it longer to put a post into all timelines, where that is
//! how timelines are made.

use super::loading::NO_PASSWORD;
use super::social::{name, now_ms, text};
use super::systems::{Programs, Running, SystemKind};
use super::{directory, tell};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use perdura_buzzer::network::{Name, Network, NewPost, PAGE_MOST, Page, PostId, PostKey, Shown};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Posts of a page, in turn: few, so that what is answered is often behind it, and as many as there can be, so that it is seldom.
const ON_A_PAGE: [u32; 2] = [30, PAGE_MOST];

/// Pages behind the first that are looked through for what was answered.
const PAGES: usize = 100;

/// Of so many looks one may end before it came to what was answered.
const CUT_SHORT: u64 = 10;

/// Violations that are told; more are counted.
const TOLD: usize = 3;

/// Of so many posts one answers nothing.
const ANSWERS_NOTHING: u32 = 5;

/// It ends in any case after so many times the time that was asked for: by then something was seen, or nothing ever is.
const TIMEOUT: u32 = 20;

/// Look for answers that are seen without what they answer
///
/// Exit code 1 if there are any on Perdura, or with --torn none. What is found of Retwis is told.
#[derive(Args)]
pub struct Causality {
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
    /// Users who post
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=200))]
    authors: u32,
    /// Users who read
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    readers: u32,
    /// Users who follow the authors and do nothing
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    followers: u32,
    /// Seconds
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Read the authors of a timeline one after the other, each in a transaction of its own, as it should not be: to see that it is found
    #[arg(long)]
    torn: bool,
    /// What all chance is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where data is while it runs
    #[arg(long, value_name = "DIR", default_value = "target/bench-buzzer")]
    out: PathBuf,
}

/// What a run saw.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    posts: AtomicU64,
    pages: AtomicU64,
    answers: AtomicU64,
    /// Looks that ended before they came to what was answered.
    cut_short: AtomicU64,
    violations: AtomicU64,
}

impl Seen {
    fn violation(&self, what: &str) {
        if self.violations.fetch_add(1, Ordering::Relaxed) < TOLD as u64 {
            tell(format_args!("  {what}"));
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// What one page of a timeline says by itself.
#[derive(Default, PartialEq, Eq, Debug)]
struct Look {
    /// Posts that answer something.
    answers: u64,
    /// Answered posts that have to be behind the page.
    behind: BTreeSet<PostId>,
    /// Answers without what they answer.
    violations: Vec<String>,
}

fn look(page: &Page<Shown, PostId>) -> Look {
    let shown: BTreeSet<&PostId> = page.items.iter().map(|item| &item.post.id).collect();
    let mut found = Look::default();
    for item in &page.items {
        let Some(answered) = &item.post.answers else { continue };
        found.answers += 1;
        if item.answered.is_none() {
            found
                .violations
                .push(format!("{} answers {answered}, which is not told", item.post.id));
        } else if !shown.contains(answered) {
            if page.next.is_some() {
                found.behind.insert(answered.clone());
            } else {
                found.violations.push(format!("{} is seen without {answered}", item.post.id));
            }
        }
    }
    found
}

/// Where timelines come from.
#[derive(Clone, Copy)]
enum Timelines<'a> {
    OfTheNetwork,
    /// Of what these posted, read one after the other.
    Torn(&'a [Name]),
}

impl Timelines<'_> {
    async fn page(
        self,
        network: &dyn Network,
        reader: &Name,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>> {
        let Timelines::Torn(authors) = self else {
            return Ok(network.timeline(reader, after, limit).await?);
        };
        let mut items = Vec::new();
        for author in authors {
            let after = after.map(|id| id.key);
            items.extend(network.posts(author, after, limit).await?.items);
        }
        items.sort_unstable_by(|one, other| one.post.id.cmp(&other.post.id));
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| more).map(|item| item.post.id.clone());
        Ok(Page { items, next })
    }
}

async fn read(
    network: &dyn Network,
    reader: &Name,
    timelines: Timelines<'_>,
    seen: &Seen,
) -> Result<()> {
    for limit in ON_A_PAGE.into_iter().cycle() {
        if seen.is_over() {
            break;
        }
        let mut page = timelines.page(network, reader, None, limit).await?;
        let mut found = look(&page);
        let mut end = page.next.clone();
        for _ in 0..PAGES {
            // Up to here nothing is missing.
            let Some(next) = end.clone() else { break };
            if found.behind.iter().all(|id| *id <= next) {
                break;
            }
            page = timelines.page(network, reader, Some(&next), limit).await?;
            for item in &page.items {
                found.behind.remove(&item.post.id);
            }
            end.clone_from(&page.next);
        }
        found.violations.iter().for_each(|what| seen.violation(what));
        let (missing, not_come_to) = not_there(&found.behind, end.as_ref());
        for id in missing {
            seen.violation(&format!("{reader} sees an answer to {id}, and not that one"));
        }
        seen.cut_short.fetch_add(u64::from(not_come_to > 0), Ordering::Relaxed);
        seen.pages.fetch_add(1, Ordering::Relaxed);
        seen.answers.fetch_add(found.answers, Ordering::Relaxed);
    }
    Ok(())
}

/// Of what has to be behind a page, and was on none up to the end of the last: what is missing, and how many belong further behind.
fn not_there<'a>(
    behind: &'a BTreeSet<PostId>,
    end: Option<&PostId>,
) -> (impl Iterator<Item = &'a PostId>, usize) {
    let missing = move |id: &&PostId| end.is_none_or(|end| *id <= end);
    let count = behind.iter().filter(missing).count();
    (behind.iter().filter(missing), behind.len() - count)
}

async fn post(
    network: &dyn Network,
    authors: &[Name],
    author: usize,
    seen: &Seen,
    mut rng: SmallRng,
) -> Result<()> {
    while !seen.is_over() {
        let other = (author + rng.random_range(1..authors.len())) % authors.len();
        let mut answers = None;
        if rng.random_range(0..ANSWERS_NOTHING) > 0 {
            let newest = network.posts(&authors[other], None, 1).await?;
            answers = newest.items.into_iter().next().map(|item| item.post.id);
        }
        let after_ms = answers.as_ref().map_or(0, |id: &PostId| id.key.time_ms() + 1);
        let key = PostKey::new(now_ms().max(after_ms), rng.random());
        let text = text(60, rng.random())?;
        network.post(&authors[author], &NewPost { key, text, answers }).await?;
        seen.posts.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Ends the work after its time, once there was enough of this.
async fn end(seen: &Seen, enough: &AtomicU64, seconds: u32) -> Result<()> {
    let (since, time) = (Instant::now(), Duration::from_secs(u64::from(seconds)));
    while since.elapsed() < time || enough.load(Ordering::Relaxed) == 0 {
        if seen.is_over() || since.elapsed() > time * TIMEOUT {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    seen.over.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whoever fails ends the work of all.
async fn or_over(seen: &Seen, work: impl Future<Output = Result<()>>) -> Result<()> {
    let done = work.await;
    if done.is_err() {
        seen.over.store(true, Ordering::Relaxed);
    }
    done
}

/// Who follows whom. Of every other author readers are the first who follow, and of the rest the last: where all followers are told one after the other,
/// readers are told early of one author, and late of another whom he answers.
fn pairs(authors: &[Name], readers: &[Name], followers: &[Name]) -> Vec<(Name, Name)> {
    let mut pairs = Vec::new();
    for (index, whom) in authors.iter().enumerate() {
        let mut who: Vec<&Name> = readers.iter().chain(authors).chain(followers).collect();
        if index % 2 == 1 {
            who.reverse();
        }
        let others = who.into_iter().filter(|who| *who != whom);
        pairs.extend(others.map(|who| (who.clone(), whom.clone())));
    }
    pairs
}

impl Causality {
    /// Violations on a system.
    async fn look_at(&self, system: SystemKind) -> Result<u64> {
        let running = Running::start(system, &self.programs, &self.out).await?;
        let users = self.authors + self.readers + self.followers;
        let names = (0..users).map(name).collect::<Result<Vec<Name>, _>>()?;
        let (authors, rest) = names.split_at(self.authors as usize);
        system.check_spread(authors)?;
        let (readers, followers) = rest.split_at(self.readers as usize);
        let pairs = pairs(authors, readers, followers);
        // Readers have connections of their own.
        let (posting, reading) = (running.open().await?, running.open().await?);
        posting.load_accounts(&names, NO_PASSWORD).await?;
        posting.load_follows(&pairs).await?;
        let (seen, networks) = (Arc::new(Seen::default()), (posting.network(), reading.network()));
        let rng = |index: usize| SmallRng::seed_from_u64(self.seed.wrapping_add(index as u64));
        let work = async {
            let posts = (0..authors.len())
                .map(|one| or_over(&seen, post(&*networks.0, authors, one, &seen, rng(one))));
            let (timelines, enough) = match self.torn {
                false => (Timelines::OfTheNetwork, &seen.answers),
                true => (Timelines::Torn(authors), &seen.violations),
            };
            let reads =
                readers.iter().map(|one| or_over(&seen, read(&*networks.1, one, timelines, &seen)));
            let end = end(&seen, enough, self.seconds);
            tokio::try_join!(try_join_all(posts), try_join_all(reads), end)
        };
        work.await.with_context(|| system.label())?;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (posts, pages, answers) = (of(&seen.posts), of(&seen.pages), of(&seen.answers));
        let violations = of(&seen.violations);
        let label = system.label();
        println!(
            "{label}: {violations} answers without what they answer; {posts} posts, {pages} timelines with {answers} answers"
        );
        let cut_short = of(&seen.cut_short);
        ensure!(
            violations > 0 || cut_short * CUT_SHORT <= pages,
            "{label}: {cut_short} of {pages} looks ended before what was answered: too little was checked; choose fewer --authors"
        );
        ensure!(answers > 0, "{label}: nobody saw an answer, so nothing was checked");
        networks.0.close().await;
        networks.1.close().await;
        Ok(violations)
    }
}

/// Carries it out.
pub async fn run(mut arguments: Causality) -> Result<()> {
    let (out, _locked) = directory(&arguments.out)?;
    arguments.out = out;
    let mut wrong = Vec::new();
    for system in &arguments.systems {
        let violations = arguments.look_at(*system).await?;
        if arguments.torn {
            ensure!(violations > 0, "{}: torn timelines were not found out", system.label());
        } else if violations > 0 && system.is_perdura() {
            wrong.push(format!("{}: {violations}", system.label()));
        }
    }
    if !wrong.is_empty() {
        bail!("answers were seen without what they answer: {}", wrong.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_buzzer::network::Post;

    fn id(author: &str, time_ms: u64) -> PostId {
        PostId { author: Name::new(author).unwrap(), key: PostKey::new(time_ms, 0) }
    }

    fn post(of: PostId, answers: Option<PostId>) -> Post {
        Post { id: of, text: "x".to_owned(), answers }
    }

    fn shown(of: PostId, answers: Option<PostId>) -> Shown {
        let answered = answers.clone().map(|answers| post(answers, None));
        Shown { post: post(of, answers), answered }
    }

    fn page(items: Vec<Shown>, has_next: bool) -> Page<Shown, PostId> {
        let next = items.last().filter(|_| has_next).map(|item| item.post.id.clone());
        Page { items, next }
    }

    #[test]
    fn an_answer_with_its_post_is_as_it_should_be() {
        let items = vec![shown(id("bob", 2), Some(id("amy", 1))), shown(id("amy", 1), None)];
        let found = look(&page(items, false));
        assert_eq!(found, Look { answers: 1, ..Look::default() });
    }

    #[test]
    fn an_answer_without_its_post_is_found() {
        let items = vec![shown(id("bob", 2), Some(id("amy", 1))), shown(id("cat", 1), None)];
        assert_eq!(look(&page(items.clone(), false)).violations.len(), 1);
        // It may be behind the page.
        let found = look(&page(items, true));
        assert!(found.violations.is_empty() && found.behind.contains(&id("amy", 1)));
        // What is not even told is nowhere.
        let mut alone = shown(id("bob", 2), Some(id("amy", 1)));
        alone.answered = None;
        assert_eq!(look(&page(vec![alone], true)).violations.len(), 1);
    }

    #[test]
    fn what_belongs_behind_the_end_is_not_missing() {
        let behind = BTreeSet::from([id("amy", 5), id("amy", 2)]);
        let missing = |end: Option<PostId>| {
            let (missing, further) = not_there(&behind, end.as_ref());
            (missing.cloned().collect::<Vec<_>>(), further)
        };
        assert_eq!(missing(Some(id("bob", 3))), (vec![id("amy", 5)], 1));
        assert_eq!(missing(Some(id("bob", 7))), (vec![], 2));
        assert_eq!(missing(None), (vec![id("amy", 5), id("amy", 2)], 0));
    }
}
