// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The order of a segment's vector instructions: those that add to one row come together.
//!
//! A product of matrices adds to more rows than the host has registers. In the program's order each
//! sum is loaded and stored for one product. An instruction that adds to the row that the one
//! before it has added to finds it in a register. Strips have no effect before their end, so their
//! instructions may have any order in which each finds its sources.

use super::{Item, Lanes, Segment};
use smallvec::SmallVec;

/// The rows that an instruction reads, and those that it writes.
pub(crate) type Rows = (SmallVec<[u16; 8]>, SmallVec<[u16; 8]>);

/// Instructions that come together, at most: each has sources of its own, which are to be at hand.
const TOGETHER: usize = 4;

/// The order of instructions with these rows, by their numbers. `sums`: those that may move.
/// As long as their rows, with a search for each. `passes`: sources need not be there, for tests.
fn order(rows: &[Rows], sums: &[bool], passes: bool) -> Vec<usize> {
    // The instructions that have a row, and those that write it, in their order.
    let count = rows.iter().flat_map(|(reads, writes)| reads.iter().chain(writes)).max().map_or(0, |row| row + 1);
    let mut having: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new(); count.into()];
    let mut writing = having.clone();
    for (number, (reads, writes)) in rows.iter().enumerate() {
        for row in reads.iter().chain(writes) {
            let having = &mut having[usize::from(*row)];
            if having.last() != Some(&number) {
                having.push(number);
            }
        }
        writes.iter().for_each(|row| writing[usize::from(*row)].push(number));
    }
    let behind = |all: &[usize], number: usize| all.get(all.partition_point(|other| *other <= number)).copied();
    let before = |all: &[usize], number: usize| {
        let at = all.partition_point(|other| *other < number);
        at.checked_sub(1).map(|at| all[at])
    };
    let mut is_placed = vec![false; rows.len()];
    let mut order = Vec::with_capacity(rows.len());
    for first in 0..rows.len() {
        let (mut now, mut count) = (first, 0);
        while !is_placed[now] {
            is_placed[now] = true;
            order.push(now);
            count += 1;
            let Some(&sum) = rows[now].1.first().filter(|_| sums[now] && count < TOGETHER) else { break };
            let next = behind(&having[usize::from(sum)], now).filter(|next| sums[*next] && rows[*next].1[0] == sum);
            let is_ready = |next: &usize| {
                passes
                    || rows[*next]
                        .0
                        .iter()
                        .all(|row| before(&writing[usize::from(*row)], *next).is_none_or(|by| is_placed[by]))
            };
            let Some(next) = next.filter(is_ready) else { break };
            now = next;
        }
    }
    order
}

impl Segment {
    /// Which instructions add to a row: they write one, which they read, and make no mask.
    fn sums(&self, rows: &[Rows]) -> Vec<bool> {
        let sums = self.lanes().zip(rows).map(|(lanes, (reads, writes))| match lanes {
            Lanes::Vector(vector) => {
                vector.out.is_none() && vector.inward.is_none() && writes.len() == 1 && reads.contains(&writes[0])
            }
            Lanes::Access(_) => false,
        });
        sums.collect()
    }

    /// Brings sums together. `rows`: of the strips' instructions. `others`: what else there is for
    /// each of them.
    pub(crate) fn bring_together<T: Copy>(&mut self, rows: &mut Vec<Rows>, others: &mut Vec<T>, passes: bool) {
        let order = order(rows, &self.sums(rows), passes);
        let of_strips = |item: &Item| matches!(item, Item::Vector(_) | Item::Access(_));
        let (lanes, rest): (Vec<Item>, Vec<Item>) = std::mem::take(&mut self.items).into_iter().partition(of_strips);
        let mut lanes: Vec<Option<Item>> = lanes.into_iter().map(Some).collect();
        self.items = rest;
        self.items.extend(order.iter().filter_map(|number| lanes[*number].take()));
        *rows = order.iter().map(|number| rows[*number].clone()).collect();
        *others = order.iter().map(|number| others[*number]).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    /// A sum of this row, and the product of two.
    fn sum(row: u16, one: u16, other: u16) -> Rows {
        (smallvec![one, other, row], smallvec![row])
    }

    fn load(row: u16) -> Rows {
        (smallvec![100], smallvec![row])
    }

    fn order_of(rows: &[Rows]) -> Vec<usize> {
        let sums: Vec<bool> = rows.iter().map(|(reads, writes)| reads.contains(&writes[0])).collect();
        order(rows, &sums, false)
    }

    #[test]
    fn sums_come_together_if_their_sources_are_there() {
        let rows = [load(10), load(11), sum(0, 10, 10), sum(1, 10, 10), sum(0, 11, 11), sum(1, 11, 11)];
        assert_eq!(order_of(&rows), [0, 1, 2, 4, 3, 5]);
        // The second sources come behind the first sums.
        let rows = [load(10), sum(0, 10, 10), sum(1, 10, 10), load(11), sum(0, 11, 11), sum(1, 11, 11)];
        assert_eq!(order_of(&rows), [0, 1, 2, 3, 4, 5]);
        // A source is made anew between them.
        let rows = [load(10), sum(0, 10, 10), load(10), sum(0, 10, 10)];
        assert_eq!(order_of(&rows), [0, 1, 2, 3]);
    }

    #[test]
    fn no_reader_of_a_sum_is_passed() {
        let reader = (smallvec![0], smallvec![5]);
        let rows = [sum(0, 10, 11), reader, sum(0, 12, 13)];
        assert_eq!(order_of(&rows), [0, 1, 2]);
        // Nor is another one that writes it.
        let rows = [sum(0, 10, 11), load(0), sum(0, 12, 13)];
        assert_eq!(order_of(&rows), [0, 1, 2]);
        // A sum of sums.
        let rows = [sum(0, 10, 11), sum(1, 10, 11), sum(0, 1, 11)];
        assert_eq!(order_of(&rows), [0, 1, 2]);
    }

    #[test]
    fn not_more_than_a_few_come_together() {
        let rows: Vec<Rows> = (0..6).flat_map(|_| [sum(0, 10, 11), sum(1, 10, 11)]).collect();
        assert_eq!(order_of(&rows), [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 9, 11]);
    }
}
