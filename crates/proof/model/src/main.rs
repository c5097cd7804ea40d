//! `perdura-model`: explores the agreement core within bounds and prints what it covered.

use perdura_model::catalogue::{self, Named};
use perdura_model::explore::{Outcome, explore, walk};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "\
perdura-model [NAME...]                 explore these scopes to the end (all of them by default)
perdura-model --flaws                   see that each flaw made on purpose is found
perdura-model --walks SECONDS [SEED]    random walks beyond those bounds, so long for each scope
perdura-model --list                    the scopes
Options: --limit STATES (per scope, default 200000000), --threads COUNT (default 2)
Exit code 0: nothing was violated, 1: something was, or a limit was reached, 2: wrong usage.";

struct Arguments {
    names: Vec<String>,
    flaws: bool,
    list: bool,
    walks_seconds: Option<u64>,
    seed: u64,
    limit: usize,
    threads: usize,
}

fn parse() -> Option<Arguments> {
    let mut arguments = Arguments {
        names: Vec::new(),
        flaws: false,
        list: false,
        walks_seconds: None,
        seed: 0,
        limit: 200_000_000,
        threads: 2,
    };
    let mut words = std::env::args().skip(1).peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--flaws" => arguments.flaws = true,
            "--list" => arguments.list = true,
            "--limit" => arguments.limit = words.next()?.parse().ok()?,
            "--threads" => arguments.threads = words.next()?.parse().ok().filter(|n| *n > 0)?,
            "--walks" => {
                arguments.walks_seconds = Some(words.next()?.parse().ok()?);
                if let Some(seed) = words.peek().and_then(|word| word.parse().ok()) {
                    arguments.seed = seed;
                    words.next();
                }
            }
            name if name.starts_with('-') => return None,
            name => arguments.names.push(name.to_owned()),
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = parse() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // A machine that stops is a violation, and reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    let sound = if arguments.list {
        for Named { name, what, .. } in catalogue::all() {
            println!("{name:16} {what}");
        }
        true
    } else if arguments.flaws {
        find_flaws()
    } else if let Some(seconds) = arguments.walks_seconds {
        in_threads(arguments.threads, catalogue::beyond(), |named| {
            walk_scope(&named, arguments.seed, seconds)
        })
    } else {
        let all = catalogue::all();
        let known = |name: &String| all.iter().any(|named| named.name == name);
        if let Some(name) = arguments.names.iter().find(|name| !known(name)) {
            eprintln!("no scope is called {name}; see --list");
            return ExitCode::from(2);
        }
        let chosen = if arguments.names.is_empty() {
            catalogue::exhaustive()
        } else {
            all.into_iter()
                .filter(|named| arguments.names.iter().any(|n| n == named.name))
                .collect()
        };
        in_threads(arguments.threads, chosen, |named| explore_scope(&named, arguments.limit))
    };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Works through the scopes, several at a time; whether all were sound.
fn in_threads(threads: usize, mut work: Vec<Named>, run: impl Fn(Named) -> bool + Sync) -> bool {
    work.reverse();
    let (work, sound) = (Mutex::new(work), Mutex::new(true));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = work.lock().expect("no holder panics").pop();
                    let Some(named) = next else { return };
                    if !run(named) {
                        *sound.lock().expect("no holder panics") = false;
                    }
                }
            });
        }
    });
    sound.into_inner().expect("no holder panics")
}

fn explore_scope(named: &Named, limit: usize) -> bool {
    let started = Instant::now();
    let run = explore(named.scope.clone(), limit);
    let Outcome { states, transitions, depth, ends, sizes, .. } = run;
    let mut text = format!(
        "{}: {}\n    {states} states, {transitions} transitions, depth {depth}, {ends} ends; \
         {} states of one replica, {} messages, {} machine steps; {:.1} s{}\n",
        named.name,
        named.what,
        sizes.locals,
        sizes.posts,
        sizes.steps,
        started.elapsed().as_secs_f64(),
        if run.complete { "" } else { "; NOT COMPLETE: limit reached" },
    );
    let marks: Vec<String> = run
        .marks
        .iter()
        .filter(|(_, states)| *states > 0)
        .map(|(mark, states)| format!("{mark} {states}"))
        .collect();
    text += &format!("    rare branches behind states of one replica: {}\n", marks.join(", "));
    if let Some((violation, lines)) = &run.violation {
        text += &format!("    VIOLATED {violation}\n");
        lines.iter().for_each(|line| text += &format!("      {line}\n"));
    }
    print!("{text}");
    run.complete && run.violation.is_none()
}

fn find_flaws() -> bool {
    let mut all_found = true;
    for (flaw, scope) in catalogue::flawed() {
        let (n, started) = (scope.faults.n(), Instant::now());
        let run = explore(scope, 20_000_000);
        let seconds = started.elapsed().as_secs_f64();
        if let Some((violation, lines)) = run.violation {
            let (states, steps) = (run.states, lines.len());
            println!(
                "{flaw:?}, n = {n}: found after {states} states, {seconds:.1} s, {steps} steps"
            );
            println!("    {violation}");
            lines.iter().for_each(|line| println!("      {line}"));
        } else {
            all_found = false;
            println!("{flaw:?}, n = {n}: NOT FOUND in {} states, {seconds:.1} s", run.states);
        }
    }
    all_found
}

fn walk_scope(named: &Named, seed: u64, seconds: u64) -> bool {
    let (started, time) = (Instant::now(), Duration::from_secs(seconds));
    let walked = walk(&named.scope, seed..u64::MAX, || started.elapsed() >= time);
    let mut text = format!(
        "{}: {}\n    seeds {seed} to {}: {} walks, {} steps, the longest {}; {:.1} s\n",
        named.name,
        named.what,
        seed + walked.walks.saturating_sub(1),
        walked.walks,
        walked.steps,
        walked.longest,
        started.elapsed().as_secs_f64(),
    );
    if let Some((seed, violation, lines)) = &walked.violation {
        text += &format!("    VIOLATED with seed {seed}: {violation}\n");
        lines.iter().for_each(|line| text += &format!("      {line}\n"));
    }
    print!("{text}");
    walked.violation.is_none()
}
