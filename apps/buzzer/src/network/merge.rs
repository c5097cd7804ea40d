//! Posts of several authors in one order (Augustus, EuroSys 2013, section 4.4: a timeline is made when it is looked at).

use super::post::{Post, PostId};

/// The newest posts of one author, from some place in the timeline on.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The newest first.
    pub posts: Vec<Post>,
    /// Whether there are older ones.
    pub more: bool,
}

/// A piece of a timeline.
#[derive(Debug)]
pub(super) struct Merged {
    /// All that there is down to some place, and nothing beyond.
    pub posts: Vec<Post>,
    /// Whether there is anything beyond.
    pub more: bool,
}

/// What is known completely of a timeline of these, `limit` posts at most. What is older than the last known post of somebody who has more is left out: one of
/// his may belong before it.
pub(super) fn merge(parts: Vec<Part>, limit: usize) -> Merged {
    let ends = parts.iter().filter(|part| part.more);
    let horizon: Option<PostId> =
        ends.filter_map(|part| part.posts.last()).map(|post| post.id.clone()).min();
    let mut more = horizon.is_some();
    let mut posts: Vec<Post> = parts.into_iter().flat_map(|part| part.posts).collect();
    posts.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    if let Some(horizon) = horizon {
        let known = posts.partition_point(|post| post.id <= horizon);
        posts.truncate(known);
    }
    if posts.len() > limit {
        posts.truncate(limit);
        more = true;
    }
    Merged { posts, more }
}

#[cfg(test)]
mod tests {
    use super::super::name::Name;
    use super::super::post::PostKey;
    use super::*;

    fn post(author: &str, time_ms: u64) -> Post {
        let author = Name::new(author).unwrap();
        let id = PostId { author, key: PostKey::new(time_ms, 0) };
        Post { id, text: String::new(), answers: None }
    }

    fn part(author: &str, times: &[u64], more: bool) -> Part {
        Part { posts: times.iter().map(|time_ms| post(author, *time_ms)).collect(), more }
    }

    fn times(merged: &Merged) -> Vec<u64> {
        merged.posts.iter().map(|post| post.id.key.time_ms()).collect()
    }

    #[test]
    fn all_of_it_is_in_order() {
        let merged = merge(vec![part("amy", &[9, 4], false), part("bob", &[7, 5, 1], false)], 10);
        assert_eq!(times(&merged), [9, 7, 5, 4, 1]);
        assert!(!merged.more);
    }

    #[test]
    fn it_ends_where_somebody_may_have_posted() {
        // Amy may have posted at 6, so Bob's at 5 and 1 wait for the next page.
        let merged = merge(vec![part("amy", &[9, 7], true), part("bob", &[8, 5, 1], false)], 10);
        assert_eq!(times(&merged), [9, 8, 7]);
        assert!(merged.more);
    }

    #[test]
    fn pages_are_bounded() {
        let merged = merge(vec![part("amy", &[9, 7], false), part("bob", &[8, 5], false)], 3);
        assert_eq!(times(&merged), [9, 8, 7]);
        assert!(merged.more);
        let merged = merge(vec![part("amy", &[9, 7, 5], false)], 3);
        assert!(!merged.more);
    }

    #[test]
    fn nothing_of_nobody() {
        let merged = merge(vec![part("amy", &[], false)], 3);
        assert!(merged.posts.is_empty() && !merged.more);
        assert!(merge(Vec::new(), 3).posts.is_empty());
    }

    /// Any timeline, read page by page with any limits, is what it would be read at once.
    #[test]
    fn pages_put_together_are_the_whole() {
        let authors = ["amy", "bob", "cat", "dan"];
        for seed in 0..200_u64 {
            let draw = |index: u64| (seed * 31 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let all: Vec<Vec<u64>> = (0..4)
                .map(|author| {
                    let count = draw(author) % 12;
                    let mut times: Vec<u64> =
                        (0..count).map(|index| draw(author * 100 + index + 7) % 50).collect();
                    times.sort_unstable_by(|one, other| other.cmp(one));
                    times.dedup();
                    times
                })
                .collect();
            let whole = authors.iter().zip(&all).map(|(author, times)| part(author, times, false));
            let whole = merge(whole.collect(), usize::MAX).posts;
            let (of_each, limit) = (1 + draw(991) as usize % 4, 1 + draw(992) as usize % 5);
            let mut paged: Vec<Post> = Vec::new();
            loop {
                let after = paged.last().map(|post| post.id.clone());
                let parts = authors.iter().zip(&all).map(|(author, times)| {
                    let posts = times.iter().map(|time_ms| post(author, *time_ms));
                    let left: Vec<Post> = posts
                        .filter(|post| after.as_ref().is_none_or(|after| post.id > *after))
                        .collect();
                    Part {
                        more: left.len() > of_each,
                        posts: left.into_iter().take(of_each).collect(),
                    }
                });
                let merged = merge(parts.collect(), limit);
                assert!(!merged.posts.is_empty() || !merged.more);
                paged.extend(merged.posts);
                if !merged.more {
                    break;
                }
            }
            assert_eq!(paged, whole, "seed {seed}");
        }
    }
}
