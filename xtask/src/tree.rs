// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the workspace and its build output are.

use std::env;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    // What cargo says when it runs this: two checkouts with one target directory share the executable.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    // A relative CARGO_TARGET_DIR is relative to where cargo was called, which is where xtask runs too.
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
