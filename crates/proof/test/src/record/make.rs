//! A service runs for a record.
//!
//! What a step costs the record is known when it was done: one that is too large is taken back, and another one drawn, so that a record has small
//! commands of a service that has large ones too.

use super::format::{Of, Text, of_run, of_state, of_step};
use super::{RECORD_BYTES, RecordError, State};
use crate::check::{Fault, Finding, Step, answer_of, encoded, step_of};
use crate::random::Random;
use crate::run::{Panicked, Run, Sent};
use crate::words::{self, InWords};

/// Runs of a record, each from the first state on.
const RUNS: u64 = 8;

/// Steps of each.
const STEPS: u64 = 40;

/// After so many the state is recorded, as after the last one.
const MIDDLE: u64 = STEPS / 2;

/// Steps of a run that may be too large for it; it ends then.
const TOO_LARGE: u64 = 40;

/// Digits of the digest, and the words around it.
const LAST_LINE: usize = 80;

/// Runs a service, and writes down what it is asked and answers.
pub(super) fn record<S: InWords>(
    version: u16,
    step: &mut impl FnMut(&mut Random) -> Step<S>,
) -> Result<String, Box<RecordError>> {
    let found = |seed, step, (fault, asked)| {
        let finding = Finding { fault, seed, step, version, asked };
        Box::new(RecordError::Wrong(Box::new(finding)))
    };
    let first = segments(&Run::<S>::new(version)).map_err(|fault| found(0, 0, (fault, None)))?;
    let mut text = Text::begin(Of { service: S::NAME, version }, &first);
    let mut steps = 0;
    for seed in 0..RUNS {
        // What one leaves is for those behind it.
        let left = RECORD_BYTES.saturating_sub(text.len() + LAST_LINE);
        let room = left / (RUNS - seed) as usize;
        let mut random = Random::new(seed);
        let mut running = Running::begin(seed, room, version);
        let mut draw = || step_of(step, &mut random, version);
        running.go(&mut draw).map_err(|wrong| found(seed, running.steps, wrong))?;
        if running.steps > 0 {
            text.push(&running.text);
            text.push(&of_state(&running.state));
        }
        steps += running.steps;
    }
    if steps == 0 {
        return Err(Box::new(RecordError::TooLarge { version }));
    }
    Ok(text.finish())
}

fn segments<S: InWords>(run: &Run<S>) -> Result<State, Fault> {
    run.segments().map_err(|Panicked(words)| Fault::Panic(words))
}

/// A run under way.
struct Running<S> {
    version: u16,
    run: Run<S>,
    room: usize,
    // But for the state that it ends with.
    text: String,
    steps: u64,
    state: State,
}

impl<S: InWords> Running<S> {
    fn begin(seed: u64, room: usize, version: u16) -> Running<S> {
        let run = Run::new(version);
        Running { version, run, room, text: of_run(seed), steps: 0, state: State::new() }
    }

    /// Gives what is wrong, and the command or the query at which that was.
    fn go(
        &mut self,
        draw: &mut impl FnMut() -> Result<Step<S>, Fault>,
    ) -> Result<(), (Fault, Option<String>)> {
        let mut too_large = 0;
        while self.steps < STEPS && too_large < TOO_LARGE {
            let step = draw().map_err(|fault| (fault, None))?;
            let done = encoded::<S>(&step).and_then(|sent| self.step(&sent));
            if !done.map_err(|fault| (fault, Some(words::cut(S::drawn(&step)))))? {
                too_large += 1;
            }
        }
        Ok(())
    }

    /// Does a step, if there is room for it, and for the state after it.
    fn step(&mut self, sent: &Sent) -> Result<bool, Fault> {
        // Twice as long as that in hexadecimal.
        if 2 * sent.bytes.len() > self.room.saturating_sub(self.text.len()) {
            return Ok(false);
        }
        let before = segments(&self.run)?;
        let answer = answer_of(&mut self.run, self.steps, sent)?;
        let state = segments(&self.run)?;
        let asked = words::cut(S::asked(&sent.bytes).unwrap_or_default());
        let answered = words::of_answer::<S>(&answer);
        let lines = of_step((sent, &asked), (&answer, &answered));
        let size: usize = of_state(&state).len();
        let used = self.text.len() + lines.len() + size;
        if used > self.room {
            let restored = Run::restored(self.version, before);
            let restored = restored.map_err(|Panicked(words)| Fault::Panic(words))?;
            self.run = restored.map_err(Fault::NotRestored)?;
            return Ok(false);
        }
        self.text.push_str(&lines);
        self.steps += 1;
        if self.steps == MIDDLE && used + size < self.room {
            self.text.push_str(&of_state(&state));
        }
        self.state = state;
        Ok(true)
    }
}
