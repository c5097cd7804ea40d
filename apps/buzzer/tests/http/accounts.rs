//! Signing up, logging in and out, and what is refused.

use super::browser::{Browser, Page, password_of};
use super::world::World;
use serde_json::json;

#[test]
fn people_sign_up_and_log_in() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.get("/").is(200).has(&["What is the buzz?"]);
    browser.sign_up("alice");
    let form = browser.get("/").form("/logout");
    browser.send(&form).is(200).has(&["What is the buzz?"]);

    // Whose name is taken, too short, or whose password is, is told so, and has not to type his name again.
    let form = browser.get("/signup").form("/signup");
    let taken = form.clone().with("name", "Alice").with("password", "12345678");
    browser.send(&taken).is(409).has(&["This name is taken.", "value=\"Alice\""]);
    for (name, password) in [("al", "12345678"), ("a/b/c", "12345678"), ("bob", "1234567")] {
        let form = form.clone().with("name", name).with("password", password);
        browser.send(&form).is(422);
    }
    browser.log_in("alice", "incorrect horse").is(401).has(&["The name or the password is wrong."]);
    browser
        .log_in("nobody_here", "incorrect horse")
        .is(401)
        .has(&["The name or the password is wrong."]);
    browser.log_in("ALICE", &password_of("alice")).is(200).has(&["What is new?"]);

    // A session is kept as long as it lasts, and is nothing without the cookie.
    browser.get("/settings").is(200).has(&["Delete the account"]);
    Browser::new(world.url()).get("/settings").is(200).has(&["No account yet?"]);
    check_headers(&world);
    check_api(&world);
}

/// What every answer has.
fn check_headers(world: &World) {
    let browser = Browser::new(world.url());
    for path in ["/", "/login", "/style.css", "/nothing", "/api/v1/nothing"] {
        let page = browser.get(path);
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let page = browser.send_only(&browser.get("/login").form("/login"), &[]);
    assert_eq!(page.header("set-cookie"), None);
    let form = browser.get("/login").form("/login");
    let form = form.with("name", "alice").with("password", &password_of("alice"));
    let page = browser.send_only(&form, &[]).is(303);
    let cookie = page.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    browser.get("/logout").is(405).has(&["No such page"]);
    browser.get("/live").is(200).has(&["ok"]);
    browser.get("/?after=x&after=y").is(400).has(&["No such page"]);
    browser.get("/u/%ff").is(404).has(&["There is no such page."]);
    browser.get("/api/v1/users/%ff").is(400).has(&["\"invalid\""]);
    browser.get("/health").is(200).has(&["\"ok\""]);
    browser
        .get("/metrics")
        .is(200)
        .has(&["buzzer_requests_total{method=\"GET\",route=\"/login\",status=\"200\"}"]);
}

fn check_api(world: &World) {
    let browser = Browser::new(world.url());
    browser.get("/api").is(200).has(&["JSON API"]);
    browser.api("GET", "/timeline", None).is(401).has(&["not_logged_in"]);
    let door = json!({ "name": "dora", "password": "correct horse" });
    browser.api("POST", "/accounts", Some(door.clone())).is(201);
    browser.api("POST", "/accounts", Some(door.clone())).is(409).has(&["\"taken\""]);
    assert_eq!(browser.api("GET", "/session", None).is(200).json()["name"], "dora");
    browser.api("DELETE", "/session", None).is(204);
    assert!(browser.api("GET", "/session", None).is(200).json()["name"].is_null());
    let wrong = json!({ "name": "dora", "password": "incorrect horse" });
    browser.api("POST", "/session", Some(wrong)).is(401).has(&["wrong_password"]);
    browser.api("POST", "/session", Some(door)).is(200);
    browser.api("POST", "/posts", Some(json!({ "text": "x", "nonsense": 1 }))).is(422);
    browser.api("POST", "/posts", Some(json!({ "text": "x".repeat(20_000) }))).is(413);
    browser.api("GET", "/users/nobody_here", None).is(404);
    browser.api("GET", "/timeline?limit=many", None).is(400).has(&["\"invalid\""]);
    browser.api("GET", "/timeline?after=nothing", None).is(422).has(&["\"invalid\""]);
    browser.api("PUT", "/timeline", None).is(405).has(&["\"invalid\""]);
    browser.api("GET", "/nothing", None).is(404).has(&["not_found"]);
}

#[test]
fn a_password_is_changed_and_other_sessions_end() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    let elsewhere = Browser::new(world.url());
    elsewhere.log_in("alice", &password_of("alice")).is(200).has(&["What is new?"]);

    let form = browser.get("/settings").form("/password");
    let change = |old: &str, new: &str| {
        browser.send(&form.clone().with("password", old).with("new_password", new))
    };
    change("incorrect horse", "another horse").is(401).has(&["The password is wrong."]);
    change(&password_of("alice"), "short").is(422);
    elsewhere.get("/").is(200).has(&["What is new?"]);
    let changed = change(&password_of("alice"), "another horse").is(200);
    changed.has(&["Your password was changed, and your other sessions are over."]);
    browser.get("/").is(200).has(&["What is new?"]);
    elsewhere.get("/").is(200).has(&["What is the buzz?"]);
    elsewhere.log_in("alice", &password_of("alice")).is(401);
    elsewhere.log_in("alice", "another horse").is(200).has(&["What is new?"]);

    // The same by the API; the session that it gave the browser is over then.
    let new = json!({ "password": "another horse", "new_password": "the third horse" });
    let done = elsewhere.api("PUT", "/password", Some(new.clone())).is(200).json();
    assert_eq!(done["others_ended"], true);
    assert_eq!(elsewhere.api("GET", "/session", None).is(200).json()["name"], "alice");
    browser.get("/").is(200).has(&["What is the buzz?"]);
    browser.api("PUT", "/password", Some(new.clone())).is(401).has(&["not_logged_in"]);
    // Sent again, as when no answer came, it is done already; with another new one it is not taken.
    elsewhere.api("PUT", "/password", Some(new)).is(200);
    let other = json!({ "password": "another horse", "new_password": "the fourth horse" });
    elsewhere.api("PUT", "/password", Some(other)).is(401).has(&["wrong_password"]);
}

/// As it is deployed: what has cookies over plain HTTP keeps none of these, so they are handed on here.
#[test]
fn cookies_are_secure_and_go_when_somebody_logs_out() {
    let world = World::start_with_secure_cookies();
    // The cookies that are set, and what they are to be sent back as.
    let cookies = |page: &Page| -> Vec<String> {
        let set = page.headers.iter().filter(|(name, _)| name == "set-cookie");
        set.map(|(_, cookie)| cookie.clone()).collect()
    };
    let pair = |cookie: &str| cookie.split(';').next().unwrap().to_owned();
    let secure = |cookie: &str| {
        cookie.starts_with("__Host-buzzer")
            && ["Secure", "Path=/"].iter().all(|word| cookie.contains(word))
    };
    let get =
        |path: &str, cookie: &str| Browser::new(world.url()).get_only(path, &[("cookie", cookie)]);
    let page = get("/signup", "").is(200);
    let set = cookies(&page);
    assert!(set.len() == 1 && secure(&set[0]), "{set:?}");
    let form = page.form("/signup").with("name", "alice").with("password", "correct horse");
    let sent = Browser::new(world.url()).send_only(&form, &[("cookie", &pair(&set[0]))]).is(303);
    let set = cookies(&sent);
    assert!(set.len() == 1 && secure(&set[0]) && set[0].contains("HttpOnly"), "{set:?}");
    let session = pair(&set[0]);
    let form = get("/", &session).is(200).has(&["What is new?"]).form("/logout");
    let out = Browser::new(world.url()).send_only(&form, &[("cookie", &session)]).is(303);
    let set = cookies(&out);
    assert!(set.len() == 1 && secure(&set[0]) && set[0].contains("Max-Age=0"), "{set:?}");
    get("/", &session).is(200).has(&["What is the buzz?"]);
}

#[test]
fn forms_of_other_sites_are_refused() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    let form = browser.get("/").form("/post").with("text", "not from me");
    let evil = [("origin", "https://evil.example")];
    browser.send_only(&form, &evil).is(403);
    browser.send_only(&form, &[("sec-fetch-site", "cross-site")]).is(403);
    // Without the token, with a wrong one, with that of somebody else.
    browser.send_only(&form.clone().with("csrf", ""), &[]).is(403);
    browser.send_only(&form.clone().with("csrf", &"0".repeat(32)), &[]).is(403);
    let other = Browser::new(world.url());
    other.sign_up("mallory");
    let token = other.get("/").form("/post").get("csrf").to_owned();
    browser.send_only(&form.clone().with("csrf", &token), &[]).is(403);
    let actions = ["/logout", "/password", "/delete-account", "/u/mallory/follow"];
    for action in actions.into_iter().chain(["/u/mallory/unfollow"]) {
        let fields = vec![("csrf".to_owned(), token.clone())];
        let form = super::browser::Form { action: action.to_owned(), fields };
        browser.send_only(&form, &[]).is(403);
    }
    // Nobody is logged in by a form that was not given to him either.
    let stranger = Browser::new(world.url());
    let door = stranger.get("/login").form("/login");
    let door = door.with("name", "mallory").with("password", &password_of("mallory"));
    Browser::new(world.url()).send_only(&door, &[]).is(403);
    browser.get("/").is(200).has_not(&["not from me"]);
    let own = [("origin", world.url()), ("sec-fetch-site", "same-origin")];
    browser.send_only(&form, &own).is(303);
    browser.get("/").is(200).has(&["not from me"]);
}
