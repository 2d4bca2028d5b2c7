// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client in a process of its own: one that can be killed, and whose memory can be bounded.
//!
//! Mechanism: this program again, with the name of a role in the environment ([`run_role`] is
//! called first thing in `main`). The two talk in lines: the scenario's orders on the client's
//! standard input, the client's words on its standard output. The client's last word is how it
//! ended, unless it was killed.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::cgroup::Cgroup;
use super::ROLES;
use crate::verdict::Stop;

const ROLE: &str = "VKFD_SCENARIO_ROLE";

/// Silence for longer than this is a failure.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What a client does.
pub(crate) type Role = fn(&mut Scenario) -> Result<(), Stop>;

/// A client process as its scenario has it. Killed on drop.
pub(crate) struct ClientProcess {
    child: Child,
    orders: ChildStdin,
    words: Receiver<String>,
}

/// The calling process, a child of `parent`, ends with it: also if that has ended already, of which
/// no signal would come. Makes system calls only.
pub(super) fn end_with(parent: u32) {
    // SAFETY: concerns only this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if u32::try_from(libc::getppid()) != Ok(parent) {
            libc::_exit(1);
        }
    }
}

impl ClientProcess {
    /// Starts `role`, as a member of `cgroup` from its first page on.
    pub(crate) fn start(role: &str, cgroup: Option<&Cgroup>) -> Result<Self, Stop> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let members = cgroup.map(Cgroup::members).transpose()?;
        let parent = std::process::id();
        let join = move || {
            // Not to outlive a scenario that was killed.
            end_with(parent);
            if let Some(members) = &members {
                // SAFETY: the descriptor is open, the buffer has a byte.
                if unsafe { libc::write(members.as_raw_fd(), c"0".as_ptr().cast(), 1) } != 1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the function only makes system calls.
        unsafe { command.pre_exec(join) };
        let mut child = command.spawn()?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the client process has no pipes");
        };
        let (send, words) = mpsc::channel();
        // Ends with the process: nobody else has the pipe's other end.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, orders, words })
    }

    /// Its process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order.
    pub(crate) fn tell(&mut self, order: &str) -> Result<(), Stop> {
        Ok(writeln!(self.orders, "{order}")?)
    }

    /// Waits for the client's next word, which must be `word`; what it says besides.
    pub(crate) fn expect(&mut self, word: &str) -> Result<String, Stop> {
        let line = match self.words.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("the client has not said {word:?} in {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("the client has ended ({status}) before it said {word:?}");
            }
        };
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match first {
            _ if first == word => Ok(rest.to_owned()),
            "failed" => bail!("the client: {rest}"),
            "skipped" => Err(Stop::Skip(rest.to_owned())),
            _ => bail!("the client should say {word:?}, but: {line:?}"),
        }
    }

    /// Sends SIGKILL and does not wait.
    pub(crate) fn kill(&mut self) -> Result<(), Stop> {
        Ok(self.child.kill()?)
    }

    /// Waits for it to be killed by a signal: what it has said that nobody has heard.
    pub(crate) fn killed(mut self) -> Result<Vec<String>, Stop> {
        let status = self.child.wait()?;
        let words: Vec<String> = self.words.iter().collect();
        ensure_eq!(status.signal(), Some(libc::SIGKILL), "how the client ended, having said {words:?}");
        Ok(words)
    }

    /// Waits for it to end well.
    pub(crate) fn finish(mut self) -> Result<(), Stop> {
        self.expect("done")?;
        ensure!(self.child.wait()?.success(), "the client was done, but then failed");
        Ok(())
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scenario as its client process has it.
pub(crate) struct Scenario(());

impl Scenario {
    /// Says a word, and more.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Stop> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }

    /// Waits for an order.
    pub(crate) fn order(&mut self) -> Result<String, Stop> {
        let mut line = String::new();
        ensure!(io::stdin().lock().read_line(&mut line)? > 0, "the scenario has gone");
        Ok(line.trim_end().to_owned())
    }

    /// Waits for the order `wanted`.
    pub(crate) fn await_order(&mut self, wanted: &str) -> Result<(), Stop> {
        ensure_eq!(self.order()?, wanted);
        Ok(())
    }
}

/// If this process was started to be a client of a scenario: is it, and gives its exit status.
#[must_use]
pub fn run_role() -> Option<ExitCode> {
    let name = std::env::var(ROLE).ok()?;
    let mut scenario = Scenario(());
    let result = match ROLES.iter().find(|(role, _)| *role == name) {
        Some((_, run)) => run(&mut scenario),
        None => Err(anyhow::anyhow!("{ROLE}={name}: there is no such role").into()),
    };
    let (word, status) = match result {
        Ok(()) => ("done".to_owned(), ExitCode::SUCCESS),
        Err(Stop::Skip(reason)) => (format!("skipped {reason}"), ExitCode::SUCCESS),
        Err(Stop::Fail(error)) => (format!("failed {}", format!("{error:#}").replace('\n', " ")), ExitCode::FAILURE),
    };
    // A process that misses it finds out by the status.
    let _ = scenario.say(&word);
    Some(status)
}
