//! A record as text, so that its file can be committed, and read.
//!
//! ```text
//! perdura-record 1 ledger 2                 the format, the service's name, the version under which it ran
//! # ...                                     a remark
//! state                                     the first state, by segments
//! segment 00
//! run 0                                     from the first state on, with commands drawn from this seed
//! command 000161 Deposit { to: "a" }        its bytes, and what they said when they were recorded
//! answer 0005 Ok(5)                         the reply or the error of the service
//! query 01
//! refused the state is full                 refused by others than the service
//! state                                     the state after that
//! segment 05
//! digest 9f...                              of all lines before
//! ```
//!
//! Invariants: what is read is what was written, or it is refused with the number of a line; lines may end as on other systems.

use super::{Recorded, State, Step};
use crate::run::{Answer, Sent};
use bytes::Bytes;
use perdura_protocol::Digest;
use perdura_protocol::ids::{from_hex, to_hex};

/// The format that is written, and read.
const FORMAT: &str = "1";

const MAGIC: &str = "perdura-record";

const REMARK: &str = "# What this version was asked, and what came of it. Written by perdura_test::recorded: commit it, and never edit it.";

/// Why a text is no record, and at which line, from 1 on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damage {
    pub line: usize,
    pub why: String,
}

/// Whose record a text is to be.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub service: &'a str,
    pub version: u16,
}

/// The text of a record while it grows.
pub(crate) struct Text(String);

impl Text {
    pub fn begin(of: Of<'_>, first: &State) -> Text {
        let mut text = format!("{MAGIC} {FORMAT} {} {}\n{REMARK}\n", of.service, of.version);
        text.push_str(&of_state(first));
        Text(text)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn push(&mut self, lines: &str) {
        self.0.push_str(lines);
    }

    pub fn finish(self) -> String {
        let digest = Digest::of(self.0.as_bytes());
        format!("{}digest {digest}\n", self.0)
    }
}

pub(crate) fn of_run(seed: u64) -> String {
    format!("run {seed}\n")
}

/// A command or a query and its answer, each with what it says.
pub(crate) fn of_step((sent, asked): (&Sent, &str), (answer, answered): (&Answer, &str)) -> String {
    let kind = if sent.is_command { "command" } else { "query" };
    let answer = match answer {
        Ok(bytes) => line(["answer", &to_hex(bytes), answered]),
        Err(words) => line(["refused", &escaped(words), ""]),
    };
    line([kind, &to_hex(&sent.bytes), asked]) + &answer
}

pub(crate) fn of_state(state: &State) -> String {
    let segments = state.iter().map(|segment| line(["segment", &to_hex(segment), ""]));
    "state\n".to_owned() + &segments.collect::<String>()
}

/// With no space at its end, which editors take away.
fn line(words: [&str; 3]) -> String {
    words.join(" ").trim_end().to_owned() + "\n"
}

/// Words as they stand in a line.
pub(crate) fn escaped(words: &str) -> String {
    words.escape_default().to_string()
}

/// Reads a record.
///
/// # Errors
/// When it is none of this service and version.
pub(crate) fn parse(text: &str, of: Of<'_>) -> Result<Recorded, Damage> {
    let mut lines = (1..).zip(text.lines());
    head(lines.next().map_or("", |(_, line)| line), of)?;
    let mut reading = Reading::default();
    let mut before = String::with_capacity(text.len());
    before.extend([text.lines().next().unwrap_or_default(), "\n"]);
    let mut last = 1;
    for (number, line) in lines.by_ref() {
        last = number;
        if let Some(digest) = line.strip_prefix("digest ") {
            if digest != Digest::of(before.as_bytes()).to_string() {
                return Err(damage(
                    number,
                    "what stands above is not what was written: it was edited, or damaged",
                ));
            }
            return match lines.next() {
                Some((number, _)) => Err(damage(number, "the record has ended above")),
                None => reading.finish(number),
            };
        }
        reading.line(number, line)?;
        before.extend([line, "\n"]);
    }
    Err(damage(
        last,
        "it ends here, without the digest that stands in the last line: its end is missing",
    ))
}

/// Holds the first line against whose record it is to be.
fn head(line: &str, of: Of<'_>) -> Result<(), Damage> {
    let words: Vec<&str> = line.split(' ').collect();
    let why = match words[..] {
        [MAGIC, FORMAT, service, _] if service != of.service => format!(
            "it is of the service `{service}`, and this one is `{}`: each has a directory of its own, and keeps its name",
            of.service
        ),
        [MAGIC, FORMAT, _, version] if version != of.version.to_string() => {
            format!("it is of version {version}, and its name is that of version {}", of.version)
        }
        [MAGIC, FORMAT, _, _] => return Ok(()),
        [MAGIC, format, ..] => {
            format!("it has format {format}, and this `perdura-test` reads format {FORMAT}")
        }
        _ => format!("it does not begin with `{MAGIC}`: it is no record"),
    };
    Err(damage(1, &why))
}

fn damage(line: usize, why: &str) -> Damage {
    Damage { line, why: why.to_owned() }
}

/// What was read until now.
#[derive(Default)]
struct Reading {
    first: Option<(usize, State)>,
    runs: Vec<Vec<Step>>,
    // What was asked, and has no answer yet.
    asked: Option<(usize, Sent, String)>,
    // Whether segments may follow.
    in_state: bool,
}

impl Reading {
    fn line(&mut self, number: usize, line: &str) -> Result<(), Damage> {
        if line.starts_with('#') {
            return Ok(());
        }
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let is_answer = matches!(kind, "answer" | "refused");
        if self.asked.is_some() != is_answer {
            let why = if is_answer { "nothing was asked" } else { "an answer is expected here" };
            return Err(damage(number, why));
        }
        let in_state = std::mem::replace(&mut self.in_state, matches!(kind, "state" | "segment"));
        let (hex, words) = rest.split_once(' ').unwrap_or((rest, ""));
        match kind {
            "command" | "query" => {
                let bytes = bytes_of(number, hex)?;
                self.run(number)?;
                let sent = Sent { bytes, is_command: kind == "command" };
                self.asked = Some((number, sent, words.to_owned()));
            }
            "answer" => self.answer(number, Ok(bytes_of(number, hex)?), words)?,
            "refused" => self.answer(number, Err(rest.to_owned()), "")?,
            "run" if self.first.is_some() => self.runs.push(Vec::new()),
            "state" => self.state(number)?,
            "segment" if in_state => {
                let segment = bytes_of(number, rest)?;
                let steps = self.runs.last_mut().and_then(|run| run.last_mut());
                let state = match steps {
                    Some(step) => step.state.as_mut(),
                    None => self.first.as_mut(),
                };
                let (_, state) =
                    state.ok_or_else(|| damage(number, "a state is expected above"))?;
                state.push(segment);
            }
            "run" | "segment" => return Err(damage(number, "a state is expected above")),
            _ => return Err(damage(number, "it begins with no word of a record")),
        }
        Ok(())
    }

    /// The run that goes on at a line.
    fn run(&mut self, number: usize) -> Result<&mut Vec<Step>, Damage> {
        self.runs.last_mut().ok_or_else(|| damage(number, "no run has begun"))
    }

    fn answer(&mut self, number: usize, answer: Answer, answered: &str) -> Result<(), Damage> {
        let asked = self.asked.take();
        let (line, sent, asked) = asked.ok_or_else(|| damage(number, "nothing was asked"))?;
        let answered = answered.to_owned();
        self.run(number)?.push(Step { line, sent, asked, answer, answered, state: None });
        Ok(())
    }

    fn state(&mut self, number: usize) -> Result<(), Damage> {
        let place = match self.runs.last_mut().map(|run| run.last_mut()) {
            None => &mut self.first,
            Some(Some(step)) => &mut step.state,
            Some(None) => return Err(damage(number, "a run begins with the first state")),
        };
        match place {
            None => *place = Some((number, State::new())),
            Some(_) => return Err(damage(number, "the state stands above")),
        }
        Ok(())
    }

    fn finish(self, number: usize) -> Result<Recorded, Damage> {
        if self.asked.is_some() {
            return Err(damage(number, "an answer is expected here"));
        }
        let first = self.first.ok_or_else(|| damage(number, "there is no first state"))?;
        Ok(Recorded { first, runs: self.runs })
    }
}

fn bytes_of(number: usize, hex: &str) -> Result<Bytes, Damage> {
    let pairs = (0..hex.len().div_ceil(2)).map(|index| {
        let pair = hex.get(2 * index..2 * index + 2)?;
        from_hex::<1>(pair).map(|[byte]| byte)
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.map(Bytes::from).ok_or_else(|| damage(number, "its bytes are not in hexadecimal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Of<'static> = Of { service: "ledger", version: 2 };

    fn text() -> String {
        let sent = |is_command| Sent { bytes: Bytes::from_static(&[0, 0xaf]), is_command };
        let mut text = Text::begin(OF, &vec![Bytes::new(), Bytes::from_static(b"x")]);
        text.push(&of_run(7));
        text.push(&of_step((&sent(true), "Add(5)"), (&Ok(Bytes::from_static(&[1])), "Ok(\"é\")")));
        text.push(&of_state(&vec![Bytes::from_static(b"y")]));
        text.push(&of_step((&sent(false), ""), (&Err("two\nlines".to_owned()), "")));
        text.push(&of_run(8));
        text.finish()
    }

    #[test]
    fn what_was_written_is_read() {
        let text = text();
        let recorded = parse(&text, OF).unwrap();
        assert_eq!(recorded.first, (3, vec![Bytes::new(), Bytes::from_static(b"x")]));
        let [run, empty] = &recorded.runs[..] else { panic!("{recorded:?}") };
        assert_eq!((run.len(), empty.len()), (2, 0));
        assert_eq!((run[0].line, run[0].asked.as_str()), (7, "Add(5)"));
        assert_eq!(run[0].answer, Ok(Bytes::from_static(&[1])));
        assert_eq!(run[0].answered, "Ok(\"é\")");
        assert_eq!(run[0].state, Some((9, vec![Bytes::from_static(b"y")])));
        assert_eq!((run[1].line, run[1].sent.is_command), (11, false));
        assert_eq!(run[1].answer, Err("two\\nlines".to_owned()));
        // As version control may write it elsewhere.
        assert_eq!(parse(&text.replace('\n', "\r\n"), OF), Ok(recorded));
    }

    #[test]
    fn what_was_not_written_is_refused_by_its_line() {
        let text = text();
        let refused = |text: &str| parse(text, OF).unwrap_err();
        for (from, to, line, why) in [
            ("perdura-record", "record", 1, "no record"),
            ("record 1", "record 2", 1, "format 2"),
            ("ledger", "inventory", 1, "of the service `inventory`"),
            ("ledger 2", "ledger 3", 1, "of version 3"),
            ("00af", "00a", 7, "hexadecimal"),
            ("00af", "0é", 7, "hexadecimal"),
            ("00af", "00ae", 14, "edited, or damaged"),
            ("answer 01", "anwser 01", 8, "an answer is expected"),
            ("query 00af", "other 00af", 11, "no word of a record"),
            ("query 00af", "refused 00af", 11, "nothing was asked"),
            ("run 7\n", "", 6, "no run has begun"),
            ("run 7\n", "run 7\nstate\n", 7, "begins with the first state"),
            ("run 8", "segment 00", 13, "a state is expected"),
            ("segment 79", "state", 10, "the state stands above"),
            ("state\nsegment\n", "", 3, "a state is expected"),
        ] {
            let damage = refused(&text.replacen(from, to, 1));
            assert!(damage.line == line && damage.why.contains(why), "{from} {to}: {damage:?}");
        }
        assert!(refused(&(text.clone() + "run 9\n")).why.contains("has ended"));
        assert!(refused("").why.contains("no record"));
        for end in 0..text.len() {
            // All of it, but for the line's end, is the record.
            let Some(part) = text.get(..end).filter(|part| part.len() + 1 < text.len()) else {
                continue;
            };
            let damage = refused(part);
            assert!(damage.line <= part.lines().count().max(1), "{part}: {damage:?}");
        }
    }
}
