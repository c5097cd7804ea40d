//! What answers a post is shown with it, as long as both are there.

use super::browser::{Browser, password_of, texts};
use super::world::{World, name_in, wait_for};
use serde_json::{Value, json};

/// Posts through the API; the address of it, as `author/key`.
fn post(browser: &Browser, author: &str, text: &str, answers: Option<&str>) -> String {
    let new = json!({ "text": text, "answers": answers });
    let posted = browser.api("POST", "/posts", Some(new)).is(201).json();
    format!("{author}/{}", posted["key"].as_str().unwrap())
}

/// Texts of all that answers a post, page by page, and how many pages there were.
fn answers_by_api(browser: &Browser, to: &str, limit: u32) -> (Vec<String>, usize) {
    let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("/posts/{to}/answers?limit={limit}{after}");
        let page = browser.api("GET", &path, None).is(200).json();
        pages += 1;
        for item in page["items"].as_array().unwrap() {
            let answered = &item["answers"];
            let of = format!("{}/{}", answered["author"], answered["key"]).replace('"', "");
            assert_eq!(of, to, "{item}");
            assert!(answered["text"].is_string(), "{item}");
            found.push(item["text"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["next"].as_str() else { return (found, pages) };
        after = format!("&after={next}");
    }
}

fn answers_on_pages(browser: &Browser, to: &str) -> Vec<String> {
    let path = format!("/u/{to}");
    let (mut page, mut found) = (browser.get(&path).is(200), Vec::new());
    loop {
        // The first card is that of what they answer.
        found.extend(texts(&page).into_iter().skip(1));
        let Some(next) = page.link("next") else { return found };
        page = browser.get(&format!("{path}{next}")).is(200);
    }
}

/// Keys that say of a post of somebody's that it is answered.
fn keys_of_answers(world: &World, author: &str) -> Vec<String> {
    let mut keys = world.keys();
    keys.retain(|key| key.contains(&format!("/{author}/r/")));
    keys
}

#[test]
fn a_post_is_shown_with_what_answers_it() {
    let world = World::start(&[]);
    let names = [name_in(0, "alice"), name_in(1, "bob"), name_in(0, "carol")];
    let browsers = names.each_ref().map(|name| {
        let browser = Browser::new(world.url());
        browser.sign_up(name);
        browser
    });
    let [alice, bob, carol] = &browsers;
    let question = post(alice, &names[0], "who is there?", None);
    let other = post(alice, &names[0], "another one", None);
    let page = alice.get(&format!("/u/{question}")).is(200).has_not(&["<h2>Answers</h2>"]);
    assert_eq!(texts(&page), ["who is there?"]);

    // Of both partitions, in the order in which they were written; what answers an answer is with that.
    let mut expected = Vec::new();
    let mut answers = Vec::new();
    for index in 0..25 {
        let text = format!("answer {index}");
        let who = index % 3;
        answers.push(post(&browsers[who], &names[who], &text, Some(&question)));
        expected.push(text);
    }
    post(bob, &names[1], "elsewhere", Some(&other));
    let deep = post(carol, &names[2], "to an answer", Some(&answers[1]));
    assert_eq!(answers_on_pages(alice, &question), expected);
    assert_eq!(answers_by_api(bob, &question, 7), (expected.clone(), 4));
    assert_eq!(answers_by_api(bob, &question, 100), (expected.clone(), 1));
    assert_eq!(answers_by_api(bob, &answers[1], 100).0, ["to an answer"]);
    // Whoever is not logged in sees them too, and what an answer answers is a link away.
    let stranger = Browser::new(world.url());
    let page = stranger.get(&format!("/u/{question}")).is(200);
    page.has(&["<h2>Answers</h2>", "Log in</a> to answer", "answer 19"]).has_not(&["answer 20"]);
    stranger.get(&format!("/u/{}", answers[1])).is(200).has(&[&format!("href=\"/u/{question}\"")]);
    stranger.get(&format!("/u/{question}?after=nonsense")).is(400);

    // One that is deleted is gone from there, and so is its key.
    bob.api("DELETE", &format!("/posts/{}", answers[1]), None).is(204);
    bob.api("DELETE", &format!("/posts/{}", answers[1]), None).is(404);
    expected.remove(1);
    assert_eq!(answers_on_pages(alice, &question), expected);
    assert_eq!(keys_of_answers(&world, &names[0]).len(), 25);
    let told = carol.api("GET", &format!("/posts/{deep}"), None).is(200).json();
    assert_eq!(told["answers"]["text"], Value::Null);
    carol.api("GET", &format!("/posts/{}/answers", answers[1]), None).is(404);
    // So are all of an account that is deleted.
    let password = json!({ "password": password_of(&names[1]) });
    bob.api("DELETE", "/account", Some(password)).is(202);
    wait_for("the end of the deletion", || {
        (keys_of_answers(&world, &names[0]).len() == 17).then_some(())
    });
    let expected: Vec<String> =
        (0..25).filter(|index| index % 3 != 1).map(|index| format!("answer {index}")).collect();
    assert_eq!(answers_by_api(carol, &question, 100).0, expected);

    // Where the post itself is deleted its answers stay, and can be deleted.
    alice.api("DELETE", &format!("/posts/{question}"), None).is(204);
    stranger.get(&format!("/u/{question}")).is(404);
    stranger.api("GET", &format!("/posts/{question}/answers"), None).is(404);
    stranger.get(&format!("/u/{}", answers[2])).is(200).has(&["answer 2", "deleted post of"]);
    carol.api("DELETE", &format!("/posts/{}", answers[2]), None).is(204);
    assert_eq!(keys_of_answers(&world, &names[0]).len(), 16);
}

#[test]
fn answers_that_earlier_programs_wrote_or_deleted_are_in_nobodys_way() {
    let world = World::start(&[]);
    let names = [name_in(0, "alice"), name_in(1, "bob")];
    let [alice, bob] = names.each_ref().map(|name| {
        let browser = Browser::new(world.url());
        browser.sign_up(name);
        browser
    });
    let question = post(&alice, &names[0], "who is there?", None);
    let delete = |key: &str| {
        let deleted = world.perdura(&["kv", "del", key]);
        assert!(deleted.status.success(), "{deleted:?}");
    };
    let old = post(&bob, &names[1], "written long ago", Some(&question));
    delete(&keys_of_answers(&world, &names[0])[0]);
    let deleted = post(&bob, &names[1], "deleted long ago", Some(&question));
    let keys = world.keys();
    // Its newest post.
    delete(keys.iter().find(|key| key.contains(&format!("/{}/p/", names[1]))).unwrap());
    bob.api("GET", &format!("/posts/{deleted}"), None).is(404);
    post(&bob, &names[1], "written now", Some(&question));

    assert_eq!(answers_on_pages(&alice, &question), ["written now"]);
    assert_eq!(answers_by_api(&alice, &question, 1), (vec!["written now".to_owned()], 2));
    bob.get(&format!("/u/{old}")).is(200).has(&["who is there?", "written long ago"]);
    bob.api("DELETE", &format!("/posts/{old}"), None).is(204);
    // What is left goes with the account that was answered.
    let password = json!({ "password": password_of(&names[0]) });
    alice.api("DELETE", "/account", Some(password)).is(202);
    wait_for("the end of the deletion", || {
        let left = world.keys();
        (!left.iter().any(|key| key.contains(&format!("/{}/", names[0])))).then_some(())
    });
}
