// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `--series`: a kernel with AMD's driver that has patches which a user brings.
//!
//! Mechanism: the distribution's source of the kernel is copied once. [`overlay`] makes the copy
//! into the source with the [`patches`] of a folder, and [`kernel`] builds it. Both write only what
//! changes, so that make builds only that: after the first build, a change of the driver takes a
//! minute or two. Two flavors can be built from one copy.
//!
//! ```text
//! ~/.cache/vkfd/vm/amdgpu/series/
//!   source/     the kernel's source with the patches
//!   originals/  the source's files that patches have changed, as they were
//!   plain/ debug/  build trees
//! ```
//!
//! Lock: one run fills the directory at a time ([`xtask_base::lock`]).

mod kernel;
mod overlay;
mod patches;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::super::cache::{self, Cache};
use super::super::native::parts::{self, Parts};
use super::super::{packages, source, Flavor};
use super::parts::{Kernel, DRIVER};
use xtask_base::apt::quiet;
use xtask_base::lock;

/// What changes here makes the copy of the source anew.
const RECIPE: &str = "1";

/// Patches to test, and how.
pub struct Series {
    /// A folder with patches, or one patch.
    pub path: PathBuf,
    pub flavor: Flavor,
}

impl Series {
    /// Gets QEMU, and builds the kernel with the patches unless it is there.
    pub fn get(&self) -> Result<(Parts, Kernel)> {
        let patches = patches::read(&self.path)?;
        let parts = parts::get()?;
        let cache = Cache::open()?;
        let entry = cache.root().join(DRIVER);
        xtask_base::cache::used(&entry);
        let root = entry.join("series");
        let _lock = lock::hold(&root, "cargo xtask vm amdgpu --series")?;
        // No flavor of this kernel has Rust, and so none needs clang.
        packages::install(Flavor::Plain, true).context("install packages")?;
        let copy = root.join("source");
        let version = copy_source(&cache, &copy)?;
        if patches.is_empty() {
            println!("no patches in {}: Linux {version} as the distribution has it", self.path.display());
        }
        let build = root.join(self.flavor.name());
        let config = kernel::config(self.flavor)?;
        let key = kernel::key(&version, &config, &patches)?;
        // Another flavor may have left the source with other patches.
        let changed = overlay::apply(&overlay::Place::new(&root), &patches)?;
        if !cache::is_made(&build, &key) {
            cache.ensure_room(6)?;
            println!("building Linux {version} with {} patches; {changed} files have changed", patches.len());
            kernel::build(&copy, &build, &config)?;
            cache::mark(&build, &key)?;
        }
        Ok((parts, kernel::built(&build)?))
    }
}

/// The distribution's source, without the tree's own patch of it, to be changed. Returns its
/// version.
fn copy_source(cache: &Cache, copy: &Path) -> Result<String> {
    let held = if source::find(cache).is_none() { Some(cache.lock()?) } else { None };
    let source = source::get(cache).context("get the kernel's source")?;
    drop(held);
    xtask_base::cache::used(&source.directory);
    let key = format!("{RECIPE} {}\n", source.version);
    if cache::is_made(copy, &key) {
        return Ok(source.version);
    }
    cache.ensure_room(8)?;
    println!("copying the source of Linux {}", source.version);
    let root = copy.parent().unwrap_or(copy);
    if root.exists() {
        for old in fs::read_dir(root).with_context(|| format!("list {}", root.display()))? {
            let old = old?.path();
            if old.is_dir() {
                fs::remove_dir_all(&old).with_context(|| format!("remove {}", old.display()))?;
            }
        }
    }
    quiet(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&source.directory).arg(copy))?;
    cache::unmark(copy)?;
    super::super::patch::take_out(copy)?;
    cache::mark(copy, &key)?;
    Ok(source.version)
}
