// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Debian packages that setup needs.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::Flavor;
use xtask_base::debian::{self, is_installed, is_on_offer, update};

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
    debian::install(&missing)
}
