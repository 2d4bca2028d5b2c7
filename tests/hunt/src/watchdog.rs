// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A run that does not end says where each of its threads is, and fails.
//!
//! Each thread is sent a signal whose handler prints its stack. SIGILL, since the host's threads
//! block all signals but those of faults. What a handler must not do (allocate, lock) no longer
//! matters by then: a thread that holds such a lock is waited for in vain, and named without its
//! stack.

use std::backtrace::Backtrace;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// As long is each thread waited for.
const PATIENCE: Duration = Duration::from_secs(5);

static SAID: AtomicBool = AtomicBool::new(false);

/// Ends the process with status 1 when it still runs after `limit`.
///
/// # Errors
///
/// No thread can be started.
pub fn start(limit: Duration) -> std::io::Result<()> {
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        std::thread::sleep(limit);
        eprintln!("it still runs after {} s; its threads:", limit.as_secs());
        say_threads();
        // SAFETY: no preconditions. Nothing that `exit` runs could be relied on.
        unsafe { libc::_exit(1) };
    })?;
    Ok(())
}

extern "C" fn say_stack(_: libc::c_int) {
    eprintln!("{}", Backtrace::force_capture());
    SAID.store(true, Ordering::SeqCst);
}

fn say_threads() {
    let handler: extern "C" fn(libc::c_int) = say_stack;
    // SAFETY: the handler is a function of the type that signal handlers have.
    unsafe { libc::signal(libc::SIGILL, handler as libc::sighandler_t) };
    // SAFETY: no preconditions.
    let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for number in threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<libc::pid_t>().ok()) {
        if number == own {
            continue;
        }
        let about = |what| fs::read_to_string(format!("/proc/self/task/{number}/{what}")).unwrap_or_default();
        eprintln!("\n{number} {}: {} {}", about("comm").trim(), about("wchan"), about("syscall").trim());
        SAID.store(false, Ordering::SeqCst);
        // SAFETY: the number of a thread, of this process, and a signal.
        unsafe { libc::syscall(libc::SYS_tgkill, process, number, libc::SIGILL) };
        let begun = Instant::now();
        while !SAID.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
