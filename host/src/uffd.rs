// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Notification source: userfaultfd events.
//!
//! Watched memory is registered in write-protect mode with nothing protected: only the events are
//! wanted, which are UNMAP, REMAP, REMOVE and, when permitted, FORK. With WP_ASYNC (Linux 6.7)
//! every kind of mapping can be registered, before that anonymous, shmem and hugetlb memory.
//!
//! # What differs from the kernel's notifiers
//!
//! The thread that changes a mapping sleeps until its event has been *read*, not until it has been
//! handled. UNMAP and REMAP come after the pages have gone, REMOVE and FORK before. So the reader
//! thread first pauses the GPUs ([`crate::mm::Pause`]), then reads events, runs the callbacks and
//! lets the GPUs continue. No GPU access can come between the moment the program continues and the
//! end of the callbacks. Between a munmap in the kernel and its event an access may find nothing;
//! it waits in [`crate::mm::Mm::lost`] for the event. After a REMOVE was handled the zap itself may
//! still come. The frames are dead by then, and only a page that was faulted in meanwhile is
//! affected. The GPU reaches it through its CPU address and sees the CPU's contents.
//!
//! mprotect and reclaim raise no event; neither do changes of the file behind a mapping. Shared
//! read-only mappings of files cannot be registered. A registered mapping does not merge with
//! unregistered neighbours and is not faulted around. Memory that mremap moves stays registered at
//! its new place, and nobody needs its events there.
//!
//! # Rules
//!
//! The reader thread neither allocates nor frees nor unmaps once it runs: see [`crate::mm`].

use crate::maps;
use crate::source::Capabilities;
use crate::sys;
use linux_raw_sys::{general as raw, ioctl};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{CpuSpan, CpuVa};
use vkfd_driver::base::errno::Errno;
use vkfd_rt::section;

/// Events taken by one read.
const EVENTS: usize = 32;
/// Rounds after which whatever was in the queue has been read, unless more than 2,000 threads sleep
/// in it.
const DRAIN_ROUNDS: u64 = 64;

/// How many changes of mappings a look at the registration waits for.
const CHANGES: u32 = 16;

/// As long is a change waited for that somebody has begun. A debugger may hold them.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// The features without which userfaultfd is of no use here.
const NEEDED: u64 = bits(
    raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
        | raw::UFFD_FEATURE_EVENT_REMAP
        | raw::UFFD_FEATURE_EVENT_REMOVE
        | raw::UFFD_FEATURE_EVENT_UNMAP,
);
/// The features that are used where they exist.
const WELCOME: u64 =
    bits(raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM | raw::UFFD_FEATURE_WP_UNPOPULATED | raw::UFFD_FEATURE_WP_ASYNC);
const FORK: u64 = bits(raw::UFFD_FEATURE_EVENT_FORK);

const fn bits(features: u32) -> u64 {
    features as u64
}

/// The whole address space that the host can watch.
pub(crate) fn everything() -> CpuSpan {
    CpuSpan::between(CpuVa(0), CpuVa(1 << 47))
}

/// What has happened to memory that is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is not mapped there any more, and its registration is lost.
    Gone,
    /// Its pages are about to be discarded.
    Discarded,
    /// A child has it, too: pages become copied on write.
    Forked,
}

/// The receiver of events, on the reader thread: neither allocates nor frees nor unmaps.
pub(crate) trait Listener: Send + Sync {
    /// Runs `f`, which reads and passes on events, with all accesses of GPUs held up.
    fn with_accesses_paused(&self, f: &mut dyn FnMut());

    /// An event has come.
    fn changed(&self, span: CpuSpan, change: Change);
}

/// The descriptor and its reader's state.
pub(crate) struct Uffd {
    fd: OwnedFd,
    features: u64,
    /// A page of its own, for [`Uffd::is_changing`].
    probe: CpuSpan,
    /// The reader has noticed events and not yet handled them. Set before it reads, and a thread
    /// that the read wakes sees it.
    busy: AtomicBool,
    /// How often it has handled what it had read. Guarded for waiting.
    rounds: Mutex<u64>,
    handled: Condvar,
}

impl Uffd {
    /// A descriptor with all the features that can be had.
    pub(crate) fn open() -> io::Result<Self> {
        // The features must be known before they are asked for, and each descriptor is asked once.
        let offered = Self::handshake(&Self::descriptor()?, 0)?;
        if offered & NEEDED != NEEDED {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel offers features {offered:#x}, {NEEDED:#x} are needed"),
            ));
        }
        let mut last = None;
        // The fork event needs CAP_SYS_PTRACE.
        for wanted in [NEEDED | offered & (WELCOME | FORK), NEEDED | offered & WELCOME, NEEDED] {
            let fd = Self::descriptor()?;
            match Self::handshake(&fd, wanted) {
                Ok(_) => {
                    return Ok(Self {
                        probe: Self::probe(&fd)?,
                        fd,
                        features: wanted,
                        busy: AtomicBool::new(false),
                        rounds: Mutex::new(0),
                        handled: Condvar::new(),
                    })
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    /// A page that is registered for good.
    fn probe(fd: &OwnedFd) -> io::Result<CpuSpan> {
        let probe = sys::map_page()?;
        match register(fd, probe, raw::UFFDIO_REGISTER_MODE_WP) {
            true => Ok(probe),
            false => Err(io::Error::last_os_error()),
        }
    }

    fn is_changing(&self) -> bool {
        is_changing(self.fd.as_raw_fd(), self.probe)
    }

    fn descriptor() -> io::Result<OwnedFd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // Only user-mode faults are ever of interest, and that much is allowed to everyone.
        let user_only = i32::try_from(raw::UFFD_USER_MODE_ONLY).unwrap_or(1);
        let mut error = io::Error::from(io::ErrorKind::Unsupported);
        for flags in [flags | user_only, flags] {
            // SAFETY: no pointers are passed.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            match i32::try_from(fd) {
                // SAFETY: a new descriptor that nobody else owns.
                Ok(fd) if fd >= 0 => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                _ => error = io::Error::last_os_error(),
            }
        }
        Err(error)
    }

    fn handshake(fd: &OwnedFd, features: u64) -> io::Result<u64> {
        let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features, ioctls: 0 };
        // SAFETY: the structure is the one that UFFDIO_API takes.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), ioctl::UFFDIO_API.into(), &raw mut api) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(api.features)
    }

    pub(crate) fn sees_forks(&self) -> bool {
        self.features & FORK != 0
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            unmap: true,
            remap: true,
            discard: true,
            fork: true,
            raw_system_calls: true,
            files: self.features & bits(raw::UFFD_FEATURE_WP_ASYNC) != 0,
            ..Capabilities::default()
        }
    }

    /// Registers whatever is mapped in `span`. False when something could not be.
    ///
    /// # Errors
    /// ENOMEM when the process would have more mappings than vm.max_map_count: what is registered
    /// is a mapping of its own.
    pub(crate) fn register(&self, span: CpuSpan) -> Result<bool, Errno> {
        let mut registered = Ok(true);
        outside_of_heap(span, |span| {
            let register = || Ok(self.register_one(span)? || self.by_piece(span, |piece| self.register_one(piece))?);
            registered = registered.and_then(|all| register().map(|done| all && done));
        });
        registered
    }

    fn register_one(&self, span: CpuSpan) -> Result<bool, Errno> {
        self.register_for(span, raw::UFFDIO_REGISTER_MODE_WP)
    }

    fn register_for(&self, span: CpuSpan, mode: u32) -> Result<bool, Errno> {
        match register(&self.fd, span, mode) {
            true => Ok(true),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) => Err(Errno::ENOMEM),
            _ => Ok(false),
        }
    }

    /// Whether all that is mapped in `span` is registered for protection. O(pages): the kernel
    /// looks at each entry, and changes none because nothing is protected. False also when others
    /// change mappings all the time.
    pub(crate) fn has_registered(&self, span: CpuSpan) -> bool {
        let one = |part| between_changes(|| unprotect(self.fd.as_raw_fd(), part), || self.settle());
        let mut all = true;
        outside_of_heap(span, |part| all = all && one(part).is_ok());
        all
    }

    /// Ends the registration of private anonymous memory that is registered with another descriptor
    /// next. As [`Uffd::unregister`], but faster before Linux 7. The span is registered for
    /// something else first, and the kernel does not look at every page for protection to take off.
    /// A thread that touches a missing page meanwhile waits until it is over.
    pub(crate) fn hand_over(&self, span: CpuSpan) {
        let _ = self.register_for(span, raw::UFFDIO_REGISTER_MODE_MISSING);
        self.unregister(span);
    }

    /// Ends the registration of `span`.
    pub(crate) fn unregister(&self, span: CpuSpan) {
        let one = |span: CpuSpan| {
            let mut range = raw::uffdio_range { start: span.start().0, len: span.bytes() };
            // SAFETY: the structure is the one that UFFDIO_UNREGISTER takes.
            Ok(unsafe { libc::ioctl(self.fd.as_raw_fd(), ioctl::UFFDIO_UNREGISTER.into(), &raw mut range) == 0 })
        };
        if one(span) != Ok(true) {
            // Events of memory that stays registered are ignored.
            let _ = self.by_piece(span, one);
        }
    }

    /// Runs `f` on runs of adjacent mappings in `span`, and where that fails on each mapping of the
    /// run. Whether there was something and `f` succeeded on all of it.
    fn by_piece(&self, span: CpuSpan, f: impl Fn(CpuSpan) -> Result<bool, Errno>) -> Result<bool, Errno> {
        let mappings = maps::within(span);
        let mut all = !mappings.is_empty();
        for run in mappings.chunk_by(|a, b| a.span.end() == b.span.start()) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            if !f(CpuSpan::between(first.span.start(), last.span.end()))? {
                for mapping in run {
                    all &= f(mapping.span)?;
                }
            }
        }
        Ok(all)
    }

    /// Starts the reader thread.
    pub(crate) fn serve(&'static self, listener: &'static dyn Listener) -> io::Result<()> {
        vkfd_rt::thread::spawn("vkfd-notify", move || {
            block_signals();
            let _abort = AbortOnPanic;
            // Not by a channel, whose end frees: nothing is registered before this was seen, and
            // from then on nothing may be freed.
            *self.rounds() += 1;
            self.handled.notify_all();
            self.read_events(listener);
        })?;
        let begun = self.handled.wait_while(self.rounds(), |rounds| *rounds == 0);
        drop(begun.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// One read per round, so that a storm of events neither keeps the GPUs paused nor
    /// [`Uffd::settle`] waiting.
    fn read_events(&self, listener: &dyn Listener) {
        loop {
            self.wait_readable(-1);
            self.busy.store(true, Ordering::SeqCst);
            section::enter("a round of the event reader");
            listener.with_accesses_paused(&mut || {
                // SAFETY: the message is plain numbers; zero is a value of each.
                let mut events: [raw::uffd_msg; EVENTS] = unsafe { std::mem::zeroed() };
                let read = self.read(&mut events);
                for event in events.iter().take(read) {
                    handle(listener, event);
                }
            });
            let mut rounds = self.rounds();
            self.busy.store(false, Ordering::SeqCst);
            *rounds += 1;
            drop(rounds);
            self.handled.notify_all();
            section::leave();
        }
    }

    /// Takes events; 0 when there are none.
    fn read(&self, events: &mut [raw::uffd_msg; EVENTS]) -> usize {
        // SAFETY: the buffer is as long as said.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(events)) };
        usize::try_from(read).unwrap_or(0) / size_of::<raw::uffd_msg>()
    }

    /// Whether there are events, waiting up to `timeout` milliseconds (-1: as long as it takes).
    fn wait_readable(&self, timeout: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut poll, 1, timeout) > 0 && poll.revents & libc::POLLIN != 0 }
    }

    fn rounds(&self) -> MutexGuard<'_, u64> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the events of all calls that have returned were handled. It also waits for calls
    /// that have freed addresses which other memory may use by now, although their callers may
    /// still sleep.
    pub(crate) fn settle(&self) {
        if self.is_changing() {
            // Others may go on changing mappings for ever.
            let (until, begun) = (*self.rounds() + DRAIN_ROUNDS, Instant::now());
            while self.is_changing() && *self.rounds() < until && begun.elapsed() < LONGEST {
                std::thread::yield_now();
            }
        }
        if !self.busy.load(Ordering::SeqCst) {
            return;
        }
        let mut rounds = self.rounds();
        let now = *rounds;
        while *rounds == now && self.busy.load(Ordering::SeqCst) {
            rounds = self.handled.wait(rounds).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether all events there were are handled.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.wait_readable(0) && !self.busy.load(Ordering::SeqCst)
    }

    /// Waits until the events of calls that still sleep were handled too. Bounded, because others
    /// may go on causing events.
    pub(crate) fn drain(&self) {
        let until = *self.rounds() + DRAIN_ROUNDS;
        while self.wait_readable(0) && *self.rounds() < until {
            std::thread::yield_now();
        }
        self.settle();
    }
}

/// Whether somebody is changing mappings that are registered with `fd`, and nobody has read the
/// event yet. `probe` is a page of the host's own, registered there to be protected.
pub(crate) fn is_changing(fd: RawFd, probe: CpuSpan) -> bool {
    unprotect(fd, probe).is_err_and(|error| is_change(&error))
}

/// Calls `f` again while it fails because mappings change, at most [`CHANGES`] times, each after
/// `wait`.
fn between_changes(f: impl Fn() -> io::Result<()>, wait: impl Fn()) -> io::Result<()> {
    for _ in 0..CHANGES {
        match f() {
            Err(error) if is_change(&error) => wait(),
            done => return done,
        }
    }
    f()
}

fn is_change(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Takes protection off `span`. The kernel refuses memory that is not registered with a descriptor
/// for protection (ENOENT), and all memory while somebody changes mappings (EAGAIN).
fn unprotect(fd: RawFd, span: CpuSpan) -> io::Result<()> {
    let range = raw::uffdio_range { start: span.start().0, len: span.bytes() };
    let mut request = raw::uffdio_writeprotect { range, mode: 0 };
    // SAFETY: the structure is the one that UFFDIO_WRITEPROTECT takes. The host protects nothing,
    // so no access changes by it.
    match unsafe { libc::ioctl(fd, ioctl::UFFDIO_WRITEPROTECT.into(), &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls `f` for the parts of `span` without the heap of this library, of which nobody is told: a
/// change of it would wait for the reader.
pub(crate) fn outside_of_heap(span: CpuSpan, mut f: impl FnMut(CpuSpan)) {
    vkfd_rt::heap::each_other(span.start().0..span.end().0, |part| {
        f(CpuSpan::between(CpuVa(part.start), CpuVa(part.end)));
    });
}

/// Registers `span`. False with the reason in errno.
fn register(fd: &OwnedFd, span: CpuSpan, mode: u32) -> bool {
    let mut register = raw::uffdio_register {
        range: raw::uffdio_range { start: span.start().0, len: span.bytes() },
        mode: u64::from(mode),
        ioctls: 0,
    };
    // SAFETY: the structure is the one that UFFDIO_REGISTER takes; registering changes no contents.
    unsafe { libc::ioctl(fd.as_raw_fd(), ioctl::UFFDIO_REGISTER.into(), &raw mut register) == 0 }
}

/// Without its reader every munmap of the process would sleep for ever: better no process than
/// that.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// One event.
fn handle(listener: &dyn Listener, event: &raw::uffd_msg) {
    let (span, change) = match u32::from(event.event) {
        kind @ (raw::UFFD_EVENT_UNMAP | raw::UFFD_EVENT_REMOVE) => {
            // SAFETY: the kernel filled this member for these events.
            let gone = unsafe { event.arg.remove };
            let change = if kind == raw::UFFD_EVENT_UNMAP { Change::Gone } else { Change::Discarded };
            (Some(CpuSpan::between(CpuVa(gone.start), CpuVa(gone.end))), change)
        }
        raw::UFFD_EVENT_REMAP => {
            // SAFETY: the kernel filled this member for this event.
            let moved = unsafe { event.arg.remap };
            (CpuSpan::new(CpuVa(moved.from), moved.len), Change::Gone)
        }
        raw::UFFD_EVENT_FORK => {
            // SAFETY: the kernel filled this member for this event.
            let child = unsafe { event.arg.fork.ufd };
            if let Ok(fd) = i32::try_from(child) {
                // SAFETY: the read installed this descriptor, for the child's memory, which is none
                // of ours.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            (Some(everything()), Change::Forked)
        }
        _ => return,
    };
    if let Some(span) = span {
        listener.changed(span, change);
    }
}

/// The program's signal handlers must not run on the reader thread: they could allocate. Faults
/// stay deliverable.
pub(crate) fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&raw mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}
