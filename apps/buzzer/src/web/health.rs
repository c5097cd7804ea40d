//! Whether the application can serve: it can if all partitions of the store answer.

use super::Shared;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What was found is told for so long: to ask often costs the store nothing.
const KNOWN: Duration = Duration::from_secs(1);

/// What was found last: when, and what is wrong.
#[derive(Default)]
pub(super) struct Health(Mutex<Option<(Instant, Option<String>)>>);

/// Whether this process serves, whatever the store does.
pub(super) async fn live() -> &'static str {
    "ok"
}

pub(super) async fn answer(State(app): State<Shared>) -> Response {
    let mut known = app.health.0.lock().await;
    let problem = match &*known {
        Some((when, problem)) if when.elapsed() < KNOWN => problem.clone(),
        _ => {
            let problem = app.network.check_health().await.err().map(|failure| failure.to_string());
            *known = Some((Instant::now(), problem.clone()));
            problem
        }
    };
    match problem {
        None => Json(json!({ "status": "ok" })).into_response(),
        Some(detail) => {
            let told = json!({ "status": "unavailable", "detail": detail });
            (StatusCode::SERVICE_UNAVAILABLE, Json(told)).into_response()
        }
    }
}
