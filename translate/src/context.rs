// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What regions and the engine that runs them share, as machine code sees it.

use std::ffi::c_void;

/// Words of scalars that a chunk's rounds may leave for its strips.
pub const TRACE_WORDS: usize = 64 * 128;
/// Lanes of the widest strip.
const STRIP: usize = 16;
/// Bytes for all vector registers, and for the mask registers.
const SPILL: usize = 32 * 64 + 8 * 8;

/// Reads words of memory for a scalar load: whether all of them could be read. Nothing is written
/// to `to` if not.
pub type Load = unsafe extern "sysv64" fn(user: *mut c_void, va: u64, words: u32, to: *mut u32) -> u32;

/// Computes an operation for lanes of a strip that its vectors have left.
pub type Mend = unsafe extern "sysv64" fn(user: *mut c_void, mend: *mut Mending);

/// Lanes that are to be computed singly.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Mending {
    /// The source.
    pub source: [u32; STRIP],
    /// The results: of the lanes that are not asked for, they are complete.
    pub result: [u32; STRIP],
    /// A bit for each lane that is asked for.
    pub lanes: u32,
    /// The operation's number in [`vkfd_isa::Op::ALL`].
    pub op: u32,
}

/// Room for one thread's regions. Machine code knows the offsets of its fields.
#[repr(C, align(64))]
pub struct Context {
    pub(crate) spill: [u8; SPILL],
    pub(crate) mending: Mending,
    /// SCC before, and then after the region.
    pub scc: u32,
    /// Most rounds of a loop, and how many were completed.
    pub(crate) limit: u32,
    pub(crate) done: u32,
    pub(crate) end: u32,
    pub(crate) trace: *mut u32,
    pub(crate) pool: *const u32,
    pub(crate) load: Option<Load>,
    pub(crate) mend: Option<Mend>,
    /// What the functions get.
    pub user: *mut c_void,
    trace_words: Box<[u32]>,
}

// SAFETY: the pointers are to its own words, and to a pool and the engine's objects while a region
// runs.
unsafe impl Send for Context {}

impl Context {
    /// A context with the engine's functions.
    #[must_use]
    pub fn new(load: Load, mend: Mend) -> Box<Context> {
        let mut trace_words = vec![0; TRACE_WORDS].into_boxed_slice();
        Box::new(Context {
            spill: [0; SPILL],
            mending: Mending { source: [0; STRIP], result: [0; STRIP], lanes: 0, op: 0 },
            scc: 0,
            limit: 0,
            done: 0,
            end: 0,
            trace: trace_words.as_mut_ptr(),
            pool: std::ptr::null(),
            load: Some(load),
            mend: Some(mend),
            user: std::ptr::null_mut(),
            trace_words,
        })
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Context>() + size_of_val(&*self.trace_words)
    }
}

/// How a slice ended.
pub(crate) mod end {
    /// The branch was not taken, or there is none.
    pub(crate) const FELL: u32 = 0;
    /// The branch was taken, and the rounds are used up.
    pub(crate) const TAKEN: u32 = 1;
    /// A scalar load could not be done; rounds before it are complete.
    pub(crate) const MISSED: u32 = 2;
}
