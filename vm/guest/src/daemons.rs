// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the kernel does to memory by itself, at times of its own: switched off.
//!
//! Scenarios count invalidations and look at huge pages. They ask the kernel for each of these
//! changes when they want it, and no other change may happen.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result};

const SETTINGS: [(&str, &str); 2] = [
    // khugepaged collapses pages again that were split.
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "4000000000"),
    // kcompactd moves pages before anybody needs the room.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
];

/// Leaves memory to the scenarios.
pub fn quieten() -> Result<()> {
    for (path, value) in SETTINGS {
        match fs::write(path, value) {
            // A kernel without it has no such daemon.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            written => written.with_context(|| format!("write {value} to {path}"))?,
        }
    }
    Ok(())
}
