// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What programs are run on: a built `vkfd`, sound or broken on purpose, and a time limit; or a
//! guest.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

use super::checked::{Checks, Files, SLOWER};
use super::guest::Guest;
use super::place::Place;
use super::ran::Ran;
use super::root::{Root, SHARED, WORK};
use super::unit::{environment, Unit};
use xtask_base::cargo::{self, Build};
use xtask_base::group;

/// See the module.
pub enum Machine {
    Here(Vkfd),
    Guest(Guest),
}

/// The command that runs a program on a machine of its own.
pub struct Vkfd {
    vkfd: PathBuf,
    /// What `VKFD_SABOTAGE` names.
    broken: Option<String>,
    /// What programs' kernels are checked for, if they are.
    checks: Option<Checks>,
}

/// How many machines have been served: each has a name of its own.
static SERVED: AtomicUsize = AtomicUsize::new(0);

/// Names the directory in which `vkfd serve` has its sockets.
const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";

/// `vkfd serve`, which ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // Its socket goes with it, which a harder end would leave.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl Machine {
    /// The tree's own vkfd, built if need be, or the one that is named.
    pub fn sound(vkfd: Option<&Path>, checks: Option<Checks>) -> Result<Machine> {
        Machine::of(Build::of_checks()?, vkfd, None, checks)
    }

    /// One that can be broken, the tree's own or the one that is named; nothing is if `sabotage` is
    /// empty.
    pub fn broken(sabotage: &str, vkfd: Option<&Path>) -> Result<Machine> {
        Machine::of(Build::Checked, vkfd, Some(sabotage.into()), None)
    }

    fn of(build: Build, vkfd: Option<&Path>, broken: Option<String>, checks: Option<Checks>) -> Result<Machine> {
        let vkfd = match vkfd {
            Some(vkfd) => vkfd.into(),
            None => cargo::program(build, "vkfd", "vkfd")?,
        };
        Ok(Machine::Here(Vkfd { vkfd, broken, checks }))
    }

    /// Where programs run.
    pub fn place(&self) -> Place {
        match self {
            Machine::Here(_) => Place::Process,
            Machine::Guest(guest) => guest.place(),
        }
    }

    /// Whether programs' kernels are checked.
    pub fn checks(&self) -> bool {
        matches!(self, Machine::Here(Vkfd { checks: Some(_), .. }))
    }

    /// Runs a program in the directory that it was compiled to.
    pub fn run(&self, unit: &Unit<'_>, options: &[&str], arguments: &[&str], patience: Duration) -> Result<Ran> {
        match self {
            Machine::Here(here) => here.run(unit, options, arguments, patience),
            Machine::Guest(guest) => Ok(guest.run(unit, None, options, arguments, patience)),
        }
    }

    /// Runs a program on a machine that its children, and what else joins, share: one that
    /// `vkfd serve` has. In a guest all do that.
    pub fn run_served(&self, unit: &Unit<'_>, options: &[&str], arguments: &[&str], patience: Duration) -> Result<Ran> {
        match self {
            Machine::Here(here) => here.run_served(unit, options, arguments, patience),
            Machine::Guest(guest) => Ok(guest.run(unit, None, options, arguments, patience)),
        }
    }

    /// The same, for a program of the root that the unit is in.
    pub fn run_served_in_root(
        &self,
        unit: &Unit<'_>,
        program: &str,
        options: &[&str],
        arguments: &[&str],
        patience: Duration,
    ) -> Result<Ran> {
        let root = unit.root.with_context(|| format!("{program} is in no root"))?;
        match self {
            Machine::Here(here) => here.run_served_in_root(unit, root, program, options, arguments, patience),
            Machine::Guest(guest) => Ok(guest.run(unit, Some((root, program)), options, arguments, patience)),
        }
    }

    /// Runs a program of the root that the unit is in.
    pub fn run_in_root(
        &self,
        unit: &Unit<'_>,
        program: &str,
        options: &[&str],
        arguments: &[&str],
        patience: Duration,
    ) -> Result<Ran> {
        let root = unit.root.with_context(|| format!("{program} is in no root"))?;
        let options = [options, unit.memory.options()].concat();
        let ran = match self {
            Machine::Here(here) => here.run_in_root(unit, root, program, &options, arguments, patience)?,
            Machine::Guest(guest) => guest.run(unit, Some((root, program)), &options, arguments, patience),
        };
        unit.observed.memory.fetch_add(unit.memory.seen(&ran), Ordering::Relaxed);
        Ok(ran)
    }
}

impl Vkfd {
    fn run(&self, unit: &Unit<'_>, options: &[&str], arguments: &[&str], patience: Duration) -> Result<Ran> {
        self.checked(unit, unit.at, |checks| {
            let mut vkfd = Command::new(&self.vkfd);
            vkfd.args(words(unit, options)).args(checks).arg("--").arg(unit.program).args(arguments);
            self.end(vkfd.current_dir(unit.at).envs(unit.environment.iter().copied()), patience)
        })
    }

    fn run_served(&self, unit: &Unit<'_>, options: &[&str], arguments: &[&str], patience: Duration) -> Result<Ran> {
        let (name, _server) = self.serve(unit, options, None)?;
        let mut vkfd = Command::new(&self.vkfd);
        vkfd.args(["run", "--shared", &name]);
        vkfd.arg("--").arg(unit.program).args(arguments);
        self.end(vkfd.current_dir(unit.at).envs(unit.environment.iter().copied()), patience)
    }

    /// A machine of its own name that programs can join, with its socket below `place` instead of
    /// the usual directory.
    fn serve(&self, unit: &Unit<'_>, options: &[&str], place: Option<&Path>) -> Result<(String, Server)> {
        ensure!(self.checks.is_none(), "{}: programs of a shared machine are not checked", unit.name);
        let name = format!("programs-{}-{}", std::process::id(), SERVED.fetch_add(1, Ordering::Relaxed));
        let mut serve = Command::new(&self.vkfd);
        serve.args(["serve", &name, "--target", unit.target]).args(options);
        if let Some(place) = place {
            serve.env(RUNTIME_DIRECTORY, place);
        }
        let mut server = Server(serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("run vkfd serve")?);
        // It says a line when programs can join.
        let mut line = String::new();
        let stdout = server.0.stdout.take().context("vkfd serve has no stdout")?;
        BufReader::new(stdout).read_line(&mut line).context("read what vkfd serve says")?;
        ensure!(!line.is_empty(), "vkfd serve {name} ended at once");
        Ok((name, server))
    }

    /// As [`Vkfd::run_served`], for a program of a root. The root has a `/tmp` of its own, so that
    /// the socket is in a directory that it is given.
    fn run_served_in_root(
        &self,
        unit: &Unit<'_>,
        root: &Path,
        program: &str,
        options: &[&str],
        arguments: &[&str],
        patience: Duration,
    ) -> Result<Ran> {
        let place = tempfile::tempdir().context("make a directory for a socket")?;
        let (name, _server) = self.serve(unit, options, Some(place.path()))?;
        let mut vkfd = Root::at(root).enter_with(&self.vkfd, unit.at, unit.source, Some(place.path()));
        vkfd.args(["run", "--shared", &name]).arg("--").arg(program).args(arguments);
        self.end(vkfd.env(RUNTIME_DIRECTORY, SHARED).envs(environment(unit)), patience)
    }

    fn run_in_root(
        &self,
        unit: &Unit<'_>,
        root: &Path,
        program: &str,
        options: &[&str],
        arguments: &[&str],
        patience: Duration,
    ) -> Result<Ran> {
        self.checked(unit, Path::new(WORK), |checks| {
            let mut vkfd = Root::at(root).enter(&self.vkfd, unit.at, unit.source);
            vkfd.args(words(unit, options)).args(checks).arg("--").arg(program).args(arguments);
            self.end(vkfd.envs(environment(unit)), patience)
        })
    }

    /// Runs a program with the options for the checks of its kernels, if there are any, and keeps
    /// what they find. The program sees its directory at `at`.
    fn checked(&self, unit: &Unit<'_>, at: &Path, run: impl FnOnce(Vec<OsString>) -> Result<Ran>) -> Result<Ran> {
        let Some(checks) = &self.checks else { return run(Vec::new()) };
        let files = Files::of(unit)?;
        let ran = run(files.options(checks, at))?;
        let said = files.read(unit.at)?;
        unit.observed.launches.fetch_add(said.launches, Ordering::Relaxed);
        let found = said.findings.into_iter().map(|line| format!("{}: {line}", unit.name));
        unit.observed.findings.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        let mut unused = unit.observed.unused.lock().unwrap_or_else(PoisonError::into_inner);
        match unused.as_mut() {
            Some(unused) => unused.retain(|line| said.unused.contains(line)),
            None => *unused = Some(said.unused),
        }
        Ok(ran)
    }

    /// Runs it to its end, or for as long as it may take.
    fn end(&self, vkfd: &mut Command, patience: Duration) -> Result<Ran> {
        let patience = if self.checks.is_some() { patience.saturating_mul(SLOWER) } else { patience };
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &patience.as_secs().to_string()]).arg(vkfd.get_program()).args(vkfd.get_args());
        for (name, value) in vkfd.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(sabotage) = &self.broken {
            command.env("VKFD_SABOTAGE", sabotage);
        }
        if let Some(directory) = vkfd.get_current_dir() {
            command.current_dir(directory);
        }
        let output = group::output(&mut command).context("run timeout (coreutils)")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code();
        // 124 is timeout's own for a program that it had to end, 137 for one that would not end
        // then.
        let hung = matches!(code, Some(124 | 137));
        Ok(Ran { code, stdout: text(&output.stdout), stderr: text(&output.stderr), hung })
    }
}

/// What `vkfd` is asked for.
fn words(unit: &Unit<'_>, options: &[&str]) -> Vec<OsString> {
    let words = ["run", "--target", unit.target].into_iter().chain(options.iter().copied());
    words.map(OsString::from).collect()
}
