// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a program until it ends, and ends its children then.
//!
//! Mechanism: the program has a process group of its own. Two threads read what the group writes.
//! When the program has ended, the rest of its group is killed. A child that waits for something
//! would keep its end of the pipes for ever, and the caller would wait for their ends.
//!
//! Limits: a child that has left the group keeps running. What it writes later is not waited for.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions};

/// How long pipes that the group has left may still have something to read.
const REST: Duration = Duration::from_secs(5);

/// Runs a program without input, and keeps what it writes.
///
/// # Errors
/// It cannot be started, or not be waited for.
pub fn output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn()?;
    let said = [child.stdout.take().map(read), child.stderr.take().map(read)];
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // Until it is waited for with its status, no other process gets its number.
        waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        // Nothing may be left of it.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    let [stdout, stderr] = said.map(|said| said.map(whole).unwrap_or_default());
    Ok(Output { status, stdout, stderr })
}

/// Reads in a thread of its own, part by part.
fn read(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, parts) = mpsc::channel();
    thread::spawn(move || {
        let mut part = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut part) {
            if sender.send(part[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    parts
}

fn whole(parts: Receiver<Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(part) = parts.recv_timeout(REST) {
        all.extend(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_waits_does_not_keep_its_parent_s_caller() {
        let ran = output(Command::new("sh").args(["-c", "sleep 1000 & echo one; echo two >&2; exit 3"])).unwrap();
        assert_eq!((ran.status.code(), &*ran.stdout, &*ran.stderr), (Some(3), &b"one\n"[..], &b"two\n"[..]));
    }

    #[test]
    fn all_that_is_written_is_kept() {
        let ran = output(Command::new("seq").arg("100000")).unwrap();
        assert!(ran.stdout.ends_with(b"\n99999\n100000\n"));
        assert_eq!(ran.stdout.len(), 588_895);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(output(&mut Command::new("/nowhere/program")).is_err());
    }
}
