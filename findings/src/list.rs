// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The bounded list of findings.
//!
//! Mechanism: a finding is kept once, by its [`Key`], and counted after that. When the list is
//! full, in findings or in bytes, others are counted all together. A dynamic check whose hot path
//! may find the same a million times asks [`Findings::count`] with a key first. It builds a finding
//! only when that does not know it.
//!
//! Limits: the order is that of arrival; renderers keep it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Key, Severity};
use crate::pattern::Pattern;
use crate::suppression::Suppressions;

/// How much a list may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Different findings.
    pub findings: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { findings: 1000, bytes: 4 << 20 }
    }
}

/// A finding and how often it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    #[serde(flatten)]
    pub finding: Finding,
    pub count: u64,
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new, and kept.
    New,
    /// It is there already, and counted.
    Again,
    /// It is of a kernel that was not asked for.
    Filtered,
    /// The suppression file accepts it.
    Suppressed,
    /// The list is full.
    Dropped,
}

/// Findings, each once.
#[derive(Debug, Default)]
pub struct Findings {
    bounds: Bounds,
    kernels: Vec<Pattern>,
    suppressions: Suppressions,
    list: Vec<Counted>,
    places: HashMap<Key, usize>,
    bytes: usize,
    suppressed: u64,
    dropped: u64,
}

impl Findings {
    /// An empty list.
    #[must_use]
    pub fn new(bounds: Bounds, kernels: Vec<Pattern>, suppressions: Suppressions) -> Findings {
        Findings { bounds, kernels, suppressions, ..Findings::default() }
    }

    /// Whether findings in a kernel are kept. One without a name is.
    #[must_use]
    pub fn wants(&self, kernel: Option<&str>) -> bool {
        let Some(kernel) = kernel else { return true };
        self.kernels.is_empty() || self.kernels.iter().any(|pattern| pattern.matches(kernel))
    }

    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) -> Outcome {
        self.add_many(finding, 1)
    }

    /// Adds a finding that was made `count` times.
    pub fn add_many(&mut self, finding: Finding, count: u64) -> Outcome {
        if !self.wants(finding.place.kernel.as_deref()) {
            return Outcome::Filtered;
        }
        let key = finding.key();
        if self.count(&key, count) {
            return Outcome::Again;
        }
        if self.suppressions.accept(&finding) {
            self.suppressed = self.suppressed.saturating_add(count);
            return Outcome::Suppressed;
        }
        let bytes = finding.bytes();
        if self.list.len() >= self.bounds.findings || self.bytes.saturating_add(bytes) > self.bounds.bytes {
            self.dropped = self.dropped.saturating_add(count);
            return Outcome::Dropped;
        }
        self.bytes += bytes;
        self.places.insert(key, self.list.len());
        self.list.push(Counted { finding, count });
        Outcome::New
    }

    /// Counts a finding that is there already. `false`: it is not there.
    pub fn count(&mut self, key: &Key, count: u64) -> bool {
        let Some(&at) = self.places.get(key) else { return false };
        let counted = &mut self.list[at].count;
        *counted = counted.saturating_add(count);
        true
    }

    /// The findings that are kept, in the order in which they came.
    #[must_use]
    pub fn list(&self) -> &[Counted] {
        &self.list
    }

    /// How many were suppressed, each time counted.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// How many found no room, each time counted.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.list.is_empty() && self.dropped == 0
    }

    /// The worst of those that are kept.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.list.iter().map(|counted| counted.finding.severity).max()
    }

    /// Lines of the suppression file that accepted nothing: their numbers and texts.
    #[must_use]
    pub fn unused_suppressions(&self) -> Vec<(usize, &str)> {
        self.suppressions.unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Check, Note, Place};

    fn finding(kernel: &str, pc: u64) -> Finding {
        let place = Place { kernel: Some(kernel.to_string()), pc, ..Place::default() };
        Finding::new(Check::Waits, "waits/vmcnt", Severity::Error, "a text".to_string(), place)
    }

    #[test]
    fn the_same_finding_is_counted() {
        let mut findings = Findings::default();
        assert_eq!(findings.add(finding("a", 8)), Outcome::New);
        assert_eq!(findings.add(finding("a", 8)), Outcome::Again);
        assert_eq!(findings.add(finding("b", 8)), Outcome::New);
        assert!(findings.count(&finding("b", 8).key(), 5));
        assert!(!findings.count(&finding("b", 12).key(), 5));
        let counts: Vec<u64> = findings.list().iter().map(|counted| counted.count).collect();
        assert_eq!(counts, [2, 6]);
        assert!(!findings.is_clean());
        assert_eq!(findings.worst(), Some(Severity::Error));
    }

    #[test]
    fn another_partner_makes_another_finding() {
        let mut findings = Findings::default();
        let with = |pc| {
            let place = Some(Place { pc, ..Place::default() });
            Finding { notes: vec![Note { message: String::new(), place, thread: None }], ..finding("a", 8) }
        };
        assert_eq!(findings.add(with(4)), Outcome::New);
        assert_eq!(findings.add(with(16)), Outcome::New);
        assert_eq!(findings.add(with(4)), Outcome::Again);
    }

    #[test]
    fn a_full_list_counts_the_rest() {
        let bounds = Bounds { findings: 2, bytes: 1 << 20 };
        let mut findings = Findings::new(bounds, Vec::new(), Suppressions::default());
        let outcomes: Vec<Outcome> = [0, 4, 8, 4, 12].map(|pc| findings.add(finding("a", pc))).to_vec();
        assert_eq!(outcomes, [Outcome::New, Outcome::New, Outcome::Dropped, Outcome::Again, Outcome::Dropped]);
        assert_eq!((findings.list().len(), findings.dropped()), (2, 2));
    }

    #[test]
    fn bytes_are_bounded() {
        let bounds = Bounds { findings: usize::MAX, bytes: 64 << 10 };
        let mut findings = Findings::new(bounds, Vec::new(), Suppressions::default());
        for pc in 0..10_000 {
            let mut finding = finding("a", pc);
            finding.message = "x".repeat(1000);
            findings.add(finding);
        }
        let kept: usize = findings.list().iter().map(|counted| counted.finding.bytes()).sum();
        assert!(kept <= bounds.bytes && kept > bounds.bytes / 2, "{kept}");
        assert_eq!(findings.dropped(), 10_000 - findings.list().len() as u64);
    }

    #[test]
    fn only_wanted_kernels_are_kept() {
        let kernels = vec![Pattern::new("*gemm*"), Pattern::new("copy")];
        let mut findings = Findings::new(Bounds::default(), kernels, Suppressions::default());
        assert_eq!(findings.add(finding("my_gemm_f32", 0)), Outcome::New);
        assert_eq!(findings.add(finding("copy", 0)), Outcome::New);
        assert_eq!(findings.add(finding("copy2", 0)), Outcome::Filtered);
        assert!(findings.wants(None));
    }

    #[test]
    fn accepted_findings_are_counted_and_not_kept() {
        let suppressions: Suppressions = "kernel=a\nkernel=z\n".parse().expect("two lines");
        let mut findings = Findings::new(Bounds::default(), Vec::new(), suppressions);
        assert_eq!(findings.add(finding("a", 0)), Outcome::Suppressed);
        assert_eq!(findings.add(finding("b", 0)), Outcome::New);
        assert_eq!((findings.suppressed(), findings.list().len()), (1, 1));
        assert_eq!(findings.unused_suppressions(), [(2, "kernel=z")]);
    }
}
