// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Running one program: its output, its time limit, and its end.
//!
//! Mechanism: a thread an output forwards lines as they come. The caller polls for the end: as the
//! first process it also has to collect children that other processes left behind. A program is a
//! process group of its own, which is killed as a whole.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process_group, wait, Pid, Signal, WaitOptions, WaitStatus};
use vkfd_guest::{Ending, Program, Record, Stream};

use crate::report::Report;

const POLL: Duration = Duration::from_millis(5);

/// How long a killed process may take to go away, and the outputs to end after the program.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `program` to its end or its time limit, reporting everything.
pub fn run(program: &Program, report: &Report) -> Ending {
    report.send(&Record::Started { program: program.name.clone() });
    let began = Instant::now();
    let ending = supervise(program, report, began);
    let seconds = began.elapsed().as_secs_f64();
    report.send(&Record::Ended { program: program.name.clone(), ending: ending.clone(), seconds });
    ending
}

fn supervise(program: &Program, report: &Report, began: Instant) -> Ending {
    let Some((path, arguments)) = program.argv.split_first() else {
        return Ending::NotStarted("it has no path".into());
    };
    let child = Command::new(path)
        .args(arguments)
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ending::NotStarted(format!("{path}: {error}")),
    };
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Ending::NotStarted("it has no process number".into());
    };
    let (ended, outputs) = mpsc::channel();
    let forward = |stream, output: Option<Box<dyn Read + Send>>| {
        if let Some(output) = output {
            let (report, name, ended) = (report.clone(), program.name.clone(), ended.clone());
            thread::spawn(move || {
                forward_lines(output, stream, &name, &report);
                let _ = ended.send(());
            });
        }
    };
    forward(Stream::Out, child.stdout.take().map(|output| Box::new(output) as _));
    forward(Stream::Err, child.stderr.take().map(|output| Box::new(output) as _));
    drop(ended);

    let limit = began + Duration::from_secs(program.seconds);
    let ending = match reap_until(pid, limit) {
        Some(status) => ending_of(status),
        None => {
            for line in stacks(pid) {
                report.send(&Record::Output { program: program.name.clone(), stream: Stream::Err, line });
            }
            // ESRCH only if it has just ended, which the wait below finds out.
            let _ = kill_process_group(pid, Signal::KILL);
            match reap_until(pid, Instant::now() + PATIENCE) {
                Some(_) => Ending::TimedOut,
                None => Ending::Stuck,
            }
        }
    };
    // What the program left running may keep the outputs open: they are not waited for without end.
    let patience = Instant::now() + PATIENCE;
    for _ in 0..2 {
        let _ = outputs.recv_timeout(patience.saturating_duration_since(Instant::now()));
    }
    ending
}

fn forward_lines(output: Box<dyn Read + Send>, stream: Stream, program: &str, report: &Report) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    // An error is the end of a pipe like any other.
    while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        let line_text = text.strip_suffix('\n').unwrap_or(&text).into();
        report.send(&Record::Output { program: program.into(), stream, line: line_text });
        line.clear();
    }
}

/// Collects children until `pid` ends or `limit` is reached.
fn reap_until(pid: Pid, limit: Instant) -> Option<WaitStatus> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((ended, status))) if ended == pid => return Some(status),
            Ok(Some(_)) => continue,
            Ok(None) | Err(_) => {}
        }
        if Instant::now() >= limit {
            return None;
        }
        thread::sleep(POLL);
    }
}

fn ending_of(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Ending::Status(status),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::NotStarted("it stopped instead of ending".into()),
    }
}

/// Where the threads of a program and of the processes that it has started are in the kernel: what
/// one wants to know when it hangs.
fn stacks(group: Pid) -> Vec<String> {
    let mut lines = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return lines };
    for process in processes.flatten().filter(|process| is_of(&process.path(), group)) {
        let Ok(threads) = fs::read_dir(process.path().join("task")) else { continue };
        for thread in threads.flatten() {
            let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let (pid, tid) = (process.file_name(), thread.file_name());
            let (pid, tid) = (pid.to_string_lossy(), tid.to_string_lossy());
            lines.push(format!("process {pid}, thread {tid} ({}) hangs in:", read("comm").trim()));
            lines.extend(read("stack").lines().map(|frame| format!("    {frame}")));
        }
    }
    lines
}

/// Whether the process with this directory in /proc belongs to the process group `group`.
fn is_of(process: &Path, group: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return false };
    // After the name, which may have anything in it: state, parent, group.
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    after.split(' ').nth(2).and_then(|number| number.parse().ok()) == Some(group.as_raw_nonzero().get())
}
