// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the pieces of a scatter list go in one mapping that stands for the guest's RAM.
//!
//! The mapping begins at the list's lowest address. If the list spans more than a budget, the gaps
//! between pieces are shortened to a common longest gap, the largest that fits. So pieces keep
//! their sizes, their order by address and their neighbours: what touched still touches, and what
//! was apart stays apart by at least a page.

use anyhow::{bail, Result};
use vkfd_client::PAGE;

use crate::format;
use crate::scatter::Scatter;

/// A list's layout.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Offsets of the pieces in the mapping, in the order of the list.
    pub offsets: Vec<u64>,
    /// Bytes of the mapping.
    pub span: u64,
    /// Bytes between the list's lowest and highest address.
    pub original_span: u64,
    /// The longest gap, if gaps were shortened to it.
    pub longest_gap: Option<u64>,
    /// How many gaps were shortened.
    pub shortened: u64,
}

impl Layout {
    /// Lays a list out within `budget` bytes of address space. O(n log n).
    ///
    /// # Errors
    ///
    /// When the pieces alone, a page apart where they do not touch, are more than that.
    pub fn new(list: &Scatter, budget: u64) -> Result<Self> {
        let mut order: Vec<usize> = (0..list.pieces.len()).collect();
        order.sort_by_key(|&i| list.pieces[i].start);
        // The gap before each piece, in the order of addresses.
        let mut gaps = Vec::with_capacity(order.len());
        let mut end = order.first().map_or(0, |&i| list.pieces[i].start);
        for &i in &order {
            let piece = list.pieces[i];
            gaps.push(piece.start.saturating_sub(end));
            end = piece.start + piece.bytes;
        }
        let bytes = list.bytes();
        let original_span = bytes + gaps.iter().sum::<u64>();
        let longest = if original_span <= budget { u64::MAX } else { longest_gap(&gaps, bytes, budget)? };
        let mut offsets = vec![0; order.len()];
        let mut at = 0;
        for (&i, gap) in order.iter().zip(&gaps) {
            at += gap.min(&longest);
            offsets[i] = at;
            at += list.pieces[i].bytes;
        }
        let shortened = gaps.iter().filter(|gap| **gap > longest).count();
        Ok(Self {
            offsets,
            span: at,
            original_span,
            longest_gap: (longest != u64::MAX).then_some(longest),
            shortened: u64::try_from(shortened).unwrap_or(u64::MAX),
        })
    }

    /// What was done, in words.
    pub fn describe(&self) -> String {
        let span = format::bytes(self.span);
        match self.longest_gap {
            None => format!("spread over {span} of addresses, exactly as in the guest"),
            Some(longest) => format!(
                "spread over {span} of addresses; in the guest it was {}: the {} longer than {} shortened to that, order and neighbours kept",
                format::bytes(self.original_span),
                if self.shortened == 1 { "one gap".to_owned() } else { format!("{} gaps", format::count(self.shortened)) },
                format::bytes(longest),
            ),
        }
    }
}

/// The largest whole number of pages such that no gap longer than it is needed to fit.
fn longest_gap(gaps: &[u64], bytes: u64, budget: u64) -> Result<u64> {
    let span = |pages: u64| gaps.iter().fold(bytes, |sum, gap| sum.saturating_add((*gap).min(pages * PAGE)));
    let (mut fits, mut too_long) = (1, budget / PAGE + 1);
    if span(fits) > budget {
        bail!(
            "the list has {} in ranges and needs at least {} of addresses, more than the {} allowed: see --span",
            format::bytes(bytes),
            format::bytes(span(fits)),
            format::bytes(budget)
        );
    }
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        if span(middle) <= budget {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    Ok(fits * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes, order by address, neighbours and the absence of overlaps have not changed.
    fn check(list: &Scatter, layout: &Layout) {
        let mut order: Vec<usize> = (0..list.pieces.len()).collect();
        order.sort_by_key(|&i| list.pieces[i].start);
        assert_eq!(layout.offsets[order[0]], 0);
        for pair in order.windows(2) {
            let [a, b] = [list.pieces[pair[0]], list.pieces[pair[1]]];
            let gap = b.start - (a.start + a.bytes);
            let [at, next] = [layout.offsets[pair[0]], layout.offsets[pair[1]]];
            assert!(at + a.bytes <= next, "overlap or reversed");
            let laid = next - (at + a.bytes);
            assert_eq!(laid == 0, gap == 0, "neighbours");
            assert!(laid <= gap && laid % PAGE == 0);
            assert_eq!(laid, gap.min(layout.longest_gap.unwrap_or(u64::MAX)));
        }
        let last = *order.last().unwrap();
        assert_eq!(layout.span, layout.offsets[last] + list.pieces[last].bytes);
    }

    #[test]
    fn built_in_lists_keep_their_shape_at_any_budget() {
        for list in Scatter::builtin().unwrap() {
            let whole = Layout::new(&list, u64::MAX).unwrap();
            assert!(whole.longest_gap.is_none() && whole.shortened == 0);
            assert_eq!(whole.span, whole.original_span);
            check(&list, &whole);
            for divisor in [2, 3, 5] {
                let budget = (whole.span / divisor).max(list.bytes() * 2);
                let layout = Layout::new(&list, budget).unwrap();
                assert!(layout.span <= budget);
                check(&list, &layout);
                assert_eq!(layout.shortened != 0, budget < whole.span, "{}", list.name);
            }
        }
    }

    #[test]
    fn the_longest_gap_is_the_largest_that_fits() {
        let list = Scatter::parse("l", "1000000 1000\n1000 1000\n2000 1000\n4000 1000").unwrap();
        // Four pages, a gap of one page and a long one: ten pages leave five for that.
        let layout = Layout::new(&list, 10 * PAGE).unwrap();
        check(&list, &layout);
        assert_eq!((layout.span, layout.longest_gap, layout.shortened), (10 * PAGE, Some(5 * PAGE), 1));
        let least = Layout::new(&list, 6 * PAGE).unwrap();
        check(&list, &least);
        assert_eq!(least.longest_gap, Some(PAGE));
        let error = Layout::new(&list, 5 * PAGE).unwrap_err().to_string();
        assert!(error.contains("16 KiB") && error.contains("24 KiB") && error.contains("20 KiB"), "{error}");
    }

    #[test]
    fn what_was_done_is_said() {
        let list = Scatter::parse("l", "1000 1000\n1000000 1000").unwrap();
        assert!(Layout::new(&list, u64::MAX).unwrap().describe().contains("exactly as in the guest"));
        let text = Layout::new(&list, 8 * PAGE).unwrap().describe();
        assert!(text.contains("32 KiB") && text.contains("the one gap longer than 24 KiB"), "{text}");
    }
}
