// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the program's kernels have cost (`--profile`), and how near the operations are to
//! hardware's (`--fidelity`).
//!
//! The library writes a file for each process into a directory, this adds them up when the program
//! has ended.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vkfd_gpu::Report;

use super::other_users;

/// The directory of the processes' files, below the private one.
pub(super) fn directory(private: &Path) -> PathBuf {
    private.join("profile")
}

/// Makes it. A process that has become another user's can put its file there.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    std::fs::create_dir(directory)?;
    let mode = if other_users::possible() { 0o1777 } else { 0o700 };
    std::fs::set_permissions(directory, Permissions::from_mode(mode))
}

/// The sums of all processes.
pub(super) fn read(directory: &Path) -> io::Result<Report> {
    let mut sum = Report::default();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // One that was being written when its process was killed is not there under its name.
        if path.extension().is_none() {
            let text = std::fs::read_to_string(&path)?;
            sum.add(&text.parse().map_err(io::Error::other)?);
        }
    }
    Ok(sum)
}

/// Kernels by time, as a table.
pub(super) fn kernels(report: &Report) -> String {
    let mut kernels: Vec<_> = report.kernels.iter().collect();
    kernels.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.nanoseconds));
    let total: u64 = kernels.iter().map(|(_, cost)| cost.nanoseconds).sum();
    let mut text = String::from("   ms    %  launches  work-groups       waves  instructions       bytes  kernel\n");
    for (name, cost) in kernels {
        let share = u128::from(cost.nanoseconds) * 100 / u128::from(total.max(1));
        let line = format!(
            "{:>5}.{} {share:>3} {:>9} {:>12} {:>11} {:>13} {:>11}  {name}\n",
            cost.nanoseconds / 1_000_000,
            cost.nanoseconds / 100_000 % 10,
            cost.launches,
            cost.groups,
            cost.waves,
            cost.instructions,
            cost.bytes
        );
        text.push_str(&line);
    }
    text
}

/// What was approximate or missing, as a table.
pub(super) fn fidelity(report: &Report) -> String {
    let mut text = String::new();
    for (name, times) in &report.missing {
        text.push_str(&format!("missing      {name:<24} {times:>12}  ended the kernel\n"));
    }
    for (name, (times, why)) in &report.approximate {
        text.push_str(&format!("approximate  {name:<24} {times:>12}  {why}\n"));
    }
    if text.is_empty() {
        text.push_str("all instructions executed are exact\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_gpu::KernelCost;

    #[test]
    fn kernels_are_sorted_by_time() {
        let mut report = Report::default();
        for (name, nanoseconds) in [("short", 1_000_000), ("long", 3_250_000)] {
            let cost = KernelCost { launches: 2, nanoseconds, ..KernelCost::default() };
            report.kernels.insert(name.into(), cost);
        }
        let text = kernels(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("    3.2  76         2") && lines[1].ends_with("long"), "{text}");
        assert!(lines[2].contains("1.0  23"), "{text}");
        assert_eq!(fidelity(&report), "all instructions executed are exact\n");
        report.missing.insert("image_sample".into(), 1);
        assert!(fidelity(&report).contains("image_sample"));
    }
}
