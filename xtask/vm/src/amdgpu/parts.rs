// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's kernel with AMD's driver, from the distribution's packages.
//!
//! QEMU is the one that `vm native` has. The kernel is the distribution's, as it is. Of its modules
//! amdgpu is taken with all that it says it depends on, in the order of loading. Those by which a
//! guest mounts directories of this machine are taken as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::super::cache::{self, Cache};
use super::super::native::parts::{self, depends, Parts, KERNEL, NEWER, SUITES};
use xtask_base::apt::{quiet, Apt};

/// The driver.
pub const DRIVER: &str = "amdgpu";
/// What changes here makes the cache's contents anew.
const RECIPE: &str = "2";
/// Names of modules, one a line, in the order of loading.
const ORDER: &str = "modules";
const SHARING: &str = "sharing";
/// The modules of 9p on virtio.
const SHARES: [&str; 2] = ["9pnet_virtio", "9p"];

/// A kernel in the cache.
pub struct Kernel {
    /// What QEMU boots.
    pub image: PathBuf,
    pub version: String,
    /// Modules with their files, in the order of loading; the driver is the last.
    pub modules: Vec<(String, PathBuf)>,
    /// The modules that mount directories of this machine; none if they are part of the kernel.
    pub sharing: Vec<(String, PathBuf)>,
}

/// Gets QEMU and the kernel unless they are there.
pub fn get() -> Result<(Parts, Kernel)> {
    let parts = parts::get()?;
    let cache = Cache::open()?;
    let root = cache.root().join(DRIVER);
    let directory = root.join("kernel");
    // Another task may hold the cache for long: a kernel that is there does not wait for it.
    let _lock = if cache::is_made(&directory, RECIPE) { None } else { Some(cache.lock()?) };
    if !cache::is_made(&directory, RECIPE) {
        cache.ensure_room(2)?;
        println!("fetching a kernel with {DRIVER} from {NEWER} (130 MB)");
        let apt = Apt::new(root.join("apt"), &SUITES)?;
        apt.run("apt-get", &["update"])?;
        unpack(&apt, &directory)?;
        fs::remove_dir_all(root.join("apt")).context("remove the downloaded packages")?;
        cache::mark(&directory, RECIPE)?;
    }
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let listed = |name: &str| -> Result<Vec<(String, PathBuf)>> {
        Ok(read(name)?.lines().map(|name| (name.into(), directory.join(format!("{name}.ko")))).collect())
    };
    let (version, modules, sharing) = (read("version")?, listed(ORDER)?, listed(SHARING)?);
    Ok((parts, Kernel { image: directory.join("vmlinuz"), version, modules, sharing }))
}

/// A module and all that it says it depends on, in the order of loading. `files` has the kernel's
/// modules by name.
pub fn in_order(name: &str, files: &BTreeMap<String, PathBuf>) -> Result<Vec<(String, PathBuf)>> {
    let mut order = Vec::new();
    visit(name, files, &mut BTreeSet::new(), &mut order)?;
    Ok(order)
}

fn visit(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, PathBuf)>,
) -> Result<()> {
    if !seen.insert(name.into()) {
        return Ok(());
    }
    let file = files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
    let bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    for other in dependencies(&bytes) {
        visit(&other, files, seen, order)?;
    }
    order.push((name.into(), file.clone()));
    Ok(())
}

fn unpack(apt: &Apt, directory: &Path) -> Result<()> {
    let image = depends(apt, KERNEL, "linux-image-")?;
    let version = image.trim_start_matches("linux-image-");
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let unpacked = directory.join("unpacked");
    for package in [depends(apt, &image, "linux-binary-")?, depends(apt, &image, "linux-modules-")?] {
        apt.run("apt-get", &["download", &package])?;
        quiet(Command::new("dpkg-deb").arg("--extract").arg(apt.downloaded(&package)?).arg(&unpacked))?;
    }
    let modules = unpacked.join("usr/lib/modules").join(version);
    fs::rename(modules.join("vmlinuz"), directory.join("vmlinuz")).context("take the kernel")?;
    let mut packed = BTreeMap::new();
    find(&modules.join("kernel"), &mut packed)?;
    let (mut order, mut sharing) = (Vec::new(), Vec::new());
    take(DRIVER, &packed, directory, &mut BTreeSet::new(), &mut order)?;
    let mut seen = BTreeSet::new();
    for name in SHARES {
        take(name, &packed, directory, &mut seen, &mut sharing)?;
    }
    fs::write(directory.join(SHARING), sharing.join("\n")).context("write the names of modules")?;
    fs::remove_dir_all(&unpacked).context("remove what is not needed of the kernel")?;
    fs::write(directory.join("version"), version).context("write the kernel's version")?;
    fs::write(directory.join(ORDER), order.join("\n")).context("write the modules' order")
}

/// All modules below a directory, by name.
fn find(directory: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, found)?;
        } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko.xz")) {
            // The kernel's own name has underlines.
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

/// Unpacks a module after those that it depends on.
fn take(
    name: &str,
    packed: &BTreeMap<String, PathBuf>,
    directory: &Path,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<String>,
) -> Result<()> {
    if !seen.insert(name.into()) {
        return Ok(());
    }
    let from = packed.get(name).with_context(|| format!("the kernel's packages have no module {name}"))?;
    let to = directory.join(format!("{name}.ko"));
    let out = fs::File::create(&to).with_context(|| format!("create {}", to.display()))?;
    let mut unpack = Command::new("xz");
    unpack.args(["--decompress", "--stdout"]).arg(from).stdin(Stdio::null()).stdout(out);
    ensure!(unpack.status().context("start xz")?.success(), "xz cannot unpack {}", from.display());
    let bytes = fs::read(&to).with_context(|| format!("read {}", to.display()))?;
    for other in dependencies(&bytes) {
        take(&other, packed, directory, seen, order)?;
    }
    order.push(name.into());
    Ok(())
}

/// The modules that a module says it depends on.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = module.windows(KEY.len()).position(|window| window == KEY);
    let value = at.and_then(|at| module.get(at + KEY.len()..)?.split(|byte| *byte == 0).next());
    let text = String::from_utf8_lossy(value.unwrap_or_default()).replace('-', "_");
    text.split(',').filter(|name| !name.is_empty()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::dependencies;

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=drm,i2c-algo-bit\0retpoline=Y\0";
        assert_eq!(dependencies(module), ["drm", "i2c_algo_bit"]);
        assert!(dependencies(b"\0depends=\0x").is_empty() && dependencies(b"").is_empty());
    }
}
