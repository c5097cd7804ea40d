//! Who is there, and whether a form is one of ours.
//!
//! Every form has a token. That of somebody who is logged in is in his session; others have theirs in a cookie, which no other site
//! can set or read, so that nothing is kept of them.

use super::Shared;
use super::error_page::ErrorPage;
use super::sessions::{BEGUN, OWNER, PROOF, key_of};
use crate::network::{Failure, Name, Origin, Proof};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tower_cookies::cookie::SameSite;
use tower_cookies::{Cookie, Cookies};
use tower_sessions::Session;

const CSRF: &str = "csrf";
const SEEN: &str = "seen_ms";

/// A session is written again after this time, so that it does not end while it is used.
const WRITTEN_AGAIN: Duration = Duration::from_secs(3600);

/// Who is logged in.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    pub(crate) name: Name,
    /// What his forms have in them.
    pub(crate) csrf: String,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn token() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::Broken(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// What a session could not be read for.
fn failed(error: tower_sessions::session::Error) -> Failure {
    use tower_sessions::session::Error;
    use tower_sessions::session_store::Error as StoreError;
    let told = format!("the session: {error}");
    match error {
        Error::Store(StoreError::Backend(_)) => Failure::Unavailable(told),
        _ => Failure::Broken(told),
    }
}

/// The cookie with the token of forms of those who are not logged in. Of a `__Host-` one browsers see to it that no other site sets it.
fn form_cookie(insecure: bool) -> &'static str {
    if insecure { "buzzer_form" } else { "__Host-buzzer_form" }
}

/// Who is logged in, if anybody is.
pub(crate) async fn find(session: &Session) -> Result<Option<Viewer>, Failure> {
    let Some(name) = session.get::<Name>(OWNER).await.map_err(failed)? else { return Ok(None) };
    let Some(csrf) = session.get::<String>(CSRF).await.map_err(failed)? else { return Ok(None) };
    let seen_ms: u64 = session.get(SEEN).await.map_err(failed)?.unwrap_or(0);
    let now_ms = now_ms();
    if u128::from(now_ms.saturating_sub(seen_ms)) >= WRITTEN_AGAIN.as_millis() {
        session.insert(SEEN, now_ms).await.map_err(failed)?;
        if session.get::<u64>(BEGUN).await.map_err(failed)?.is_none() {
            // It is from before sessions said when they began.
            session.insert(BEGUN, now_ms).await.map_err(failed)?;
        }
    }
    Ok(Some(Viewer { name, csrf }))
}

/// Where whoever is logged in shows a password: in his session.
pub(crate) fn origin(session: &Session) -> Result<Origin, Failure> {
    let none = || Failure::Broken("somebody is logged in without a session".to_owned());
    session.id().as_ref().map(key_of).map(Origin::Session).ok_or_else(none)
}

/// Who is logged in, for a page that is for nobody else.
pub(crate) async fn required(session: &Session) -> Result<Viewer, ErrorPage> {
    find(session).await?.ok_or_else(ErrorPage::not_logged_in)
}

/// From now on somebody is logged in, under another session than before. It is kept only while his account is that of the proof.
pub(crate) async fn log_in(
    session: &Session,
    name: &Name,
    proof: Option<&Proof>,
) -> Result<(), Failure> {
    if !matches!(find(session).await, Ok(None)) {
        // Its part of the store may not answer: then it is left, and this one is another.
        session.clear().await;
        if let Err(error) = session.cycle_id().await {
            tracing::warn!(%error, "a former session is left");
        }
    }
    session.insert(OWNER, name).await.map_err(failed)?;
    if let Some(proof) = proof {
        session.insert(PROOF, proof).await.map_err(failed)?;
    }
    session.insert(CSRF, token()?).await.map_err(failed)?;
    let now_ms = now_ms();
    session.insert(BEGUN, now_ms).await.map_err(failed)?;
    session.insert(SEEN, now_ms).await.map_err(failed)
}

/// What was asked for is done, and whoever asked for it is not logged in.
pub(crate) struct NoSession;

/// Logs in whoever has what he asked for already.
pub(crate) async fn log_in_after(
    session: &Session,
    name: &Name,
    proof: &Proof,
) -> Result<(), NoSession> {
    log_in(session, name, Some(proof)).await.map_err(|failure| {
        tracing::warn!(%failure, "somebody is not logged in");
        NoSession
    })
}

/// From now on nobody is.
pub(crate) async fn log_out(session: &Session) -> Result<(), Failure> {
    session.flush().await.map_err(|error| Failure::Indeterminate(format!("the session: {error}")))
}

/// Whether two texts are equal, in a time that does not tell where they differ.
fn equal(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

impl Viewer {
    /// That a form of his is one of ours.
    pub(crate) fn check(&self, csrf: &str) -> Result<(), ErrorPage> {
        if equal(&self.csrf, csrf) { Ok(()) } else { Err(ErrorPage::foreign_form()) }
    }
}

/// What the forms of somebody who is not logged in have in them.
pub(crate) fn form_token(app: &Shared, cookies: &Cookies) -> Result<String, Failure> {
    let name = form_cookie(app.settings.insecure);
    if let Some(there) = cookies.get(name).filter(|there| there.value().len() == 32) {
        return Ok(there.value().to_owned());
    }
    let token = token()?;
    let cookie = Cookie::build((name, token.clone()));
    let cookie = cookie.http_only(true).same_site(SameSite::Lax).secure(!app.settings.insecure);
    cookies.add(cookie.path("/").build());
    Ok(token)
}

/// That such a form is one of ours.
pub(crate) fn check_form_token(
    app: &Shared,
    cookies: &Cookies,
    csrf: &str,
) -> Result<(), ErrorPage> {
    match cookies.get(form_cookie(app.settings.insecure)) {
        Some(there) if there.value().len() == 32 && equal(there.value(), csrf) => Ok(()),
        _ => Err(ErrorPage::foreign_form()),
    }
}

/// Whether what changes something was sent by a page of ours, or by a program: browsers say where it is from.
pub(crate) fn is_ours(headers: &HeaderMap) -> bool {
    // What is no text is of no site of ours.
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    match (text("origin"), text("host")) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    }
}

/// Whether the content is JSON: no form of another site can send that.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::{Arc, Mutex};
    use tower_sessions::session::{Id, Record};
    use tower_sessions::{SessionStore, session_store};

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        all.iter().map(pair).collect()
    }

    /// Keeps one session, and counts how often it was written.
    #[derive(Debug, Default)]
    struct One(Mutex<(Option<Record>, usize)>);

    #[async_trait]
    impl SessionStore for One {
        async fn create(&self, record: &mut Record) -> session_store::Result<()> {
            self.save(record).await
        }

        async fn save(&self, record: &Record) -> session_store::Result<()> {
            let mut kept = self.0.lock().unwrap();
            *kept = (Some(record.clone()), kept.1 + 1);
            Ok(())
        }

        async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
            Ok(self.0.lock().unwrap().0.clone().filter(|record| record.id == *id))
        }

        async fn delete(&self, _: &Id) -> session_store::Result<()> {
            self.0.lock().unwrap().0 = None;
            Ok(())
        }
    }

    /// What the layer of sessions does behind a page.
    async fn end_page(session: &Session) {
        if session.is_modified() {
            session.save().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_session_is_written_at_login_and_then_hourly() {
        let store = Arc::new(One::default());
        let page = |id| Session::new(id, Arc::clone(&store), None);
        let session = page(None);
        assert!(find(&session).await.unwrap().is_none());
        log_in(&session, &Name::new("alice").unwrap(), None).await.unwrap();
        end_page(&session).await;
        let id = session.id();
        let viewer = find(&page(id)).await.unwrap().unwrap();
        assert_eq!((viewer.name.as_str(), viewer.csrf.len()), ("alice", 32));
        for _ in 0..3 {
            let session = page(id);
            find(&session).await.unwrap().unwrap();
            end_page(&session).await;
        }
        assert_eq!(store.0.lock().unwrap().1, 1);

        let session = page(id);
        session.insert(SEEN, now_ms() - 3_600_000).await.unwrap();
        end_page(&session).await;
        for _ in 0..3 {
            let session = page(id);
            find(&session).await.unwrap().unwrap();
            end_page(&session).await;
        }
        assert_eq!(store.0.lock().unwrap().1, 3);
        // Who logs in again has another session, and the former is no more.
        let session = page(id);
        log_in(&session, &Name::new("bob").unwrap(), None).await.unwrap();
        end_page(&session).await;
        assert_ne!(session.id(), id);
        assert!(find(&page(id)).await.unwrap().is_none());
        log_out(&session).await.unwrap();
        assert!(store.0.lock().unwrap().0.is_none());
    }

    #[tokio::test]
    async fn a_session_keeps_its_beginning() {
        let store = Arc::new(One::default());
        let page = |id| Session::new(id, Arc::clone(&store), None);
        let begun_ms = || {
            let kept = store.0.lock().unwrap();
            kept.0.as_ref().unwrap().data.get(BEGUN).and_then(|begun| begun.as_u64())
        };
        let session = page(None);
        let before_ms = now_ms();
        log_in(&session, &Name::new("alice").unwrap(), None).await.unwrap();
        end_page(&session).await;
        assert!(begun_ms() >= Some(before_ms));
        let id = session.id();
        // One that is written again has the same beginning; one that has none, as those of former versions, gets one then.
        for (begun, after) in [(Some(7), Some(7)), (None, Some(before_ms))] {
            let session = page(id);
            session.insert(SEEN, 0).await.unwrap();
            match begun {
                Some(begun_ms) => session.insert(BEGUN, begun_ms).await.unwrap(),
                None => drop(session.remove_value(BEGUN).await.unwrap()),
            }
            end_page(&session).await;
            let session = page(id);
            find(&session).await.unwrap().unwrap();
            end_page(&session).await;
            assert!(if begun.is_some() { begun_ms() == after } else { begun_ms() >= after });
        }
    }

    #[test]
    fn what_other_sites_send_is_not_ours() {
        let ours = [
            headers(&[]),
            headers(&[("host", "b.example"), ("origin", "https://b.example")]),
            headers(&[("sec-fetch-site", "same-origin")]),
            headers(&[("sec-fetch-site", "none")]),
        ];
        assert!(ours.iter().all(is_ours));
        let others = [
            headers(&[("host", "b.example"), ("origin", "https://evil.example")]),
            headers(&[("host", "b.example"), ("origin", "null")]),
            headers(&[("origin", "https://b.example")]),
            headers(&[("sec-fetch-site", "cross-site")]),
            headers(&[("sec-fetch-site", "same-site")]),
            headers(&[("sec-fetch-site", "cross-site"), ("host", "b"), ("origin", "http://b")]),
        ];
        assert!(!others.iter().any(is_ours));
    }

    #[test]
    fn json_says_so() {
        assert!(is_json(&headers(&[("content-type", "application/json; charset=utf-8")])));
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
            assert!(!is_json(&headers(&[("content-type", kind)])));
        }
    }
}
