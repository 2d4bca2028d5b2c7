// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report for a terminal.

use std::fmt::Write;

use super::cell::{Cell, Memory, Step};
use super::report::{Measurement, Report, Section};
use crate::text::{bytes, count, head, heading, spread, table, tail, time};

/// The report.
pub fn report(report: &Report) -> String {
    let mut out = head(&report.head);
    transfer(report, &mut out);
    fault(report, &mut out);
    touch(report, &mut out);
    pressure(report, &mut out);
    tail(&report.head, &mut out);
    out
}

/// Bytes per second, in GB/s.
pub fn rate(m: &Measurement) -> f64 {
    m.bytes as f64 / m.seconds.median / 1e9
}

/// The speed relative to the yardstick's: the inverse ratio of the times.
fn speed(m: &Measurement) -> String {
    m.relative_to_yardstick.map_or_else(String::new, |by| spread(by.inverted()))
}

fn transfer(report: &Report, out: &mut String) {
    let found: Vec<&Measurement> = report.of(Section::Transfer).collect();
    let Some(first) = found.first() else { return };
    heading(out, &format!("Moving {} in requests of several sizes", bytes(first.bytes)));
    let mut requests: Vec<u64> = found.iter().map(|m| m.cell.granule).collect();
    requests.sort_unstable();
    requests.dedup();
    let mut rows = Vec::new();
    for request in requests {
        rows.push(vec![bytes(request)]);
        for m in found.iter().filter(|m| m.cell.granule == request) {
            let name = match m.cell.memory {
                Memory::System => m.cell.step.name().to_owned(),
                memory => format!("{}, {}", memory.name(), m.cell.step.name()),
            };
            let a_request = m.seconds.median * request as f64 / m.bytes as f64;
            let speeds = [format!("{:.2} GB/s", rate(m)), time(a_request), speed(m)];
            rows.push([vec![format!("  {name}")], speeds.to_vec()].concat());
        }
    }
    table(out, &["  requests", "speed", "time per request", "relative to memcpy"], &rows);
}

fn fault(report: &Report, out: &mut String) {
    if report.of(Section::Fault).next().is_none() {
        return;
    }
    heading(out, "One access, with the fault it causes");
    let mut rows: Vec<(Step, Memory, u64, Vec<String>)> = Vec::new();
    for m in report.of(Section::Fault) {
        let Cell { step, memory, granule, .. } = m.cell;
        let name = match (step, memory) {
            (Step::CpuTouch, Memory::System) => "CPU touch of new memory".to_owned(),
            (Step::CpuTouch, _) => format!("CPU touch, {} memory on the GPU", memory.name()),
            (Step::FaultMoves, _) => format!("{} {}, {}", step.name(), bytes(granule), memory.name()),
            _ => format!("{}, {}", step.name(), memory.name()),
        };
        let quartiles = format!("{} to {}", time(m.seconds.q1), time(m.seconds.q3));
        let by = m.relative_to_yardstick.map_or_else(String::new, spread);
        rows.push((step, memory, granule, vec![name, time(m.seconds.median), quartiles, by]));
    }
    rows.sort_by_key(|(step, memory, granule, _)| (*step, *granule, *memory));
    let rows: Vec<_> = rows.into_iter().map(|(.., row)| row).collect();
    table(out, &["", "median", "quartiles", "relative to no fault"], &rows);
}

fn touch(report: &Report, out: &mut String) {
    let found: Vec<&Measurement> = report.of(Section::Touch).collect();
    let Some(first) = found.first() else { return };
    heading(out, &format!("The CPU reads k percent of {} that are on the GPU", bytes(first.bytes)));
    let mut rows = Vec::new();
    for step in [Step::ReadSpread, Step::ReadStart] {
        rows.push(vec![step.name().to_owned()]);
        let mut percents: Vec<u64> = found.iter().map(|m| m.cell.percent).collect();
        percents.sort_unstable();
        percents.dedup();
        for percent in percents {
            let find = |memory| report.find(Section::Touch, Cell { step, memory, granule: 0, percent });
            let cell = |memory| find(memory).map_or_else(|| "-".to_owned(), |m| time(m.seconds.median));
            let by = |memory| find(memory).and_then(|m| m.relative_to_yardstick).map_or_else(|| "-".to_owned(), spread);
            rows.push(vec![
                format!("  {percent}%"),
                cell(Memory::System),
                cell(Memory::Coherent),
                cell(Memory::Private),
                by(Memory::Coherent),
                by(Memory::Private),
            ]);
        }
    }
    let head = ["", "not on the GPU", "coherent", "private", "coherent, relative", "private, relative"];
    table(out, &head, &rows);
    out.push_str("  Relative: the time, relative to the same read of memory that is not on the GPU.\n");
}

fn pressure(report: &Report, out: &mut String) {
    if report.of(Section::Pressure).next().is_none() {
        return;
    }
    heading(out, "More than there is room for on the GPU");
    let row = |m: &Measurement| {
        let by = m.relative_to_yardstick.map_or_else(String::new, spread);
        let name = format!("{}, {}", m.cell.step.name(), m.cell.memory.name());
        // Nothing moves for a buffer that has room.
        let speed = if m.cell.step == Step::Allocate { String::from("-") } else { format!("{:.2} GB/s", rate(m)) };
        vec![name, bytes(m.bytes), time(m.seconds.median), speed, by]
    };
    let rows: Vec<_> = report.of(Section::Pressure).map(row).collect();
    table(out, &["", "bytes", "time", "speed", "relative to having room"], &rows);
    for o in &report.oversubscription {
        let n = |n: u64| count(usize::try_from(n).unwrap_or(usize::MAX));
        let _ = writeln!(
            out,
            "  {} passes over {}, {}: {} evictions, {} pages moved in, {} out; {} bounces, {} migrations not made for that reason.",
            o.passes,
            bytes(o.bytes),
            o.memory.name(),
            n(o.evictions),
            n(o.pages_in),
            n(o.pages_out),
            n(o.bounces),
            n(o.damped)
        );
    }
}
