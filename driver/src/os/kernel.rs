// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `os` for the Linux host: the kernel's own objects behind the driver's interface.
//!
//! Locks are `struct mutex`, with one lockdep class a rank, so that a sanitizer kernel checks the
//! order of [`crate::base::lock_rank`] on every acquisition. [`System`] is the part that exists
//! once a module: the workqueue, and lockdep's knowledge of reclaim. It is made before anything
//! else of the driver and dropped last.
//!
//! Limits: delays are rounded up to the kernel's tick.

use crate::base::errno::{Errno, Error, Result};
use crate::base::lock_rank::Rank;
use crate::sabotage::FailPoint;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;
use kernel::alloc::flags::{__GFP_NOWARN, GFP_KERNEL_ACCOUNT};
use kernel::alloc::{kvec, Flags, KBox, KVVec};
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::{self, CondVar, CondVarTimeoutResult, LockClassKey, SpinLock};
use kernel::time::delay::fsleep;
use kernel::time::{msecs_to_jiffies, Delta, Jiffies};
use kernel::types::Opaque;

pub use kernel::sync::{Arc, MutexGuard};

unsafe extern "C" {
    // Static inlines and what the kernel's bindings leave out: linux/helpers.c.
    fn vkfd_should_fail() -> bool;
    fn vkfd_reclaim_begin();
    fn vkfd_reclaim_end();
    fn vkfd_fatal_signal_pending() -> bool;
    fn vkfd_cond_resched();
}

/// All of the driver's memory is held for some client: charged to its memory cgroup, and a failure
/// goes to the client, not to the log.
fn gfp() -> Flags {
    GFP_KERNEL_ACCOUNT | __GFP_NOWARN
}

impl From<kernel::error::Error> for Error {
    fn from(error: kernel::error::Error) -> Self {
        Errno(-error.to_errno()).into()
    }
}

impl From<Error> for kernel::error::Error {
    fn from(error: Error) -> Self {
        Self::from_errno(-error.errno.0)
    }
}

/// Makes a shared object; ENOMEM when that fails.
pub fn arc<T>(value: T) -> Result<Arc<T>> {
    failpoint(FailPoint::Arc)?;
    Ok(Arc::new(value, gfp()).map_err(|_| Errno::ENOMEM)?)
}

/// A growable array; whatever may grow it returns ENOMEM.
pub struct Vec<T>(KVVec<T>);

impl<T> Vec<T> {
    /// Empty, without memory of its own.
    pub const fn new() -> Self {
        Self(KVVec::new())
    }

    /// Empty, with room for at least `capacity` elements.
    pub fn with_capacity(capacity: usize) -> Result<Self> {
        failpoint(FailPoint::Vec)?;
        Ok(Self(KVVec::with_capacity(capacity, gfp()).map_err(|_| Errno::ENOMEM)?))
    }

    /// `len` times `value`.
    pub fn filled(value: T, len: usize) -> Result<Self>
    where
        T: Clone,
    {
        failpoint(FailPoint::Vec)?;
        Ok(Self(KVVec::from_elem(value, len, gfp()).map_err(|_| Errno::ENOMEM)?))
    }

    /// Room for `more` elements, so that that many pushes cannot fail.
    pub fn reserve(&mut self, more: usize) -> Result {
        if self.0.capacity() - self.0.len() < more {
            failpoint(FailPoint::Vec)?;
            self.0.reserve(more, gfp()).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }

    pub fn push(&mut self, value: T) -> Result {
        self.reserve(1)?;
        self.push_reserved(value);
        Ok(())
    }

    /// Appends where room was reserved: never allocates. False (and dropped) when there was none.
    pub fn push_reserved(&mut self, value: T) -> bool {
        self.0.push_within_capacity(value).is_ok()
    }

    /// Takes the last.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes the element at `index` by putting the last in its place.
    #[track_caller]
    pub fn swap_remove(&mut self, index: usize) -> T {
        let last = self.0.len() - 1;
        self.0.swap(index, last);
        match self.0.pop() {
            Some(value) => value,
            // Not empty: the subtraction above did not underflow.
            None => unreachable!(),
        }
    }

    /// Shortens to `len`.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Empties it; the memory stays.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Elements that fit without growing.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        (self.0.capacity() * size_of::<T>()) as u64
    }
}

impl<T> Default for Vec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Vec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Deref for Vec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Vec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> IntoIterator for Vec<T> {
    type Item = T;
    type IntoIter = kvec::IntoIter<T, kernel::alloc::allocator::KVmalloc>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A lockdep class. Lockdep compares both by address: never made in a generic function, of which
/// every crate has its own copy.
type Class = (&'static CStr, Pin<&'static LockClassKey>);

/// A rank's lockdep class: locks of one rank are one class, so that taking two of them at once is
/// reported too.
#[inline(never)]
fn class(rank: Rank) -> Class {
    match rank {
        Rank::Open => (c"vkfd_open", kernel::static_lock_class!()),
        Rank::Shown => (c"vkfd_shown", kernel::static_lock_class!()),
        Rank::Listing => (c"vkfd_listing", kernel::static_lock_class!()),
        Rank::Gem => (c"vkfd_gem", kernel::static_lock_class!()),
        Rank::Process => (c"vkfd_process", kernel::static_lock_class!()),
        Rank::Sweep => (c"vkfd_sweep", kernel::static_lock_class!()),
        Rank::Bo => (c"vkfd_bo", kernel::static_lock_class!()),
        Rank::Svm => (c"vkfd_svm", kernel::static_lock_class!()),
        Rank::Vm => (c"vkfd_vm", kernel::static_lock_class!()),
        Rank::Vram => (c"vkfd_vram", kernel::static_lock_class!()),
        Rank::Event => (c"vkfd_event", kernel::static_lock_class!()),
        Rank::Offset => (c"vkfd_offset", kernel::static_lock_class!()),
        Rank::Notifier => (c"vkfd_notifier", kernel::static_lock_class!()),
        Rank::Eviction => (c"vkfd_eviction", kernel::static_lock_class!()),
        Rank::Smi => (c"vkfd_smi", kernel::static_lock_class!()),
        Rank::Error => (c"vkfd_error", kernel::static_lock_class!()),
        Rank::Work => (c"vkfd_work", kernel::static_lock_class!()),
    }
}

/// A mutual-exclusion lock with a rank.
pub struct Mutex<T>(Pin<KBox<sync::Mutex<T>>>);

impl<T> Mutex<T> {
    /// A lock of rank `rank`, in memory of its own because a kernel lock cannot be moved.
    pub fn new(rank: Rank, value: T) -> Result<Self> {
        failpoint(FailPoint::Mutex)?;
        let (name, key) = class(rank);
        let lock = KBox::pin_init(sync::Mutex::new(value, name, key), gfp());
        Ok(Self(lock.map_err(|_| Errno::ENOMEM)?))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Takes the lock if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// Waiting for a condition under a [`Mutex`].
pub struct Condvar(Pin<KBox<CondVar>>);

impl Condvar {
    /// A condition nobody waits for.
    pub fn new() -> Result<Self> {
        failpoint(FailPoint::Condvar)?;
        let condition = KBox::pin_init(CondVar::new(c"vkfd_condition", kernel::static_lock_class!()), gfp());
        Ok(Self(condition.map_err(|_| Errno::ENOMEM)?))
    }

    /// Gives the lock up and waits until told, until `timeout` has passed, or until the thread has
    /// a signal to handle: whether it has.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>, timeout: Duration) -> (MutexGuard<'a, T>, bool) {
        let woken = self.0.wait_interruptible_timeout(&mut guard, jiffies(timeout));
        (guard, matches!(woken, CondVarTimeoutResult::Signal { .. }))
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A duration in ticks, rounded up.
fn jiffies(d: Duration) -> Jiffies {
    let whole = u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    msecs_to_jiffies(whole.saturating_add((d.subsec_nanos() % 1_000_000 != 0).into()))
}

/// A moment of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Time(pub u64);

impl Time {
    /// This moment plus a duration.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

pub fn now() -> Time {
    // SAFETY: no preconditions. The monotonic clock does not go below 0.
    Time(unsafe { bindings::ktime_get() }.unsigned_abs())
}

/// Nanoseconds since the machine was started, time in suspend included: the clock that runtimes
/// call the system's.
pub fn since_boot() -> u64 {
    // SAFETY: no preconditions. The clock does not go below 0.
    unsafe { bindings::ktime_get_with_offset(bindings::tk_offsets_TK_OFFS_BOOT) }.unsigned_abs()
}

pub fn sleep(d: Duration) {
    fsleep(Delta::from_micros(i64::try_from(d.as_micros()).unwrap_or(i64::MAX)));
}

/// A number that is this thread's alone.
pub fn thread_id() -> u64 {
    kernel::current!().pid().unsigned_abs().into()
}

/// The calling process: its number, and its first thread's name (up to 15 bytes, then zeroes).
pub fn process() -> (u32, [u8; 16]) {
    let task = kernel::current!();
    let leader = task.group_leader();
    let mut name = [0; 16];
    // SAFETY: the task is there as long as the caller. A thread that changes the name meanwhile may
    // leave a mixture of both, which is a name, too.
    let comm = unsafe { (*leader.as_ptr()).comm };
    for (to, from) in name[..15].iter_mut().zip(comm) {
        *to = from as u8;
    }
    (leader.pid().unsigned_abs(), name)
}

/// Whether this thread is being killed: the result of its wait does not matter.
pub fn killed() -> bool {
    // SAFETY: looks at the current task only.
    unsafe { vkfd_fatal_signal_pending() }
}

/// For each turn of a loop whose length a client chooses: EINTR once this thread is being killed.
/// Lets others run.
pub fn interrupted() -> Result {
    // SAFETY: callers may sleep.
    unsafe { vkfd_cond_resched() };
    if killed() {
        return Err(Errno::EINTR.into());
    }
    Ok(())
}

/// A number that clients cannot foresee.
pub fn random() -> u32 {
    // SAFETY: no preconditions.
    unsafe { bindings::get_random_u32() }
}

/// Writes a warning to the kernel's log, unless there were too many just now: clients can cause
/// them.
pub fn warn(message: fmt::Arguments<'_>) {
    // SAFETY: the name is a C string; the format is the kernel's own for Rust messages, the module
    // name ends in a zero.
    unsafe {
        if bindings::__printk_ratelimit(c"vkfd".as_char_ptr()) != 0 {
            let line = format_args!("{message}\n");
            kernel::print::call_printk(&kernel::print::format_strings::WARNING, b"vkfd\0", line);
        }
    }
}

/// A place where a test can make the driver fail: each allocation and each call to the host passes
/// one. The test sets `/proc/thread-self/fail-nth` (`CONFIG_FAULT_INJECTION`).
pub fn failpoint(_site: FailPoint) -> Result {
    // SAFETY: no preconditions.
    if unsafe { vkfd_should_fail() } {
        return Err(Errno::ENOMEM.into());
    }
    Ok(())
}

static QUEUE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(ptr::null_mut());

/// What the driver has of the system once: the workqueue.
pub struct System(());

impl System {
    /// Makes the workqueue, and shows lockdep the locks that reclaim may take. From then on,
    /// lockdep reports an allocation under one of them at the first time, not only when reclaim
    /// meets it. There is one at a time.
    pub fn new() -> Result<Self> {
        // Unbound, because restores run for long; freezable, because nothing may run on the GPU
        // while the system sleeps.
        let flags = bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags_WQ_FREEZABLE;
        // SAFETY: a format without arguments.
        let queue = unsafe { bindings::alloc_workqueue_noprof(c"vkfd".as_char_ptr(), flags, 0) };
        if queue.is_null() {
            return Err(Errno::ENOMEM.into());
        }
        QUEUE.store(queue, Ordering::Release);
        let system = Self(());
        let outer = Mutex::new(Rank::Notifier, ())?;
        let inner = Mutex::new(Rank::Eviction, ())?;
        // SAFETY: begin and end are paired, on one thread.
        unsafe { vkfd_reclaim_begin() };
        drop((outer.lock(), inner.lock()));
        // SAFETY: as above.
        unsafe { vkfd_reclaim_end() };
        Ok(system)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let queue = QUEUE.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made in `new`; every `Work` was stopped when its owner was dropped, so nothing is
        // queued any more.
        unsafe { bindings::destroy_workqueue(queue) };
    }
}

struct Timer<T> {
    due: Option<Time>,
    // Held while scheduled, so that a target lives until its work has run or was cancelled.
    target: Option<Arc<T>>,
    stopped: bool,
}

/// What the workqueue knows of a [`Work`].
///
/// # Invariants
/// `work` is initialised, with [`Self::serve`] as its function, and is queued on nothing once
/// `timer.stopped` is set and the cancellation that follows has returned.
#[pin_data]
struct Item<T> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    run: fn(&Arc<T>),
    #[pin]
    timer: SpinLock<Timer<T>>,
}

/// A function that is run once, later, on the driver's workqueue.
///
/// Scheduling is allowed in reclaim (no allocation). Work that is already due keeps the earlier
/// time.
pub struct Work<T: Send + Sync + 'static>(Pin<KBox<Item<T>>>);

// SAFETY: workqueue functions may be called from any thread; the rest is under the spin lock.
unsafe impl<T: Send + Sync> Send for Work<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Work<T> {}

/// The classes of a work item, its timer, and the spin lock.
#[inline(never)]
fn work_classes() -> [Class; 3] {
    [
        (c"vkfd_work", kernel::static_lock_class!()),
        (c"vkfd_work_timer", kernel::static_lock_class!()),
        (c"vkfd_work_lock", kernel::static_lock_class!()),
    ]
}

impl<T: Send + Sync + 'static> Work<T> {
    /// Work that runs `run` on its target.
    pub fn new(_name: &str, run: fn(&Arc<T>)) -> Result<Self> {
        failpoint(FailPoint::Work)?;
        let timer = Timer { due: None, target: None, stopped: false };
        let [_, _, (name, key)] = work_classes();
        let item = KBox::pin_init(
            pin_init!(Item {
                work <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes and stays where it is.
                    unsafe { Item::<T>::init_work(slot) }
                }),
                run,
                timer <- SpinLock::new(timer, name, key),
            }),
            gfp(),
        );
        Ok(Self(item.map_err(|_| Errno::ENOMEM)?))
    }

    /// Runs it `delay` from now, unless it is due earlier.
    pub fn schedule(&self, target: &Arc<T>, delay: Duration) {
        let mut timer = self.0.timer.lock();
        let due = now().after(delay);
        if timer.stopped || timer.due.is_some_and(|earlier| earlier <= due) {
            return;
        }
        timer.due = Some(due);
        if timer.target.is_none() {
            timer.target = Some(target.clone());
        }
        let (queue, work) = (QUEUE.load(Ordering::Acquire), self.0.work.get());
        let cpu = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;
        // SAFETY: the queue exists as long as there is work (see `System`), the work is initialised
        // and stays until it is stopped. May be called in any context.
        unsafe { bindings::mod_delayed_work_on(cpu, queue, work, jiffies(delay)) };
    }

    /// Cancels scheduled work, waits for running work, and refuses new work.
    pub fn stop(&self) {
        {
            let mut timer = self.0.timer.lock();
            timer.stopped = true;
            timer.due = None;
        }
        let work = self.0.work.get();
        // SAFETY: the work is initialised. Waiting for itself would never end: work that drops the
        // last reference to its owner from within is not waited for, it does not touch its item
        // after that.
        unsafe {
            if bindings::current_work() == &raw mut (*work).work {
                bindings::cancel_delayed_work(work);
            } else {
                bindings::cancel_delayed_work_sync(work);
            }
        }
        let target = self.0.timer.lock().target.take();
        drop(target); // without the lock
    }
}

impl<T: Send + Sync + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<T: Send + Sync + 'static> Item<T> {
    /// # Safety
    /// `slot` is valid for writes, and stays where it is as long as it is used.
    unsafe fn init_work(slot: *mut bindings::delayed_work) {
        let [(work_name, work_key), (timer_name, timer_key), _] = work_classes();
        // SAFETY: forwarded to the caller. `serve` finds its item around the work it is given.
        unsafe {
            bindings::init_work_with_key(
                &raw mut (*slot).work,
                Some(Self::serve),
                false,
                work_name.as_char_ptr(),
                work_key.as_ptr(),
            );
            bindings::timer_init_key(
                &raw mut (*slot).timer,
                Some(bindings::delayed_work_timer_fn),
                bindings::TIMER_IRQSAFE,
                timer_name.as_char_ptr(),
                timer_key.as_ptr(),
            );
        }
    }

    unsafe extern "C" fn serve(work: *mut bindings::work_struct) {
        // SAFETY: the workqueue passes the `work` of the delayed work that is `Item::work`; the
        // item is not freed before the work was cancelled.
        let item = unsafe {
            let delayed = kernel::container_of!(work, bindings::delayed_work, work);
            let field: *mut Opaque<bindings::delayed_work> = delayed.cast();
            &*kernel::container_of!(field, Self, work)
        };
        let target = {
            let mut timer = item.timer.lock();
            timer.due = None;
            timer.target.take()
        };
        if let Some(target) = target {
            let run = item.run;
            run(&target);
        }
    }
}
