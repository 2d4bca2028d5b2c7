// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much memory this process may still use: the system's available memory, and the rest in each
//! of the process's memory control groups, from its own up to the root. Both versions of control
//! groups are read. The kernel kills a process beyond such a limit without a message.
//!
//! Limit: a group's page cache counts as used, except the part that both versions call inactive
//! file memory.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes. `None` where neither says.
pub fn memory_left() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    left(Path::new("/"), &groups)
}

/// The same, of a system whose files are below `root`.
fn left(root: &Path, groups: &str) -> Option<u64> {
    let system = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let available = system.lines().find_map(|line| {
        let kib = line.strip_prefix("MemAvailable:")?.trim().trim_end_matches("kB").trim();
        kib.parse::<u64>().ok().map(|kib| kib << 10)
    });
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => group_left(&root.join("sys/fs/cgroup"), path, "memory.max", "memory.current"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let mount = root.join("sys/fs/cgroup/memory");
                group_left(&mount, path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => None,
        }
    });
    limits.chain(available).min()
}

/// What is left in a group and in those around it. In a container the group's path may not exist:
/// then the mount is the group.
fn group_left(mount: &Path, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let below = Path::new(path.trim_start_matches('/'));
    let places = below.ancestors().map(|group| mount.join(group));
    let left = places.filter_map(|group| {
        let limit = number(group.join(limit))?;
        let used = number(group.join(usage)).unwrap_or(0);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let given_back = stat.lines().find_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            ["inactive_file", "total_inactive_file"].contains(&name).then(|| bytes.parse::<u64>().ok())?
        });
        Some(limit.saturating_sub(used.saturating_sub(given_back.unwrap_or(0))))
    });
    left.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_of_system_and_groups_counts() {
        let files = [
            ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"),
            ("sys/fs/cgroup/a/memory.max", "4000000"),
            ("sys/fs/cgroup/a/memory.current", "1000000"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 200000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000"),
        ];
        let root = system(&files);
        assert_eq!(left(root.path(), ""), Some(8000 << 10));
        assert_eq!(left(root.path(), "0::/a/b\n"), Some(3_200_000), "the group around it has the limit");
        assert_eq!(
            left(root.path(), "5:cpu,cpuacct:/x\n4:memory:/docker/gone\n"),
            Some(2_500_000),
            "the mount is the group"
        );
        assert_eq!(left(root.path(), "3:cpuset:/a\n"), Some(8000 << 10));
        assert_eq!(left(system(&[]).path(), "0::/\n"), None);
    }
}
