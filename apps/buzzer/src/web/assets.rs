//! What pages are shown with, compiled in.

use super::Shared;
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=300")], text).into_response()
}

/// Where they are.
pub(super) fn routes() -> Router<Shared> {
    let style =
        || async { asset("text/css; charset=utf-8", include_str!("../../assets/style.css")) };
    let script = || async {
        asset("text/javascript; charset=utf-8", include_str!("../../assets/buzzer.js"))
    };
    let icon = || async { asset("image/svg+xml", include_str!("../../assets/icon.svg")) };
    Router::new()
        .route("/style.css", get(style))
        .route("/buzzer.js", get(script))
        .route("/icon.svg", get(icon))
}

#[cfg(test)]
mod tests;
