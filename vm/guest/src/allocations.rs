// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a module has left allocated after its unloading.
//!
//! Mechanism: the kernel counts allocations by the line of source that made them (/proc/allocinfo).
//! In the guest's kernel only the modules under test are written in Rust, and so all allocations of
//! the Rust helpers belong to them. Their C files' direct allocations are reported by the kernel
//! itself at unloading. Both are exact: there is no noise to filter.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use vkfd_guest::Record;

/// Sources whose allocations belong to the modules: the Rust abstractions, and what is made for a
/// device and its memory.
const SITES: [&str; 4] = ["rust/helpers/", "mm/memremap.c", "mm/hmm.c", "drivers/pci/msi/"];

/// Freeing after a grace period or in a worker may come later than the unloading.
const SETTLING: Duration = Duration::from_secs(15);

/// Bytes and calls by site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations(BTreeMap<String, (i64, i64)>);

impl Allocations {
    /// As they are now. A distribution's kernel does not count them: then there are none.
    pub fn now() -> io::Result<Self> {
        match fs::read_to_string("/proc/allocinfo") {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !counting() => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// A line is `BYTES CALLS FILE:LINE [MODULE] func:NAME`; sites inside of modules go with them.
    fn parse(text: &str) -> Self {
        let mut sites = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(bytes), Some(calls), Some(place)) = (words.next(), words.next(), words.next()) else { continue };
            let (Ok(bytes), Ok(calls)) = (bytes.parse(), calls.parse()) else { continue };
            if SITES.iter().any(|site| place.starts_with(site)) {
                let site: Vec<&str> = std::iter::once(place).chain(words).collect();
                sites.insert(site.join(" "), (bytes, calls));
            }
        }
        Self(sites)
    }

    /// What there is more of now than in `self`, after some time for it to vanish.
    pub fn left(&self) -> io::Result<Vec<Record>> {
        let deadline = Instant::now() + SETTLING;
        loop {
            let left = self.growth(&Self::now()?);
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn growth(&self, now: &Self) -> Vec<Record> {
        let grown = now.0.iter().filter_map(|(site, &(bytes, calls))| {
            let (bytes_before, calls_before) = self.0.get(site).copied().unwrap_or_default();
            (bytes > bytes_before || calls > calls_before).then(|| Record::Left {
                site: site.clone(),
                bytes: bytes - bytes_before,
                calls: calls - calls_before,
            })
        });
        grown.collect()
    }
}

/// Whether this is a kernel of the project's own, whose command line asks for two nodes.
fn counting() -> bool {
    fs::read_to_string("/proc/cmdline").is_ok_and(|words| words.contains("numa=fake=2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "allocinfo - version: 2.0\n\
        #     <size>  <calls> <tag info>\n\
        64        1 rust/helpers/slab.c:9 func:rust_helper_krealloc_node_align\n\
        4096      1 mm/slub.c:10 func:new_slab\n";

    #[test]
    fn what_grew_in_a_watched_source_is_left() {
        let after = BEFORE.replace("64        1 rust", "1088      3 rust").replace("4096", "8192");
        let left = Allocations::parse(BEFORE).growth(&Allocations::parse(&after));
        let site = "rust/helpers/slab.c:9 func:rust_helper_krealloc_node_align".to_string();
        assert_eq!(left, [Record::Left { site, bytes: 1024, calls: 2 }]);
    }

    #[test]
    fn a_site_that_is_new_is_left_and_an_equal_one_is_not() {
        let after = format!("{BEFORE}32 1 mm/hmm.c:7 func:hmm\n0 0 mm/hmm.c:8 func:hmm\n");
        assert_eq!(Allocations::parse(BEFORE).growth(&Allocations::parse(&after)).len(), 1);
        assert!(Allocations::parse(&after).growth(&Allocations::parse(BEFORE)).is_empty());
    }
}
