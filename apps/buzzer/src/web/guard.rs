//! What holds for all requests, whatever they ask for.

use super::Shared;
use super::error_page::ErrorPage;
use super::metrics::Came;
use super::visitor::{NoSession, is_ours};
use crate::api::ApiError;
use crate::places::NoPlace;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, RETRY_AFTER,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Requests that are under way at a time. What is beyond is turned away at once, so that the rest is served.
pub(super) const AT_A_TIME: usize = 1024;

/// Bytes of a body: a post, with room for how browsers write it.
const BODY_BYTES: usize = 16 * 1024;

/// So long it may take to come.
const BODY: Duration = Duration::from_secs(10);

/// Nothing from anywhere else, and nothing that is written into a page.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Whether something is done for whoever is at the other end of a connection, rather than that it is waited for him: then since when. One thing is done at a time.
#[derive(Clone, Debug)]
pub(crate) struct Busy(Arc<Mutex<Option<Instant>>>);

/// Something that is done, until it is dropped.
pub(crate) struct Doing(Busy);

impl Default for Busy {
    fn default() -> Busy {
        Busy(Arc::new(Mutex::new(Some(Instant::now()))))
    }
}

impl Busy {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) -> Doing {
        *self.lock() = None;
        Doing(self.clone())
    }

    /// Since when it is waited for the visitor; none while something is done for him.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        *self.lock()
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        *self.0.lock() = Some(Instant::now());
    }
}

fn is_api(request: &Request) -> bool {
    request.uri().path().starts_with("/api/v1")
}

/// What is said, as a page or as JSON.
fn said(is_api: bool, status: StatusCode, code: &'static str, title: &str, text: &str) -> Response {
    if is_api {
        ApiError::new(status, code, text).into_response()
    } else {
        ErrorPage::new(status, title, text).into_response()
    }
}

/// The body, all of it, or why there is none.
async fn body_of(body: Body, is_api: bool) -> Result<Bytes, Response> {
    let refused = |status, title, text| said(is_api, status, "invalid", title, text);
    match timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Too much",
            "This is more than anybody can send. Nothing was done.",
        )),
        Ok(Err(_)) => {
            let text = "What was sent broke off. Nothing was done.";
            Err(refused(StatusCode::BAD_REQUEST, "Not understood", text))
        }
        Err(_) => {
            let text = "What was sent did not come to its end in time. Nothing was done.";
            let mut response = refused(StatusCode::REQUEST_TIMEOUT, "Too slow", text);
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            Err(response)
        }
    }
}

/// Turns away what there is no room for. That is looked at when all of the request is there: whoever sends one slowly keeps nobody out.
pub(super) async fn bounded(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let (is_api, since) = (is_api(&request), Instant::now());
    let (parts, body) = request.into_parts();
    let body = body_of(body, is_api).await;
    let came = Came(since.elapsed());
    let mut response = match body {
        Ok(body) => with_place(&app, Request::from_parts(parts, Body::from(body)), next).await,
        Err(response) => response,
    };
    response.extensions_mut().insert(came);
    response
}

/// What is answered where there is room.
async fn with_place(app: &Shared, mut request: Request, next: Next) -> Response {
    let busy = request.extensions_mut().remove::<Busy>();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |peer| peer.0);
    let text = match app.room.take(app.address(peer, request.headers()), ()) {
        Ok(_place) => {
            let _doing = busy.as_ref().map(Busy::begin);
            return next.run(request).await;
        }
        Err(NoPlace::Share) => {
            "Too many requests from your network are under way. Nothing was changed. Try again in a moment."
        }
        Err(NoPlace::Full) => {
            "Too many requests are under way. Nothing was changed. Try again in a moment."
        }
    };
    let (is_api, status) = (is_api(&request), StatusCode::SERVICE_UNAVAILABLE);
    let mut response = said(is_api, status, "unavailable", "Not available at this moment", text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Sees to it that a `__Host-` cookie that is removed is so: browsers take nothing about it that is not `Secure`.
fn secure_removals(headers: &mut HeaderMap) {
    let told: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    let lacks = |value: &str| value.starts_with("__Host-") && !value.contains("; Secure");
    if !told.iter().filter_map(|value| value.to_str().ok()).any(lacks) {
        return;
    }
    headers.remove(SET_COOKIE);
    for value in told {
        let mended = value.to_str().ok().filter(|text| lacks(text));
        let mended = mended.and_then(|text| HeaderValue::try_from(format!("{text}; Secure")).ok());
        headers.append(SET_COOKIE, mended.unwrap_or(value));
    }
}

/// Headers that keep browsers from doing what no page of ours wants.
pub(super) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "same-origin");
    set(CACHE_CONTROL, "no-store");
    response
}

/// Refuses what changes something and comes from another site; and makes a page of an answer that the sessions' layer could not give.
pub(super) async fn only_ours(request: Request, next: Next) -> Response {
    let (is_api, is_safe) = (is_api(&request), request.method().is_safe());
    if !is_safe && !is_ours(request.headers()) {
        return if is_api {
            ApiError::foreign().into_response()
        } else {
            ErrorPage::foreign_form().into_response()
        };
    }
    let mut response = next.run(request).await;
    secure_removals(response.headers_mut());
    let is_blank = response.body().size_hint().exact() == Some(0);
    if response.status() != StatusCode::INTERNAL_SERVER_ERROR || !is_blank {
        return response;
    }
    // Of all that is written of sessions only a new one is answered for so, behind what was asked for.
    if is_api {
        ApiError::from(NoSession).into_response()
    } else {
        ErrorPage::from(NoSession).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_removes_a_cookie_is_taken_by_browsers() {
        let mut headers = HeaderMap::new();
        for cookie in ["__Host-buzzer=; Path=/; Max-Age=0", "other=1", "__Host-a=1; Secure; Path=/"]
        {
            headers.append(SET_COOKIE, HeaderValue::from_static(cookie));
        }
        secure_removals(&mut headers);
        let told: Vec<_> = headers.get_all(SET_COOKIE).iter().collect();
        let expected =
            ["__Host-buzzer=; Path=/; Max-Age=0; Secure", "other=1", "__Host-a=1; Secure; Path=/"];
        assert_eq!(told, expected);
    }
}
