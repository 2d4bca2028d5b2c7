// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether an instruction may be one more of a segment, and in which part.

use super::{Access, Item, Rounds, Space, Vector};
use crate::scalar::bits;
use std::collections::BTreeSet;
use vkfd_isa::Operand;

/// The part of a segment that does an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// The slice or the strips.
    Body,
    /// What comes behind all strips.
    Tail,
}

/// The order that instructions have seen so far.
pub(super) struct Seen {
    /// Words of a mask of lanes.
    words: u8,
    rounds: Rounds,
    /// Loads may come before stores behind which they are.
    may_cross: bool,
    /// Scalar registers that scalar instructions of the slice have read and written.
    read: u128,
    pub(super) written: u128,
    /// Those that vector instructions have read as numbers.
    numbers: u128,
    /// Masks that they have read, and that they have written, and the registers of the latter.
    masks: Vec<u8>,
    made: Vec<u8>,
    made_bits: u128,
    /// There was a scalar load, or an access.
    loaded: bool,
    accessed: bool,
    /// Scalar registers that the tail has read and written, and whether it has scalar instructions
    /// and stores.
    late_read: u128,
    late_written: u128,
    late: bool,
    stored: bool,
    /// Lanes were exchanged: no strip may do more.
    exchanged: bool,
    /// Rows that the strips write, and rows that stores read.
    rows: BTreeSet<u16>,
    stored_rows: BTreeSet<u16>,
    /// A store may miss behind the strips, and what they do is then not to be done again.
    may_miss: bool,
    /// A vector instruction behind a store is done before it.
    pub(super) hoists: bool,
}

impl Seen {
    pub(super) fn new(words: u8, (rounds, may_cross): (Rounds, bool)) -> Seen {
        Seen {
            words,
            rounds,
            may_cross,
            read: 0,
            written: 0,
            numbers: 0,
            masks: Vec::new(),
            made: Vec::new(),
            made_bits: 0,
            loaded: false,
            accessed: false,
            late_read: 0,
            late_written: 0,
            late: false,
            stored: false,
            exchanged: false,
            rows: BTreeSet::new(),
            stored_rows: BTreeSet::new(),
            may_miss: false,
            hoists: false,
        }
    }

    /// Begins with the next segment. What was seen of this one.
    pub(super) fn begin_anew(&mut self) -> Seen {
        let next = Seen::new(self.words, (self.rounds, self.may_cross));
        std::mem::replace(self, next)
    }

    /// Where all that an instruction does may be in the segment; `None` if it may not.
    pub(super) fn admit(&mut self, items: &mut [Item]) -> Option<Where> {
        let mut place = None;
        for item in items {
            place = Some(self.admits(item)?);
        }
        place
    }

    /// In a loop whose strips do many rounds, every instruction comes before every other.
    fn is_chunk(&self) -> bool {
        self.rounds == Rounds::Strips
    }

    fn exec() -> u128 {
        bits(Operand::EXEC, 2)
    }

    fn admits(&mut self, item: &mut Item) -> Option<Where> {
        match item {
            Item::Nothing => Some(Where::Body),
            Item::Branch(_) if self.rounds == Rounds::Whole => Some(Where::Tail),
            Item::Branch(branch) => matches!(branch, super::Branch::Scc(_)).then_some(Where::Body),
            Item::Scalar(scalar) => {
                let (read, written) = scalar.registers();
                let early = written & Seen::exec() == 0 && (read | written) & self.made_bits == 0;
                // Scalar instructions stay in their order, for SCC.
                if early && !self.late && !self.stored {
                    self.read |= read;
                    self.written |= written;
                    return Some(Where::Body);
                }
                if self.is_chunk() {
                    return None;
                }
                self.late_read |= read;
                self.late_written |= written;
                self.late = true;
                Some(Where::Tail)
            }
            Item::Load(load) => {
                let (read, written) = load.registers();
                // All scalar loads come before all accesses.
                let clash = read & self.late_written | written & (self.late_read | self.late_written);
                if self.accessed || self.stored || clash != 0 || (read | written) & self.made_bits != 0 {
                    return None;
                }
                self.loaded = true;
                self.read |= read;
                self.written |= written;
                (written & Seen::exec() == 0).then_some(Where::Body)
            }
            Item::Access(access) => {
                let numbers = access.numbers();
                if self.is_chunk() && self.loaded || self.sees_tail(numbers) || numbers & self.made_bits != 0 {
                    return None;
                }
                if self.exchanged || self.stored && !self.lets_by(access) {
                    return None;
                }
                access.crosses = self.stored && access.space == Space::Lds;
                self.hoists |= self.stored;
                self.accessed = true;
                self.numbers |= numbers;
                self.rows.extend(access.rows());
                Some(Where::Body)
            }
            Item::Store(access) => {
                let late = access.numbers() | Seen::exec();
                if self.is_chunk() || late & self.late_written != 0 {
                    return None;
                }
                self.stored = true;
                self.may_miss |= !access.is_certain() || self.rows.contains(&access.address);
                self.stored_rows.extend(access.addresses().chain(access.words_of_data()));
                Some(Where::Tail)
            }
            Item::Exchange(_) => {
                if self.is_chunk() || Seen::exec() & self.late_written != 0 {
                    return None;
                }
                self.exchanged = true;
                Some(Where::Tail)
            }
            Item::Vector(vector) => self.admits_vector(vector).then_some(Where::Body),
        }
    }

    /// Whether a load may come before the stores so far, if these are to other bytes.
    fn lets_by(&self, access: &Access) -> bool {
        !self.stays(access.rows())
            && match access.space {
                Space::Lds => self.may_cross && !self.rows.contains(&access.address),
                Space::Global => true,
                Space::Flat => false,
            }
    }

    /// Whether a vector instruction, which reads these registers, would see the tail's scalar
    /// instructions, or a store would see what it writes.
    fn is_seen(&self, read: u128, vector: &Vector) -> bool {
        self.stored && self.stays(vector.rows()) || self.sees_tail(read)
    }

    /// Whether something that writes these rows may not come before the stores so far.
    fn stays(&self, mut rows: impl Iterator<Item = u16>) -> bool {
        self.may_miss || rows.any(|row| self.stored_rows.contains(&row))
    }

    fn sees_tail(&self, read: u128) -> bool {
        (read | Seen::exec()) & self.late_written != 0
    }

    fn admits_vector(&mut self, vector: &Vector) -> bool {
        let (exec, words, looped) = (Seen::exec(), self.words, self.is_chunk());
        let numbers = vector.numbers();
        let inward = vector.inward.map_or(0, |n| bits(n, words));
        if self.exchanged || numbers & self.made_bits != 0 || self.is_seen(numbers | inward, vector) {
            return false;
        }
        let apart = |all: &[u8], n: u8| all.iter().all(|&m| m == n || bits(m, words) & bits(n, words) == 0);
        if let Some(n) = vector.inward {
            if !apart(&self.made, n) {
                return false;
            }
            self.masks.push(n);
        }
        if let Some(n) = vector.out.filter(|n| *n != Operand::NULL) {
            let made = bits(n, words);
            // What the slice writes, strips read as a number in the trace.
            let numbers = (self.numbers | numbers) & !self.written;
            let clash = made & (exec | numbers | self.late_read | self.late_written) != 0
                || looped && made & (self.read | self.written) != 0;
            if clash || !apart(&self.made, n) || !apart(&self.masks, n) {
                return false;
            }
            self.made.push(n);
            self.made_bits |= made;
        }
        self.numbers |= numbers;
        self.rows.extend(vector.rows());
        self.hoists |= self.stored;
        true
    }
}
