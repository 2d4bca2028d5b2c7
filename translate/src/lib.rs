// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hot GPU code as code of the host.
//!
//! An engine that meets a block of GPU code often has it translated. [`translate`] takes the
//! decoded instructions and makes [`Region`]s of them. A region is a part of the block, or a loop
//! that is one block. It computes the same bits as the engine's handlers. Instructions outside of
//! regions stay with their handlers, so any part may be left out.
//!
//! The crate knows instructions ([`vkfd_isa`]) and how a wave's registers lie in memory
//! ([`Registers`]). It knows no engine, no memory of a GPU and no launch, and compiles in seconds.
//! docs/design/translation.md has the design.
//!
//! | module | |
//! |---|---|
//! | `plan` | which instructions make a region |
//! | `region` | its code, and how it is run |
//! | `ring` | loops of several blocks |
//! | `ops` | the vector operations, a line each |
//! | `scalar` | the scalar operations |
//! | `exchange` | exchanges between lanes |
//! | `emit`, `width` | vectors of a strip, for AVX2 and AVX-512 |
//! | [`series`] | coefficients that the interpreter has too |
//! | `assembler` | the host's instructions |
//! | [`arena`] | memory for code, never writable and executable at once |
//! | `host` | whether the processor hands NaNs on as the table of operations has it |
//! | `context` | what machine code and the engine share |
//! | `slots` | pages that code has a host pointer for |
//! | `stubs` | the routines by which regions call the engine |
//! | `translator` | what a thread's translations leave for its later ones |
//!
//! Limits: without an x86-64 processor with AVX2 nothing is translated. Vector operations on 16
//! bits, most of those on 64, SDWA, DPP, atomic operations but sums in LDS, and vector operations
//! that write EXEC stay the engine's.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

pub mod arena;
mod assembler;
mod context;
mod emit;
mod exchange;
mod host;
mod mode;
mod ops;
mod plan;
mod region;
mod ring;
mod scalar;
pub mod series;
mod slots;
mod stubs;
mod translator;
mod width;

pub use context::{Accessing, Context, Mending};
pub use host::is_exact;
pub use mode::{Arithmetic, Mode};
pub use plan::Accesses;
pub use region::{Left, Region, ROUNDS};
pub use ring::{Link, Ring, Turned};
pub use translator::Translator;
pub use width::Width;

use vkfd_isa::{Inst, Op, Operand};
use vkfd_sabotage::Switches;

/// Which registers waves have, and where.
pub trait Registers {
    /// Lanes: 32 or 64.
    fn lanes(&self) -> u8;
    /// The row of a vector register, if the waves have it.
    fn row(&self, operand: Operand) -> Option<u16>;
    /// The first of `words` scalar registers, if the waves have them and they are ordinary.
    fn scalar(&self, operand: Operand, words: u8) -> Option<u8>;
    /// The first scalar register of a mask of lanes, or NULL.
    fn mask(&self, operand: Operand) -> Option<u8>;
    /// Whether an operation's result of 16 bits makes zeros of the other half of its register.
    fn clears_half(&self, op: Op) -> bool;
    /// Lanes among which `ds_bpermute_b32` exchanges.
    fn exchange_lanes(&self) -> u8 {
        64
    }
    /// Words of such a mask.
    fn mask_words(&self) -> u8 {
        self.lanes() / 32
    }
}

/// Why an instruction is in no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The operation is in no table.
    Operation,
    /// Modifiers, parts of registers, other lanes, or a register that the wave does not have.
    Form,
    /// It would see scalar and vector instructions in another order, or it writes EXEC.
    Order,
    /// The block is no loop.
    Branch,
    /// There are too few vector instructions in a row.
    Short,
    /// The loop's scalars change too often.
    Trace,
    /// The host's registers do not suffice.
    Encoding,
    /// The arena is full.
    Room,
}

impl Why {
    /// A word for it, as reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Why::Operation => "operation",
            Why::Form => "form",
            Why::Order => "order",
            Why::Branch => "branch",
            Why::Short => "short",
            Why::Trace => "trace",
            Why::Encoding => "encoding",
            Why::Room => "room",
        }
    }
}

/// Whether there are instructions with this operation that are translated.
#[must_use]
pub fn has(op: Op) -> bool {
    ops::operation(op).is_some() || scalar::has(op) || plan::is_two(op)
}

/// How a block is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// The host's vectors.
    pub width: Width,
    /// The accesses of memory and LDS that regions may have.
    pub accesses: Accesses,
    /// Nothing in the block orders its stores: they may go past the host's caches.
    pub past: bool,
    /// Loads of LDS may be done before stores to other bytes of it that come before them.
    pub crosses: bool,
}

impl From<(Width, Accesses)> for How {
    fn from((width, accesses): (Width, Accesses)) -> How {
        How { width, accesses, past: false, crosses: true }
    }
}

/// The instructions of a block.
#[derive(Clone, Copy, Debug)]
pub struct Straight<'a> {
    /// In the order in which a wave does them.
    pub insts: &'a [Inst],
    /// Those that end a part of a superblock: their numbers, and whether they are branches that are
    /// taken on the way. Empty for a block that is no superblock.
    pub ways: &'a [(usize, bool)],
}

impl<'a, T: AsRef<[Inst]> + ?Sized> From<&'a T> for Straight<'a> {
    fn from(insts: &'a T) -> Straight<'a> {
        Straight { insts: insts.as_ref(), ways: &[] }
    }
}

impl Straight<'_> {
    /// Of a branch in the middle of a superblock: its kind, unless it is always taken, and whether
    /// it is taken on the way.
    fn way(&self, index: usize) -> Option<(Option<plan::Branch>, bool)> {
        let at = self.ways.binary_search_by_key(&index, |(inst, _)| *inst).ok()?;
        let (_, taken) = *self.ways.get(at)?;
        let op = self.insts.get(index)?.op;
        match plan::Branch::of(op) {
            None if op != Op::SBranch => None,
            branch => Some((branch, taken)),
        }
    }
}

/// Makes regions of a block, in its order. `refused` gets the instructions that are in none, except
/// such as have too few beside them.
pub fn translate<'a>(
    code: impl Into<Straight<'a>>,
    registers: &dyn Registers,
    how: impl Into<How>,
    translator: &mut Translator,
    sabotage: &Switches,
    mut refused: impl FnMut(Op, Why),
) -> Vec<Region> {
    let (code, How { width, accesses, past, crosses }) = (code.into(), how.into());
    let insts = code.insts;
    let mut tell = |index: usize, why| {
        if let Some(inst) = insts.get(index) {
            refused(inst.op, why);
        }
    };
    let pass = |sequence: &mut plan::Sequence| {
        sequence.number();
        sequence.share_loads(registers.mask_words());
        if past {
            sequence.let_past();
        }
    };
    let looped =
        if code.ways.is_empty() { plan::looped(insts, registers, (accesses, crosses)) } else { Err(Why::Branch) };
    if let Ok(mut sequence) = looped {
        pass(&mut sequence);
        match Region::build(&mut sequence, registers, width, translator, sabotage) {
            Ok(region) => return vec![region],
            Err(why) => tell(insts.len().saturating_sub(1), why),
        }
    }
    let mut sequences = plan::straight(code, registers, (accesses, crosses), &mut tell);
    let mut regions = Vec::new();
    for sequence in &mut sequences {
        pass(sequence);
        match Region::build(sequence, registers, width, translator, sabotage) {
            Ok(region) => regions.push(region),
            Err(why) => tell(sequence.insts.start, why),
        }
    }
    regions
}
