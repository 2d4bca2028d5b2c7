// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fast engine: pre-decoded blocks, all lanes of a wave at once.
//!
//! Machine code is decoded once into blocks of steps: a handler and where its operands are.
//! Handlers do 64 lanes by vectors of eight. They exist in two forms, for AVX2 and for any
//! processor, that give the same bits. The reference engine executes an instruction without a
//! handler, and one that a handler finds too hard (NaNs, another rounding, an access that misses).
//! So this engine is complete. Lock-step tests compare both engines; where they differ, the
//! reference is right.
//!
//! After the instruction cache was invalidated, and where code lies elsewhere than before, a
//! block's code is compared with the words that were decoded. The gate is asked for at the begin of
//! each block.
//!
//! | module | |
//! |---|---|
//! | `layout`, `step`, `constants` | where waves have their registers; pre-decoded instructions |
//! | `code`, `block` | code as it was fetched, and a straight piece of steps |
//! | `piece` | code that only computes, for the engine with checks |
//! | `budget` | how many bytes of them are kept |
//! | `builder`, `translators` | from an instruction to its steps: its sources, and its translator |
//! | `simd`, `avx2` | vectors of eight lanes |
//! | `operation`, `vector`, `ops` | operations of 32 bits: what one is, shapes of handlers, all of them |
//! | `chain`, `sum` | FMAs one after another; sums of 64 bits in two instructions |
//! | `rest` | what handlers leave: NaNs, another MODE |
//! | `half`, `packed`, `mix` | operations of 16 bits, on both halves of a word, and of mixed precision |
//! | `pair` | operations on two words of a lane |
//! | `unfused`, `saturate`, `memo` | sums that round twice; integers that saturate; the rarer functions of a half |
//! | `function` | rare operations: the reference engine's function, lane by lane |
//! | `vop`, `prepare` | from an instruction of the vector encodings to steps; SDWA, DPP, modifiers |
//! | `special` | reciprocals and the like, divisions: their ordinary cases |
//! | `wide`, `compare64`, `shift64` | operations of 64 bits |
//! | `dual` | both halves of VOPD |
//! | `lane` | between scalar registers and lanes |
//! | `matrix`, `aligned`, `wmma` | matrix operations of CDNA2, CDNA3 and gfx11 |
//! | `wmma512` | those of gfx11 by AVX-512 |
//! | `doubles` | the product of 16 rows and columns in double precision |
//! | `matrix512`, `elements` | those of 32 or 16 rows that CDNA2 has, by AVX-512; the factors' elements |
//! | `scalar` | SALU and branches |
//! | `seam` | the world, as the reference engine gets it |
//! | [`native`], `region` | the translator, and its code among the steps of hot blocks |
//! | `rings` | translated loops of several blocks |
//! | `superblocks` | blocks that waves do one after the other, as one |
//! | `memory`, `cache` | memory, and the host pointers of pages |
//!
//! The reference engine keeps rare operations, and those that cost more than their decoding. These
//! are scalar stores and atomics, formatted buffers, `ds_*_src2`, registers found through M0,
//! fields of MODE, messages, sleeping, sums of distances over 64 bits, and cube maps.
//!
//! Decoded code is bounded in bytes ([`CodeBudget`]): an engine that has used up its part forgets
//! all of it, and decodes again what it runs.
//!
//! Limits: an engine belongs to one thread.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]
#![allow(clippy::needless_range_loop, reason = "lanes of several rows at once")]

mod aligned;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod block;
mod budget;
mod builder;
mod cache;
mod chain;
mod code;
mod compare64;
mod constants;
#[cfg(target_arch = "x86_64")]
mod doubles;
mod dual;
mod elements;
mod function;
mod half;
mod lane;
mod layout;
mod matrix;
#[cfg(target_arch = "x86_64")]
mod matrix512;
mod memo;
mod memory;
mod mix;
#[cfg(target_arch = "x86_64")]
pub mod native;
mod operation;
mod ops;
mod packed;
mod pair;
mod piece;
mod prepare;
#[cfg(target_arch = "x86_64")]
mod region;
mod rest;
#[cfg(target_arch = "x86_64")]
mod rings;
mod run;
mod saturate;
mod scalar;
mod seam;
mod section;
mod shift64;
mod simd;
#[cfg(target_arch = "x86_64")]
mod singles512;
mod special;
#[cfg(debug_assertions)]
mod spoil;
mod step;
mod sum;
#[cfg(target_arch = "x86_64")]
mod superblocks;
mod translators;
mod unfused;
mod vector;
mod vop;
mod wide;
mod wmma;
#[cfg(target_arch = "x86_64")]
mod wmma512;

use crate::exit::Exit;
use crate::group::Group;
use crate::launch::Section;
use crate::reference;
use crate::wave::Wave;
use crate::world::{Detour, World};
use block::Block;
use budget::Held;
pub use budget::{CodeBudget, OWN_CODE};
use cache::Cache;
use code::Code;
use constants::Constants;
use layout::{Grain, Layout};
pub(crate) use piece::Piece;
use run::{run_block, End};
use seam::Seam;
use section::Sections;
use std::collections::HashMap;
use std::sync::Arc;
use step::Cx;
use vkfd_isa::{Op, Target};
use vkfd_sabotage::{Switch, Switches};

/// Blocks that are found without hashing.
const RECENT: usize = 1024;
/// With a budget below this, blocks end with waits for memory.
const FINE: u32 = 64;
/// Bits of MODE that change what every vector operation is: GPR_IDX_EN and VSKIP.
const STRANGE: u32 = 3 << 27;

/// The vectors that handlers may use: each has those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Vectors {
    Plain,
    /// With FMA and conversions of halves.
    Avx2,
    /// Foundation, bytes and words, doublewords, and VNNI.
    Avx512,
}

impl Vectors {
    fn of_processor() -> Vectors {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni");
            return if wide { Vectors::Avx512 } else { Vectors::Avx2 };
        }
        Vectors::Plain
    }
}

/// Decoded code.
struct Blocks {
    target: Target,
    vectors: Vectors,
    blocks: HashMap<(u64, Layout), Box<Block>>,
    /// Blocks that were used last, by address.
    recent: Vec<*mut Block>,
    constants: Constants,
    /// The bytes of both.
    held: Held,
    runs: u64,
    epoch: u64,
    /// Blocks so far.
    made: u64,
    sabotage: Switches,
    /// Blocks are not built while the gate is open.
    defers: bool,
    /// What was fetched for a block that is to be built.
    code: Option<Code>,
    /// The translator, if hot blocks are translated.
    #[cfg(target_arch = "x86_64")]
    native: Option<Box<native::Native>>,
    /// A block that is to be translated.
    #[cfg(target_arch = "x86_64")]
    hot: Option<(u64, Layout)>,
}

/// An engine, for one thread.
pub struct Engine {
    blocks: Blocks,
    cache: Cache,
    sections: Sections,
    /// The opening of the gate within which the cache and the blocks were used last.
    opening: Option<u64>,
    /// It runs pieces alone.
    plain: bool,
    /// By operation.
    #[cfg(debug_assertions)]
    slow: Box<[u64]>,
}

// SAFETY: the pointers of `recent` lead to the engine's own blocks. Those in blocks lead to its own
// constants and to the block's own steps. All of that moves with the engine, on the heap, and only
// its thread uses it.
unsafe impl Send for Engine {}

impl Blocks {
    /// The block at an address, decoded if need be.
    #[inline]
    fn block(&mut self, world: &mut dyn World, layout: Layout, pc: u64) -> Result<*mut Block, Exit> {
        let now = (self.runs, self.epoch);
        // Blocks of another grain have other places: waves change between them all the time.
        let slot = ((pc >> 2) as usize ^ (layout.grain as usize) << 8) % RECENT;
        let recent = self.recent[slot];
        // SAFETY: null, or a block in `blocks`: `recent` is emptied whenever one goes.
        if let Some(block) = unsafe { recent.as_mut() } {
            if block.pc == pc && block.run == now.0 && block.layout == layout {
                return Ok(recent);
            }
        }
        self.find(world, layout, pc, slot, now)
    }

    #[cold]
    fn find(
        &mut self,
        world: &mut dyn World,
        layout: Layout,
        pc: u64,
        slot: usize,
        now: (u64, u64),
    ) -> Result<*mut Block, Exit> {
        // SAFETY: as in `block`. A superblock has no words of its own.
        if let Some(block) = unsafe { self.recent[slot].as_mut() }.filter(|block| block.joints.is_empty()) {
            if block.pc == pc && block.layout == layout && block.still(world, now)? {
                return Ok(self.recent[slot]);
            }
        }
        let key = (pc, layout);
        let known = match self.blocks.get_mut(&key) {
            Some(block) => block.run == now.0 || block.still(world, now)?,
            None => false,
        };
        if !known {
            self.code = Some(Code::fetch(world, layout, pc)?);
            if self.defers {
                return Err(Exit::Decode { done: 0 });
            }
            self.decode();
        }
        let mut block: *mut Block = self.blocks.get_mut(&key).map_or(std::ptr::null_mut(), |block| &raw mut **block);
        #[cfg(target_arch = "x86_64")]
        if let Some(superblock) = self.superblock(world, key) {
            block = superblock;
        }
        self.recent[slot] = block;
        Ok(block)
    }

    /// Whether a block is to be translated before it runs again.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn is_hot(&self, block: &Block) -> bool {
        let Some(native) = &self.native else { return false };
        let heat = block.heat.get().saturating_add(1);
        block.heat.set(heat);
        heat == native.how.after.saturating_add(1)
    }

    /// Has a block translated again, without accesses, when one of its regions has no gain by them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn give_up(&mut self, block: &Block) {
        if let Some(native) = self.native.as_mut().filter(|native| native.gave_up) {
            native.gave_up = false;
            // First without that which may have been its fault.
            let crosses = block.regions.iter().any(|entry| entry.region.crosses);
            let given_up = if crosses { &block.in_order } else { &block.plain_accesses };
            if !given_up.replace(true) {
                block.heat.set(native.how.after);
            }
        }
    }

    /// Translates the block that was found hot.
    #[cfg(target_arch = "x86_64")]
    fn translate(&mut self) {
        let Some(key) = self.hot.take() else { return };
        let (Some(native), Some(block)) = (&mut self.native, self.blocks.get_mut(&key)) else { return };
        // Their handlers are spoiled, not the instructions.
        if self.sabotage.has(Switch::Handler) || self.sabotage.has(Switch::Chain) {
            return;
        }
        let before = block.bytes();
        if let Some(superblock) = &mut block.superblock {
            region::translate(native, &mut superblock.block, &self.sabotage);
        } else {
            self.make_ring(key.0, key.1);
            if !self.make_superblock(key.0, key.1) {
                self.translate_block(key);
            }
        }
        let after = self.blocks.get(&key).map_or(before, |block| block.bytes());
        self.held.take(after.saturating_sub(before));
        self.held.give(before.saturating_sub(after));
    }

    /// Translates a block by itself.
    #[cfg(target_arch = "x86_64")]
    fn translate_block(&mut self, key: (u64, Layout)) {
        if let (Some(native), Some(block)) = (&mut self.native, self.blocks.get_mut(&key)) {
            region::translate(native, block, &self.sabotage);
        }
    }

    /// Makes a block of the code that was fetched last.
    fn decode(&mut self) {
        #[cfg(target_arch = "x86_64")]
        self.translate();
        let Some(code) = self.code.take() else { return };
        self.recent.fill(std::ptr::null_mut());
        // Where code has changed, its place is reported free before the new code is counted.
        let key = (code.pc, code.layout);
        if let Some(old) = self.blocks.remove(&key) {
            self.held.give(old.bytes());
        }
        if self.held.is_exhausted() && !self.sabotage.has(Switch::KeptCode) {
            self.forget();
        }
        let before = self.constants.bytes();
        let mut block = Block::build(&code, self.vectors, &mut self.constants, (self.runs, self.epoch));
        self.held.take(self.constants.bytes() - before);
        self.made += 1;
        block.serial = self.made;
        #[cfg(debug_assertions)]
        block.spoil(&self.sabotage);
        self.held.take(block.bytes());
        self.blocks.insert(key, Box::new(block));
    }

    /// Forgets all decoded code.
    fn forget(&mut self) {
        self.recent.fill(std::ptr::null_mut());
        self.blocks = HashMap::new();
        self.constants = Constants::new();
        self.held.give_all();
        #[cfg(target_arch = "x86_64")]
        if let Some(native) = &mut self.native {
            native.forget();
        }
    }
}

impl Engine {
    /// An engine that uses what the processor has.
    #[must_use]
    pub fn new(target: Target) -> Engine {
        Engine::sharing(target, &Arc::default())
    }

    /// The same, whose decoded code is part of a budget.
    #[must_use]
    pub fn sharing(target: Target, budget: &Arc<CodeBudget>) -> Engine {
        Engine::with(target, Vectors::of_processor(), budget)
    }

    /// An engine that uses nothing but plain Rust: the same results, slower.
    #[must_use]
    pub fn portable(target: Target) -> Engine {
        Engine::with(target, Vectors::Plain, &Arc::default())
    }

    /// An engine that uses no vectors wider than AVX2's: the same results, slower.
    #[must_use]
    pub fn narrow(target: Target) -> Engine {
        Engine::with(target, Vectors::of_processor().min(Vectors::Avx2), &Arc::default())
    }

    fn with(target: Target, vectors: Vectors, budget: &Arc<CodeBudget>) -> Engine {
        let blocks = Blocks {
            target,
            vectors,
            blocks: HashMap::new(),
            recent: vec![std::ptr::null_mut(); RECENT],
            constants: Constants::new(),
            held: Held::of(budget),
            runs: 0,
            epoch: 0,
            made: 0,
            sabotage: Switches::NONE,
            defers: false,
            code: None,
            #[cfg(target_arch = "x86_64")]
            native: None,
            #[cfg(target_arch = "x86_64")]
            hot: None,
        };
        // Makes the decoder's tables.
        let _ = vkfd_isa::decode_as_hardware(target, &[0]);
        #[allow(unused_mut, reason = "only debug builds ask the environment")]
        let mut engine = Engine {
            blocks,
            cache: Cache::new(),
            sections: Sections::new(target),
            opening: None,
            plain: false,
            #[cfg(debug_assertions)]
            slow: vec![0; Op::ALL.len()].into_boxed_slice(),
        };
        #[cfg(all(debug_assertions, target_arch = "x86_64"))]
        if let Some(how) = native::Translation::of_environment().filter(|_| vectors >= Vectors::Avx2) {
            engine.translate(how);
        }
        engine
    }

    /// Says what is broken in code that is decoded from now on. With [`Switch::Handler`] the lowest
    /// bit of lane 5 of the destination (a scalar destination's lowest bit) is wrong; the switch's
    /// value is the operation's number in [`Op::ALL`]. With [`Switch::Chain`] the last source of a
    /// chain is the first, and the first of a sum of 64 bits is the second.
    pub fn sabotage(&mut self, switches: Switches) {
        #[cfg(debug_assertions)]
        {
            self.cache.keeps_lanes = switches.has(Switch::KeptLanes);
        }
        self.blocks.sabotage = switches;
    }

    /// From now on code is decoded only when [`Engine::decode`] is called: a run that meets code
    /// that was not decoded ends with [`Exit::Decode`].
    pub fn defer_decoding(&mut self) {
        self.blocks.defers = true;
    }

    /// Decodes the code that the last run has asked for.
    pub fn decode(&mut self) {
        self.blocks.decode();
    }

    /// Has hot blocks translated from now on; whether the processor has what that takes.
    #[cfg(target_arch = "x86_64")]
    pub fn translate(&mut self, how: native::Translation) -> bool {
        self.blocks.native = region::translator(how).map(Box::new);
        self.blocks.native.is_some()
    }

    /// What was translated since this was asked the last time.
    #[cfg(target_arch = "x86_64")]
    pub fn translated(&mut self) -> native::Report {
        self.blocks.native.as_mut().map_or_else(Default::default, |native| std::mem::take(&mut native.report))
    }

    /// What checks of translated code have found since this was asked the last time.
    #[cfg(target_arch = "x86_64")]
    pub fn differences(&mut self) -> native::Differences {
        self.blocks.native.as_mut().map_or_else(Default::default, |native| std::mem::take(&mut native.check.found))
    }

    /// Whether there is a handler for an instruction of waves like this one.
    pub fn handles(&mut self, wave: &Wave, inst: &vkfd_isa::Inst) -> bool {
        let Blocks { vectors, constants, .. } = &mut self.blocks;
        let mut builder = builder::Builder::new(Layout::of(wave, Grain::Whole), *vectors, constants);
        let mut steps = Vec::new();
        translators::translate(&mut builder, inst, step::Place { inst: 0, offset: 0, bytes: 0 }, &mut steps);
        // What needs no step does nothing.
        steps.last().is_none_or(|step| !step.is_left)
    }

    /// How often the reference engine had to execute each operation.
    #[cfg(debug_assertions)]
    pub fn slow(&self) -> std::collections::BTreeMap<Op, u64> {
        Op::ALL.iter().copied().zip(self.slow.iter().copied()).filter(|(_, times)| *times != 0).collect()
    }

    /// Bytes of decoded code that the engine holds.
    pub fn code_bytes(&self) -> usize {
        self.blocks.held.bytes()
    }

    /// Bytes that were stored past the caches.
    #[cfg(debug_assertions)]
    pub fn passed(&self) -> u64 {
        self.cache.passed
    }

    /// A launch begins: invalidates the instruction cache, so that code is compared with memory
    /// when it is next used.
    pub fn invalidate(&mut self) {
        self.blocks.epoch += 1;
        self.opening = None;
        self.cache.begin();
    }

    /// From now on blocks are pieces, and [`Engine::run`] with a budget of 1 runs one of them.
    pub(crate) fn only_compute(&mut self) {
        self.plain = true;
    }

    /// The piece of code at the wave's program counter; none where something else is to be done.
    ///
    /// # Errors
    /// What keeps the code from being read: as for a run.
    pub(crate) fn piece<W: World>(&mut self, wave: &Wave, world: &mut W) -> Result<Option<&Piece>, Exit> {
        if wave.target != self.blocks.target || wave.mode.0 & STRANGE != 0 || wave.done != 0 {
            return Ok(None);
        }
        self.open(world);
        let block = self.blocks.block(world, Layout::of(wave, Grain::Plain), wave.pc)?;
        // SAFETY: null, or a block of `blocks`, none of which goes while the engine is borrowed.
        Ok(unsafe { block.as_ref() }.and_then(|block| block.piece.as_deref()))
    }

    /// What was found of host memory counts for one opening of the gate.
    fn open<W: World>(&mut self, world: &W) {
        let opening = world.opening();
        if opening.is_none() || opening != self.opening {
            self.opening = opening;
            self.blocks.runs += 1;
            self.cache.clear();
        }
    }

    /// Runs a wave for about `budget` instructions, until it is left for another reason, or the
    /// gate is wanted. The gate is open.
    pub fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        self.open(world);
        let mut done = 0;
        let mut exit = self.turn(wave, group, world, budget, &mut done);
        if let Exit::Decode { done: instructions } = &mut exit {
            *instructions = u32::try_from(done).unwrap_or(u32::MAX);
        }
        // Another thread may go on with the wave, or look at its stores.
        self.cache.settle();
        world.retired(done);
        if std::mem::take(&mut self.cache.wrote) {
            world.wrote();
        }
        world.moved(std::mem::take(&mut self.cache.moved));
        exit
    }

    fn turn(&mut self, wave: &mut Wave, group: &mut Group, world: &mut dyn World, budget: u32, done: &mut u64) -> Exit {
        if wave.target != self.blocks.target {
            return Exit::Refused(crate::exit::Refusal::Illegal { word: 0 });
        }
        loop {
            if *done >= budget.into() || world.wanted() {
                return Exit::Yield;
            }
            if wave.mode.0 & STRANGE != 0 || wave.done != 0 {
                self.cache.settle();
                // The reference engine alone knows what these mean.
                let why = if wave.done != 0 { Detour::Access } else { Detour::Mode };
                let exit = reference::fetch(wave, &mut Seam(world)).and_then(|inst| {
                    world.detour(inst.op, why);
                    reference::execute(&inst, wave, group, &mut Seam(world))
                });
                match exit {
                    Ok(()) => *done += 1,
                    Err(exit) => return exit,
                }
                continue;
            }
            if let Some(exit) = self.blocks_from(wave, group, world, budget, done) {
                return exit;
            }
        }
    }

    /// Runs blocks; `None` when MODE may have changed.
    fn blocks_from(
        &mut self,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut dyn World,
        budget: u32,
        done: &mut u64,
    ) -> Option<Exit> {
        let grain = match budget {
            _ if self.plain => Grain::Plain,
            0..FINE => Grain::Waits,
            _ => Grain::Whole,
        };
        let layout = Layout::of(wave, grain);
        let mut cx = Cx::new(wave, group, world, &mut self.cache);
        #[cfg(target_arch = "x86_64")]
        if let Some(native) = &mut self.blocks.native {
            cx.native = &raw mut **native;
        }
        loop {
            let block = match self.blocks.block(cx.world, layout, cx.wave.pc) {
                Ok(block) => block,
                Err(exit) => return Some(exit),
            };
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a block of `blocks`, to which nothing refers yet.
            if self.blocks.is_hot(unsafe { &*block }) {
                self.blocks.hot = Some((cx.wave.pc, layout));
                if self.blocks.defers {
                    return Some(Exit::Decode { done: 0 });
                }
                self.blocks.translate();
            }
            // SAFETY: a block of `blocks`, none of which goes before the next call of `block`.
            // Handlers do not reach it.
            let block = unsafe { &*block };
            cx.left = u64::from(budget).saturating_sub(*done);
            #[cfg(target_arch = "x86_64")]
            match self.blocks.turn(block, &mut cx, layout) {
                Ok(None) => {}
                Ok(Some(count)) => {
                    *done += count;
                    if *done < budget.into() && !cx.world.wanted() {
                        continue;
                    }
                    return Some(Exit::Yield);
                }
                Err(exit) => return Some(exit),
            }
            if block.orders {
                cx.cache.settle();
            }
            let end = run_block(block, &mut cx, done);
            #[cfg(target_arch = "x86_64")]
            self.blocks.give_up(block);
            for _ in 0..std::mem::replace(&mut cx.rounds, 1) {
                for &op in &block.inexact {
                    cx.world.inexact(op);
                }
            }
            #[cfg(debug_assertions)]
            for op in std::mem::take(&mut cx.slow).iter() {
                self.slow[*op as usize] += 1;
            }
            match end {
                End::Jump if *done < budget.into() && !cx.world.wanted() => {}
                End::Jump => return Some(Exit::Yield),
                End::Slow => {
                    if block.insts.last().is_some_and(|inst| inst.op == Op::SIcacheInv) {
                        self.blocks.runs += 1;
                        self.blocks.epoch += 1;
                    }
                    return None;
                }
                End::Barrier => return Some(Exit::Barrier),
                End::Ended => return Some(Exit::End),
                End::Exit if cx.exit == Exit::Yield => return None,
                End::Exit => return Some(cx.exit),
            }
        }
    }
}

impl crate::launch::Engine for Engine {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        Engine::run(self, wave, group, world, budget)
    }

    fn section<W: World>(&mut self, wave: &Wave, world: &mut W) -> Section {
        let Engine { blocks, sections, .. } = self;
        if blocks.sabotage.has(Switch::AheadOfBarrier) {
            return Section::NONE;
        }
        sections.of(wave, world, blocks)
    }
}
