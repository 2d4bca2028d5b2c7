// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bugs that others have published: a kernel of each pattern is found, and its repaired twin is
//! silent. docs/checking.md has the table.

use super::rig::{Given, Rig};
use super::{rules, GROUPS, WRITTEN};
use vkfd_cu::check::Checks;
use vkfd_isa::Target;

/// A kernel, what it is given, the rule that finds it, and the targets on which that is a bug.
pub type Case = (&'static str, Given, &'static str, &'static [Target]);

const ALL: &[Target] = &Target::ALL;

pub const BUGS: &[Case] = &[
    // ROCm/rocm-libraries pull request 10909: `potf2_simple`.
    ("cholesky", WRITTEN, "race/lds", ALL),
    // ROCm/rocm-libraries pull request 3743: `getf2_small_kernel`.
    ("pivot", WRITTEN, "race/lds", ALL),
    // ROCm/rocSOLVER pull request 775: `run_stein`; symforce pull request 465: `SumStore`.
    ("reductions", WRITTEN, "race/lds", ALL),
    // ROCm/rocm-libraries pull request 4735: `run_stebz_splitting`.
    ("offsets", WRITTEN, "race/lds", ALL),
    // ROCm/rocm-libraries pull request 12266: the Jacobi method of `syevj`.
    ("rotations", WRITTEN, "race/lds", ALL),
    // kokkos pull request 8648: the parallel scan.
    ("scan", WRITTEN, "race/lds", ALL),
    // llvm-project pull request 197267, found by Triton's attention.
    ("overwrite", WRITTEN, "hazards/wide-store-offset", &[Target::Gfx942]),
    // llvm-project pull request 222040, there of a target with one wait state more.
    ("matrix", WRITTEN, "hazards/mfma-read", &[Target::Gfx90a, Target::Gfx942]),
    // A release without, and before, its write-back: llvm-project pull request 178316.
    ("unwritten", GROUPS, "race/memory", &[Target::Gfx942]),
    ("write_back_late", GROUPS, "race/memory", &[Target::Gfx942]),
    ("scalar_stale", GROUPS, "race/memory", ALL),
];

pub const TWINS: &[(&str, Given)] = &[
    ("cholesky_twin", WRITTEN),
    ("pivot_twin", WRITTEN),
    ("reductions_twin", WRITTEN),
    ("offsets_twin", WRITTEN),
    ("rotations_twin", WRITTEN),
    ("scan_twin", WRITTEN),
    ("overwrite_twin", WRITTEN),
    ("matrix_twin", WRITTEN),
    ("write_back_twin", GROUPS),
    ("scalar_twin", GROUPS),
];

/// All checks, but that of unwritten bits: the assembly here uses registers that nothing wrote.
const CHECKS: Checks = Checks { init: false, ..Checks::ALL };

#[test]
fn published_bugs_are_found() {
    let mut wrong = Vec::new();
    for target in Target::ALL {
        let rig = Rig::of("published", target);
        for (kernel, given, rule, targets) in BUGS.iter().filter(|(kernel, ..)| rig.has(kernel)) {
            let found = rig.run(kernel, *given, CHECKS);
            let expected: &[&str] = if targets.contains(&target) { &[rule] } else { &[] };
            if rules(&found) != expected {
                wrong.push(format!("{target} {kernel}: {:?}, not {expected:?}", rules(&found)));
            }
        }
        for (kernel, given) in TWINS.iter().filter(|(kernel, _)| rig.has(kernel)) {
            let found = rig.run(kernel, *given, CHECKS);
            if !found.is_empty() {
                wrong.push(format!("{target} {kernel}: {found:?}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}
