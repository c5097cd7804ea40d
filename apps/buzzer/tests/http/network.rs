//! The network itself on a real store, where it is about bounds that take long to reach over HTTP.

use super::world::{World, name_in};
use bytes::Bytes;
use futures_util::future::join_all;
use perdura_buzzer::network::{
    FRIENDS, FollowError, Name, Network, NewPost, Origin, Password, Perdura, PostId, PostKey,
    SESSIONS_OF_AN_ACCOUNT, Session, SessionError, SessionKey, Sessions, Settings, Text,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Where all of them are.
const HERE: Origin = Origin::Network(IpAddr::V4(Ipv4Addr::LOCALHOST));

/// So many follows of one user can be under way.
const FOLLOWS_AT_A_TIME: usize = 5;

fn open(world: &World) -> Perdura {
    let timeout = Duration::from_secs(60);
    Perdura::open(&Settings { cluster: world.cluster(), key: None, timeout }).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

fn new_post(key: PostKey, text: &str) -> NewPost {
    NewPost { key, text: Text::new(text).unwrap(), answers: None }
}

/// That of all of them.
fn password() -> Password {
    Password::new("correct horse").unwrap()
}

/// Accounts `user0`, `user1` and so on, all with one password.
async fn make_accounts(network: &Perdura, count: usize) -> Vec<Name> {
    let password = password();
    let hash = network.hash(&password).await.unwrap();
    let names: Vec<Name> = (0..count).map(|index| name(&format!("user{index}"))).collect();
    for some in names.chunks(32) {
        let made = join_all(some.iter().map(|one| network.import_account(one, &hash))).await;
        made.into_iter().for_each(|made| made.unwrap());
    }
    network.check_password(&names[0], &password, &HERE).await.unwrap();
    names
}

/// One answers what others post, and they what he does: so often that it takes several steps to delete it.
async fn answer_each_other(network: &Perdura, one: &Name, others: &[Name]) {
    let post = async |author: &Name, tie: u32, answers: Option<&PostId>| {
        let time_ms = answers.map_or_else(now_ms, |id| id.key.time_ms() + 1);
        let key = PostKey::new(time_ms, tie);
        let new = NewPost { answers: answers.cloned(), ..new_post(key, "x") };
        network.post(author, &new).await.unwrap();
        PostId { author: author.clone(), key }
    };
    let asked = post(one, 1, None).await;
    for (index, other) in (1..).zip(others) {
        let theirs = post(other, 2, None).await;
        for tie in 10 * index..10 * index + 3 {
            tokio::join!(post(one, tie, Some(&theirs)), post(other, tie, Some(&asked)));
        }
    }
    let page = network.answers(&asked, None, 100).await.unwrap().unwrap();
    assert!(page.items.len() == 100 && page.next.is_some());
}

/// Keys of the store that name somebody.
fn keys_of(world: &World, name: &Name) -> Vec<String> {
    let mut keys = world.keys();
    keys.retain(|key| key.split('/').any(|part| part == name.as_str()));
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_of_as_many_as_one_can_follow() {
    let world = World::start(&[]);
    let network = open(&world);
    let names = make_accounts(&network, FRIENDS + 2).await;
    let (reader, others) = names.split_first().unwrap();
    for some in others[..FRIENDS].chunks(FOLLOWS_AT_A_TIME) {
        let followed = join_all(some.iter().map(|one| network.follow(reader, one))).await;
        assert!(followed.into_iter().all(|followed| followed.unwrap()));
    }
    let last = &others[FRIENDS];
    assert_eq!(network.follow(reader, last).await, Err(FollowError::TooMany));
    assert_eq!(network.follow(reader, &others[0]).await, Ok(false));
    assert_eq!(network.follow(reader, reader).await, Err(FollowError::Oneself));
    assert_eq!(network.follow(reader, &name("nobody_here")).await, Err(FollowError::TooMany));

    // Two posts of some, forty of one, with the same times among them.
    let mut expected = Vec::new();
    for (index, author) in others[..64].iter().enumerate() {
        let count = if index == 0 { 40 } else { 2 };
        let keys = (0..count).map(|post| PostKey::new(1_000_000 + post * 7 + index as u64 % 5, 9));
        let keys: Vec<PostKey> = keys.collect();
        let posts: Vec<NewPost> = keys.iter().map(|key| new_post(*key, "x")).collect();
        let posted = posts.iter().map(|post| network.post(author, post));
        join_all(posted).await.into_iter().for_each(|posted| posted.unwrap());
        expected.extend(keys.into_iter().map(|key| PostId { author: author.clone(), key }));
    }
    expected.sort_unstable();
    let (mut found, mut after): (Vec<PostId>, Option<PostId>) = (Vec::new(), None);
    loop {
        let page = network.timeline(reader, after.as_ref(), 20).await.unwrap();
        assert!(page.items.len() <= 20 && (!page.items.is_empty() || page.next.is_none()));
        found.extend(page.items.into_iter().map(|shown| shown.post.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);

    assert_eq!(network.unfollow(reader, &others[0]).await, Ok(true));
    assert_eq!(network.unfollow(reader, &others[0]).await, Ok(false));
    assert_eq!(network.follow(reader, last).await, Ok(true));
    network.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_account_goes_in_steps_that_several_take_at_once() {
    let world = World::start(&[]);
    let (network, other) = (open(&world), open(&world));
    let names = make_accounts(&network, 101).await;
    let (gone, others) = names.split_first().unwrap();
    for some in others.chunks(FOLLOWS_AT_A_TIME) {
        let followed = some.iter().map(|one| network.follow(one, gone));
        join_all(followed).await.into_iter().for_each(|one| assert!(one.unwrap()));
        let followed = some.iter().map(|one| network.follow(gone, one));
        join_all(followed).await.into_iter().for_each(|one| assert!(one.unwrap()));
    }
    for round in 0..10_u32 {
        let post = |index| {
            let key = PostKey::new(now_ms(), round * 100 + index);
            let (network, gone) = (&network, gone);
            async move { network.post(gone, &new_post(key, "x")).await }
        };
        join_all((0..50).map(post)).await.into_iter().for_each(|posted| posted.unwrap());
    }
    answer_each_other(&network, gone, others).await;
    let proof = network.check_password(gone, &password(), &HERE).await.unwrap();
    assert_eq!(network.delete_account(gone, &proof).await, Ok(true));
    // Nothing is added from now on.
    let key = PostKey::new(now_ms(), 7);
    assert!(network.post(gone, &new_post(key, "late")).await.is_err());
    assert_eq!(other.follow(&others[0], gone).await, Ok(false));
    assert_eq!(network.profile(gone).await.unwrap(), None);
    loop {
        let left = tokio::join!(network.continue_deletions(), other.continue_deletions());
        if left.0.unwrap() == 0 && left.1.unwrap() == 0 {
            break;
        }
    }
    assert_eq!(keys_of(&world, gone), Vec::<String>::new());
    let answers = world.keys().iter().filter(|key| key.contains("/r/")).count();
    assert_eq!(answers, 0);
    let profile = network.profile(&others[0]).await.unwrap().unwrap();
    assert_eq!((profile.followers.counted, profile.friends.counted), (0, 0));
    // A step that comes late does not touch who has the name then.
    make_accounts(&network, 1).await;
    network.post(gone, &new_post(PostKey::new(now_ms(), 1), "new")).await.unwrap();
    assert_eq!(other.continue_deletions().await, Ok(0));
    assert_eq!(network.posts(gone, None, 10).await.unwrap().items.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_posts_are_cut_to_so_many() {
    /// Posts that a server of the application lists in a second, and those that stay listed.
    const LISTED: usize = 20;
    const KEPT: usize = 200;
    let world = World::start(&[]);
    let network = open(&world);
    let author = &make_accounts(&network, 1).await[0];
    let listed = || world.keys().iter().filter(|key| key.contains("!n/")).count();
    let post = async |through: &Perdura, tie: u32| {
        let key = PostKey::new(now_ms(), tie);
        through.post(author, &new_post(key, "x")).await.unwrap();
        PostId { author: author.clone(), key }
    };
    // Each other server lists as much as it may at once.
    for server in 1..=KEPT / LISTED + 1 {
        let other = open(&world);
        join_all((0..2 * LISTED as u32).map(|tie| post(&other, tie))).await;
        other.close().await;
        assert!(listed() >= KEPT.min(server * LISTED));
    }
    // This one's first has them cut.
    let last = post(&network, 1).await;
    while listed() != KEPT {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let page = network.newest(None, 100).await.unwrap();
    assert_eq!((&page.items[0].post.id, page.items.len()), (&last, 100));
    let page = network.newest(page.next.as_ref(), 100).await.unwrap();
    assert_eq!((page.items.len(), page.next), (100, None));
    network.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_has_so_many_sessions() {
    let world = World::start(&[]);
    let network = open(&world);
    let owner = make_accounts(&network, 1).await.remove(0);
    let key = |index: usize| SessionKey::of(&index.to_be_bytes());
    let session = |expires_ms| {
        let content = Bytes::from_static(b"content");
        Session { owner: owner.clone(), expires_ms, content }
    };
    let later_ms = now_ms() + 3_600_000;
    for index in 0..SESSIONS_OF_AN_ACCOUNT + 5 {
        let expires_ms = later_ms + index as u64;
        network.create_session(&key(index), &session(expires_ms), None).await.unwrap();
    }
    let sessions = || world.keys().iter().filter(|key| key.contains("/!s/")).count();
    assert_eq!(sessions(), SESSIONS_OF_AN_ACCOUNT);
    // Those that would end first are gone.
    assert_eq!(network.load_session(&key(4)).await.unwrap(), None);
    let kept = network.load_session(&key(5)).await.unwrap();
    assert_eq!(kept, Some(session(later_ms + 5)));
    // One that has ended is no session, and is gone with the next one.
    network.save_session(&key(5), &session(1)).await.unwrap();
    assert_eq!(network.load_session(&key(5)).await.unwrap(), None);
    network.create_session(&key(6), &session(later_ms), None).await.unwrap();
    assert_eq!(sessions(), SESSIONS_OF_AN_ACCOUNT - 1);
    network.delete_session(&key(6)).await.unwrap();
    assert_eq!(network.load_session(&key(6)).await.unwrap(), None);
    // A page that was asked for before, and says afterwards that it was seen, brings it not back.
    let late = network.save_session(&key(6), &session(later_ms)).await;
    assert_eq!(late, Err(SessionError::Over));
    assert_eq!(network.load_session(&key(6)).await.unwrap(), None);

    // Who logged in with the former password gets no session when it was changed, however late he asks.
    let before = network.check_password(&owner, &password(), &HERE).await.unwrap();
    network.create_session(&key(7), &session(later_ms), Some(&before)).await.unwrap();
    let new = Password::new("another horse").unwrap();
    let changed = network.change_password(&owner, &password(), &new, &HERE).await.unwrap();
    assert!(changed.all_ended && sessions() == 0);
    let late = network.create_session(&key(8), &session(later_ms), Some(&before)).await;
    assert_eq!(late, Err(SessionError::NoAccount));
    let now = Some(&changed.proof);
    network.create_session(&key(8), &session(later_ms), now).await.unwrap();
    // Sent again, it ends what came to be meanwhile.
    let again = network.change_password(&owner, &password(), &new, &HERE).await.unwrap();
    assert_eq!((again, sessions()), (changed.clone(), 0));

    // Nor is the account deleted by who saw it before.
    network.create_session(&key(9), &session(later_ms), now).await.unwrap();
    assert_eq!(network.delete_account(&owner, &before).await, Ok(false));
    assert_eq!(sessions(), 1);
    assert_eq!(network.delete_account(&owner, &changed.proof).await, Ok(true));
    assert_eq!(sessions(), 0);
    let late = network.create_session(&key(9), &session(later_ms), None).await;
    assert_eq!(late, Err(SessionError::NoAccount));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_for_a_partition_that_is_down_leave_room_for_others() {
    let world = World::start(&[]);
    let network = Arc::new(open(&world));
    let (amy, bob) = (name(&name_in(0, "amy")), name(&name_in(1, "bob")));
    let hash = network.hash(&password()).await.unwrap();
    network.import_account(&amy, &hash).await.unwrap();
    network.import_account(&bob, &hash).await.unwrap();

    world.signal_partition(0, "-STOP");
    let mut asked = JoinSet::new();
    let refused = loop {
        for index in 0..16 {
            let (network, amy) = (Arc::clone(&network), amy.clone());
            asked.spawn(async move {
                if index == 0 {
                    let login = network.check_password(&amy, &password(), &HERE).await;
                    return login.map(|_| false).map_err(|error| error.to_string());
                }
                let found = network.profile(&amy).await;
                found.map(|found| found.is_some()).map_err(|error| error.to_string())
            });
        }
        // The first that ends is one that does not wait any more.
        let some_time = Duration::from_millis(20);
        if let Ok(ended) = tokio::time::timeout(some_time, asked.join_next()).await {
            break ended.unwrap().unwrap().unwrap_err();
        }
    };
    assert!(refused.contains("many wait for that already"), "{refused}");
    assert!(asked.len() >= 256);
    // More logins wait than passwords may.
    assert!(network.profile(&bob).await.unwrap().is_some());
    network.check_password(&bob, &password(), &HERE).await.unwrap();
    world.signal_partition(0, "-CONT");
    wait_for_profile(&network, &amy).await;
    let mut served = 0;
    while let Some(ended) = asked.join_next().await {
        served += usize::from(ended.unwrap() == Ok(true));
    }
    assert!(served >= 200, "{served} profiles were given to those who waited");
}

async fn wait_for_profile(network: &Perdura, of: &Name) {
    while network.profile(of).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_follows_very_much_at_once_keeps_nobody_else_out() {
    const AT_ONCE: usize = 500;
    let world = World::start(&[]);
    let network = Arc::new(open(&world));
    let names = [name_in(0, "amy"), name_in(1, "bob"), name_in(1, "cat")].map(|one| name(&one));
    let [amy, bob, cat] = &names;
    let hash = network.hash(&password()).await.unwrap();
    for one in &names {
        network.import_account(one, &hash).await.unwrap();
    }
    // Whatever the first of them waits for.
    world.signal_partition(0, "-STOP");
    let mut asked = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (network, amy, bob) = (Arc::clone(&network), amy.clone(), bob.clone());
        asked.spawn(async move { network.follow(&amy, &bob).await });
    }
    for _ in FOLLOWS_AT_A_TIME..AT_ONCE {
        let refused = asked.join_next().await.unwrap().unwrap();
        assert_eq!(refused, Err(FollowError::AtOnce));
    }
    assert_eq!(network.follow(bob, cat).await, Ok(true));
    world.signal_partition(0, "-CONT");
    let mut followed = Vec::new();
    while let Some(ended) = asked.join_next().await {
        followed.push(ended.unwrap().unwrap());
    }
    // One did, and the others found that it was so.
    followed.sort_unstable();
    assert_eq!(followed, [false, false, false, false, true]);
    assert_eq!(network.follow(amy, cat).await, Ok(true));
    network.close().await;
}
