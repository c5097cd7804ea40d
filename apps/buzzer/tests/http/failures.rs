//! Servers that are killed, and a partition that does not answer.

use super::browser::{Browser, texts};
use super::world::{World, name_in, wait_for};

#[test]
fn a_killed_server_is_not_noticed() {
    let mut world = World::start(&["--timeout-ms", "30000"]);
    let browser = Browser::new(world.url());
    let names = [name_in(0, "amy"), name_in(1, "bob")];
    Browser::new(world.url()).sign_up(&names[1]);
    browser.sign_up(&names[0]);
    browser.post("before");
    // One of each partition: the groups live with one failure each.
    world.kill(0);
    world.kill(3);
    browser.get("/").is(200).has(&["before"]);
    browser.post("while they are gone");
    browser.follow_user(&names[1]);
    browser.get("/health").is(200);
    world.restart(0);
    world.restart(3);
    browser.post("and back");
    let page = browser.get("/").is(200);
    assert_eq!(texts(&page), ["and back", "while they are gone", "before"]);
}

#[test]
fn a_partition_that_is_down_is_told_and_nothing_typed_is_lost() {
    let world = World::start(&["--timeout-ms", "1500"]);
    let (amy, bob) = (name_in(0, "amy"), name_in(1, "bob"));
    let browser = Browser::new(world.url());
    browser.sign_up(&amy);
    let other = Browser::new(world.url());
    other.sign_up(&bob);
    other.post("of the other partition");
    let typed = "a \"long\" <story>\nof two lines";
    let form = browser.get("/").is(200).form("/post").with("text", typed);
    let follow = browser.get(&format!("/u/{bob}")).is(200).form(&format!("/u/{bob}/follow"));

    world.signal_partition(0, "-STOP");
    let page = browser.send(&form).is(503);
    let page = page.has(&["Try again"]).has_not(&["<story>"]);
    let again = page.form("/post");
    assert_eq!(again.get("text"), typed);
    assert_eq!(again.get("key"), form.get("key"));
    browser.send(&follow).is(503).has(&["Try again"]).form(&follow.action);
    browser.get(&format!("/u/{amy}")).is(503).has(&["does not answer"]);
    browser.get("/health").is(503);
    browser.api("GET", &format!("/users/{amy}"), None).is(503).has(&["\"unavailable\""]);
    // Who needs nothing of it does not notice.
    let stranger = Browser::new(world.url());
    stranger.get(&format!("/u/{bob}")).is(200).has(&["of the other partition"]);
    stranger.get("/").is(200);
    world.signal_partition(0, "-CONT");

    wait_for("the partition", || (browser.get("/health").status == 200).then_some(()));
    // It may have been posted while the page said that this is not known; sent again it is there once.
    wait_for("the post", || (browser.send(&again).status == 200).then_some(()));
    wait_for("the other one", || (browser.send(&follow).status == 200).then_some(()));
    let page = browser.get(&format!("/u/{amy}")).is(200).has(&["<b>1</b> following"]);
    assert_eq!(texts(&page), [typed]);
    let page = browser.get("/").is(200);
    assert_eq!(texts(&page).len(), 2);
}
