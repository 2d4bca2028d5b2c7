// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random SVM sequences on a real machine. One test, because every machine of a process sees what
//! is done to its mappings.

use proptest::prelude::*;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_hunt::cases::{check, hunt};
use vkfd_hunt::svm::{ops, run, run_together, Shape};

#[test]
fn memory_is_what_the_flat_model_says_wherever_it_is() {
    let shape = Shape { coherent: true, xnack: false, sabotage: Switches::NONE };
    let moved = std::cell::Cell::new(Some(0));
    check(20, &(any::<bool>(), any::<bool>(), ops()), |(coherent, xnack, ops)| {
        run(Shape { coherent: *coherent, xnack: *xnack, ..shape }, ops)
            .map(|pages| moved.set(pages.zip(moved.get()).map(|(a, b)| a + b)))
    });
    match moved.get() {
        None => eprintln!("SKIPPED: this host moves no memory to GPUs, so only system memory was looked at"),
        Some(pages) => assert!(pages > 10_000, "hardly anything moved: {pages} pages"),
    }
    // A driver that learns of nothing is found out.
    let deaf = Shape { sabotage: Switches::from(Switch::Invalidation), ..shape };
    let found = hunt(40, 1, &ops(), |ops| run(deaf, ops).map(drop));
    let why = found.expect_err("nobody noticed that invalidations are ignored");
    assert!(["GPU", "CPU", "access"].iter().any(|s| why.contains(s)), "noticed, but as something else: {why}");
}

/// As above, with several threads.
#[test]
fn threads_share_blocks() {
    let shape = Shape { coherent: true, xnack: false, sabotage: Switches::NONE };
    // Several threads with stripes of the same blocks.
    let sequences = proptest::collection::vec(ops(), 2..4);
    check(12, &(any::<bool>(), any::<bool>(), sequences), |(coherent, xnack, threads)| {
        run_together(Shape { coherent: *coherent, xnack: *xnack, ..shape }, threads).map(drop)
    });
    // A driver whose calls look at the stripes of others, which change at any time, is found out.
    // Threads do not fail alike twice, so that nothing is made smaller.
    let nosy = Shape { sabotage: Switches::from(Switch::OthersErrors), ..shape };
    let first = std::cell::RefCell::new(None);
    let found = hunt(200, 1, &proptest::collection::vec(ops(), 3), |threads| {
        if first.borrow().is_none() {
            *first.borrow_mut() = run_together(nosy, threads).err();
        }
        first.borrow().clone().map_or(Ok(()), Err)
    });
    let why = found.expect_err("nobody noticed that calls fail for others");
    assert!(why.contains("setting"), "noticed, but as something else: {why}");
}
