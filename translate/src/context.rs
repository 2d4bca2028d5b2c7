// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What regions and the engine that runs them share, as machine code sees it.

use std::ffi::c_void;

/// Words of scalars that a chunk's rounds may leave for its strips.
pub const TRACE_WORDS: usize = 64 * 128;
/// Lanes of the widest strip.
const STRIP: usize = 16;
/// Bytes for all vector registers, and for the mask registers.
const SPILL: usize = 32 * 64 + 8 * 8;

/// Computes an operation for lanes of a strip that its vectors have left.
pub type Mend = unsafe extern "sysv64" fn(user: *mut c_void, mend: *mut Mending);

/// Lanes that are to be computed singly.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Mending {
    /// The sources.
    pub sources: [[u32; STRIP]; 3],
    /// The results: of the lanes that are not asked for, they are complete.
    pub result: [u32; STRIP],
    /// A bit for each lane that is asked for.
    pub lanes: u32,
    /// A mask that the operation reads, and the one that it writes: zeros but for these lanes.
    pub inward: u32,
    pub out: u32,
    /// The operation's number in [`vkfd_isa::Op::ALL`].
    pub op: u32,
}

/// What a strip's lanes are to load of memory, and what they have loaded, or what they are to store
/// to memory or LDS.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Accessing {
    /// The lanes' addresses: low words, and high ones unless there is a base instead.
    pub low: [u32; STRIP],
    pub high: [u32; STRIP],
    /// The words of each lane.
    pub result: [[u32; STRIP]; 4],
    /// What is added to all of them.
    pub base: u64,
    /// What the function says: the page of the first lane, as [`Accessing::tag`] has it, and its
    /// first byte on the host.
    pub page: u64,
    pub host: *const u8,
    /// A bit for each lane that loads.
    pub lanes: u32,
    /// Words of a lane.
    pub words: u32,
    /// The access is FLAT's.
    pub flat: u32,
    /// What is done, as [`Accessing::LOAD`] and the others say.
    pub kind: u32,
    /// Bytes of a lane, one or two, of which a load makes a word with zeros above; or 0.
    pub narrow: u32,
    /// Which access of its region asks for a page.
    pub site: u32,
    /// What the page gets may go past the caches.
    pub past: u32,
    /// So often lanes were loaded or stored singly.
    pub calls: u32,
}

impl Accessing {
    /// A load of memory.
    pub const LOAD: u32 = 0;
    /// A store to memory.
    pub const STORE: u32 = 1;
    /// No access: the page of the address that is the base is asked for, to load of it or to store.
    pub const PAGE: u32 = 2;
    pub const PAGE_TO_WRITE: u32 = 3;

    /// In a page's tag: whole lines are stored to it past the caches.
    pub const PAST: u64 = 4;

    /// A page as the code compares it. FLAT's have a bit of their own: none of their pages is near
    /// an aperture. So have pages that may be written.
    #[must_use]
    pub const fn tag(page: u64, flat: bool, write: bool) -> u64 {
        page | flat as u64 | (write as u64) << 1
    }
}

/// Loads or stores words of a strip's lanes: whether all of them could be. Lanes are stored in
/// their order.
pub type Access = unsafe extern "sysv64" fn(user: *mut c_void, access: *mut Accessing) -> u32;

/// A page that code has accessed, and in the low bits of its tag when and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) host: *const u8,
}

/// A row as it was. Strips store vectors there: one in two pages would wait for all stores before
/// it, and loads for it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept(pub(crate) [u32; 64]);

/// No page has this tag.
const NO_PAGE: Slot = Slot { tag: u64::MAX, host: std::ptr::null() };

/// How the addresses of a row lie in a strip, see `emit::access`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) base: u64,
    /// The base of the first strip, if all lanes of the wave may lie side by side from there on.
    pub(crate) origin: u64,
    /// Where the host has the line of all lanes.
    pub(crate) host: u64,
    pub(crate) shape: u32,
    /// 1: the origin is one, and these are the words of the first lane's address. 2: the host's
    /// place is one, too.
    pub(crate) is_whole: u32,
    pub(crate) low: u32,
    pub(crate) high: u32,
}

/// The bits of a tag that say when a slot was filled, and the first and last of them.
const TIMES: u64 = 0xff8;
const FIRST_TIME: u64 = 8;

/// The host's MXCSR: no exceptions, to nearest, denormal sources and tiny results are zeros.
const FLUSHING: u32 = 0x9fc0;

/// Slots, and rows of addresses whose shapes are known at a time.
pub(crate) const SLOTS: usize = 2048;
pub(crate) const KNOWN: usize = 32;
/// Accesses whose last places and pages are kept.
pub(crate) const FORESEEN: usize = 16;
/// Rows that a region with accesses may write.
pub(crate) const KEPT_ROWS: usize = 256;

/// Room for one thread's regions. Machine code knows the offsets of its fields.
#[repr(C, align(64))]
pub struct Context {
    pub(crate) spill: [u8; SPILL],
    pub(crate) mending: Mending,
    pub(crate) accessing: Accessing,
    /// Room for a row whose lanes are exchanged, and for narrow code a bit for each lane.
    pub(crate) exchanged: [u32; 64],
    pub(crate) bits: [u32; 8],
    /// Room for a strip's addresses.
    pub(crate) scratch: [[u32; STRIP]; 2],
    /// Rows of the strip that have no register at the moment.
    pub(crate) spilled_rows: [[u32; STRIP]; KEPT_ROWS],
    /// Pages, by number and by access.
    pub(crate) slots: [Slot; SLOTS],
    /// The slot that an access has used last.
    pub(crate) latest: [Slot; FORESEEN],
    /// The place in its page of the scalar load whose look others share, and on the host.
    pub(crate) shared_place: u64,
    pub(crate) shared_host: *const u8,
    /// What the tags of the present have.
    pub(crate) stamp: u64,
    pub(crate) known: [Known; KNOWN],
    /// The last place of each strip of a loop's loads: addresses of the host that are compared, and
    /// never read at.
    pub(crate) lasts: [[u64; 8]; FORESEEN],
    /// Singles lose denormals while strips run. If so, the host's MXCSR for it, and the one before.
    pub(crate) flushes: u32,
    pub(crate) flushing: u32,
    pub(crate) usual: u32,
    /// SCC before, and then after the region: a byte, because machine code stores one.
    pub scc: u8,
    /// Most rounds of a loop, and how many were completed.
    pub(crate) limit: u32,
    pub(crate) done: u32,
    pub(crate) end: u32,
    pub(crate) trace: *mut u32,
    /// Where the trace of the rounds begins that one strip has to do, and how many they are, behind
    /// two strips abreast.
    pub(crate) from: *mut u32,
    pub(crate) rounds: u32,
    pub(crate) pool: *const u32,
    pub(crate) mend: Option<Mend>,
    pub(crate) access: Option<Access>,
    /// Where the rows that the present strip writes are kept.
    pub(crate) kept: *mut u32,
    /// Active lanes of the strip, and its rounds that are left.
    pub(crate) active: u32,
    pub(crate) left: u32,
    /// The bounds of an address in LDS.
    pub(crate) bound: u32,
    pub(crate) lds_bytes: u32,
    pub(crate) lds: *mut u8,
    /// When the engine forgot its pages last.
    time: u64,
    /// Bytes of memory that lanes have loaded and stored, and bytes that went past the caches.
    pub(crate) moved: u64,
    pub(crate) passed: u64,
    /// What the functions get.
    pub user: *mut c_void,
    trace_words: Box<[u32]>,
    pub(crate) kept_rows: Box<[Kept]>,
    /// Scalar registers as they were before the region, of those that it writes.
    pub(crate) kept_scalars: [u32; 128],
}

// SAFETY: the pointers are to its own words, and to a pool and the engine's objects while a region
// runs.
unsafe impl Send for Context {}

impl Context {
    /// A context with the engine's functions.
    #[must_use]
    pub fn new(mend: Mend, access: Access) -> Box<Context> {
        let kept_rows = vec![Kept([0; 64]); KEPT_ROWS].into_boxed_slice();
        let mut trace_words = vec![0; TRACE_WORDS].into_boxed_slice();
        Box::new(Context {
            spill: [0; SPILL],
            mending: Mending { sources: [[0; STRIP]; 3], result: [0; STRIP], lanes: 0, inward: 0, out: 0, op: 0 },
            accessing: Accessing {
                low: [0; STRIP],
                high: [0; STRIP],
                result: [[0; STRIP]; 4],
                base: 0,
                page: 0,
                host: std::ptr::null(),
                lanes: 0,
                words: 0,
                flat: 0,
                kind: Accessing::LOAD,
                narrow: 0,
                site: 0,
                past: 0,
                calls: 0,
            },
            exchanged: [0; 64],
            bits: std::array::from_fn(|lane| 1 << lane),
            scratch: [[0; STRIP]; 2],
            spilled_rows: [[0; STRIP]; KEPT_ROWS],
            slots: [NO_PAGE; SLOTS],
            latest: [NO_PAGE; FORESEEN],
            shared_place: 0,
            shared_host: std::ptr::null(),
            stamp: FIRST_TIME,
            known: [Known::default(); KNOWN],
            lasts: [[0; 8]; FORESEEN],
            flushes: 0,
            flushing: FLUSHING,
            usual: 0,
            scc: 0,
            limit: 0,
            done: 0,
            end: 0,
            trace: trace_words.as_mut_ptr(),
            from: std::ptr::null_mut(),
            rounds: 0,
            pool: std::ptr::null(),
            mend: Some(mend),
            access: Some(access),
            kept: std::ptr::null_mut(),
            active: 0,
            left: 0,
            bound: 0,
            lds_bytes: 0,
            lds: std::ptr::null_mut(),
            time: 0,
            moved: 0,
            passed: 0,
            user: std::ptr::null_mut(),
            trace_words,
            kept_rows,
            kept_scalars: [0; 128],
        })
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Context>() + size_of_val(&*self.trace_words) + size_of_val(&*self.kept_rows)
    }

    /// Whether the host is to lose denormal singles, see [`Arithmetic`](crate::Arithmetic).
    pub fn set_flushing(&mut self, flushes: bool) {
        self.flushes = flushes.into();
    }

    /// The LDS that regions read and write.
    pub fn set_lds(&mut self, lds: &mut [u8]) {
        self.lds = lds.as_mut_ptr();
        self.lds_bytes = u32::try_from(lds.len()).unwrap_or(u32::MAX);
    }

    /// One round is done, and no branch was taken: before passes that say only what differs.
    #[inline(always)]
    pub(crate) fn be_done(&mut self) {
        (self.done, self.end, self.limit) = (1, end::FELL, 1);
    }

    /// Forgets host pointers of pages that are older than this time, by the engine's count.
    pub fn forget_pages(&mut self, time: u64) {
        if self.time == time {
            return;
        }
        self.time = time;
        self.stamp = (self.stamp + FIRST_TIME) & TIMES;
        if self.stamp == 0 {
            self.stamp = FIRST_TIME;
            self.slots = [NO_PAGE; SLOTS];
            self.latest = [NO_PAGE; FORESEEN];
        }
    }

    /// Bytes of memory that lanes have loaded and stored since this was asked last.
    pub fn take_moved(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// Bytes that were stored past the caches since this was asked last.
    pub fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    /// So often lanes were accessed singly since this was asked last.
    pub fn take_calls(&mut self) -> u32 {
        std::mem::take(&mut self.accessing.calls)
    }
}

/// How a slice ended.
pub(crate) mod end {
    /// The branch was not taken, or there is none.
    pub(crate) const FELL: u32 = 0;
    /// The branch was taken, and the rounds are used up.
    pub(crate) const TAKEN: u32 = 1;
    /// A load could not be done. The slice's rounds before it are complete.
    pub(crate) const MISSED: u32 = 2;
}
