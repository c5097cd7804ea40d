//! Passwords that are guessed, and what guesses do to those whom they are of.

use super::browser::{Browser, password_of};
use super::world::{World, name_in, wait_for};
use serde_json::{Value, json};
use std::time::SystemTime;

#[test]
fn guesses_of_passwords_are_slowed_down() {
    let world = World::start(&["--logins-per-minute", "100000"]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    // One whom there is and one whom there is not are told the same.
    for name in ["alice", "nobody_here"] {
        let guesser = Browser::new(world.url());
        let told: Vec<u16> =
            (0..6).map(|_| guesser.log_in(name, "incorrect horse").status).collect();
        assert_eq!(told[..5], [401; 5]);
        // The sixth came too early, unless the machine was so slow that the pause was over.
        assert!([401, 429].contains(&told[5]));
    }
    let guesser = Browser::new(world.url());
    let throttled = wait_for("a pause", || {
        let page = guesser.log_in("alice", "incorrect horse");
        (page.status == 429).then_some(page)
    });
    let throttled = throttled.has(&["Too many logins with this name failed."]);
    assert!(throttled.header("retry-after").is_some());
    // The right password helps nothing within the pause, and is taken behind it.
    wait_for("the end of the pause", || {
        let page = guesser.log_in("alice", &password_of("alice"));
        assert!([200, 429].contains(&page.status), "{}", page.text);
        (page.status == 200).then_some(())
    });
    // What failed before is forgotten then.
    Browser::new(world.url()).log_in("alice", "incorrect horse").is(401);
}

#[test]
fn an_address_has_so_many_tries() {
    let world = World::start(&["--logins-per-minute", "3", "--signups-per-hour", "2"]);
    let browser = Browser::new(world.url());
    let form = browser.get("/login").form("/login").with("password", "incorrect horse");
    let told: Vec<u16> = (0..4)
        .map(|index| browser.send(&form.clone().with("name", &format!("user{index}"))).status)
        .collect();
    // A minute may have passed meanwhile, on a machine that hardly moves.
    assert_eq!(told[..3], [401; 3]);
    assert!([401, 429].contains(&told[3]));
    for name in ["amy", "bob"] {
        Browser::new(world.url()).sign_up(name);
    }
    let form = browser.get("/signup").form("/signup");
    let form = form.with("name", "cat").with("password", "12345678");
    browser.send(&form).is(429).has(&["Too many tries from your network."]);
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The key of what is counted of a name.
fn key_of(name: &str) -> String {
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{}/{name}/l", &hash[..4])
}

/// What is counted of a name.
fn counted(world: &World, name: &str) -> Value {
    let output = world.perdura(&["kv", "get", "--raw", &key_of(name)]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sets what is counted of a name.
fn set(world: &World, name: &str, value: &Value) {
    let output = world.perdura(&["kv", "put", &key_of(name), &value.to_string()]);
    assert!(output.status.success(), "{output:?}");
}

/// The failures of all origins that are counted by themselves, in order, of known ones or of others.
fn failed(counted: &Value, known: bool) -> Vec<u64> {
    let all = counted["origins"].as_array().unwrap().iter();
    let some = all.filter(|one| one["known"].as_bool().unwrap_or(false) == known);
    let mut failed: Vec<u64> = some.map(|one| one["failed"].as_u64().unwrap()).collect();
    failed.sort_unstable();
    failed
}

#[test]
fn who_is_known_or_logged_in_does_not_wait_for_what_others_guess() {
    let world = World::start(&["--behind-proxy", "--logins-per-minute", "100000"]);
    let (alice, right) = (name_in(0, "alice"), &password_of(&name_in(0, "alice")));
    let at = |address: &str| Browser::from(world.url(), address);
    // Home is known since the account was made there, the office since a login. Two of one network of IPv6 are in one place.
    let home = at("10.0.0.1");
    home.sign_up(&alice);
    at("2001:db8::1").log_in(&alice, "incorrect horse").is(401);
    at("2001:db8::2").log_in(&alice, right).is(200);
    let there = counted(&world, &alice);
    assert_eq!((failed(&there, true), failed(&there, false)), (vec![0, 0], vec![]));
    assert_eq!(there["failed"], 0);

    // Others guess, each from another network.
    for last in 1..4 {
        at(&format!("10.0.1.{last}")).log_in(&alice, "incorrect horse").is(401);
    }
    let mut there = counted(&world, &alice);
    assert_eq!((failed(&there, false), &there["failed"]), (vec![1, 1, 1], &json!(3)));
    // And go on with that for long.
    there["failed"] = json!(70);
    there["last_ms"] = json!(now_ms());
    set(&world, &alice, &there);
    let told = at("10.0.2.1").log_in(&alice, right).is(429);
    assert!(told.header("retry-after").unwrap().parse::<u64>().unwrap() > 60);
    at("10.0.1.1").log_in(&alice, right).is(429);
    at("10.0.0.1").log_in(&alice, right).is(200);
    at("2001:db8::3").log_in(&alice, right).is(200);

    // As it was counted before there were origins: nowhere is known then, and a session is as good as before.
    set(&world, &alice, &json!({ "v": 1, "failed": 70, "last_ms": now_ms() }));
    at("10.0.0.1").log_in(&alice, right).is(429);
    let form = home.get("/settings").is(200).form("/password");
    let form = form.with("password", right).with("new_password", "another horse");
    home.send(&form).is(200).has(&["Your password was changed"]);
    let new = json!({ "password": "another horse", "new_password": "the third horse" });
    home.api("PUT", "/password", Some(new)).is(200);
    at("10.0.0.1").log_in(&alice, "the third horse").is(429);
    home.api("DELETE", "/account", Some(json!({ "password": "the third horse" }))).is(202);
}

#[test]
fn a_change_of_a_password_is_two_guesses() {
    let world = World::start(&["--logins-per-minute", "100000"]);
    let (thief, owner) = (Browser::new(world.url()), Browser::new(world.url()));
    thief.sign_up("alice");
    owner.log_in("alice", &password_of("alice")).is(200);
    let guess = json!({ "password": "incorrect horse", "new_password": "incorrect too" });
    let change = || thief.api("PUT", "/password", Some(guess.clone()));
    change().is(401).has(&["wrong_password"]);
    assert_eq!(failed(&counted(&world, "alice"), false), [2]);
    change().is(401);
    assert_eq!(failed(&counted(&world, "alice"), false), [4]);
    // From now on there are pauses, for this session and for no other one.
    let told = wait_for("a pause", || Some(change()).filter(|page| page.status == 429));
    assert!(told.header("retry-after").is_some());
    let form = owner.get("/settings").is(200).form("/password");
    let form = form.with("password", &password_of("alice")).with("new_password", "another horse");
    owner.send(&form).is(200).has(&["Your password was changed"]);
    assert_eq!(failed(&counted(&world, "alice"), true), [0]);
}
