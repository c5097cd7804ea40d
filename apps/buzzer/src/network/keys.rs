//! Where in the store what is. All keys of a user begin alike, so that a partition by ranges has all of them (Augustus, EuroSys 2013,
//! section 4.4).
//!
//! ```text
//! HASH/NAME/a                 the account: hash of its password, when it was made, whether it is being deleted
//! HASH/NAME/x                 there while the account is neither absent nor being deleted
//! HASH/NAME/b/FOLLOWER        who follows it
//! HASH/NAME/f/FRIEND          whom it follows
//! HASH/NAME/l                 passwords that were wrong, by where they came from, and where right ones came from
//! HASH/NAME/p/INVERTED KEY    its posts, the newest first
//! HASH/NAME/r/INVERTED KEY/KEY/AUTHOR
//!                             what answers the first one of these posts, the oldest first
//! HASH/NAME/s/SESSION         its sessions, with their ends
//! HASH/!l                     passwords that were wrong, of names that have no account
//! HASH/!s/SESSION             a session, HASH being that of its id
//! BOUND/!n/INVERTED KEY/AUTHOR
//!                             a post that is among the newest of all, BOUND being where the partition of its author begins
//! !n/INVERTED KEY/AUTHOR      the same in the first partition
//! !d/NAME                     an account that is being deleted
//! ```
//!
//! HASH are four hexadecimal digits of a hash, of the name but where another is named: accounts are spread evenly over partitions with even bounds.
//! `!` is in no name, and before all digits: what is being deleted is in the first partition.

use super::name::Name;
use super::post::{PostId, PostKey};
use super::session::SessionKey;
use bytes::Bytes;
use perdura_cluster::transactions::Range;

/// Digits of a hash before all else: bounds of partitions that are no longer leave users' data together.
pub(super) const HASH_DIGITS: usize = 4;

/// What stands for yes, where a key is there or not.
pub const THERE: &[u8] = b"1";

/// Accounts that are being deleted.
pub(super) const DELETIONS: &str = "!d/";

/// Posts that are among the newest.
const NEWEST: &str = "!n/";

/// The kinds of keys that a user has any number of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Who follows a user.
    Followers,
    /// Whom a user follows.
    Friends,
    /// What a user posted.
    Posts,
    /// What answers that.
    Answers,
    /// Where a user is logged in.
    Sessions,
}

impl KeyKind {
    /// What stands for it in a key.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            KeyKind::Followers => 'b',
            KeyKind::Friends => 'f',
            KeyKind::Posts => 'p',
            KeyKind::Answers => 'r',
            KeyKind::Sessions => 's',
        }
    }
}

fn hash_of(bytes: &[u8]) -> String {
    let hash = blake3::hash(bytes);
    hash.to_hex()[..HASH_DIGITS].to_owned()
}

fn of(name: &Name, rest: &str) -> Bytes {
    format!("{}/{name}/{rest}", hash_of(name.as_str().as_bytes())).into()
}

/// The account of a name.
#[must_use]
pub fn account(name: &Name) -> Bytes {
    of(name, "a")
}

/// There while the account can be used.
#[must_use]
pub fn active(name: &Name) -> Bytes {
    of(name, "x")
}

pub(super) fn logins(name: &Name) -> Bytes {
    of(name, "l")
}

/// One for all names without an account that have this hash: there are no more of them than hashes.
pub(super) fn logins_of_nobody(name: &Name) -> Bytes {
    format!("{}/!l", hash_of(name.as_str().as_bytes())).into()
}

/// That somebody follows a user, with the user's keys.
#[must_use]
pub fn follower(of_whom: &Name, follower: &Name) -> Bytes {
    of(of_whom, &format!("b/{follower}"))
}

/// That a user follows somebody, with the user's keys.
#[must_use]
pub fn friend(of_whom: &Name, friend: &Name) -> Bytes {
    of(of_whom, &format!("f/{friend}"))
}

/// A post.
#[must_use]
pub fn post(id: &PostId) -> Bytes {
    of(&id.author, &format!("p/{}", id.key.inverted()))
}

/// That a post answers another, with the keys of that one's author.
pub(super) fn answer(to: &PostId, answer: &PostId) -> Bytes {
    of(&to.author, &format!("{}{}/{}", answers_begin(to), answer.key, answer.author))
}

fn answers_begin(to: &PostId) -> String {
    format!("{}/{}/", KeyKind::Answers.letter(), to.key.inverted())
}

/// What answers a post.
pub(super) fn answers(to: &PostId) -> Range {
    Range::prefix(of(&to.author, &answers_begin(to)))
}

fn newest_begin(bound: &[u8]) -> Vec<u8> {
    let slash = if bound.is_empty() { "" } else { "/" };
    [bound, slash.as_bytes(), NEWEST.as_bytes()].concat()
}

/// The list of the newest posts of the partition that begins there; the first one begins nowhere.
pub(super) fn newest(bound: &[u8]) -> Range {
    Range::prefix(newest_begin(bound))
}

/// That a post of the partition that begins there is among the newest.
pub(super) fn newest_post(bound: &[u8], id: &PostId) -> Bytes {
    let rest = format!("{}/{}", id.key.inverted(), id.author);
    [newest_begin(bound), rest.into_bytes()].concat().into()
}

pub(super) fn session(key: &SessionKey) -> Bytes {
    format!("{}/!s/{key}", hash_of(&key.0)).into()
}

pub(super) fn session_of(owner: &Name, key: &SessionKey) -> Bytes {
    of(owner, &format!("s/{key}"))
}

pub(super) fn deletion(name: &Name) -> Bytes {
    format!("{DELETIONS}{name}").into()
}

/// All keys of a kind of a user.
pub(super) fn all(name: &Name, kind: KeyKind) -> Range {
    Range::prefix(of(name, &format!("{}/", kind.letter())))
}

/// What stands behind the last slash of a key.
pub(super) fn last_part(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.rsplit('/').next()
}

pub(super) fn name_in(key: &[u8]) -> Option<Name> {
    Name::new(last_part(key)?).ok()
}

pub(super) fn post_key_in(key: &[u8]) -> Option<PostKey> {
    PostKey::of_inverted(last_part(key)?)
}

/// The author and the digits at the end of a key.
fn post_at_end(key: &[u8]) -> Option<(Name, &str)> {
    let mut parts = key.rsplit(|byte| *byte == b'/').map(std::str::from_utf8);
    let (author, digits) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some((Name::new(author).ok()?, digits))
}

/// Which post a key says to answer another.
pub(super) fn answer_in(key: &[u8]) -> Option<PostId> {
    let (author, digits) = post_at_end(key)?;
    Some(PostId { author, key: digits.parse().ok()? })
}

/// Which post a key says to be among the newest.
pub(super) fn newest_in(key: &[u8]) -> Option<PostId> {
    let (author, digits) = post_at_end(key)?;
    Some(PostId { author, key: PostKey::of_inverted(digits)? })
}

/// The bounds for this many partitions, from 1 to 64, as `perdura init --partition-by range:...` takes them: even, since hashes are.
#[must_use]
pub fn bounds(partitions: u16) -> Vec<String> {
    let partitions = u32::from(partitions.max(1));
    (1..partitions)
        .map(|index| format!("{:0HASH_DIGITS$x}", index * 0x1_0000 / partitions))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn all_keys_of_a_user_begin_alike_and_no_other_ones_do() {
        let alice = name("alice");
        let id = PostId { author: alice.clone(), key: PostKey::new(5, 6) };
        let key = SessionKey([7; 32]);
        let keys = [
            account(&alice),
            active(&alice),
            logins(&alice),
            follower(&alice, &name("bob")),
            friend(&alice, &name("bob")),
            post(&id),
            answer(&id, &PostId { author: name("bob"), key: PostKey::new(7, 8) }),
            session_of(&alice, &key),
        ];
        let prefix = of(&alice, "");
        assert!(keys.iter().all(|key| key.starts_with(&prefix)));
        for other in
            [account(&name("alice2")), logins_of_nobody(&alice), deletion(&alice), session(&key)]
        {
            assert!(!other.starts_with(&prefix));
        }
    }

    #[test]
    fn what_is_in_a_key_is_found_in_it() {
        let (alice, bob) = (name("alice"), name("bob"));
        assert_eq!(name_in(&follower(&alice, &bob)), Some(bob));
        let id = PostId { author: alice, key: PostKey::new(1_700_000_000_000, 77) };
        assert_eq!(post_key_in(&post(&id)), Some(id.key));
        assert_eq!(post_key_in(b"nonsense"), None);
    }

    #[test]
    fn answers_to_a_post_stand_together_the_oldest_first() {
        let id = |author, time_ms| PostId { author: name(author), key: PostKey::new(time_ms, 3) };
        let to = id("alice", 5);
        let answers = [id("zoe", 6), id("amy", 7), id("bob", 7), id("amy", 1 << 40)]
            .map(|one| (answer(&to, &one), one));
        assert!(answers.is_sorted_by(|(one, _), (other, _)| one < other));
        for (key, one) in &answers {
            assert_eq!(answer_in(key), Some(one.clone()));
            assert!(key.starts_with(&of(&to.author, &answers_begin(&to))));
        }
        assert!(
            !answer(&id("alice", 6), &id("zoe", 7))
                .starts_with(&of(&to.author, &answers_begin(&to)))
        );
        assert_eq!(answer_in(b"nonsense"), None);
    }

    #[test]
    fn the_newest_posts_of_a_partition_stand_in_it_in_the_order_of_timelines() {
        let id = |author, time_ms| PostId { author: name(author), key: PostKey::new(time_ms, 3) };
        let ids = [id("zoe", 9), id("amy", 7), id("bob", 7), id("amy", 1)];
        assert!(ids.is_sorted());
        for (bound, next) in [("", "4000"), ("4000", "8000"), ("8", "80"), ("8000", "8001")] {
            let keys = ids.each_ref().map(|id| newest_post(bound.as_bytes(), id));
            assert!(keys.is_sorted());
            for (key, id) in keys.iter().zip(&ids) {
                assert!(bound.as_bytes() <= &key[..] && &key[..] < next.as_bytes());
                assert_eq!(newest_in(key).as_ref(), Some(id));
            }
        }
        assert_eq!(newest_in(b"nonsense"), None);
    }

    #[test]
    fn bounds_are_even() {
        assert_eq!(bounds(1), Vec::<String>::new());
        assert_eq!(bounds(2), ["8000"]);
        assert_eq!(bounds(4), ["4000", "8000", "c000"]);
        assert_eq!(bounds(3), ["5555", "aaaa"]);
        assert!(DELETIONS < "0");
    }

    #[test]
    fn names_are_spread_over_partitions() {
        let of_first = (0..1000)
            .filter(|index| account(&name(&format!("user{index}"))) < Bytes::from_static(b"8000"));
        let count = of_first.count();
        assert!((400..600).contains(&count), "{count}");
    }
}
