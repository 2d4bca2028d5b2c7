// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random sequences of calls and changes of memory, against a flat model. For each userptr object
//! it has the list of ranges, each valid, invalid or missing. For everything else it is the
//! simulated memory itself. After each step that settles, every page of the GPUs' address window
//! must lead to the model's page, and every counter must agree. No GPU may see a freed frame.
//!
//! [`Step`]s are plain numbers that are taken modulo what there is, so any sequence is a valid one
//! and shrinks freely.

mod check;
pub mod race;
mod run;

use std::time::Duration;

use proptest::prelude::*;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::sabotage::Switches;
use vkfd_sim::Form;

pub use race::Change;
pub use run::run;

/// The first page of the simulated memory.
pub const FIRST_PAGE: u64 = 0x1000;
/// VRAM of each GPU, in pages.
pub const VRAM_PAGES: u64 = 128;

/// Options for a driver that restores without pauses, and looks for nothing by the clock.
#[must_use]
pub fn options() -> Options {
    Options { restore_pause: Duration::ZERO, looks: 0, ..Options::default() }
}

/// A piece of the simulated memory: first page and pages, both within limits when used.
pub type Piece = (u64, u64);

/// What is done.
#[derive(Clone, Debug)]
pub enum Op {
    /// Maps pages.
    Mmap {
        piece: Piece,
        /// Whether the CPU may write.
        writable: bool,
    },
    /// Changes pages.
    Change { change: Change, piece: Piece },
    /// Moves pages.
    Mremap { piece: Piece, to: u64 },
    /// Tells the driver of nothing, which may not block.
    Hint {
        /// Which pages.
        piece: Piece,
    },
    /// Registers ranges.
    Register {
        /// Where on the GPU.
        slot: u64,
        /// The ranges.
        ranges: Vec<Piece>,
        /// Whether the GPU may write.
        writable: bool,
        /// By which call.
        form: Form,
    },
    /// Allocates VRAM or GTT memory.
    Alloc {
        /// Where on the GPU.
        slot: u64,
        pages: u64,
        vram: bool,
    },
    /// Maps an object.
    Map {
        object: usize,
        /// On which GPU.
        gpu: usize,
    },
    /// Unmaps an object.
    Unmap {
        object: usize,
        /// On which GPU.
        gpu: usize,
    },
    /// Frees an object, or tries to.
    Free { object: usize },
    /// Uses a handle that is none any more.
    Stale { handle: usize },
    /// A GPU faults on an object and wants to retry (XNACK on).
    Fault {
        object: usize,
        /// On which GPU.
        gpu: usize,
        /// Which page.
        page: u64,
        /// To write.
        write: bool,
    },
    /// Turns XNACK on or off.
    Xnack { on: bool },
}

/// What goes wrong during a step.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    None,
    /// The n-th fallible operation of the call fails.
    Fail(u64),
    /// The host cannot fault a page in, once.
    Page(u64, Errno),
    /// Memory changes between faulting in and committing.
    Race {
        /// Fault calls to let pass.
        skip: u32,
        change: Change,
        /// Which pages.
        piece: Piece,
    },
}

/// A step.
#[derive(Clone, Debug)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// What goes wrong.
    pub trouble: Trouble,
    /// Whether the restore has the time to finish, and everything is checked.
    pub settle: bool,
}

/// The machine, and how large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pages of memory.
    pub pages: u64,
    /// Pages between two slots of the GPUs' address window.
    pub slot_pages: u64,
    pub slots: u64,
    /// Most pages of a range.
    pub longest: u64,
    pub gpus: u32,
    /// One notifier per range.
    pub per_range: bool,
    /// What is broken on purpose.
    pub sabotage: Switches,
}

impl Default for Shape {
    fn default() -> Self {
        Self { pages: 96, slot_pages: 8, slots: 40, longest: 12, gpus: 2, per_range: false, sabotage: Switches::NONE }
    }
}

impl Shape {
    /// Ranges of up to some 2 MiB: huge entries.
    #[must_use]
    pub fn huge() -> Self {
        Self { pages: 2560, slot_pages: 256, slots: 16, longest: 1300, gpus: 1, ..Self::default() }
    }

    /// Ranges longer than one step of faulting in.
    #[must_use]
    pub fn long() -> Self {
        Self { pages: 40_000, slot_pages: 128, slots: 64, longest: 36_000, gpus: 1, ..Self::default() }
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => Just(Change::Renew),
        3 => Just(Change::Unmap),
        2 => any::<bool>().prop_map(|writable| Change::Protect { writable }),
        1 => Just(Change::Nothing),
    ]
}

/// Sequences for a shape.
pub fn steps(shape: Shape) -> impl Strategy<Value = Vec<Step>> {
    let piece = (0..shape.pages, prop_oneof![3 => 1..=shape.longest.min(6), 1 => 1..=shape.longest]);
    let form = prop_oneof![3 => Just(Form::Batch), 2 => Just(Form::Flag), 1 => Just(Form::Single)];
    let ranges = proptest::collection::vec(piece.clone(), 1..10);
    let errno = prop_oneof![Just(Errno::EBUSY), Just(Errno::EAGAIN), Just(Errno::ENOMEM)];
    let (object, gpu) = (0..8_usize, 0..2_usize);
    let op = prop_oneof![
        3 => (piece.clone(), prop::bool::weighted(0.85)).prop_map(|(piece, writable)| Op::Mmap { piece, writable }),
        7 => (change(), piece.clone()).prop_map(|(change, piece)| Op::Change { change, piece }),
        1 => (piece.clone(), 0..shape.pages).prop_map(|(piece, to)| Op::Mremap { piece, to }),
        1 => piece.clone().prop_map(|piece| Op::Hint { piece }),
        5 => (0..shape.slots, ranges, any::<bool>(), form)
            .prop_map(|(slot, ranges, writable, form)| Op::Register { slot, ranges, writable, form }),
        2 => (0..shape.slots, 1..9_u64, any::<bool>()).prop_map(|(slot, pages, vram)| Op::Alloc { slot, pages, vram }),
        7 => (object.clone(), gpu.clone()).prop_map(|(object, gpu)| Op::Map { object, gpu }),
        2 => (object.clone(), gpu.clone()).prop_map(|(object, gpu)| Op::Unmap { object, gpu }),
        2 => object.clone().prop_map(|object| Op::Free { object }),
        1 => object.clone().prop_map(|handle| Op::Stale { handle }),
        3 => (object, gpu, 0..4096_u64, any::<bool>())
            .prop_map(|(object, gpu, page, write)| Op::Fault { object, gpu, page, write }),
        1 => any::<bool>().prop_map(|on| Op::Xnack { on }),
    ];
    let trouble = prop_oneof![
        6 => Just(Trouble::None),
        2 => (0..24_u64).prop_map(Trouble::Fail),
        1 => (0..shape.pages, errno).prop_map(|(page, errno)| Trouble::Page(page, errno)),
        3 => (prop_oneof![4 => Just(0_u32), 1 => 1..3_u32], change(), piece).prop_map(|(skip, change, piece)| Trouble::Race { skip, change, piece }),
    ];
    let step = (op, trouble, prop::bool::weighted(0.7)).prop_map(|(op, trouble, settle)| Step { op, trouble, settle });
    proptest::collection::vec(step, 1..30)
}
