// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faults in the tables, on purpose: so that what checks the tables is seen to notice.
//!
//! The faults are the switches `isa.*`. Mechanism: a thread that plants a fault decodes and prints
//! with a changed copy of one record and its shape; other threads do not. The copy is never freed,
//! which a test can afford.

use std::cell::Cell;

use vkfd_sabotage::Switch;

use crate::table::{flags, Field, Kind, Part, Record, Shape, Slot};
use crate::tables::records::RECORDS;
use crate::tables::shapes::SHAPES;

type Planted = (u16, &'static Record, &'static Shape);

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// What this thread has instead of the record `entry`.
pub(crate) fn planted(entry: u16) -> Option<(&'static Record, &'static Shape)> {
    PLANTED.get().filter(|(at, ..)| *at == entry).map(|(_, record, shape)| (record, shape))
}

/// Plants a fault in the record `entry`: the switch and its value. False: there is nothing of the
/// kind in it.
pub fn plant(entry: u16, fault: Switch, value: u64) -> bool {
    let Some(record) = RECORDS.get(usize::from(entry)) else { return false };
    let Some(changed) = change(entry, *record, SHAPES[usize::from(record.shape)], fault, value) else { return false };
    PLANTED.set(Some((entry, Box::leak(Box::new(changed.0)), Box::leak(Box::new(changed.1)))));
    true
}

/// Takes this thread's fault away.
pub fn clear() {
    PLANTED.set(None);
}

fn change(entry: u16, mut record: Record, mut shape: Shape, fault: Switch, value: u64) -> Option<(Record, Shape)> {
    let at = usize::try_from(value).ok()?;
    match fault {
        Switch::RecordValue => record.value ^= nth(record.mask, at)?,
        Switch::OperandPlace => {
            shape.slots = with(shape.slots, at, |part| {
                let up = part.bit + part.width < 32;
                part.bit = if up { part.bit + 1 } else { part.bit.checked_sub(1)? };
                Some(())
            })?;
        }
        Switch::OperandWidth => {
            shape.slots = with(shape.slots, at, |part| {
                part.width = part.width.checked_sub(1).filter(|width| *width != 0)?;
                Some(())
            })?;
        }
        Switch::RecordName => {
            let mut after = RECORDS.iter().skip(usize::from(entry)).chain(RECORDS);
            record.mnemonic = after.find(|other| other.mnemonic != record.mnemonic)?.mnemonic;
        }
        Switch::ShapeFlag => {
            // What decides about the text; the others are compared with it by a test of their own.
            let known = shape.flags & (flags::OPSEL_DST | flags::PACKED | flags::WMMA);
            shape.flags &= !u32::try_from(nth(known.into(), at)?).unwrap_or(0);
        }
        _ => return None,
    }
    Some((record, shape))
}

/// The `n`-th set bit of `bits`.
fn nth(bits: u64, n: usize) -> Option<u64> {
    (0..64).map(|bit| 1u64 << bit).filter(|bit| bits & bit != 0).nth(n)
}

/// `slots` with a change of the last part of one.
fn with(slots: &[Slot], at: usize, change: impl Fn(&mut Part) -> Option<()>) -> Option<&'static [Slot]> {
    let mut slots = slots.to_vec();
    let slot = slots.get_mut(at)?;
    let mut parts = slot.parts.to_vec();
    // Modifiers that only select have bits for negation; accumulation registers and SC1 are not on
    // every target of a record.
    let (kind, field) = (slot.kind, slot.field);
    let matters = |part: &Part| match (kind, field) {
        (Kind::SelectMods, _) => part.to == 2,
        (Kind::VgprOrAgpr, _) => part.to != 9,
        (_, Field::Cpol) => part.to != 4,
        _ => true,
    };
    change(parts.iter_mut().rfind(|part| matters(part))?)?;
    slot.parts = Box::leak(parts.into_boxed_slice());
    Some(Box::leak(slots.into_boxed_slice()))
}
