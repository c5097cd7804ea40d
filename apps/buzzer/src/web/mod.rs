//! The network as pages, and as JSON (`api`).
//!
//! What every request goes through, from the outside in: metrics, a bound on how many there are at a time, headers, whether what changes something comes from a page
//! of ours, and the session. The cookie of a session says nothing; what is in it is with the network, and is written when somebody logs in and then at most hourly.

mod accounts;
mod addresses;
mod assets;
pub(crate) mod compose;
mod guard;
mod health;
mod metrics;
mod pages;
mod posts;
mod sessions;
pub(crate) mod trouble;
mod users;
pub(crate) mod visitor;

use crate::network::Network;
use addresses::Addresses;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderMap;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tower_sessions::SessionManagerLayer;
use tower_sessions::cookie::SameSite;

pub(crate) use accounts::delete_account_of;
pub use metrics::{Counters, Read};
pub use sessions::open_session;

/// Bytes of a body: a post, with room for how browsers write it.
const BODY_BYTES: usize = 16 * 1024;

/// Posts or names on a page.
pub(crate) const ON_A_PAGE: u32 = 20;

/// How the application is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cookies go over plain HTTP too: for loopback only.
    pub insecure: bool,
    /// Whoever comes is named in the last entry of `X-Forwarded-For`, by a proxy that is trusted.
    pub behind_proxy: bool,
    /// Logins that an address may try in a minute.
    pub logins_per_minute: u32,
    /// Accounts that an address may make in an hour.
    pub signups_per_hour: u32,
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) settings: Settings,
    logins: Addresses,
    signups: Addresses,
    /// Told when an account is to be deleted.
    pub(crate) deletions: Arc<Notify>,
    health: health::Health,
}

pub(crate) type Shared = Arc<App>;

impl App {
    /// Who comes from there.
    fn address(&self, peer: SocketAddr, headers: &HeaderMap) -> IpAddr {
        let told = || {
            let last = headers.get_all("x-forwarded-for").iter().next_back()?;
            last.to_str().ok()?.rsplit(',').next()?.trim().parse().ok()
        };
        let told: Option<IpAddr> = if self.settings.behind_proxy { told() } else { None };
        told.unwrap_or(peer.ip())
    }

    /// Counts a login that is tried, or says for how long there are to be none from there.
    pub(crate) fn count_login(
        &self,
        peer: SocketAddr,
        headers: &HeaderMap,
    ) -> Result<(), Duration> {
        self.logins.count(self.address(peer, headers), Instant::now())
    }

    /// As [`App::count_login`], for accounts that are made.
    pub(crate) fn count_signup(
        &self,
        peer: SocketAddr,
        headers: &HeaderMap,
    ) -> Result<(), Duration> {
        self.signups.count(self.address(peer, headers), Instant::now())
    }
}

/// The pages.
fn pages() -> Router<Shared> {
    Router::new()
        .route("/", get(posts::timeline))
        .route("/post", post(posts::post).get(posts::to_first_page))
        .route("/key", get(posts::key))
        .route("/u/{name}/{key}", get(posts::one))
        .route("/u/{name}/{key}/delete", post(posts::delete))
        .route("/signup", get(accounts::signup_page).post(accounts::sign_up))
        .route("/login", get(accounts::login_page).post(accounts::log_in))
        .route("/logout", post(accounts::log_out))
        .route("/settings", get(accounts::settings_page))
        .route("/password", post(accounts::change_password).get(accounts::to_settings))
        .route("/delete-account", post(accounts::delete))
        .route("/goodbye", get(accounts::goodbye))
        .route("/find", get(users::find))
        .route("/u/{name}", get(users::profile))
        .route("/u/{name}/followers", get(users::followers))
        .route("/u/{name}/friends", get(users::friends))
        .route("/u/{name}/follow", post(users::follow))
        .route("/u/{name}/unfollow", post(users::unfollow))
        .route("/api", get(users::api_page))
        .fallback(users::not_found)
        .method_not_allowed_fallback(users::no_method)
}

/// The cookie that sessions are in.
#[must_use]
pub fn cookie_name(insecure: bool) -> &'static str {
    if insecure { "buzzer" } else { "__Host-buzzer" }
}

/// The application over a network, with counters of what is below it. `deletions` is told when an account is to be deleted: somebody has to call
/// [`Network::continue_deletions`] then, and from time to time.
///
/// # Errors
/// When its metrics cannot be made.
pub fn router(
    network: Arc<dyn Network>,
    settings: Settings,
    counters: Counters,
    deletions: Arc<Notify>,
) -> Result<Router, prometheus::Error> {
    let metrics = Arc::new(metrics::Metrics::new(counters)?);
    let minute = Duration::from_secs(60);
    let app = Arc::new(App {
        logins: Addresses::new(settings.logins_per_minute, minute),
        signups: Addresses::new(settings.signups_per_hour, 60 * minute),
        health: health::Health::default(),
        network: Arc::clone(&network),
        settings,
        deletions,
    });
    let secure = !app.settings.insecure;
    let sessions = SessionManagerLayer::new(sessions::Kept(network))
        .with_name(cookie_name(!secure))
        .with_secure(secure)
        .with_http_only(true)
        .with_same_site(SameSite::Lax)
        .with_path("/")
        .with_expiry(sessions::expiry());
    let with_sessions = pages().nest("/api/v1", crate::api::routes()).layer(sessions);
    Ok(with_sessions
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(from_fn(guard::only_ours))
        .merge(assets::routes())
        .route("/health", get(health::answer))
        .route("/metrics", get(metrics::answer).with_state(Arc::clone(&metrics)))
        .layer(from_fn(guard::headers))
        .layer(from_fn_with_state(guard::Room::default(), guard::bounded))
        .layer(from_fn_with_state(metrics, metrics::count))
        .with_state(app))
}
