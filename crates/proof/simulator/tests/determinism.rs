//! Equal options give equal runs, byte for byte.

use perdura_simulator::ServiceKind;
use perdura_simulator::{SimulationOptions, SimulationReport, simulate_traced};
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn traced(options: &SimulationOptions) -> (SimulationReport, Vec<u8>) {
    let lines = Lines::default();
    let report = simulate_traced(options, Some(Box::new(lines.clone()))).unwrap();
    let bytes = std::mem::take(&mut *lines.0.lock().unwrap());
    (report, bytes)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let spaces = Some(ServiceKind::TupleSpaces);
    let drawn = [1, 2, 3, 5, 8].map(|seed| (seed, None));
    let of_spaces = [1, 2, 3].map(|seed| (seed, spaces));
    let of_partitions = [1, 2].map(|seed| (seed, Some(ServiceKind::Partitions)));
    for (seed, service) in drawn.into_iter().chain(of_spaces).chain(of_partitions) {
        let options = SimulationOptions { service, ..SimulationOptions::new(seed, 4_000) };
        let (report, lines) = traced(&options);
        let other = std::thread::spawn({
            let options = options.clone();
            move || traced(&options)
        });
        let (again, lines_again) = other.join().unwrap();
        assert_eq!(report, again, "seed {seed}");
        assert!(lines == lines_again, "seed {seed}");
        // Whether anybody listens changes nothing.
        assert_eq!(perdura_simulator::simulate(&options).unwrap(), report, "seed {seed}");
        let (other_seed, _) = traced(&SimulationOptions::new(seed + 100, 4_000));
        assert_ne!(other_seed.fingerprint, report.fingerprint);
    }
}
