//! Runs seeds: `simulate FIRST COUNT [STEPS] [--trace]`.

use perdura_simulator::{Options, Report, simulate, simulate_traced};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count, steps) = (number(0, 1), number(1, 1), number(2, 10_000));
    let traced = arguments.iter().any(|text| text == "--trace");
    let mut total = Report::default();
    let mut failures = 0;
    for seed in first..first + count {
        let options = Options::new(seed, steps);
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
