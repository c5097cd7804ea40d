//! Every fuzz target, on the stable toolchain, over its committed seeds and thousands of damaged
//! ones; the same inputs each time. `PERDURA_FUZZ=20` runs twenty times as many, others ones too.

use perdura_fuzzing::memory::{Counting, peak_of};
use perdura_fuzzing::mutation::{Random, mutate};
use perdura_fuzzing::{TARGETS, Target, target};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn directory(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds").join(target.name)
}

fn committed(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let directory = directory(target);
    let entries = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(path).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Runs one input; what panics is shown as bytes.
fn run(target: &Target, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).unwrap_or_else(|_| {
        let shown: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("target {}, input {shown}", target.name)
    })
}

fn smoke(name: &str) {
    let target = target(name);
    let seeds = committed(target);
    for (name, seed) in (target.seeds)() {
        assert!(run(target, &seed), "{}: its own encoder's {name} is refused", target.name);
        assert!(
            seeds.contains_key(name),
            "{}: seed {name} is not committed; run `cargo run -p perdura-fuzzing --example seeds`",
            target.name
        );
    }
    let seeds: Vec<Vec<u8>> = seeds.into_values().collect();
    for seed in &seeds {
        run(target, seed);
    }
    let more = std::env::var("PERDURA_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random =
        Random(name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte)));
    let mut accepted = 0;
    for _ in 0..target.smoke * more {
        accepted += usize::from(run(target, &mutate(&mut random, &seeds)));
    }
    assert!(accepted > 0, "{name}: every damaged input is refused at once");
}

macro_rules! smokes {
    ($($name:ident)*) => {
        mod of {
            $(#[test]
            fn $name() {
                super::smoke(stringify!($name));
            })*
        }

        #[test]
        fn every_target_has_its_smoke() {
            let here = [$(stringify!($name)),*];
            assert!(TARGETS.iter().map(|target| target.name).eq(here));
        }
    };
}

smokes! {
    message command record framing hello tls superblock directory log_model manifest state
    store_command store_reply partition_command partition_reply tuple_command tuple_reply tuple_segment cluster_file key_file replica_file json_line space_line history
}

/// The measure measures.
#[test]
fn memory_is_counted() {
    let (peak, vector) = peak_of(|| {
        drop(vec![0u8; 100_000]);
        vec![1u8; 10_000]
    });
    assert!((100_000..101_000).contains(&peak), "{peak}");
    drop(vector);
    let mut vector: Vec<u8> = Vec::with_capacity(1000);
    let (peak, ()) = peak_of(|| vector.reserve_exact(3000));
    assert!((3000..3100).contains(&peak), "{peak}");
}

/// `fuzz/` has a target for each of ours, and nothing else.
#[test]
fn every_target_is_fuzzed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        let path = root.join("fuzz_targets").join(target.name).with_extension("rs");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("fuzz!(\"{}\")", target.name)), "{}", target.name);
    }
    let files = std::fs::read_dir(root.join("fuzz_targets")).unwrap().count();
    assert_eq!(files, TARGETS.len());
}

/// What libFuzzer found: keys of dozens of empty parts, each an error of its own.
#[test]
fn files_of_nothing_but_errors_take_memory_by_their_length() {
    let target = TARGETS.iter().find(|target| target.name == "key_file").unwrap();
    let text = "# A client.\n# Whoeve to yourself.\nfname = fo\u{1b}rmat= \"a \\\"b =_\u{0}\u{0}\u{0}\u{1f}.\n.............................................................................at = #..........................\u{0}\u{0}\u{1f}.\n............................\u{0}\u{0}\u{0}.............................................at = #1\u{0}\u{7f}oml\"\n";
    for times in [1, 2, 10, 200] {
        let text = text.repeat(times);
        assert!(!run(target, text.as_bytes()));
    }
}
