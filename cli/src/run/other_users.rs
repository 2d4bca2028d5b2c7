// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that change their user: a service that root starts drops its privileges, before it
//! opens the device or in between. What `vkfd run` has made must then be readable for others, as
//! sysfs is, and not writable. Only a run that may change its user pays for that: another user's
//! run stays private.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

/// CAP_SETUID, as a bit of a set of capabilities.
const SETUID: u64 = 1 << 7;

/// Whether programs of this run may become another user's.
pub fn possible() -> bool {
    if sabotage::has(Switch::PrivateFiles) {
        return false;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    match set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()) {
        Some(set) => set & SETUID != 0,
        // SAFETY: no preconditions.
        None => unsafe { libc::geteuid() == 0 },
    }
}

/// Whether any user can read a file, and come to it.
pub fn can_read(path: &Path) -> bool {
    let allows = |path: &Path, bit: u32| fs::metadata(path).is_ok_and(|data| data.permissions().mode() & bit != 0);
    let Ok(path) = path.canonicalize() else { return false };
    allows(&path, 0o004) && path.ancestors().skip(1).all(|around| allows(around, 0o001))
}

/// What `make` creates is readable for others, whatever the caller's umask is. To be called while
/// the process has one thread.
pub fn readable<R>(make: impl FnOnce() -> R) -> R {
    // SAFETY: no preconditions; nobody else creates files meanwhile.
    let before = unsafe { libc::umask(if sabotage::has(Switch::PrivateFiles) { 0o077 } else { 0o022 }) };
    let made = make();
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_readable_as_the_way_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(&file, "").unwrap();
        for (around, mode, readable) in
            [(0o755, 0o644, true), (0o711, 0o604, true), (0o700, 0o644, false), (0o755, 0o640, false)]
        {
            set(&file, mode);
            set(dir.path(), around);
            assert_eq!(can_read(&file), readable, "{around:o} {mode:o}");
        }
    }
}
