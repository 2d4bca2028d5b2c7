// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a program and waits for it, with its signals: signals that would end this process are
//! passed on to it. This process ends after it, with the code that a shell would give.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};

/// Passed on. SIGINT and SIGQUIT come from a terminal, which sends them to the program as well;
/// here they are only survived.
const PASSED_ON: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
const SURVIVED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: i32) {
    let child = CHILD.load(Ordering::Relaxed);
    if child != 0 && PASSED_ON.contains(&signal) {
        // SAFETY: async-signal-safe. The child is not waited for before this process has its
        // status, so the number is its own.
        unsafe { libc::kill(child, signal) };
    }
}

/// The program is there and could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotStart(io::Error);

/// From now on a file-size limit (RLIMIT_FSIZE) is an error for this process, not its end. The
/// program has what was before: it is to be given to [`run`].
pub fn ignore_size_signal() -> Option<libc::sighandler_t> {
    // SAFETY: no handler is installed.
    Some(unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) }).filter(|before| *before != libc::SIG_ERR)
}

/// How a program ended.
pub struct Ended {
    pub code: ExitCode,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What the command starts ends with this process.
pub fn end_with_this(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// Runs it to its end.
pub fn run(mut command: Command, size_signal: Option<libc::sighandler_t>) -> anyhow::Result<Ended> {
    for signal in PASSED_ON.into_iter().chain(SURVIVED) {
        let handler: extern "C" fn(i32) = pass_on;
        // SAFETY: the handler only stores, loads and calls kill. Handlers are reset in the program
        // when it is executed.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    if let Some(before) = size_signal {
        // SAFETY: the call is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGXFSZ, before);
                Ok(())
            });
        }
    }
    // A run that is killed takes its program along: the files would be orphans.
    end_with_this(&mut command);
    let mut child = command.spawn().map_err(CannotStart)?;
    CHILD.store(i32::try_from(child.id()).unwrap_or(0), Ordering::Relaxed);
    let status = child.wait()?;
    CHILD.store(0, Ordering::Relaxed);
    let signal = status.signal();
    let code = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(1);
    Ok(Ended { code: ExitCode::from(u8::try_from(code).unwrap_or(1)), signal })
}
