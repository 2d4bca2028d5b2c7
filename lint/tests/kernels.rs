// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client library's kernels: a compiler's code has no finding, and each wait that is taken out
//! of it is noticed, or has a reason.

#[path = "../examples/alarms/removal.rs"]
mod removal;

use std::collections::BTreeMap;
use std::path::Path;

use removal::{reason, removals, Kind};
use vkfd_findings::{text, Findings, Severity};
use vkfd_isa::Target;
use vkfd_lint::{lint, Checks, Object};

fn object(target: Target) -> Object {
    let code = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("kernels").join("code");
    let file = code.join(target.name()).with_extension("co");
    Object::read(&std::fs::read(file).expect("a file")).expect("a code object")
}

fn findings(object: &Object) -> Findings {
    let mut findings = Findings::default();
    lint(object, "kernels", Checks::ALL, &mut findings);
    findings
}

#[test]
fn a_compilers_code_has_no_finding() {
    for target in Target::ALL {
        let findings = findings(&object(target));
        assert!(findings.is_clean(), "{target}: {}", text(&findings));
    }
}

#[test]
fn each_wait_that_is_taken_out_is_noticed_or_has_a_reason() {
    let mut counts: BTreeMap<(Kind, &str), u32> = BTreeMap::new();
    for target in Target::ALL {
        let all = object(target);
        for function in &all.functions {
            for removal in removals(target, &function.code) {
                let mut function = function.clone();
                function.code.clone_from(&removal.code);
                let one = Object { functions: vec![function], ..all.settings() };
                let noticed = !findings(&one).is_clean();
                let why = if noticed { "noticed" } else { reason(&removal).unwrap_or("?") };
                assert_ne!(why, "?", "{target}: {} + {:#x}", one.functions[0].name, 4 * removal.at);
                *counts.entry((removal.kind, why)).or_default() += 1;
            }
        }
    }
    let noticed = |kind| counts.get(&(kind, "noticed")).copied().unwrap_or(0);
    assert_eq!([Kind::Vmcnt, Kind::Lgkmcnt, Kind::Nop, Kind::OneState].map(noticed), [70, 178, 5, 3]);
}

/// A transcendental operation, and a use of its result soon after it: in a loop whose other rounds
/// come from far behind it, or not.
fn soon(in_loop: bool) -> Vec<Severity> {
    const TRANS: u32 = 0x7e14_5509; // v_rcp_f32 v10, v9
    const MOVE: u32 = 0x7e02_0301; // v_mov_b32 v1, v1
    const USE: [u32; 2] = [0xd760_000c, 0x0000_0b0a]; // v_readlane_b32 s12, v10, s5
    const BACK: u32 = 0xbfa2_fff7; // s_cbranch_scc1 -9, to the use
    const NOP: u32 = 0xbf80_0000;
    const END: u32 = 0xbfb0_0000;
    let back = if in_loop { BACK } else { NOP };
    let words = [TRANS, MOVE, USE[0], USE[1], MOVE, MOVE, MOVE, MOVE, MOVE, MOVE, back, END];
    let all = object(Target::Gfx1100);
    let mut function = all.functions[0].clone();
    function.code = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let findings = findings(&Object { functions: vec![function], ..all.settings() });
    let of_rule = findings.list().iter().filter(|counted| counted.finding.rule == "hazards/trans-use");
    of_rule.map(|counted| counted.finding.severity).collect()
}

#[test]
fn a_hazard_on_one_of_two_ways_is_a_warning() {
    assert_eq!(soon(false), [Severity::Error]);
    assert_eq!(soon(true), [Severity::Warning]);
}
