//! No reader sees an answer without the post that it answers, whatever goes on at the same time.

use super::browser::Browser;
use super::world::{World, name_in};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Posts of each author.
const POSTS: usize = 60;

fn id(post: &Value) -> String {
    format!("{}/{}", post["author"].as_str().unwrap(), post["key"].as_str().unwrap())
}

/// What a page of a timeline breaks, if anything.
fn check(page: &Value) {
    let items = page["items"].as_array().unwrap();
    let shown: HashSet<String> = items.iter().map(id).collect();
    let last = items.last().map(|item| item["key"].as_str().unwrap().to_owned());
    for item in items {
        let answers = &item["answers"];
        if answers.is_null() {
            continue;
        }
        assert!(answers["text"].is_string(), "{item} answers what is not there");
        // What it answers is on the page, or behind it.
        let is_behind = page["next"].is_string() && answers["key"].as_str() < last.as_deref();
        assert!(
            is_behind || shown.contains(&id(answers)),
            "{item} without what it answers: {page}"
        );
    }
    let keys: Vec<&str> = items.iter().map(|item| item["key"].as_str().unwrap()).collect();
    assert!(keys.is_sorted_by(|one, other| one >= other), "{keys:?}");
}

#[test]
fn no_answer_is_seen_before_what_it_answers() {
    let world = World::start(&["--timeout-ms", "30000"]);
    let names = [name_in(0, "amy"), name_in(1, "bob"), name_in(0, "cat")];
    let authors: Vec<Browser> = names
        .iter()
        .map(|name| {
            let browser = Browser::new(world.url());
            browser.sign_up(name);
            browser
        })
        .collect();
    let readers: Vec<Browser> = ["reader1", "reader2"]
        .iter()
        .map(|name| {
            let browser = Browser::new(world.url());
            browser.sign_up(name);
            names.iter().for_each(|name| browser.follow_user(name));
            browser
        })
        .collect();
    let over = AtomicBool::new(false);
    let (names, over) = (&names, &over);
    let pages: usize = std::thread::scope(|scope| {
        let reading: Vec<_> = readers
            .iter()
            .map(|reader| {
                scope.spawn(move || {
                    let mut pages = 0;
                    while !over.load(Ordering::Relaxed) {
                        check(&reader.api("GET", "/timeline?limit=10", None).is(200).json());
                        pages += 1;
                    }
                    pages
                })
            })
            .collect();
        let posting: Vec<_> = authors
            .iter()
            .enumerate()
            .map(|(index, author)| {
                scope.spawn(move || {
                    // Each answers the newest post of the next one.
                    let path = format!("/users/{}/posts?limit=1", names[(index + 1) % names.len()]);
                    for post in 0..POSTS {
                        let newest = author.api("GET", &path, None).is(200).json();
                        let mut new = json!({ "text": format!("{post}") });
                        if let Some(newest) = newest["items"].get(0) {
                            new["answers"] = Value::String(id(newest));
                        }
                        author.api("POST", "/posts", Some(new)).is(201);
                    }
                })
            })
            .collect();
        let posted: Vec<_> = posting.into_iter().map(|one| one.join()).collect();
        over.store(true, Ordering::Relaxed);
        posted.into_iter().for_each(|posted| posted.unwrap());
        reading.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert!(pages > 0);
    let own = readers[0].api("GET", "/timeline?limit=100", None).is(200).json();
    assert!(own["items"].as_array().unwrap().iter().any(|item| item["answers"].is_object()));
}
