// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One pre-decoded instruction, and what its handler works on.
//!
//! A step has a handler and the places of its operands. Registers of a source are found by one mask
//! and one addition. A source is a row of the wave (its offset from the first), or a row of
//! constants (its address, with no mask). A wave's rows are checked when it enters a block, and not
//! by handlers.

use super::cache::Cache;
#[cfg(target_arch = "x86_64")]
use super::native::Native;
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Mode, Row, Wave};
use crate::world::World;
use std::cell::Cell;
#[cfg(target_arch = "x86_64")]
use vkfd_isa::Inst;
use vkfd_isa::Operand;
#[cfg(target_arch = "x86_64")]
use vkfd_translate::Region;

/// Where execution goes after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flow {
    /// To the step after [`Cx::at`].
    Next,
    /// Nothing was done: the reference engine is to execute the instruction of [`Cx::at`].
    Slow,
    /// To the block at [`Cx::next`].
    Jump,
    /// There, too, from the branch of [`Cx::at`] in the middle of a superblock.
    SideExit,
    /// Out of the engine, at the instruction after that of [`Cx::at`]: a barrier, or the end.
    Barrier,
    Ended,
}

/// A handler.
///
/// # Safety
/// The processor has the features that the handler was compiled with, and the wave has the rows and
/// scalar registers that the step names.
pub(super) type Run = unsafe fn(&Step, &mut Cx) -> Flow;

/// A row or scalar register, or a constant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    mask: usize,
    offset: usize,
}

impl Source {
    /// Row or register, by bytes from the first.
    pub(super) const fn register(offset: usize) -> Source {
        Source { mask: usize::MAX, offset }
    }

    /// A constant at an address.
    pub(super) const fn constant(address: usize) -> Source {
        Source { mask: 0, offset: address }
    }

    /// Bytes from the first row or register, unless it is a constant.
    pub(super) fn in_registers(self) -> Option<usize> {
        (self.mask != 0).then_some(self.offset)
    }

    /// The place, given where registers begin. Constants come with their exposed address.
    #[inline(always)]
    pub(super) fn pointer(self, registers: *mut u8) -> *const u32 {
        let base = registers.expose_provenance() & self.mask;
        std::ptr::with_exposed_provenance(base.wrapping_add(self.offset))
    }
}

/// A row as it was: its place, in bytes from the first row, and the address of the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    pub(super) row: usize,
    pub(super) copy: usize,
}

impl Undo {
    /// Makes the row what it was.
    pub(super) fn put_back(self, cx: &mut Cx) {
        let from = std::ptr::with_exposed_provenance::<Row>(self.copy);
        // SAFETY: the copy is a temporary row, which outlives the block; the wave has the row.
        unsafe { cx.row_mut(self.row).cast::<Row>().write(from.read()) };
    }
}

/// Numbers of rows: the destination's, the sources'. A source in a scalar register has that one's.
pub(super) type Operands = [u16; 4];

/// The handler of a chain.
#[derive(Clone, Copy)]
pub(super) struct Chained {
    pub(super) run: Run,
    /// Which source is in a scalar register; 0: none.
    pub(super) scalar: u8,
}

#[cfg(debug_assertions)]
impl Chained {
    /// No source is in a scalar register.
    pub(super) fn in_rows(self) -> bool {
        self.scalar == 0
    }
}

/// What a step does in a sum of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    /// It adds the carry.
    pub(super) high: bool,
    pub(super) avx2: bool,
    /// Which source is in a scalar register; 0: none.
    pub(super) kind: u8,
}

/// A part of a block that is translated.
#[cfg(target_arch = "x86_64")]
pub(super) struct Entry {
    pub(super) region: Region,
    /// The handler of the step that it stands for.
    pub(super) plain: Run,
    /// The last step of its instructions.
    pub(super) last: *const Step,
    /// Its instructions, which are the block's.
    pub(super) insts: *const [Inst],
    /// Bytes from the block's begin to its first instruction.
    pub(super) offset: u64,
    /// The same to the end of each of them, or to the next one; empty unless regions are checked.
    pub(super) behinds: Box<[u64]>,
    /// The branches of a superblock in its middle: their numbers in the region, and their steps.
    pub(super) outs: Box<[(usize, *const Step)]>,
    /// Rounds that were done, and lanes that were loaded singly and loads that missed.
    pub(super) rounds: Cell<u32>,
    pub(super) singles: Cell<u32>,
}

#[cfg(target_arch = "x86_64")]
impl Entry {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Entry>() + self.region.bytes() + size_of_val(&*self.behinds) + size_of_val(&*self.outs)
    }
}

/// A pre-decoded instruction.
pub(super) struct Step {
    pub(super) run: Run,
    /// Bytes from the first row to the destination; for scalar instructions, the number of the
    /// register.
    pub(super) dst: usize,
    /// Sources that are rows or constants; for scalar instructions, scalar registers or constants.
    pub(super) src: [Source; 3],
    /// Numbers of the scalar registers among the sources of vector instructions, and of a mask that
    /// is read or written.
    pub(super) scalar: [u8; 4],
    /// What else there is: a branch's target, an offset.
    pub(super) imm: i64,
    /// What to put back before the reference engine executes the instruction, of which another step
    /// was done already.
    pub(super) undo: Option<Undo>,
    /// Index of the instruction in its block.
    pub(super) inst: u32,
    /// Bytes from the block's begin to the instruction.
    pub(super) offset: u32,
    /// Its length.
    pub(super) bytes: u32,
    /// The step after this one; set when the block is complete, null in its last step.
    pub(super) next: *const Step,
    /// The handler of this step by itself, where `run` is a chain's.
    pub(super) alone: Run,
    /// The rest of a vector operation, see [`super::rest`], or the handler for operands that `run`
    /// leaves. Then the number of the operation, and the source that is in a scalar register,
    /// counted from one.
    pub(super) rest: Run,
    pub(super) op: u16,
    pub(super) kind: u8,
    /// Chains that it can be in, see [`super::chain`].
    pub(super) chained: Option<Chained>,
    /// Its part in a sum of 64 bits, see [`super::sum`].
    pub(super) half: Option<Half>,
    /// What it stores may go past the caches: nothing in its block orders it.
    pub(super) past: bool,
    /// The processor has AVX-512, which handlers of memory use beside AVX2.
    pub(super) avx512: bool,
    /// None of the rows that it loads has addresses: words may be loaded into them at once.
    pub(super) apart: bool,
    /// It has no handler: the reference engine executes its instruction. (A function's address says
    /// nothing of that, since a compiler may make several copies of a function.)
    pub(super) is_left: bool,
    /// Sabotage: a matrix operation leaves out what is the reference engine's.
    #[cfg(debug_assertions)]
    pub(super) loses_tiles: bool,
    /// Sabotage: a load takes all lanes for lanes near each other.
    #[cfg(debug_assertions)]
    pub(super) guesses: bool,
    /// The operands of the chain that begins here, for how many steps, and the step behind them.
    pub(super) chain: *const Operands,
    pub(super) links: u32,
    pub(super) behind: *const Step,
    /// The region that begins here.
    #[cfg(target_arch = "x86_64")]
    pub(super) region: *const Entry,
}

impl Step {
    /// On to the next step, from within this one's handler: where the compiler makes a jump of the
    /// call, no loop is in between.
    ///
    /// For handlers without arrays on their stack; others use [`Step::done`], so that their frames
    /// do not pile up where the compiler makes a call of it.
    ///
    /// # Safety
    /// As for [`Run`]; not of a block's last step.
    #[inline(always)]
    pub(super) unsafe fn go_on(&self, cx: &mut Cx) -> Flow {
        // SAFETY: the block has a step after this one, and lives while it runs.
        unsafe {
            let next = &*self.next;
            (next.run)(next, cx)
        }
    }

    /// On to the next step, by way of the loop.
    #[inline(always)]
    pub(super) fn done(&self, cx: &mut Cx) -> Flow {
        cx.at = self;
        Flow::Next
    }

    /// The reference engine is to execute the instruction; nothing was done.
    #[inline(always)]
    pub(super) fn slow(&self, cx: &mut Cx) -> Flow {
        cx.at = self;
        Flow::Slow
    }
}

/// What handlers work on.
pub(super) struct Cx<'a> {
    /// The first row.
    pub(super) rows: *mut u8,
    /// The first scalar register.
    pub(super) scalars: *mut u32,
    pub(super) wave: &'a mut Wave,
    pub(super) group: &'a mut Group,
    pub(super) world: &'a mut dyn World,
    pub(super) cache: &'a mut Cache,
    /// The step whose handler has returned to the loop.
    pub(super) at: *const Step,
    /// Lanes there are.
    pub(super) all: u64,
    /// EXEC as the program has it, while the steps of one instruction run with fewer lanes (DPP).
    pub(super) saved: Option<u64>,
    /// MODE has nothing that the host does otherwise: it rounds to nearest, keeps denormals and
    /// quiets NaNs. Compilers set IEEE for compute kernels; without it, lanes are computed singly.
    pub(super) plain: bool,
    /// Nor has it for halves and doubles; singles may lose denormals.
    pub(super) wide: bool,
    /// Signalling NaNs become quiet: IEEE is set.
    pub(super) quiets: bool,
    /// Address of the block.
    pub(super) pc: u64,
    /// Where a jump goes.
    pub(super) next: u64,
    /// Why the reference engine leaves.
    pub(super) exit: Exit,
    /// What is left of the budget, when the block begins.
    pub(super) left: u64,
    /// How often the block's instructions were done.
    pub(super) rounds: u32,
    /// The engine's translator; null if it has none.
    #[cfg(target_arch = "x86_64")]
    pub(super) native: *mut Native,
    /// Operations that the reference engine has executed.
    #[cfg(debug_assertions)]
    pub(super) slow: crate::few::Few<vkfd_isa::Op>,
}

/// The bits of MODE that keep denormal singles, of sources and of results.
#[cfg(target_arch = "x86_64")]
const SINGLES_KEPT: u32 = 0x30;

impl<'a> Cx<'a> {
    pub(super) fn new(
        wave: &'a mut Wave,
        group: &'a mut Group,
        world: &'a mut dyn World,
        cache: &'a mut Cache,
    ) -> Cx<'a> {
        let all = wave.all();
        let mut cx = Cx {
            rows: std::ptr::null_mut(),
            scalars: std::ptr::null_mut(),
            wave,
            group,
            world,
            cache,
            at: std::ptr::null(),
            all,
            saved: None,
            plain: false,
            wide: false,
            quiets: false,
            pc: 0,
            next: 0,
            exit: Exit::Yield,
            left: 0,
            rounds: 1,
            #[cfg(target_arch = "x86_64")]
            native: std::ptr::null_mut(),
            #[cfg(debug_assertions)]
            slow: crate::few::Few::new(),
        };
        cx.refresh();
        cx
    }

    /// A number of the wave's access by a step. Steps lie one behind the other, and each wave of a
    /// group has accesses of its own. Others may have the same number.
    #[inline(always)]
    pub(super) fn access(&self, step: &Step) -> usize {
        std::ptr::from_ref(step).addr() / size_of::<Step>() + 61 * usize::from(self.wave.index)
    }

    /// After the wave was used as a whole: pointers into it, and what MODE says.
    pub(super) fn refresh(&mut self) {
        self.rows = self.wave.rows.as_mut_ptr().cast();
        self.scalars = self.wave.scalar.as_mut_ptr();
        // Round and denormal fields, IEEE, and FP16_OVFL.
        self.plain = self.wave.mode.0 & 0x80_02ff == Mode::DEFAULT.0 & 0x80_02ff;
        self.wide = self.wave.mode.0 & 0x80_02cf == Mode::DEFAULT.0 & 0x80_02cf;
        self.quiets = self.wave.mode.ieee();
    }

    /// MODE, as translated code differs by it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn mode(&self) -> vkfd_translate::Mode {
        use vkfd_translate::Mode as Kind;
        match (self.plain, self.wide) {
            (true, _) => Kind::Usual,
            (_, true) if self.wave.mode.0 & SINGLES_KEPT == 0 => Kind::Flushing,
            (_, true) => Kind::Mixed,
            _ => Kind::Other,
        }
    }

    /// A source row.
    #[inline(always)]
    pub(super) fn row(&self, source: Source) -> *const u32 {
        source.pointer(self.rows)
    }

    /// A destination row.
    #[inline(always)]
    pub(super) fn row_mut(&self, offset: usize) -> *mut u32 {
        self.rows.wrapping_add(offset).cast()
    }

    /// A scalar register.
    ///
    /// # Safety
    /// There are 128.
    #[inline(always)]
    pub(super) unsafe fn scalar(&self, index: u8) -> u32 {
        debug_assert!(index < 128);
        // SAFETY: in the array, the caller says.
        unsafe { *self.scalars.add(index.into()) }
    }

    /// Two scalar registers.
    ///
    /// # Safety
    /// Both are below 128.
    #[inline(always)]
    pub(super) unsafe fn pair(&self, index: u8) -> u64 {
        debug_assert!(index < 127);
        // SAFETY: as in `scalar`; words need no alignment together.
        unsafe { self.scalars.add(index.into()).cast::<u64>().read_unaligned() }
    }

    /// An address in two scalar registers. Programs add to its words one by one, and the processor
    /// would have a load of both wait for everything that was stored before.
    ///
    /// # Safety
    /// Both are below 128.
    #[inline(always)]
    pub(super) unsafe fn address(&self, index: u8) -> u64 {
        debug_assert!(index < 127);
        let first = self.scalars.wrapping_add(index.into());
        // SAFETY: as in `scalar`. Volatile loads stay two.
        unsafe { u64::from(first.read_volatile()) | u64::from(first.add(1).read_volatile()) << 32 }
    }

    /// A buffer's descriptor in four scalar registers. Programs change its words one by one, too.
    ///
    /// # Safety
    /// All are below 128.
    #[inline(always)]
    pub(super) unsafe fn descriptor(&self, index: u8) -> [u32; 4] {
        debug_assert!(index < 125);
        let first = self.scalars.wrapping_add(index.into());
        // SAFETY: as in `scalar`. Volatile loads stay four.
        std::array::from_fn(|n| unsafe { first.add(n).read_volatile() })
    }

    /// Sets two scalar registers.
    ///
    /// # Safety
    /// Both are below 128.
    #[inline(always)]
    pub(super) unsafe fn set_pair(&mut self, index: u8, value: u64) {
        debug_assert!(index < 127);
        // SAFETY: as in `pair`.
        unsafe { self.scalars.add(index.into()).cast::<u64>().write_unaligned(value) };
    }

    /// Sets a mask of lanes: one register or two, as the wave has lanes. NULL takes nothing.
    ///
    /// # Safety
    /// As for `set_pair`.
    #[inline(always)]
    pub(super) unsafe fn set_mask(&mut self, index: u8, value: u64) {
        if index == Operand::NULL {
            return;
        }
        // SAFETY: as in `pair`.
        unsafe {
            if self.all == u64::MAX {
                self.set_pair(index, value);
            } else {
                *self.scalars.add(index.into()) = value as u32;
            }
        }
    }

    /// EXEC, of the lanes that there are.
    #[inline(always)]
    pub(super) fn exec(&self) -> u64 {
        // SAFETY: both registers are in the array.
        unsafe { self.pair(Operand::EXEC) & self.all }
    }
}

/// In operations of 64 bits: what `scalar` has of a source that is in no scalar register.
pub(super) const IN_ROWS: u8 = 255;
pub(super) const CONSTANT: u8 = 254;

/// Of a comparison's modifiers: EXEC is written, too.
pub(super) const TO_EXEC: u8 = 1 << 7;

/// Bytes of a row.
pub(super) const ROW: usize = size_of::<Row>();

/// Which instruction a step is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) inst: u32,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

impl Place {
    /// A step without operands.
    pub(super) fn step(self, run: Run) -> Step {
        Step {
            run,
            dst: 0,
            src: [Source::register(0); 3],
            scalar: [0; 4],
            imm: 0,
            undo: None,
            inst: self.inst,
            offset: self.offset,
            bytes: self.bytes,
            next: std::ptr::null(),
            alone: run,
            rest: run,
            op: 0,
            kind: 0,
            chained: None,
            half: None,
            past: false,
            avx512: false,
            apart: false,
            is_left: false,
            #[cfg(debug_assertions)]
            loses_tiles: false,
            #[cfg(debug_assertions)]
            guesses: false,
            chain: std::ptr::null(),
            links: 0,
            behind: std::ptr::null(),
            #[cfg(target_arch = "x86_64")]
            region: std::ptr::null(),
        }
    }
}
