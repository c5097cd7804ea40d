//! Whether the application can serve: it can if all partitions of the store answer.

use super::{Shared, to_its_end};
use crate::network::Failure;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What was found is told for so long: to ask often costs the store nothing.
const KNOWN: Duration = Duration::from_secs(1);

/// What was found less than so long ago is told while the store is being asked; else that is waited for.
const OLD: Duration = Duration::from_secs(10);

/// When something was found, and what was wrong.
type Found = (Instant, Option<String>);

/// What was found last.
#[derive(Default)]
pub(super) struct Health {
    found: StdMutex<Option<Found>>,
    /// Had by the one who asks.
    asking: Arc<Mutex<()>>,
}

impl Health {
    /// What was found less than so long ago.
    fn found_within(&self, age: Duration) -> Option<Found> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone().filter(|(when, _)| when.elapsed() < age)
    }

    fn find(&self, problem: Option<String>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        *found = Some((Instant::now(), problem));
    }

    /// What is wrong, if anything is. One asks at a time, and to the end, also where whoever began it hangs up: else those who have little patience would hear for ever what
    /// was found when all was well.
    async fn problem(
        self: &Arc<Health>,
        check: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Option<String> {
        if let Some((_, problem)) = self.found_within(KNOWN) {
            return problem;
        }
        let asking = match Arc::clone(&self.asking).try_lock_owned() {
            Ok(asking) => asking,
            Err(_) => {
                if let Some((_, problem)) = self.found_within(OLD) {
                    return problem;
                }
                let asking = Arc::clone(&self.asking).lock_owned().await;
                if let Some((_, problem)) = self.found_within(KNOWN) {
                    return problem;
                }
                asking
            }
        };
        let health = Arc::clone(self);
        let asked = to_its_end(async move {
            let problem = check.await.err().map(|failure| failure.to_string());
            health.find(problem.clone());
            drop(asking);
            problem
        });
        asked.await.unwrap_or_else(|failure| Some(failure.to_string()))
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

async fn problem(app: &Shared) -> Option<String> {
    let network = Arc::clone(&app.network);
    app.health.problem(async move { network.check_health().await }).await
}

/// For everybody.
pub(super) async fn answer(State(app): State<Shared>) -> Response {
    told(problem(&app).await.as_deref(), false)
}

/// With what is wrong.
pub(super) async fn detailed(State(app): State<Shared>) -> Response {
    told(problem(&app).await.as_deref(), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::{pending, ready};
    use tokio::sync::{Notify, oneshot};

    fn down() -> Failure {
        Failure::Unavailable("it is down".to_owned())
    }

    fn found(health: &Health, ago: Duration) {
        *health.found.lock().unwrap() = Some((Instant::now() - ago, None));
    }

    #[tokio::test]
    async fn what_was_found_is_told_for_a_second() {
        let health = Arc::new(Health::default());
        assert_eq!(health.problem(ready(Ok(()))).await, None);
        assert_eq!(health.problem(ready(Err(down()))).await, None);
        found(&health, KNOWN);
        assert!(health.problem(ready(Err(down()))).await.unwrap().contains("it is down"));
    }

    #[tokio::test]
    async fn who_hangs_up_leaves_what_he_asked_to_others() {
        let health = Arc::new(Health::default());
        found(&health, KNOWN);
        let (answers, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (waits, told) = (Arc::clone(&answers), Arc::clone(&goes_on));
        let asked = Arc::clone(&health).problem_in_time(async move {
            waits.notified().await;
            told.notify_one();
            Err(down())
        });
        assert_eq!(asked, None, "he does not wait");
        answers.notify_one();
        goes_on.notified().await;
        let asking = health.asking.lock().await;
        assert!(health.found_within(KNOWN).unwrap().1.unwrap().contains("it is down"));
        drop(asking);
    }

    #[tokio::test]
    async fn what_is_old_is_not_told() {
        let health = Arc::new(Health::default());
        found(&health, KNOWN);
        let (answers, problem) = oneshot::channel();
        let check = async { problem.await.unwrap() };
        assert_eq!(Arc::clone(&health).problem_in_time(check), None);
        let before = Arc::clone(&health).problem_in_time(pending());
        assert_eq!(before, Some(None), "what was found a moment before");
        found(&health, OLD);
        let late = tokio::spawn({
            let health = Arc::clone(&health);
            async move { health.problem(ready(Ok(()))).await }
        });
        answers.send(Err(down())).unwrap();
        assert!(late.await.unwrap().unwrap().contains("it is down"));
    }

    impl Health {
        /// What is told whoever has no patience at all, if that is anything.
        fn problem_in_time(
            self: Arc<Health>,
            check: impl Future<Output = Result<(), Failure>> + Send + 'static,
        ) -> Option<Option<String>> {
            self.problem(check).now_or_never()
        }
    }
}
