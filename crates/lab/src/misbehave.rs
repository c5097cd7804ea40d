//! `perdura-lab replica --misbehave`, in test builds only (feature `misbehave`): replicas that lie, on real links.

use anyhow::{Context, Result};
use clap::Args;
use perdura::ServiceKind;
use perdura::replica::Replica;
use perdura_adversary::{Insider, Liar, Shadow, Strategy, Twin};
use perdura_cli::process::LogLevel;
use perdura_cli::replica;
use perdura_execution::Service;
use perdura_protocol::{Scheme, Time};
use perdura_replica::node::{Boot, Found, Interceptor, Now};
use perdura_replica::runtime::{self, ReplicaConfig};
use perdura_store::Store;
use perdura_tuples::TupleSpaces;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs a replica in whose name a liar speaks, in place of `perdura replica`.
#[derive(Args)]
pub struct Arguments {
    /// The replica's file, as in DIR/replica-0/replica.toml
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How it lies: one of the strategies of `perdura-lab simulate --liars`
    #[arg(long, value_name = "STRATEGY", value_parser = parse_strategy)]
    misbehave: Strategy,
    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    log_level: LogLevel,
}

fn parse_strategy(name: &str) -> Result<Strategy, String> {
    let names = || Strategy::ALL.map(Strategy::name).join(", ");
    Strategy::parse(name).ok_or_else(|| format!("give one of: {}", names()))
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (replica, shutdown, _logging) = replica::open(&arguments.config, arguments.log_level)?;
    let Replica { config, service } = replica;
    let (id, limit) = (config.id, config.parameters.state_limit_bytes);
    let whose = || format!("replica {id}");
    let liar = liar(&config, service, arguments.misbehave).with_context(whose)?;
    let ran = match service {
        ServiceKind::KeyValue => {
            runtime::run_misbehaving(config, liar, move || Store::new(limit), &shutdown)
        }
        ServiceKind::TupleSpaces => {
            runtime::run_misbehaving(config, liar, move || TupleSpaces::new(limit), &shutdown)
        }
    };
    ran.with_context(whose)?;
    Ok(ExitCode::SUCCESS)
}

fn liar(
    config: &ReplicaConfig,
    service: ServiceKind,
    strategy: Strategy,
) -> Result<Box<dyn Interceptor>> {
    let insider = Insider {
        me: config.id,
        faults: config.parameters.faults,
        cluster: config.parameters.cluster,
        keys: vec![(config.id, config.key.clone())],
        configurations: vec![config.genesis.configuration.clone()],
        coin: 1,
        statements: None,
    };
    let mut liar = Liar::new(insider, strategy, u64::from(config.id.0) + 1);
    if strategy == Strategy::Twins {
        let limit = config.parameters.state_limit_bytes;
        liar = liar.with_twin(match service {
            ServiceKind::KeyValue => twin(config, move || Store::new(limit)),
            ServiceKind::TupleSpaces => twin(config, move || TupleSpaces::new(limit)),
        }?);
    }
    Ok(Box::new(liar))
}

/// A second replica with the same key and service.
fn twin<S: Service>(
    config: &ReplicaConfig,
    make_service: impl Fn() -> S + Send + 'static,
) -> Result<Box<dyn Shadow + Send>> {
    let boot = Boot {
        me: config.id,
        key: config.key.clone(),
        scheme: Scheme::Ed25519,
        parameters: config.parameters.clone(),
        genesis: config.genesis.clone(),
        latest: config.latest.clone(),
        entropy: [7; 32],
        make_service: Box::new(make_service),
        found: Found::default(),
        backlog_bytes: perdura_replica::node::BACKLOG_BYTES,
        state_transfer: Default::default(),
    };
    let now = Now { monotonic_ms: 86_400_000, wall: Time(1) };
    Ok(Box::new(Twin::new(boot, now).context("the second copy of the replica")?))
}
