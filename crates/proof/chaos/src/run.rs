//! A run from its beginning to its end: a cluster, load, faults, the crash of all, everything read
//! back, the verdict.

use crate::clocks::Clocks;
use crate::cluster::{Cluster, faketime, lab_beside};
use crate::course::{Course, End, lock};
use crate::faults::{FaultKind, Need};
use crate::history::{Book, Judged, ShardId};
use crate::inject::Scene;
use crate::load::{self, Load};
use crate::nemesis::{self, RECOVERY};
use crate::network::Network;
use crate::operation::{History, Operation};
use crate::options::ChaosOptions;
use crate::report::ChaosReport;
use crate::service::{Service, Workload};
use crate::timeline::Timeline;
use crate::volume::{self, Make, system};
use crate::waits::Samples;
use crate::watch::Watch;
use crate::{bank, files, isolation, logs};
use anyhow::{Context, Result, ensure};
use perdura_adversary::Random;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Load before the first fault.
const WARM_UP: Duration = Duration::from_secs(3);

/// Nothing is pending so long after the last call, where all are well: two seconds until a transaction has expired, and what the resolvers
/// of a busy machine need.
const LOCKS_END: Duration = Duration::from_secs(15);

/// In runs of at least this length every kind has to fire.
const LONG: Duration = Duration::from_secs(600);

/// What the judge knows of each shard.
type Verdicts = Arc<Mutex<BTreeMap<ShardId, Judged>>>;

/// Runs the command.
pub fn run(options: &ChaosOptions) -> Result<ExitCode> {
    let course = Arc::new(Course::new());
    course.note_standstills();
    isolation::listen(&course, options.inside)?;
    let seed = options.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() % 1_000_000
    });
    let out = make_out(options, seed)?;
    if options.inside {
        // libfaketime leaves files there when its process is killed.
        system("mount", &["-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"])?;
    }
    let (make, why) = volume::best_make(&out, isolation::is_root());
    let (kinds, left_out) = choose_kinds(options, make, why.as_deref())?;
    for (kind, why) in &left_out {
        println!("left out: {} ({why})", kind.name());
    }
    ensure!(!kinds.is_empty(), "no fault is left to inject");
    let group = options.cluster().join(" ");
    let long = options.duration >= LONG;
    println!(
        "chaos: {group}, seed {seed}, {} s of {} kinds of faults, in {}",
        options.duration.as_secs(),
        kinds.len(),
        out.display()
    );
    if !options.judged() {
        println!(
            "what clients see is not judged: one replica's word counts here, and its memory rots"
        );
    }
    let outcome = carry_out(options, &course, &out, make, &kinds, seed)?;
    let Some(mut report) = outcome else {
        println!("interrupted; {} is left as it is", out.display());
        return Ok(ExitCode::from(130));
    };
    report.group = group;
    report.service = options.service;
    report.seed = seed;
    report.must_fire = if long { kinds.clone() } else { Vec::new() };
    report.kinds = kinds;
    report.left_out = left_out;
    report.write(&out)?;
    print!("{}", report.text());
    if report.failed() {
        println!("FAILED; everything is kept in {}", out.display());
        return Ok(ExitCode::FAILURE);
    }
    if !options.keep {
        clean(&out)?;
    }
    println!("passed; report, chart and logs are in {}", out.display());
    Ok(ExitCode::SUCCESS)
}

fn make_out(options: &ChaosOptions, seed: u64) -> Result<PathBuf> {
    let named = options.out.clone();
    let out = named.unwrap_or_else(|| std::env::temp_dir().join(format!("chaos-{seed}")));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    ensure!(fs::read_dir(&out)?.next().is_none(), "{} is not empty", out.display());
    // Mounts want names that do not depend on where somebody stands.
    Ok(fs::canonicalize(out)?)
}

/// Kinds, each with why it is not injected.
type LeftOut = Vec<(FaultKind, String)>;

/// The kinds that were asked for and that this machine offers, and those that it does not.
fn choose_kinds(
    options: &ChaosOptions,
    make: Make,
    why: Option<&str>,
) -> Result<(Vec<FaultKind>, LeftOut)> {
    let asked = if options.only.is_empty() { FaultKind::all() } else { &options.only };
    let lab = lab_beside(&program(options)?);
    let missing = |kind: FaultKind| match kind.need() {
        Need::OwnVolume if make == Make::Directory => why,
        Need::LoopDevice if make != Make::Ext4 => why,
        Need::Faketime if faketime().is_none() => {
            Some("libfaketime is not installed; scripts/chaos-setup does it")
        }
        Need::Lab if !lab.exists() => {
            Some("there is no perdura-lab beside the program; `make programs` makes one")
        }
        Need::Lab if kind == FaultKind::Liar && options.is_crash_only() => {
            Some("a crash-only group believes whoever lies")
        }
        Need::Lab
            if kind == FaultKind::MemoryRot && options.judged() && options.is_crash_only() =>
        {
            Some(
                "clients of a crash-only group may see it; --only memory-rot runs it without a judge",
            )
        }
        _ => None,
    };
    let (mut kinds, mut left_out) = (Vec::new(), Vec::new());
    for kind in asked {
        match missing(*kind) {
            None => kinds.push(*kind),
            Some(why) => left_out.push((*kind, why.to_owned())),
        }
    }
    Ok((kinds, left_out))
}

/// The program under test.
fn program(options: &ChaosOptions) -> Result<PathBuf> {
    Ok(match &options.perdura {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("perdura"),
    })
}

/// The run itself; none if it was interrupted.
fn carry_out(
    options: &ChaosOptions,
    course: &Arc<Course>,
    out: &Path,
    make: Make,
    kinds: &[FaultKind],
    seed: u64,
) -> Result<Option<ChaosReport>> {
    let program = program(options)?;
    let proxies = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("proxies")
        .enable_all()
        .build()?;
    let (book, full) = Book::create(&out.join("history"))?;
    let book = Arc::new(book);
    let samples = Arc::new(Samples::default());
    let bulk = options.service == Service::Kv && kinds.contains(&FaultKind::MemoryRot);
    let settings = (options.service, bulk, options.rate, seed);
    let place = (out, &*program, make);
    let scene = set_up(options, course, place, (&book, &samples), &proxies, settings)?;
    let verdicts = Verdicts::default();
    let judge = judge(&scene, &book, full, &verdicts, options.judged());

    course.sleep(WARM_UP);
    let from = course.now_us();
    let until = from + options.duration.as_micros() as u64;
    nemesis::strike(&scene, kinds, &mut Random::new(seed).fork("nemesis"), until);
    let to = course.now_us();
    scene.load.stop();
    book.close();
    if judge.join().is_err() {
        course.violation("the judge ended with a panic".to_owned());
    }
    if course.ends().is_none() && options.service == Service::Partitions {
        locks_end(&scene)?;
    }
    if course.ends().is_none() && options.judged() {
        read_everything_back(&scene, &book, &verdicts)?;
    }
    if course.ends().is_none() && options.service == Service::Partitions {
        replicas_agree(&scene, &book);
    }
    if course.ends() == Some(End::Interrupted) {
        return Ok(None);
    }
    logs::look(&scene, course)?;
    let report = ChaosReport::new(&scene, (from, to), &samples, &lock(&verdicts), make);
    if !report.violations.is_empty() || options.keep {
        keep_data(&scene.cluster, out);
    }
    Ok(Some(report))
}

/// A cluster that runs, with its proxies and clients.
fn set_up(
    options: &ChaosOptions,
    course: &Arc<Course>,
    (out, program, make): (&Path, &Path, Make),
    (book, samples): (&Arc<Book>, &Arc<Samples>),
    proxies: &tokio::runtime::Runtime,
    settings: (Service, bool, u64, u64),
) -> Result<Scene> {
    let cluster =
        Arc::new(Cluster::create(program, out, &options.cluster(), make, options.bug.clone())?);
    let file = cluster.file()?;
    let replicas = file.replicas.iter().map(|replica| Ok(replica.address.parse()?));
    let replicas: Vec<SocketAddr> = replicas.collect::<Result<_>>()?;
    let network = Network::start(&replicas, load::clients(options.service), proxies.handle())?;
    cluster.take_cluster_file_to_hosts(&network)?;
    for id in 0..cluster.hosts.len() {
        cluster.start(id)?;
    }
    let watch = Watch::start(&cluster, course);
    if let Err(missing) = watch.wait_level(course, RECOVERY) {
        course.violation(format!("the cluster does not come up: {missing}"));
    }
    let hostile = match options.service {
        Service::Partitions => Some(cluster.add_client("hostile")?),
        Service::Kv | Service::Tuples => None,
    };
    let keys = load::Keys { usual: cluster.client_key(), hostile };
    let load = Load::start(course, book, samples, &network, (&file, keys), settings)?;
    let (timeline, service) = (Arc::new(Timeline::new(course)), options.service);
    let short = options.duration < LONG;
    let course = Arc::clone(course);
    Ok(Scene { course, cluster, network, watch, load, timeline, service, short })
}

/// What was done to clocks so far.
fn clocks(cluster: &Cluster, timeline: &Timeline) -> Clocks {
    Clocks::new(cluster.faults, cluster.max_skew_ms, &timeline.events())
}

/// Judges shards as they become full.
fn judge(
    scene: &Scene,
    book: &Arc<Book>,
    full: mpsc::Receiver<(ShardId, Vec<Operation>)>,
    verdicts: &Verdicts,
    judged: bool,
) -> JoinHandle<()> {
    let (book, verdicts) = (Arc::clone(book), Arc::clone(verdicts));
    let (course, timeline) = (Arc::clone(&scene.course), Arc::clone(&scene.timeline));
    let cluster = Arc::clone(&scene.cluster);
    std::thread::spawn(move || {
        for (id, operations) in full {
            match book.judge(id, &History { operations }, &clocks(&cluster, &timeline)) {
                Ok(Ok(judged)) => drop(lock(&verdicts).insert(id, judged)),
                // Where nothing else is promised.
                Ok(Err(why)) if !judged => println!("seen by clients: {why}"),
                Ok(Err(why)) => course.violation(why),
                Err(error) => course.violation(format!("cannot judge: {error:#}")),
            }
        }
    })
}

/// Everybody is well, and nobody asks for anything: what clients have left is ended all the same.
fn locks_end(scene: &Scene) -> Result<()> {
    let course = &scene.course;
    let begun = Instant::now();
    let mut last = String::new();
    let ended = course.poll(LOCKS_END, || {
        let pending = scene.cluster.client_command("txn", "pending").output();
        last = pending.as_ref().map_or_else(ToString::to_string, |output| {
            let said = [&output.stdout[..], &output.stderr[..]].concat();
            String::from_utf8_lossy(&said).trim().to_owned()
        });
        pending.ok().filter(nothing_pending)
    });
    match ended {
        Some(_) => println!(
            "{:8.1} s  nothing is pending {:.1} s after the last call",
            course.now_us() as f64 / 1e6,
            begun.elapsed().as_secs_f64()
        ),
        None => course.violation(format!(
            "{LOCKS_END:?} after the last call transactions are still pending, or it is not known: {last}"
        )),
    }
    Ok(())
}

/// Whether `perdura txn pending` has asked all partitions, and lists nothing.
fn nothing_pending(output: &Output) -> bool {
    output.status.success() && output.stdout.is_empty()
}

/// kill -9 of everything, and then all that was ever acknowledged has to be there.
fn read_everything_back(scene: &Scene, book: &Book, verdicts: &Verdicts) -> Result<()> {
    let (course, cluster) = (&scene.course, &scene.cluster);
    println!(
        "{:8.1} s  kill -9 of everything, and everything is read back",
        course.now_us() as f64 / 1e6
    );
    cluster.hosts.iter().for_each(crate::cluster::Host::kill);
    (0..cluster.hosts.len()).try_for_each(|id| cluster.start(id))?;
    if let Err(missing) = scene.watch.wait_level(course, RECOVERY) {
        scene.not_well("not well after the last kill of all", &missing);
        return Ok(());
    }
    let clocks = clocks(cluster, &scene.timeline);
    for shard in book.shards() {
        if course.ends().is_some() {
            break;
        }
        let read = match scene.load.read_back(shard) {
            Ok(read) => read,
            Err(error) => {
                course.violation(format!("{error:#}"));
                break;
            }
        };
        match book.judge_again(shard, read, &clocks)? {
            Ok(judged) => drop(lock(verdicts).insert(shard, judged)),
            Err(why) => course.violation(format!("after everything was read back: {why}")),
        }
    }
    Ok(())
}

/// All replicas of each group hold the same accounts, and in all groups together they hold all the money.
fn replicas_agree(scene: &Scene, book: &Book) {
    let banks = book.shards().into_iter().filter(|shard| shard.0 == Workload::Bank);
    match scene.load.money_of_all_replicas(scene.cluster.hosts.len()) {
        Ok(held) => {
            if let Err(why) = bank::adds_up(&held, banks.count()) {
                scene.course.violation(format!("by the word of every replica: {why}"));
            }
        }
        Err(error) => scene.course.violation(format!("not all replicas say the same: {error:#}")),
    }
}

/// Data directories are on mounts that end with the run.
fn keep_data(cluster: &Cluster, out: &Path) {
    for host in &cluster.hosts {
        host.kill();
        let target = out.join(format!("data-{}", host.id));
        if let Err(error) = files::copy_tree(&host.disk(), &target) {
            eprintln!("cannot keep the data of replica {}: {error:#}", host.id);
        }
    }
}

/// Leaves report, chart and logs.
fn clean(out: &Path) -> Result<()> {
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_listed_is_pending_and_what_nobody_answers_may_be() {
        let said = |line: &str| Command::new("sh").args(["-c", line]).output().unwrap();
        assert!(nothing_pending(&said("echo nothing is pending >&2")));
        assert!(!nothing_pending(&said("echo 4a62  2.0 s  writes  partitions 0,1, pending in 1")));
        assert!(!nothing_pending(&said("echo partition 1 does not answer >&2; exit 4")));
    }
}
