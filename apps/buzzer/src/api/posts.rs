//! Posts and timelines.

use super::accounts::required;
use super::answers::{PageJson, PostJson, PostedJson, page};
use super::{ApiError, Body, InPath, Params};
use crate::network::{Failure, InputError, Name, NewPost, PostError, PostId, PostKey, Text};
use crate::web::compose::{KeyError, check_key, new_key};
use crate::web::visitor::now_ms;
use crate::web::{ON_A_PAGE, Shared};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use tower_sessions::Session;

/// Which page of a list.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Asked {
    after: Option<String>,
    limit: Option<u32>,
}

impl Asked {
    pub(super) fn limit(&self) -> u32 {
        self.limit.unwrap_or(ON_A_PAGE)
    }

    pub(super) fn after_name(&self) -> Result<Option<Name>, ApiError> {
        Ok(self.after.as_deref().map(Name::new).transpose()?)
    }

    fn after<T: std::str::FromStr<Err = InputError>>(&self) -> Result<Option<T>, ApiError> {
        Ok(self.after.as_deref().map(str::parse).transpose()?)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct New {
    text: String,
    answers: Option<String>,
    key: Option<String>,
    #[serde(default)]
    again: bool,
}

fn post_id(author: &str, key: &str) -> Result<PostId, ApiError> {
    let found = || Some(PostId { author: Name::new(author).ok()?, key: key.parse().ok()? });
    found().ok_or_else(no_post)
}

fn no_post() -> ApiError {
    ApiError::not_found("there is no such post")
}

pub(super) async fn timeline(
    State(app): State<Shared>,
    session: Session,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<PostJson>>, ApiError> {
    let viewer = required(&session).await?;
    let after: Option<PostId> = asked.after()?;
    let found = app.network.timeline(&viewer.name, after.as_ref(), asked.limit()).await?;
    Ok(Json(page(found)))
}

pub(super) async fn newest(
    State(app): State<Shared>,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<PostJson>>, ApiError> {
    let after: Option<PostId> = asked.after()?;
    let found = app.network.newest(after.as_ref(), asked.limit()).await?;
    Ok(Json(page(found)))
}

pub(super) async fn of_user(
    State(app): State<Shared>,
    InPath(name): InPath<String>,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<PostJson>>, ApiError> {
    let nobody = |_| ApiError::not_found("there is no account of this name");
    let (of, after) = (Name::new(&name).map_err(nobody)?, asked.after::<PostKey>()?);
    let found = app.network.posts(&of, after, asked.limit()).await?;
    Ok(Json(page(found)))
}

pub(super) async fn post(
    State(app): State<Shared>,
    session: Session,
    Body(new): Body<New>,
) -> Result<(StatusCode, Json<PostedJson>), ApiError> {
    let viewer = required(&session).await?;
    let text = Text::new(&new.text)?;
    let answers = new.answers.map(|answers| answers.parse::<PostId>()).transpose()?;
    let key = match &new.key {
        None => new_key(answers.as_ref())?,
        Some(key) => key.parse::<PostKey>()?,
    };
    check_key(key, now_ms(), new.again).map_err(|error| {
        let message = match error {
            KeyError::Old => "the key is too old; take one of now",
            KeyError::Early => "the key is of a time that is yet to come; take one of now",
        };
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    })?;
    app.writes.count(&viewer.name)?;
    let posted = app.network.post(&viewer.name, &NewPost { key, text, answers }).await;
    posted.map_err(|error| match error {
        PostError::Failed(Failure::Indeterminate(_)) => ApiError::from(error)
            .and(&format!("; sent again with \"key\": \"{key}\" it is posted once")),
        error => error.into(),
    })?;
    let id = PostId { author: viewer.name, key };
    Ok((StatusCode::CREATED, Json(id.into())))
}

pub(super) async fn one(
    State(app): State<Shared>,
    InPath((author, key)): InPath<(String, String)>,
) -> Result<Json<PostJson>, ApiError> {
    let shown = app.network.read_post(&post_id(&author, &key)?).await?.ok_or_else(no_post)?;
    Ok(Json(shown.into()))
}

pub(super) async fn answers(
    State(app): State<Shared>,
    InPath((author, key)): InPath<(String, String)>,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<PostJson>>, ApiError> {
    let (to, after) = (post_id(&author, &key)?, asked.after::<PostId>()?);
    let found = app.network.answers(&to, after.as_ref(), asked.limit()).await?;
    Ok(Json(page(found.ok_or_else(no_post)?)))
}

pub(super) async fn delete(
    State(app): State<Shared>,
    session: Session,
    InPath((author, key)): InPath<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let viewer = required(&session).await?;
    let id = post_id(&author, &key)?;
    if id.author != viewer.name {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign", "this post is not yours"));
    }
    app.writes.count(&viewer.name)?;
    match app.network.delete_post(&id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_post()),
    }
}
