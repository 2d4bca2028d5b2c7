// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reports and tables for people.

use std::fmt::Write;

use crate::baseline::{Change, Comparison};
pub use crate::format::{bytes, count, number, number_with_power, time};
use crate::goal::Goal;
use crate::report::{Head, Report, Section};
use crate::spread::Spread;
use crate::subject::{Operation, Subject};

/// A median and its quartiles.
pub fn spread(spread: Spread) -> String {
    if spread.samples == 1 {
        return number(spread.median);
    }
    format!("{} ({} to {})", number(spread.median), number(spread.q1), number(spread.q3))
}

/// A table; its first column is words.
pub fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The first column is words, the others are numbers.
            let _ = if column == 0 { write!(line, " {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// A section's heading.
pub fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}");
}

/// The report for a terminal.
pub fn report(report: &Report) -> String {
    let mut out = head(&report.head);
    sweep(report, &mut out);
    parts(report, &mut out);
    job(report, &mut out);
    invalidate(report, &mut out);
    restore(report, &mut out);
    copies(report, &mut out);
    kernels(report, &mut out);
    memory(report, &mut out);
    tail(&report.head, &mut out);
    out
}

/// How every report begins.
pub fn head(head: &Head) -> String {
    let mut out = String::new();
    let host = &head.host;
    let _ = writeln!(
        out,
        "{}, {}\nvkfd {} on {} ({} processors), Linux {}, {} of memory, huge pages: {}, load {:.1}, notifications: {}",
        head.date,
        head.parameters.command,
        head.version,
        host.cpu,
        host.cores,
        host.kernel,
        bytes(host.memory_bytes),
        host.transparent_huge_pages,
        host.load,
        host.notification_source
    );
    let _ = writeln!(
        out,
        "Up to {} samples of each, interleaved; medians (quartiles in brackets). Took {:.0} s.",
        head.parameters.rounds, head.parameters.took_seconds
    );
    if let Some(doubt) = head.doubt() {
        let _ = writeln!(out, "{doubt}");
    }
    out
}

/// How every report ends: what was left out, and the targets.
pub fn tail(head: &Head, out: &mut String) {
    if !head.left_out.is_empty() {
        heading(out, "Left out");
        for (what, why) in head.left_out_by_reason() {
            let _ = writeln!(out, "  {what}: {why}");
        }
    }
    if head.targets.is_empty() {
        return;
    }
    heading(out, "Targets");
    let row = |goal: &Goal| {
        let measured = goal.measured.map_or_else(|| "not measured".to_owned(), spread);
        vec![goal.what.to_owned(), goal.bound.text(), measured, verdict(head, goal).to_owned()]
    };
    table(out, &["", "target", "measured", ""], &head.targets.iter().map(row).collect::<Vec<_>>());
    if let Some(comparison) = &head.comparison {
        compare(comparison, out);
    }
}

/// Whether a target was met, and how sure that is.
pub fn verdict(head: &Head, goal: &Goal) -> &'static str {
    if goal.measured.is_none() {
        return "not known";
    }
    match (goal.met, goal.measured.is_some_and(Spread::disagrees), head.doubt().is_some()) {
        (true, false, _) => "met",
        (true, true, _) => "met, but the rounds disagree",
        (false, true, _) => "MISSED, but the rounds disagree",
        (false, false, true) => "MISSED, on a busy machine",
        (false, false, false) => "MISSED",
    }
}

/// What has changed since an earlier run.
fn compare(comparison: &Comparison, out: &mut String) {
    heading(out, &format!("Compared with {} of {}", comparison.file, comparison.date));
    for difference in &comparison.differences {
        let _ = writeln!(out, "  The two runs differ: {difference}");
    }
    let row = |change: &Change| {
        let apart = if change.apart { "apart" } else { "" };
        let figures = [change.before, change.now].map(spread);
        vec![change.what.clone(), figures[0].clone(), figures[1].clone(), number(change.ratio), apart.to_owned()]
    };
    table(out, &["", "then", "now", "ratio", ""], &comparison.targets.iter().map(row).collect::<Vec<_>>());
    let _ = writeln!(out, "  {}", apart(comparison));
    let row = |change: &Change| {
        let times = [change.before, change.now].map(|spread| number_with_power(spread.median));
        vec![change.what.clone(), times[0].clone(), times[1].clone(), number(change.ratio)]
    };
    let rows: Vec<_> = comparison.measurements.iter().map(row).collect();
    if !rows.is_empty() {
        table(out, &["", "then", "now", "ratio"], &rows);
    }
}

/// How many measurements are apart, in words.
pub fn apart(comparison: &Comparison) -> String {
    let (apart, all) = (comparison.measurements.len(), count(comparison.compared));
    format!("Of {all} measurements, {apart} are apart: the quartiles of one run do not meet those of the other.")
}

fn sweep(report: &Report, out: &mut String) {
    heading(out, "Cost of a registration's life (register, map, first access, unmap, free)");
    let operations = [
        Operation::Register,
        Operation::Map,
        Operation::FirstAccess,
        Operation::Access,
        Operation::Unmap,
        Operation::Free,
        Operation::Lifetime,
    ];
    let mut places: Vec<(usize, u64, Option<&str>)> =
        report.of(Section::Sweep).map(|m| (m.ranges, m.bytes, m.label.as_deref())).collect();
    places.sort_unstable_by_key(|(ranges, bytes, label)| (label.is_some(), *bytes / *ranges as u64, *ranges, *label));
    places.dedup();
    let mut head = vec!["  ranges"];
    head.extend(operations.map(Operation::name));
    head.push("relative to contiguous");
    let mut rows = Vec::new();
    for (ranges, total, label) in places {
        let size = bytes(total / ranges as u64);
        rows.push(vec![match label {
            Some(label) => format!("{} x ~{size}, {label}", count(ranges)),
            None => format!("{} x {size}", count(ranges)),
        }]);
        for subject in Subject::STRATEGIES.into_iter().chain(Subject::PEERS) {
            let find = |operation| {
                report.of(Section::Sweep).find(|m| {
                    (m.ranges, m.bytes, m.label.as_deref()) == (ranges, total, label)
                        && (m.subject, m.operation) == (subject, operation)
                })
            };
            if operations.iter().all(|operation| find(*operation).is_none()) {
                continue;
            }
            let mut row = vec![format!("  {}", subject.name())];
            row.extend(operations.map(|o| find(o).map_or_else(|| "-".to_owned(), |m| time(m.seconds.median))));
            let ratio = find(Operation::Lifetime).and_then(|m| m.relative_to_contiguous);
            row.push(ratio.map_or_else(String::new, spread));
            rows.push(row);
        }
    }
    table(out, &head, &rows);
}

fn parts(report: &Report, out: &mut String) {
    if report.parts.is_empty() {
        return;
    }
    heading(out, "Where the time goes: 4,096 x 64 KiB in one batch, and one contiguous range of the same size");
    let cell = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |spread| time(spread.median));
    let row = |part: &crate::parts::Part| {
        let ratio = part.ratio.map_or_else(String::new, spread);
        vec![part.what.to_owned(), cell(part.batch), cell(part.contiguous), ratio]
    };
    table(out, &["", "batch", "contiguous", "ratio"], &report.parts.iter().map(row).collect::<Vec<_>>());
}

fn job(report: &Report, out: &mut String) {
    if report.scores.is_empty() {
        return;
    }
    heading(out, "Whole job: 4,096 x 64 KiB: register, compute, invalidate 1%, compute, free");
    let mut rows = Vec::new();
    for (subject, score) in &report.scores {
        let took = report.of(Section::Job).find(|m| m.subject == *subject).map(|m| time(m.seconds.median));
        rows.push(vec![subject.name().to_owned(), spread(*score), took.unwrap_or_default()]);
    }
    table(out, &["", "score", "time"], &rows);
}

fn invalidate(report: &Report, out: &mut String) {
    if report.of(Section::Invalidate).next().is_none() {
        return;
    }
    heading(out, "Discarding one page while ranges are registered and mapped: time of the system call");
    let row = |m: &crate::report::Measurement| {
        let ranges = if m.subject == Subject::Unregistered { String::from("-") } else { count(m.ranges) };
        let times = [m.seconds.median, m.seconds.q1, m.seconds.q3].map(time);
        vec![m.subject.name().to_owned(), ranges, times[0].clone(), format!("{} to {}", times[1], times[2])]
    };
    table(out, &["", "ranges", "median", "quartiles"], &report.of(Section::Invalidate).map(row).collect::<Vec<_>>());
    if let Some(hit) = report.ranges_invalidated_per_call {
        let _ = writeln!(out, "  The driver counted {} ranges invalidated per call.", number(hit));
    }
}

fn restore(report: &Report, out: &mut String) {
    if report.of(Section::Restore).next().is_none() {
        return;
    }
    heading(out, "Restoring k of n ranges of 4 KiB, until the queues run again");
    let row = |m: &crate::report::Measurement| {
        let times = [m.seconds.median, m.seconds.q1, m.seconds.q3].map(time);
        let k = count(m.touched.unwrap_or(0));
        vec![m.subject.name().to_owned(), k, count(m.ranges), times[0].clone(), format!("{} to {}", times[1], times[2])]
    };
    table(out, &["", "k", "n", "median", "quartiles"], &report.of(Section::Restore).map(row).collect::<Vec<_>>());
}

fn copies(report: &Report, out: &mut String) {
    if report.of(Section::Copies).next().is_none() {
        return;
    }
    heading(out, "Copies of 10,000 x 16 KiB");
    let mut rows = Vec::new();
    for m in report.of(Section::Copies) {
        let rate = m.bytes as f64 / m.seconds.median / 1e9;
        let who = if Subject::STRATEGIES.contains(&m.subject) { "SDMA, " } else { "" };
        rows.push(vec![format!("{who}{}", m.subject.name()), m.operation.name().to_owned(), format!("{rate:.2} GB/s")]);
    }
    table(out, &["", "", "speed"], &rows);
}

fn kernels(report: &Report, out: &mut String) {
    if report.of(Section::Kernels).next().is_none() {
        return;
    }
    heading(out, "Kernels over a registered buffer");
    let mut rows = Vec::new();
    for m in report.of(Section::Kernels) {
        let by = m.relative_to_contiguous.map_or_else(String::new, spread);
        rows.push(vec![m.label.clone().unwrap_or_default(), m.subject.name().to_owned(), time(m.seconds.median), by]);
    }
    table(out, &["", "", "time", "relative to contiguous"], &rows);
    if let Some(doubt) = report.doubt(Section::Kernels) {
        let _ = writeln!(out, "  {doubt}");
    }
}

fn memory(report: &Report, out: &mut String) {
    if report.footprints.is_empty() {
        return;
    }
    heading(out, "Driver memory");
    let row = |f: &crate::report::Footprint| {
        let pages = usize::try_from(f.pages).unwrap_or(0);
        let part = f.driver_bytes as f64 / f.allowed_bytes as f64;
        vec![count(f.ranges), count(pages), bytes(f.driver_bytes), bytes(f.allowed_bytes), number(part)]
    };
    let rows: Vec<_> = report.footprints.iter().map(row).collect();
    table(out, &["ranges", "pages", "held", "64 B per range + 16 B per page", "ratio"], &rows);
}
