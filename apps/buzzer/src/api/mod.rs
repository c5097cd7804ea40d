//! The network as JSON, under `/api/v1`. What there is is described by the page `/api`, whose template is `templates/api.html`.

mod accounts;
mod answers;
mod error;
mod posts;

pub(crate) use error::ApiError;

use crate::web::Shared;
use crate::web::visitor::is_json;
use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{delete, get, post, put};
use serde::de::DeserializeOwned;

/// A body in JSON; another one is refused, with the reason.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, ApiError> {
        if !is_json(request.headers()) {
            let message = "a body needs Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", message));
        }
        let body = axum::Json::from_request(request, state).await;
        body.map(|axum::Json(body)| Body(body)).map_err(|rejection| {
            ApiError::new(rejection.status(), "invalid", rejection.body_text())
        })
    }
}

/// What stands behind the question mark; what cannot be read is told as everything else is.
struct Params<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(params)| Params(params)).map_err(|rejection| {
            ApiError::new(rejection.status(), "invalid", rejection.body_text())
        })
    }
}

/// Parts of the path.
struct InPath<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath<T>, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(found)| InPath(found)).map_err(|rejection| {
            ApiError::new(rejection.status(), "invalid", rejection.body_text())
        })
    }
}

/// The routes below `/api/v1`.
pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/accounts", post(accounts::create))
        .route("/account", delete(accounts::delete))
        .route("/password", put(accounts::change_password))
        .route("/session", post(accounts::log_in).get(accounts::who).delete(accounts::log_out))
        .route("/timeline", get(posts::timeline))
        .route("/newest", get(posts::newest))
        .route("/posts", post(posts::post))
        .route("/posts/{author}/{key}", get(posts::one).delete(posts::delete))
        .route("/posts/{author}/{key}/answers", get(posts::answers))
        .route("/users/{name}", get(accounts::profile))
        .route("/users/{name}/posts", get(posts::of_user))
        .route("/users/{name}/followers", get(accounts::followers))
        .route("/users/{name}/friends", get(accounts::friends))
        .route("/friends/{name}", put(accounts::follow).delete(accounts::unfollow))
        .fallback(|| async { ApiError::not_found("there is no such route; /api lists them") })
        .method_not_allowed_fallback(|| async {
            let message = "this route has no such method; /api lists them";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", message)
        })
}
