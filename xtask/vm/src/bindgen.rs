// SPDX-License-Identifier: GPL-2.0 OR MIT
//! bindgen, which makes the kernel's Rust declarations of its C ones.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::cache::{self, Cache};

/// One that the kernel's build is known to work with: each version declares some things
/// differently.
const VERSION: &str = "0.72.1";

/// The program, if it is in the cache.
pub fn find(cache: &Cache) -> Option<PathBuf> {
    let directory = cache.bindgen(VERSION);
    cache::is_made(&directory, VERSION).then(|| directory.join("bin/bindgen"))
}

/// Builds it unless it is there.
pub fn install(cache: &Cache) -> Result<()> {
    if find(cache).is_some() {
        return Ok(());
    }
    println!("building bindgen {VERSION}, about two minutes");
    let directory = cache.bindgen(VERSION);
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["install", "bindgen-cli", "--version", VERSION, "--locked", "--quiet", "--root"])
        .arg(&directory)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("start cargo")?;
    ensure!(
        status.success(),
        "cargo could not install bindgen-cli {VERSION} (its messages are above); is crates.io reachable?"
    );
    cache::mark(&directory, VERSION)
}
