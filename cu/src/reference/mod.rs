// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The reference engine: what an instruction means, one lane at a time.
//!
//! Written from AMD's manuals and in their order, never optimised: this is the definition of an
//! instruction, and the other engine is compared with it. Floating point is exact integer
//! arithmetic (`float`), so that neither the host's vector width nor its floating-point modes have
//! a part in results.
//!
//! | module | |
//! |---|---|
//! | `scalar`, `flow`, `hwreg` | SALU; branches, messages, waits; hardware registers |
//! | `vector`, `lanes` | how a vector operation runs; sources, modifiers, results |
//! | `semantics` | how an operation's meaning is written down |
//! | `meaning`; `vop1`, `vop2`, `vop3` | the meaning of an operation on one lane, by name; by encoding |
//! | `compare`, `carry`, `cross`, `packed` | comparisons; carries and selection; lane exchange; packed halves and words |
//! | `sdwa`, `dpp` | encodings' ways with sources |
//! | `matrix`, `wmma` | matrix operations of CDNA and gfx11 |
//! | `float`, `transcendental`, `convert`, `dot`, `multiply`, `kind` | arithmetic |
//! | `operand` | registers and constants |
//! | `memory` | instructions that reach memory |
//!
//! What is not implemented is refused by name, before anything has changed.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

pub(crate) mod carry;
pub(crate) mod compare;
mod convert;
pub(crate) mod cross;
mod dot;
pub(crate) mod dpp;
pub(crate) mod fidelity;
mod float;
#[cfg(test)]
mod float_tests;
mod flow;
mod hwreg;
mod kind;
pub(crate) mod lanes;
mod matrix;
mod meaning;
pub mod memory;
mod multiply;
pub(crate) mod operand;
pub(crate) mod packed;
pub(crate) mod scalar;
pub(crate) mod sdwa;
mod semantics;
mod transcendental;
pub(crate) mod vector;
mod vop1;
mod vop2;
mod vop3;
mod wmma;

use crate::exit::{Exit, Refusal};
use crate::group::Group;
use crate::launch::{Engine, Section};
use crate::wave::Wave;
use crate::world::{Access, World};
use fidelity::{fidelity, Fidelity};
use flow::Next;
use vkfd_isa::{decode_as_hardware, Format, Inst, Op, MAX_WORDS};

pub(crate) use carry::{div_scale32, div_scale64};
pub(crate) use kind::Kind;
#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::Dense;
pub(crate) use matrix::{shape as matrix_shape, Element, Shape as MatrixShape};
pub(crate) use operand::uniform;
pub(crate) use transcendental::{cosine, sine};

/// Kinds of a vector operation's operands, for callers that prepare them elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    pub(crate) dst: Kind,
    pub(crate) src: [Kind; 3],
    /// The third source is the destination.
    pub(crate) tied: bool,
    /// gfx9 clears the high half over a 16-bit result.
    pub(crate) clears: bool,
}

/// The kinds of an operation that is a function of one lane, a comparison, or has a mask.
pub(crate) fn kinds(op: Op) -> Option<Kinds> {
    if let Some(question) = compare::question(op) {
        let second = match (question.test, question.kind) {
            (compare::Test::Class, Kind::F16) => Kind::B16,
            (compare::Test::Class, _) => Kind::B32,
            (_, kind) => kind,
        };
        let src = [question.kind, second, Kind::B32];
        return Some(Kinds { dst: Kind::B64, src, tied: false, clears: false });
    }
    if let Some((dst, src)) = carry::kinds(op) {
        return Some(Kinds { dst, src, tied: false, clears: false });
    }
    let meaning = meaning::semantics(op)?;
    let clears = meaning.half == semantics::Half::Clear;
    Some(Kinds { dst: meaning.dst, src: meaning.src, tied: meaning.tied, clears })
}

/// An operation that is a function of one lane.
pub(crate) struct Function(semantics::Semantics);

impl Function {
    /// That of `op`, whose sources have 32 bits or less.
    pub(crate) fn of(op: Op) -> Option<Function> {
        let meaning = meaning::semantics(op)?;
        meaning.src.iter().take(meaning.sources()).all(|kind| kind.words() == 1).then_some(Function(meaning))
    }

    /// That of `op`, whatever its sources.
    pub(crate) fn wide(op: Op) -> Option<Function> {
        meaning::semantics(op).map(Function)
    }

    /// As [`Function::lane`], of sources of 64 bits or less.
    pub(crate) fn lane64(&self, wave: &Wave, lane: usize, vcc: u64, words: [u64; 3]) -> u64 {
        self.0.lane(&lanes::env(wave, lane, vcc), words, false)
    }

    pub(crate) fn sources(&self) -> usize {
        self.0.sources()
    }

    pub(crate) fn result(&self) -> Kind {
        self.0.dst
    }

    /// The result of a lane, from its sources as the encoding has made them; of floating point it
    /// is not clamped.
    pub(crate) fn lane(&self, wave: &Wave, lane: usize, vcc: u64, words: [u32; 3], clamp: bool) -> u64 {
        let mut values = words.map(u64::from);
        for (value, kind) in values.iter_mut().zip(self.0.src) {
            *value &= kind.mask();
        }
        self.0.lane(&lanes::env(wave, lane, vcc), values, clamp)
    }
}

/// A function of singles, as MODE usually is.
#[cfg(test)]
pub(crate) fn single(op: Op, words: [u32; 3]) -> u32 {
    let env =
        semantics::Env { mode: crate::wave::Mode::DEFAULT, target: vkfd_isa::Target::Gfx900, lane: 0, vcc: false };
    meaning::semantics(op).map_or(0, |meaning| kind::low32(meaning.lane(&env, words.map(u64::from), false)))
}

/// A function of one half, as MODE usually is.
pub(crate) fn of_half(op: Op, target: vkfd_isa::Target, half: u32) -> u32 {
    let env = semantics::Env { mode: crate::wave::Mode::DEFAULT, target, lane: 0, vcc: false };
    meaning::semantics(op).map_or(0, |meaning| kind::low32(meaning.lane(&env, [half.into(), 0, 0], false)))
}

/// From which lane each of a wave's lanes takes its value by DPP; none reads zero. With all lanes
/// active.
pub(crate) fn dpp_source(kind: vkfd_isa::DppKind, lane: usize, lanes: usize) -> Option<usize> {
    dpp::named(kind, lane, lanes)
}

/// An inline floating-point constant of a kind.
pub(crate) fn inline_float(code: u8, kind: Kind) -> u64 {
    operand::inline_float(code, kind)
}

/// Instructions between two questions whether the gate is wanted.
const BATCH: u32 = 64;

/// The engine as a thread has it; it keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Engine for Reference {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        run(wave, group, world, budget)
    }

    fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> Section {
        Section::UNKNOWN
    }
}

/// Runs a wave for `budget` instructions, until it is left for another reason, or the gate is
/// wanted. The gate is open.
pub fn run<W: World>(wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
    let mut done = 0;
    let exit = loop {
        if done >= budget || done % BATCH == 0 && world.wanted() {
            break Exit::Yield;
        }
        let result = fetch(wave, world).and_then(|inst| {
            execute(&inst, wave, group, world)?;
            if let Fidelity::Approximate(_) = fidelity(inst.op, wave.target) {
                world.inexact(inst.op);
            }
            Ok(())
        });
        match result {
            Ok(()) => done += 1,
            Err(exit @ (Exit::Miss(_) | Exit::Refused(_))) => break exit,
            Err(exit) => {
                done += 1;
                break exit;
            }
        }
    };
    world.retired(done.into());
    exit
}

/// The instruction at the program counter.
///
/// # Errors
/// [`Exit::Miss`] if its bytes are not there, [`Exit::Refused`] if they are no instruction.
pub fn fetch<W: World>(wave: &Wave, world: &mut W) -> Result<Inst, Exit> {
    let mut words = [0; MAX_WORDS];
    if let Some(first) = words.first_mut() {
        *first = fetch_word(wave.pc, world)?;
    }
    let mut count = 1;
    // More than the first word is fetched only as far as the instruction goes: what follows it may
    // not be there.
    loop {
        match decode_as_hardware(wave.target, words.get(..count).unwrap_or(&[])) {
            Ok(inst) => return Ok(inst),
            // Fixed bits may lie in a word that is not there yet, so an unknown beginning is no
            // verdict.
            Err(_) if count < MAX_WORDS => {
                let word = fetch_word(wave.pc.wrapping_add(4 * count as u64), world)?;
                if let Some(slot) = words.get_mut(count) {
                    *slot = word;
                }
                count += 1;
            }
            Err(_) => {
                let word = words.first().copied().unwrap_or(0);
                return Err(Exit::Refused(Refusal::Illegal { word }));
            }
        }
    }
}

fn fetch_word<W: World>(pc: u64, world: &mut W) -> Result<u32, Exit> {
    let span = world.translate(pc, Access::Execute).map_err(Exit::Miss)?;
    let lost = |_| Exit::Miss(crate::exit::Miss { va: pc, access: Access::Execute, lost: true, reason: 0 });
    let mut bytes = [0u8; 4];
    if span.len < 4 || pc % 4 != 0 {
        // No instruction lies across pages, nor at an odd address.
        return Err(Exit::Refused(Refusal::Illegal { word: 0 }));
    }
    // SAFETY: the span is the world's, good until the gate is left, and may vanish; the destination
    // is this frame's.
    unsafe { vkfd_raw::copy(bytes.as_mut_ptr(), span.ptr, bytes.len()) }.map_err(lost)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Executes a decoded instruction. Afterwards the program counter is at the instruction that runs
/// next: for [`Exit::Miss`] and [`Exit::Refused`] the same one, else the following one or a
/// branch's target.
///
/// # Errors
/// Why the wave is left.
pub fn execute<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    let next = step(inst, wave, group, world)?;
    wave.pc = match next {
        Next::At(pc) => pc,
        Next::Following | Next::Leave(_) => wave.pc.wrapping_add(inst.bytes.into()),
    };
    match next {
        Next::Leave(exit) => Err(exit),
        _ => Ok(()),
    }
}

fn step<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<Next, Exit> {
    if let Some(result) = flow::execute(inst, wave, group, world) {
        return result;
    }
    match inst.format {
        Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => scalar::execute(inst, wave, group)?,
        Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vopd => {
            if !vector::skips(wave) {
                vector::execute(inst, wave, group)?;
            }
        }
        Format::Ds | Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Mtbuf
            if vector::skips(wave) => {}
        Format::Smem | Format::Ds | Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Mtbuf => {
            memory::execute(inst, wave, group, world)?
        }
        Format::Sopp | Format::Vintrp | Format::Ldsdir | Format::Mimg | Format::Exp => {
            return Err(Exit::Refused(Refusal::Unsupported(inst.op)));
        }
    }
    Ok(Next::Following)
}

/// Whether the operation is implemented.
pub(crate) fn knows(op: Op) -> bool {
    flow::knows(op)
        || scalar::knows(op)
        || meaning::semantics(op).is_some()
        || compare::question(op).is_some()
        || carry::knows(op)
        || cross::knows(op)
        || packed::knows(op)
        || matrix::shape(op).is_some()
        || wmma::knows(op)
        || memory::knows(op)
        || memory::gws::knows(op)
}

/// Whether it is a matrix operation of gfx11.
pub(crate) fn is_wmma(op: Op) -> bool {
    wmma::knows(op)
}

/// Whether it is a sparse matrix operation.
pub(crate) fn is_sparse(op: Op) -> bool {
    matrix::shape(op).is_some_and(|shape| shape.sparse)
}
