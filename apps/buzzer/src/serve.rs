//! Serving the application until it is told to stop.

pub use crate::doors::{Bounds, connections};

use crate::doors::{self, Doors, INTERNAL_CONNECTIONS};
use crate::network::{Network, Perdura};
use crate::web::{self, Counters, Read, Routers, Settings};
use ::perdura_cluster::transactions::Counters as Store;
use anyhow::{Context, Result};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

/// What is under way when it is told to stop has this time to end.
const STOP: Duration = Duration::from_secs(10);

/// So long it may take to say to the store what is over.
const CLOSE: Duration = Duration::from_secs(5);

/// Accounts that are being deleted are looked for this often; one that this server was asked to delete is gone on with at once.
const LOOK: Duration = Duration::from_secs(10);

/// Between two calls that delete, so that others are served too.
const BETWEEN: Duration = Duration::from_millis(50);

/// The counters of the store's client, for [`serve`].
#[must_use]
pub fn store_counters(network: &Arc<Perdura>) -> Counters {
    if network.counters().is_none() {
        // One partition has none of these.
        return Vec::new();
    }
    let counter = |name, help, read: fn(Store) -> u64| {
        let network = Arc::clone(network);
        let read = move || network.counters().map_or(0, read);
        (name, help, Box::new(read) as Read)
    };
    vec![
        counter(
            "buzzer_store_transactions_total",
            "Transactions over several partitions that were prepared, tries counted.",
            |store| store.global,
        ),
        counter("buzzer_store_conflicts_total", "Tries that met others in their way.", |store| {
            store.conflicts
        }),
        counter(
            "buzzer_store_snapshots_total",
            "Reads over several partitions that took no locks.",
            |store| store.snapshots,
        ),
        counter(
            "buzzer_store_changed_total",
            "Tries of such reads during which something changed.",
            |store| store.changed,
        ),
        counter(
            "buzzer_store_unaffordable_total",
            "Tries for which there was no room, or that were too many at a time.",
            |store| store.unaffordable,
        ),
        counter(
            "buzzer_store_unreachable_total",
            "Tries that a partition did not vote for since it did not hear of another.",
            |store| store.unreachable,
        ),
        counter(
            "buzzer_store_ended_for_others_total",
            "Transactions of others that were ended.",
            |store| store.ended_for_others,
        ),
    ]
}

/// Goes on with accounts that are being deleted, until told to stop.
async fn delete_accounts(
    network: Arc<dyn Network>,
    asked: Arc<Notify>,
    mut stopping: watch::Receiver<bool>,
) {
    loop {
        let pause = match network.continue_deletions().await {
            Ok(0) => LOOK,
            Ok(left) => {
                tracing::debug!(left, "accounts are being deleted");
                BETWEEN
            }
            Err(failure) => {
                tracing::warn!(%failure, "accounts that are being deleted are left for later");
                LOOK
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = asked.notified() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// Ends all deletions that have begun; how many rounds that took.
///
/// # Errors
/// When the store fails; what is left is gone on with by the next one who tries.
pub async fn finish_deletions(network: &dyn Network) -> Result<usize> {
    let mut rounds = 0;
    loop {
        rounds += 1;
        if network.continue_deletions().await? == 0 {
            return Ok(rounds);
        }
    }
}

/// Where it listens.
pub struct Listeners {
    /// For everybody.
    pub public: TcpListener,
    /// For those who run it, if anywhere.
    pub internal: Option<TcpListener>,
}

/// Serves on listeners until `stop` is done, and ends what is under way then.
///
/// # Errors
/// When it cannot begin.
pub async fn serve(
    network: Arc<dyn Network>,
    mut counters: Counters,
    settings: Settings,
    (listeners, connections): (Listeners, usize),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let (asked, (stopping, stopped)) = (Arc::new(Notify::new()), watch::channel(false));
    let doors = Doors::new(Bounds { connections, behind_proxy: settings.behind_proxy });
    counters.extend(doors.counters());
    let routers = web::router(Arc::clone(&network), settings, counters, Arc::clone(&asked));
    let Routers { public, internal } = routers.context("the metrics cannot be made")?;
    let deleting = tokio::spawn(delete_accounts(Arc::clone(&network), asked, stopped.clone()));
    if let Some(listener) = listeners.internal {
        let bounds = Bounds { connections: INTERNAL_CONNECTIONS, behind_proxy: false };
        let doors = Doors::new(bounds);
        // It goes with the process: whoever looks sees it until then.
        let (runs, running) = watch::channel(false);
        tokio::spawn(async move {
            doors::accept(listener, internal, doors, running).await;
            drop(runs);
        });
    }
    tokio::spawn(async move {
        stop.await;
        tracing::info!("stopping: what is under way is still answered");
        let _ = stopping.send(true);
    });
    let serving = doors::accept(listeners.public, public, doors, stopped.clone());
    let mut late = stopped;
    let too_late = async {
        let _ = late.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(STOP).await;
    }
    .fuse();
    tokio::pin!(too_late);
    tokio::select! {
        () = serving => {}
        () = &mut too_late => {
            tracing::warn!("some requests were not answered in time");
            deleting.abort();
        }
    }
    // The task ends by itself once it is told to stop, after the step that it is at; what it leaves is gone on with by others.
    let ended = deleting.abort_handle();
    tokio::select! {
        _ = deleting => {}
        () = too_late => ended.abort(),
    }
    let _ = tokio::time::timeout(CLOSE, network.close()).await;
    Ok(())
}
