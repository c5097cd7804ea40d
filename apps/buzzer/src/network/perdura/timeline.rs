//! Timelines: made when they are looked at, of a range of each author in one transaction that only reads.
//!
//! A page may take several such transactions, each for what is older than what the one before gave. What they give together keeps the order of cause and effect: an
//! answer is older than none of what it answers, and each transaction sees all that those before it saw.

use super::super::error::Failure;
use super::super::keys::{self, KeyKind};
use super::super::merge::{Part, merge};
use super::super::name::Name;
use super::super::post::{Post, PostId, Shown};
use super::super::{FRIENDS, Page};
use super::Perdura;
use super::edges::names_in;
use super::posts::posts_in;
use ::perdura_cluster::transactions::Range;

/// Friends that are read: a few more than one can follow, since servers that add some at once may go beyond that.
const FRIENDS_READ: usize = FRIENDS + 32;

/// Transactions for a page; one that is not full by then is shorter.
const ROUNDS: usize = 4;

/// Posts that one transaction reads at most, but two of each author: a reply holds 4 MiB, and a post has up to 1.5 KiB.
const POSTS_READ: usize = 2_000;

/// Posts that are read for each that is shown, at first: not all authors post as much as others.
const SPARE: usize = 3;

/// Posts of an author that are read in any case.
const LEAST: usize = 2;

/// What is known of an author.
struct Author {
    name: Name,
    /// Posts that are read of him next.
    limit: usize,
}

/// The range of what an author posted behind this place in a timeline.
fn behind(author: &Name, place: Option<&PostId>) -> Range {
    let all = keys::all(author, KeyKind::Posts);
    let Some(place) = place else { return all };
    let same = keys::post(&PostId { author: author.clone(), key: place.key });
    // Of posts with the same key those of greater names are behind it.
    if *author > place.author { all.from(same) } else { all.after(&same) }
}

impl Perdura {
    pub(super) async fn timeline_of(
        &self,
        of: &Name,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        let friends =
            self.range(keys::all(of, KeyKind::Friends).limit(FRIENDS_READ as u32)).await?;
        let mut names = names_in(&friends)?;
        names.push(of.clone());
        let limit = limit as usize;
        let of_each = (limit * SPARE).div_ceil(names.len()).clamp(LEAST, limit.max(LEAST));
        let mut authors: Vec<Author> =
            names.into_iter().map(|name| Author { name, limit: of_each }).collect();
        let mut place = after.cloned();
        let mut posts: Vec<Post> = Vec::new();
        let mut more = true;
        for _ in 0..ROUNDS {
            let wanted = limit - posts.len();
            let parts = self.parts(&authors, place.as_ref()).await?;
            read_more_of_those_who_have(&mut authors, &parts, wanted);
            let merged = merge(parts, wanted);
            more = merged.more;
            posts.extend(merged.posts);
            place = posts.last().map(|post| post.id.clone()).or(place);
            if !more || posts.len() >= limit {
                break;
            }
        }
        let next = place.filter(|_| more);
        Ok(Page { items: self.with_answered(posts).await?, next })
    }

    /// What authors posted behind a place, in one transaction.
    async fn parts(
        &self,
        authors: &[Author],
        place: Option<&PostId>,
    ) -> Result<Vec<Part>, Failure> {
        let mut look = self.begin();
        let ask = |author: &Author| {
            look.read_range(behind(&author.name, place).limit(author.limit as u32))
        };
        let asked: Vec<_> = authors.iter().map(ask).collect();
        let found = self.read(look).await?;
        let part = |(author, asked): (&Author, _)| {
            let entries = found.get(asked);
            Ok(Part { posts: posts_in(&author.name, &entries)?, more: entries.more })
        };
        authors.iter().zip(asked).map(part).collect()
    }
}

/// Next time more is read of those who have more.
fn read_more_of_those_who_have(authors: &mut [Author], parts: &[Part], wanted: usize) {
    let have_more = parts.iter().filter(|part| part.more).count();
    let of_each = (POSTS_READ / have_more.max(1)).min(wanted).max(LEAST);
    for (author, part) in authors.iter_mut().zip(parts) {
        author.limit = if part.more { of_each } else { LEAST };
    }
}
