//! Accounts as others see them, and following them.

use super::error_page::{ErrorPage, Fields, InPath, Params};
use super::pages::{Again, ApiPage, NamesPage, ProfilePage, Relation, cards, html};
use super::posts::{Begin, no_page};
use super::visitor;
use super::{ON_A_PAGE, Shared};
use crate::network::{FollowError, Name, PostKey};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::time::Duration;
use tower_sessions::Session;

/// Names on a page.
const NAMES_ON_A_PAGE: u32 = 50;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct FindForm {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct EdgeForm {
    csrf: String,
}

fn nobody() -> ErrorPage {
    ErrorPage::not_found("There is no account of this name.")
}

pub(super) async fn not_found() -> ErrorPage {
    ErrorPage::not_found("There is no such page.")
}

/// What only takes a form was asked for as a page.
pub(super) async fn no_method() -> ErrorPage {
    let text = "This address takes a form, and is no page. Begin with the first one.";
    ErrorPage::new(StatusCode::METHOD_NOT_ALLOWED, "No such page", text)
}

pub(super) async fn find(Params(form): Params<FindForm>) -> Result<Redirect, ErrorPage> {
    let name = form.name.trim().trim_start_matches('@');
    let name = Name::new(name).map_err(|_| nobody())?;
    Ok(Redirect::to(&format!("/u/{name}")))
}

pub(super) async fn api_page(session: Session) -> Result<Response, ErrorPage> {
    let looking = visitor::find(&session).await?;
    Ok(html(StatusCode::OK, &ApiPage { looking }))
}

/// An account with its posts.
pub(super) async fn profile(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    let looking = visitor::find(&session).await?;
    let name = Name::new(&name).map_err(|_| nobody())?;
    let after = from.after.map(|text| text.parse::<PostKey>()).transpose();
    let after = after.map_err(|_| no_page())?;
    let profile = app.network.profile(&name).await?.ok_or_else(nobody)?;
    let follows = match &looking {
        Some(viewer) if viewer.name != name => app.network.follows(&viewer.name, &name).await?,
        _ => false,
    };
    let page = app.network.posts(&name, after, ON_A_PAGE).await?;
    let relation = Relation::of(looking.as_ref(), &name, follows);
    let cards = cards(page.items, looking.as_ref());
    let (next, is_first) = (page.next.map(|next| next.to_string()), after.is_none());
    Ok(html(StatusCode::OK, &ProfilePage { looking, profile, relation, is_first, cards, next }))
}

async fn names(
    app: Shared,
    session: Session,
    name: &str,
    from: Begin,
    are_followers: bool,
) -> Result<Response, ErrorPage> {
    let looking = visitor::find(&session).await?;
    let of = Name::new(name).map_err(|_| nobody())?;
    let after = from.after.map(|text| Name::new(&text)).transpose().map_err(|_| no_page())?;
    app.network.profile(&of).await?.ok_or_else(nobody)?;
    let page = match are_followers {
        true => app.network.followers(&of, after.as_ref(), NAMES_ON_A_PAGE).await?,
        false => app.network.friends(&of, after.as_ref(), NAMES_ON_A_PAGE).await?,
    };
    let (names, next) = (page.items, page.next);
    Ok(html(StatusCode::OK, &NamesPage { looking, of, are_followers, names, next }))
}

pub(super) async fn followers(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    names(app, session, &name, from, true).await
}

pub(super) async fn friends(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    names(app, session, &name, from, false).await
}

/// Follows somebody, or no longer.
async fn edge(
    app: Shared,
    session: Session,
    name: &str,
    form: EdgeForm,
    wanted: bool,
) -> Result<Response, ErrorPage> {
    let whom = Name::new(name).map_err(|_| nobody())?;
    let again = Again {
        action: format!("/u/{whom}/{}", if wanted { "follow" } else { "unfollow" }),
        fields: vec![("csrf", form.csrf.clone())],
        text: None,
        button: "Try again",
    };
    let done = async {
        let viewer = visitor::required(&session).await?;
        viewer.check(&form.csrf)?;
        app.writes.count(&viewer.name)?;
        if wanted {
            app.network.follow(&viewer.name, &whom).await.map_err(not_followed)?;
        } else {
            app.network.unfollow(&viewer.name, &whom).await?;
        }
        Ok(Redirect::to(&format!("/u/{whom}")).into_response())
    };
    done.await.map_err(|trouble: ErrorPage| trouble.again(again))
}

fn not_followed(error: FollowError) -> ErrorPage {
    match error {
        FollowError::Failed(failure) => failure.into(),
        FollowError::Nobody => nobody(),
        FollowError::AtOnce => {
            let (status, text) = (StatusCode::TOO_MANY_REQUESTS, error.to_string());
            ErrorPage::later(status, "Not followed", &text, Duration::ZERO)
        }
        FollowError::Busy => {
            let (status, text) = (StatusCode::SERVICE_UNAVAILABLE, error.to_string());
            ErrorPage::later(status, "Not followed", &text, Duration::ZERO)
        }
        error => ErrorPage::new(StatusCode::CONFLICT, "Not followed", &error.to_string()),
    }
}

pub(super) async fn follow(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
    Fields(form): Fields<EdgeForm>,
) -> Result<Response, ErrorPage> {
    edge(app, session, &name, form, true).await
}

pub(super) async fn unfollow(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
    Fields(form): Fields<EdgeForm>,
) -> Result<Response, ErrorPage> {
    edge(app, session, &name, form, false).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::header::RETRY_AFTER;

    fn again() -> Again {
        Again {
            action: "/u/bob/follow".to_owned(),
            fields: vec![],
            text: None,
            button: "Try again",
        }
    }

    #[test]
    fn what_was_too_much_is_told_as_it_is_and_can_be_tried_again() {
        for (error, status) in [(FollowError::AtOnce, 429), (FollowError::Busy, 503)] {
            let told = not_followed(error).again(again());
            let ErrorPage::Page(page) = &told else { panic!("{told:?}") };
            assert!(page.again.is_some() && !page.text.contains("store"), "{}", page.text);
            let response = told.into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()[RETRY_AFTER], "1");
        }
    }
}
