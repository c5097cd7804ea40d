//! People who post, follow and read while others do all that keeps people out: nobody of them sees an error.

use super::browser::{Browser, password_of};
use super::doors::{HALF_A_BODY, HALF_A_HEAD, connect_from, hold_open};
use super::world::{World, name_in};
use serde_json::json;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PEOPLE: usize = 4;

/// What each of them does at least, and for how long, unless `PERDURA_ATTACK_SECONDS` says otherwise.
const TURNS: usize = 48;
const SECONDS: u64 = 15;

/// What each account may write in that time.
const WRITES: u64 = 100;

/// Descriptors of the application: fewer than those who are slow want.
const DESCRIPTORS: u64 = 1024;

/// Follows of one user at a time, from as many connections, and guesses of passwords.
const FOLLOWS: usize = 64;
const GUESSES: u8 = 6;

/// Does what people do.
fn live(world: &World, names: &[String], who: usize, until: Instant) {
    let name = &names[who];
    let browser = Browser::new(world.url());
    let mut password = password_of(name);
    browser.log_in(name, &password).is(200);
    let friend = format!("/friends/{}", names[(who + 1) % names.len()]);
    for turn in 0.. {
        if turn >= TURNS && Instant::now() >= until {
            return;
        }
        match turn % 12 {
            0 | 6 => {
                let text = json!({ "text": format!("{turn} of {name}") });
                browser.api("POST", "/posts", Some(text)).is(201);
                browser.get("/").is(200).has(&[&format!("{turn} of {name}")]);
            }
            2 => drop(browser.api("PUT", &friend, None).is(204)),
            4 => drop(browser.api("DELETE", &friend, None).is(204)),
            8 if turn % 3 == 2 => {
                let new = format!("{turn} horses");
                let change = json!({ "password": password, "new_password": new });
                browser.api("PUT", "/password", Some(change)).is(200);
                password = new;
            }
            10 => {
                let again = Browser::new(world.url());
                again.log_in(name, &password).is(200);
                again.get("/live").is(200);
            }
            _ => drop(browser.api("GET", "/timeline", None).is(200)),
        }
    }
}

/// Follows and leaves one after the other, many times at once.
fn follow_at_once(world: &World, names: &[String], stop: &AtomicBool) {
    let browser = Browser::new(world.url());
    browser.sign_up("follower");
    std::thread::scope(|scope| {
        for index in 0..FOLLOWS {
            let (browser, friend) = (&browser, format!("/friends/{}", names[index % names.len()]));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    browser.api("PUT", &friend, None);
                    browser.api("DELETE", &friend, None);
                }
            });
        }
    });
}

/// Posts until that is refused, and goes on.
fn post_and_post(world: &World, stop: &AtomicBool) -> usize {
    let browser = Browser::new(world.url());
    browser.sign_up("poster");
    let mut refused = 0;
    while !stop.load(Ordering::Relaxed) {
        let text = json!({ "text": "x".repeat(280) });
        let status = browser.api("POST", "/posts", Some(text)).status;
        assert!([201, 429, 503].contains(&status), "{status}");
        refused += usize::from(status == 429);
    }
    refused
}

/// Guesses passwords, each time from another network.
fn guess(world: &World, names: &[String], from: u8, stop: &AtomicBool) {
    for turn in (0_usize..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let [.., high, low] = turn.to_be_bytes();
        let address = Ipv4Addr::new(127, 100 + from, high, low.max(1));
        let name = &names[turn % names.len()];
        let body = json!({ "name": name, "password": "incorrect horse" }).to_string();
        let head = format!(
            "POST /api/v1/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let Some(mut stream) = connect_from(address, world.url()) else { continue };
        let mut told = String::new();
        // Where there is no place for it, it is closed.
        let sent = stream.write_all((head + &body).as_bytes());
        if sent.and_then(|()| stream.read_to_string(&mut told)).is_ok() && !told.is_empty() {
            let status = told.split(' ').nth(1).unwrap();
            assert!(["401", "429", "503"].contains(&status), "{told}");
        }
    }
}

#[test]
fn nobody_is_kept_out_by_those_who_try_to() {
    let told = std::env::var("PERDURA_ATTACK_SECONDS").ok().and_then(|told| told.parse().ok());
    // In a longer time people write more.
    let writes = told.map_or(WRITES, |told: u64| 20 * told).to_string();
    let options = ["--insecure-cookies", "--timeout-ms", "30000", "--logins-per-minute", "100000"];
    let options = [&options[..], &["--writes-per-hour", &writes]].concat();
    let world = World::start_limited(&options, Some(DESCRIPTORS));
    let names: Vec<String> =
        (0..PEOPLE).map(|index| name_in(index % 2, &format!("person{index}x"))).collect();
    for name in &names {
        Browser::new(world.url()).sign_up(name);
    }
    let stop = &AtomicBool::new(false);
    let (world, names) = (&world, &names[..]);
    std::thread::scope(|scope| {
        let mut attacks = vec![
            scope.spawn(|| hold_open([127, 0, 0, 2].into(), world.url(), HALF_A_HEAD, stop)),
            scope.spawn(|| hold_open([127, 0, 0, 3].into(), world.url(), HALF_A_BODY, stop)),
            scope.spawn(|| follow_at_once(world, names, stop)),
        ];
        let posting = scope.spawn(|| post_and_post(world, stop));
        attacks
            .extend((0..GUESSES).map(|from| scope.spawn(move || guess(world, names, from, stop))));
        let until = Instant::now() + Duration::from_secs(told.unwrap_or(SECONDS));
        let living: Vec<_> = (0..PEOPLE)
            .map(|who| {
                scope.spawn(move || {
                    catch_unwind(AssertUnwindSafe(|| live(world, names, who, until)))
                })
            })
            .collect();
        let lived: Vec<_> = living.into_iter().map(|one| one.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        for attack in attacks {
            attack.join().unwrap();
        }
        let refused = posting.join().unwrap();
        assert!(refused > 0 || told.is_some(), "one account may write as much as it likes");
        if let Some(failed) = lived.into_iter().find_map(Result::err) {
            resume_unwind(failed);
        }
    });
}
