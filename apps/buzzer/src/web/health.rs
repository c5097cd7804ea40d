//! Whether the application can serve: it can if all partitions of the store answer.

use super::Shared;
use crate::network::Network;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What was found is told for so long: to ask often costs the store nothing.
const KNOWN: Duration = Duration::from_secs(1);

/// What was found last.
#[derive(Default)]
pub(super) struct Health {
    /// When, and what was wrong.
    found: StdMutex<Option<(Instant, Option<String>)>>,
    /// Had by the one who asks.
    asking: Mutex<()>,
}

impl Health {
    fn known(&self) -> MutexGuard<'_, Option<(Instant, Option<String>)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong, if anything is. While one asks, others are told what was found before.
    async fn problem(&self, network: &dyn Network) -> Option<String> {
        let fresh = |found: &(Instant, _)| found.0.elapsed() < KNOWN;
        if let Some((_, problem)) = self.known().clone().filter(fresh) {
            return problem;
        }
        let Ok(_asking) = self.asking.try_lock() else {
            let unknown = || Some("the store is being asked for the first time".to_owned());
            return self.known().clone().map_or_else(unknown, |(_, problem)| problem);
        };
        let problem = network.check_health().await.err().map(|failure| failure.to_string());
        *self.known() = Some((Instant::now(), problem.clone()));
        problem
    }
}

/// Whether this process serves, whatever the store does.
pub(super) async fn live() -> &'static str {
    "ok"
}

fn told(problem: Option<&str>, detail: bool) -> Response {
    match problem {
        None => Json(json!({ "status": "ok" })).into_response(),
        Some(problem) => {
            let mut told = json!({ "status": "unavailable" });
            if detail {
                told["detail"] = problem.into();
            }
            (StatusCode::SERVICE_UNAVAILABLE, Json(told)).into_response()
        }
    }
}

/// For everybody.
pub(super) async fn answer(State(app): State<Shared>) -> Response {
    told(app.health.problem(&*app.network).await.as_deref(), false)
}

/// With what is wrong.
pub(super) async fn detailed(State(app): State<Shared>) -> Response {
    told(app.health.problem(&*app.network).await.as_deref(), true)
}
