// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the workspace and its build output are.

use std::env;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    // A relative CARGO_TARGET_DIR is relative to where cargo was called, which is where xtask runs too.
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
