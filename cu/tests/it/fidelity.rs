// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The table of fidelity agrees with the engine. Missing operations are refused by name, all others
//! are executed, and no operation of compute code is missing.

#![allow(missing_docs, clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test")]

use crate::support;

use std::collections::BTreeMap;
use support::{group, wave, Numbers, BASE};
use vkfd_cu::{fidelity, reference, Exit, Fidelity, Flat, Refusal};
use vkfd_isa::{decode, encodings, Format, Op, Target};

/// What compute code does not contain, or this GPU says that it does not have: the reasons by the
/// names' beginnings.
const LEFT_OUT: [(&str, &str); 21] = [
    ("Image", "images"),
    ("VInterp", "interpolation"),
    ("LdsParamLoad", "interpolation"),
    ("LdsDirectLoad", "interpolation"),
    ("Exp", "exports"),
    ("DsGws", "global wave sync"),
    ("DsOrderedCount", "global data share"),
    ("GlobalAtomicOrderedAddB64", "global data share"),
    ("VScreenPartition4seB32", "graphics"),
    ("VIllegal", "no operation"),
    ("SCodeEnd", "no operation"),
    ("SEndpgmOrderedPsDone", "graphics"),
    ("SSethalt", "debuggers"),
    ("SSendmsghalt", "debuggers"),
    ("SSetkill", "debuggers"),
    ("SRfeRestoreB64", "trap handlers"),
    ("SSubvectorLoop", "not emitted by compilers"),
    ("DsAddGsReg", "graphics"),
    ("DsSubGsReg", "graphics"),
    ("DsBvhStack", "ray tracing"),
    ("BufferLoadLdsFormat", "formats to LDS"),
];

fn operations(target: Target) -> BTreeMap<Op, Vec<Vec<u32>>> {
    let mut found: BTreeMap<Op, Vec<Vec<u32>>> = BTreeMap::new();
    let mut numbers = Numbers(1);
    for encoding in encodings(target) {
        let words = encoding.words.max(1);
        // Registers in a range that the wave has; modifiers and flags zero where that decodes.
        for attempt in 0..24 {
            let mut code = encoding.value;
            for field in &encoding.fields {
                let value = match (attempt, field.width()) {
                    (0, _) => 0,
                    (_, 8) => numbers.word() & 0x1e,
                    (_, 9..) => 0x100 | numbers.word() & 0x1e,
                    (_, 1) => 0,
                    _ => numbers.word() & 0x0e,
                };
                field.set(&mut code, value);
            }
            let code = code[..words].to_vec();
            if decode(target, &code).is_ok_and(|inst| inst.op == encoding.op) {
                found.entry(encoding.op).or_default().push(code);
                break;
            }
        }
    }
    found
}

#[test]
fn what_compute_code_contains_is_there() {
    for target in Target::ALL {
        let mut missing: BTreeMap<&str, Vec<Op>> = BTreeMap::new();
        let (mut exact, mut near) = (0, 0);
        for (op, _) in operations(target) {
            match fidelity(op, target) {
                Fidelity::Exact => exact += 1,
                Fidelity::Approximate(_) => near += 1,
                Fidelity::Missing => {
                    let name = format!("{op:?}");
                    let reason = LEFT_OUT.iter().find(|(start, _)| name.starts_with(start));
                    missing.entry(reason.map_or("!", |(_, reason)| reason)).or_default().push(op);
                }
            }
        }
        println!(
            "{target}: {exact} exact, {near} approximate, {} missing",
            missing.values().map(Vec::len).sum::<usize>()
        );
        assert_eq!(missing.get("!"), None, "{target}");
    }
}

#[test]
fn the_engine_does_what_the_table_says() {
    for target in Target::ALL {
        for (op, codes) in operations(target) {
            for code in codes {
                let inst = decode(target, &code).expect("decoded before");
                let mut wave = wave(target);
                wave.lanes = if target.is_rdna() { 32 } else { 64 };
                for row in &mut wave.rows {
                    row.0 = [BASE as u32; 64];
                }
                let mut world = Flat::new(BASE, 4);
                let before = wave.clone();
                let result = reference::execute(&inst, &mut wave, &mut group(4096), &mut world);
                let unsupported = result == Err(Exit::Refused(Refusal::Unsupported(op)));
                match fidelity(op, target) {
                    // A known operation may be refused by name for its operands, such as an image's
                    // LDS or GDS.
                    Fidelity::Missing => assert!(unsupported, "{target} {op:?} {code:x?}: {result:?}"),
                    _ if inst.memory.gds || inst.format == Format::Mimg => {}
                    // Of the messages with an answer, the clock is known.
                    _ if matches!(op, Op::SSendmsgRtnB32 | Op::SSendmsgRtnB64) => {}
                    _ => assert!(!unsupported, "{target} {op:?} {code:x?} is refused"),
                }
                if matches!(result, Err(Exit::Refused(_) | Exit::Miss(_))) {
                    assert_eq!(wave.pc, before.pc, "{op:?}");
                    if matches!(result, Err(Exit::Refused(_))) {
                        assert!(wave == before, "{target} {op:?} {code:x?} was refused half way");
                    }
                }
            }
        }
    }
}
