//! `perdura-lab replica --misbehave` and `perdura-lab server --misbehave`: replicas that lie, on real links.

pub mod server;

use anyhow::{Context, Result};
use clap::Args;
use perdura_adversary::{Insider, Liar, Shadow, Strategy, Twin};
use perdura_cli::process::LogLevel;
use perdura_cli::replica;
use perdura_cluster::ServiceKind;
use perdura_cluster::replica::Replica;
use perdura_execution::{Service, any_service};
use perdura_protocol::configuration::Parameters;
use perdura_protocol::seeded::Bug;
use perdura_protocol::{Scheme, Time};
use perdura_replica::node::{self, Boot, Found, Interceptor, Now};
use perdura_replica::runtime::{self, ReplicaConfig};
use perdura_simulator::STATEMENTS;
use perdura_store::Store;
use perdura_store::partition::StorePartition;
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
    misbehave: Option<Strategy>,
    /// Make it with this mistake, one of `perdura-lab simulate --list-bugs`
    #[arg(long, value_name = "NAME", value_parser = crate::seeded::parse)]
    bug: Option<Bug>,
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
    crate::seeded::activate(arguments.bug)?;
    let Some(strategy) = arguments.misbehave else {
        replica.run(&shutdown)?;
        return Ok(ExitCode::SUCCESS);
    };
    let Replica { config, service, .. } = replica;
    let (id, limit) = (config.id, config.parameters.state_limit_bytes);
    let whose = || format!("replica {id}");
    let liar = liar(&config, service, strategy).with_context(whose)?;
    let ran = match service {
        ServiceKind::KeyValue => {
            let make = store(&config.parameters);
            runtime::run_tapped(config, liar, make, &shutdown)
        }
        ServiceKind::TupleSpaces => {
            runtime::run_tapped(config, liar, move || TupleSpaces::new(limit), &shutdown)
        }
    };
    ran.with_context(whose)?;
    Ok(ExitCode::SUCCESS)
}

/// What makes the store of a group: all of it, or a partition.
fn store(parameters: &Parameters) -> impl Fn() -> Store + Send + Sync + 'static {
    let (limit, max_skew_ms) = (parameters.state_limit_bytes, parameters.max_skew_ms);
    let place = parameters.map.clone().zip(parameters.partition());
    let place = place.map(|(map, partition)| StorePartition { map, partition, max_skew_ms });
    move || match &place {
        None => Store::new(limit),
        Some(place) => Store::partitioned(limit, place.clone()),
    }
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
        statements: config.parameters.map.as_ref().map(|_| STATEMENTS),
    };
    let mut liar = Liar::new(insider, strategy, u64::from(config.id.0) + 1);
    if strategy == Strategy::Twins {
        let limit = config.parameters.state_limit_bytes;
        liar = liar.with_twin(match service {
            ServiceKind::KeyValue => twin(config, store(&config.parameters)),
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
        make_service: Box::new(any_service(make_service)),
        found: Found::default(),
        backlog_bytes: perdura_replica::node::BACKLOG_BYTES,
        place: Some(node::ExecutionMode::Inline),
        state_transfer: Default::default(),
    };
    let now = Now { monotonic_ms: 86_400_000, wall: Time(1) };
    Ok(Box::new(Twin::new(boot, now).context("the second copy of the replica")?))
}
