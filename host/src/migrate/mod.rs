// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Data that moves between system memory and a GPU's:
//! [`vkfd_driver::seams::address_space::AddressSpace::migrate_to_device`] and back.
//!
//! A GPU's memory is a memfd. *Coherent*: a shared mapping of that file replaces the client's
//! private anonymous pages; the CPU, system calls and other processes then use it in place.
//! *Private*: the client's mapping stays, empty. A thread that touches it waits until the worker
//! has brought its 2 MiB back.
//!
//! # How no write is lost
//!
//! | step | worker | a client thread that touches the pages |
//! | --- | --- | --- |
//! | take out | moves pages out of the client's memory (`UFFDIO_MOVE`, atomic for each page; it refuses pages pinned for I/O) | waits in the kernel: the mapping is registered for missing pages |
//! | copy | copies pages that no thread can reach | waits |
//! | replace | puts a prepared mapping of the VRAM file there by mremap: registered, *sealed*, without page-table entries | waits |
//! | release | wakes the waiting threads, after it has processed every earlier change of mappings | continues |
//!
//! Between taking out and release an access sees nothing. The worker keeps the old pages until
//! then, and can give everything back. A change by another thread (munmap, mremap, mprotect,
//! madvise; through libc or not) is known before any thread can notice the move. If mremap moves a
//! page that is in transit, its data goes to the new address. If mremap moves something into the
//! span, the step is abandoned.
//!
//! A thread that changes a mapping sleeps until the collector has read the event. Four steps must
//! come wholly before or after any change: taking out, giving back, filling, and ending a
//! registration. They run while no event is unread or being read (`Mover::undisturbed`). The way
//! back to system memory is the same with an empty anonymous mapping, which is filled once no
//! thread reaches the VRAM pages.
//!
//! # Threads and locks
//!
//! | thread | work |
//! | --- | --- |
//! | collector (`collect`) | reads the descriptor, at once and always, into the ring; on the worker's processor while much moves (`together`) |
//! | worker (`worker`) | everything else, one thing at a time: moves, the ring's events, reports of released pages to the driver |
//! | helper (`shared_copy`) | copies as well, while the worker copies or takes the next pages out |
//!
//! A thread that wants pages moved asks the worker and waits. The worker waits for no lock under
//! which another thread touches pages that can move. It tries the mm's registration lock again and
//! again, and works meanwhile (`Worker::registering`). The driver's locks are safe because no
//! thread's stack moves (`threads`). Between taking out and release the worker touches only its
//! stack and memory that never moves, because it must not wait for a page that it moves itself. The
//! driver lives in malloc's heap, so that heap does not move at all.
//!
//! `hold` is read-locked by the interposed calls around a change of mappings, and write-locked by
//! the worker around the replacement. `places` guards the runs. Together with `reading` it also
//! keeps pages that the collector sealed from being unsealed too early. Order: the mm's
//! registration, hold, places; the lock in `late` is a leaf. Driver callbacks run without any of
//! them.
//!
//! # Limits
//!
//! - Private anonymous memory that is readable and writable moves. Shared and file mappings, locked
//!   or pinned pages, malloc's heap and the first thread's stack stay. Earlier advice (huge pages,
//!   dump, fork) and protection keys are lost.
//! - A thread may wait on a futex that is not private, for example of a process-shared mutex. If
//!   the futex's page moves to coherent memory or back, it may not be woken, because its key
//!   changes. Joining a thread is such a wait, so threads' descriptors and stacks stay (`threads`).
//! - A driver's own data may share a mapping with memory that goes to a GPU. Then driver and worker
//!   may wait for each other.
//! - Each run of pages is a mapping, two if it splits one. Moving stops short of vm.max_map_count,
//!   see `budget`.
//! - Changes that bypass libc are seen by their events. One window is left between `swap`'s last
//!   check of a mapping (a query) and the mremap over it; the kernel has no call to close it. If
//!   one raw call removes the mapping then *and* another puts a new one there, the new one is
//!   replaced. If the raw call only unmaps, something stays mapped where the program has nothing.
//!   Interposed calls are excluded for that time. A mere move is found, and its contents follow.
//! - A raw mremap of memory that migration has cut into several mappings may be refused (EFAULT).
//! - For a second after a raw discard its pages stay in place.
//! - A raw mremap that grows a moved mapping is refused by the kernel, or shows the VRAM's next
//!   pages. A fork without libc's handlers (`_Fork`, raw clone) shares coherent pages with the
//!   child. A raw MADV_FREE is refused.
//! - I/O in flight into pages on the device (`O_DIRECT`, registered buffers) is not seen when they
//!   move back.
//! - Without CAP_SYS_PTRACE or vm.unprivileged_userfaultfd only user mode can wait. A system call
//!   that touches pages in transit, or private pages on a device, then fails with EFAULT.

mod attached;
mod budget;
mod collect;
mod descriptor;
mod device_ram;
mod discard;
pub(crate) mod fork;
mod late;
mod own;
mod places;
mod ring;
mod shared_copy;
mod stash;
mod swap;
mod threads;
mod to_device;
mod to_system;
mod together;
mod vma;
mod worker;

use crate::mm::Mm;
use crate::sys;
use crate::uffd::LONGEST;
pub use attached::why_not_moved;
use descriptor::{Descriptor, Mode};
use device_ram::DeviceRam;
use late::LateDiscards;
use own::OwnMemory;
use places::{Places, Run};
use ring::Ring;
use shared_copy::{Helping, SharedCopy};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "interpose")]
use std::sync::RwLockReadGuard;
use std::sync::{mpsc, Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use together::{Gathered, Together};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, Mapping};
use vkfd_driver::seams::device_memory::DeviceMemory;
use vma::Mappings;

/// Whether this system lets memory move: then, whether system calls wait for it.
pub(crate) fn can_move() -> io::Result<bool> {
    Descriptor::probe()
}

/// How long the worker stays awake for the next request, and the requester of a small one for its
/// answer: about as long as moving 2 MiB takes. To be woken up takes a good part of that where an
/// idle processor has to be.
const AWAKE: Duration = Duration::from_micros(500);

/// Events after which whatever had begun has been read, unless many threads sleep in it.
const UNREAD: u64 = 256;

/// A request for as many bytes is moved by two threads together, and the requesting thread leaves
/// them a processor.
const LARGE: u64 = 128 << 10;

/// A microsecond or two in which others have the processor: threads that want it, and the other
/// half of its core.
fn relax() {
    for _ in 0..40 {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// Waits for the worker's answer to a request for `bytes`; `None` when it will not come.
fn await_answer<T>(answer: &mpsc::Receiver<T>, bytes: u64) -> Option<T> {
    let start = Instant::now();
    while bytes < LARGE && start.elapsed() < AWAKE {
        match answer.try_recv() {
            Err(mpsc::TryRecvError::Empty) => relax(),
            answered => return answered.ok(),
        }
    }
    answer.recv().ok()
}

/// What the worker is asked for.
enum Job {
    ToDevice { span: CpuSpan, memory: Arc<DeviceRam>, places: Vec<Option<VramOffset>>, done: mpsc::SyncSender<Placed> },
    ToSystem { span: CpuSpan, done: mpsc::SyncSender<u64> },
    Evict { device: usize, places: Vec<VramOffset>, done: mpsc::SyncSender<u64> },
}

/// What [`Job::ToDevice`] answers: the places, `None` where a page moved, how many did, and which
/// may be shared with a child.
struct Placed {
    places: Vec<Option<VramOffset>>,
    moved: u64,
    shared: Vec<CpuSpan>,
}

/// Everything that moves pages in this process. In memory of its own, which never moves.
pub(crate) struct Mover {
    descriptor: Descriptor,
    /// A page by which the descriptor tells whether mappings are changing.
    probe: CpuSpan,
    /// Empty mappings are made of it.
    empty: CpuSpan,
    ring: Ring,
    places: Places,
    mappings: Mappings,
    /// The collector has sealed everything, and has not yet passed on the events that it read.
    /// Written with `places` locked.
    reading: AtomicBool,
    hold: RwLock<()>,
    pub(crate) late: LateDiscards,
    copy: SharedCopy,
    together: Together,
    /// Odd while pages are out of reach for a moment.
    epoch: AtomicU64,
    /// Pages have come back, or are about to, of which the driver was not told.
    untold: AtomicBool,
    /// The worker's thread number.
    worker: AtomicU32,
    /// How many want that nothing moves to a device.
    frozen: AtomicU32,
    /// How many of the mover's threads have begun.
    threads: AtomicU32,
    jobs: Mutex<VecDeque<Job>>,
    own: OwnMemory,
}

impl Mover {
    /// Starts it.
    ///
    /// # Errors
    /// Why pages cannot be moved here.
    pub(crate) fn start(mm: &'static Mm) -> io::Result<&'static Self> {
        let descriptor = Descriptor::open()?;
        let mappings = Mappings::open()?;
        let stash = stash::Stash::new()?;
        let threads = threads::Threads::open()?;
        let probe = sys::map_page()?;
        descriptor.register(probe, Mode::Protect).map_err(io::Error::from_raw_os_error)?;
        let empty = swap::map_empty()?;
        descriptor.register(empty, Mode::Missing).map_err(io::Error::from_raw_os_error)?;
        let mover = Self {
            descriptor,
            probe,
            empty,
            ring: Ring::new()?,
            places: Places::new()?,
            mappings,
            reading: AtomicBool::new(false),
            hold: RwLock::new(()),
            late: LateDiscards::new(),
            copy: SharedCopy::new(),
            together: Together::new(),
            epoch: AtomicU64::new(0),
            untold: AtomicBool::new(false),
            worker: AtomicU32::new(0),
            frozen: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            jobs: Mutex::default(),
            own: OwnMemory::new(),
        };
        let bytes = size_of::<Self>();
        let home = sys::map_anonymous(bytes, libc::MAP_PRIVATE)?.cast::<Self>();
        // SAFETY: a new mapping, page aligned and large enough, that is never unmapped and that
        // nobody else knows.
        let mover: &'static Self = unsafe {
            home.write(mover);
            home.as_ref()
        };
        let start = CpuVa(home.as_ptr().expose_provenance() as u64);
        let end = CpuVa((start.0 + bytes as u64).next_multiple_of(PAGE));
        let home = CpuSpan::between(start, end);
        for own in [home, probe, empty, stash.memory(), mover.ring.memory(), mover.places.memory()] {
            mover.own.add(own);
        }
        // A thread that starts protects its stack's guard, which is a change of mappings as any: it
        // would wait for a replacement, and that for the collector. So all run before anything
        // moves.
        vkfd_rt::thread::spawn("vkfd-collect", move || {
            mover.together.begun();
            mover.begun();
            // A thread that changes a moved mapping sleeps until the collector has read the event.
            vkfd_rt::section::enter("the collector of events");
            collect::collect(mover);
        })?;
        vkfd_rt::thread::spawn("vkfd-copy", move || {
            mover.begun();
            mover.copy.help_for_ever();
        })?;
        vkfd_rt::thread::spawn("vkfd-move", move || {
            mover.begun();
            worker::Worker::new(mm, mover, stash, threads).run();
        })?;
        mover.await_threads();
        fork::install();
        tracing::debug!(system_calls_wait = descriptor.kernel_faults, "pages can be moved to GPUs");
        Ok(mover)
    }

    /// One of the mover's threads has begun. Not told by a channel, whose end frees: the collector
    /// must not from here on.
    fn begun(&self) {
        self.keep_stack();
        self.threads.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.threads);
    }

    /// Waits until all threads have begun.
    fn await_threads(&self) {
        loop {
            match self.threads.load(Ordering::SeqCst) {
                3 => return,
                begun => sys::futex_wait(&self.threads, begun, 1000),
            }
        }
    }

    /// The stack of the calling thread never moves.
    fn keep_stack(&self) {
        // SAFETY: the attributes are filled before they are asked, and destroyed after.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) == 0 {
                let mut at = std::ptr::null_mut();
                let mut bytes = 0;
                if libc::pthread_attr_getstack(&raw const attributes, &raw mut at, &raw mut bytes) == 0 {
                    let start = at.expose_provenance() as u64;
                    self.own.add(CpuSpan::between(CpuVa(start), CpuVa(start + bytes as u64)));
                }
                libc::pthread_attr_destroy(&raw mut attributes);
            }
        }
    }

    /// Until it is dropped, the worker is helped: with a request for `bytes`, if that is worth it.
    fn helped(&self, bytes: u64) -> Option<(Helping<'_>, Gathered<'_>)> {
        (bytes >= LARGE).then(|| (self.copy.helping(), self.together.gather()))
    }

    fn submit(&self, job: Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
        self.ring.ring();
    }

    /// See `AddressSpace::migrate_to_device`.
    pub(crate) fn to_device(
        &self,
        span: CpuSpan,
        memory: Arc<DeviceRam>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64, Errno> {
        let ask = |places| {
            let (done, answer) = mpsc::sync_channel(1);
            self.submit(Job::ToDevice { span, memory: memory.clone(), places, done });
            await_answer(&answer, span.bytes()).ok_or(Errno::ESRCH)
        };
        let mut placed = ask(places.to_vec())?;
        let mut moved = placed.moved;
        if !placed.shared.is_empty() {
            // Shared with a child until they are written to: have them copied as a write would. Not
            // by the worker, which must wait for no page.
            for span in &placed.shared {
                let _ = sys::madvise(span.start().0, span.bytes(), libc::MADV_POPULATE_WRITE);
            }
            placed = ask(placed.places)?;
            moved += placed.moved;
        }
        places.copy_from_slice(&placed.places);
        Ok(moved)
    }

    /// See `AddressSpace::migrate_to_system`.
    pub(crate) fn to_system(&self, span: CpuSpan) -> u64 {
        if self.places.lock().first_in(span).is_none() && self.ring.produced() == self.ring.handled() {
            return 0;
        }
        self.all_to_system(span)
    }

    /// As [`Mover::to_system`], also for pages in transit to a device.
    fn all_to_system(&self, span: CpuSpan) -> u64 {
        let (done, answer) = mpsc::sync_channel(1);
        self.submit(Job::ToSystem { span, done });
        await_answer(&answer, span.bytes()).unwrap_or(0)
    }

    /// Moves everything in `span` back, and nothing to a device until the guard is dropped.
    #[cfg(feature = "interpose")]
    pub(crate) fn thaw_later(&self, span: CpuSpan) -> Frozen<'_> {
        self.freeze(span);
        Frozen(self)
    }

    fn freeze(&self, span: CpuSpan) {
        self.frozen.fetch_add(1, Ordering::SeqCst);
        self.all_to_system(span);
    }

    fn thaw(&self) {
        self.frozen.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`Uffd::settle`](crate::uffd::Uffd::settle), for memory on GPUs.
    pub(crate) fn settle(&self) {
        let is_changing = || self.descriptor.is_changing(self.probe);
        if is_changing() {
            let (until, begun) = (self.ring.produced() + UNREAD, Instant::now());
            while is_changing() && self.ring.produced() < until && begun.elapsed() < LONGEST {
                std::thread::yield_now();
            }
        }
        while self.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.ring.settle();
    }

    /// Waits until the driver was notified of the changes of all calls that have returned. Their
    /// events were read, so they are being passed on, or in the ring, or dealt with.
    pub(crate) fn settle_told(&self) {
        while self.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.ring.settle_told();
    }

    /// Runs `f` with the runs while no change that has begun is unread, and none that begins is
    /// read: a thread that makes one sleeps until `f` is over. What `f` does through the descriptor
    /// thus comes before any such change, or fails with EAGAIN. Does not allocate; `f` must change
    /// no registered mapping, or it waits for itself.
    fn undisturbed<R>(&self, f: impl FnOnce(&mut places::Runs<'_>) -> R) -> R {
        loop {
            let mut runs = self.places.lock();
            if !self.reading.load(Ordering::SeqCst) && !self.descriptor.is_changing(self.probe) {
                return f(&mut runs);
            }
            drop(runs);
            std::thread::yield_now();
        }
    }

    /// Waits until every change that has begun is in the ring. Neither allocates nor takes a lock.
    fn quiesce(&self) {
        while self.descriptor.is_changing(self.probe) || self.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Whether pages of `span` are on a device.
    pub(crate) fn holds(&self, span: CpuSpan) -> bool {
        self.places.lock().first_in(span).is_some()
    }

    /// How many pages are on devices, and in how many runs.
    pub(crate) fn resident(&self) -> (u64, usize) {
        let runs = self.places.lock();
        (runs.pages(), runs.len())
    }

    /// Calls `f` for the parts of `span` in order, with the address of a part on a device, or
    /// `None` for a part in system memory.
    pub(crate) fn each_part<E>(
        &self,
        span: CpuSpan,
        mut f: impl FnMut(CpuSpan, Option<FabricAddr>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = span.start();
        while at < span.end() {
            let rest = CpuSpan::between(at, span.end());
            let next = self.places.lock().first_in(rest);
            let (part, place) = match next {
                None => (rest, None),
                Some(run) if run.span.start() == at => (run.span, Some(run.at)),
                Some(run) => (CpuSpan::between(at, run.span.start()), None),
            };
            f(part, place)?;
            at = part.end();
        }
        Ok(())
    }

    /// Calls `f` for the parts of `span` that are neither on a device nor the host's own.
    pub(crate) fn each_unmoved(&self, span: CpuSpan, mut f: impl FnMut(CpuSpan)) {
        let _ = self.each_part::<()>(span, |part, place| {
            if place.is_none() {
                self.own.each_other(part, &mut f);
            }
            Ok(())
        });
    }

    /// See `AddressSpace::mapping`.
    pub(crate) fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        self.mappings.around(at, span)
    }

    /// Why `span` may not be accessed: EFAULT for a hole, EPERM for a missing permission.
    pub(crate) fn refusal(&self, span: CpuSpan, access: Access) -> Option<Errno> {
        let wanted = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_WRITE,
        };
        let mut at = span.start();
        let mut denied = None;
        self.mappings.within(span, |vma| {
            if vma.span.start() > at {
                return false;
            }
            if vma.prot & wanted == 0 {
                denied = Some(Errno::EPERM);
            }
            at = vma.span.end();
            true
        });
        if at < span.end() {
            return Some(Errno::EFAULT);
        }
        denied
    }

    /// As if pages were out of reach while `f` runs.
    #[cfg(test)]
    pub(crate) fn out_of_reach<R>(&self, f: impl FnOnce() -> R) -> R {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let result = f();
        self.epoch.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// A count that is odd, or changes, while pages are out of reach.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Around a change of mappings by an interposed call: nothing is replaced meanwhile.
    #[cfg(feature = "interpose")]
    pub(crate) fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.hold.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Around an interposed call that discards the contents of `span`.
    #[cfg(feature = "interpose")]
    pub(crate) fn discarding(&self, span: CpuSpan) -> late::Announced<'_> {
        self.late.announce(span)
    }

    fn replacing(&self) -> RwLockWriteGuard<'_, ()> {
        self.hold.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers all that is mapped in `span`.
    fn register_mapped(&self, span: CpuSpan) {
        self.mappings.within(span, |vma| {
            let _ = self.descriptor.register(vma.cut(span), Mode::Missing);
            true
        });
    }

    /// Unseals the coherent runs that nothing is pending for, and wakes the threads that wait
    /// there. It does nothing while a mapping changes: other memory that may be there now would not
    /// be registered for missing pages for a moment. Returns whether all are unsealed now. The
    /// worker only.
    fn unseal(&self) -> bool {
        let mut runs = self.places.lock();
        let mut sealed = (0..runs.len()).filter_map(|i| runs.get(i)).filter(|run| run.sealed);
        if sealed.next().is_none() {
            return true;
        }
        if self.reading.load(Ordering::SeqCst) || self.descriptor.is_changing(self.probe) {
            return false;
        }
        let mut all = true;
        let since = self.ring.handled();
        let mut i = 0;
        while let Some(run) = runs.get(i) {
            if run.sealed && self.ring.pending(since, run.span).next().is_none() {
                let _ = self.descriptor.register(run.span, Mode::Missing);
                runs.set(i, &Run { sealed: false, ..run });
                self.descriptor.wake(run.span);
            } else {
                all &= !run.sealed;
            }
            i += 1;
        }
        all
    }
}

/// Nothing moves to a device while it lives.
#[cfg(feature = "interpose")]
pub(crate) struct Frozen<'a>(&'a Mover);

#[cfg(feature = "interpose")]
impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

/// The places in a GPU's memory that a host finds by the driver's object for it.
pub(crate) fn device_ram(
    gpus: &[Arc<crate::device::HostGpu>],
    device: &Arc<dyn DeviceMemory>,
) -> io::Result<Option<Arc<DeviceRam>>> {
    use vkfd_driver::seams::gpu::Gpu;
    let Some(gpu) = gpus.iter().find(|gpu| gpu.properties().gpu_id == device.gpu_id()) else {
        return Ok(None);
    };
    DeviceRam::new(gpu.clone(), device.clone()).map(|ram| Some(Arc::new(ram)))
}
