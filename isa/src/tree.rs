// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Finds the records that a word may be.
//!
//! A node looks at a run of bits that all of its records fix, and has a child for each value. A
//! leaf lists the records that are left, in the tables' order, which is that of precedence.

use crate::tables::records::RECORDS;

/// A target's decision tree.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    leaves: Vec<u16>,
    root: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Lowest bit that is looked at.
    shift: u8,
    /// How many are; none: a leaf.
    width: u8,
    /// First of the leaf's records.
    first: u32,
    /// How many there are; in other nodes, where the children start.
    count: u32,
}

impl Tree {
    /// The tree of the target of rank `target`.
    pub fn new(target: usize) -> Tree {
        let records: Vec<u16> =
            (0u16..).zip(RECORDS).filter(|(_, record)| record.targets >> target & 1 != 0).map(|(n, _)| n).collect();
        let mut tree = Tree { nodes: Vec::new(), leaves: Vec::new(), root: 0 };
        tree.nodes.push(Node { shift: 0, width: 0, first: 0, count: 0 });
        tree.fill(0, &records, 0);
        tree
    }

    /// The records whose fixed bits may be those of `word`.
    #[inline]
    pub fn candidates(&self, word: u64) -> &[u16] {
        let mut node = &self.nodes[self.root as usize];
        while node.width != 0 {
            let value = word >> node.shift & ((1 << node.width) - 1);
            node = &self.nodes[node.count as usize + usize::try_from(value).unwrap_or(0)];
        }
        &self.leaves[node.first as usize..][..node.count as usize]
    }

    fn fill(&mut self, at: usize, records: &[u16], known: u64) {
        let count = |n: usize| u32::try_from(n).expect("tables have fewer than 2^32 entries");
        match Self::split(records, known) {
            Some((shift, width)) => {
                let children = self.nodes.len();
                self.nodes[at] = Node { shift, width, first: 0, count: count(children) };
                let empty = Node { shift: 0, width: 0, first: 0, count: 0 };
                self.nodes.resize(children + (1 << width), empty);
                let mask = ((1u64 << width) - 1) << shift;
                for value in 0..1u64 << width {
                    let matching: Vec<u16> = records
                        .iter()
                        .copied()
                        .filter(|&n| {
                            let record = &RECORDS[usize::from(n)];
                            let fixed = record.mask & mask;
                            (value << shift ^ record.value) & fixed == 0
                        })
                        .collect();
                    let child = children + usize::try_from(value).unwrap_or(0);
                    self.fill(child, &matching, known | mask);
                }
            }
            None => {
                let first = count(self.leaves.len());
                self.leaves.extend_from_slice(records);
                self.nodes[at] = Node { shift: 0, width: 0, first, count: count(records.len()) };
            }
        }
    }

    /// The run of bits that tells most of `records` apart, if any does.
    fn split(records: &[u16], known: u64) -> Option<(u8, u8)> {
        if records.len() <= 2 {
            return None;
        }
        let mask = |n: &u16| RECORDS[usize::from(*n)].mask;
        // Bits that nearly all fix.
        let useful: Vec<u8> = (0u8..64)
            .filter(|bit| known >> bit & 1 == 0)
            .filter(|bit| {
                let fixed = records.iter().filter(|n| mask(n) >> bit & 1 != 0);
                let ones = fixed.clone().filter(|n| RECORDS[usize::from(**n)].value >> bit & 1 != 0).count();
                let fixed = fixed.count();
                fixed * 8 >= records.len() * 7 && ones != 0 && ones != fixed
            })
            .collect();
        let mut best: Option<(u8, u8)> = None;
        let mut start = 0;
        while start < useful.len() {
            let mut end = start + 1;
            while end < useful.len() && useful[end] == useful[end - 1] + 1 && end - start < 9 {
                end += 1;
            }
            let width = u8::try_from(end - start).unwrap_or(9);
            if best.is_none_or(|(_, most)| width > most) {
                best = Some((useful[start], width));
            }
            start = end;
        }
        best
    }
}
