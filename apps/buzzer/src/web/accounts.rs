//! Making an account, logging in and out, changing the password, and deleting the account.

use super::Shared;
use super::error_page::{ErrorPage, Fields, Params, with_pause};
use super::pages::{Again, DoorPage, SettingsPage, WelcomePage, html};
use super::visitor::{self, Viewer, check_form_token, form_token};
use crate::network::{
    Changed, CreateError, Failure, InputError, LoginError, Name, Password, Pause, Proof,
};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;
use tower_cookies::Cookies;
use tower_sessions::Session;

type Peer = ConnectInfo<SocketAddr>;

/// The form of both doors.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(super) struct DoorForm {
    csrf: String,
    name: String,
    password: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TokenForm {
    csrf: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PasswordForm {
    csrf: String,
    password: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NewPasswordForm {
    csrf: String,
    password: String,
    new_password: String,
}

/// What was done on the page before.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Done {
    password: String,
}

/// Why a door stays shut: with which status, for how long, in which words.
struct Shut {
    status: StatusCode,
    pause: Option<Duration>,
    problem: String,
}

impl Shut {
    fn new(status: StatusCode, problem: impl ToString) -> Shut {
        Shut { status, pause: None, problem: problem.to_string() }
    }

    fn too_often(pause: Duration) -> Shut {
        let problem = format!("Too many tries from your network. Try again in {}.", Pause(pause));
        Shut { status: StatusCode::TOO_MANY_REQUESTS, pause: Some(pause), problem }
    }

    /// The same form with what is wrong.
    fn page(self, is_new: bool, csrf: String, name: String) -> Response {
        let page = DoorPage { is_new, csrf, name, problem: Some(self.problem) };
        with_pause(html(self.status, &page), self.pause)
    }
}

impl From<InputError> for Shut {
    fn from(error: InputError) -> Shut {
        Shut::new(StatusCode::UNPROCESSABLE_ENTITY, error)
    }
}

impl From<CreateError> for Shut {
    fn from(error: CreateError) -> Shut {
        let unavailable = |problem| Shut::new(StatusCode::SERVICE_UNAVAILABLE, problem);
        match &error {
            CreateError::Taken => Shut::new(StatusCode::CONFLICT, error),
            CreateError::Full => Shut::new(StatusCode::INSUFFICIENT_STORAGE, error),
            CreateError::Busy => unavailable(error.to_string()),
            CreateError::Failed(failure) => {
                tracing::warn!(%failure, "no account was made");
                unavailable(
                    "A part of the store does not answer. Try again in a moment; if the name is taken then, log in: it may be you who has it."
                        .to_owned(),
                )
            }
        }
    }
}

impl From<LoginError> for Shut {
    fn from(error: LoginError) -> Shut {
        match &error {
            LoginError::Wrong => Shut::new(StatusCode::UNAUTHORIZED, error),
            LoginError::Throttled(pause) => {
                let pause = Some(*pause);
                Shut { pause, ..Shut::new(StatusCode::TOO_MANY_REQUESTS, error) }
            }
            LoginError::Busy => Shut::new(StatusCode::SERVICE_UNAVAILABLE, error),
            LoginError::Failed(failure) => {
                tracing::warn!(%failure, "a password was not checked");
                let problem = "A part of the store does not answer. Try again in a moment.";
                Shut::new(StatusCode::SERVICE_UNAVAILABLE, problem)
            }
        }
    }
}

async fn door(
    app: &Shared,
    session: &Session,
    cookies: &Cookies,
    is_new: bool,
) -> Result<Response, ErrorPage> {
    if matches!(visitor::find(session).await, Ok(Some(_))) {
        return Ok(Redirect::to("/").into_response());
    }
    let csrf = form_token(app, cookies)?;
    let page = DoorPage { is_new, csrf, name: String::new(), problem: None };
    Ok(html(StatusCode::OK, &page))
}

pub(super) async fn signup_page(
    State(app): State<Shared>,
    session: Session,
    cookies: Cookies,
) -> Result<Response, ErrorPage> {
    door(&app, &session, &cookies, true).await
}

pub(super) async fn login_page(
    State(app): State<Shared>,
    session: Session,
    cookies: Cookies,
) -> Result<Response, ErrorPage> {
    door(&app, &session, &cookies, false).await
}

pub(super) async fn sign_up(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    cookies: Cookies,
    Fields(form): Fields<DoorForm>,
) -> Result<Response, ErrorPage> {
    check_form_token(&app, &cookies, &form.csrf)?;
    let create = async {
        let (name, password) = (Name::new(&form.name)?, Password::new(&*form.password)?);
        app.count_signup(peer, &headers).map_err(Shut::too_often)?;
        let origin = app.origin(peer, &headers);
        let proof = app.network.create_account(&name, &password, &origin).await?;
        Ok((name, proof))
    };
    enter(&session, create.await, true, form).await
}

pub(super) async fn log_in(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    cookies: Cookies,
    Fields(form): Fields<DoorForm>,
) -> Result<Response, ErrorPage> {
    check_form_token(&app, &cookies, &form.csrf)?;
    let check = async {
        app.count_login(peer, &headers).map_err(Shut::too_often)?;
        // What cannot be a name or a password is nobody's.
        let wrong = |_| Shut::from(LoginError::Wrong);
        let name = Name::new(&form.name).map_err(wrong)?;
        let password = Password::new(&*form.password).map_err(wrong)?;
        let origin = app.origin(peer, &headers);
        let proof = app.network.check_password(&name, &password, &origin).await?;
        Ok((name, proof))
    };
    enter(&session, check.await, false, form).await
}

/// Behind the door, or in front of it with what is wrong.
async fn enter(
    session: &Session,
    let_in: Result<(Name, Proof), Shut>,
    is_new: bool,
    form: DoorForm,
) -> Result<Response, ErrorPage> {
    match let_in {
        Ok((name, proof)) => {
            visitor::log_in_after(session, &name, &proof).await?;
            Ok(Redirect::to("/").into_response())
        }
        Err(shut) => Ok(shut.page(is_new, form.csrf, form.name)),
    }
}

pub(super) async fn log_out(
    session: Session,
    Fields(form): Fields<TokenForm>,
) -> Result<Response, ErrorPage> {
    let again = || Again {
        action: "/logout".to_owned(),
        fields: vec![("csrf", form.csrf.clone())],
        text: None,
        button: "Log out",
    };
    let out = async {
        if let Some(viewer) = visitor::find(&session).await? {
            viewer.check(&form.csrf)?;
            visitor::log_out(&session).await?;
        }
        Ok(Redirect::to("/").into_response())
    };
    out.await.map_err(|trouble: ErrorPage| trouble.again(again()))
}

pub(super) async fn settings_page(
    session: Session,
    Params(done): Params<Done>,
) -> Result<Response, ErrorPage> {
    let viewer = visitor::required(&session).await?;
    let note = match done.password.as_str() {
        "changed" => Some("Your password was changed, and your other sessions are over."),
        "sessions-left" => Some(
            "Your password was changed. A part of the store did not answer, so you may still be logged in elsewhere: change it once more to end that.",
        ),
        _ => None,
    };
    Ok(html(StatusCode::OK, &SettingsPage { note, ..SettingsPage::of(viewer) }))
}

pub(super) async fn to_settings() -> Redirect {
    Redirect::to("/settings")
}

/// What to say of a password that was typed once more.
fn of_viewer(error: LoginError) -> Shut {
    match error {
        LoginError::Wrong => Shut::new(StatusCode::UNAUTHORIZED, "The password is wrong."),
        LoginError::Throttled(pause) => {
            let problem =
                format!("The password was wrong too often here. Try again in {}.", Pause(pause));
            let pause = Some(pause);
            Shut { pause, ..Shut::new(StatusCode::TOO_MANY_REQUESTS, problem) }
        }
        error => error.into(),
    }
}

/// Changes the password, and goes on in a new session: all others end.
pub(super) async fn change_password(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Fields(form): Fields<NewPasswordForm>,
) -> Result<Response, ErrorPage> {
    let viewer = visitor::required(&session).await?;
    viewer.check(&form.csrf)?;
    let change = async {
        let new = Password::new(&*form.new_password)?;
        app.count_login(peer, &headers).map_err(Shut::too_often)?;
        let password = Password::new(&*form.password).map_err(|_| of_viewer(LoginError::Wrong))?;
        let origin = visitor::origin(&session).map_err(|failure| of_viewer(failure.into()))?;
        let changed = app.change_password(&viewer.name, &password, &new, origin).await;
        changed.map_err(|error| match error {
            LoginError::Failed(failure) => {
                tracing::warn!(%failure, "a password was not changed, or may not be");
                let problem = "A part of the store does not answer. It may have been changed. Send the same again in a moment, which also ends your other sessions.";
                Shut::new(StatusCode::SERVICE_UNAVAILABLE, problem)
            }
            error => of_viewer(error),
        })
    };
    let changed: Result<Changed, Shut> = change.await;
    match changed {
        Ok(Changed { proof, all_ended }) => {
            visitor::log_in_after(&session, &viewer.name, &proof).await?;
            let done = if all_ended { "changed" } else { "sessions-left" };
            Ok(Redirect::to(&format!("/settings?password={done}")).into_response())
        }
        Err(shut) => {
            let password_problem = Some(shut.problem);
            let page = SettingsPage { password_problem, ..SettingsPage::of(viewer) };
            Ok(with_pause(html(shut.status, &page), shut.pause))
        }
    }
}

/// Checks the password once more, and begins to delete the account.
pub(super) async fn delete(
    State(app): State<Shared>,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    session: Session,
    Fields(form): Fields<PasswordForm>,
) -> Result<Response, ErrorPage> {
    let viewer = visitor::required(&session).await?;
    viewer.check(&form.csrf)?;
    let delete = async {
        app.count_login(peer, &headers).map_err(Shut::too_often)?;
        let password = Password::new(&*form.password).map_err(|_| of_viewer(LoginError::Wrong))?;
        let origin = visitor::origin(&session).map_err(|failure| of_viewer(failure.into()))?;
        let proof = app.network.check_password(&viewer.name, &password, &origin).await;
        let proof = proof.map_err(of_viewer)?;
        delete_account_of(&app, &session, &viewer, &proof).await.map_err(|error| match error {
            LoginError::Failed(Failure::Indeterminate(failure)) => {
                tracing::warn!(%failure, "an account may have begun to be deleted");
                let problem = "A part of the store did not answer. It may have begun: then you are soon logged out. If not, try again in a moment.";
                Shut::new(StatusCode::SERVICE_UNAVAILABLE, problem)
            }
            error => of_viewer(error),
        })
    };
    let deleted: Result<(), Shut> = delete.await;
    match deleted {
        Ok(()) => Ok(Redirect::to("/goodbye").into_response()),
        Err(shut) => {
            let delete_problem = Some(shut.problem);
            let page = SettingsPage { delete_problem, ..SettingsPage::of(viewer) };
            Ok(with_pause(html(shut.status, &page), shut.pause))
        }
    }
}

/// Begins to delete the account of somebody whose password was checked; nobody is logged in afterwards. The password is wrong if it was changed meanwhile.
pub(crate) async fn delete_account_of(
    app: &Shared,
    session: &Session,
    viewer: &Viewer,
    proof: &Proof,
) -> Result<(), LoginError> {
    let began = app.delete_account(&viewer.name, proof).await;
    // It may have where that is not known.
    app.deletions.notify_one();
    if !began? {
        return Err(LoginError::Wrong);
    }
    // It ends with the account in any case.
    if let Err(failure) = visitor::log_out(session).await {
        tracing::warn!(%failure, "a session of an account that is being deleted is left for later");
    }
    Ok(())
}

pub(super) async fn goodbye() -> Response {
    let note = Some("Your account is being deleted. Goodbye!");
    html(StatusCode::OK, &WelcomePage { note })
}
