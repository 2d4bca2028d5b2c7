// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much decoded code engines keep: bytes, not blocks, and of all engines of a budget together.
//!
//! The program enters each page at each of its instructions, so that each has a block, and each of
//! its instructions is several steps.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use std::sync::Arc;
use support::{group, wave, BASE};
use vkfd_cu::fast::{CodeBudget, Engine, OWN_CODE};
use vkfd_cu::{Exit, Flat};
use vkfd_isa::{Operand, Target};
use vkfd_sabotage::{Switch, Switches};

/// Pages of code behind the first.
const PAGES: usize = 2;
/// Instructions of a page that it is entered at.
const ENTRIES: u32 = 511;
/// Bytes beyond what a budget allows: blocks are counted when they are built.
const ONE_BLOCK: usize = 256 << 10;

/// A loop over all entries, and pages of SDWA instructions that return to it.
fn world() -> Flat {
    let mut world = Flat::new(BASE, 1 + PAGES);
    let code: [u32; 9] = [
        // s_swappc_b64 s[8:9], s[4:5]; s_add_u32 s4, s4, 8; s_addc_u32 s5, s5, 0
        0xbe88_1e04,
        0x8004_8804,
        0x8205_8005,
        // s_sub_u32 s6, s6, 1; s_cmp_lg_u32 s6, 0; s_cbranch_scc1 back
        0x8086_8106,
        0xbf07_8006,
        0xbf85_fffa,
        0xbf81_0000,
        0,
        0,
    ];
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    world.write(BASE, &bytes(&code));
    for page in 1..=PAGES as u64 {
        let mut words = Vec::new();
        for _ in 0..ENTRIES {
            // v_mul_f16_sdwa
            words.extend([0x4c00_04f9, 0x0502_1101]);
        }
        // s_setpc_b64 s[8:9]; s_nop 0
        words.extend([0xbe80_1d08, 0xbf80_0000]);
        world.write(BASE + page * 4096, &bytes(&words));
    }
    world
}

/// Runs the loop; the most bytes that the engine held.
fn run(engine: &mut Engine) -> usize {
    let mut world = world();
    let mut one = wave(Target::Gfx900);
    one.pc = BASE;
    one.set_pair(4, BASE + 4096);
    one.scalar[6] = PAGES as u32 * 512;
    one.set_pair(Operand::EXEC, u64::MAX);
    let mut most = 0;
    loop {
        let exit = engine.run(&mut one, &mut group(0), &mut world, 200);
        most = most.max(engine.code_bytes());
        match exit {
            Exit::Yield => {}
            exit => {
                assert_eq!(exit, Exit::End);
                return most;
            }
        }
    }
}

#[test]
fn decoded_code_is_bounded_in_bytes() {
    let budget = Arc::new(CodeBudget::new(2 << 20));
    let mut engine = Engine::sharing(Target::Gfx900, &budget);
    let most = run(&mut engine);
    assert!(most > OWN_CODE + (1 << 20), "{most}: what there is is used");
    assert!(most < OWN_CODE + (2 << 20) + ONE_BLOCK, "{most}");
    // Another one has its own bytes when the budget is exhausted, and gives back what it holds.
    let mut other = Engine::sharing(Target::Gfx900, &budget);
    let most = run(&mut other);
    assert!(most > OWN_CODE / 2, "{most}");
    assert!(engine.code_bytes() + most < 2 * OWN_CODE + (2 << 20) + 2 * ONE_BLOCK, "{most}");
    let beyond = |engine: &Engine| engine.code_bytes().saturating_sub(OWN_CODE);
    assert_eq!(budget.taken(), beyond(&engine) + beyond(&other));
    drop(engine);
    drop(other);
    assert_eq!(budget.taken(), 0);
}

#[test]
fn without_the_bound_it_grows() {
    let mut engine = Engine::sharing(Target::Gfx900, &Arc::new(CodeBudget::new(2 << 20)));
    engine.sabotage(Switches::NONE.with(Switch::KeptCode));
    let most = run(&mut engine);
    assert!(most > 32 << 20, "{most}");
}
