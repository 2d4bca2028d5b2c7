// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report as a page.

use super::cell::{Cell, Pass, Stage, Way};
use super::report::Report;
use super::text::{buffer, published};
use crate::page::{head, left_out, section, targets};
use crate::plot::{bars, escape, lines, Axis, Bar, Length, Point, Series};
use crate::text;

const INTRODUCTION: &str = "<p>A virtual machine&#8217;s buffer is one range to the guest and thousands of pieces to the host, \
    whose driver has to make one range of the GPU of them. <b>batch</b> is one call for all pieces; <b>one call per range</b> is what there \
    was before; <b>mremap</b> moves the pieces into one range first. The device of <code>vkfd virtio-gpu</code> and its guests ran in one \
    process, without a virtual machine. Times are of the processor.</p>";

/// What is on it.
pub fn render(report: &Report) -> String {
    let mut page = String::from(INTRODUCTION);
    head(&report.head, &mut page);
    targets(&report.head, &mut page);
    percents(report, Pass::Kernel, &mut page);
    percents(report, Pass::Copy, &mut page);
    stages(report, &mut page);
    registrations(report, &mut page);
    left_out(&report.head, &mut page);
    page
}

fn colour(way: Way) -> usize {
    match way {
        Way::NotScattered => 0,
        Way::PerRange => 1,
        Way::Batch => 2,
        Way::Local => 4,
        Way::Mremap => 6,
    }
}

const PIECES: Axis<'_> = Axis {
    title: "pieces of 4 KiB",
    tick: |v| format!("{v:.0}").parse::<u64>().map_or(String::new(), text::count),
    binary: true,
};

/// A line of the table, with a cell for each size.
fn line(
    report: &Report,
    name: &str,
    class: usize,
    of: impl Fn(u64) -> Option<crate::spread::Spread>,
) -> Option<Series> {
    let point = |pages: u64| of(pages).map(|s| Point { x: pages as f64, y: s.median, quartiles: (s.q1, s.q3) });
    let points: Vec<Point> = report.sizes().into_iter().filter_map(point).collect();
    (!points.is_empty()).then(|| Series { name: name.to_owned(), class, points })
}

fn percents(report: &Report, pass: Pass, page: &mut String) {
    let of = |way: Way| line(report, way.name(), colour(way), |pages| report.job(pages, way, pass));
    let mut list: Vec<Series> = Way::SCATTERED.into_iter().filter_map(of).collect();
    let (title, see) = match pass {
        Pass::Kernel => ("The whole job, with a kernel that adds all words up", escape(&published(report))),
        _ => {
            let plain = |pages| report.job(pages, Way::Batch, Pass::Processor);
            list.extend(line(report, Pass::Processor.name(), 5, plain));
            let see =
                "A plain copy by the processor has no registration and no GPU: what it loses on scattered memory, the \
                memory itself takes of every long copy. Short jobs are mostly the time of threads that wake up.";
            ("The whole job, with a copy by SDMA", see.to_owned())
        }
    };
    let y = Axis { title: "percent: the same in one piece is 100", tick: text::number, binary: false };
    section(page, title, &lines(&list, &PIECES, &y, title), &see);
}

fn stages(report: &Report, page: &mut String) {
    // The largest that every way has done, or that there is.
    let done = |pages: &u64| Way::SCATTERED.iter().all(|way| report.job(*pages, *way, Pass::Kernel).is_some());
    let sizes = report.sizes();
    let Some(pages) = sizes.iter().copied().filter(done).max().or(sizes.last().copied()) else { return };
    let mut list = Vec::new();
    for stage in Stage::PARTS {
        for way in Way::ALL {
            let cell = Cell { way, pass: Some(Pass::Kernel), stage };
            let Some(spread) = report.time(pages, cell).filter(|spread| spread.median > 0.0) else { continue };
            list.push(Bar {
                name: format!("{}, {}", stage.name(), way.name()),
                class: colour(way),
                value: spread.median,
                quartiles: (spread.q1, spread.q3),
                text: text::time(spread.median),
            });
        }
    }
    let plot = bars(&list, &[], "processor time (logarithmic)", "Stages of the job", Length::Logarithmic(text::time));
    let see = format!("A buffer of {}. The pass is the kernel.", escape(&buffer(pages)));
    section(page, "Where the time goes", &plot, &see);
}

fn registrations(report: &Report, page: &mut String) {
    let time = |way: Way, pass| {
        let of = move |pages| report.time(pages, Cell { way, pass, stage: Stage::Register });
        line(report, way.name(), colour(way), of)
    };
    let guests = Way::ALL.into_iter().filter_map(|way| time(way, Some(Pass::Kernel)));
    let list: Vec<Series> = guests.chain(time(Way::Local, None)).collect();
    let y = Axis { title: "processor time", tick: text::time, binary: false };
    section(
        page,
        "Registration alone",
        &lines(&list, &PIECES, &y, "Processor time of registrations"),
        "What a guest&#8217;s registration costs the host beside the same list registered by a client of the same driver that is no guest.",
    );
}
