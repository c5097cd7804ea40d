//! What holds for all requests, whatever they ask for.

use super::trouble::Trouble;
use super::visitor::is_ours;
use crate::api::ApiError;
use crate::network::Failure;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
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
    match room.0.try_acquire() {
        Ok(_room) => next.run(request).await,
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "Too many requests at this moment. Try again.")
            .into_response(),
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
    let response = next.run(request).await;
    let is_blank = response.body().size_hint().exact() == Some(0);
    if response.status() != StatusCode::INTERNAL_SERVER_ERROR || !is_blank {
        return response;
    }
    let failure = Failure::Unavailable("a session could not be written".to_owned());
    if is_api {
        ApiError::from(failure).into_response()
    } else {
        Trouble::from(failure).into_response()
    }
}
