// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report as a page.

use std::fmt::Write;

use super::cell::{Memory, Step};
use super::report::{Measurement, Report, Section};
use super::text::rate;
use crate::page::{head, left_out, section, targets};
use crate::plot::{bars, lines, Axis, Bar, Length, Point, Series};
use crate::text;

const INTRODUCTION: &str = "<p>Data can be in a GPU&#8217;s memory and keep its addresses. It moves there on request or by a page fault, and back on \
    request, or because the memory is needed. The CPU uses <b>coherent</b> memory where it is; <b>private</b> memory comes back when the CPU touches \
    it.</p>";

/// What is on it.
pub fn render(report: &Report) -> String {
    let mut page = String::from(INTRODUCTION);
    head(&report.head, &mut page);
    targets(&report.head, &mut page);
    transfer(report, &mut page);
    touch(report, &mut page);
    fault(report, &mut page);
    pressure(report, &mut page);
    left_out(&report.head, &mut page);
    page
}

fn colour(memory: Memory, step: Step) -> usize {
    match (memory, step) {
        (Memory::System, _) => 0,
        (Memory::Coherent, Step::ToSystem | Step::ReadStart) => 3,
        (Memory::Coherent, _) => 2,
        (Memory::Private, Step::ToSystem | Step::ReadStart) => 5,
        (Memory::Private, _) => 1,
    }
}

/// A line for each step and memory that has points, x rising.
fn series(
    found: &[&Measurement],
    steps: &[Step],
    x: impl Fn(&Measurement) -> f64,
    y: impl Fn(&Measurement, f64) -> f64,
) -> Vec<Series> {
    let mut list = Vec::new();
    for memory in [Memory::System, Memory::Coherent, Memory::Private] {
        for step in steps {
            let of = found.iter().filter(|m| m.cell.memory == memory && m.cell.step == *step);
            let point = |m: &&Measurement| {
                let at = |seconds| y(m, seconds);
                Point { x: x(m), y: at(m.seconds.median), quartiles: (at(m.seconds.q1), at(m.seconds.q3)) }
            };
            let mut points: Vec<Point> = of.map(point).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            let name = format!("{}, {}", memory.name(), step.name());
            if !points.is_empty() {
                list.push(Series { name, class: colour(memory, *step), points });
            }
        }
    }
    list
}

fn transfer(report: &Report, page: &mut String) {
    let found: Vec<&Measurement> = report.of(Section::Transfer).collect();
    let steps = [Step::Copy, Step::ToGpu, Step::ToSystem];
    let list = series(&found, &steps, |m| m.cell.granule as f64, |m, seconds| m.bytes as f64 / seconds / 1e9);
    let x = Axis {
        title: "bytes of a request",
        tick: |v| format!("{v:.0}").parse().map_or(String::new(), text::bytes),
        binary: true,
    };
    let y = Axis { title: "GB/s", tick: text::number, binary: false };
    let plot = lines(&list, &x, &y, "Speed of moving against the size of requests");
    section(
        page,
        "Moving to the GPU and back",
        &plot,
        "The same bytes in requests of several sizes. On the left the request itself dominates the cost, on the right the pages do. memcpy of the same \
         pieces, between memory that is there already, is the best that can be reached.",
    );
}

fn touch(report: &Report, page: &mut String) {
    let found: Vec<&Measurement> = report.of(Section::Touch).collect();
    let list = series(&found, &[Step::ReadSpread, Step::ReadStart], |m| m.cell.percent as f64, |_, seconds| seconds);
    let x = Axis { title: "percent of the buffer that the CPU reads", tick: |v| format!("{v}%"), binary: false };
    let y = Axis { title: "time", tick: text::time, binary: false };
    let plot = lines(&list, &x, &y, "CPU accesses to memory on a GPU");
    section(
        page,
        "The CPU reads part of a buffer that is on the GPU",
        &plot,
        "In place (coherent), or with the memory coming back first (private). In a process private memory comes back 2 MiB at a time, so a few pages all over the \
         buffer bring back all of it; in a kernel it comes back page by page.",
    );
}

fn bar(m: &Measurement, name: String, value: impl Fn(f64) -> f64, text: String) -> Bar {
    let (a, b) = (value(m.seconds.q1), value(m.seconds.q3));
    let class = colour(m.cell.memory, m.cell.step);
    Bar { name, class, value: value(m.seconds.median), quartiles: (a.min(b), a.max(b)), text }
}

fn fault(report: &Report, page: &mut String) {
    let list: Vec<Bar> = report
        .of(Section::Fault)
        .map(|m| {
            let size = if m.cell.step == Step::FaultMoves {
                format!(" {}", text::bytes(m.cell.granule))
            } else {
                String::new()
            };
            let name = format!("{}{size}, {}", m.cell.step.name(), m.cell.memory.name());
            bar(m, name, |seconds| seconds, text::time(m.seconds.median))
        })
        .collect();
    let plot = bars(&list, &[], "time (logarithmic)", "Latency of faults", Length::Logarithmic(text::time));
    section(
        page,
        "One access, with the fault it causes",
        &plot,
        "From a kernel&#8217;s launch to its end, or one read of the CPU.",
    );
}

fn pressure(report: &Report, page: &mut String) {
    let moved = report.of(Section::Pressure).filter(|m| m.cell.step != Step::Allocate);
    let list: Vec<Bar> = moved
        .map(|m| {
            let name = format!("{}, {}", m.cell.step.name(), m.cell.memory.name());
            bar(m, name, |seconds| m.bytes as f64 / seconds / 1e9, format!("{:.2} GB/s", rate(m)))
        })
        .collect();
    let plot = bars(&list, &[], "speed, GB/s", "Speed under pressure", Length::Linear);
    let mut see = String::from(
        "Buffer: how fast SVM memory makes room for one. Working sets: how fast a kernel reads them by page faults.",
    );
    for o in &report.oversubscription {
        let _ = write!(
            see,
            " {}: in {} passes {} evictions, {} bounces, {} migrations not made.",
            o.memory.name(),
            o.passes,
            o.evictions,
            o.bounces,
            o.damped
        );
    }
    section(page, "More than there is room for on the GPU", &plot, &see);
}
