//! The newest posts of all, for those who follow nobody.

use super::browser::{Browser, password_of, texts};
use super::world::{World, name_in, wait_for};
use serde_json::json;

/// Keys that list posts among the newest, and name this.
fn listed(world: &World, name: &str) -> usize {
    let is_it = |key: &&String| key.contains("!n/") && key.ends_with(&format!("/{name}"));
    world.keys().iter().filter(is_it).count()
}

#[test]
fn whoever_follows_nobody_is_shown_what_others_post() {
    let world = World::start(&[]);
    let stranger = Browser::new(world.url());
    stranger.get("/").is(200).has(&["href=\"/newest\""]);
    stranger.get("/newest").is(200).has(&["Nobody has posted anything yet."]);
    let names = [name_in(0, "alice"), name_in(1, "bob"), name_in(0, "carol")];
    let [alice, bob, carol] = &names.each_ref().map(|name| {
        let browser = Browser::new(world.url());
        browser.sign_up(name);
        browser
    });
    carol.get("/").is(200).has(&["Nothing here yet.", "href=\"/newest\""]);

    // Of both partitions, in order, over several pages.
    let mut expected = Vec::new();
    for index in 0..24 {
        let text = format!("post {index}");
        [alice, bob][index % 2].post(&text);
        expected.insert(0, text);
    }
    let first = carol.get("/newest").is(200);
    assert_eq!(texts(&first), expected[..20]);
    let next = first.link("next").unwrap();
    assert_eq!(texts(&carol.get(&format!("/newest{next}")).is(200)), expected[20..]);
    carol.get("/newest?after=nonsense").is(400);
    let told = stranger.api("GET", "/newest?limit=3", None).is(200).json();
    let three = told["items"].as_array().unwrap().iter().map(|item| item["text"].as_str().unwrap());
    assert!(three.eq(expected[..3].iter().map(String::as_str)), "{told}");
    let after = told["next"].as_str().unwrap();
    let told = stranger.api("GET", &format!("/newest?limit=3&after={after}"), None).is(200).json();
    assert_eq!(told["items"][0]["text"], expected[3]);
    // Who reads all of his timeline is told of it, too.
    alice.get("/").is(200).has(&["That is all."]);
    // An answer is shown with what it answers.
    let (key, author) = (told["items"][0]["key"].as_str(), told["items"][0]["author"].as_str());
    let answers = format!("{}/{}", author.unwrap(), key.unwrap());
    carol.api("POST", "/posts", Some(json!({ "text": "so?", "answers": answers }))).is(201);
    stranger.get("/newest").is(200).has(&["so?", "class=\"answered\""]);

    // What is deleted is gone from there, with its keys.
    let newest = alice.api("GET", &format!("/users/{}/posts?limit=1", names[0]), None).json();
    let path = format!("/posts/{}/{}", names[0], newest["items"][0]["key"].as_str().unwrap());
    alice.api("DELETE", &path, None).is(204);
    assert_eq!((listed(&world, &names[0]), listed(&world, &names[1])), (11, 12));
    let password = json!({ "password": password_of(&names[1]) });
    bob.api("DELETE", "/account", Some(password)).is(202);
    wait_for("the end of the deletion", || (listed(&world, &names[1]) == 0).then_some(()));
    let left = texts(&stranger.get("/newest").is(200));
    assert_eq!(left.len(), 12);
    assert!(left.iter().all(|text| text == "so?" || expected.contains(text)), "{left:?}");

    // One that a program deleted that knew no such keys is passed over.
    let keys = world.keys();
    let key = keys.iter().find(|key| key.contains(&format!("/{}/p/", names[0]))).unwrap();
    assert!(world.perdura(&["kv", "del", key]).status.success());
    assert_eq!(texts(&stranger.get("/newest").is(200)).len(), 11);
}
