// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faults planted in the tables: the comparison has to notice every one.

use vkfd_isa::sabotage::{clear, plant};
use vkfd_isa::{encodings, Encoding, Target};
use vkfd_sabotage::Switch;

use crate::cases::{self, Random};
use crate::{compare_batch, exceptions, Args};

/// Plants `count` faults, one after the other. Those that were not noticed.
pub fn missed(args: &Args, target: Target, count: usize) -> anyhow::Result<Vec<String>> {
    let all: Vec<Encoding> = encodings(target).collect();
    let mut numbers = Random(args.seed ^ 0xfa17 ^ target as u64);
    let mut missed = Vec::new();
    let mut planted = 0;
    while planted < count {
        let encoding = &all[usize::try_from(numbers.below(u32::try_from(all.len())?))?];
        let slots = u32::try_from(encoding.fields.len())?;
        let slot = numbers.below(slots);
        let (fault, value) = match numbers.below(5) {
            0 => (Switch::RecordValue, numbers.below(24)),
            1 => (Switch::OperandPlace, slot),
            2 => (Switch::OperandWidth, slot),
            3 => (Switch::RecordName, 0),
            _ => (Switch::ShapeFlag, numbers.below(2)),
        };
        let mut words = cases::of(target, encoding, 30, &mut numbers);
        words.retain(|words| !exceptions::crashes(target, words));
        if exceptions::harmless(target, encoding, fault, value) || !plant(encoding.entry, fault, value.into()) {
            continue;
        }
        let tally = compare_batch(args, target, &words);
        clear();
        planted += 1;
        if tally?.differences.is_empty() {
            missed.push(format!("{}={value} in record {} ({})", fault.name(), encoding.entry, encoding.op.name()));
        }
    }
    Ok(missed)
}
