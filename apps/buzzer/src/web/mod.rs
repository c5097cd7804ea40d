//! The network as pages, and as JSON (`api`).
//!
//! What every request goes through, from the outside in: metrics, headers, its body to the end, a bound on how many there are at a time, whether what changes something
//! comes from a page of ours, and the session. The cookie of a session says nothing; what is in it is with the network, and is written when somebody logs in and then at most hourly.

mod accounts;
mod addresses;
mod assets;
pub(crate) mod compose;
pub(crate) mod error_page;
mod guard;
mod health;
mod links;
mod metrics;
mod pages;
mod posts;
mod sessions;
mod tries;
mod users;
pub(crate) mod visitor;
mod writes;

use crate::network::{Changed, Failure, LoginError, Name, Network, Origin, Password, Proof};
use crate::places::Places;
use addresses::Addresses;
use axum::Router;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tower_sessions::SessionManagerLayer;
use tower_sessions::cookie::SameSite;
use tracing::Instrument;
use writes::Writes;

pub(crate) use accounts::delete_account_of;
pub(crate) use addresses::network_of;
pub(crate) use guard::Busy;
pub use metrics::{Counters, Read};
pub use sessions::open_session;

/// Where proxies write whom they speak for.
const FORWARDED: &str = "x-forwarded-for";

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
    /// Posts, follows, and ends of both that an account may write in an hour.
    pub writes_per_hour: u32,
    /// Metrics are for everybody: on loopback only. Else they are where [`Routers::internal`] is served.
    pub public_metrics: bool,
}

/// What is served, and where.
pub struct Routers {
    /// To everybody.
    pub public: Router,
    /// To those who run it: health with what is wrong, and metrics.
    pub internal: Router,
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) settings: Settings,
    logins: Addresses,
    signups: Addresses,
    pub(crate) writes: Writes,
    /// Places of requests that are under way.
    room: Arc<Places<()>>,
    /// Told when an account is to be deleted.
    pub(crate) deletions: Arc<Notify>,
    health: Arc<health::Health>,
    /// A proxy that is not as the settings say is told of once.
    odd_proxy: Once,
}

pub(crate) type Shared = Arc<App>;

/// The address that was added last, with or without a port.
fn address_in(told: &HeaderValue) -> Option<IpAddr> {
    let last = told.to_str().ok()?.rsplit(',').next()?.trim();
    let bare = last.trim_start_matches('[').trim_end_matches(']');
    let with_port = || last.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse().ok().or_else(with_port)
}

impl App {
    /// Who comes from there.
    fn address(&self, peer: SocketAddr, headers: &HeaderMap) -> IpAddr {
        let told = headers.get_all(FORWARDED).iter().next_back();
        let odd = match (told, self.settings.behind_proxy) {
            (None, false) => return peer.ip(),
            (Some(_), false) => {
                "is there and not looked at; add --behind-proxy if a proxy of yours writes it"
            }
            (told, true) => match told.and_then(address_in) {
                Some(address) => return address,
                None => "names no address, and --behind-proxy was given",
            },
        };
        self.odd_proxy.call_once(|| {
            tracing::warn!("{FORWARDED} {odd}: all who come that way count as one address");
        });
        peer.ip()
    }

    /// As [`Network::change_password`], to its end.
    pub(crate) async fn change_password(
        &self,
        name: &Name,
        password: &Password,
        new: &Password,
        origin: Origin,
    ) -> Result<Changed, LoginError> {
        let (network, name) = (Arc::clone(&self.network), name.clone());
        let (password, new) = (password.clone(), new.clone());
        let change = async move { network.change_password(&name, &password, &new, &origin).await };
        to_its_end(change).await?
    }

    /// As [`Network::delete_account`], to its end.
    pub(crate) async fn delete_account(&self, name: &Name, proof: &Proof) -> Result<bool, Failure> {
        let (network, name, proof) = (Arc::clone(&self.network), name.clone(), proof.clone());
        to_its_end(async move { network.delete_account(&name, &proof).await }).await?
    }

    /// Where whoever shows a password is, if he is not logged in.
    pub(crate) fn origin(&self, peer: SocketAddr, headers: &HeaderMap) -> Origin {
        Origin::Network(network_of(self.address(peer, headers)))
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

/// Carries something out to its end, also where whoever asked for it hangs up.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work.in_current_span()).await.map_err(|error| Failure::Broken(error.to_string()))
}

/// The pages.
fn pages() -> Router<Shared> {
    Router::new()
        .route("/", get(posts::timeline))
        .route("/post", post(posts::post).get(posts::to_first_page))
        .route("/newest", get(posts::newest))
        .route("/key", get(posts::key))
        .route("/u/{name}/{key}", get(posts::one))
        .route("/u/{name}/{key}/delete", post(posts::delete))
        .route("/signup", get(accounts::signup_page).post(accounts::sign_up))
        .route("/login", get(accounts::login_page).post(accounts::log_in))
        .route("/logout", post(accounts::log_out))
        .route("/settings", get(accounts::settings_page))
        .route("/password", post(accounts::change_password).get(accounts::to_settings))
        .route("/delete-account", post(accounts::delete).get(accounts::to_settings))
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
) -> Result<Routers, prometheus::Error> {
    let metrics = Arc::new(metrics::Metrics::new(counters)?);
    let minute = Duration::from_secs(60);
    let app = Arc::new(App {
        logins: Addresses::new(settings.logins_per_minute, minute),
        signups: Addresses::new(settings.signups_per_hour, 60 * minute),
        writes: Writes::new(settings.writes_per_hour),
        room: Places::new(guard::AT_A_TIME),
        health: Arc::default(),
        odd_proxy: Once::new(),
        network: Arc::clone(&network),
        settings,
        deletions,
    });
    let secure = !app.settings.insecure;
    let sessions = SessionManagerLayer::new(sessions::Kept::with(network))
        .with_name(cookie_name(!secure))
        .with_secure(secure)
        .with_http_only(true)
        .with_same_site(SameSite::Lax)
        .with_path("/")
        .with_expiry(sessions::expiry());
    let with_sessions = pages().nest("/api/v1", crate::api::routes()).layer(sessions);
    let operated = || {
        Router::new()
            .route("/live", get(health::live))
            .route("/metrics", get(metrics::answer).with_state(Arc::clone(&metrics)))
    };
    let internal = operated().route("/health", get(health::detailed)).with_state(Arc::clone(&app));
    // These are answered however many requests there are.
    let apart = if app.settings.public_metrics {
        operated()
    } else {
        Router::new().route("/live", get(health::live))
    };
    let public = with_sessions
        .layer(from_fn(guard::only_ours))
        .merge(assets::routes())
        .layer(from_fn_with_state(Arc::clone(&app), guard::bounded))
        .merge(apart)
        .route("/health", get(health::answer))
        .layer(from_fn(guard::headers))
        .layer(from_fn_with_state(metrics, metrics::count))
        .with_state(app);
    Ok(Routers { public, internal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_write_addresses_in_several_ways() {
        for (told, address) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("1.1.1.1, 10.0.0.2", Some("10.0.0.2")),
            ("10.0.0.3:4567", Some("10.0.0.3")),
            ("[2001:db8::1]:4567", Some("2001:db8::1")),
            ("[2001:db8::2]", Some("2001:db8::2")),
            ("2001:db8::3", Some("2001:db8::3")),
            ("unknown", None),
            ("", None),
        ] {
            let address = address.map(|address| address.parse().unwrap());
            assert_eq!(address_in(&HeaderValue::from_static(told)), address, "{told}");
        }
    }
}
