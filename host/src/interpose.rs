// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Notification source: libc's mapping calls, interposed.
//!
//! With the cargo feature `interpose` this crate defines `munmap`, `mremap`, `madvise`, `mprotect`,
//! `pkey_mprotect`, `mmap` and `mmap64`. The dynamic linker then prefers them to libc's for the
//! whole process. Each does what the kernel does: begin the invalidation (callbacks), change (the
//! raw system call), end. A library that does not want that does not turn the feature on; whether
//! the hooks are in effect is found out at run time ([`interposed`]).
//!
//! Together with userfaultfd the hooks announce only changes without an event. These are mprotect,
//! `MADV_PAGEOUT`, and unmapping of memory that cannot be registered there, such as a file that is
//! mapped shared and read-only.
//!
//! A hook entered while its thread is inside another one does just the system call: callbacks
//! change no watched mappings. Signals wait meanwhile.
//!
//! A program that emulates device files gets its turn first when one is mapped ([`set_mapper`]). In
//! a process whose machine is elsewhere a [`Witness`] is told instead of the driver.
//!
//! Limits: raw system calls and calls that libc makes itself (`free` of a large block, `brk`,
//! `shmdt`) are not seen.

pub use crate::interposed::interposed;
#[cfg(feature = "interpose")]
pub use crate::interposed::{note_hook, reaches};
#[cfg(feature = "interpose")]
pub use hooks::HOOKS;

use libc::{c_int, c_void};
use std::sync::OnceLock;

/// What maps the descriptors of device files: given the arguments of mmap, the errno or the
/// mapping's address, or `None` when the descriptor is an ordinary one. Called for every mapping of
/// a file.
pub type Mapper = unsafe fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> Option<Result<*mut c_void, c_int>>;

static MAPPER: OnceLock<Mapper> = OnceLock::new();

/// From now on `mapper` has its turn before the kernel. The first call counts.
pub fn set_mapper(mapper: Mapper) {
    let _ = MAPPER.set(mapper);
}

/// What a call is about to do to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It goes: munmap, or mmap over it.
    Unmap,
    /// It is moved, cut, or enlarged: mremap.
    Move,
    /// Its contents go: MADV_DONTNEED and its kin.
    Discard,
    /// Its protection becomes this (PROT_READ, PROT_WRITE).
    Protect(c_int),
}

/// The receiver of mapping calls in a process whose machine is elsewhere: there is no
/// [`crate::mm::Mm`] then.
///
/// Both functions may run inside an allocator: they neither allocate nor free, and take no lock
/// under which anybody does.
pub trait Witness: Sync {
    /// Before the system call. What it returns is for `after`.
    fn before(&self, change: Change, start: u64, end: u64) -> bool;
    /// After it, if `before` was true. For [`Change::Move`], `kept` is the end of the part that has
    /// not moved (`start`: all has moved).
    fn after(&self, change: Change, start: u64, end: u64, done: bool, kept: u64);
}

static WITNESS: OnceLock<&'static dyn Witness> = OnceLock::new();

/// From now on `witness` is notified of mapping calls. The first call counts.
pub fn set_witness(witness: &'static dyn Witness) {
    let _ = WITNESS.set(witness);
}

#[cfg(feature = "interpose")]
mod hooks {
    use super::{note_hook, Change, WITNESS};
    use crate::hook::MAPPING;
    use crate::migrate::Mover;
    use crate::mm::Mm;
    use crate::sabotage;
    use crate::source::Source;
    use libc::{c_int, c_long, c_void, off_t, size_t};
    use std::cell::Cell;
    use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};
    use vkfd_sabotage::Switch;

    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// This thread is inside a hook, until it is dropped. Signals wait until then. A handler that
    /// changes mappings would be taken for a callback, and its change would not be announced. It
    /// could not be announced either, because the interrupted code may hold the driver's locks.
    /// Faults are not held back.
    struct Inside(SignalSet);

    /// As the kernel has it: a bit for each signal.
    type SignalSet = u64;

    /// What a thread raises by itself.
    const FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

    impl Inside {
        fn enter() -> Self {
            let faults = FAULTS.iter().fold(0, |set, signal| set | 1 << (signal - 1));
            let blocked = if sabotage::has(Switch::SignalsInHooks) { 0 } else { !faults };
            let mut before: SignalSet = 0;
            mask(libc::SIG_BLOCK, &blocked, &raw mut before);
            INSIDE.set(true);
            Self(before)
        }
    }

    impl Drop for Inside {
        fn drop(&mut self) {
            INSIDE.set(false);
            mask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut());
        }
    }

    /// The system call; libc's function keeps two signals of its own out.
    fn mask(how: c_int, set: &SignalSet, before: *mut SignalSet) {
        let errno = errno();
        // SAFETY: both are sets of the size that is said, or null.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, how, std::ptr::from_ref(set), before, size_of::<SignalSet>());
        }
        set_errno(errno);
    }

    /// Which calls a hook is for.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Seen {
        /// userfaultfd shows it too.
        ByEvents,
        /// Only the hook sees it.
        OnlyHere,
    }

    /// Runs `call` inside invalidations of the watched ones of `spans`. What it returns tells
    /// `gone` which memory is no more what it was.
    fn around(
        seen: Seen,
        change: Option<Change>,
        spans: [Option<CpuSpan>; 2],
        call: impl FnOnce() -> c_long,
        gone: impl FnOnce(c_long) -> [Option<CpuSpan>; 2],
    ) -> c_long {
        let announce = !INSIDE.get();
        if let Some((witness, change)) = WITNESS.get().zip(change).filter(|_| announce) {
            return witnessed(*witness, change, spans, call, gone);
        }
        // While mappings change by a call that is known of, nothing that moves to or from a GPU is
        // replaced. Such calls touch no pages.
        let mover = (announce && spans.iter().any(Option::is_some)).then(Mm::current).flatten().and_then(Mover::of);
        let _nothing_replaced = mover.map(crate::migrate::Mover::changing);
        let mm = if announce { Mm::current() } else { None };
        let Some(mm) = mm.filter(|mm| match mm.source() {
            Source::Interposed => true,
            Source::Userfaultfd => seen == Seen::OnlyHere,
            Source::Auto | Source::AccessOnly => false,
        }) else {
            return call();
        };
        let inside = Inside::enter();
        let errno = errno();
        // Ended in the reverse order of fields; the order among them does not matter.
        let under_way = spans.map(|s| s.filter(|s| mm.is_watched(*s)).map(|s| mm.invalidation(s)));
        set_errno(errno);
        let result = call();
        let errno = self::errno();
        // Only now is it known that the call was not refused.
        gone(result).into_iter().flatten().for_each(|span| mm.memory_gone(span));
        drop(under_way);
        set_errno(errno);
        drop(inside);
        result
    }

    /// Where userfaultfd reports unmaps: reports the one of `span` that it cannot.
    fn announce_unheard(span: Option<CpuSpan>) {
        let mm = if INSIDE.get() { None } else { Mm::current().filter(|mm| mm.source() == Source::Userfaultfd) };
        if let Some((mm, span)) = mm.zip(span) {
            let _inside = Inside::enter();
            let errno = errno();
            mm.unheard_goes(span);
            set_errno(errno);
        }
    }

    /// As [`around`], for a machine elsewhere.
    fn witnessed(
        witness: &dyn super::Witness,
        change: Change,
        spans: [Option<CpuSpan>; 2],
        call: impl FnOnce() -> c_long,
        gone: impl FnOnce(c_long) -> [Option<CpuSpan>; 2],
    ) -> c_long {
        // What mremap replaces at its target is unmapped there.
        let changes = [change, if change == Change::Move { Change::Unmap } else { change }];
        let inside = Inside::enter();
        let errno = errno();
        let mut told = [false; 2];
        for ((span, change), told) in spans.iter().zip(changes).zip(&mut told) {
            *told = span.is_some_and(|span| witness.before(change, span.start().0, span.end().0));
        }
        set_errno(errno);
        let result = call();
        if told.contains(&true) {
            let errno = self::errno();
            let lost = gone(result)[0];
            for ((span, change), _) in spans.iter().zip(changes).zip(told).filter(|(_, told)| *told) {
                let Some(span) = span else { continue };
                let kept = lost.map_or(span.end().0, |lost| lost.start().0);
                witness.after(change, span.start().0, span.end().0, result != -1, kept);
            }
            set_errno(errno);
        }
        drop(inside);
        result
    }

    /// For calls that mean something else to a mapping of VRAM than to private memory: growing it
    /// would show the pages behind, and some advice is refused.
    fn back_to_system(span: Option<CpuSpan>) -> Option<crate::migrate::Frozen<'static>> {
        let mover = (!INSIDE.get()).then(Mm::current).flatten().and_then(Mover::of)?;
        let errno = errno();
        let frozen = mover.thaw_later(span?);
        set_errno(errno);
        Some(frozen)
    }

    fn errno() -> c_int {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() }
    }

    fn set_errno(value: c_int) {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = value }
    }

    /// The whole pages of an argument pair; `None` for a pair that the kernel will refuse or
    /// ignore.
    fn pages(at: *mut c_void, bytes: size_t) -> Option<CpuSpan> {
        let at = at.expose_provenance() as u64;
        let end = at.checked_add(bytes as u64)?.checked_next_multiple_of(PAGE)?;
        (bytes != 0 && at % PAGE == 0).then(|| CpuSpan::between(CpuVa(at), CpuVa(end)))
    }

    /// The part of `span` beyond its first `bytes`.
    fn cut_off(span: CpuSpan, bytes: size_t) -> Option<CpuSpan> {
        let left = (bytes as u64).checked_next_multiple_of(PAGE)?;
        (left < span.bytes()).then(|| CpuSpan::between(CpuVa(span.start().0 + left), span.end()))
    }

    /// A system call's integer result where the C function returns int.
    fn int(value: c_long) -> c_int {
        c_int::try_from(value).unwrap_or(-1)
    }

    fn pointer(value: c_long) -> *mut c_void {
        // As libc: a failure is -1, which is MAP_FAILED.
        std::ptr::with_exposed_provenance_mut(usize::from_ne_bytes(value.to_ne_bytes()))
    }

    crate::hooks! {
        HOOKS;

        /// munmap(2).
        [MAPPING] fn munmap(at: *mut c_void, bytes: size_t) -> c_int {
            note_hook();
            let span = pages(at, bytes);
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_munmap, at, bytes) }
            };
            let change = Some(Change::Unmap);
            announce_unheard(span);
            int(around(Seen::ByEvents, change, [span, None], call, |done| [span.filter(|_| done == 0), None]))
        }

        /// mremap(2). Variadic in C; where arguments are passed in registers the fifth is simply
        /// there.
        [MAPPING] fn mremap(
            at: *mut c_void,
            bytes: size_t,
            new_bytes: size_t,
            flags: c_int,
            new_at: *mut c_void,
        ) -> *mut c_void {
            note_hook();
            let target = (flags & libc::MREMAP_FIXED != 0).then(|| pages(new_at, new_bytes)).flatten();
            let source = pages(at, bytes);
            let _stays = back_to_system(source);
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_mremap, at, bytes, new_bytes, flags, new_at) }
            };
            let gone = |done| match pointer(done) {
                libc::MAP_FAILED => [None, None],
                // Where it is, only the end may have gone.
                there if there == at => [source.and_then(|s| cut_off(s, new_bytes)), None],
                _ => [source, target],
            };
            pointer(around(Seen::ByEvents, Some(Change::Move), [source, target], call, gone))
        }

        /// madvise(2).
        [MAPPING] fn madvise(at: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
            note_hook();
            // Shared memory, which a machine elsewhere makes of the program, can only lose its
            // contents at once.
            let elsewhere = WITNESS.get().is_some();
            let advice = if elsewhere && advice == libc::MADV_FREE { libc::MADV_DONTNEED } else { advice };
            let seen = match advice {
                libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_REMOVE | libc::MADV_FREE => {
                    Some(Seen::ByEvents)
                }
                libc::MADV_PAGEOUT => Some(Seen::OnlyHere),
                _ => None,
            };
            let span = seen.and_then(|_| pages(at, bytes));
            let _stays = matches!(advice, libc::MADV_FREE | libc::MADV_WIPEONFORK | libc::MADV_DONTFORK)
                .then(|| back_to_system(pages(at, bytes)));
            let mover = (!INSIDE.get()).then(Mm::current).flatten().and_then(Mover::of);
            let _announced = mover.zip(span).map(|(mover, span)| mover.discarding(span));
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) }
            };
            let change = seen.filter(|seen| *seen == Seen::ByEvents).map(|_| Change::Discard);
            int(around(seen.unwrap_or(Seen::ByEvents), change, [span, None], call, |_| [None, None]))
        }

        /// mprotect(2).
        [MAPPING] fn mprotect(at: *mut c_void, bytes: size_t, prot: c_int) -> c_int {
            note_hook();
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_mprotect, at, bytes, prot) }
            };
            let change = Some(Change::Protect(prot));
            int(around(Seen::OnlyHere, change, [pages(at, bytes), None], call, |_| [None, None]))
        }

        /// pkey_mprotect(2).
        [MAPPING] fn pkey_mprotect(at: *mut c_void, bytes: size_t, prot: c_int, key: c_int) -> c_int {
            note_hook();
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_pkey_mprotect, at, bytes, prot, key) }
            };
            let change = Some(Change::Protect(prot));
            int(around(Seen::OnlyHere, change, [pages(at, bytes), None], call, |_| [None, None]))
        }

        /// mmap(2).
        [MAPPING] fn mmap(
            at: *mut c_void,
            bytes: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            note_hook();
            if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
                // SAFETY: forwarded to the caller.
                match super::MAPPER.get().and_then(|map| unsafe { map(at, bytes, prot, flags, fd, offset) }) {
                    Some(Ok(mapped)) => return mapped,
                    Some(Err(errno)) => {
                        set_errno(errno);
                        return libc::MAP_FAILED;
                    }
                    None => {}
                }
            }
            let span = (flags & libc::MAP_FIXED != 0).then(|| pages(at, bytes)).flatten();
            let call = || {
                // SAFETY: forwarded to the caller.
                unsafe { libc::syscall(libc::SYS_mmap, at, bytes, prot, flags, fd, offset) }
            };
            let gone = |done| [span.filter(|_| pointer(done) != libc::MAP_FAILED), None];
            pointer(around(Seen::ByEvents, Some(Change::Unmap), [span, None], call, gone))
        }

        /// mmap64(3), which is mmap on 64-bit machines.
        [MAPPING] fn mmap64(
            at: *mut c_void,
            bytes: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            // SAFETY: forwarded to the caller.
            unsafe { mmap(at, bytes, prot, flags, fd, offset) }
        }
    }
}
