// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is measured, and how much of it.

use std::time::Duration;

use anyhow::Result;

use crate::arena::{Arena, Pages};
use crate::list;

/// Ranges and bytes per range of the main comparison.
pub const MAIN: (usize, u64) = (4096, 64 << 10);
/// The two ends of the comparison of the time per range, at the same bytes per range.
pub const FEW: (usize, u64) = (1024, 4 << 10);
/// See [`FEW`].
pub const MANY: (usize, u64) = (65_536, 4 << 10);
/// Ranges and bytes per range of the copies.
pub const COPIES: (usize, u64) = (10_000, 16 << 10);

/// A shape of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The recorded list's name, or another word for a shape that is not of the grid.
    pub label: Option<&'static str>,
    /// How many ranges.
    pub ranges: usize,
    /// Bytes of all ranges.
    pub total: u64,
    /// Huge pages or not.
    pub pages: Pages,
}

impl Shape {
    /// A shape of the grid.
    pub fn grid((ranges, bytes): (usize, u64)) -> Self {
        Self { label: None, ranges, total: ranges as u64 * bytes, pages: Pages::Small }
    }

    /// The recorded lists.
    ///
    /// # Errors
    ///
    /// Never for the lists as they are.
    pub fn recorded() -> Result<Vec<Self>> {
        let shape = |(name, text): &(&'static str, &str)| {
            let pieces = list::parse(text)?;
            let total = pieces.iter().map(|(_, bytes)| bytes).sum();
            Ok(Self { label: Some(name), ranges: pieces.len(), total, pages: Pages::Small })
        };
        list::RECORDED.iter().map(shape).collect()
    }

    /// Bytes a range, on average.
    pub fn range_bytes(&self) -> u64 {
        self.total / self.ranges.max(1) as u64
    }

    /// Bytes that its arena takes.
    pub fn memory(&self) -> u64 {
        // Huge pages fill the gaps as well.
        if self.pages == Pages::Small {
            2 * self.total
        } else {
            4 * self.total
        }
    }

    /// Makes its memory.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn arena(&self) -> Result<Arena> {
        match list::RECORDED.iter().find(|(name, _)| self.label == Some(name)) {
            Some((_, text)) => Ok(Arena::new(&list::parse(text)?, self.pages)?),
            None => Ok(Arena::scattered(self.ranges, self.range_bytes(), self.pages)?),
        }
    }

    /// The shape in words.
    pub fn name(&self) -> String {
        let size = crate::format::bytes(self.range_bytes());
        match self.label {
            Some(label) => format!("{label} ({} ranges)", crate::format::count(self.ranges)),
            None => format!("{} x {size}", crate::format::count(self.ranges)),
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Samples of each thing.
    pub rounds: usize,
    /// A subject that takes longer than this for one sample is not asked again.
    pub slow: Duration,
    /// Bytes of memory that may be used at a time.
    pub budget: u64,
    /// The shapes of the sweep, the most important first: [`MAIN`].
    pub shapes: Vec<Shape>,
    /// Bytes of the buffer that kernels run over.
    pub kernel_bytes: u64,
    /// Samples of the invalidation of one page.
    pub invalidations: usize,
    /// Ranges of the restore.
    pub restore_ranges: usize,
}

impl Plan {
    /// The plan for a full or a quick run.
    ///
    /// # Errors
    ///
    /// Never for the lists as they are.
    pub fn new(quick: bool, budget: u64, rounds: usize, slow: Duration) -> Result<Self> {
        let pick = |quick_value, full| if quick { quick_value } else { full };
        let mut shapes: Vec<Shape> = [MAIN, FEW, MANY].map(Shape::grid).to_vec();
        // One of the lists is almost a shape of the grid.
        shapes.extend(Shape::recorded()?.into_iter().filter(|shape| !quick || shape.label != Some("random-4k-64M")));
        let counts = [1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536];
        let sizes = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
        let quick_grid =
            [(1, sizes[0]), (16, sizes[0]), (256, sizes[0]), (4096, sizes[0]), (16_384, sizes[0]), (64, sizes[2])];
        let full_grid = counts.iter().flat_map(|n| sizes.iter().map(|bytes| (*n, *bytes)));
        let grid: Vec<_> = if quick { quick_grid.to_vec() } else { full_grid.collect() };
        for shape in grid.into_iter().map(Shape::grid) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        if !quick {
            shapes.push(Shape { label: Some("THP"), pages: Pages::Huge, ..Shape::grid(MAIN) });
        }
        Ok(Self {
            rounds,
            slow,
            budget,
            shapes,
            kernel_bytes: if quick { 64 << 20 } else { 256 << 20 },
            invalidations: pick(40, 200),
            restore_ranges: 16_384,
        })
    }

    /// The shapes in groups that fit the budget, and those that do not fit it alone.
    pub fn groups(&self) -> (Vec<Vec<Shape>>, Vec<Shape>) {
        let (fitting, too_large): (Vec<_>, Vec<_>) =
            self.shapes.iter().cloned().partition(|shape| shape.memory() <= self.budget);
        let mut groups: Vec<(u64, Vec<Shape>)> = Vec::new();
        for shape in fitting {
            let memory = shape.memory();
            match groups.iter_mut().find(|(used, _)| used + memory <= self.budget) {
                Some((used, group)) => {
                    *used += memory;
                    group.push(shape);
                }
                None => groups.push((memory, vec![shape])),
            }
        }
        (groups.into_iter().map(|(_, group)| group).collect(), too_large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fit_the_budget_and_nothing_is_lost() {
        for (quick, budget) in [(true, 6 << 30), (false, 1 << 30), (false, 6 << 30)] {
            let plan = Plan::new(quick, budget, 5, Duration::from_secs(1)).unwrap();
            let (groups, too_large) = plan.groups();
            assert_eq!(groups.iter().map(Vec::len).sum::<usize>() + too_large.len(), plan.shapes.len());
            assert!(groups.iter().all(|group| group.iter().map(Shape::memory).sum::<u64>() <= budget));
            assert!(too_large.iter().all(|shape| shape.memory() > budget));
            // What is compared across shapes is measured in the same rounds.
            let first = &groups[0];
            assert!(first.contains(&Shape::grid(FEW)) && (budget < 2 << 30 || first.contains(&Shape::grid(MANY))));
        }
    }
}
