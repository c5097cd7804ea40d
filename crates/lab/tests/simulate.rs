//! What users of the simulator do wrong, and that a seed repeats its run.

use crate::run;

#[test]
fn simulate_repeats_itself_and_knows_its_flags() {
    let simulate = |more: &[&str]| run(&[&["simulate", "--seed", "7"], more].concat());
    let first = simulate(&["--steps", "500"]).ok();
    assert!(first.contains("violations    0"), "{first}");
    // All but the line that says how long it took.
    let steady = |text: &str| {
        text.lines().filter(|line| !line.starts_with("speed ")).map(str::to_owned).collect()
    };
    let again: Vec<String> = steady(&simulate(&["--steps", "500"]).ok());
    assert_eq!(again, steady(&first));
    let batch =
        |jobs: &str| steady(&simulate(&["--steps", "300", "--seeds", "4", "--jobs", jobs]).ok());
    let one: Vec<String> = batch("1");
    assert_eq!(one, batch("3"));
    simulate(&["--steps", "10", "--every-fault"]).failed(1, &["never", "MachineCrash"]);
    let less = ["--without", "Wipe,MessageLoss", "--skip-faults", "1-3,5", "--clients", "1"];
    let more = ["--callers", "1", "--keys", "1", "--simpler", "network,clocks", "--rate", "10"];
    let long = ["--steps", "2000", "--trace", "-"];
    let traced = simulate(&[&long[..], &less[..], &more[..]].concat()).ok();
    assert!(traced.contains("is skipped") && traced.contains("faster than real time"), "{traced}");
    let calm = simulate(&["--steps", "500", "--without", "all"]).ok();
    assert!(calm.contains("faults        \n"), "{calm}");
    simulate(&["--without", "Wipe", "--without-all-but", "Wipe"]).failed(2, &["--without"]);
    let only = simulate(&["--steps", "3000", "--only", "Pause", "--without-all-but", "Pause"]).ok();
    assert!(only.contains("faults        Pause "), "{only}");
    simulate(&["--faults", "1,0", "--liars", "twins"]).failed(2, &["at most 0"]);
    simulate(&["--liars", "twins,rebel,censor"]).failed(2, &["at most 2"]);
    simulate(&["--without", "Rain"]).failed(2, &["MachineCrash"]);
    simulate(&["--skip-faults", "9-7"]).failed(2, &["3,7-9"]);
    simulate(&["--simpler", "life"]).failed(2, &["network"]);
    simulate(&["--steps", "0"]).failed(2, &["--steps"]);
    simulate(&["--faults", "1"]).failed(2, &["2,1"]);
    simulate(&["--mode", "bliss"]).failed(2, &["liveness or safety"]);
    simulate(&["--signatures", "none"]).failed(2, &["keyed-hash"]);
}
