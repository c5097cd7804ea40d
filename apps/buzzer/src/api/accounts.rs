//! Accounts, sessions, and who follows whom.

use super::answers::{ChangedJson, PageJson, ProfileJson, WhoJson, page};
use super::posts::Asked;
use super::{ApiError, Body, InPath, Params};
use crate::network::{Name, Password};
use crate::web::visitor::{self, Viewer};
use crate::web::{Shared, delete_account_of};
use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use std::net::SocketAddr;
use tower_sessions::Session;

type Peer = ConnectInfo<SocketAddr>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Door {
    name: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OnlyPassword {
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPassword {
    password: String,
    new_password: String,
}

fn name_of(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|_| nobody())
}

fn nobody() -> ApiError {
    ApiError::not_found("there is no account of this name")
}

fn wrong_password() -> ApiError {
    crate::network::LoginError::Wrong.into()
}

/// Who is logged in.
pub(super) async fn required(session: &Session) -> Result<Viewer, ApiError> {
    visitor::find(session).await?.ok_or_else(ApiError::not_logged_in)
}

pub(super) async fn create(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Body(door): Body<Door>,
) -> Result<(StatusCode, Json<WhoJson>), ApiError> {
    let (name, password) = (Name::new(&door.name)?, Password::new(door.password)?);
    app.count_signup(peer, &headers).map_err(ApiError::throttled)?;
    let origin = app.origin(peer, &headers);
    let proof = app.network.create_account(&name, &password, &origin).await?;
    visitor::log_in_after(&session, &name, &proof).await?;
    Ok((StatusCode::CREATED, Json(WhoJson { name: Some(name) })))
}

pub(super) async fn log_in(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Body(door): Body<Door>,
) -> Result<Json<WhoJson>, ApiError> {
    app.count_login(peer, &headers).map_err(ApiError::throttled)?;
    let name = Name::new(&door.name).map_err(|_| wrong_password())?;
    let password = Password::new(door.password).map_err(|_| wrong_password())?;
    let origin = app.origin(peer, &headers);
    let proof = app.network.check_password(&name, &password, &origin).await?;
    visitor::log_in_after(&session, &name, &proof).await?;
    Ok(Json(WhoJson { name: Some(name) }))
}

pub(super) async fn who(session: Session) -> Result<Json<WhoJson>, ApiError> {
    let name = visitor::find(&session).await?.map(|viewer| viewer.name);
    Ok(Json(WhoJson { name }))
}

pub(super) async fn log_out(session: Session) -> Result<StatusCode, ApiError> {
    visitor::log_out(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn delete(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Body(door): Body<OnlyPassword>,
) -> Result<StatusCode, ApiError> {
    let viewer = required(&session).await?;
    app.count_login(peer, &headers).map_err(ApiError::throttled)?;
    let password = Password::new(door.password).map_err(|_| wrong_password())?;
    let origin = visitor::origin(&session)?;
    let proof = app.network.check_password(&viewer.name, &password, &origin).await?;
    delete_account_of(&app, &session, &viewer, &proof).await?;
    Ok(StatusCode::ACCEPTED)
}

pub(super) async fn change_password(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Body(change): Body<NewPassword>,
) -> Result<Json<ChangedJson>, ApiError> {
    let viewer = required(&session).await?;
    let new = Password::new(change.new_password)?;
    app.count_login(peer, &headers).map_err(ApiError::throttled)?;
    let password = Password::new(change.password).map_err(|_| wrong_password())?;
    let origin = visitor::origin(&session)?;
    let changed = app.change_password(&viewer.name, &password, &new, origin).await?;
    visitor::log_in_after(&session, &viewer.name, &changed.proof).await?;
    Ok(Json(ChangedJson { others_ended: changed.all_ended }))
}

pub(super) async fn profile(
    State(app): State<Shared>,
    InPath(name): InPath<String>,
) -> Result<Json<ProfileJson>, ApiError> {
    let profile = app.network.profile(&name_of(&name)?).await?.ok_or_else(nobody)?;
    Ok(Json(profile.into()))
}

pub(super) async fn followers(
    State(app): State<Shared>,
    InPath(name): InPath<String>,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<Name>>, ApiError> {
    let (of, after) = (name_of(&name)?, asked.after_name()?);
    let found = app.network.followers(&of, after.as_ref(), asked.limit()).await?;
    Ok(Json(page(found)))
}

pub(super) async fn friends(
    State(app): State<Shared>,
    InPath(name): InPath<String>,
    Params(asked): Params<Asked>,
) -> Result<Json<PageJson<Name>>, ApiError> {
    let (of, after) = (name_of(&name)?, asked.after_name()?);
    let found = app.network.friends(&of, after.as_ref(), asked.limit()).await?;
    Ok(Json(page(found)))
}

pub(super) async fn follow(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ApiError> {
    let (viewer, whom) = (required(&session).await?, name_of(&name)?);
    app.writes.count(&viewer.name)?;
    app.network.follow(&viewer.name, &whom).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn unfollow(
    State(app): State<Shared>,
    session: Session,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ApiError> {
    let (viewer, whom) = (required(&session).await?, name_of(&name)?);
    app.writes.count(&viewer.name)?;
    app.network.unfollow(&viewer.name, &whom).await?;
    Ok(StatusCode::NO_CONTENT)
}
