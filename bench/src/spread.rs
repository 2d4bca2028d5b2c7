// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Samples and what is said of them: the median, and the quartiles as its spread. The mean and the
//! extremes would report the machine's other work.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::subject::{Operation, Subject};

/// Median and quartiles of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the samples are at most this.
    pub median: f64,
    /// A quarter of the samples is at most this.
    pub q1: f64,
    /// Three quarters of the samples are at most this.
    pub q3: f64,
    /// How many samples.
    pub samples: usize,
}

impl Spread {
    /// Of samples in any order; `None` without one. O(n log n).
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // Between two samples a quantile is interpolated, so that the median of an even number is
        // their middle.
        let quantile = |quarters: usize| {
            let (whole, rest) = (last * quarters / 4, last * quarters % 4);
            let (low, high) = (sorted[whole], sorted[(whole + 1).min(last)]);
            low + (high - low) * rest as f64 / 4.0
        };
        Some(Self { median: quantile(2), q1: quantile(1), q3: quantile(3), samples: sorted.len() })
    }

    /// The spread of one by each sample; samples are positive.
    pub fn inverted(self) -> Self {
        Self { median: 1.0 / self.median, q1: 1.0 / self.q3, q3: 1.0 / self.q1, samples: self.samples }
    }

    /// Whether the rounds say such different things that the median is not to be trusted.
    pub fn disagrees(self) -> bool {
        self.q3 > 2.0 * self.q1
    }

    /// The spread of the samples times a positive factor.
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, q1: self.q1 * factor, q3: self.q3 * factor, samples: self.samples }
    }
}

/// Times in seconds for each subject and operation, a sample a round. A round that was left out is
/// a gap.
#[derive(Clone, Debug)]
pub struct Samples<Cell = (Subject, Operation)> {
    cells: BTreeMap<Cell, BTreeMap<usize, f64>>,
}

impl<Cell> Default for Samples<Cell> {
    fn default() -> Self {
        Self { cells: BTreeMap::new() }
    }
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, round: usize, subject: Subject, operation: Operation, time: Duration) {
        self.add_to(round, (subject, operation), time);
    }
}

impl<Cell: Copy + Ord> Samples<Cell> {
    /// Adds a sample to a cell.
    pub fn add_to(&mut self, round: usize, cell: Cell, time: Duration) {
        self.cells.entry(cell).or_default().insert(round, time.as_secs_f64());
    }

    /// What was measured, with its spread, in seconds.
    pub fn spreads(&self) -> impl Iterator<Item = (Cell, Spread)> + '_ {
        self.cells.iter().filter_map(|(cell, rounds)| Some((*cell, Spread::of(rounds.values().copied())?)))
    }

    /// The spread of a cell, in seconds.
    pub fn spread(&self, cell: Cell) -> Option<Spread> {
        Spread::of(self.cells.get(&cell)?.values().copied())
    }

    /// The spread of `a - b`, each round's sample less the same round's; 0 where `b` was longer.
    pub fn difference(&self, a: Cell, b: Cell) -> Option<Spread> {
        let (a, b) = (self.cells.get(&a)?, self.cells.get(&b)?);
        Spread::of(a.iter().filter_map(|(round, a)| b.get(round).map(|b| (a - b).max(0.0))))
    }

    /// The spread of `a / b`, each round's sample by the same round's.
    pub fn ratio(&self, a: Cell, b: Cell) -> Option<Spread> {
        ratio(self.cells.get(&a)?, self.cells.get(&b)?)
    }

    /// As [`Samples::ratio`], where `b` is of another table that was filled in the same rounds.
    pub fn ratio_to(&self, a: Cell, other: &Self, b: Cell) -> Option<Spread> {
        ratio(self.cells.get(&a)?, other.cells.get(&b)?)
    }
}

fn ratio(a: &BTreeMap<usize, f64>, b: &BTreeMap<usize, f64>) -> Option<Spread> {
    Spread::of(a.iter().filter_map(|(round, a)| b.get(round).filter(|b| **b > 0.0).map(|b| a / b)))
}

/// The order in which subjects take their turns in a round: rotated by one each round, and every
/// other round backwards, so that none always follows the same other.
pub fn turns<T: Copy>(subjects: &[T], round: usize) -> Vec<T> {
    let mut order = subjects.to_vec();
    if !order.is_empty() {
        order.rotate_left(round % subjects.len());
    }
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let spread = Spread::of([5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((spread.q1, spread.median, spread.q3, spread.samples), (2.0, 3.0, 4.0, 5));
        let even = Spread::of([1.0, 2.0]).unwrap();
        assert_eq!((even.q1, even.median, even.q3), (1.25, 1.5, 1.75));
        assert!(Spread::of([]).is_none());
    }

    #[test]
    fn ratios_pair_samples_of_the_same_round() {
        let mut samples: Samples = Samples::default();
        let cell = |subject| (subject, Operation::Register);
        // The machine was ten times slower in round 1; a ratio of medians over unpaired rounds
        // would not be 2.
        for (round, (a, b)) in [(2, 1), (20, 10), (9, 0), (200, 100)].into_iter().enumerate() {
            samples.add(round, Subject::Multi, Operation::Register, Duration::from_millis(a));
            if b != 0 {
                samples.add(round, Subject::Batch, Operation::Register, Duration::from_millis(b));
            }
        }
        let ratio = samples.ratio(cell(Subject::Multi), cell(Subject::Batch)).unwrap();
        assert_eq!((ratio.samples, ratio.q1, ratio.median), (3, 2.0, 2.0));
        assert!(samples.ratio(cell(Subject::Multi), cell(Subject::Contiguous)).is_none());
    }

    #[test]
    fn everyone_has_a_turn_and_not_always_after_the_same() {
        let all = [1, 2, 3, 4];
        let mut followers = std::collections::BTreeSet::new();
        for round in 0..8 {
            let order = turns(&all, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, all);
            followers.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert!(followers.len() >= 8, "{followers:?}");
    }
}
