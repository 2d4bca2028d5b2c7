// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Some trips of memory under its writers. `vkfd-stress --trips N` makes more of them; and that a
//! lost write would be seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vkfd_driver::sabotage::Switch;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_hunt::cases::seed;
use vkfd_hunt::compaction::Compaction;
use vkfd_hunt::moving::{run, Plan, Report};

static ONE: Mutex<()> = Mutex::new(());

/// What breaks on purpose breaks for all.
fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn moving(trips: u64, kind: Kind, xnack: bool) -> Option<Report> {
    let report = run(Plan { trips, writers: 2, kind, xnack, seed: seed() }).unwrap();
    if report.is_none() {
        eprintln!("SKIPPED: this host moves no memory to GPUs");
    }
    report
}

#[test]
fn no_write_is_lost_while_memory_moves() {
    let _alone = alone();
    for kind in [Kind::Coherent, Kind::Private] {
        for xnack in [false, true] {
            let Some(report) = moving(60, kind, xnack) else { return };
            assert_eq!((report.lost, &report.first), (0, &None), "{kind:?}, XNACK {xnack}: {report:?}");
            // Private memory may have come back before it could be evicted.
            assert!(report.pages_in > 0 && (report.evictions > 0 || kind == Kind::Private), "{report:?}");
        }
    }
}

#[test]
fn no_write_is_lost_while_the_kernel_compacts_memory() {
    let _alone = alone();
    let _compaction = match Compaction::start() {
        Ok(compaction) => compaction,
        Err(error) => return eprintln!("SKIPPED: no compaction on demand: {error}"),
    };
    for kind in [Kind::Coherent, Kind::Private] {
        let Some(report) = moving(300, kind, false) else { return };
        assert_eq!((report.lost, &report.first), (0, &None), "{kind:?}: {report:?}");
    }
}

#[test]
fn copies_made_while_others_write_are_noticed() {
    let _alone = alone();
    vkfd_host::sabotage::switches().turn(Switch::CopyUnsealed, true);
    let plan = Plan { trips: 10, writers: 2, kind: Kind::Coherent, xnack: false, seed: 1 };
    let noticed = (0..50).map(|_| run(plan)).find(|found| !matches!(found, Ok(Some(Report { lost: 0, .. }))));
    vkfd_host::sabotage::switches().turn(Switch::CopyUnsealed, false);
    match noticed.expect("this test can fail").unwrap() {
        None => eprintln!("SKIPPED: this host moves no memory to GPUs"),
        Some(report) => assert!(report.first.is_some(), "{report:?}"),
    }
}
