//! Holds a service against a record.
//!
//! First whether it reads what was written, since that says most of what was changed; then whether it does the same; then whether it goes on from
//! what was stored, under the version of the record and under newer ones.

use super::format::escaped;
use super::{Change, Recorded, State, Step};
use crate::check::{Fault, answer_of, stored};
use crate::run::{Answer, Panicked, Run, Sent};
use crate::words::{self, InWords};
use bytes::Bytes;
use perdura_protocol::ids::to_hex;
use perdura_typed::{Typed, Unfaithful};

/// What is otherwise, and where.
pub(super) struct Differs {
    pub line: usize,
    pub asked: Option<String>,
    pub change: Change,
}

impl Differs {
    /// At a state.
    fn at(line: usize) -> impl Fn(Change) -> Differs {
        move |change| Differs { line, asked: None, change }
    }

    /// At a step.
    fn of<S: InWords>(step: &Step) -> impl Fn(Change) -> Differs {
        move |change| {
            let asked = match S::asked(&step.sent.bytes).map(words::cut) {
                Some(asked) if asked != step.asked => format!("{asked}, which was {}", step.asked),
                _ => step.asked.clone(),
            };
            Differs { line: step.line, asked: Some(asked), change }
        }
    }
}

fn panicked(Panicked(words): Panicked) -> Change {
    Change::Panic(words)
}

/// Holds a service against the record of a version.
pub(super) fn hold<S: InWords>(version: u16, record: &Recorded) -> Result<(), Differs> {
    let Recorded { first: (line, first), runs } = record;
    for step in runs.iter().flatten() {
        reads::<S>(version, step).map_err(Differs::of::<S>(step))?;
    }
    let at_first = Differs::at(*line);
    restore::<S>(version, first).map_err(&at_first)?;
    let begins = Run::<S>::new(version).segments().map_err(panicked).map_err(&at_first)?;
    if begins != *first {
        return Err(at_first(Change::FirstState(difference(first, &begins))));
    }
    let states = states(record);
    for stored in &states {
        restore::<S>(version, stored.state).map_err(Differs::at(stored.line))?;
    }
    for steps in runs {
        go_on::<S>(&mut Run::new(version), 0, steps)?;
    }
    for stored in &states {
        stored.goes_on::<S>(version)?;
    }
    for stored in &states {
        stored.raised::<S>(version)?;
    }
    Ok(())
}

/// Whether a command or a query is still one, and its answer.
fn reads<S: InWords>(version: u16, step: &Step) -> Result<(), Change> {
    let Sent { bytes, is_command } = &step.sent;
    let since = match Typed::<S>::asked(bytes) {
        Some(Ok(command)) if *is_command => S::since(&command),
        Some(Err(query)) if !is_command => S::query_since(&query),
        _ => return Err(Change::NotRead),
    };
    if since > version {
        return Err(Change::Since(since));
    }
    match &step.answer {
        Ok(bytes) if Typed::<S>::answered(bytes).is_none() => {
            Err(Change::AnswerNotRead(step.answered.clone()))
        }
        _ => Ok(()),
    }
}

/// A service with this state, all of which is read as what it was written as.
fn restore<S: InWords>(version: u16, state: &State) -> Result<Run<S>, Change> {
    let run = Run::<S>::restored(version, state.clone()).map_err(panicked)?;
    let run = run.map_err(Change::NotRestored)?;
    let verified = run.verify().map_err(panicked)?;
    verified.map_err(|unfaithful| {
        Change::Unfaithful(match unfaithful {
            Unfaithful::Unreadable(what) => format!("{what} cannot be read from its bytes"),
            Unfaithful::Changed(what) => format!("{what} would be stored with other bytes"),
            Unfaithful::Disordered(what) => format!("{what} are in another order"),
        })
    })?;
    let again = run.segments().map_err(panicked)?;
    if again != *state {
        return Err(Change::RestoredState(difference(state, &again)));
    }
    Ok(run)
}

/// Does these steps, the first one of which has a number in its run.
fn go_on<S: InWords>(run: &mut Run<S>, first: u64, steps: &[Step]) -> Result<(), Differs> {
    for (number, step) in (first..).zip(steps) {
        same(run, number, step).map_err(Differs::of::<S>(step))?;
    }
    Ok(())
}

/// Whether a step gives what it gave.
fn same<S: InWords>(run: &mut Run<S>, number: u64, step: &Step) -> Result<(), Change> {
    let answer = run.step(number, &step.sent).map_err(panicked)?;
    if answer.clone().map_err(|words| escaped(&words)) != step.answer {
        let now = words::of_answer::<S>(&answer);
        let recorded = recorded_words(&step.answer, &step.answered);
        // Where they read alike the bytes tell more.
        let (recorded, now) = match (&step.answer, &answer) {
            (Ok(one), Ok(other)) if recorded == now => (to_hex_cut(one), to_hex_cut(other)),
            _ => (recorded, now),
        };
        return Err(Change::Answer { recorded, now });
    }
    let Some((_, state)) = &step.state else { return Ok(()) };
    let now = run.segments().map_err(panicked)?;
    if now == *state { Ok(()) } else { Err(Change::State(difference(state, &now))) }
}

fn recorded_words(answer: &Answer, answered: &str) -> String {
    match answer {
        Ok(_) => answered.to_owned(),
        Err(words) => words::cut(format!("refused: {words}")),
    }
}

fn to_hex_cut(bytes: &Bytes) -> String {
    words::cut(to_hex(bytes))
}

/// A state of a record, and what came after it.
struct Stored<'a> {
    line: usize,
    state: &'a State,
    // Steps that had been done.
    behind: u64,
    steps: &'a [Step],
}

/// Those of all runs, each of which begins with the first one.
fn states(record: &Recorded) -> Vec<Stored<'_>> {
    let mut states = Vec::new();
    for steps in &record.runs {
        let later =
            (1..).zip(steps).filter_map(|(behind, step)| Some((behind, step.state.as_ref()?)));
        for (behind, (line, state)) in std::iter::once((0, &record.first)).chain(later) {
            let (behind, steps) = (behind as u64, &steps[behind..]);
            states.push(Stored { line: *line, state, behind, steps });
        }
    }
    states
}

impl Stored<'_> {
    /// From here on it goes on as it did.
    fn goes_on<S: InWords>(&self, version: u16) -> Result<(), Differs> {
        let mut run = restore::<S>(version, self.state).map_err(Differs::at(self.line))?;
        go_on(&mut run, self.behind, self.steps).map_err(|differs| {
            let change = Box::new(differs.change);
            Differs { change: Change::Restored { line: self.line, change }, ..differs }
        })
    }

    /// Raised to newer versions it is stored, restored, and goes on, whatever it answers then.
    fn raised<S: InWords>(&self, version: u16) -> Result<(), Differs> {
        let mut run = restore::<S>(version, self.state).map_err(Differs::at(self.line))?;
        for to in version + 1..=S::VERSION {
            let raised = |fault| Change::Raised { line: self.line, to, fault };
            run = raise(run, to).map_err(raised).map_err(Differs::at(self.line))?;
        }
        if version == S::VERSION {
            return Ok(());
        }
        for (number, step) in (self.behind..).zip(self.steps) {
            let answered = answer_of(&mut run, number, &step.sent).map(drop);
            answered.map_err(|fault| {
                let change = Change::Raised { line: self.line, to: S::VERSION, fault };
                Differs::of::<S>(step)(change)
            })?;
        }
        Ok(())
    }
}

/// Raises a version, and gives what is restored from the state then.
fn raise<S: InWords>(mut run: Run<S>, to: u16) -> Result<Run<S>, Fault> {
    let panicked = |Panicked(words)| Fault::Panic(words);
    run.set_version(to).map_err(panicked)?;
    run.verify().map_err(panicked)?.map_err(stored)?;
    let state = run.segments().map_err(panicked)?;
    let restored = Run::restored(to, state.clone()).map_err(panicked)?;
    let restored = restored.map_err(Fault::NotRestored)?;
    let again = restored.segments().map_err(panicked)?;
    if again == state { Ok(restored) } else { Err(Fault::RestoredStateDiffers) }
}

/// Bytes that are shown of each of two states, before and behind the first one that differs.
const AROUND: usize = 12;

/// Where a state is another one.
fn difference(recorded: &State, now: &State) -> String {
    let empty = Bytes::new();
    let segments = recorded.len().max(now.len());
    let of = |state: &State, index: usize| state.get(index).unwrap_or(&empty).clone();
    let differs = (0..segments).find(|index| of(recorded, *index) != of(now, *index));
    let index = differs.unwrap_or(recorded.len().min(now.len()));
    let (one, other) = (of(recorded, index), of(now, index));
    let at = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    let shown = |bytes: &Bytes| {
        let (from, to) = (at.saturating_sub(AROUND), (at + AROUND).min(bytes.len()));
        to_hex(&bytes[from..to])
    };
    format!(
        "segment {index} of {}, from byte {at} on: it had {}, and has {}; {} bytes before, {} now",
        recorded.len(),
        shown(&one),
        shown(&other),
        one.len(),
        other.len()
    )
}
