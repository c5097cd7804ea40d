//! Runs seeds: `simulate FIRST COUNT [STEPS] [--trace]`. For profiles; `perdura simulate` has the
//! options. `RATE=10` calls in a second, `GROUP=1,1` the fault bounds.

use perdura_protocol::{Faults, Scheme};
use perdura_simulator::{Options, Report, simulate, simulate_traced};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count, steps) = (number(0, 1), number(1, 1), number(2, 10_000));
    let traced = arguments.iter().any(|text| text == "--trace");
    let group = std::env::var("GROUP").ok().and_then(|text| {
        let (u, r) = text.split_once(',')?;
        Faults::new(u.parse().ok()?, r.parse().ok()?).ok()
    });
    let rate = std::env::var("RATE").ok().and_then(|text| text.parse().ok());
    let mut total = Report::default();
    let mut failures = 0;
    for seed in first..first + count {
        let mut options = Options::new(seed, steps);
        options.faults = group;
        options.scheme = group.map(|_| Scheme::KeyedHash);
        options.overrides.rate = rate;
        let result = if traced {
            simulate_traced(&options, Some(Box::new(std::io::stdout())))
        } else {
            simulate(&options)
        };
        match result {
            Ok(report) => total.add(&report),
            Err(violation) => {
                failures += 1;
                eprintln!("{violation}");
            }
        }
    }
    println!("{total}\nfailures {failures}");
    println!("never fired {:?}, never taken {:?}", total.never_fired(), total.never_reached());
}
