//! A partition that fills up: what grows without end is refused in time, and all else goes on.

use super::browser::{Browser, Page, password_of};
use super::world::{World, name_in, wait_for};
use serde_json::{Value, json};

/// So many bytes of somebody else's in the first of the partitions, of a MiB each.
fn fill(world: &World, key: &str, bytes: usize) {
    let value = "x".repeat(bytes);
    let put = world.perdura(&["kv", "put", &format!("0000/{key}"), &value]);
    assert!(put.status.success(), "{put:?}");
}

fn make_room(world: &World, key: &str) {
    let deleted = world.perdura(&["kv", "del", &format!("0000/{key}")]);
    assert!(deleted.status.success(), "{deleted:?}");
}

/// What a post comes to that changes nothing: it answers one that is not there.
fn post_in_vain(browser: &Browser, author: &str) -> Page {
    let nothing = format!("{author}/{}", "0".repeat(20));
    browser.api("POST", "/posts", Some(json!({ "text": "x", "answers": nothing })))
}

fn code_of(page: &Page) -> Value {
    page.json()["error"]["code"].clone()
}

#[test]
fn a_partition_that_is_nearly_full_takes_no_posts_and_leaves_room_for_the_rest() {
    let many = ["--signups-per-hour", "100000", "--writes-per-hour", "100000"];
    let mut world = World::start_with_little_room(&many);
    let names = [name_in(0, "amy"), name_in(1, "bob")];
    let (amy, bob) = (Browser::new(world.url()), Browser::new(world.url()));
    amy.sign_up(&names[0]);
    bob.sign_up(&names[1]);
    let post = json!({ "text": "in time" });
    let posted = amy.api("POST", "/posts", Some(post.clone())).is(201).json();
    let first = posted["key"].as_str().unwrap();
    assert_eq!(post_in_vain(&amy, &names[0]).is(404).json()["error"]["code"], "not_found");

    // 92 of a hundred, with the little that there is.
    (0..9).for_each(|index| fill(&world, &format!("fill{index}"), 100_000));
    fill(&world, "rest", 60_000);
    let refused = wait_for("that posts are refused", || {
        Some(post_in_vain(&amy, &names[0])).filter(|page| page.status != 404)
    });
    let refused = refused.is(507).has(&["no room for new posts"]);
    assert_eq!(code_of(&refused), "full");
    let form = amy.get("/").is(200).form("/post").with("text", "a <long> story");
    let kept = amy.send(&form).is(507).has(&["no room for new posts"]).form("/post");
    assert_eq!(kept.get("text"), "a <long> story");
    // What was posted before, and is sent again, was posted.
    let again = json!({ "text": "in time", "key": first, "again": true });
    amy.api("POST", "/posts", Some(again)).is(201);
    let warned = "a partition of the store is nearly full";
    world.app().wait_to_say(warned);

    // Nor is anything answered that is there: what says so would be beside it.
    let answer = json!({ "text": "me too", "answers": format!("{}/{first}", names[0]) });
    assert_eq!(code_of(&bob.api("POST", "/posts", Some(answer)).is(507)), "full");

    // All else goes on, there and elsewhere.
    bob.api("POST", "/posts", Some(post)).is(201);
    amy.follow_user(&names[1]);
    bob.follow_user(&names[0]);
    let second = Browser::new(world.url());
    second.log_in(&names[0], &password_of(&names[0])).is(200).has(&["in time"]);
    let newcomer = name_in(0, "carol");
    Browser::new(world.url()).sign_up(&newcomer);

    // 96 of a hundred.
    fill(&world, "more", 45_000);
    let sign_up = |name: &str| {
        let account = json!({ "name": name, "password": password_of(name) });
        Browser::new(world.url()).api("POST", "/accounts", Some(account))
    };
    let refused = wait_for("that accounts are refused", || {
        Some(sign_up(&newcomer)).filter(|page| page.status != 409)
    });
    let refused = refused.is(507).has(&["no room for new accounts"]);
    assert_eq!(code_of(&refused), "full");
    let stranger = Browser::new(world.url());
    let form = stranger.get("/signup").is(200).form("/signup");
    let form = form.with("name", &name_in(0, "dave")).with("password", "correct horse");
    stranger.send(&form).is(507).has(&["no room for new accounts"]);
    sign_up(&name_in(1, "erin")).is(201);
    Browser::new(world.url()).log_in(&newcomer, &password_of(&newcomer)).is(200);
    amy.api("DELETE", &format!("/posts/{}/{first}", names[0]), None).is(204);
    let settings = second.get("/settings").is(200).form("/delete-account");
    second.send(&settings.with("password", &password_of(&names[0]))).is(200).has(&["Goodbye!"]);

    make_room(&world, "fill0");
    make_room(&world, "fill1");
    let carol = Browser::new(world.url());
    carol.log_in(&newcomer, &password_of(&newcomer)).is(200);
    wait_for("that posts are taken", || {
        (post_in_vain(&carol, &names[1]).status == 404).then_some(())
    });
    carol.post("there is room");
    assert_eq!(world.app().said().matches(warned).count(), 1, "once in an hour");
}
