// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether the guest can have KVM.
//!
//! That /dev/kvm opens proves nothing: in a virtual machine the host may let it be opened and
//! refuse ordinary guests, or run them without end. So a guest is booted, with a time limit, and
//! only one that comes to its end counts. The answer holds until the machine boots anew.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vkfd_guest::Job;

use super::boot::{Boot, Directory};
use super::cache::Cache;
use super::initrd::Initrd;
use super::kernel::Kernel;
use super::qemu::{self, Acceleration};
use super::verdict;

const LIMIT: Duration = Duration::from_secs(30);

/// What to run guests with.
pub fn choose(cache: &Cache, kernel: &Kernel, init: &Path) -> Result<Acceleration> {
    let version = Command::new(qemu::PROGRAM).arg("--version").output();
    let version = version.ok().filter(|out| out.status.success()).context("no QEMU: run `cargo xtask vm setup`")?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read this machine's boot number")?;
    let key = format!("{boot}{}", String::from_utf8_lossy(&version.stdout));
    let path = cache.accelerator();
    if let Some(known) = fs::read_to_string(&path).ok().and_then(|text| Some(text.strip_prefix(&key)?.trim() == "kvm"))
    {
        return Ok(if known { Acceleration::Kvm } else { Acceleration::Tcg });
    }
    let works = kvm_boots(kernel, init)?;
    fs::write(&path, format!("{key}{}\n", if works { "kvm" } else { "tcg" }))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(if works { Acceleration::Kvm } else { Acceleration::Tcg })
}

/// Boots a guest that does nothing but end.
fn kvm_boots(kernel: &Kernel, init: &Path) -> Result<bool> {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let boot = Boot {
        kernel,
        acceleration: Acceleration::Kvm,
        memory_mib: 512,
        gpus: None,
        append: String::new(),
        shares: &[],
        limit: LIMIT,
    };
    let directory = Directory::new(kernel, "kvm")?;
    let outcome = boot.run(Initrd::new(init)?, &Job::default(), &directory, |_| ())?;
    let findings = verdict::findings(&outcome, &Job::default(), kernel.flavor);
    if let Some(first) = findings.first() {
        println!("/dev/kvm is there, but a guest does not run with it ({first}); guests are emulated");
    }
    Ok(findings.is_empty())
}

/// Boots `job` in an emulated guest and fails unless all is well with it.
pub fn prove_emulation(kernel: &Kernel, initrd: Initrd, job: &Job, limit: Duration) -> Result<()> {
    let boot = Boot {
        kernel,
        acceleration: Acceleration::Tcg,
        memory_mib: 1024,
        gpus: None,
        append: String::new(),
        shares: &[],
        limit,
    };
    let outcome = boot.run(initrd, job, &Directory::new(kernel, "proof")?, |_| ())?;
    let findings = verdict::findings(&outcome, job, kernel.flavor);
    ensure!(findings.is_empty(), "a first guest with a module in Rust does not run:\n{}", findings.join("\n"));
    Ok(())
}
