// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A tree of this machine, shown to a guest: programs are started in it, with their own libraries.
//!
//! Mechanism: the guest mounts it (9p, read-only), puts its own /proc, /sys, /dev and /tmp over
//! those places in it, and starts a program in it by `chroot`. A share can be mounted once, so the
//! first program that needs a tree mounts it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vkfd_guest::{Job, Program};

use super::guest;
use super::qemu::Share;

/// Mount tag of this machine's own files.
const MACHINE: &str = "machine";
/// Two functions of a shell script: `share TAG DIRECTORY` mounts what a tag names, if it is not;
/// `show TAG` makes a root of it, at `/TAG`.
pub(super) const FUNCTIONS: &str = r#"
share() {
    while read -r _ at _; do [ "$at" = "$2" ] && return 1; done < /proc/mounts
    mkdir -p "$2" 2>/dev/null
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose "$1" "$2" || exit 126
}
show() {
    share "$1" "/$1" || return 0
    for directory in proc sys dev tmp; do mount -o rbind "/$directory" "/$1/$directory" || exit 126; done
}
"#;
/// Becomes a program of this machine; the first argument is its directory.
const ENTER: &str = r#"
show machine
exec chroot /machine /bin/sh -c 'cd "$0" && exec "$@"' "$@"
"#;

/// This machine's files, for [`program`].
pub(super) fn machine() -> Share {
    Share { directory: PathBuf::from("/"), tag: MACHINE }
}

/// A program of this machine, started in a directory of it.
pub(super) fn program(job: &Job, name: &str, [at, program]: [&str; 2], arguments: &[&str], time: Duration) -> Program {
    let script = format!("{FUNCTIONS}{ENTER}");
    let words: Vec<&str> = ["-c", &script, "sh", at, program].into_iter().chain(arguments.iter().copied()).collect();
    let mut described = guest::program(job, name, "/bin/sh".into(), &words, time);
    described.env.push(("PATH".into(), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".into()));
    described
}

/// A file of this machine, as it is named in the guest.
pub(super) fn place(file: &Path) -> Result<String> {
    // Links stay: the Python of a virtual environment is one, and its name says where it is.
    let path = std::path::absolute(file).with_context(|| format!("find {}", file.display()))?;
    ensure!(path.exists(), "{} is not there", path.display());
    ensure!(!path.starts_with("/tmp"), "{} is in /tmp, of which the guest has its own", path.display());
    let name = path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
    Ok(name.to_owned())
}
