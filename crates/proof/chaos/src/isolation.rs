//! No leftovers after any exit. The run is a child in namespaces of its own for mounts and
//! processes, where the system lets this user make some: when its first process ends, in whatever way, the kernel kills the others, and the
//! mounts go with them, loop devices included.
//!
//! The outer process holds a pipe to the inner one. A signal to the outer one, or its end, closes
//! the pipe, and the inner one then stops in order.

use crate::course::{Course, End};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The flag that says that this is the inner process.
pub const INSIDE: &str = "--inside";

/// An inner process that was told to stop has stopped after this time, or is killed.
const STOP: Duration = Duration::from_secs(60);

/// Whether this process may mount.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs this program again inside of namespaces, and gives its exit code; `None` where that is not
/// possible.
pub fn run_inside() -> Result<Option<ExitCode>> {
    // Who is not root may be, within.
    let who: &[&str] = if is_root() { &[] } else { &["--user", "--map-root-user"] };
    let works = Command::new("unshare")
        .args(who)
        .args(["--mount", "--pid", "--fork", "--mount-proc", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !works.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new("unshare")
        .args(who)
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .arg("--mount-proc")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg(INSIDE)
        .stdin(Stdio::piped())
        // Ctrl-C reaches the outer process only.
        .process_group(0)
        .spawn()
        .context("cannot start unshare")?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mut pipe = child.stdin.take();
    let mut told = None;
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2);
            return Ok(Some(ExitCode::from(code)));
        }
        if signals.pending().next().is_some() {
            match told {
                None => eprintln!("stopping; a second signal kills"),
                Some(_) => kill(&mut child),
            }
            told.get_or_insert_with(std::time::Instant::now);
            pipe = None;
        }
        if told.is_some_and(|told| told.elapsed() > STOP) {
            kill(&mut child);
        }
        let _held = &pipe;
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kill(child: &mut Child) {
    // The kernel then kills what is inside.
    let _ = child.kill();
}

/// Ends the run when the outer process says so, or on a signal.
pub fn listen(course: &Arc<Course>, inside: bool) -> Result<()> {
    if inside {
        let course = Arc::clone(course);
        std::thread::spawn(move || {
            let mut rest = [0; 16];
            while std::io::stdin().read(&mut rest).is_ok_and(|length| length > 0) {}
            course.end(End::Interrupted);
        });
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let course = Arc::clone(course);
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if course.ends() == Some(End::Interrupted) {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            course.end(End::Interrupted);
        }
    });
    Ok(())
}
