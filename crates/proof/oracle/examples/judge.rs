//! Our own search over histories in files, one verdict a line, in the words of `judge/`: for
//! comparing the two (`scripts/judge --compare`).

use perdura_oracle::{DEFAULT_BUDGET, History, Verdict, check};
use std::process::ExitCode;

fn main() -> ExitCode {
    for path in std::env::args().skip(1) {
        let read = std::fs::read_to_string(&path).map_err(|error| error.to_string());
        let history = match read.and_then(|text| History::from_json_lines(&text)) {
            Ok(history) => history,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::from(2);
            }
        };
        let verdict = match check(&history, DEFAULT_BUDGET) {
            Verdict::Linearizable => "linearizable",
            Verdict::Violated(_) => "violated",
            Verdict::Undecided => "undecided",
        };
        println!("{path} {verdict}");
    }
    ExitCode::SUCCESS
}
