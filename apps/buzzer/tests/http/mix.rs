//! People who post, follow and read, while a server is killed and comes back: nobody sees an error, and all that was done is there.

use super::browser::Browser;
use super::world::{World, name_in, wait_for};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const PEOPLE: usize = 6;

/// What each of them does.
const TURNS: usize = 60;

/// What one of them did.
#[derive(Default)]
struct Did {
    posts: usize,
    follows: Vec<usize>,
}

/// Mostly reads, as people do; sometimes posts, or follows the next of the others.
fn act(browser: &Browser, names: &[String], who: usize, done: &AtomicUsize) -> Did {
    let mut did = Did::default();
    for turn in 0..TURNS {
        match turn % 6 {
            0 => {
                let new = json!({ "text": format!("{turn} of {}", names[who]) });
                browser.api("POST", "/posts", Some(new)).is(201);
                did.posts += 1;
            }
            3 if did.follows.len() < PEOPLE - 1 => {
                let whom = (who + 1 + did.follows.len()) % PEOPLE;
                browser.api("PUT", &format!("/friends/{}", names[whom]), None).is(204);
                did.follows.push(whom);
            }
            4 => drop(browser.get("/").is(200)),
            _ => drop(browser.api("GET", "/timeline", None).is(200)),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    did
}

fn count_all(browser: &Browser, path: &str) -> usize {
    let page: Value = browser.api("GET", &format!("{path}?limit=100"), None).is(200).json();
    assert!(page["next"].is_null());
    page["items"].as_array().unwrap().len()
}

#[test]
fn sums_are_right_though_a_server_was_killed() {
    let mut world = World::start(&["--timeout-ms", "30000"]);
    let names: Vec<String> =
        (0..PEOPLE).map(|index| name_in(index % 2, &format!("person{index}x"))).collect();
    let browsers: Vec<Browser> = names
        .iter()
        .map(|name| {
            let browser = Browser::new(world.url());
            browser.sign_up(name);
            browser
        })
        .collect();
    let done = AtomicUsize::new(0);
    let wait_until = |most: usize| {
        wait_for("what people do", || (done.load(Ordering::Relaxed) >= most).then_some(()));
    };
    let did: Vec<Did> = std::thread::scope(|scope| {
        let acting: Vec<_> = browsers
            .iter()
            .enumerate()
            .map(|(who, browser)| {
                let (names, done) = (&names, &done);
                scope.spawn(move || {
                    let did = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        act(browser, names, who, done)
                    }));
                    // Who failed keeps nobody waiting.
                    if did.is_err() {
                        done.fetch_add(PEOPLE * TURNS, Ordering::Relaxed);
                    }
                    did
                })
            })
            .collect();
        wait_until(PEOPLE * TURNS / 4);
        world.kill(0);
        wait_until(PEOPLE * TURNS / 2);
        world.restart(0);
        acting.into_iter().map(|one| one.join().unwrap().unwrap()).collect()
    });
    let mut followers = vec![0; PEOPLE];
    for (name, did) in names.iter().zip(&did) {
        did.follows.iter().for_each(|whom| followers[*whom] += 1);
        assert_eq!(count_all(&browsers[0], &format!("/users/{name}/posts")), did.posts);
        assert_eq!(count_all(&browsers[0], &format!("/users/{name}/friends")), did.follows.len());
    }
    for (name, followers) in names.iter().zip(followers) {
        assert_eq!(count_all(&browsers[0], &format!("/users/{name}/followers")), followers);
    }
}
