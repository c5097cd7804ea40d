//! The application over Retwis, in the same way as `buzzer serve` has it over Perdura.

use super::retwis::Retwis;
use super::systems::WRITES_PER_HOUR;
use anyhow::{Context, Result};
use clap::Args;
use perdura_buzzer::{serve, web};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// More than the generator has.
const CONNECTIONS: usize = 4_096;

/// Serve Buzzer's pages and its API over Retwis on Redis; `run` starts it
#[derive(Args)]
pub struct Serve {
    /// Where Redis listens on loopback
    #[arg(long)]
    port: u16,
    /// Connections to it
    #[arg(long)]
    connections: u16,
    /// Each call ends within so many milliseconds
    #[arg(long)]
    timeout_ms: u64,
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(arguments: Serve) -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let timeout = Duration::from_millis(arguments.timeout_ms);
    let connections = usize::from(arguments.connections);
    let network = Retwis::open(arguments.port, connections, timeout).await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen")?;
    println!("Buzzer is at http://{}", listener.local_addr()?);
    // As those of `buzzer serve --insecure-cookies`.
    let settings = web::Settings {
        insecure: true,
        behind_proxy: false,
        logins_per_minute: 30,
        signups_per_hour: 100,
        writes_per_hour: WRITES_PER_HOUR,
        public_metrics: true,
    };
    let listeners = serve::Listeners { public: listener, internal: None };
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve::serve(Arc::new(network), Vec::new(), settings, (listeners, CONNECTIONS), stop).await
}
