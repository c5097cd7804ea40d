//! `perdura kv export` and `perdura kv import`: the store as JSON lines, which `perdura kv batch` takes too.
//!
//! Either can be interrupted and goes on: an export behind the last whole line of its file, an import from the first line that was not
//! written. Writing a line twice is as writing it once.

use crate::Usage;
use crate::batch::{self, Content};
use crate::connect::{ClusterArguments, connect_store, parse_duration, runtime};
use crate::kv::call;
use crate::kv_json::{self, Parsed};
use crate::kv_walk::{Of, Walking};
use crate::process::{Stop, WITHDRAWN_WITHIN, code_of};
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use perdura_client::Options;
use perdura_protocol::PartitionId;
use perdura_store::StoreCommand;
use perdura_transactions::{Range, StoreClient};
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Write all entries, or those of a prefix, as JSON lines
///
/// They come in the order of their keys. Each partition is read page by page, of up to 10000 entries or 1 MiB, which is one moment of it; pages are not one moment
/// together: what is written meanwhile may be there or not. Stop the writers for a copy of one moment. Exit codes: 0 done, 1 failed, or with --skip-unreachable
/// not of all partitions, 130 interrupted (by SIGTERM 143): --resume goes on, with the same --partition, and leaves out what was left out (FILE.left-out has it).
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Only keys that begin so
    #[arg(long, value_name = "KEY", default_value = "")]
    prefix: String,
    #[command(flatten)]
    of: Of,
    /// A new file to write, in place of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on behind the last whole line of the file, which an interrupted export left
    #[arg(long, requires = "out")]
    resume: bool,
    /// How long to wait for each page
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Write the entries in JSON lines to the store
///
/// They are as `perdura kv export` makes them, one entry a line: {"op":"put","key":"a","value":"1"}, where a key or value that is no text is {"b64":"..."}. An entry that is there is overwritten, and none is removed. Of lines with one key any may be the last. Exit code 0 if all lines are written; else it says from which line to go on (1 failed, 130 interrupted, by SIGTERM 143).
#[derive(Args)]
pub struct Import {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The file; `-` is standard input
    file: PathBuf,
    /// Begin with this line, the first one that an interrupted import did not write
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Writes at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// How long to wait for each write
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Runs `perdura kv export`.
pub fn export(arguments: &Export) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let prefix = Bytes::copy_from_slice(arguments.prefix.as_bytes());
    let (mut out, last): (Box<dyn Write>, _) = match &arguments.out {
        None => (Box::new(std::io::stdout()), None),
        Some(path) => {
            let (file, last) = open(path, arguments.resume)?;
            (Box::new(file), last)
        }
    };
    let keys = match last {
        None => Range::prefix(prefix),
        Some(last) if !last.starts_with(&prefix) => {
            bail!(Usage("the file's last key does not begin with --prefix".into()))
        }
        Some(last) => Range::prefix(prefix).after(&last),
    };
    let options = Options { timeout: arguments.timeout, reply_quorum: None };
    let mut progress = Progress::new("exported", None);
    let (written, left_out) = runtime()?.block_on(async {
        let client = arguments.of.connect(&groups, &key)?;
        let stop = Stop::by_signals()?;
        let mut walking = arguments.of.walk(&client, keys);
        let mut noted = LeftOut::of(arguments.out.as_deref());
        noted.begin(&mut walking, arguments.resume)?;
        let written =
            write(&mut walking, &mut noted, &options, &stop, &mut out, &mut progress).await;
        client.close().await;
        anyhow::Ok((written.map(|()| stop.by()), walking.left_out()))
    })?;
    progress.end();
    let flushed = out.flush().context("cannot write the export");
    let goes_on = if arguments.out.is_some() { "; --resume goes on from there" } else { "" };
    let interrupted = written.and_then(|by| flushed.map(|()| by));
    let rest = left_out.as_ref().map_or(String::new(), |options| {
        format!("; `{options}` exports what was left out to another file, once it answers")
    });
    let not_whole = || format!("the export is not whole: {}{goes_on}{rest}", progress.text());
    if let Some(signal) = interrupted.with_context(not_whole)? {
        tell!("perdura: {signal}: {}", not_whole());
        return Ok(ExitCode::from(code_of(signal)));
    }
    tell!(
        "perdura: {}; of what was written meanwhile some may be there and some not",
        progress.text()
    );
    if left_out.is_some() {
        tell!("perdura: the export is not whole{rest}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Partitions that are left out of a file, in another one beside it: whoever goes on with it behind its last key leaves them out too, for what they have below
/// that would be missing.
struct LeftOut {
    path: Option<PathBuf>,
    count: usize,
}

impl LeftOut {
    fn of(out: Option<&Path>) -> LeftOut {
        let path = out.map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".left-out");
            PathBuf::from(name)
        });
        LeftOut { path, count: 0 }
    }

    /// Leaves out what was left out before.
    fn begin(&mut self, walking: &mut Walking, resume: bool) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let found = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            found => found.with_context(|| format!("cannot read {}", path.display()))?,
        };
        if !resume {
            // Of a file that is gone.
            let removed = std::fs::remove_file(path);
            return removed.with_context(|| format!("cannot remove {}", path.display()));
        }
        for line in found.lines() {
            let number = line.parse().with_context(|| {
                format!("{}: {line:?} is no number of a partition", path.display())
            })?;
            walking.leave_out(PartitionId(number));
        }
        self.count = walking.all_left_out().len();
        Ok(())
    }

    /// Notes what was left out since, before anything is written that comes behind it.
    fn note(&mut self, walking: &Walking) -> Result<()> {
        let all = walking.all_left_out();
        let Some(path) = self.path.as_ref().filter(|_| all.len() > self.count) else {
            return Ok(());
        };
        let lines: String = all.iter().map(|partition| format!("{}\n", partition.0)).collect();
        std::fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))?;
        self.count = all.len();
        Ok(())
    }
}

/// Writes all entries that are left.
async fn write(
    walking: &mut Walking,
    left_out: &mut LeftOut,
    options: &Options,
    stop: &Stop,
    out: &mut dyn Write,
    progress: &mut Progress,
) -> Result<()> {
    while stop.by().is_none() {
        let next = tokio::select! {
            next = walking.next(options) => next,
            () = stop.asked() => break,
        };
        left_out.note(walking)?;
        let Some(entries) = next? else { break };
        let mut text = Vec::new();
        for (key, value) in &entries {
            let line =
                json!({"op": "put", "key": kv_json::text(key), "value": kv_json::text(value)});
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        out.write_all(&text).context("cannot write the export")?;
        progress.add(entries.len() as u64, text.len() as u64);
    }
    Ok(())
}

/// The file to write to, and the key of its last whole line if it is to go on.
fn open(path: &Path, resume: bool) -> Result<(BufWriter<File>, Option<Bytes>)> {
    let name = path.display();
    let mut options = File::options();
    options.read(true).write(true);
    if !resume {
        let made = options.create_new(true).open(path);
        let file = made.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => anyhow::anyhow!(
                "{name} is there, and nothing is overwritten; if it is an interrupted export, --resume goes on with it"
            ),
            _ => anyhow::Error::new(error).context(format!("cannot make {name}")),
        })?;
        return Ok((BufWriter::new(file), None));
    }
    let mut file = options.open(path).with_context(|| format!("cannot go on with {name}"))?;
    let length = file.metadata()?.len();
    // The longest line that an entry makes, and the line before it.
    let from = length.saturating_sub(2 * batch::LINE_BYTES as u64);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    io::Read::read_to_end(&mut file, &mut tail)?;
    let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let last = tail[..whole].trim_ascii_end();
    let last = &last[last.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)..];
    let key = match Parsed::from_line(last) {
        _ if last.is_empty() && from == 0 => None,
        Ok((_, Parsed { command: StoreCommand::Put { key, .. }, .. })) => Some(key),
        _ => bail!("{name} does not end as an export does: nothing was changed"),
    };
    let end = from + whole as u64;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    Ok((BufWriter::new(file), key))
}

/// Lines that were read, from the first on, and what became of them.
struct State {
    progress: Progress,
    // The last line that was begun, or passed over.
    last: u64,
    // Those of which nobody knows yet whether they are written.
    under_way: BTreeSet<u64>,
    // The first line that was not written, and why.
    failed: Option<(u64, String)>,
}

/// Runs `perdura kv import`.
pub fn import(arguments: &Import) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    let key = arguments.cluster.key_of(&groups)?;
    let (input, total): (Box<dyn io::Read + Send>, _) = if arguments.file.as_os_str() == "-" {
        (Box::new(std::io::stdin()), None)
    } else {
        let file = File::open(&arguments.file);
        let file = file.with_context(|| format!("cannot read {}", arguments.file.display()))?;
        // Of a pipe nobody knows how long it is.
        let total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        (Box::new(file), total)
    };
    let (lines_in, mut lines) = mpsc::channel(1);
    let from_line = arguments.from_line;
    let reader = std::thread::Builder::new()
        .name("input".into())
        .spawn(move || read_lines(&mut BufReader::new(input), from_line, &lines_in))?;
    let places = Arc::new(Semaphore::new(arguments.in_flight as usize));
    let options = Rc::new(Options { timeout: arguments.timeout, reply_quorum: None });
    let state = Rc::new(RefCell::new(State {
        progress: Progress::new("imported", total),
        last: from_line - 1,
        under_way: BTreeSet::new(),
        failed: None,
    }));
    let stop = Stop::by_signals()?;
    let asked = stop.clone();
    let (runtime, local) = (runtime()?, tokio::task::LocalSet::new());
    let client = local.block_on(&runtime, async { connect_store(&groups, &key) })?;
    let (main, counted) = (client.clone(), Rc::clone(&state));
    local.spawn_local(async move {
        loop {
            let place = tokio::select! {
                biased;
                () = asked.asked() => return,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let Ok(place) = place else { return };
            // What is behind a line that was not written comes with the next run.
            if counted.borrow().failed.is_some() {
                return;
            }
            let (number, content) = tokio::select! {
                biased;
                () = asked.asked() => return,
                line = lines.recv() => match line {
                    Some(Read::Line(number, content)) => (number, content),
                    Some(Read::PassedOver(bytes)) => {
                        counted.borrow_mut().progress.pass_over(bytes);
                        continue;
                    }
                    None => return,
                },
            };
            {
                let mut state = counted.borrow_mut();
                state.last = number;
                state.under_way.insert(number);
            }
            let (client, options, state) = (main.clone(), Rc::clone(&options), Rc::clone(&counted));
            tokio::task::spawn_local(async move {
                let written = write_line(&client, &options, content).await;
                let mut state = state.borrow_mut();
                state.under_way.remove(&number);
                match written {
                    Ok(bytes) => state.progress.add(1, bytes as u64 + 1),
                    Err(why) if state.failed.as_ref().is_none_or(|(first, _)| number < *first) => {
                        state.failed = Some((number, why));
                    }
                    Err(_) => {}
                }
                drop(place);
            });
        }
    });
    runtime.block_on(async {
        let mut local = std::pin::pin!(local);
        tokio::select! {
            () = &mut local => {}
            () = stop.asked() => {
                // What is under way ends as it was decided, if the replicas say so soon.
                let _ = tokio::time::timeout(WITHDRAWN_WITHIN, local).await;
            }
        }
    });
    runtime.block_on(client.close());
    let state = state.borrow();
    state.progress.end();
    let so_far = state.progress.text();
    if let Some((number, why)) = &state.failed {
        bail!(
            "line {number} is not written: {why}. {so_far}; --from-line {number} goes on from there, once that is mended"
        );
    }
    if let Some(signal) = stop.by() {
        let next = state.under_way.first().copied().unwrap_or(state.last + 1);
        tell!("perdura: {signal}: {so_far}; --from-line {next} goes on from there");
        // The thread may wait for a line that never comes.
        return Ok(ExitCode::from(code_of(signal)));
    }
    // The thread has ended, unless nobody took its lines any more.
    let read = reader.join().map_err(|_| anyhow::anyhow!("reading lines failed"))?;
    let lines =
        read.with_context(|| format!("cannot read on in {}; {so_far}", arguments.file.display()))?;
    if lines < from_line && from_line > 1 {
        bail!(Usage(format!(
            "--from-line is {from_line}, and there are {lines} lines; nothing was imported"
        )));
    }
    tell!("perdura: {so_far}");
    Ok(ExitCode::SUCCESS)
}

/// What was read.
enum Read {
    /// A line with its number.
    Line(u64, Content),
    /// So many bytes that nothing is done with.
    PassedOver(u64),
}

fn read_lines(
    input: &mut impl BufRead,
    from_line: u64,
    lines: &mpsc::Sender<Read>,
) -> std::io::Result<u64> {
    let (mut read, mut passed_over) = (0, 0);
    for number in 1.. {
        let Some(content) = batch::read_line(input)? else { break };
        read = number;
        let (bytes, is_empty) = match &content {
            Content::Text(text) => (text.len() as u64, text.trim_ascii().is_empty()),
            Content::TooLong { bytes } => (*bytes, false),
        };
        if number < from_line || is_empty {
            passed_over += bytes;
            continue;
        }
        let before = std::mem::take(&mut passed_over);
        let passed = before == 0 || lines.blocking_send(Read::PassedOver(before)).is_ok();
        if !passed || lines.blocking_send(Read::Line(number, content)).is_err() {
            break;
        }
    }
    Ok(read)
}

/// Writes what a line says; gives its length.
async fn write_line(
    client: &StoreClient,
    options: &Options,
    content: Content,
) -> Result<usize, String> {
    let Content::Text(text) = content else { return Err("it is too long".into()) };
    let (_, parsed) = Parsed::from_line(&text).map_err(|(_, error)| error)?;
    if !matches!(parsed.command, StoreCommand::Put { .. }) {
        return Err("it is no put; `perdura kv batch` takes the others".into());
    }
    let reply = call(client, &parsed.command, false, options).await;
    reply.map_err(|error| error.to_string())?;
    Ok(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &[u8]) -> Bytes {
        Bytes::copy_from_slice(text)
    }

    /// Whoever was told of a line that is too long goes on behind it.
    #[test]
    fn what_is_before_the_first_line_is_passed_over_however_long_it_is() {
        let mut text = b"first\n".to_vec();
        text.resize(text.len() + batch::LINE_BYTES + 1, b'x');
        text.extend_from_slice(b"\n\nlast\n");
        let read = |from_line| {
            let (sender, mut receiver) = mpsc::channel(8);
            assert_eq!(read_lines(&mut &text[..], from_line, &sender).unwrap(), 4);
            drop(sender);
            let mut read = Vec::new();
            while let Some(one) = receiver.blocking_recv() {
                read.push(match one {
                    Read::Line(number, Content::Text(text)) => {
                        format!("{number} {}", String::from_utf8(text).unwrap().trim_end())
                    }
                    Read::Line(number, Content::TooLong { .. }) => format!("{number} too long"),
                    Read::PassedOver(bytes) => format!("{bytes} bytes"),
                });
            }
            read
        };
        let (long, all) = (batch::LINE_BYTES + 2, text.len() - "last\n".len());
        assert_eq!(read(1), ["1 first", "2 too long", "1 bytes", "4 last"]);
        assert_eq!(read(2), ["6 bytes", "2 too long", "1 bytes", "4 last"]);
        assert_eq!(read(3), [format!("{} bytes", 6 + long + 1), "4 last".to_owned()]);
        assert_eq!(read(4), [format!("{all} bytes"), "4 last".to_owned()]);
    }

    #[test]
    fn an_export_goes_on_behind_its_last_whole_line() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        let whole = "{\"key\":\"a\",\"op\":\"put\",\"value\":\"1\"}\n{\"key\":\"b\",\"op\":\"put\",\"value\":\"2\"}\n";
        for (text, key, kept) in [
            (String::new(), None, ""),
            ("{\"key\":\"a\"".to_owned(), None, ""),
            (whole.to_owned(), Some("b"), whole),
            (format!("{whole}{{\"key\":\"c\",\"op"), Some("b"), whole),
        ] {
            std::fs::write(&path, &text).unwrap();
            let (mut file, last) = open(&path, true).unwrap();
            assert_eq!(last, key.map(|key| bytes(key.as_bytes())), "{text}");
            file.write_all(b"x").unwrap();
            drop(file);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{kept}x"));
        }
        assert!(open(&path, false).is_err(), "nothing is overwritten");
        std::fs::write(&path, "another file\n").unwrap();
        assert!(open(&path, true).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another file\n");
    }
}
