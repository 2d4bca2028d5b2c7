// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What compilers emit has handlers: the operations and forms that were counted in the code objects
//! of ggml, rocBLAS, rocPRIM, rocRAND, RCCL, Triton and tinygrad. `emitted/` has the lists, one a
//! target.

use super::support::{wave, Numbers};
use super::words::instruction;
use std::collections::{BTreeMap, BTreeSet};
use vkfd_cu::fast::Engine;
use vkfd_cu::Wave;
use vkfd_isa::{encodings, Extension, Format, Inst, Target};

/// What the reference engine executes on purpose, and why. A name ends with `*` if it is a
/// beginning.
const LEFT: &[(&str, &str)] = &[
    ("buffer_load_format*", "formatted buffers are slow whatever decodes them"),
    ("ds_gws*", "a wave waits for waves of other work-groups"),
    ("s_wakeup", "a hint to waves that sleep"),
    ("s_getreg_b32", "a field of a hardware register, which compilers read once a wave"),
    ("s_setreg*", "MODE changes, and the block ends with it"),
    ("s_sleep", "the wave's turn ends with it"),
    ("s_sendmsg", "a message leaves the engine"),
    ("s_trap", "ends the queue"),
    ("s_memrealtime", "the world's clock"),
    ("s_set_gpr_idx*", "registers are found through M0"),
    ("v_movrel*", "registers are found through M0"),
];

fn is_left(name: &str) -> bool {
    LEFT.iter().any(|(other, _)| other.strip_suffix('*').map_or(*other == name, |start| name.starts_with(start)))
}

/// The list of a target: forms, and the operations of each.
fn emitted(target: Target) -> Vec<(&'static str, &'static str)> {
    let text = match target {
        Target::Gfx900 => include_str!("emitted/gfx900.txt"),
        Target::Gfx90a => include_str!("emitted/gfx90a.txt"),
        Target::Gfx942 => include_str!("emitted/gfx942.txt"),
        Target::Gfx1030 => include_str!("emitted/gfx1030.txt"),
        Target::Gfx1100 => include_str!("emitted/gfx1100.txt"),
    };
    let mut form = "";
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_suffix(':') {
            Some(name) => form = name,
            None => all.extend(line.split_whitespace().map(|name| (form, name))),
        }
    }
    all
}

/// An instruction's forms, as the lists name them, and its operation in each form. An operation has
/// the target's assembler's name; a half of VOPD has the name of the whole operation.
fn forms(inst: &Inst) -> Vec<(String, &'static str)> {
    if let (Format::Vopd, Some(pair)) = (inst.format, &inst.pair) {
        return vec![("VOPD-X".into(), inst.op.name()), ("VOPD-Y".into(), pair.op.name())];
    }
    let mut form = format!("{:?}", inst.format).to_uppercase();
    match inst.extension {
        Extension::None => {}
        Extension::Sdwa(_) => form += "+SDWA",
        Extension::Dpp(_) => form += "+DPP",
    }
    vec![(form, inst.mnemonic())]
}

/// Whether the target has an operation in a form, and whether an instance of it has a handler.
fn handled(target: Target) -> BTreeMap<(String, &'static str), bool> {
    let mut engine = Engine::new(target);
    let mut numbers = Numbers(5);
    let mut found = BTreeMap::new();
    let lanes = if target.is_rdna() { 32 } else { 64 };
    let wave = Wave { lanes, ..wave(target) };
    for encoding in encodings(target) {
        for _ in 0..60 {
            let Some((inst, _)) = instruction(target, &encoding, &mut numbers) else { continue };
            let handled = engine.handles(&wave, &inst);
            for form in forms(&inst) {
                *found.entry(form).or_insert(false) |= handled;
            }
        }
    }
    found
}

#[test]
fn what_compilers_emit_has_handlers() {
    let mut missing = BTreeSet::new();
    for target in Target::ALL {
        let handled = handled(target);
        let list = emitted(target);
        assert!(list.len() > 100, "{target}: a list of {}", list.len());
        for (form, name) in list.into_iter().filter(|(_, name)| !is_left(name)) {
            match handled.get(&(form.to_owned(), name)) {
                Some(true) => {}
                Some(false) => {
                    missing.insert(format!("{target}: {name} ({form}) has no handler"));
                }
                None => {
                    missing.insert(format!("{target}: {name} ({form}) is not of the target"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A reason that nothing needs is noticed.
#[test]
fn what_is_left_on_purpose_is_emitted_and_has_no_handler() {
    let mut needed = BTreeSet::new();
    for target in Target::ALL {
        let handled = handled(target);
        for (form, name) in emitted(target) {
            if handled.get(&(form.to_owned(), name)) != Some(&true) {
                needed.insert(name);
            }
        }
    }
    let idle: Vec<_> = LEFT.iter().map(|(name, _)| name.trim_end_matches('*')).collect();
    let idle: Vec<_> = idle.into_iter().filter(|start| !needed.iter().any(|other| other.starts_with(start))).collect();
    assert!(idle.is_empty(), "these have handlers, or are not emitted: {idle:?}");
}
