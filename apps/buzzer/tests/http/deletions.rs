//! An account that is deleted leaves nothing behind, whoever was stopped in between.

use super::browser::{Browser, password_of};
use super::world::{World, buzzer, name_in, wait_for};

/// Keys that are left of a name.
fn left_of(world: &World, name: &str) -> Vec<String> {
    let mut keys = world.keys();
    keys.retain(|key| key.split('/').any(|part| part == name));
    keys
}

#[test]
fn nothing_is_left_of_a_deleted_account() {
    let mut world = World::start(&["--timeout-ms", "20000"]);
    let gone = name_in(0, "gone");
    let others = [name_in(0, "amy"), name_in(1, "bob")];
    let browser = Browser::new(world.url());
    browser.sign_up(&gone);
    let theirs: Vec<Browser> = others
        .iter()
        .map(|name| {
            let other = Browser::new(world.url());
            other.sign_up(name);
            other.follow_user(&gone);
            browser.follow_user(name);
            other
        })
        .collect();
    for index in 0..25 {
        browser.post(&format!("post {index}"));
    }
    // A second session, and a login that failed.
    let second = Browser::new(world.url());
    second.log_in(&gone, &password_of(&gone)).is(200);
    Browser::new(world.url()).log_in(&gone, "incorrect horse").is(401);
    theirs[0].get("/").is(200).has(&["post 24"]);
    let sessions = |world: &World| world.keys().iter().filter(|key| key.contains("/!s/")).count();
    assert_eq!(sessions(&world), 4);

    let form = browser.get("/settings").is(200).form("/delete-account");
    browser.send(&form.clone().with("password", "incorrect horse")).is(401).has(&["is wrong"]);
    browser.get("/").is(200).has(&["post 24"]);
    let page = browser.send(&form.with("password", &password_of(&gone))).is(200);
    page.has(&["Goodbye!"]);
    browser.get("/").is(200).has(&["What is the buzz?"]);
    second.get("/").is(200).has(&["What is the buzz?"]);
    browser.get(&format!("/u/{gone}")).is(404);
    // Whoever is stopped while it goes on, another one goes on with it.
    world.stop_app();
    let mut finish = buzzer();
    let finish = finish.args(["deletions", "--cluster"]).arg(world.cluster()).output().unwrap();
    assert!(finish.status.success(), "{finish:?}");
    assert_eq!(left_of(&world, &gone), Vec::<String>::new());
    assert_eq!(sessions(&world), 2);
    world.start_app(&[]);

    let browser = Browser::new(world.url());
    let (first, again) = (Browser::new(world.url()), Browser::new(world.url()));
    first.log_in(&others[0], &password_of(&others[0])).is(200).has_not(&["post 24"]);
    let profile = format!("/u/{}", others[0]);
    first.get(&profile).is(200).has(&["<b>0</b> followers", "<b>0</b> following"]);
    browser.log_in(&gone, &password_of(&gone)).is(401);
    // The name is free again, and what comes under it is new.
    again.sign_up(&gone);
    again.get("/").is(200).has_not(&["post 24"]);
}

#[test]
fn a_server_deletes_what_it_was_asked_to() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("gone");
    browser.post("something");
    let password = serde_json::json!({ "password": password_of("gone") });
    browser.api("DELETE", "/account", Some(password)).is(202);
    wait_for("the end of the deletion", || left_of(&world, "gone").is_empty().then_some(()));
    browser.api("GET", "/users/gone", None).is(404);
}
