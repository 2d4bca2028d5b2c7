// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A HIP program with planted bugs, under `vkfd run --check`: each bug is found by its rule, and
//! its correct twin is silent. So are HIP programs that are right. A kernel without a barrier or a
//! wait computes something else in another order of its waves and loads (`--explore`).

use anyhow::{bail, Result};
use vkfd_sabotage::Switch;

use super::hip_kernels::{all_right, KERNELS, TARGETS};
use super::source::Source;
use super::{Client, Report, Stand};

pub const CLIENT: Client =
    Client { name: "hip-checks", packages: &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

const PLANTED: Source = Source { file: "tests/clients/hip/hip_checks.hip", arguments: TARGETS };

/// The program's cases, and the rule that finds each; none: it is right.
const CASES: [(&str, Option<&str>); 24] = [
    ("past", Some("memory/bounds")),
    ("past-twin", None),
    ("freed", Some("memory/freed")),
    ("lds", Some("memory/lds")),
    ("lds-twin", None),
    ("race", Some("race/lds")),
    ("race-twin", None),
    ("branch", Some("init/lanes")),
    ("branch-twin", None),
    ("store", Some("init/store")),
    ("store-twin", None),
    ("move", None),
    ("shared", Some("init/store")),
    ("shared-twin", None),
    ("parts", Some("race/memory")),
    ("parts-twin", None),
    ("last", Some("race/memory")),
    ("last-twin", None),
    ("early", Some("waits/vmcnt")),
    ("early-twin", None),
    ("lane", Some("hazards/sgpr-lane")),
    ("lane-twin", None),
    ("table", Some("init/store")),
    ("table-twin", None),
];

/// The exit code that a run with findings gets.
const FOUND: i32 = 9;

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let planted = stand.compile(&PLANTED)?;
    for target in ["gfx900", "gfx90a", "gfx1030"] {
        for (case, rule) in CASES {
            // A newer GPU waits by itself.
            let rule = rule.filter(|rule| !rule.starts_with("hazards/") || target.starts_with("gfx9"));
            let options = ["--target", target, "--check", "all", "--error-exitcode", "9"];
            let ran = stand.run(&options, &planted, &[case], &[])?;
            let rules: Vec<&str> = ["memory/", "init/", "race/", "waits/", "hazards/"]
                .into_iter()
                .flat_map(|group| ran.stderr.match_indices(group).map(|(at, _)| &ran.stderr[at..]))
                .filter_map(|text| text.split_once(']').map(|(rule, _)| rule))
                .collect();
            let right = match rule {
                Some(rule) => ran.code == Some(FOUND) && !rules.is_empty() && rules.iter().all(|found| *found == rule),
                None => ran.succeeded() && ran.stderr.contains("nothing found"),
            };
            report.expect(right, &format!("checks: {case} on {target}: {}", rule.unwrap_or("silent")), &ran);
        }
    }
    let kernels = stand.compile(&KERNELS)?;
    let ran = stand.run(&["--check", "all", "--error-exitcode", "9"], &kernels, &[], &[])?;
    report.expect(ran.succeeded() && all_right(&ran.stdout), "checks: a program that is right is silent", &ran);

    for target in ["gfx900", "gfx1030"] {
        let explore = ["--target", target, "--explore", "9"];
        for (case, twin, lacks) in [("order", "order-twin", "barrier"), ("arrival", "arrival-twin", "wait")] {
            let ran = stand.run(&explore, &planted, &[case], &[])?;
            let found = ran.code == Some(1) && ran.stderr.contains("changes the program's output, in line ");
            report.expect(found, &format!("orders: a kernel without a {lacks} on {target}"), &ran);
            let ran = stand.run(&explore, &planted, &[twin], &[])?;
            let same = ran.succeeded() && ran.stderr.contains("is the same in 9 other orders");
            report.expect(same, &format!("orders: the kernel with the {lacks} on {target}"), &ran);
        }
    }
    for (switch, case) in [(Switch::UsualOrder, "order"), (Switch::PromptLoads, "arrival")] {
        let broken = stand.broken(switch.name(), &["--explore", "9"], &planted, &[case])?;
        report.expect(broken.succeeded(), &format!("control: {case} is not found with {}", switch.name()), &broken);
    }
    for seed in ["3", "4"] {
        let order = format!("random:{seed}");
        let sums = [0; 2].map(|_: i32| stand.run(&["--schedule", &order], &planted, &["order"], &[]));
        let [Ok(one), Ok(other)] = sums else { bail!("a program could not be run") };
        report.expect(one.succeeded() && one.stdout == other.stdout, &format!("orders: {order} is one order"), &other);
    }

    let blind = [
        (Switch::BlindMemory, "past"),
        (Switch::BlindRace, "race"),
        (Switch::BlindMemoryRace, "parts"),
        (Switch::BlindWaits, "early"),
        (Switch::BlindHazards, "lane"),
        (Switch::BlindInit, "store"),
    ];
    for (switch, case) in blind {
        let broken = stand.broken(switch.name(), &["--check", "all", "--error-exitcode", "9"], &planted, &[case])?;
        let what = format!("control: {case} is not found by checks that are blind ({})", switch.name());
        report.expect(broken.succeeded(), &what, &broken);
    }
    Ok(())
}
