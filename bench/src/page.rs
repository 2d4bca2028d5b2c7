// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report as one self-contained HTML page: no scripts, nothing from elsewhere, light and dark.

use std::fmt::Write;

use crate::baseline::{Change, Comparison};
use crate::plot::{bars, escape, lines, Axis, Bar, Length, Mark, Point, Series};
use crate::report::{Head, Measurement, Report, Section};
use crate::spread::Spread;
use crate::subject::{Operation, Subject};
use crate::text;

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1f23;--dim:#5c6670;--grid:#e3e7eb;--good:#1a7f37;--bad:#b42318;--mark:#0000000f;
--s0:#6b7480;--s1:#c2410c;--s2:#0b62c4;--s3:#7c3aed;--s4:#0f766e;--s5:#a16207;--s6:#be185d;--s7:#4d7c0f;--s8:#9f1239}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e8ea;--dim:#9aa4ae;--grid:#2b3138;--good:#4cc26a;--bad:#ff7b6b;--mark:#ffffff14;
--s0:#a3adb8;--s1:#fb923c;--s2:#60a5fa;--s3:#b794f6;--s4:#2dd4bf;--s5:#eab308;--s6:#f472b6;--s7:#a3e635;--s8:#fda4af}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.4rem 0 .3rem}p{margin:.4rem 0}.dim{color:var(--dim);font-size:.92rem}
table{border-collapse:collapse;width:100%;font-size:.9rem;margin:.6rem 0}th,td{padding:.3rem .6rem;border-bottom:1px solid var(--grid);text-align:left;
vertical-align:top}th{color:var(--dim);font-weight:500}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.met{color:var(--good)}.missed{color:var(--bad);font-weight:600}
.wide{overflow-x:auto;margin:.4rem 0}svg{width:100%;min-width:36rem;height:auto;display:block}.doubt{border-left:3px solid var(--bad);padding:.1rem .8rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0;font-size:.92rem}dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:34rem){body{margin:1rem auto;font-size:15px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.3rem}h1{font-size:1.35rem}td.n,th.n{white-space:normal}td:first-child{min-width:9rem}
.targets tr{display:grid;grid-template-columns:auto 1fr;padding:.5rem 0;border-bottom:1px solid var(--grid)}.targets tr:first-child{display:none}
.targets td{border:0;padding:.1rem 0}.targets td:nth-child(-n+2){grid-column:1/3}.targets td:nth-child(2){order:-1}}
svg .dot:hover,svg .bar:hover{opacity:.7}
svg text{font-family:system-ui,sans-serif;font-size:12.5px;fill:var(--fg)}
svg .tick{fill:var(--dim)}svg .axis{fill:var(--dim)}svg .value{font-weight:500}.grid{stroke:var(--grid)}.zero{stroke:var(--dim)}
.line{fill:none;stroke-width:2}.thin{stroke-width:1.2}.lead{stroke-width:1;stroke-dasharray:2 3;opacity:.6}.mark{fill:var(--mark)}
.whisker{stroke:var(--fg);stroke-width:1.4;opacity:.65}
.c0{stroke:var(--s0)}.c1{stroke:var(--s1)}.c2{stroke:var(--s2)}.c3{stroke:var(--s3)}.c4{stroke:var(--s4)}.c5{stroke:var(--s5)}.c6{stroke:var(--s6)}.c7{stroke:var(--s7)}.c8{stroke:var(--s8)}
.dot.c0,.f0{fill:var(--s0)}.dot.c1,.f1{fill:var(--s1)}.dot.c2,.f2{fill:var(--s2)}.dot.c3,.f3{fill:var(--s3)}.dot.c4,.f4{fill:var(--s4)}
.dot.c5,.f5{fill:var(--s5)}.dot.c6,.f6{fill:var(--s6)}.dot.c7,.f7{fill:var(--s7)}.dot.c8,.f8{fill:var(--s8)}svg .t0{fill:var(--s0)}svg .t1{fill:var(--s1)}svg .t2{fill:var(--s2)}svg .t3{fill:var(--s3)}
svg .t4{fill:var(--s4)}svg .t5{fill:var(--s5)}svg .t6{fill:var(--s6)}svg .t7{fill:var(--s7)}svg .t8{fill:var(--s8)}
";

/// A subject's colour, the same in all plots.
fn colour(subject: Subject) -> usize {
    match subject {
        Subject::Contiguous
        | Subject::ContiguousAgain
        | Subject::FaultContiguous
        | Subject::MemcpyContiguous
        | Subject::Unregistered => 0,
        Subject::Multi => 1,
        Subject::Batch => 2,
        Subject::BatchPerRange | Subject::FaultBare => 3,
        Subject::IoUring => 4,
        Subject::Memcpy => 5,
        Subject::Mremap => 6,
        Subject::Fault => 7,
        Subject::Pin => 8,
    }
}

fn plain(value: f64) -> String {
    if value < 1.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    digits.parse::<u64>().map_or(digits, text::count)
}

const RANGES: Axis<'_> = Axis { title: "ranges", tick: plain, binary: false };

/// A whole page.
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>{body}\
         </body></html>\n"
    )
}

/// The report's page, without the parts of every page.
pub fn render(report: &Report) -> String {
    let mut page = String::from(INTRODUCTION);
    head(&report.head, &mut page);
    targets(&report.head, &mut page);
    score(report, &mut page);
    sweep(report, &mut page);
    sizes(report, &mut page);
    restore(report, &mut page);
    invalidate(report, &mut page);
    copies(report, &mut page);
    kernels(report, &mut page);
    memory(report, &mut page);
    left_out(&report.head, &mut page);
    page
}

/// A section with a plot and what is to be seen in it.
pub fn section(page: &mut String, title: &str, plot: &str, see: &str) {
    let _ = write!(page, "<h2>{}</h2><div class=\"wide\">{plot}</div><p>{see}</p>", escape(title));
}

const INTRODUCTION: &str =
    "<p>A program has a buffer in thousands of pieces of its memory, and a GPU is to see it as one contiguous range. \
     <b>batch</b> registers all pieces in one call; <b>multi</b> is one call per piece; <b>contiguous</b> is a buffer of the same \
     size in one piece, the best that can be reached.</p>";

/// The run, the computer, and whether its times are to be trusted.
pub fn head(head: &Head, page: &mut String) {
    let host = &head.host;
    let rows = [
        ("date", head.date.clone()),
        ("command", head.parameters.command.clone()),
        ("version", format!("vkfd {}", head.version)),
        ("machine", format!("{}, {} processors, {} of memory", host.cpu, host.cores, text::bytes(host.memory_bytes))),
        ("kernel", format!("Linux {}, transparent huge pages: {}", host.kernel, host.transparent_huge_pages)),
        ("notifications", format!("{}: how the driver learned that mappings changed", host.notification_source)),
        ("load at the start", format!("{:.1} (runnable threads, averaged over a minute)", host.load)),
        (
            "samples",
            format!(
                "up to {} of each, taken in turns; {:.0} s in all",
                head.parameters.rounds, head.parameters.took_seconds
            ),
        ),
    ];
    page.push_str("<dl>");
    for (name, value) in rows {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>");
    if let Some(doubt) = head.doubt() {
        let _ = write!(page, "<p class=\"doubt\">{}</p>", escape(&doubt));
    }
    page.push_str(
        "<p class=\"dim\">Points and bars are medians, whiskers the quartiles. Point at one to see its values. With any notifications but the \
         kernel&#8217;s, the driver and a software GPU ran in this one process.</p>",
    );
}

/// The targets.
pub fn targets(head: &Head, page: &mut String) {
    let met = head.targets.iter().filter(|goal| goal.met).count();
    let _ = write!(
        page,
        "<h2>Targets: {met} of {} met</h2><div class=\"wide\"><table class=\"targets\"><tr><th></th><th>Target</th><th class=\"n\">Bound</th>",
        head.targets.len()
    );
    // The verdict first: on a phone the end of a row is out of sight until it is scrolled to.
    page.push_str("<th class=\"n\">Measured (quartiles)</th></tr>");
    for goal in &head.targets {
        let measured = goal.measured.map_or_else(|| "not measured".to_owned(), text::spread);
        let (class, word) = (if goal.met { "met" } else { "missed" }, text::verdict(head, goal).to_lowercase());
        let _ = write!(
            page,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{measured}</td></tr>",
            escape(goal.what),
            goal.bound.text()
        );
    }
    page.push_str("</table></div><p class=\"dim\">Each is a ratio of two things measured in the same rounds, or of the driver's own counts.</p>");
    if let Some(comparison) = &head.comparison {
        compare(comparison, page);
    }
}

/// What has changed since an earlier run.
fn compare(comparison: &Comparison, page: &mut String) {
    let _ = write!(page, "<h2>Compared with {} of {}</h2>", escape(&comparison.file), escape(&comparison.date));
    for difference in &comparison.differences {
        let _ = write!(page, "<p class=\"doubt\">The two runs differ: {}</p>", escape(difference));
    }
    let mut table = |changes: &[Change], show: fn(Spread) -> String| {
        page.push_str("<div class=\"wide\"><table><tr><th></th><th class=\"n\">then</th><th class=\"n\">now</th><th class=\"n\">ratio</th><th></th></tr>");
        for change in changes {
            let _ = write!(
                page,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
                escape(&change.what),
                show(change.before),
                show(change.now),
                text::number(change.ratio),
                if change.apart { "apart" } else { "" }
            );
        }
        page.push_str("</table></div>");
    };
    table(&comparison.targets, text::spread);
    if !comparison.measurements.is_empty() {
        table(&comparison.measurements, |spread| text::number_with_power(spread.median));
    }
    let _ = write!(page, "<p>{} Times are in seconds.</p>", text::apart(comparison));
}

fn score(report: &Report, page: &mut String) {
    let list: Vec<Bar> = report
        .scores
        .iter()
        .map(|(subject, score)| Bar {
            name: subject.name().to_owned(),
            class: colour(*subject),
            value: score.median,
            quartiles: (score.q1, score.q3),
            text: text::number(score.median),
        })
        .collect();
    let marks = [
        Mark { from: 40.0, to: 40.0, name: "40: reported for multi" },
        Mark { from: 80.0, to: 95.0, name: "80 to 95: reported for batch" },
    ];
    let plot =
        bars(&list, &marks, "score of the whole job, contiguous = 100", "Score of the whole job", Length::Linear);
    section(
        page,
        "Score of the whole job",
        &plot,
        "4,096 ranges of 64 KiB: register, compute, invalidate 1%, compute, free. The longer the bar, the less is lost to scatter. The shaded \
         marks are what the authors of AMD&#8217;s patch series reported of real GPUs. More than 100 is possible: a contiguous registration is one range, so the \
         driver revalidates all of it where batch revalidates 1%.",
    );
}

fn point(m: &Measurement, x: f64, scale: f64) -> Point {
    Point { x, y: m.seconds.median * scale, quartiles: (m.seconds.q1 * scale, m.seconds.q3 * scale) }
}

/// A line for each subject that has points, x rising.
fn series<'a>(
    subjects: &[Subject],
    found: impl Fn(Subject) -> Vec<&'a Measurement>,
    at: impl Fn(&Measurement) -> (f64, f64),
) -> Vec<Series> {
    let line = |subject: &Subject| {
        let mut points: Vec<Point> = found(*subject).into_iter().map(|m| point(m, at(m).0, at(m).1)).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { name: subject.name().to_owned(), class: colour(*subject), points }
    };
    subjects.iter().map(line).filter(|series| !series.points.is_empty()).collect()
}

fn sweep(report: &Report, page: &mut String) {
    let small = |m: &&Measurement| m.label.is_none() && m.bytes == m.ranges as u64 * vkfd_client::PAGE;
    let found = |subject: Subject| {
        report
            .of(Section::Sweep)
            .filter(small)
            .filter(|m| m.subject == subject && m.operation == Operation::Lifetime)
            .collect::<Vec<_>>()
    };
    let a_range = |m: &Measurement| (m.ranges as f64, 1.0 / m.ranges as f64);
    let list = series(&Subject::STRATEGIES, found, a_range);
    let y = Axis { title: "register + map + free, time per range", tick: text::time, binary: false };
    let plot = lines(&list, &RANGES, &y, "Cost per range against the number of ranges");
    section(
        page,
        "Cost per range, against the number of ranges",
        &plot,
        "Ranges of 4 KiB, both axes logarithmic. A line that falls and then stays flat means that the total cost is linear. Batch stays at a small multiple of \
         contiguous. One call per range, or one notifier per range, costs the same again for each range.",
    );
    let all: Vec<Subject> = [Subject::Multi, Subject::Batch].into_iter().chain(Subject::PEERS).collect();
    let found = |subject: Subject| {
        let operation = if Subject::PEERS.contains(&subject) { Operation::Register } else { Operation::Lifetime };
        let of =
            report.of(Section::Sweep).filter(small).filter(move |m| m.subject == subject && m.operation == operation);
        of.collect::<Vec<_>>()
    };
    let list = series(&all, found, |m| (m.ranges as f64, 1.0));
    let y = Axis { title: "time for all ranges", tick: text::time, binary: false };
    let plot = lines(&list, &RANGES, &y, "Batch and its peers");
    section(
        page,
        "Compared with other ways to hand over scattered memory",
        &plot,
        "The same ranges of 4 KiB, time of the whole call. io_uring pins its pages and gives no contiguous view. memcpy is one copy in, and the copy is stale \
         when the memory changes. mremap is only the moving in, and ends where its mappings reach the kernel&#8217;s limit. multi and batch are register, \
         map and free.",
    );
}

fn sizes(report: &Report, page: &mut String) {
    let mut rows: Vec<(u64, usize, &str)> = report
        .of(Section::Sweep)
        .filter(|m| crate::list::RECORDED.iter().any(|(name, _)| m.label.as_deref() == Some(name)))
        .filter_map(|m| m.label.as_deref().map(|label| (m.bytes, m.ranges, label)))
        .collect();
    rows.sort_unstable();
    rows.dedup();
    if rows.is_empty() {
        return;
    }
    page.push_str("<h2>Buffers as real guests have them</h2><div class=\"wide\"><table><tr><th>Recorded list</th><th class=\"n\">ranges</th><th class=\"n\">size</th>");
    let subjects = [Subject::Contiguous, Subject::Multi, Subject::Batch, Subject::BatchPerRange];
    for subject in subjects {
        let _ = write!(page, "<th class=\"n\">{}</th>", subject.name());
    }
    page.push_str("</tr>");
    for (bytes, ranges, label) in rows {
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
            escape(label),
            text::count(ranges),
            text::bytes(bytes)
        );
        for subject in subjects {
            let found = report.of(Section::Sweep).find(|m| {
                m.label.as_deref() == Some(label) && m.subject == subject && m.operation == Operation::Lifetime
            });
            let time = found.map_or_else(|| "-".to_owned(), |m| text::time(m.seconds.median));
            let _ = write!(page, "<td class=\"n\">{time}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div><p>Register, map and free of buffers laid out as they were found in guests of a virtual machine. The more pieces, the \
                   more there is to gain.</p>");
}

fn restore(report: &Report, page: &mut String) {
    let n =
        report.of(Section::Restore).filter(|m| m.subject == Subject::Contiguous).map(|m| m.ranges).next().unwrap_or(0);
    let found = |subject: Subject| {
        report.of(Section::Restore).filter(|m| m.subject == subject && m.ranges == n).collect::<Vec<_>>()
    };
    let list = series(&[Subject::Contiguous, Subject::Batch], found, |m| (m.touched.unwrap_or(0) as f64, 1.0));
    let x = Axis { title: "k: ranges (pages) invalidated", tick: plain, binary: false };
    let y = Axis { title: "until the queues run again", tick: text::time, binary: false };
    let plot = lines(&list, &x, &y, "Restore against k");
    let of: Vec<String> = report
        .of(Section::Restore)
        .filter(|m| m.subject == Subject::Batch && m.touched == Some(256))
        .map(|m| format!("{} of {}", text::time(m.seconds.median), text::count(m.ranges)))
        .collect();
    let see = format!(
        "{} ranges of 4 KiB are registered, k of them lose their pages. Batch faults in only those k, on top of the driver&#8217;s fixed pause of 1 ms; \
         a contiguous registration is one range and faults in everything. The cost follows k, not n. 256 ranges take: {}.",
        text::count(n),
        of.join(", ")
    );
    section(page, "Restoring k ranges", &plot, &see);
}

fn invalidate(report: &Report, page: &mut String) {
    let found = |subject: Subject| report.of(Section::Invalidate).filter(|m| m.subject == subject).collect::<Vec<_>>();
    let subjects = [Subject::Multi, Subject::Batch, Subject::BatchPerRange];
    let list = series(&subjects, found, |m| (m.ranges as f64, 1.0));
    let y = Axis { title: "the madvise call", tick: text::time, binary: false };
    let plot = lines(&list, &RANGES, &y, "Invalidating one page");
    let bare = report.of(Section::Invalidate).find(|m| m.subject == Subject::Unregistered);
    let bare = bare
        .map_or_else(String::new, |m| format!(" On unregistered memory it takes {}.", text::time(m.seconds.median)));
    let see = format!(
        "One page is discarded with MADV_DONTNEED while the ranges are registered and mapped. A flat line means that finding the range costs next to \
         nothing. What remains is the notification, and stopping the queues.{bare}"
    );
    section(page, "Invalidating one page", &plot, &see);
}

fn copies(report: &Report, page: &mut String) {
    let of = |operation: Operation| report.of(Section::Copies).filter(move |m| m.operation == operation);
    let mut list = Vec::new();
    for operation in [Operation::CopyOut, Operation::CopyIn] {
        for m in of(operation) {
            let rate = |seconds: f64| m.bytes as f64 / seconds / 1e9;
            let who = if Subject::STRATEGIES.contains(&m.subject) { "SDMA, " } else { "" };
            let name = if m.subject == Subject::Memcpy { "memcpy" } else { m.subject.name() };
            let way = if operation == Operation::CopyOut { "out" } else { "in" };
            list.push(Bar {
                name: format!("{who}{name}, {way}"),
                class: colour(m.subject),
                value: rate(m.seconds.median),
                quartiles: (rate(m.seconds.q3), rate(m.seconds.q1)),
                text: format!("{:.1} GB/s", rate(m.seconds.median)),
            });
        }
    }
    let plot = bars(&list, &[], "speed, GB/s", "Speed of copies", Length::Linear);
    section(
        page,
        "Copies",
        &plot,
        "10,000 scattered ranges of 16 KiB to a contiguous buffer (out) and back (in): by the software GPU&#8217;s copy engine through its page tables, and by \
         memcpy, which is the limit.",
    );
}

fn kernels(report: &Report, page: &mut String) {
    let batch = report.of(Section::Kernels).filter(|m| m.subject == Subject::Batch);
    let list: Vec<Bar> = batch
        .filter_map(|m| {
            let by = m.relative_to_contiguous?;
            let name = m.label.clone().unwrap_or_default();
            let text = format!("{:.2}", by.median);
            Some(Bar { name, class: colour(Subject::Batch), value: by.median, quartiles: (by.q1, by.q3), text })
        })
        .collect();
    let marks = [Mark { from: 1.0, to: 1.0, name: "1: contiguous" }];
    let plot = bars(&list, &marks, "time relative to contiguous", "Kernels", Length::Linear);
    let doubt = report.doubt(Section::Kernels);
    let doubt = doubt.map_or_else(String::new, |why| format!("</p><p class=\"doubt\">{}", escape(why)));
    let see = format!(
        "The client library&#8217;s kernels over a batch, relative to the same kernels over contiguous memory: what scatter costs once everything is \
         mapped. One queue runs all of them.{doubt}"
    );
    section(page, "Kernels", &plot, &see);
}

fn memory(report: &Report, page: &mut String) {
    page.push_str("<h2>Driver memory</h2><div class=\"wide\"><table><tr><th class=\"n\">ranges</th><th class=\"n\">pages</th><th class=\"n\">held</th>");
    page.push_str("<th class=\"n\">64 B per range + 16 B per page</th></tr>");
    for f in &report.footprints {
        let pages = usize::try_from(f.pages).unwrap_or(0);
        let _ = write!(
            page,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            text::count(f.ranges),
            text::count(pages),
            text::bytes(f.driver_bytes),
            text::bytes(f.allowed_bytes)
        );
    }
    page.push_str("</table></div><p>What the driver holds for a registered and mapped buffer by its own count, without page tables, and the limit that it keeps.</p>");
}

/// What was left out.
pub fn left_out(head: &Head, page: &mut String) {
    if head.left_out.is_empty() {
        return;
    }
    page.push_str("<h2>Left out</h2><div class=\"wide\"><table><tr><th>What</th><th>Why</th></tr>");
    for (what, why) in head.left_out_by_reason() {
        let _ = write!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(&what), escape(why));
    }
    page.push_str("</table></div>");
}
