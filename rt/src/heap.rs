// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The heap: the allocator of vkfd's memory inside a program.
//!
//! Small blocks come from segments, which a `dlmalloc` cuts up. It is the allocator that Rust uses
//! without a C library: well kept, without memory, lock or thread-local data of its own. Blocks
//! from [`LARGE`] on are mappings of their own, away from the program's. All system calls are raw
//! ones: no hook sees them.
//!
//! One lock guards the segments and the `dlmalloc`. It is never held over a call that may wait for
//! an event: segments are never unmapped, shrunk or moved, and no watch covers them (the host asks
//! [`each_other`]). The mappings of large blocks change without the lock.
//!
//! # fork
//!
//! The lock is not taken over a fork: the forking thread may sleep until its event is read, and the
//! reader may wait for somebody who allocates. Instead the lock, the `dlmalloc` and the list of
//! segments are in pages that the kernel wipes in a child (`MADV_WIPEONFORK`). So a child, a raw
//! clone's too, finds an unlocked and empty heap. What it has of its parent's stays readable;
//! giving it back does nothing, because it is in none of the child's segments.
//!
//! # Limits
//!
//! Memory of small blocks is not given back to the system. There are at most [`SEGMENTS`] segments.

use crate::lock::Lock;
use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::{self, addr_of_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Blocks of as many bytes are mappings of their own.
const LARGE: usize = 1 << 20;
const PAGE: usize = 4096;
/// Address space of a segment; of one in a process whose address space is limited.
const RESERVED: usize = 1 << 30;
const RESERVED_OF_LITTLE: usize = 64 << 20;
/// A segment is made accessible in such steps.
const STEP: usize = 256 << 10;
/// The most segments.
const SEGMENTS: usize = 32;
/// The address of segments, away from the kernel's places for the program's mappings.
const PLACE: usize = 0x4800_0000_0000;

/// The address of large blocks, for the same reason. A block beside a program's mapping would be
/// one mapping with it, and move to a GPU with SVM memory.
const LARGE_PLACE: usize = PLACE + SEGMENTS * RESERVED;
/// Address space for them, which is used in a circle.
const LARGE_ROOM: usize = 1 << 40;

/// The allocator, to be the program's or the library's global one.
pub struct Heap;

/// Reserved addresses, of which the first bytes are in use.
#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    end: usize,
    used: usize,
    accessible: usize,
}

/// What the kernel wipes in a child. All zero is an empty heap.
struct State {
    lock: Lock,
    guarded: UnsafeCell<Guarded>,
}

// SAFETY: what the cell has is only touched with the lock held.
unsafe impl Sync for State {}

struct Guarded {
    made: bool,
    count: usize,
    segments: [Segment; SEGMENTS],
    /// Valid when `made`.
    blocks: std::mem::MaybeUninit<Dlmalloc<Source>>,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

/// Maps fresh memory. Null when there is none.
fn map(hint: usize, bytes: usize, prot: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the address is no more than a hint, so nothing that exists is touched.
    let at = unsafe { libc::syscall(libc::SYS_mmap, hint, bytes, prot, flags, -1, 0) };
    usize::try_from(at).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

/// # Safety
/// The memory is the caller's, and nothing uses it any more.
unsafe fn unmap(at: *mut u8, bytes: usize) {
    if bytes != 0 {
        // SAFETY: forwarded to the caller.
        unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
    }
}

extern "C" fn wipe() {
    let state = STATE.load(Ordering::Acquire);
    if !state.is_null() {
        // SAFETY: in a child that has just been forked there is no other thread. Zeros are a state.
        unsafe { ptr::write_bytes(state, 0, 1) };
    }
}

/// The process's state. `None` when there is no memory at all.
fn state() -> Option<&'static State> {
    let mut state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        let bytes = size_of::<State>().next_multiple_of(PAGE);
        let new = map(0, bytes, libc::PROT_READ | libc::PROT_WRITE);
        if new.is_null() {
            return None;
        }
        // SAFETY: the mapping is new; the advice changes only a child's view.
        let wiped = unsafe { libc::syscall(libc::SYS_madvise, new, bytes, libc::MADV_WIPEONFORK) } == 0;
        state = new.cast();
        match STATE.compare_exchange(ptr::null_mut(), state, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if !wiped => {
                // SAFETY: the handler touches only the state. A child of a raw clone has no heap.
                unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
            }
            Ok(_) => {}
            Err(other) => {
                // SAFETY: nobody has seen the mapping.
                unsafe { unmap(new, bytes) };
                state = other;
            }
        }
    }
    // SAFETY: a mapping that is never unmapped, of which zeros are a valid state.
    unsafe { state.as_ref() }
}

impl State {
    /// Runs `f` with the lock held. The pointer is valid for that time, and nobody has a reference
    /// to its target.
    fn with<R>(&self, f: impl FnOnce(*mut Guarded) -> R) -> R {
        let _held = self.lock.lock();
        f(self.guarded.get())
    }
}

impl Guarded {
    /// The blocks, made if need be.
    ///
    /// # Safety
    /// `heap` comes from [`State::with`].
    unsafe fn blocks(heap: *mut Self) -> *mut Dlmalloc<Source> {
        // SAFETY: valid, and with the lock held; whatever bytes `blocks` has may be written.
        unsafe {
            let blocks = addr_of_mut!((*heap).blocks).cast::<Dlmalloc<Source>>();
            if !(*heap).made {
                blocks.write(Dlmalloc::new_with_allocator(Source(heap)));
                (*heap).made = true;
            }
            blocks
        }
    }

    /// The segments that there are.
    ///
    /// # Safety
    /// `heap` comes from [`State::with`].
    unsafe fn list(heap: *mut Self) -> [Option<Segment>; SEGMENTS] {
        // SAFETY: valid, and with the lock held. Segments are plain numbers.
        let (segments, count) = unsafe { (addr_of_mut!((*heap).segments).read(), (*heap).count) };
        std::array::from_fn(|index| segments.get(index).copied().filter(|_| index < count))
    }

    /// Whether a segment has the address.
    ///
    /// # Safety
    /// `heap` comes from [`State::with`].
    unsafe fn has(heap: *mut Self, at: usize) -> bool {
        // SAFETY: valid, and with the lock held.
        let (segments, count) = unsafe { (addr_of_mut!((*heap).segments), (*heap).count) };
        (0..count.min(SEGMENTS)).any(|index| {
            // SAFETY: an element of the array.
            let segment = unsafe { segments.cast::<Segment>().add(index).read() };
            (segment.start..segment.end).contains(&at)
        })
    }
}

/// Where the blocks' memory comes from: the segments, which the lock guards as well.
struct Source(*mut Guarded);

// SAFETY: used only under the state's lock.
unsafe impl Send for Source {}

/// Address space for a segment of at least `bytes`.
fn reserve(bytes: usize, hint: usize) -> Option<Segment> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: one valid structure.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    let little = limit.rlim_cur != libc::RLIM_INFINITY;
    let mut size = if little { RESERVED_OF_LITTLE } else { RESERVED }.max(bytes.next_multiple_of(STEP));
    loop {
        let at = map(hint, size, libc::PROT_NONE);
        if !at.is_null() {
            // Where the program has all of its future memory locked (mlockall), this is not: making
            // it accessible would fill it.
            // SAFETY: the mapping is new; unlocking changes no contents.
            unsafe { libc::syscall(libc::SYS_munlock, at, size) };
            let start = at.expose_provenance();
            crate::reserve::note(start as u64..(start + size) as u64);
            return Some(Segment { start, end: start + size, used: start, accessible: start });
        }
        size /= 2;
        if size < bytes {
            return None;
        }
    }
}

impl Segment {
    /// The next `bytes`, made accessible. `None` when there are not so many.
    fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        let end = self.used.checked_add(bytes).filter(|end| *end <= self.end)?;
        if end > self.accessible {
            let to = end.next_multiple_of(STEP).min(self.end);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a part of the segment that nobody uses yet.
            let done = unsafe { libc::syscall(libc::SYS_mprotect, self.accessible, to - self.accessible, prot) };
            if done != 0 {
                return None;
            }
            self.accessible = to;
        }
        Some(ptr::with_exposed_provenance_mut(std::mem::replace(&mut self.used, end)))
    }
}

// SAFETY: what `alloc` returns is accessible, and nobody else's.
unsafe impl Allocator for Source {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        // SAFETY: both are in the state, which is never unmapped, and its lock is held. Nobody has
        // a reference to either.
        let (segments, count) = unsafe { (&mut (*self.0).segments, &mut (*self.0).count) };
        let last = count.checked_sub(1).and_then(|last| segments.get_mut(last));
        let taken = last.and_then(|segment| segment.take(bytes)).or_else(|| {
            let mut new = reserve(bytes, PLACE + *count * RESERVED)?;
            let taken = new.take(bytes)?;
            *segments.get_mut(*count)? = new;
            *count += 1;
            Some(taken)
        });
        (taken.unwrap_or(ptr::null_mut()), bytes, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// Bytes of the mapping of a large block.
fn mapped(layout: Layout) -> Option<usize> {
    layout.size().checked_next_multiple_of(PAGE).filter(|bytes| *bytes <= isize::MAX.unsigned_abs())
}

/// A mapping for a large block.
fn map_large(layout: Layout) -> *mut u8 {
    let Some(bytes) = mapped(layout) else { return ptr::null_mut() };
    let spare = layout.align().saturating_sub(PAGE);
    let Some(whole) = bytes.checked_add(spare) else { return ptr::null_mut() };
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let hint = LARGE_PLACE + NEXT.fetch_add(whole.next_multiple_of(LARGE), Ordering::Relaxed) % LARGE_ROOM;
    let at = map(hint, whole, libc::PROT_READ | libc::PROT_WRITE);
    if at.is_null() || spare == 0 {
        return at;
    }
    let before = at.align_offset(layout.align());
    let block = at.wrapping_add(before);
    // SAFETY: both are parts of the new mapping outside of the block.
    unsafe {
        unmap(at, before);
        unmap(block.wrapping_add(bytes), whole - before - bytes);
    }
    block
}

// SAFETY: blocks are disjoint, as large and as aligned as requested, and stay until they are freed.
// They are either mappings of their own or come from a `dlmalloc` under a lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        let Some(state) = state() else { return ptr::null_mut() };
        // SAFETY: the state is valid under its lock.
        state.with(|heap| unsafe { (*Guarded::blocks(heap)).malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        let Some(state) = state() else { return ptr::null_mut() };
        // SAFETY: the state is valid under its lock.
        state.with(|heap| unsafe { (*Guarded::blocks(heap)).calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            // SAFETY: the block's own mapping, a copy of it in a child, which its owner gives back.
            return unsafe { unmap(at, mapped(layout).unwrap_or(0)) };
        }
        let Some(state) = state() else { return };
        // SAFETY: a block of this heap, which its owner gives back. A parent's stays.
        state.with(|heap| unsafe {
            if Guarded::has(heap, at.addr()) {
                (*Guarded::blocks(heap)).free(at, layout.size(), layout.align());
            }
        });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: promised by the caller.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if layout.size() >= LARGE && bytes >= LARGE && layout.align() <= PAGE {
            let (Some(before), Some(after)) = (mapped(layout), mapped(new)) else { return ptr::null_mut() };
            // SAFETY: the block's own mapping; what it contains goes with it.
            let to = unsafe { libc::syscall(libc::SYS_mremap, at, before, after, libc::MREMAP_MAYMOVE) };
            return usize::try_from(to).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut);
        }
        if layout.size() < LARGE && bytes < LARGE {
            let Some(state) = state() else { return ptr::null_mut() };
            // SAFETY: a block of this heap, from its owner.
            let resized = state.with(|heap| unsafe {
                let resize = || (*Guarded::blocks(heap)).realloc(at, layout.size(), layout.align(), bytes);
                Guarded::has(heap, at.addr()).then(resize)
            });
            if let Some(resized) = resized {
                return resized;
            }
        }
        // SAFETY: both blocks are as large as the smaller of the two, and different.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                ptr::copy_nonoverlapping(at, to, layout.size().min(bytes));
                self.dealloc(at, layout);
            }
            to
        }
    }
}

/// Calls `f` for the parts of a range of addresses that are in no segment, in order. Without the
/// heap's lock.
pub fn each_other(range: Range<u64>, mut f: impl FnMut(Range<u64>)) {
    let mut own = [(0, 0); SEGMENTS];
    let state = STATE.load(Ordering::Acquire);
    // SAFETY: null, or a mapping that is never unmapped.
    if let Some(state) = unsafe { state.as_ref() } {
        // SAFETY: within `with`.
        let list = state.with(|heap| unsafe { Guarded::list(heap) });
        for (own, segment) in own.iter_mut().zip(list.into_iter().flatten()) {
            *own = (segment.start as u64, segment.end as u64);
        }
    }
    own.sort_unstable();
    let mut at = range.start;
    for (start, end) in own {
        if end <= at || start >= range.end {
            continue;
        }
        if start > at {
            f(at..start);
        }
        at = end;
    }
    if at < range.end {
        f(at..range.end);
    }
}
