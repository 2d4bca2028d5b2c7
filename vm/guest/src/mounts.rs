// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's file systems, swap, merged pages and host share.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use rustix::io::Errno;
use rustix::mount::{mount, MountFlags};

/// Source, target, type.
const MOUNTS: [(&str, &str, &str); 9] = [
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("devtmpfs", "/dev", "devtmpfs"),
    ("devpts", "/dev/pts", "devpts"),
    ("tmpfs", "/dev/shm", "tmpfs"),
    ("tmpfs", "/tmp", "tmpfs"),
    ("tmpfs", "/run", "tmpfs"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ("debugfs", "/sys/kernel/debug", "debugfs"),
];

/// Mounts what programs expect.
pub fn mount_all() -> Result<()> {
    for (source, target, kind) in MOUNTS {
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        match mount(source, target, kind, MountFlags::empty(), None) {
            // The kernel has mounted /dev already.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno).with_context(|| format!("mount {kind} on {target}")),
        }
    }
    Ok(())
}

/// Shows the host's directory with mount tag `tag` as /host, read-only.
pub fn mount_host(tag: &str) -> Result<()> {
    fs::create_dir_all("/host").context("create /host")?;
    let options = c"trans=virtio,version=9p2000.L,msize=262144";
    mount(tag, "/host", "9p", MountFlags::RDONLY, Some(options))
        .with_context(|| format!("mount the host's {tag:?} on /host"))
}

/// Makes a compressed device in memory and swaps to it.
pub fn swap_on(mib: u64) -> Result<()> {
    let device = Path::new("/dev/zram0");
    ensure!(device.exists(), "the kernel has no /dev/zram0 to swap to (CONFIG_ZRAM)");
    fs::write("/sys/block/zram0/disksize", format!("{mib}M")).context("set the size of zram0")?;
    for tool in ["mkswap", "swapon"] {
        let done = Command::new("/bin/busybox")
            .arg(tool)
            .arg(device)
            .output()
            .with_context(|| format!("run busybox {tool}"))?;
        ensure!(done.status.success(), "{tool} {}: {}", device.display(), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Has the kernel look for equal pages of this process, and of those that it starts, and merge
/// them.
pub fn merge_pages() -> Result<()> {
    // SAFETY: the call has no pointers.
    let set = unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) };
    ensure!(set == 0, "ask for merged pages (CONFIG_KSM): {}", std::io::Error::last_os_error());
    fs::write("/sys/kernel/mm/ksm/run", "1").context("start ksmd")
}

/// linux/prctl.h. Not in libc.
const PR_SET_MEMORY_MERGE: i32 = 67;
