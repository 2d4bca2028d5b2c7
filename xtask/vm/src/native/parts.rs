// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QEMU and the guest's kernel, from the distribution's packages.
//!
//! The QEMU of this machine's suite cannot show a vhost-user device's memory to a guest; 11.1 can.
//! It is unpacked with all that it needs, its C library too, into the cache, and started through
//! its own dynamic loader. The kernel is the distribution's, as it is; of its modules the few are
//! taken that virtio-gpu is made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::super::cache::{self, Cache};
use xtask_base::apt::{quiet, Apt};
use xtask_base::debian;

pub const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
pub const NEWER: &str = SUITES[1];
const QEMU: &str = "qemu-system-x86";
/// Names the package of the newest kernel, which names the others.
pub const KERNEL: &str = "linux-image-amd64";

/// The device by which QEMU offers a vhost-user device of any kind with its memory.
pub const DEVICE: &str = "vhost-user-test-device-pci";

/// What virtio-gpu needs, in the order of loading; and the balloon.
pub const MODULES: [(&str, &str); 7] = [
    ("virtio_balloon", "drivers/virtio/virtio_balloon"),
    ("drm", "drivers/gpu/drm/drm"),
    ("drm_kms_helper", "drivers/gpu/drm/drm_kms_helper"),
    ("virtio_dma_buf", "drivers/virtio/virtio_dma_buf"),
    ("drm_shmem_helper", "drivers/gpu/drm/drm_shmem_helper"),
    ("drm_client_lib", "drivers/gpu/drm/clients/drm_client_lib"),
    ("virtio_gpu", "drivers/gpu/drm/virtio/virtio-gpu"),
];

/// What changes here makes the cache's contents anew.
const QEMU_RECIPE: &str = "1";
const KERNEL_RECIPE: &str = "2";

/// QEMU and a kernel in the cache.
pub struct Parts {
    qemu: PathBuf,
    kernel: PathBuf,
    pub qemu_version: String,
    pub kernel_version: String,
}

/// What the guest's shell is, and what unpacks the kernel's modules. Most machines have the others.
const PACKAGES: [&str; 2] = ["busybox-static", "xz-utils"];

/// Gets them unless they are there.
pub fn get() -> Result<Parts> {
    if !["/bin/busybox", "/usr/bin/xz"].iter().all(|path| Path::new(path).exists()) {
        debian::install(&PACKAGES)?;
    }
    let cache = Cache::open()?;
    let root = cache.root().join("native");
    let (qemu, kernel) = (root.join("qemu"), root.join("kernel"));
    let is_made = || cache::is_made(&qemu, QEMU_RECIPE) && cache::is_made(&kernel, KERNEL_RECIPE);
    // Another task may hold the cache for long: parts that are there do not wait for it.
    let _lock = if is_made() { None } else { Some(cache.lock()?) };
    if !is_made() {
        cache.ensure_room(2)?;
        let apt = Apt::new(root.join("apt"), &SUITES)?;
        println!("fetching QEMU and a kernel from {NEWER}");
        apt.run("apt-get", &["update"])?;
        get_qemu(&apt, &qemu)?;
        get_kernel(&apt, &kernel)?;
        fs::remove_dir_all(root.join("apt")).context("remove the downloaded packages")?;
    }
    let mut parts = Parts { qemu, kernel, qemu_version: String::new(), kernel_version: String::new() };
    let version = quiet(parts.qemu().arg("--version"))?;
    parts.qemu_version = version.split_ascii_whitespace().nth(3).unwrap_or("?").into();
    // Of this device alone: a list of all loads all of QEMU's parts.
    let help = quiet(parts.qemu().args(["-device", &format!("{DEVICE},help")])).unwrap_or_default();
    ensure!(
        help.contains("virtio-id"),
        "QEMU {} has no {DEVICE}: a device with shared memory regions is needed, as in 11.1",
        parts.qemu_version
    );
    parts.kernel_version = fs::read_to_string(parts.kernel.join("version")).context("read the kernel's version")?;
    Ok(parts)
}

fn empty(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))
}

fn get_qemu(apt: &Apt, directory: &Path) -> Result<()> {
    if cache::is_made(directory, QEMU_RECIPE) {
        return Ok(());
    }
    let packages = apt.download_all(NEWER, &[QEMU], "")?;
    empty(directory)?;
    for package in &packages {
        quiet(Command::new("dpkg-deb").arg("--extract").arg(package).arg(directory))?;
    }
    cache::mark(directory, QEMU_RECIPE)
}

/// The words after `Depends:` that begin with one of `prefixes`.
pub fn depends(apt: &Apt, package: &str, prefix: &str) -> Result<String> {
    let text = apt.run("apt-cache", &["--target-release", NEWER, "show", "--no-all-versions", package])?;
    let line = text.lines().find_map(|line| line.strip_prefix("Depends: "));
    let mut names = line.unwrap_or("").split([',', '|']).filter_map(|word| word.trim().split(' ').next());
    let found = names.find(|name| name.starts_with(prefix)).map(Into::into);
    found.with_context(|| format!("{package} of {NEWER} needs no {prefix}*: its packages are made in another way now"))
}

fn get_kernel(apt: &Apt, directory: &Path) -> Result<()> {
    if cache::is_made(directory, KERNEL_RECIPE) {
        return Ok(());
    }
    let image = depends(apt, KERNEL, "linux-image-")?;
    let version = image.trim_start_matches("linux-image-");
    empty(directory)?;
    let unpacked = directory.join("unpacked");
    for package in [depends(apt, &image, "linux-binary-")?, depends(apt, &image, "linux-modules-")?] {
        apt.run("apt-get", &["download", &package])?;
        quiet(Command::new("dpkg-deb").arg("--extract").arg(apt.downloaded(&package)?).arg(&unpacked))?;
    }
    let modules = unpacked.join("usr/lib/modules").join(version);
    fs::rename(modules.join("vmlinuz"), directory.join("vmlinuz")).context("take the kernel")?;
    for (name, path) in MODULES {
        let packed = modules.join("kernel").join(format!("{path}.ko.xz"));
        let out = fs::File::create(directory.join(format!("{name}.ko"))).context("create a module's file")?;
        let mut unpack = Command::new("xz");
        unpack.args(["--decompress", "--stdout"]).arg(&packed).stdin(Stdio::null()).stdout(out);
        ensure!(unpack.status().context("start xz")?.success(), "xz cannot unpack {}", packed.display());
    }
    fs::remove_dir_all(&unpacked).context("remove what is not needed of the kernel")?;
    fs::write(directory.join("version"), version).context("write the kernel's version")?;
    cache::mark(directory, KERNEL_RECIPE)
}

impl Parts {
    /// QEMU with its own libraries and firmware.
    pub fn qemu(&self) -> Command {
        let usr = self.qemu.join("usr");
        let mut command = Command::new(usr.join("lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(usr.join("lib/x86_64-linux-gnu")).arg(usr.join("bin/qemu-system-x86_64"));
        command.arg("-L").arg(usr.join("share/qemu")).arg("-L").arg(usr.join("share/seabios"));
        // Cargo's, which is for this machine's programs.
        command.env_remove("LD_LIBRARY_PATH");
        // It looks for its parts where this machine's own QEMU has others.
        command.env("QEMU_MODULE_DIR", usr.join("lib/x86_64-linux-gnu/qemu"));
        command
    }

    /// The kernel.
    pub fn image(&self) -> PathBuf {
        self.kernel.join("vmlinuz")
    }

    /// A module's file.
    pub fn module(&self, name: &str) -> PathBuf {
        self.kernel.join(format!("{name}.ko"))
    }
}
