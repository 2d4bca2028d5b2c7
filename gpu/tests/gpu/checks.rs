// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Checks of kernels that queues launch: what packets write counts as written, allocations that are
//! made while a kernel runs are known, and an unchecked GPU has no such engine.

use crate::kernels::{load, Dispatch, Kernel};
use crate::rig::*;
use std::sync::Arc;
use vkfd_gpu::check::{Block, Checks, Ledger};
use vkfd_gpu::*;

/// Work-items.
const ITEMS: u32 = 100;

fn rig(ledger: &Arc<Ledger>, checks: Checks) -> Rig {
    let checking = Some(Checking { checks, ledger: ledger.clone() });
    let rig = Rig::with(Config { checking, ..Config::default() }, false);
    load(&rig);
    rig
}

/// Adds two lists of words, of which the second is at `b`.
fn add(rig: &Rig, a: u64, b: u64, c: u64) {
    let mut queue = rig.queue(QueueKind::Aql);
    let arguments: Vec<u32> = [a, b, c].iter().flat_map(|at| split(VA + at)).chain([ITEMS, 64]).collect();
    let dispatch = Dispatch::new(Kernel::Add, 128, 64);
    dispatch.submit(&mut queue, &arguments);
    dispatch.wait(rig);
    queue.remove();
}

fn rules(ledger: &Ledger) -> Vec<(String, u64)> {
    ledger.findings().iter().map(|counted| (counted.finding.rule.to_string(), counted.count)).collect()
}

#[test]
fn a_kernel_that_a_queue_launches_is_checked() {
    let ledger = Arc::new(Ledger::new(false, None));
    let rig = rig(&ledger, Checks { memory: true, ..Checks::default() });
    ledger.add_block(&Block { va: VA + DATA, bytes: 1 << 20, device: true, visible: true });
    for (at, bytes) in [(0, 400), (0x1000, 400), (0x2000, 396)] {
        ledger.allocate(VA + DATA + at, bytes, None, |_| {});
    }
    add(&rig, DATA, DATA + 0x1000, DATA + 0x2000);
    assert_eq!(rules(&ledger), [("memory/bounds".into(), 1)]);
    let found = ledger.findings();
    assert!(found[0].finding.place.instruction.as_ref().is_some_and(|text| text.starts_with("global_store_dword")));
    ledger.free(VA + DATA + 0x2000, None);
    ledger.allocate(VA + DATA + 0x2000, 400, None, |_| {});
    add(&rig, DATA, DATA + 0x1000, DATA + 0x2000);
    assert_eq!(rules(&ledger), [("memory/bounds".into(), 1)], "it has room now");
}

#[test]
fn what_packets_write_is_written() {
    let ledger = Arc::new(Ledger::new(true, None));
    let rig = rig(&ledger, Checks { init: true, ..Checks::default() });
    ledger.add_block(&Block { va: VA + DATA, bytes: 1 << 20, device: true, visible: false });
    let mut queue = rig.queue_at(QueueKind::Sdma, 0x80000);
    queue.submit(&copy_packet(VA + DATA, VA + SCRATCH, 400));
    queue.submit(&copy_packet(VA + DATA + 0x1000, VA + SCRATCH, 400));
    queue.wait();
    queue.remove();
    add(&rig, DATA, DATA + 0x1000, DATA + 0x2000);
    assert_eq!(rules(&ledger), []);
    add(&rig, DATA, DATA + 0x2000, DATA + 0x3000);
    assert_eq!(rules(&ledger), [], "kernels have written that");
    add(&rig, DATA, DATA + 0x4000, DATA + 0x3000);
    assert_eq!(rules(&ledger), [("init/store".into(), u64::from(ITEMS))]);
}
