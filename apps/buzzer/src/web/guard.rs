//! What holds for all requests, whatever they ask for.

use super::trouble::Trouble;
use super::visitor::{NoSession, is_ours};
use crate::api::ApiError;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Requests that are under way at a time. What is beyond is turned away at once, so that the rest is served.
const AT_A_TIME: usize = 1024;

/// Nothing from anywhere else, and nothing that is written into a page.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Room for requests.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

fn is_api(request: &Request) -> bool {
    request.uri().path().starts_with("/api/v1")
}

/// Turns away what there is no room for.
pub(super) async fn bounded(State(room): State<Room>, request: Request, next: Next) -> Response {
    if let Ok(_room) = room.0.try_acquire() {
        return next.run(request).await;
    }
    let mut response = if is_api(&request) {
        ApiError::busy("too many requests at this moment; nothing happened; try again")
            .into_response()
    } else {
        let text = "Too many requests are under way. Nothing was changed. Try again in a moment.";
        Trouble::new(StatusCode::SERVICE_UNAVAILABLE, "Not available at this moment", text)
            .into_response()
    };
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
            Trouble::foreign_form().into_response()
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
        Trouble::from(NoSession).into_response()
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
