//! JSON lines in, one JSON line for each answer, as it arrives: what `perdura kv batch` and
//! `perdura space batch` share.
//!
//! One thread reads standard input, one writes standard output; the calls and the client share the
//! main thread. A line holds one of `--in-flight` places from when it is read until its answer is
//! written, so memory stays bounded whatever either end does. One that needs a group that answers nothing holds one of as many of that
//! group's instead, so that others go on. The client reconnects by itself, and every call ends by its deadline: every line is answered.

use crate::connect::{ClusterArguments, parse_duration, runtime};
use crate::ending::tell_in_time;
use crate::process::{WITHDRAWN_WITHIN, code_of, on_stop};
use anyhow::{Context, Result};
use clap::Args;
use perdura_client::{Client, Options};
use serde::Serialize;
use serde_json::Value;
use std::cell::Cell;
use std::future::Future;
use std::io::{BufRead, BufWriter, Read, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Longest line: a largest command in Base64, with its JSON.
pub(crate) const LINE_BYTES: usize = 16 * 1024 * 1024;

/// So long a process that is told to stop writes answers, to whoever may not read them.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// A line of a group that has answered nothing for so long is set aside.
const SILENT: Duration = Duration::from_secs(1);

/// How lines are carried out.
#[derive(Args)]
pub struct How {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Operations at once; of a partition that answers nothing as many more wait for it
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// Every operation is answered after this time at the latest, one that waits so much later
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

/// What a line asks for.
pub trait Operation: Sized + 'static {
    /// What carries it out: clients of one key.
    type Clients: Clone + Send + 'static;

    /// Whether an operation may be one that takes further calls to end: cut off from them it would leave its locks.
    fn takes_calls_to_end(clients: &Self::Clients) -> bool {
        let _ = clients;
        false
    }

    /// All of them, one for each group.
    fn all(clients: &Self::Clients) -> Vec<&Client>;

    /// The groups that it needs, as places among all; nothing where there is only one.
    fn needs(&self, clients: &Self::Clients) -> Vec<usize> {
        let _ = clients;
        Vec::new()
    }

    /// The id and the operation in a line; or the id, if one is there, and what is wrong.
    fn from_line(line: &[u8]) -> Result<(Value, Self), (Value, String)>;

    /// Carries it out.
    fn carry_out(
        self,
        clients: &Self::Clients,
        options: &Options,
    ) -> impl Future<Output = Result<Value, Failed>>;

    /// What there is to be done when nothing more comes, but to close the clients.
    fn end(clients: &Self::Clients) -> impl Future<Output = ()> {
        let _ = clients;
        async {}
    }
}

/// Why an operation gave no result.
pub struct Failed {
    /// Whether it is certain that nothing happened.
    pub refused: bool,
    /// In words.
    pub text: String,
}

/// A line and its place.
struct Line {
    number: u64,
    content: Content,
    place: OwnedSemaphorePermit,
}

/// What stands in a line.
pub(crate) enum Content {
    Text(Vec<u8>),
    /// More than [`LINE_BYTES`], of which none is kept.
    TooLong {
        bytes: u64,
    },
}

/// An answer, and the place that is free once it is written.
struct Answer {
    line: OutputLine,
    place: OwnedSemaphorePermit,
}

/// How far it is, for whoever interrupts it.
#[derive(Default)]
struct Tally {
    begun: Mutex<Begun>,
    /// Answers that were written.
    answered: AtomicU64,
}

/// Lines that were begun.
#[derive(Clone, Copy, Default)]
struct Begun {
    count: u64,
    /// The number of the last.
    last: u64,
    /// No further one is.
    stopped: bool,
}

impl Tally {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this line may be begun.
    fn begin(&self, number: u64) -> bool {
        let mut begun = self.begun();
        if !begun.stopped {
            begun.last = number;
            begun.count += 1;
        }
        !begun.stopped
    }

    fn stop(&self) {
        self.begun().stopped = true;
    }

    /// What an interruption left, in words.
    fn text(&self) -> String {
        let Begun { count: begun, last, .. } = *self.begun();
        let answered = self.answered.load(Ordering::SeqCst);
        let rest = match begun.saturating_sub(answered) {
            0 => "and each has its answer".to_owned(),
            count => format!(
                "and {count} of them have no answer, for nobody read it: they may have been carried out, or may yet be"
            ),
        };
        match begun {
            0 => "no line was begun".to_owned(),
            _ => format!(
                "the lines up to {last} were begun, {rest}; what is behind them was not sent"
            ),
        }
    }
}

/// A group as lines see it.
struct Group {
    /// When it last answered one.
    answered: Cell<Instant>,
    /// The places of those that wait for it while it answers none.
    aside: Arc<Semaphore>,
}

impl Group {
    fn new(in_flight: u32) -> Group {
        let aside = Arc::new(Semaphore::new(in_flight as usize));
        Group { answered: Cell::new(Instant::now()), aside }
    }

    /// A place aside, if it answers nothing and has one.
    fn place_aside(&self) -> Option<OwnedSemaphorePermit> {
        let is_silent = self.answered.get().elapsed() >= SILENT;
        is_silent.then(|| Arc::clone(&self.aside).try_acquire_owned().ok()).flatten()
    }
}

/// Carries out standard input with the clients that are made inside of a runtime.
pub fn run<O: Operation>(
    how: &How,
    connect: impl FnOnce(&ClusterArguments) -> Result<O::Clients>,
) -> Result<ExitCode> {
    let places = Arc::new(Semaphore::new(how.in_flight as usize));
    // Bounded by the places that their items hold.
    let (lines_in, mut lines) = mpsc::unbounded_channel();
    let (answers, answers_out) = std::sync::mpsc::channel::<Answer>();
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let free = Arc::clone(&places);
    let tally = Arc::new(Tally::default());
    let (of_reader, of_writer) = (Arc::clone(&tally), Arc::clone(&tally));
    let reader = std::thread::Builder::new().name("input".into()).spawn(move || {
        read_lines(&mut std::io::stdin().lock(), (&handle, &free), &lines_in, &of_reader)
    })?;
    let writer = std::thread::Builder::new().name("output".into()).spawn(move || {
        write_answers(&mut BufWriter::new(std::io::stdout()), &answers_out, &of_writer)
    })?;

    let options = Rc::new(Options { timeout: how.timeout, reply_quorum: None });
    let local = tokio::task::LocalSet::new();
    let clients = local.block_on(&runtime, async { connect(&how.cluster) })?;
    let all: Vec<Client> = O::all(&clients).into_iter().cloned().collect();
    let groups: Rc<Vec<Group>> = Rc::new(all.iter().map(|_| Group::new(how.in_flight)).collect());
    let mut all_places = vec![Arc::clone(&places)];
    all_places.extend(groups.iter().map(|group| Arc::clone(&group.aside)));
    let stopping = (all_places, how.in_flight);
    stop_in_order::<O>(runtime.handle(), clients.clone(), stopping, tally)?;
    let main = clients.clone();
    local.spawn_local(async move {
        while let Some(line) = lines.recv().await {
            let (clients, answers, options) = (main.clone(), answers.clone(), Rc::clone(&options));
            let (places, groups) = (Arc::clone(&places), Rc::clone(&groups));
            tokio::task::spawn_local(async move {
                if answers.send(answer::<O>(&clients, &groups, line, &options).await).is_err() {
                    // Nobody reads answers any more: no further line is taken.
                    places.close();
                }
            });
        }
    });
    // Until the last line is answered.
    runtime.block_on(local);
    runtime.block_on(async {
        O::end(&clients).await;
        for client in &all {
            client.close().await;
        }
    });
    let written = writer.join().map_err(|_| anyhow::anyhow!("writing answers failed"))?;
    written.context("cannot write to standard output")?;
    let read = reader.join().map_err(|_| anyhow::anyhow!("reading lines failed"))?;
    read.context("cannot read standard input")?;
    Ok(ExitCode::SUCCESS)
}

/// After a signal no further line is carried out, what waits is withdrawn if it may be, and the process ends when the lines that were under way are
/// answered, each as it was decided, and whoever has to be told has been.
fn stop_in_order<O: Operation>(
    handle: &Handle,
    clients: O::Clients,
    (places, in_flight): (Vec<Arc<Semaphore>>, u32),
    tally: Arc<Tally>,
) -> Result<()> {
    let handle = handle.clone();
    on_stop(move |name| {
        tally.stop();
        handle.block_on(async {
            if !O::takes_calls_to_end(&clients) {
                for client in O::all(&clients) {
                    client.withdraw().await;
                }
            }
            // Each line gives its place back when its answer is written.
            let written = async || {
                let mut held = Vec::new();
                for some in &places {
                    held.push(some.acquire_many(in_flight).await);
                }
                held
            };
            let all = tokio::time::timeout(WITHDRAWN_WITHIN, written()).await;
            if all.is_ok() {
                O::end(&clients).await;
            } else {
                for client in O::all(&clients) {
                    client.close().await;
                }
                let _ = tokio::time::timeout(WRITTEN_WITHIN, written()).await;
            }
            drop(all);
        });
        tell_in_time(&format!("{name}: {}", tally.text()));
        std::process::exit(code_of(name).into());
    })
}

fn read_lines(
    input: &mut impl BufRead,
    (handle, places): (&Handle, &Arc<Semaphore>),
    lines: &mpsc::UnboundedSender<Line>,
    tally: &Tally,
) -> std::io::Result<()> {
    for number in 1.. {
        let Some(content) = read_line(input)? else { break };
        if matches!(&content, Content::Text(text) if text.trim_ascii().is_empty()) {
            continue;
        }
        let Ok(place) = handle.block_on(Arc::clone(places).acquire_owned()) else { break };
        while !tally.begin(number) {
            // Whoever stopped it ends the process when the lines that were begun are answered.
            std::thread::park();
        }
        if lines.send(Line { number, content, place }).is_err() {
            break;
        }
    }
    Ok(())
}

/// The next line without its end; of one that is too long, only that.
pub(crate) fn read_line(input: &mut impl BufRead) -> std::io::Result<Option<Content>> {
    let mut text = Vec::new();
    let most = LINE_BYTES as u64 + 1;
    if input.take(most).read_until(b'\n', &mut text)? == 0 {
        return Ok(None);
    }
    if text.len() <= LINE_BYTES || text.ends_with(b"\n") {
        return Ok(Some(Content::Text(text)));
    }
    let mut bytes = text.len() as u64;
    while !text.is_empty() && !text.ends_with(b"\n") {
        text.clear();
        bytes += input.take(most).read_until(b'\n', &mut text)? as u64;
    }
    Ok(Some(Content::TooLong { bytes }))
}

/// Writes answers, and flushes whenever none is waiting.
fn write_answers(
    output: &mut impl Write,
    answers: &std::sync::mpsc::Receiver<Answer>,
    tally: &Tally,
) -> std::io::Result<()> {
    while let Ok(first) = answers.recv() {
        // What waits by now shares a flush.
        let mut written = Vec::new();
        for Answer { line, place } in std::iter::once(first).chain(answers.try_iter()) {
            serde_json::to_writer(&mut *output, &line)?;
            output.write_all(b"\n")?;
            written.push(place);
        }
        output.flush()?;
        tally.answered.fetch_add(written.len() as u64, Ordering::SeqCst);
    }
    Ok(())
}

/// Carries out a line.
async fn answer<O: Operation>(
    clients: &O::Clients,
    groups: &[Group],
    Line { number, content, mut place }: Line,
    options: &Options,
) -> Answer {
    let (id, operation) = match parse::<O>(content) {
        Ok(parsed) => parsed,
        Err((id, error)) => {
            let line = OutputLine::failed(id, "refused", format!("line {number}: {error}"));
            return Answer { line, place };
        }
    };
    let needed: Vec<&Group> =
        operation.needs(clients).into_iter().filter_map(|index| groups.get(index)).collect();
    let mut carried_out = pin!(operation.carry_out(clients, options));
    let mut is_aside = needed.is_empty();
    let result = loop {
        tokio::select! {
            biased;
            result = &mut carried_out => break result,
            () = tokio::time::sleep(SILENT), if !is_aside => {
                if let Some(aside) = needed.iter().find_map(|group| group.place_aside()) {
                    (place, is_aside) = (aside, true);
                }
            }
        }
    };
    let line = match result {
        Ok(result) => {
            needed.iter().for_each(|group| group.answered.set(Instant::now()));
            OutputLine::ok(id, result)
        }
        Err(Failed { refused, text }) => {
            let outcome = if refused { "refused" } else { "indeterminate" };
            OutputLine::failed(id, outcome, text)
        }
    };
    Answer { line, place }
}

fn parse<O: Operation>(content: Content) -> Result<(Value, O), (Value, String)> {
    let none = |error: String| (Value::Null, error);
    let Content::Text(text) = content else {
        return Err(none(format!("it is longer than {LINE_BYTES} bytes")));
    };
    O::from_line(&text)
}

/// A line of the output, with its fields in this order.
#[derive(Serialize)]
struct OutputLine {
    id: Value,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl OutputLine {
    fn ok(id: Value, result: Value) -> OutputLine {
        OutputLine { id, outcome: "ok", result: Some(result), error: None }
    }

    fn failed(id: Value, outcome: &'static str, error: String) -> OutputLine {
        OutputLine { id, outcome, result: None, error: Some(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_passed_over_as_a_whole() {
        let mut text = vec![b'x'; LINE_BYTES * 2 + 7];
        text.extend_from_slice(b"\nshort\nlast");
        let mut input = text.as_slice();
        let Ok(Some(Content::TooLong { bytes })) = read_line(&mut input) else { panic!() };
        assert_eq!(bytes, LINE_BYTES as u64 * 2 + 8);
        let rest: Vec<Vec<u8>> = std::iter::from_fn(|| match read_line(&mut input) {
            Ok(Some(Content::Text(text))) => Some(text),
            _ => None,
        })
        .collect();
        assert_eq!(rest, [b"short\n".to_vec(), b"last".to_vec()]);
    }

    #[test]
    fn the_id_comes_back_even_from_a_line_that_makes_no_sense() {
        let id = |text: &[u8]| {
            let content = || Content::Text(text.to_vec());
            let of_store = parse::<crate::kv_json::Parsed>(content()).unwrap_err().0;
            let of_spaces = parse::<perdura_tuples::TupleCommand>(content()).unwrap_err().0;
            assert_eq!(of_store, of_spaces);
            of_store
        };
        assert_eq!(id(br#"{"id":[7],"op":"nonsense"}"#), serde_json::json!([7]));
        assert_eq!(id(b"{"), Value::Null);
    }
}
