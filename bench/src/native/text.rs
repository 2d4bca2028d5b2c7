// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report for a terminal.

use std::fmt::Write;

use super::cell::{Cell, Pass, Stage, Way};
use super::report::Report;
use crate::spread::Spread;
use crate::text::{bytes, head, heading, number, spread, table, tail, time};

/// The report.
pub fn report(report: &Report) -> String {
    let mut out = head(&report.head);
    jobs(report, &mut out);
    stages(report, &mut out);
    registrations(report, &mut out);
    tail(&report.head, &mut out);
    out
}

/// A buffer in words.
pub fn buffer(pages: u64) -> String {
    format!("{}, {}", super::pieces(pages), bytes(pages * 4096))
}

/// The series' own figures in words.
pub fn published(report: &Report) -> String {
    let figure = |[low, high]: [f64; 2]| match low == high {
        true => number(low),
        false => format!("{} to {}", number(low), number(high)),
    };
    let ways = report.published.iter().map(|p| format!("{} {}", p.way.name(), figure(p.percent)));
    let (what, source) = report.published.first().map_or(("", ""), |p| (p.what, p.source));
    format!("Published ({what}): {}. Source: {source}.", ways.collect::<Vec<_>>().join(", "))
}

fn or_dash(value: Option<Spread>, show: impl Fn(Spread) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn jobs(report: &Report, out: &mut String) {
    heading(out, "The whole job (register, map, one pass, free), in percent: the same buffer in one piece is 100");
    let mut rows = Vec::new();
    for pages in report.sizes() {
        rows.push(vec![buffer(pages)]);
        for pass in Pass::ALL {
            let percents = Way::SCATTERED.map(|way| or_dash(report.job(pages, way, pass), spread));
            rows.push([vec![format!("  {}", pass.name())], percents.to_vec()].concat());
        }
    }
    let ways = Way::SCATTERED.map(Way::name);
    table(out, &[&["  buffer"], &ways[..]].concat(), &rows);
    out.push_str("  Of processor time. A plain copy has no GPU: what it loses, the memory takes of every long copy.\n");
    let _ = writeln!(out, "  {}", published(report));
}

fn stages(report: &Report, out: &mut String) {
    heading(out, "Processor time of its stages, with a kernel; of the copies, the pass alone");
    let mut rows = Vec::new();
    for pages in report.sizes() {
        rows.push(vec![buffer(pages)]);
        for way in Way::ALL {
            let of = |pass, stage| report.time(pages, Cell { way, pass: Some(pass), stage });
            if of(Pass::Kernel, Stage::Job).is_none() {
                continue;
            }
            let mut row = vec![format!("  {}", way.name())];
            let stages = Stage::PARTS.into_iter().chain([Stage::Job]);
            row.extend(stages.map(|stage| or_dash(of(Pass::Kernel, stage), |s| time(s.median))));
            row.extend([Pass::Copy, Pass::Processor].map(|pass| or_dash(of(pass, Stage::Pass), |s| time(s.median))));
            rows.push(row);
        }
    }
    let stages = Stage::PARTS.map(Stage::name);
    table(out, &[&["  buffer"], &stages[..], &[Stage::Job.name(), "copy by SDMA", "plain copy"]].concat(), &rows);
}

fn registrations(report: &Report, out: &mut String) {
    heading(out, "Registration by batch, beside the same list by a client that is no guest");
    let mut rows = Vec::new();
    for registration in &report.registrations {
        let of = |way, pass| report.time(registration.pages, Cell { way, pass, stage: Stage::Register });
        rows.push(vec![
            buffer(registration.pages),
            or_dash(of(Way::Batch, Some(Pass::Kernel)), |s| time(s.median)),
            or_dash(of(Way::Local, None), |s| time(s.median)),
            spread(registration.relative_to_local),
        ]);
    }
    table(out, &["  buffer", "the guest's", "the local client's", "ratio"], &rows);
}
