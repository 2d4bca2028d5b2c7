// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An ordered map of half-open intervals that may overlap: which objects touch `[a, b)`?
//!
//! Mechanism: a treap (binary search tree by start, heap by a pseudo-random priority) in one
//! growable array, each node carrying the highest end below it. Insert and remove are O(log n)
//! expected, a query is O(log n + hits). Growth is fallible and happens before the tree changes, so
//! a failed insert leaves nothing behind.
//!
//! Not locked: its owner's lock guards it.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "numbers of nodes of the tree itself; intervals are given with their ends"
)]

use crate::base::errno::Result;
use crate::os::Vec;

const NIL: u32 = u32::MAX;

struct Node<V> {
    start: u64,
    end: u64,
    highest_end: u64,
    priority: u32,
    left: u32,
    right: u32,
    value: Option<V>,
}

/// The map. Values are told apart by `(start, end)` and equality of `V` where intervals coincide.
pub struct IntervalMap<V> {
    nodes: Vec<Node<V>>,
    root: u32,
    free: u32,
    len: usize,
    seed: u32,
}

impl<V: Clone + PartialEq> Default for IntervalMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Clone + PartialEq> IntervalMap<V> {
    pub const fn new() -> Self {
        Self::seeded(0x9e37_79b9)
    }

    /// Empty, with priorities of its own. A caller that foresees the priorities can choose starts
    /// that make the tree a list, as deep as it is long. If strangers choose them, the seed must be
    /// [`crate::os::random`].
    pub const fn seeded(seed: u32) -> Self {
        // The generator stays at 0.
        Self { nodes: Vec::new(), root: NIL, free: NIL, len: 0, seed: if seed == 0 { 1 } else { seed } }
    }

    /// How many intervals it has.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Room for `count` intervals in all: as long as there are not more, inserting allocates
    /// nothing. Room stays.
    pub fn reserve(&mut self, count: usize) -> Result {
        self.nodes.reserve(count.saturating_sub(self.nodes.len()))
    }

    fn node(&self, at: u32) -> &Node<V> {
        &self.nodes[at as usize]
    }

    fn update(&mut self, at: u32) {
        let (left, right) = (self.node(at).left, self.node(at).right);
        let mut highest = self.node(at).end;
        for child in [left, right] {
            if child != NIL {
                highest = highest.max(self.node(child).highest_end);
            }
        }
        self.nodes[at as usize].highest_end = highest;
    }

    /// Splits the tree at `at` into starts below `(start, end)` and the rest.
    fn split(&mut self, at: u32, key: (u64, u64)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let here = (self.node(at).start, self.node(at).end);
        if here < key {
            let right = self.node(at).right;
            let (a, b) = self.split(right, key);
            self.nodes[at as usize].right = a;
            self.update(at);
            (at, b)
        } else {
            let left = self.node(at).left;
            let (a, b) = self.split(left, key);
            self.nodes[at as usize].left = b;
            self.update(at);
            (a, at)
        }
    }

    fn join(&mut self, a: u32, b: u32) -> u32 {
        if a == NIL {
            return b;
        }
        if b == NIL {
            return a;
        }
        if self.node(a).priority > self.node(b).priority {
            let right = self.node(a).right;
            let joined = self.join(right, b);
            self.nodes[a as usize].right = joined;
            self.update(a);
            a
        } else {
            let left = self.node(b).left;
            let joined = self.join(a, left);
            self.nodes[b as usize].left = joined;
            self.update(b);
            b
        }
    }

    /// Adds `[start, end)`. ENOMEM leaves the map as it was.
    pub fn insert(&mut self, start: u64, end: u64, value: V) -> Result {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let node =
            Node { start, end, highest_end: end, priority: self.seed, left: NIL, right: NIL, value: Some(value) };
        let at = if self.free == NIL {
            // NIL itself is never an index: that many nodes do not fit in memory.
            let at = u32::try_from(self.nodes.len()).map_err(|_| crate::base::errno::Errno::ENOMEM)?;
            self.nodes.push(node)?;
            at
        } else {
            let at = self.free;
            self.free = self.node(at).left;
            self.nodes[at as usize] = node;
            at
        };
        let (a, b) = self.split(self.root, (start, end));
        let a = self.join(a, at);
        self.root = self.join(a, b);
        self.len += 1;
        Ok(())
    }

    /// Takes `[start, end)` with `value` away. Whether it was there.
    pub fn remove(&mut self, start: u64, end: u64, value: &V) -> bool {
        let (below, rest) = self.split(self.root, (start, end));
        let (mut same, above) = match end.checked_add(1) {
            Some(next) => self.split(rest, (start, next)),
            None => (rest, NIL),
        };
        let mut found = NIL;
        same = self.remove_value(same, value, &mut found);
        let a = self.join(below, same);
        self.root = self.join(a, above);
        if found == NIL {
            return false;
        }
        let node = &mut self.nodes[found as usize];
        node.value = None;
        node.left = self.free;
        self.free = found;
        self.len -= 1;
        true
    }

    fn remove_value(&mut self, at: u32, value: &V, found: &mut u32) -> u32 {
        if at == NIL || *found != NIL {
            return at;
        }
        let (left, right) = (self.node(at).left, self.node(at).right);
        if self.node(at).value.as_ref() == Some(value) {
            *found = at;
            return self.join(left, right);
        }
        let l = self.remove_value(left, value, found);
        self.nodes[at as usize].left = l;
        let r = self.remove_value(right, value, found);
        self.nodes[at as usize].right = r;
        self.update(at);
        at
    }

    /// Calls `f` for each interval that shares a byte with `[start, end)`, lowest first, until it
    /// returns false. Allocates nothing. Whether all were visited.
    pub fn overlapping(&self, start: u64, end: u64, f: &mut dyn FnMut(u64, u64, &V) -> bool) -> bool {
        self.visit(self.root, start, end, f)
    }

    fn visit(&self, at: u32, start: u64, end: u64, f: &mut dyn FnMut(u64, u64, &V) -> bool) -> bool {
        if at == NIL || self.node(at).highest_end <= start {
            return true;
        }
        let node = self.node(at);
        if !self.visit(node.left, start, end, f) {
            return false;
        }
        if node.start >= end {
            return true;
        }
        if node.end > start {
            if let Some(value) = &node.value {
                if !f(node.start, node.end, value) {
                    return false;
                }
            }
        }
        self.visit(node.right, start, end, f)
    }

    /// The lowest interval that shares a byte with `[start, end)`.
    pub fn first_overlap(&self, start: u64, end: u64) -> Option<(u64, u64, V)> {
        let mut hit = None;
        self.overlapping(start, end, &mut |s, e, v| {
            hit = Some((s, e, v.clone()));
            false
        });
        hit
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.nodes.memory()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec as StdVec;

    fn hits(map: &IntervalMap<u32>, start: u64, end: u64) -> StdVec<u32> {
        let mut out = StdVec::new();
        map.overlapping(start, end, &mut |_, _, v| {
            out.push(*v);
            true
        });
        out.sort_unstable();
        out
    }

    #[test]
    fn agrees_with_a_flat_list_over_random_changes() {
        let mut map = IntervalMap::new();
        let mut flat: StdVec<(u64, u64, u32)> = StdVec::new();
        let mut x = 12345u64;
        let mut next = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for id in 0..3000u32 {
            if next(3) != 0 || flat.is_empty() {
                let start = next(500);
                let end = start + 1 + next(40);
                map.insert(start, end, id).unwrap();
                flat.push((start, end, id));
            } else {
                let gone = flat.swap_remove(usize::try_from(next(flat.len() as u64)).unwrap());
                assert!(map.remove(gone.0, gone.1, &gone.2));
                assert!(!map.remove(gone.0, gone.1, &gone.2));
            }
            let start = next(520);
            let end = start + 1 + next(60);
            let mut expect: StdVec<u32> =
                flat.iter().filter(|(s, e, _)| *s < end && start < *e).map(|(_, _, v)| *v).collect();
            expect.sort_unstable();
            assert_eq!(hits(&map, start, end), expect);
            assert_eq!(map.len(), flat.len());
        }
    }

    #[test]
    fn a_failed_insert_leaves_the_map_as_it_was() {
        let mut map = IntervalMap::new();
        let (failed, reached) = crate::os::fault_injection::fail_nth(0, || map.insert(1, 2, 7));
        assert!(reached && failed.is_err());
        assert!(map.is_empty() && hits(&map, 0, 10).is_empty());
        map.insert(1, 2, 7).unwrap();
        assert_eq!(hits(&map, 0, 10), [7]);
    }
}
