//! What went wrong, as JSON.

use crate::network::{CreateError, Failure, FollowError, InputError, LoginError, PostError};
use crate::web::visitor::NoSession;
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::time::Duration;

/// An answer that is an error.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    pause: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl ToString) -> ApiError {
        ApiError { status, code, message: message.to_string(), pause: None }
    }

    /// With more to say.
    pub(crate) fn and(mut self, more: &str) -> ApiError {
        self.message.push_str(more);
        self
    }

    pub(crate) fn not_found(message: impl ToString) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn not_logged_in() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "not_logged_in", "log in first")
    }

    pub(crate) fn foreign() -> ApiError {
        let message = "this came from a page of another site";
        ApiError::new(StatusCode::FORBIDDEN, "foreign", message)
    }

    pub(crate) fn conflict(code: &'static str, message: impl ToString) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, code, message)
    }

    pub(crate) fn throttled(pause: Duration) -> ApiError {
        ApiError::too_much("too many tries; see Retry-After", pause)
    }

    /// There was too much of it, and nothing happened.
    pub(crate) fn too_much(message: impl ToString, pause: Duration) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "throttled", message);
        ApiError { pause: Some(pause), ..error }
    }

    pub(crate) fn full(message: impl ToString) -> ApiError {
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "full", message)
    }

    pub(crate) fn busy(message: impl ToString) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(pause) = self.pause {
            response.headers_mut().insert(RETRY_AFTER, (pause.as_secs() + 1).into());
        }
        response
    }
}

impl From<NoSession> for ApiError {
    fn from(NoSession: NoSession) -> ApiError {
        let message = "it is done, but your session could not be kept: log in";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_session", message)
    }
}

impl From<InputError> for ApiError {
    fn from(error: InputError) -> ApiError {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error)
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        // What exactly fails is for those who run it.
        match &failure {
            Failure::Unavailable(_) => {
                tracing::warn!(%failure, "a request cannot be answered now");
                ApiError::busy("a part of the store does not answer; nothing happened; try again")
            }
            Failure::Indeterminate(_) => {
                tracing::warn!(%failure, "what became of a request is not known");
                let message = "the store did not say whether it happened";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "indeterminate", message)
            }
            Failure::Broken(_) => {
                tracing::error!(%failure, "a request cannot be answered");
                let message = "something is not as it should be";
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", message)
            }
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> ApiError {
        match error {
            CreateError::Taken => ApiError::conflict("taken", error),
            CreateError::Full => ApiError::full(error),
            CreateError::Busy => ApiError::busy(error),
            CreateError::Failed(failure) => failure.into(),
        }
    }
}

impl From<LoginError> for ApiError {
    fn from(error: LoginError) -> ApiError {
        match error {
            LoginError::Wrong => ApiError::new(StatusCode::UNAUTHORIZED, "wrong_password", error),
            LoginError::Throttled(pause) => ApiError::throttled(pause),
            LoginError::Busy => ApiError::busy(error),
            LoginError::Failed(failure) => failure.into(),
        }
    }
}

impl From<FollowError> for ApiError {
    fn from(error: FollowError) -> ApiError {
        match error {
            FollowError::Nobody | FollowError::NoAccount => ApiError::not_found(error),
            FollowError::Oneself => {
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error)
            }
            FollowError::TooMany => ApiError::conflict("too_many", error),
            FollowError::AtOnce => ApiError::too_much(error, Duration::ZERO),
            FollowError::Busy => ApiError { pause: Some(Duration::ZERO), ..ApiError::busy(error) },
            FollowError::Failed(failure) => failure.into(),
        }
    }
}

impl From<PostError> for ApiError {
    fn from(error: PostError) -> ApiError {
        match error {
            PostError::NoAccount | PostError::AnswersNothing => ApiError::not_found(error),
            PostError::BeforeAnswered => {
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error)
            }
            PostError::KeyTaken => {
                ApiError::conflict("taken", "there is another post of yours under this key")
            }
            PostError::Full => ApiError::full(error),
            PostError::Failed(failure) => failure.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_follows_are_not_the_stores_fault() {
        for (error, status, code) in
            [(FollowError::AtOnce, 429, "throttled"), (FollowError::Busy, 503, "unavailable")]
        {
            let told = ApiError::from(error);
            assert!((told.status.as_u16(), told.code) == (status, code), "{told:?}");
            assert!(!told.message.contains("store"), "{told:?}");
            assert_eq!(told.into_response().headers()[RETRY_AFTER], "1");
        }
    }
}
