//! Timelines, posts, and the form of a post.

use super::compose::{Compose, KeyError, PostForm, check_key, new_key};
use super::error_page::{ErrorPage, Fields, InPath, Params};
use super::pages::{
    Again, Card, ComposePage, NewestPage, PostPage, TimelinePage, WelcomePage, answers, cards,
    compose_for, html,
};
use super::visitor::{self, Viewer, now_ms};
use super::{ON_A_PAGE, Shared};
use crate::network::{Failure, Name, NewPost, PostError, PostId, PostKey, Text};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use tower_sessions::Session;

/// Where a page begins.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Begin {
    pub(super) after: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct DeleteForm {
    csrf: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct KeyFor {
    answers: String,
}

pub(super) fn no_page() -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "No such page",
        "This address is of no page. Begin with the first one.",
    )
}

impl Begin {
    /// Behind which post of several authors', if that is said.
    fn after(self) -> Result<Option<PostId>, ErrorPage> {
        self.after.map(|text| text.parse::<PostId>()).transpose().map_err(|_| no_page())
    }
}

/// The post with this address.
fn post_id(name: &str, key: &str) -> Result<PostId, ErrorPage> {
    let found = || Some(PostId { author: Name::new(name).ok()?, key: key.parse().ok()? });
    found().ok_or_else(no_post)
}

fn no_post() -> ErrorPage {
    ErrorPage::not_found("There is no such post, or it was deleted.")
}

pub(super) async fn to_first_page() -> Redirect {
    Redirect::to("/")
}

/// The first page: the timeline of whoever is logged in.
pub(super) async fn timeline(
    State(app): State<Shared>,
    session: Session,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    let Some(logged_in) = visitor::find(&session).await? else {
        return Ok(html(StatusCode::OK, &WelcomePage { note: None }));
    };
    let after = from.after()?;
    let page = app.network.timeline(&logged_in.name, after.as_ref(), ON_A_PAGE).await?;
    let viewer = Some(&logged_in);
    let compose = if after.is_none() { compose_for(viewer, None)? } else { None };
    let next = page.next.map(|next| next.to_string());
    let cards = cards(page.items, viewer);
    Ok(html(StatusCode::OK, &TimelinePage { compose, cards, next, logged_in }))
}

/// The newest posts of all.
pub(super) async fn newest(
    State(app): State<Shared>,
    session: Session,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    let looking = visitor::find(&session).await?;
    let after = from.after()?;
    let page = app.network.newest(after.as_ref(), ON_A_PAGE).await?;
    let (next, is_first) = (page.next.map(|next| next.to_string()), after.is_none());
    let cards = cards(page.items, looking.as_ref());
    Ok(html(StatusCode::OK, &NewestPage { looking, is_first, cards, next }))
}

/// A new key for a form that was open for long.
pub(super) async fn key(
    session: Session,
    Params(for_what): Params<KeyFor>,
) -> Result<Response, ErrorPage> {
    visitor::required(&session).await?;
    let answers = for_what.answers.parse::<PostId>().ok();
    Ok(new_key(answers.as_ref())?.to_string().into_response())
}

/// The same form, to be sent again as it was.
fn again(form: &PostForm) -> Again {
    Again {
        action: "/post".to_owned(),
        fields: vec![
            ("csrf", form.csrf.clone()),
            ("key", form.key.clone()),
            ("answers", form.answers.clone()),
            ("again", "1".to_owned()),
        ],
        text: Some(form.text.clone()),
        button: "Try again",
    }
}

pub(super) async fn post(
    State(app): State<Shared>,
    session: Session,
    Fields(form): Fields<PostForm>,
) -> Result<Response, ErrorPage> {
    let posted = async {
        let Some(viewer) = visitor::find(&session).await? else {
            return Err(ErrorPage::logged_out(again(&form)));
        };
        if viewer.check(&form.csrf).is_err() {
            let problem = "You have logged in or out since this form was made, so it was not posted. Send it again if it is to be yours.";
            return wrong(viewer, &form, StatusCode::FORBIDDEN, problem.to_owned());
        }
        post_as(&app, viewer, &form).await
    };
    posted.await.map_err(|trouble| trouble.again(again(&form)))
}

/// The form again under a new key, with what is wrong.
fn wrong(
    viewer: Viewer,
    form: &PostForm,
    status: StatusCode,
    problem: String,
) -> Result<Response, ErrorPage> {
    let answers = form.answers.parse::<PostId>().ok();
    let compose = Compose::new(&viewer.csrf, answers.as_ref())?.with(&form.text, problem);
    Ok(html(status, &ComposePage { logged_in: viewer, compose: Some(compose) }))
}

async fn post_as(app: &Shared, viewer: Viewer, form: &PostForm) -> Result<Response, ErrorPage> {
    let text = match Text::new(&form.text) {
        Ok(text) => text,
        Err(error) => {
            return wrong(viewer, form, StatusCode::UNPROCESSABLE_ENTITY, error.to_string());
        }
    };
    let answers = match &*form.answers {
        "" => None,
        answers => Some(answers.parse::<PostId>().map_err(|_| ErrorPage::foreign_form())?),
    };
    let key: PostKey = form.key.parse().map_err(|_| ErrorPage::foreign_form())?;
    let to = match &answers {
        Some(_) => format!("/u/{}/{key}", viewer.name),
        None => "/".to_owned(),
    };
    if let Err(error) = check_key(key, now_ms(), !form.again.is_empty()) {
        return stale(app, viewer, form, (key, &text), &to, error).await;
    }
    app.writes.count(&viewer.name)?;
    let new = NewPost { key, text, answers };
    let error = match app.network.post(&viewer.name, &new).await {
        Ok(()) => return Ok(Redirect::to(&to).into_response()),
        Err(PostError::Failed(failure)) => return Err(failure.into()),
        Err(error) => error,
    };
    match error {
        // Sent before under this key, and changed since.
        PostError::KeyTaken => {
            let problem = "What you sent with this form before was posted, and stays as it is. Send this one too if you want.";
            wrong(viewer, form, StatusCode::CONFLICT, problem.to_owned())
        }
        PostError::AnswersNothing => {
            let form = PostForm { answers: String::new(), ..form.clone() };
            let problem = format!("{error} You can still post it by itself.");
            wrong(viewer, &form, StatusCode::CONFLICT, problem)
        }
        PostError::Full => wrong(viewer, form, StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
        error => wrong(viewer, form, StatusCode::CONFLICT, error.to_string()),
    }
}

/// A form that was open for too long: it is not posted, unless it was before.
async fn stale(
    app: &Shared,
    viewer: Viewer,
    form: &PostForm,
    (key, text): (PostKey, &Text),
    to: &str,
    error: KeyError,
) -> Result<Response, ErrorPage> {
    let id = PostId { author: viewer.name.clone(), key };
    if app.network.read_post(&id).await?.is_some_and(|shown| shown.post.text == text.as_str()) {
        return Ok(Redirect::to(to).into_response());
    }
    let problem = match error {
        KeyError::Old => {
            "This page was open for a while. Nothing was posted yet; press the button once more."
        }
        KeyError::Early => {
            "This form is of a time that is yet to come. Nothing was posted; press the button once more."
        }
    };
    wrong(viewer, form, StatusCode::CONFLICT, problem.to_owned())
}

/// One post, with a form to answer it, and what answers it.
pub(super) async fn one(
    State(app): State<Shared>,
    session: Session,
    InPath((name, key)): InPath<(String, String)>,
    Params(from): Params<Begin>,
) -> Result<Response, ErrorPage> {
    let looking = visitor::find(&session).await?;
    let id = post_id(&name, &key)?;
    let after = from.after()?;
    let shown = app.network.read_post(&id).await?.ok_or_else(no_post)?;
    let page = app.network.answers(&id, after.as_ref(), ON_A_PAGE).await?.ok_or_else(no_post)?;
    let (viewer, is_first) = (looking.as_ref(), after.is_none());
    let compose = if is_first { compose_for(viewer, Some(&id))? } else { None };
    let (card, answers) = (Card::new(shown, viewer), answers(page.items, viewer));
    let next = page.next.map(|next| next.to_string());
    Ok(html(StatusCode::OK, &PostPage { looking, card, is_first, compose, answers, next }))
}

/// Deletes a post of whoever asks.
pub(super) async fn delete(
    State(app): State<Shared>,
    session: Session,
    InPath((name, key)): InPath<(String, String)>,
    Fields(form): Fields<DeleteForm>,
) -> Result<Response, ErrorPage> {
    let id = post_id(&name, &key)?;
    let again = Again {
        action: format!("/u/{}/{}/delete", id.author, id.key),
        fields: vec![("csrf", form.csrf.clone())],
        text: None,
        button: "Delete the post",
    };
    let deleted = async {
        let viewer = visitor::required(&session).await?;
        viewer.check(&form.csrf)?;
        if viewer.name != id.author {
            let text = "Only its author can delete a post.";
            return Err(ErrorPage::new(StatusCode::FORBIDDEN, "Not yours", text));
        }
        app.writes.count(&viewer.name)?;
        let deleted: Result<bool, Failure> = app.network.delete_post(&id).await;
        deleted?;
        Ok(Redirect::to(&format!("/u/{}", id.author)).into_response())
    };
    deleted.await.map_err(|trouble| trouble.again(again))
}
