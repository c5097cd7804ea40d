//! Pages that say what went wrong, and what to do.

use super::pages::{Again, ErrorText, html};
use super::visitor::NoSession;
use crate::network::Failure;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// What went wrong.
#[derive(Debug)]
pub(crate) enum ErrorPage {
    /// There is a page for it.
    Page(Box<ErrorText>),
    /// One has to be logged in.
    LogIn,
}

impl ErrorPage {
    pub(crate) fn new(status: StatusCode, title: &str, text: &str) -> ErrorPage {
        let (title, text) = (title.to_owned(), text.to_owned());
        let (again, look, pause) = (None, false, None);
        ErrorPage::Page(Box::new(ErrorText { status, title, text, again, look, pause }))
    }

    /// Nothing was done since there was too much of it, and that changes by itself: with the time after which it is worth trying again.
    pub(crate) fn later(status: StatusCode, title: &str, text: &str, pause: Duration) -> ErrorPage {
        let mut trouble = ErrorPage::new(status, title, text);
        if let ErrorPage::Page(page) = &mut trouble {
            page.pause = Some(pause);
        }
        trouble
    }

    pub(crate) fn not_logged_in() -> ErrorPage {
        ErrorPage::LogIn
    }

    pub(crate) fn not_found(text: &str) -> ErrorPage {
        ErrorPage::new(StatusCode::NOT_FOUND, "Not here", text)
    }

    pub(crate) fn foreign_form() -> ErrorPage {
        let text = "This form is not one that this site gave you, or you have logged in or out since, or your browser keeps no cookies of this site, as over plain HTTP. Nothing was done. Load the page again.";
        ErrorPage::new(StatusCode::FORBIDDEN, "Not accepted", text)
    }

    /// Whoever typed something is not logged in any more: it is kept on the page, to be sent when he is.
    pub(crate) fn logged_out(again: Again) -> ErrorPage {
        let text = "You are not logged in any more, and nothing was posted. Log in in another window, then send it here.";
        let mut trouble = ErrorPage::new(StatusCode::UNAUTHORIZED, "You are not logged in", text);
        if let ErrorPage::Page(page) = &mut trouble {
            page.again = Some(again);
        }
        trouble
    }

    /// With what was typed, and a button to send it again.
    pub(crate) fn again(mut self, again: Again) -> ErrorPage {
        if let ErrorPage::Page(page) = &mut self
            && (page.status.is_server_error() || page.pause.is_some())
        {
            page.again = Some(again);
        }
        self
    }
}

impl From<NoSession> for ErrorPage {
    fn from(NoSession: NoSession) -> ErrorPage {
        let text =
            "What you asked for is done, but your session could not be kept. Log in in a moment.";
        ErrorPage::new(StatusCode::SERVICE_UNAVAILABLE, "You are not logged in", text)
    }
}

impl From<Failure> for ErrorPage {
    fn from(failure: Failure) -> ErrorPage {
        let (status, title, text) = match &failure {
            Failure::Unavailable(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Not available at this moment",
                "A part of the store does not answer. Nothing was changed. Try again in a moment.",
            ),
            Failure::Indeterminate(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "It may have happened",
                "A part of the store did not say whether it was done. You can send it again: it is done once only.",
            ),
            Failure::Broken(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Something is broken",
                "This site found something that should not be. It has been noted for those who run it.",
            ),
        };
        match &failure {
            Failure::Broken(_) => tracing::error!(%failure, "a page cannot be made"),
            _ => tracing::warn!(%failure, "a page cannot be made now"),
        }
        let mut trouble = ErrorPage::new(status, title, text);
        if let ErrorPage::Page(page) = &mut trouble {
            page.look = status == StatusCode::SERVICE_UNAVAILABLE;
        }
        trouble
    }
}

/// An answer that says when it is worth trying again.
pub(crate) fn with_pause(mut response: Response, pause: Option<Duration>) -> Response {
    if let Some(pause) = pause {
        response.headers_mut().insert(RETRY_AFTER, (pause.as_secs() + 1).into());
    }
    response
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        match self {
            ErrorPage::LogIn => Redirect::to("/login").into_response(),
            ErrorPage::Page(page) => with_pause(html(page.status, &*page), page.pause),
        }
    }
}

/// What stands behind the question mark of a page's address.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, ErrorPage> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(params)| Params(params)).map_err(|_| {
            let text = "This address is of no page. Begin with the first one.";
            ErrorPage::new(StatusCode::BAD_REQUEST, "No such page", text)
        })
    }
}

/// Parts of a page's address.
pub(crate) struct InPath<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath<T>, ErrorPage> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(found)| InPath(found))
            .map_err(|_| ErrorPage::not_found("There is no such page."))
    }
}

/// The fields of a form; what is no form gets a page that says so.
pub(crate) struct Fields<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Fields<T> {
    type Rejection = ErrorPage;

    async fn from_request(request: Request, state: &S) -> Result<Fields<T>, ErrorPage> {
        let form: Result<axum::Form<T>, FormRejection> =
            axum::Form::from_request(request, state).await;
        form.map(|axum::Form(fields)| Fields(fields)).map_err(|rejection| {
            ErrorPage::new(
                rejection.status(),
                "Not accepted",
                "This is no form that this site gave you, or it is too long.",
            )
        })
    }
}
