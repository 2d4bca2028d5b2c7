// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Debian packages that setup needs.

use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::Flavor;
use crate::apt::{update, RETRIES};

/// To build the kernel, modules and bindgen, and to run guests.
const ALWAYS: [&str; 16] = [
    "bc",
    "binutils",
    "bison",
    "busybox-static",
    "cpio",
    "flex",
    "gcc",
    "libc6-dev",
    "libclang-common-19-dev",
    "libclang1-19",
    "libelf-dev",
    "make",
    "perl",
    "qemu-system-x86",
    "tar",
    "xz-utils",
];

/// Rust and KASAN go together only in a kernel whose C is clang's.
const FOR_DEBUG: [&str; 1] = ["clang-19"];

/// A compiler with its library's source, the first that is on offer: Debian 12 has a recent one
/// under this name, Debian 13's own will do.
const RUST: [[&str; 2]; 2] = [["rustc-web", "rust-web-src"], ["rustc", "rust-src"]];

/// Installs what is missing; says what to do where it cannot.
pub fn install(flavor: Flavor, rust_is_there: bool) -> Result<()> {
    let mut wanted = ALWAYS.to_vec();
    if flavor == Flavor::Debug {
        wanted.extend(FOR_DEBUG);
    }
    let is_debian = Command::new("dpkg-query").arg("--version").output().is_ok_and(|out| out.status.success());
    ensure!(
        is_debian,
        "this is not a Debian: setup installs Debian's packages. In a Debian 12 or 13 (a container will do) it works by itself; \
         it needs {}, and {}",
        wanted.join(", "),
        RUST.map(|pair| pair.join(" with ")).join(" or ")
    );
    let mut missing: Vec<&str> = wanted.into_iter().filter(|package| !is_installed(package)).collect();
    if !rust_is_there {
        let on_offer = |pair: &&[&str; 2]| pair.iter().all(|package| is_on_offer(package));
        let pair = match RUST.iter().find(on_offer) {
            Some(pair) => pair,
            None => {
                update()?;
                RUST.iter().find(on_offer).with_context(|| {
                    "no Rust compiler with its library's source is on offer: add the security archive of this Debian to apt's \
                     sources (rustc-web), or `rustup component add rust-src`"
                })?
            }
        };
        missing.extend(pair);
    }
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    ensure!(rustix::process::geteuid().is_root(), "packages are missing: sudo {command}");
    println!("installing {}", missing.join(", "));
    // The lists may be absent or older than the archive.
    update()?;
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
    ensure!(status.success(), "apt-get could not install the packages (its messages are above): {command}");
    Ok(())
}

fn is_installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]).output();
    query.is_ok_and(|out| out.status.success() && out.stdout == b"installed")
}

fn is_on_offer(package: &str) -> bool {
    let policy = Command::new("apt-cache").args(["show", "--no-all-versions", package]).output();
    policy.is_ok_and(|out| out.status.success() && !out.stdout.is_empty())
}
