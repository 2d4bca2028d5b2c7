// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `/proc/self/maps`: which mappings there are, for error paths and for registering piece by piece.

use std::fs::File;
use std::io::{BufRead, BufReader};
use vkfd_driver::base::addr::{CpuSpan, CpuVa};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::Access;

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) span: CpuSpan,
    read: bool,
    write: bool,
}

impl Mapping {
    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.as_bytes();
        let address = |hex| u64::from_str_radix(hex, 16).ok().map(CpuVa);
        Some(Self {
            span: CpuSpan::between(address(start)?, address(end)?),
            read: permissions.first() == Some(&b'r'),
            write: permissions.get(1) == Some(&b'w'),
        })
    }
}

/// The mappings that share a byte with `span`, in order, cut to it. Empty when /proc cannot be
/// read.
pub(crate) fn within(span: CpuSpan) -> Vec<Mapping> {
    known_within(span).unwrap_or_default()
}

/// The same; `None` when /proc cannot be read. O(mappings of the process).
fn known_within(span: CpuSpan) -> Option<Vec<Mapping>> {
    let file = File::open("/proc/self/maps").ok()?;
    let mappings = BufReader::with_capacity(1 << 16, file)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| Mapping::parse(&line))
        .skip_while(|m| m.span.end() <= span.start())
        .take_while(|m| m.span.start() < span.end())
        .map(|m| Mapping {
            span: CpuSpan::between(m.span.start().max(span.start()), m.span.end().min(span.end())),
            ..m
        })
        .collect();
    Some(mappings)
}

/// How many bytes from the beginning of `span` on no `access` can reach: those before the first
/// mapping that allows it. 0 when /proc cannot be read.
pub(crate) fn out_of_reach(span: CpuSpan, access: Access) -> u64 {
    let Some(mappings) = known_within(span) else { return 0 };
    let allowed = mappings.iter().find(|mapping| mapping.allows(access));
    allowed.map_or(span.bytes(), |mapping| mapping.span.start().0 - span.start().0)
}

/// Why `span` cannot be accessed, going by its mappings: EFAULT for a hole, EPERM for a missing
/// permission. `None` when the mappings are all there and allow it.
pub(crate) fn refusal(span: CpuSpan, access: Access) -> Option<Errno> {
    let mut at = span.start();
    let mut denied = None;
    for mapping in within(span) {
        if mapping.span.start() != at {
            return Some(Errno::EFAULT);
        }
        if !mapping.allows(access) {
            denied = Some(Errno::EPERM);
        }
        at = mapping.span.end();
    }
    if at < span.end() {
        return Some(Errno::EFAULT);
    }
    denied
}
