// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Debian's packages on this machine: which are there, and installing others.
//!
//! Mechanism: dpkg-query and apt-cache answer, apt-get installs, as root. One installation runs at
//! a time: apt waits for dpkg's lock by itself and not for its lists', so a lock of ours (flock of
//! dpkg's directory) comes before both.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use rustix::fs::{flock, FlockOperation};

/// An archive that does not answer at once is asked again.
pub const RETRIES: &str = "Acquire::Retries=5";
/// Where dpkg keeps its state.
const STATE: &str = "/var/lib/dpkg";

/// The version of an installed package.
pub fn version(package: &str) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    let output = query.args(["--show", "--showformat=${Version}", package]).output().context("run dpkg-query")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a package is installed.
pub fn is_installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]).output();
    query.is_ok_and(|out| out.status.success() && out.stdout == b"installed")
}

/// Whether apt's lists have a package.
pub fn is_on_offer(package: &str) -> bool {
    let policy = Command::new("apt-cache").args(["show", "--no-all-versions", package]).output();
    policy.is_ok_and(|out| out.status.success() && !out.stdout.is_empty())
}

/// Brings apt's lists up to date.
pub fn update() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "apt's lists are absent or old: sudo apt-get update");
    let _lock = alone()?;
    let status = Command::new("apt-get")
        .args(["update", "--quiet=2", "--option", RETRIES])
        .stdin(Stdio::null())
        .status()
        .context("start apt-get")?;
    ensure!(status.success(), "apt-get update failed (its messages are above): check apt's sources and the network");
    Ok(())
}

/// Installs those that are missing.
pub fn install(packages: &[&str]) -> Result<()> {
    let is_missing = |package: &&&str| !is_installed(package);
    if !packages.iter().any(|package| is_missing(&package)) {
        return Ok(());
    }
    // The lists may be absent or older than the archive.
    let command = |missing: &[&str]| format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    ensure!(rustix::process::geteuid().is_root(), "packages are missing: sudo {}", command(packages));
    update()?;
    let _lock = alone()?;
    // Another run may have installed them in between.
    let missing: Vec<_> = packages.iter().filter(is_missing).copied().collect();
    println!("installing {}", missing.join(", "));
    let status = Command::new("apt-get")
        // A machine that has just been started may be installing updates by itself.
        .args(["install", "--quiet=2", "--yes", "--no-install-recommends", "--option", "DPkg::Lock::Timeout=600"])
        .args(["--option", RETRIES])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("start apt-get")?;
    ensure!(status.success(), "apt-get could not install (its messages are above): {}", command(&missing));
    Ok(())
}

/// Waits for other runs that install. They are kept out until the result is dropped.
fn alone() -> Result<File> {
    let directory = File::open(STATE).with_context(|| format!("open {STATE}: is this a Debian?"))?;
    flock(&directory, FlockOperation::LockExclusive).with_context(|| format!("lock {STATE}"))?;
    Ok(directory)
}
