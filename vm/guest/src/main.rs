// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd-init`: the guest's first process. Does what the job in the initrd says, reports, and
//! powers off.
//!
//! It never returns (the kernel would panic): whatever goes wrong is reported, and then the guest
//! powers off. The console is left to the kernel's log, and to the shell when one is wanted.

mod allocations;
mod daemons;
mod modules;
mod mounts;
mod programs;
mod report;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::system::{reboot, sethostname, uname, RebootCommand};
use vkfd_guest::{Ending, Job, Module, Record, JOB_FILE};

use crate::allocations::Allocations;
use crate::report::Report;

fn main() {
    std::env::set_var("PATH", "/bin");
    std::env::set_var("HOME", "/tmp");
    if let Err(error) = set_up_and_do() {
        // Without a port this is the only way to be heard.
        eprintln!("vkfd-init: {error:#}");
    }
    let power_off = reboot(RebootCommand::PowerOff);
    // Reached only if this is not the first process of a guest.
    eprintln!("vkfd-init: cannot power off: {power_off:?}; it is the first process of the test guest, started by `cargo xtask vm`");
    std::process::exit(1);
}

fn set_up_and_do() -> Result<()> {
    mounts::mount_all()?;
    let report = Report::open()?;
    report.send(&Record::Booted { release: uname().release().to_string_lossy().into_owned() });
    let done = set_up().and_then(|job| do_job(&job, &report));
    if let Err(error) = &done {
        report.send(&Record::Broken { error: format!("{error:#}") });
    } else {
        report.send(&Record::Finished);
    }
    done
}

fn set_up() -> Result<Job> {
    sethostname(b"vkfd").context("set the host name")?;
    daemons::quieten()?;
    let text = fs::read(JOB_FILE).with_context(|| format!("read {JOB_FILE}"))?;
    let job: Job = serde_json::from_slice(&text).with_context(|| format!("understand {JOB_FILE}"))?;
    if job.swap_mib > 0 {
        mounts::swap_on(job.swap_mib)?;
    }
    if job.merge {
        mounts::merge_pages()?;
    }
    if let Some(tag) = &job.share {
        mounts::mount_host(tag)?;
    }
    Ok(job)
}

fn do_job(job: &Job, report: &Report) -> Result<()> {
    let before = Allocations::now().context("read /proc/allocinfo (CONFIG_MEM_ALLOC_PROFILING)")?;
    let mut loaded = Vec::new();
    let mut complete = true;
    for module in &job.modules {
        let error = modules::load(module).err().map(|error| format!("{error:#}"));
        complete &= error.is_none();
        if error.is_none() && !module.stays {
            loaded.push(module);
        }
        report.send(&Record::Loaded { module: module.name.clone(), error });
    }
    // Programs would only repeat that there is no device.
    let mut stuck = false;
    if complete {
        for program in &job.programs {
            stuck |= programs::run(program, report) == Ending::Stuck;
        }
    }
    if job.shell {
        shell()?;
    }
    // A process that hangs in the module holds it; unloading would only fail for that reason.
    if !stuck {
        unload(&loaded, report);
        for record in before.left().context("read /proc/allocinfo")? {
            report.send(&record);
        }
    }
    // "debug_locks: 1" while lockdep checks; the file is absent in a kernel without it.
    if let Ok(statistics) = fs::read_to_string("/proc/lockdep_stats") {
        let state = statistics.lines().find_map(|line| line.trim().strip_prefix("debug_locks:"));
        report.send(&Record::Lockdep { on: state.is_some_and(|state| state.trim() == "1") });
    }
    Ok(())
}

fn unload(loaded: &[&Module], report: &Report) {
    for module in loaded.iter().rev() {
        let error = modules::unload(module).err().map(|error| format!("{error:#}"));
        report.send(&Record::Unloaded { module: module.name.clone(), error });
    }
}

/// A shell with job control on the console; returns when it ends.
fn shell() -> Result<()> {
    println!("The guest's shell: `exit` unloads the modules and powers off. The host's build output is /host.");
    // Its status is that of the last command typed, which says nothing.
    let mut shell = Command::new("/bin/busybox");
    shell.args(["setsid", "cttyhack", "sh"]).env("VKFD_DEVICE", "/dev/kfd");
    shell.status().context("start busybox sh")?;
    Ok(())
}
