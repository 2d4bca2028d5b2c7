// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Late loads: in another than the usual order, a kernel whose wait was taken out computes
//! something else, and the same kernel with it does not.

use super::rig::Rig;
use crate::support::alone;
use vkfd_cu::launch::Schedule;
use vkfd_isa::{decode_as_hardware, Op, Target};
use vkfd_sabotage::{process, Switch, Switches};

/// Kernels that load memory, LDS, and scalars, and where they are.
const KERNELS: [(&str, &str); 3] =
    [("planted", "early_load_twin"), ("published", "pivot_twin"), ("planted", "early_scalar_twin")];

/// Makes `s_nop` of wait number `which`; whether there is one.
fn take_out(target: Target, code: &mut [u32], which: usize) -> bool {
    let (mut at, mut waits) = (0, 0);
    while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
        let Ok(inst) = decode_as_hardware(target, rest) else { return false };
        if inst.op == Op::SWaitcnt {
            if waits == which {
                code[at] = 0xbf80_0000;
                return true;
            }
            waits += 1;
        }
        at += usize::from(inst.bytes) / 4;
    }
    false
}

/// The results of each kernel with each of its waits taken out, in an order: how many kernels
/// differ from the usual result, by the order.
fn differing(target: Target, schedule: Schedule) -> Vec<(&'static str, usize)> {
    let mut differing = Vec::new();
    for (source, kernel) in KERNELS {
        let rig = Rig::of(source, target);
        let right = rig.result(kernel, Schedule::Usual, |_| {});
        assert_ne!(right, vec![0; 128], "{target} {kernel}");
        assert_eq!(rig.result(kernel, schedule, |_| {}), right, "{target} {kernel} has all waits, {schedule}");
        let mut which = 0;
        loop {
            let mut is_there = false;
            let result = rig.result(kernel, schedule, |code| is_there = take_out(target, code, which));
            if !is_there {
                break;
            }
            if result != right {
                differing.push((kernel, which));
            }
            which += 1;
        }
    }
    differing
}

#[test]
fn a_wait_that_was_taken_out_changes_the_result() {
    for target in Target::ALL {
        assert_eq!(differing(target, Schedule::Usual), [], "{target}: loads complete at once in the usual order");
        for seed in 1..4 {
            let found = differing(target, Schedule::Random(seed));
            for (_, kernel) in KERNELS {
                assert!(found.iter().any(|(of, _)| *of == kernel), "{target} {kernel}, order {seed}: {found:?}");
            }
            assert_eq!(found, differing(target, Schedule::Random(seed)), "{target}: the same number, the same run");
        }
    }
}

#[test]
fn a_store_that_nothing_waits_for_may_come_before_the_load() {
    for target in Target::ALL {
        let rig = Rig::of("published", target);
        let result = |kernel, schedule| rig.result(kernel, schedule, |_| {});
        let right = result("unawaited_twin", Schedule::Usual);
        assert_eq!(result("unawaited", Schedule::Usual), right, "{target}: in the usual order it is read at once");
        let orders: Vec<Schedule> = (0..8).map(Schedule::Random).collect();
        assert!(orders.iter().all(|order| result("unawaited_twin", *order) == right), "{target}");
        let differ = orders.iter().filter(|order| result("unawaited", **order) != right).count();
        assert!((1..8).contains(&differ), "{target}: {differ} of 8 orders differ");
    }
}

#[test]
fn loads_that_complete_at_once_hide_it() {
    alone("checks::late::loads_that_complete_at_once_hide_it", || {
        process().set(Switches::NONE.with(Switch::PromptLoads));
        for target in Target::ALL {
            assert_eq!(differing(target, Schedule::Random(1)), [], "{target}");
            let rig = Rig::of("published", target);
            let results = ["unawaited", "unawaited_twin"].map(|kernel| rig.result(kernel, Schedule::Random(1), |_| {}));
            assert_eq!(results[0], results[1], "{target}");
        }
    });
}
