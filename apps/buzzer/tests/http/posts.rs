//! Posting, following, timelines, answers.

use super::browser::{Browser, password_of, texts};
use super::world::{World, name_in};
use serde_json::{Value, json};

/// All pages from a first one on.
fn all_pages(browser: &Browser, path: &str) -> Vec<String> {
    let mut page = browser.get(path).is(200);
    let mut all = texts(&page);
    while let Some(next) = page.link("next") {
        page = browser.get(&format!("{path}{next}")).is(200);
        all.extend(texts(&page));
    }
    all
}

#[test]
fn what_is_posted_is_shown_as_it_was_typed() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    let markup = "<script>alert(\"1\")</script> & <b>'bold'</b>\n{{ braces }}";
    browser.post(markup);
    let page = browser.get("/u/alice").is(200).has_not(&["<script>alert", "<b>'bold'"]);
    assert_eq!(texts(&page), [markup]);

    // What cannot be posted comes back with what is wrong.
    let form = browser.get("/").form("/post");
    let long = form.clone().with("text", &"ä".repeat(281));
    let page = browser.send(&long).is(422).has(&["at most 280 characters; this one has 281"]);
    assert_eq!(page.form("/post").get("text"), "ä".repeat(281));
    browser.send(&form.clone().with("text", " \n ")).is(422).has(&["A post needs a text."]);
    browser.send(&form.clone().with("text", &"ä".repeat(280))).is(200);

    // The same form sent twice is one post; a form with another text under its key is none.
    let form = browser.get("/").form("/post").with("text", "only once");
    browser.send(&form).is(200);
    browser.send(&form).is(200);
    browser.send(&form.clone().with("text", "another")).is(409).has(&["stays as it is"]);
    let own = texts(&browser.get("/u/alice"));
    assert_eq!(own, ["only once".to_owned(), "ä".repeat(280), markup.to_owned()]);

    // A form that was open for hours is not posted, but given a new key.
    let old = form.clone().with("key", "0192a0a0a0a012345678").with("text", "late");
    let page = browser.send(&old).is(409).has(&["open for a while", "late"]);
    browser.send(&page.form("/post")).is(200);
    assert_eq!(texts(&browser.get("/u/alice"))[0], "late");
    let coming = form.with("key", "ffffffffffff12345678");
    browser.send(&coming).is(409);

    // Only its author deletes a post.
    let card = browser.get("/u/alice");
    let at = card.text.find("/delete\"").unwrap();
    let action = card.text[..at].rsplit("action=\"").next().unwrap().to_owned() + "/delete";
    let other = Browser::new(world.url());
    other.sign_up("bob");
    let theirs = other.get("/").form("/logout");
    let stolen = super::browser::Form { action: action.clone(), ..theirs };
    other.send_only(&stolen, &[]).is(403);
    browser.send(&card.form(&action)).is(200).has_not(&["late"]);
}

#[test]
fn addresses_and_names_in_posts_are_links() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    let text = "@Bob and mail@example.org: see https://example.org/a?b=\"c\"&d (or http://[x]).\n\
                javascript:alert(1) https://alice@evil.example";
    browser.post(text);
    let page = browser.get("/u/alice").is(200);
    assert_eq!(texts(&page), [text]);
    let own = page.text.rsplit("<p class=\"text\">").next().unwrap();
    let own = &own[..own.find("</p>").unwrap()];
    assert_eq!(own.matches("<a ").count(), 2, "{own}");
    let address = "<a href=\"https://example.org/a?b=\" rel=\"nofollow noopener noreferrer ugc\">";
    page.has(&["<a href=\"/u/bob\">@Bob</a>", address]);
    // In the API it is what was typed.
    let told = browser.api("GET", "/users/alice/posts", None).is(200).json();
    assert_eq!(told["items"][0]["text"], text);
}

#[test]
fn timelines_have_the_posts_of_all_partitions_in_their_order() {
    let world = World::start(&[]);
    let names = [name_in(0, "amy"), name_in(1, "bob"), name_in(0, "cat"), name_in(1, "dan")];
    let browsers: Vec<Browser> = names
        .iter()
        .map(|name| {
            let browser = Browser::new(world.url());
            browser.sign_up(name);
            browser
        })
        .collect();
    let reader = Browser::new(world.url());
    reader.sign_up("reader");
    for name in &names[..3] {
        reader.follow_user(name);
    }
    // Most are by one of them, so that a page takes several looks.
    let mut expected = Vec::new();
    for index in 0..48 {
        let author = if index % 6 == 0 { index / 6 % 4 } else { 1 };
        let text = format!("post {index} of {}", names[author]);
        browsers[author].post(&text);
        if author < 3 {
            expected.insert(0, text);
        }
    }
    reader.post("my own");
    expected.insert(0, "my own".to_owned());
    assert_eq!(texts(&reader.get("/")).len(), 20);
    assert_eq!(all_pages(&reader, "/"), expected);
    check_api_pages(&reader, &expected);

    reader.get("/u/reader").is(200).has(&["<b>3</b> following", "<b>0</b> followers"]);
    reader.get("/u/reader/friends").is(200).has(&[&names[0], &names[1], &names[2]]);
    let followers = format!("/u/{}/followers", names[0]);
    reader.get(&followers).is(200).has(&["@reader"]);
    let page = reader.get(&format!("/u/{}", names[1])).is(200);
    let page = reader.send(&page.form(&format!("/u/{}/unfollow", names[1]))).is(200);
    page.form(&format!("/u/{}/follow", names[1]));
    expected.retain(|text| !text.ends_with(&names[1]));
    assert_eq!(all_pages(&reader, "/"), expected);
    reader.get("/u/reader/friends").is(200).has_not(&[&names[1]]);
    // Nobody follows himself, nor one who is not there.
    reader.api("PUT", "/friends/reader", None).is(422);
    reader.api("PUT", "/friends/nobody_here", None).is(404);
}

/// The same through the API, in pages of another size.
fn check_api_pages(reader: &Browser, expected: &[String]) {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = reader.api("GET", &format!("/timeline?limit=7{after}"), None).is(200).json();
        let items = page["items"].as_array().unwrap();
        assert!((1..=7).contains(&items.len()));
        found.extend(items.iter().map(|item| item["text"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(found, expected);
}

#[test]
fn answers_show_what_they_answer() {
    let world = World::start(&[]);
    let (alice, bob) = (Browser::new(world.url()), Browser::new(world.url()));
    let names = [name_in(0, "alice"), name_in(1, "bob")];
    alice.sign_up(&names[0]);
    bob.sign_up(&names[1]);
    let posted = alice.api("POST", "/posts", Some(json!({ "text": "who is there?" }))).is(201);
    let key = posted.json()["key"].as_str().unwrap().to_owned();
    let at = format!("/u/{}/{key}", names[0]);
    let form = bob.get(&at).is(200).has(&["who is there?"]).form("/post");
    let page = bob.send(&form.with("text", "it is me")).is(200);
    let page = page.has(&["who is there?", "it is me", "class=\"answered\""]);
    assert_eq!(texts(&page), ["it is me"]);

    // One that would be older than what it answers is refused.
    let answers = format!("{}/{key}", names[0]);
    let before = json!({ "text": "early", "answers": answers, "key": key });
    bob.api("POST", "/posts", Some(before)).is(422);
    // Of what is deleted it is said that it is.
    let form = alice.get(&at).is(200).form(&format!("{at}/delete"));
    let late = bob.get(&at).form("/post").with("text", "too late");
    alice.send(&form).is(200);
    bob.get("/").is(200).has(&["it is me", "deleted post of"]).has_not(&["who is there?"]);
    let told = bob.api("GET", "/timeline", None).is(200).json();
    assert_eq!(told["items"][0]["answers"]["text"], Value::Null);
    // What was typed is kept, and can be posted by itself.
    let page = bob.send(&late).is(409).has(&["not there any more", "too late"]);
    bob.send(&page.form("/post")).is(200).has(&["too late"]);
    bob.get(&at).is(404);
}

#[test]
fn what_was_typed_is_kept_when_one_is_not_logged_in_any_more() {
    let world = World::start(&[]);
    let browser = Browser::new(world.url());
    browser.sign_up("alice");
    let typed = "a long <story>";
    let form = browser.get("/").form("/post").with("text", typed);
    browser.send(&browser.get("/").form("/logout")).is(200);
    let kept = browser.send(&form).is(401).form("/post");
    assert_eq!(kept.get("text"), typed);
    // In another window he logs in, and so has other forms.
    browser.log_in("alice", &password_of("alice")).is(200);
    let kept = browser.send(&kept).is(403).has(&["it was not posted"]).form("/post");
    assert_eq!(kept.get("text"), typed);
    assert_eq!(texts(&browser.send(&kept).is(200)), [typed]);
}

#[test]
fn an_account_writes_so_much_in_an_hour() {
    let world = World::start(&["--writes-per-hour", "4"]);
    let (alice, bob) = (Browser::new(world.url()), Browser::new(world.url()));
    alice.sign_up("alice");
    bob.sign_up("bob");
    let follow = alice.get("/u/bob").is(200).form("/u/bob/follow");
    alice.post("one");
    alice.follow_user("bob");
    let card = alice.get("/u/alice");
    let at = card.text.find("/delete\"").unwrap();
    let delete = card.text[..at].rsplit("action=\"").next().unwrap().to_owned() + "/delete";
    // What cannot be posted is not counted.
    let form = alice.get("/").is(200).form("/post");
    alice.send(&form.clone().with("text", " ")).is(422);
    alice.api("POST", "/posts", Some(json!({ "text": "two" }))).is(201);
    alice.api("DELETE", "/friends/bob", None).is(204);

    // What was typed is kept, under its key: sent again later it is posted.
    let form = form.with("text", "three");
    let page = alice.send(&form).is(429).has(&["Try again in", "minutes"]).has_not(&["store"]);
    assert!(page.header("retry-after").unwrap().parse::<u64>().unwrap() > 600);
    let again = page.form("/post");
    assert_eq!((again.get("text"), again.get("key")), ("three", form.get("key")));
    for form in [follow, card.form(&delete)] {
        alice.send(&form).is(429).has(&["Try again in"]).form(&form.action);
    }
    let new = json!({ "text": "three" });
    let told = alice.api("POST", "/posts", Some(new)).is(429).has(&["\"throttled\""]);
    assert!(told.header("retry-after").is_some());
    alice.api("PUT", "/friends/bob", None).is(429);
    alice.api("DELETE", "/friends/bob", None).is(429);
    alice.api("DELETE", &delete.replacen("/u/", "/posts/", 1).replace("/delete", ""), None).is(429);
    assert_eq!(texts(&alice.get("/")), ["two", "one"]);

    // It is nobody else's affair, and all else can be done.
    bob.post("mine");
    alice.send(&alice.get("/").form("/logout")).is(200);
    alice.log_in("alice", &password_of("alice")).is(200);
    alice.api("DELETE", "/account", Some(json!({ "password": password_of("alice") }))).is(202);
}
