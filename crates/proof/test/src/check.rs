//! Runs a service beside its twins, with the same commands, and holds them against each other.
//!
//! - A twin that runs later by the clock, with other seeds of its hash maps, gives the same answers and the same state.
//! - One that is restored from a snapshot in the middle goes on with the same answers and the same state.
//! - One that is not given the commands that were refused gives the same answers, so that a refusal has changed nothing.
//! - What is stored comes back from its bytes as it was, and the answers can be read.
//! - Nothing panics, and nothing is larger than it may be.

use crate::random::Random;
use crate::run::{Answer, Panicked, Run, Sent};
use crate::words::{self, InWords, debug_as_display};
use bytes::Bytes;
use perdura_protocol::ids::to_hex;
use perdura_protocol::limits;
use perdura_typed::{Service, Typed, Unfaithful, encode_command, encode_query, is_refusal};
use std::fmt::{self, Debug};
use std::ops::Range;
use std::time::Duration;

/// Steps of a seed: the last one ends with a snapshot.
const STEPS: u64 = 4 * SNAPSHOT;

/// After so many there is a snapshot.
const SNAPSHOT: u64 = 50;

/// By so much the twin is later: a clock that is read in seconds shows another one.
const LATER: Duration = Duration::from_millis(1_100);

/// What a client may ask of a service.
pub enum Step<S: Service> {
    /// A command.
    Command(S::Command),
    /// A query.
    Query(S::Query),
}

/// Two answers that are to be one, in the service's own words, or as bytes where these are alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// The one that came first.
    pub first: String,
    /// The other one.
    pub then: String,
}

impl Answers {
    pub(crate) fn of<S: InWords>(first: &Answer, then: &Answer) -> Answers {
        let [one, other] = [first, then].map(words::of_answer::<S>);
        match (first, then) {
            (Ok(first), Ok(then)) if one == other => {
                let [first, then] = [first, then].map(|bytes| words::cut(to_hex(bytes)));
                Answers { first, then }
            }
            _ => Answers { first: one, then: other },
        }
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at first, then {}", self.first, self.then)
    }
}

/// What is wrong with a service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// It panicked.
    #[error("it panicked: {0}")]
    Panic(String),
    /// Run again, with other seeds of hash maps, at once or a second later, it gave another answer.
    #[error(
        "run again it answered otherwise ({0}): does it look at a clock, at chance, or at the order of a hash map?"
    )]
    AnswersDiffer(Answers),
    /// The same of its state.
    #[error(
        "run again its state is another one: does it look at a clock, at chance, or at the order of a hash map?"
    )]
    StatesDiffer,
    /// A service that was restored from a snapshot answers otherwise.
    #[error(
        "restored from a snapshot it answered otherwise ({0}): is a part of its state not named in `parts`, or a field of one skipped (`#[serde(skip)]`)?"
    )]
    RestoredAnswersDiffer(Answers),
    /// Or its state is not the same.
    #[error(
        "restored from a snapshot its state is another one: is a part of its state not named in `parts`?"
    )]
    RestoredStateDiffers,
    /// It cannot be restored from its own snapshot.
    #[error("its own snapshot does not restore: {0}")]
    NotRestored(String),
    /// Without the commands that were refused it answers otherwise.
    #[error(
        "without the commands that it refused it answered otherwise ({0}): a refused command has changed a part of its state that `parts` does not name, or a field of one that is skipped"
    )]
    RefusalChanges(Answers),
    /// The state is another one after a command that was refused.
    #[error("a command that it refused has changed its state")]
    RefusalChangesState,
    /// A segment of its state is larger than replicas take.
    #[error("a segment of its state has {0} bytes, more than replicas take")]
    SegmentTooLarge(usize),
    /// A query has changed its state.
    #[error("a query has changed its state")]
    QueryChangesState,
    /// A command or query cannot be sent.
    #[error("a command or query cannot be sent: {0}")]
    NotEncoded(String),
    /// A reply or an error cannot be read by the client that it is for.
    #[error(
        "an answer cannot be read by its client: give its type no attribute that leaves out what is read, as `skip_serializing_if` does, none that asks the \
         format what comes next, as `untagged` does, and nest it less deep"
    )]
    AnswerNotRead,
    /// A part of the state, or a key or a value of a map, cannot be read back.
    #[error(
        "{0} cannot be read back from the bytes that it is stored as: have `Serialize` (or `Key::encode_key`) write just what `Deserialize` (or \
         `Key::decode_key`) reads, without attributes such as `skip_serializing_if` and `untagged`"
    )]
    NotReadBack(String),
    /// It has other bytes once it was read back.
    #[error(
        "{0} has other bytes when it is read back and written again, so that replicas would differ: put a `BTreeMap` or `BTreeSet` in the place of a hash \
         map or set in it, and have what is read be what was written"
    )]
    ChangedByReading(String),
    /// Keys of a map are in another order than their bytes.
    #[error(
        "{0} are in another order than their bytes, or one's bytes begin another's: have `Key::encode_key` write the fields in the order in which `Ord` \
         compares them, each by its own `encode_key`"
    )]
    KeysOutOfOrder(String),
    /// A command or query is none under the version in force; or a reply, an error or an entry is larger, or a value deeper, than it may be.
    #[error("{0}")]
    Unfit(String),
}

/// A [`Fault`], and where it showed.
#[derive(Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// The seed.
    pub seed: u64,
    /// The step, from 0 on.
    pub step: u64,
    /// The version under which it ran.
    pub version: u16,
    /// What it was asked at that step.
    pub asked: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { fault, seed, step, version, asked } = self;
        write!(f, "seed {seed}, step {step}")?;
        if let Some(asked) = asked {
            write!(f, " ({asked})")?;
        }
        write!(f, ", under version {version}: {fault}")
    }
}

debug_as_display!(Finding);

/// What a run of a seed gave.
struct Ran {
    sent: Vec<Sent>,
    answers: Vec<Answer>,
    // At each snapshot.
    states: Vec<Vec<Bytes>>,
}

/// Runs a service with 200 steps for each seed, which `step` chooses, under each version that it has, and all of them again 1.1 s later.
///
/// # Errors
/// The first [`Finding`].
pub fn check<S>(
    seeds: Range<u64>,
    mut step: impl FnMut(&mut Random) -> Step<S>,
) -> Result<(), Box<Finding>>
where
    S: Service,
    S::Command: Debug,
    S::Query: Debug,
    S::Reply: Debug,
{
    let mut all = Vec::new();
    for version in 1..=S::VERSION {
        for seed in seeds.clone() {
            let sent = drawn::<S>(version, seed, &mut step)?;
            let found = |wrong| found::<S>((version, seed), &sent, wrong);
            let ran = run::<S>(version, sent.clone()).map_err(found)?;
            twins::<S>(version, &ran).map_err(found)?;
            all.push((version, seed, ran));
        }
    }
    std::thread::sleep(LATER);
    for (version, seed, ran) in all {
        let again = run::<S>(version, ran.sent.clone()).and_then(|again| same::<S>(&ran, &again));
        again.map_err(|wrong| found::<S>((version, seed), &ran.sent, wrong))?;
    }
    Ok(())
}

/// What is wrong, with what was asked at that step.
fn found<S: InWords>(
    (version, seed): (u16, u64),
    sent: &[Sent],
    (step, fault): Wrong,
) -> Box<Finding> {
    let asked = sent.get(step as usize).map(|sent| words::of_asked::<S>(&sent.bytes));
    Box::new(Finding { fault, seed, step, version, asked })
}

/// The steps of a seed.
fn drawn<S: InWords>(
    version: u16,
    seed: u64,
    draw: &mut impl FnMut(&mut Random) -> Step<S>,
) -> Result<Vec<Sent>, Box<Finding>> {
    let mut random = Random::new(seed);
    let mut sent = |number| {
        let found = |fault, asked| Box::new(Finding { fault, seed, step: number, version, asked });
        let step = step_of(draw, &mut random, version).map_err(|fault| found(fault, None))?;
        encoded::<S>(&step).map_err(|fault| found(fault, Some(words::cut(S::drawn(&step)))))
    };
    (0..STEPS).map(&mut sent).collect()
}

/// Commands and queries that are drawn until one is there under some version.
const DRAWN: u64 = 100_000;

/// The next one that there is under this version, of as many tries as that takes.
pub(crate) fn step_of<S: Service>(
    draw: &mut impl FnMut(&mut Random) -> Step<S>,
    random: &mut Random,
    version: u16,
) -> Result<Step<S>, Fault> {
    let mut steps = (0..DRAWN).map(|_| draw(random));
    let there_is = |step: &Step<S>| match step {
        Step::Command(command) => S::since(command) <= version,
        Step::Query(query) => S::query_since(query) <= version,
    };
    steps.find(there_is).ok_or_else(|| {
        Fault::Unfit(format!(
            "of {DRAWN} commands and queries that were drawn none is there under this version"
        ))
    })
}

/// Holds a run against its twins; where one differs it is asked first whether any twin does.
fn twins<S: InWords>(version: u16, ran: &Ran) -> Result<(), Wrong> {
    let again = || run::<S>(version, ran.sent.clone()).and_then(|again| same::<S>(ran, &again));
    again()?;
    let differs = without_refused::<S>(version, ran).and_then(|()| restored::<S>(version, ran));
    differs.or_else(|wrong| again().and(Err(wrong)))
}

pub(crate) fn encoded<S: Service>(step: &Step<S>) -> Result<Sent, Fault> {
    let (bytes, is_command) = match step {
        Step::Command(command) => (encode_command::<S>(command), true),
        Step::Query(query) => (encode_query::<S>(query), false),
    };
    let bytes = bytes.map_err(|error| Fault::NotEncoded(error.to_string()))?;
    Ok(Sent { bytes, is_command })
}

/// What is wrong, and at which step.
type Wrong = (u64, Fault);

fn panicked(step: u64) -> impl Fn(Panicked) -> Wrong {
    move |Panicked(text)| (step, Fault::Panic(text))
}

pub(crate) fn stored(unfaithful: Unfaithful) -> Fault {
    match unfaithful {
        Unfaithful::Unreadable(what) => Fault::NotReadBack(what),
        Unfaithful::Changed(what) => Fault::ChangedByReading(what),
        Unfaithful::Disordered(what) => Fault::KeysOutOfOrder(what),
    }
}

/// Whether it changed nothing, by what it answered.
fn refused(sent: &Sent, answer: &Answer) -> bool {
    sent.is_command && answer.as_ref().map_or(true, |reply| is_refusal(reply))
}

/// Does a step, whose answer is one that its client can read.
pub(crate) fn answer_of<S: Service>(
    run: &mut Run<S>,
    number: u64,
    sent: &Sent,
) -> Result<Answer, Fault> {
    let answer = run.step(number, sent).map_err(|Panicked(words)| match run.verify() {
        // Whoever reads that panics.
        Ok(Err(unfaithful)) => stored(unfaithful),
        _ => Fault::Panic(words),
    })?;
    match &answer {
        Err(said) if Typed::<S>::is_fault(said) => Err(Fault::Unfit(said.clone())),
        Ok(bytes) if Typed::<S>::answered(bytes).is_none() => Err(Fault::AnswerNotRead),
        _ => Ok(answer),
    }
}

fn run<S: Service>(version: u16, sent: Vec<Sent>) -> Result<Ran, Wrong> {
    let mut run = Run::<S>::new(version);
    let (mut answers, mut states) = (Vec::new(), Vec::new());
    let mut content = run.content().map_err(panicked(0))?;
    for (number, step) in (0..).zip(&sent) {
        let answer = answer_of(&mut run, number, step).map_err(|fault| (number, fault))?;
        let after = run.content().map_err(panicked(number))?;
        if (refused(step, &answer) || !step.is_command) && after != content {
            let fault =
                if step.is_command { Fault::RefusalChangesState } else { Fault::QueryChangesState };
            return Err((number, fault));
        }
        content = after;
        answers.push(answer);
        if number % SNAPSHOT == SNAPSHOT - 1 {
            let verified = run.verify().map_err(panicked(number))?;
            verified.map_err(|unfaithful| (number, stored(unfaithful)))?;
            let state = run.segments().map_err(panicked(number))?;
            if let Some(large) = state.iter().find(|segment| segment.len() > limits::PIECE_BYTES) {
                return Err((number, Fault::SegmentTooLarge(large.len())));
            }
            states.push(state);
        }
    }
    Ok(Ran { sent, answers, states })
}

/// From each of its snapshots it goes on as it did.
fn restored<S: InWords>(version: u16, ran: &Ran) -> Result<(), Wrong> {
    for (index, state) in (1..).zip(&ran.states) {
        let from = index * SNAPSHOT;
        let run = Run::<S>::restored(version, state.clone()).map_err(panicked(from))?;
        let mut run = run.map_err(|why| (from, Fault::NotRestored(why)))?;
        if run.segments().map_err(panicked(from))? != *state {
            return Err((from, Fault::RestoredStateDiffers));
        }
        let steps = (0..).zip(&ran.sent).zip(&ran.answers).skip(from as usize);
        for ((number, step), answer) in steps {
            let again = run.step(number, step).map_err(panicked(number))?;
            if again != *answer {
                let answers = Answers::of::<S>(answer, &again);
                return Err((number, Fault::RestoredAnswersDiffer(answers)));
            }
        }
        let last = run.segments().map_err(panicked(from))?;
        if ran.states.last().is_some_and(|state| *state != last) {
            return Err((from, Fault::RestoredStateDiffers));
        }
    }
    Ok(())
}

fn without_refused<S: InWords>(version: u16, ran: &Ran) -> Result<(), Wrong> {
    let mut run = Run::<S>::new(version);
    for ((number, step), answer) in (0..).zip(&ran.sent).zip(&ran.answers) {
        if refused(step, answer) {
            continue;
        }
        let without = run.step(number, step).map_err(panicked(number))?;
        if without != *answer {
            return Err((number, Fault::RefusalChanges(Answers::of::<S>(answer, &without))));
        }
    }
    Ok(())
}

fn same<S: InWords>(first: &Ran, again: &Ran) -> Result<(), Wrong> {
    let mut answers = (0..).zip(first.answers.iter().zip(&again.answers));
    if let Some((number, (one, other))) = answers.find(|(_, (one, other))| one != other) {
        return Err((number, Fault::AnswersDiffer(Answers::of::<S>(one, other))));
    }
    let differs = first.states.iter().zip(&again.states).position(|(one, other)| one != other);
    match differs {
        Some(index) => Err(((index as u64 + 1) * SNAPSHOT - 1, Fault::StatesDiffer)),
        None => Ok(()),
    }
}
