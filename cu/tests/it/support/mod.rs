// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the tests of the engines share.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

pub mod program;
pub mod random;

use std::process::Command;
use vkfd_cu::{Apertures, Group, Lds, Mode, Place, Row, Watched, Wave};
use vkfd_isa::{decode, Extension, Format, Inst, Memory, Mods, Op, Operand, Target};

/// The high halves of the apertures' addresses, as KFD has them.
pub const APERTURES: Apertures = Apertures { shared: 1 << 16, private: 2 << 16 };

/// Where the tests' memory is.
pub const BASE: u64 = 0x7f12_3450_0000;

/// Runs the test of this name by another process, because a switch of the process is one for all
/// tests in it.
pub fn alone(name: &str, test: impl FnOnce()) {
    const VARIABLE: &str = "VKFD_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return test();
    }
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own).args(["--exact", name]).env(VARIABLE, "1").output().expect("this program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Decodes one instruction; `text` is its source.
pub fn code(target: Target, text: &str, words: &[u32]) -> Inst {
    decode(target, words).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An instruction without modifiers, of vector registers.
pub fn inst(op: Op, format: Format, dst: u16, src: [u16; 3]) -> Inst {
    Inst {
        op,
        format,
        extension: Extension::None,
        bytes: 8,
        entry: 0,
        dst: Operand::Vgpr(dst),
        sdst: Operand::None,
        src: src.map(Operand::Vgpr),
        imm: 0,
        mods: Mods::default(),
        memory: Memory::default(),
        pair: None,
    }
}

/// Each target, with the numbers of lanes that its waves may have.
pub fn waves() -> impl Iterator<Item = (Target, u8)> {
    Target::ALL.into_iter().flat_map(|target| {
        let lanes: &[u8] = if target.is_rdna() { &[32, 64] } else { &[64] };
        lanes.iter().map(move |lanes| (target, *lanes))
    })
}

/// A wave of 64 with 64 rows of each kind.
pub fn wave(target: Target) -> Wave {
    let mut wave = Wave {
        target,
        lanes: 64,
        pc: 0,
        scalar: [0; 128],
        scc: false,
        mode: Mode::DEFAULT,
        rows: vec![Row::ZERO; 128],
        acc: 64,
        sgprs: 104,
        flat_scratch: 0,
        trapsts: 0,
        done: 0,
        index: 0,
    };
    wave.set_pair(Operand::EXEC, u64::MAX);
    wave
}

pub fn group(lds: usize) -> Group {
    Group { lds: Lds::new(lds), apertures: APERTURES, watch: Watched::default(), place: Place::default() }
}

/// Numbers that only look random.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Puts a 64-bit value into two rows.
pub fn set_pair(wave: &mut Wave, row: usize, lane: usize, value: u64) {
    wave.rows[row].0[lane] = value as u32;
    wave.rows[row + 1].0[lane] = (value >> 32) as u32;
}
