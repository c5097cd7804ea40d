//! What is called: the network in this process, or the application over HTTP.

use super::super::processes::Process;
use super::super::social::{Social, name, new_post};
use super::super::store::{Aborted, Store};
use super::super::systems::Running;
use super::http::Http;
use super::workload::Call;
use anyhow::{Context, Result};
use clap::ValueEnum;
use futures_util::{StreamExt, TryStreamExt, stream};
use perdura_buzzer::network::Network;
use perdura_buzzer::web::{cookie_name, open_session};
use rand::rngs::SmallRng;
use std::sync::Arc;

/// Posts on a page of a timeline, at both levels.
const ON_A_PAGE: u32 = 20;

/// Sessions that are opened at a time.
const AT_A_TIME: usize = 32;

/// Counters of the application that say what came to nothing and was tried again.
const ABORTED: [&str; 4] = [
    "buzzer_store_conflicts_total",
    "buzzer_store_changed_total",
    "buzzer_store_unreachable_total",
    "buzzer_store_unaffordable_total",
];

/// Where a load is put on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Level {
    /// Calls of the network in the load generator's process
    Api,
    /// Calls of the application's JSON API over HTTP
    Http,
}

impl Level {
    /// As it is given.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Api => "api",
            Level::Http => "http",
        }
    }
}

/// What makes calls; shared by all callers.
pub enum Caller {
    Api(Arc<dyn Network>),
    Http(Http),
}

impl Caller {
    /// Makes a call. Returns how many posts it showed.
    ///
    /// # Errors
    /// When it fails, whatever the reason.
    pub async fn call(&self, call: Call, rng: &mut SmallRng, characters: usize) -> Result<usize> {
        let network = match self {
            Caller::Http(http) => return http.call(call, rng, characters).await,
            Caller::Api(network) => network,
        };
        match call {
            Call::Post { who } => network.post(&name(who)?, &new_post(rng, characters)?).await?,
            Call::Follow { who, whom } => drop(network.follow(&name(who)?, &name(whom)?).await?),
            Call::Timeline { who } => {
                let page = network.timeline(&name(who)?, None, ON_A_PAGE).await?;
                return Ok(page.items.len());
            }
        }
        Ok(0)
    }
}

/// A level of a system, ready for callers.
pub struct Target {
    pub level: Level,
    pub caller: Arc<Caller>,
    /// Users who call.
    pub among: Arc<Vec<u32>>,
    store: Arc<dyn Store>,
    application: Option<Process>,
}

impl Target {
    /// Makes a level of a system ready. Over HTTP `sessions` users, evenly spread over all, are logged in.
    ///
    /// # Errors
    /// When the application does not start, or nobody can be logged in.
    pub async fn open(
        system: &Running,
        level: Level,
        social: &Social,
        sessions: u32,
    ) -> Result<Target> {
        let store = system.open().await?;
        let users = social.users();
        if level == Level::Api {
            let caller = Arc::new(Caller::Api(store.network()));
            let among = Arc::new((0..users).collect());
            return Ok(Target { level, caller, among, store, application: None });
        }
        let count = sessions.min(users);
        let among: Vec<u32> = (0..count)
            .map(|index| (u64::from(index) * u64::from(users) / u64::from(count)) as u32)
            .collect();
        let log_in = |user: u32| {
            let network = store.network();
            async move {
                let id = open_session(network, &name(user)?).await?;
                Ok::<_, anyhow::Error>((user, format!("{}={id}", cookie_name(true))))
            }
        };
        let cookies = stream::iter(among.iter().copied().map(log_in)).buffer_unordered(AT_A_TIME);
        let cookies = cookies.try_collect().await.context("logging users in")?;
        let (application, url) = system.serve().await?;
        let caller = Arc::new(Caller::Http(Http::new(&url, cookies)));
        Ok(Target { level, caller, among: Arc::new(among), store, application: Some(application) })
    }

    /// The application's process.
    #[must_use]
    pub fn application(&self) -> Option<u32> {
        self.application.as_ref().map(Process::id)
    }

    /// What came to nothing and was tried again, so far; none where nothing is counted.
    ///
    /// # Errors
    /// When the application does not say.
    pub async fn aborted(&self) -> Result<Option<Aborted>> {
        let in_this_process = self.store.aborted();
        Ok(match &*self.caller {
            Caller::Http(http) if in_this_process.is_some() => {
                Some(Aborted(http.counters(&ABORTED).await?))
            }
            _ => in_this_process,
        })
    }

    /// That the application runs.
    ///
    /// # Errors
    /// When it has ended, with what it said last.
    pub fn check(&mut self) -> Result<()> {
        self.application.as_mut().map_or(Ok(()), Process::check)
    }

    /// Ends the application, and closes connections.
    pub async fn close(self) {
        drop(self.application);
        self.store.network().close().await;
    }
}
