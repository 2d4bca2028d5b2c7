// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The distribution's packages that clients and their compilers are in.

use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

/// The version of an installed package.
pub(crate) fn version(package: &str) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    let output = query.args(["--show", "--showformat=${Version}", package]).output().context("run dpkg-query")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Installs those that are missing, as root.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let is_installed = |package: &str| {
        let query = Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]).output();
        query.is_ok_and(|output| output.stdout == b"installed")
    };
    let missing: Vec<_> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-q", "-y"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    apt(&["update"]);
    let arguments = [&["install", "--no-install-recommends"], &missing[..]].concat();
    ensure!(apt(&arguments), "`apt-get install {}` failed: as root on a Debian 12 it works", missing.join(" "));
    Ok(())
}
