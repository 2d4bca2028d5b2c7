// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings for people.

use std::fmt::{self, Display, Write};

use crate::finding::{Address, Allocation, Finding, Place, Position, Thread};
use crate::list::{Counted, Findings};

/// All findings, and a closing line. Nothing at all where there is nothing to report.
#[must_use]
pub fn text(findings: &Findings) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(findings, &mut out);
    out
}

fn write(findings: &Findings, out: &mut String) -> fmt::Result {
    for counted in findings.list() {
        one(counted, out)?;
    }
    for (line, text) in findings.unused_suppressions() {
        writeln!(out, "suppression file, line {line}: nothing fits {text:?}")?;
    }
    let times: u64 = findings.list().iter().fold(0, |sum, counted| sum.saturating_add(counted.count));
    let (kept, suppressed, dropped) = (findings.list().len(), findings.suppressed(), findings.dropped());
    if kept == 0 && suppressed == 0 && dropped == 0 {
        return Ok(());
    }
    write!(out, "{}", number(kept as u64, "finding"))?;
    if times > kept as u64 {
        write!(out, ", {times} times in all")?;
    }
    if suppressed > 0 {
        write!(out, "; {suppressed} suppressed")?;
    }
    if dropped > 0 {
        write!(out, "; {dropped} more found no room in the list")?;
    }
    writeln!(out)
}

fn number(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn one(counted: &Counted, out: &mut String) -> fmt::Result {
    let Counted { finding, count } = counted;
    let Finding { rule, severity, message, place, thread, address, notes, .. } = finding;
    write!(out, "{}: {message} [{rule}]", severity.name())?;
    if *count > 1 {
        write!(out, " ({count} times)")?;
    }
    writeln!(out)?;
    lines(place, "  ", out)?;
    if let Some(thread) = thread {
        writeln!(out, "  by {}", Shown(thread))?;
    }
    if let Some(address) = address {
        writeln!(out, "  {}", Shown(address))?;
    }
    for note in notes {
        writeln!(out, "  {}", note.message)?;
        if let Some(place) = &note.place {
            lines(place, "    ", out)?;
        }
        if let Some(thread) = &note.thread {
            writeln!(out, "    by {}", Shown(thread))?;
        }
    }
    writeln!(out)
}

fn lines(place: &Place, indent: &str, out: &mut String) -> fmt::Result {
    write!(out, "{indent}at {:#x}", place.pc)?;
    match (&place.kernel, place.offset) {
        (Some(kernel), Some(offset)) => write!(out, " ({kernel} + {offset:#x})")?,
        (Some(kernel), None) => write!(out, " ({kernel})")?,
        _ => {}
    }
    match &place.instruction {
        Some(instruction) => writeln!(out, ": {instruction}")?,
        None => writeln!(out)?,
    }
    if let Some(source) = &place.source {
        writeln!(out, "{indent}in {source}")?;
    }
    match &place.object {
        Some(object) => writeln!(out, "{indent}of {object}"),
        None => Ok(()),
    }
}

/// A part of a finding, in words.
struct Shown<'a, T>(&'a T);

impl Display for Shown<'_, Thread> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thread { group: [x, y, z], wave, lane } = self.0;
        write!(f, "work-group ({x}, {y}, {z}), wave {wave}")?;
        lane.map_or(Ok(()), |lane| write!(f, ", lane {lane}"))
    }
}

impl Display for Shown<'_, Address> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { address, bytes, access, nearest } = self.0;
        write!(f, "{} of {} at {address:#x}", access.name(), number(u64::from(*bytes), "byte"))?;
        let Some(Allocation { address, bytes, name, position }) = nearest else { return Ok(()) };
        let (distance, where_) = match position {
            Position::Before(distance) => (*distance, "before"),
            Position::Inside(distance) => (*distance, "into"),
            Position::Behind(distance) => (*distance, "behind the end of"),
        };
        write!(f, ", {} {where_} {name} of {} at {address:#x}", number(distance, "byte"), number(*bytes, "byte"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Access, Check, Note, Severity, Source};
    use crate::list::Bounds;

    fn full() -> Finding {
        let place = Place {
            object: Some("a.co".to_string()),
            kernel: Some("sum".to_string()),
            pc: 0x1940,
            offset: Some(0x40),
            instruction: Some("global_store_dword v[0:1], v2, off".to_string()),
            source: Some(Source { file: "sum.hip".to_string(), line: 7, column: 0 }),
        };
        let message = "a write behind the end of an allocation".to_string();
        let mut finding = Finding::new(Check::Memory, "memory/bounds", Severity::Error, message, place);
        finding.thread = Some(Thread { group: [1, 0, 0], wave: 2, lane: Some(3) });
        let position = Position::Behind(0);
        let nearest = Some(Allocation { address: 0x1000, bytes: 400, name: "device memory".to_string(), position });
        finding.address = Some(Address { address: 0x1190, bytes: 4, access: Access::Write, nearest });
        finding.notes = vec![Note { message: "allocated by hipMalloc".to_string(), place: None, thread: None }];
        finding
    }

    #[test]
    fn a_finding_is_shown_with_all_its_facts() {
        let mut findings = Findings::default();
        findings.add_many(full(), 2);
        let expected = "\
error: a write behind the end of an allocation [memory/bounds] (2 times)
  at 0x1940 (sum + 0x40): global_store_dword v[0:1], v2, off
  in sum.hip:7
  of a.co
  by work-group (1, 0, 0), wave 2, lane 3
  write of 4 bytes at 0x1190, 0 bytes behind the end of device memory of 400 bytes at 0x1000
  allocated by hipMalloc

1 finding, 2 times in all
";
        assert_eq!(text(&findings), expected);
    }

    #[test]
    fn nothing_to_report_is_no_text() {
        assert_eq!(text(&Findings::default()), "");
    }

    #[test]
    fn what_is_not_shown_is_counted() {
        let suppressions = "kernel=sum\nkernel=nobody".parse().expect("two lines");
        let mut findings = Findings::new(Bounds { findings: 0, ..Bounds::default() }, Vec::new(), suppressions);
        findings.add(full());
        let mut other = full();
        other.place.kernel = None;
        findings.add(other);
        let expected = "suppression file, line 2: nothing fits \"kernel=nobody\"\n\
                        0 findings; 1 suppressed; 1 more found no room in the list\n";
        assert_eq!(text(&findings), expected);
    }
}
