// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the program's kernels have cost (`--profile`), and how near the operations are to
//! hardware's (`--fidelity`).
//!
//! The library writes a file for each process into a directory, this adds them up when the program
//! has ended.

use serde_json::{json, Map, Value};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use vkfd_gpu::Report;

use super::other_users;

/// Makes a directory for the processes' files. A process that has become another user's can put its
/// file there.
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
    text.push_str(&detours(report));
    text.push_str(&translation(report));
    text
}

/// Sums of translated code, and the operations of hot code without a translation, as a table;
/// nothing if nothing was hot.
fn translation(report: &Report) -> String {
    let count = |name| report.translation.get(name).copied().unwrap_or(0);
    if count("blocks") == 0 {
        return String::new();
    }
    let mut text = format!(
        "translated: {} of {} instructions in {} hot blocks, {} bytes of code, {} us\n",
        count("translated"),
        count("instructions"),
        count("blocks"),
        count("bytes"),
        count("nanoseconds") / 1000
    );
    if count("checked") != 0 {
        text.push_str(&format!("checked: {} regions, {} differed\n", count("checked"), count("wrong")));
    }
    let mut lines: Vec<_> = report.refused.iter().collect();
    lines.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    if !lines.is_empty() {
        text.push_str("not translated  why         operation\n");
    }
    for ((op, why), times) in lines {
        text.push_str(&format!("{times:>14}  {why:<10}  {op}\n"));
    }
    text
}

/// What the reference engine executed, most often executed first, as a table; nothing if it
/// executed nothing.
fn detours(report: &Report) -> String {
    if report.detours.is_empty() {
        return String::new();
    }
    let mut lines: Vec<_> = report.detours.iter().collect();
    lines.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    let mut text = String::from("by the reference engine  why         operation                 kernel\n");
    for ((kernel, op, why), times) in lines {
        text.push_str(&format!("{times:>23}  {why:<10}  {op:<24}  {kernel}\n"));
    }
    text
}

/// The same as one object.
pub(super) fn document(report: &Report, costs: bool, fidelity: bool) -> Value {
    let mut document = Map::new();
    if costs {
        let of = |name: &String| {
            let lines = report.detours.iter().filter(|((kernel, ..), _)| kernel == name);
            lines.map(|((_, op, why), times)| json!({ "op": op, "why": why, "times": times })).collect::<Vec<_>>()
        };
        let kernels = report.kernels.iter().map(|(name, cost)| {
            json!({
                "name": name, "launches": cost.launches, "work_groups": cost.groups, "waves": cost.waves,
                "instructions": cost.instructions, "bytes": cost.bytes, "nanoseconds": cost.nanoseconds,
                "by_reference_engine": of(name),
            })
        });
        document.insert("kernels".into(), kernels.collect());
        let others = of(&vkfd_gpu::OTHER_DETOURS.to_owned());
        if !others.is_empty() {
            document.insert("others_by_reference_engine".into(), others.into());
        }
    }
    if costs && !report.translation.is_empty() {
        let refused = report.refused.iter().map(|((op, why), times)| json!({ "op": op, "why": why, "times": times }));
        document.insert("translation".into(), json!(report.translation));
        document.insert("not_translated".into(), refused.collect());
    }
    if fidelity {
        let approximate =
            report.approximate.iter().map(|(op, (times, why))| json!({ "op": op, "why": why, "times": times }));
        let missing = report.missing.iter().map(|(op, times)| json!({ "op": op, "times": times }));
        document.insert("approximate".into(), approximate.collect());
        document.insert("missing".into(), missing.collect());
    }
    Value::Object(document)
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
    #[test]
    fn detours_are_in_table_and_document() {
        let mut report = Report::default();
        report.kernels.insert("k".into(), KernelCost { instructions: 100, ..KernelCost::default() });
        for (op, times) in [("v_add_f32", 3), ("v_mul_f32", 40)] {
            report.detours.insert(("k".into(), op.into(), "value".into()), times);
        }
        report.translation = [("blocks".into(), 1), ("translated".into(), 20)].into();
        report.refused.insert(("ds_read_b32".into(), "operation".into()), 7);
        let text = kernels(&report);
        assert!(text.contains("translated: 20 of 0 instructions in 1 hot blocks"), "{text}");
        assert!(text.contains("7  operation   ds_read_b32"), "{text}");
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(
            lines[0].starts_with("by the reference engine") && lines[1].contains("40  value       v_mul_f32"),
            "{text}"
        );
        let document = document(&report, true, true);
        assert_eq!(
            document["kernels"][0]["by_reference_engine"][0],
            json!({ "op": "v_add_f32", "why": "value", "times": 3 })
        );
        assert_eq!(document["translation"]["translated"], json!(20));
        assert_eq!(document["approximate"], json!([]));
    }
}
