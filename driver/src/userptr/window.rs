// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Windows: the interval notifiers of one userptr object.
//!
//! Thousands of notifiers make every invalidation of the process walk thousands of tree nodes, and
//! each costs a registration. So ranges that lie near each other share one. In the order of CPU
//! addresses, a gap above the threshold starts a new window. The threshold doubles until there are
//! at most [`MAX_WINDOWS`]. What the window's callback learns of the gaps it filters with the range
//! index. `PerRange` gives each range a notifier of its own, to compare with.
#![expect(clippy::indexing_slicing, reason = "there is a window for each range")]

use crate::base::addr::{CpuSpan, CpuVa};
use crate::base::errno::Result;
use crate::os::{Arc, Vec};
use crate::seams::address_space::{AddressSpace, Invalidate, Watch};
use crate::userptr::range_set::RangeSet;

/// At most so many windows a clustered object has.
pub const MAX_WINDOWS: usize = 64;

/// How ranges share notifiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowPolicy {
    /// A gap of more than `gap` bytes separates two windows.
    Clustered { gap: u64 },
    /// One notifier per range.
    PerRange,
}

impl Default for WindowPolicy {
    fn default() -> Self {
        Self::Clustered { gap: 512 << 20 }
    }
}

/// An object's notifiers. Dropping them waits for callbacks under way.
pub struct Windows {
    /// Clustered: by address, disjoint. Per range: in range order.
    watches: Vec<Arc<dyn Watch>>,
    per_range: bool,
}

impl Windows {
    /// Registers the notifiers of `ranges`; `client` learns of invalidations from the first one on.
    /// On failure none is left.
    pub fn new(
        mm: &dyn AddressSpace,
        ranges: &RangeSet,
        client: &Arc<dyn Invalidate>,
        policy: WindowPolicy,
    ) -> Result<Self> {
        let spans = match policy {
            WindowPolicy::PerRange => {
                let mut spans = Vec::with_capacity(ranges.len())?;
                for number in 0..ranges.len() {
                    spans.push(ranges.span(number))?;
                }
                spans
            }
            WindowPolicy::Clustered { mut gap } => loop {
                if let Some(spans) = cluster(ranges, gap)? {
                    break spans;
                }
                gap = gap.max(1 << 20).saturating_mul(2);
            },
        };
        let mut watches = Vec::with_capacity(spans.len())?;
        for span in spans.iter() {
            watches.push(mm.watch(*span, client.clone())?)?;
        }
        Ok(Self { watches, per_range: policy == WindowPolicy::PerRange })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// The watch that covers range `number`, which starts at `start`. O(log windows).
    pub fn of(&self, number: usize, start: CpuVa) -> &Arc<dyn Watch> {
        let at = if self.per_range {
            number
        } else {
            self.watches.partition_point(|w| w.span().start() <= start).saturating_sub(1)
        };
        &self.watches[at]
    }

    /// Whether [`of`](Self::of) range `number`, which starts at `start`, is `watch`, whose span is
    /// `span`.
    pub fn is_of(&self, watch: &dyn Watch, span: CpuSpan, number: usize, start: CpuVa) -> bool {
        if self.per_range {
            core::ptr::addr_eq(&raw const *self.watches[number], &raw const *watch)
        } else {
            // They are disjoint.
            span.contains(start)
        }
    }

    /// Bytes of driver memory held.
    pub fn memory(&self) -> u64 {
        self.watches.memory()
    }
}

/// The windows at this gap, unless there are too many.
fn cluster(ranges: &RangeSet, gap: u64) -> Result<Option<Vec<CpuSpan>>> {
    let mut spans: Vec<CpuSpan> = Vec::with_capacity(MAX_WINDOWS)?;
    let mut open: Option<CpuSpan> = None;
    for number in ranges.by_cpu() {
        let span = ranges.span(*number as usize);
        open = Some(match open {
            None => span,
            Some(w) if span.start().0.saturating_sub(w.end().0) <= gap => {
                CpuSpan::between(w.start(), w.end().max(span.end()))
            }
            Some(w) => {
                if !spans.push_reserved(w) {
                    return Ok(None);
                }
                span
            }
        });
    }
    Ok(match open {
        Some(w) if !spans.push_reserved(w) => None,
        _ => Some(spans),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::PAGE;
    use crate::userptr::range_set::Builder;

    fn ranges(starts: impl IntoIterator<Item = u64>) -> RangeSet {
        let mut b = Builder::new(4).unwrap();
        for start in starts {
            b.push(CpuVa(start), PAGE).unwrap();
        }
        b.build().unwrap()
    }

    #[test]
    fn gaps_above_the_threshold_split_and_order_does_not_matter() {
        let set = ranges([0x9000_0000, 0x1000, 0x3000, 0x9000_2000]);
        let spans = cluster(&set, 0x10_0000).unwrap().unwrap();
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[0], CpuSpan::between(CpuVa(0x1000), CpuVa(0x4000)));
        assert_eq!(spans[1], CpuSpan::between(CpuVa(0x9000_0000), CpuVa(0x9000_3000)));
    }

    #[test]
    fn a_long_range_covers_later_gaps() {
        let mut b = Builder::new(3).unwrap();
        b.push(CpuVa(0x1000), 0x100_0000).unwrap();
        b.push(CpuVa(0x2000), PAGE).unwrap();
        b.push(CpuVa(0x100_1000), PAGE).unwrap();
        assert_eq!(cluster(&b.build().unwrap(), 0).unwrap().unwrap().len(), 1);
    }

    #[test]
    fn there_are_never_more_than_the_limit() {
        let far = ranges((1..=1000u64).map(|i| i << 33));
        assert!(cluster(&far, 1 << 29).unwrap().is_none());
        let mut gap = 1u64 << 29;
        let spans = loop {
            if let Some(s) = cluster(&far, gap).unwrap() {
                break s;
            }
            gap *= 2;
        };
        assert!(spans.len() <= MAX_WINDOWS);
    }
}
