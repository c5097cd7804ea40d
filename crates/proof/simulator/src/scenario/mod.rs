//! Protocol scenarios as readable text, in `scenarios/` at the root of the repository.
//!
//! A scenario is a row of blocks: commands, a line `----`, what came of them, an empty line. Lines
//! that begin with `#` are for the reader. The first command is `group`. With
//! `PERDURA_REWRITE=1` the test writes what comes instead of comparing it; the difference is for
//! review. What happens to a replica unasked (it stops itself, does not start, warns) is part of
//! what comes.
//!
//! | command | what it does |
//! |---|---|
//! | `group U,R [depth N] [interval N] [rules N] [clients N] [strangers N] [attacker NAME]..` | starts a group with these fault bounds on a calm network, N slots between two checkpoints; the last N clients are not registered; `rules 0` are those of 0.1.0 |
//! | `run MS` | virtual time passes |
//! | `status` | where each replica stands |
//! | `order [KEY]` | what was executed, in order; of one key |
//! | `end` | all is started and comes to rest; every checker judges |
//!
//! Calls, of client 0 unless `cN` stands before them:
//!
//! | command | what it does |
//! |---|---|
//! | `put KEY VALUE`, `get KEY`, `del KEY`, `fast KEY`, `swap KEY OLD NEW` | a call, to its end (`fast`: a read that is not ordered; `swap`: a put if the value is OLD) |
//! | `call ...` | one of these; it goes on while other things happen |
//! | `calls`, `await` | how those stand; lets all of them end |
//! | `load N` | N puts, one after the other |
//!
//! Processes, machines and links of replicas:
//!
//! | command | what it does |
//! |---|---|
//! | `kill I`, `crash I`, `crash all` | a process ends; a machine stops, what was not synced is lost |
//! | `start I`, `start all` | from what is on disk |
//! | `cut I`, `mend I` | takes a replica off the network, and back |
//! | `hold FROM TO KIND` | messages of a kind wait on their way (`r0`, `c0`, `h0`, `any`; kinds as in `view-change`, or `any`) |
//! | `tape FROM TO KIND` | a copy of each is kept |
//! | `release` | what is held or taped arrives now, whatever became of its link; holds and tapes end |
//! | `drop` | what is held is lost; holds end |
//!
//! Disks:
//!
//! | command | what it does |
//! |---|---|
//! | `rot I log TEXT`, `rot I checkpoint TEXT` | a bit flips wherever this text stands on the disk |
//! | `empty I [log]` | the machine stops, and nothing is on its disk any more, or no log |
//! | `lose-disk I` | the disk is gone; the administrator orders a new incarnation and starts it |
//! | `slow-disk I MS` | flushes take so much longer |
//! | `fail-flush I` | the next flush fails; later ones succeed without storing what it should have |
//! | `crash-in I append N`, `checkpoint`, `recovery` | the machine stops after N more disk operations of the next write of the log, state that is stored, or start; N may be `done` |
//! | `crash-at-output I N` | the machine stops when N more messages or orders to its disk have left the replica |
//!
//! People:
//!
//! | command | what it does |
//! |---|---|
//! | `liar I STRATEGY` | from now on the replica lies so (`crates/proof/adversary/src/strategy.rs`) |
//! | `attack hN MS` | the N-th attacker attacks for so long (`crates/proof/adversary/src/attacker.rs`) |
//! | `restart cN [TIMES]` | the client process ends, another one with its key starts and makes a call; so many times |
//! | `revoke cN`, `add cN` | the administrator revokes or registers its key |
//! | `raise RULES SERVICE`, `limit MIB`, `clients` | the administrator raises the versions, or the state's limit, or lists the clients |
//! | `rotate`, `steal cN` | the administrator replaces his key; somebody revokes a client with the former one |
//! | `terms` | versions and limit that each replica has |
//! | `call revoke cN` | goes on while other things happen; it is told how it ended |
//! | `who cN` | which replicas know its key |

mod stage;

use crate::violation::Violation;
use stage::Stage;
use std::fmt::Write;

/// Why a scenario did not run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A line that is no command.
    #[error("{0:?} is no command of a scenario")]
    Unknown(String),
    /// A command before `group`.
    #[error("the first command is `group U,R`")]
    NoGroup,
    /// A rule was broken.
    #[error(transparent)]
    Violated(#[from] Box<Violation>),
}

/// Runs a scenario; returns it with what came of each block.
///
/// # Errors
/// When a line is no command, or a rule is broken.
pub fn run(text: &str) -> Result<String, ScenarioError> {
    run_traced(text, None)
}

/// As [`run`], with a line for everything that happens.
///
/// # Errors
/// As [`run`].
pub fn run_traced(
    text: &str,
    writer: Option<Box<dyn std::io::Write>>,
) -> Result<String, ScenarioError> {
    let mut out = String::new();
    let mut stage = Stage::new(writer);
    let mut answers = String::new();
    let mut skipping = false;
    for line in text.lines() {
        match line {
            "----" => {
                let _ = writeln!(out, "----\n{answers}");
                answers.clear();
                skipping = true;
            }
            "" if skipping => skipping = false,
            _ if skipping => {}
            "" => out.push('\n'),
            _ => {
                let _ = writeln!(out, "{line}");
                if !line.starts_with('#') {
                    stage.command(line, &mut answers)?;
                }
            }
        }
    }
    while out.ends_with("\n\n") {
        out.pop();
    }
    Ok(out)
}
