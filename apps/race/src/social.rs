//! The social network that is loaded, and what is drawn from it: the same for all systems, from one seed.
//!
//! Each user follows `k + 1` others, with `k` from 1 to 20 by Zipf's law with skew 1, as in the paper (Augustus, EuroSys 2013, section 4.4: half of the users follow
//! up to four others, 95% up to 17). Whom they follow is drawn evenly.

use perdura_buzzer::network::{FRIENDS, InputError, Name, NewPost, PostKey, Text};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers of others that one may follow, less one.
pub const ZIPF_SIZE: u32 = 20;

/// Users are given up for another after so many draws: then nearly all follow as many as they may.
const DRAWS: usize = 256;

/// Who follows whom.
pub struct Social {
    /// Of each user whom he follows: as loaded, and what was drawn since.
    friends: Vec<Mutex<Vec<u32>>>,
    /// Of each user whom he follows, as loaded.
    pub loaded: Vec<Vec<u32>>,
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a user.
///
/// # Errors
/// When there are too many users for names.
pub fn name(user: u32) -> Result<Name, InputError> {
    Name::new(&format!("u{user:07}"))
}

/// A text of about this many characters, which no other post has.
///
/// # Errors
/// When it is too long.
pub fn text(characters: usize, number: u64) -> Result<Text, InputError> {
    let begin = format!("post {number}");
    let rest = characters.saturating_sub(begin.len());
    let filling = " words of a post".chars().cycle().take(rest.saturating_sub(1));
    Text::new(&format!("{begin}{}.", filling.collect::<String>()))
}

/// A post of now.
///
/// # Errors
/// As [`text`].
pub fn new_post(rng: &mut SmallRng, characters: usize) -> Result<NewPost, InputError> {
    let tie = rng.random();
    let text = text(characters, u64::from(tie))?;
    Ok(NewPost { key: PostKey::new(now_ms(), tie), text, answers: None })
}

/// How many others a user follows: one more than a number from 1 to [`ZIPF_SIZE`], which has a chance of one by itself.
fn draw_count(rng: &mut SmallRng) -> u32 {
    let weight = |rank: u32| 1.0 / f64::from(rank);
    let all: f64 = (1..=ZIPF_SIZE).map(weight).sum();
    let mut left = rng.random::<f64>() * all;
    for rank in 1..ZIPF_SIZE {
        left -= weight(rank);
        if left < 0.0 {
            return rank + 1;
        }
    }
    ZIPF_SIZE + 1
}

impl Social {
    /// So many users, who follow nobody.
    #[must_use]
    pub fn strangers(users: u32) -> Social {
        Social::of(vec![Vec::new(); users as usize])
    }

    /// So many users, more than [`ZIPF_SIZE`] + 1, who follow others.
    #[must_use]
    pub fn by_zipf(users: u32, seed: u64) -> Social {
        assert!(users > ZIPF_SIZE + 1, "{users} users are too few");
        let mut rng = SmallRng::seed_from_u64(seed);
        let friends_of = |user: u32| {
            let count = draw_count(&mut rng) as usize;
            let mut drawn = HashSet::new();
            let mut friends = Vec::with_capacity(count);
            while friends.len() < count {
                let friend = rng.random_range(0..users);
                if friend != user && drawn.insert(friend) {
                    friends.push(friend);
                }
            }
            friends
        };
        Social::of((0..users).map(friends_of).collect())
    }

    fn of(loaded: Vec<Vec<u32>>) -> Social {
        let friends = loaded.iter().map(|friends| Mutex::new(friends.clone())).collect();
        Social { friends, loaded }
    }

    /// How many users there are.
    #[must_use]
    pub fn users(&self) -> u32 {
        u32::try_from(self.loaded.len()).unwrap_or(u32::MAX)
    }

    /// Who follows each user, as loaded.
    #[must_use]
    pub fn followers(&self) -> Vec<Vec<u32>> {
        let mut followers = vec![Vec::new(); self.loaded.len()];
        for (who, friends) in (0..).zip(&self.loaded) {
            friends.iter().for_each(|whom| followers[*whom as usize].push(who));
        }
        followers
    }

    /// Somebody whom one of these users (an even draw) does not follow yet, and that one; it is drawn once. None if nearly all follow as many as they may.
    pub fn draw_pair(&self, rng: &mut SmallRng, among: &[u32]) -> Option<(u32, u32)> {
        let most = (FRIENDS - 1).min(self.loaded.len() - 1);
        for _ in 0..DRAWS {
            let who = among[rng.random_range(0..among.len())];
            let whom = rng.random_range(0..self.users());
            let mut friends =
                self.friends[who as usize].lock().unwrap_or_else(PoisonError::into_inner);
            if who != whom && friends.len() < most && !friends.contains(&whom) {
                friends.push(whom);
                return Some((who, whom));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_are_as_in_the_paper() {
        let social = Social::by_zipf(20_000, 7);
        let up_to = |most: usize| {
            let some = social.loaded.iter().filter(|friends| friends.len() <= most).count();
            some as f64 / 20_000.0
        };
        assert!((0.48..0.54).contains(&up_to(4)), "{}", up_to(4));
        assert!((0.92..0.96).contains(&up_to(17)), "{}", up_to(17));
        assert!(up_to(21) == 1.0 && up_to(1) == 0.0);
        let sum = |lists: &[Vec<u32>]| lists.iter().map(Vec::len).sum::<usize>();
        assert_eq!(sum(&social.followers()), sum(&social.loaded));
    }

    #[test]
    fn one_seed_gives_one_network() {
        assert_eq!(Social::by_zipf(100, 3).loaded, Social::by_zipf(100, 3).loaded);
        assert_ne!(Social::by_zipf(100, 3).loaded, Social::by_zipf(100, 4).loaded);
    }

    #[test]
    fn pairs_are_drawn_once_until_there_are_none() {
        let social = Social::by_zipf(30, 1);
        let mut rng = SmallRng::seed_from_u64(1);
        let mut drawn: HashSet<(u32, u32)> = HashSet::new();
        for (who, friends) in (0..).zip(&social.loaded) {
            drawn.extend(friends.iter().map(|whom| (who, *whom)));
        }
        let all: Vec<u32> = (0..30).collect();
        while let Some((who, whom)) = social.draw_pair(&mut rng, &all) {
            assert!(who != whom && drawn.insert((who, whom)));
        }
        assert!(drawn.len() > 30 * 20);
    }

    #[test]
    fn texts_have_their_length() {
        assert_eq!(text(100, 5).unwrap().as_str().chars().count(), 100);
        assert_ne!(text(20, 5).unwrap(), text(20, 6).unwrap());
        assert!(text(281, 5).is_err());
    }
}
