// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `os` for the user host: std behind the interface that the kernel can also offer.
//!
//! [`fault_injection`] makes the n-th fallible operation of a thread fail, which is how tests walk
//! every failure path.
#![expect(clippy::arithmetic_side_effects, reason = "counts; this host is no kernel")]

extern crate std;

use super::prim::{self, thread, Instant};
use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::{self, Rank};
use crate::sabotage::FailPoint;
use core::cell::Cell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::sync::{OnceLock, PoisonError, TryLockError};

pub use std::sync::Arc;

/// Makes a shared object; ENOMEM when that fails.
pub fn arc<T>(value: T) -> Result<Arc<T>> {
    failpoint(FailPoint::Arc)?;
    Ok(Arc::new(value))
}

/// A growable array; whatever may grow it returns ENOMEM instead of aborting.
#[derive(Debug)]
pub struct Vec<T>(std::vec::Vec<T>);

impl<T> Vec<T> {
    /// Empty, without memory of its own.
    pub const fn new() -> Self {
        Self(std::vec::Vec::new())
    }

    /// Empty, with room for exactly `capacity` elements.
    pub fn with_capacity(capacity: usize) -> Result<Self> {
        failpoint(FailPoint::Vec)?;
        let mut v = std::vec::Vec::new();
        v.try_reserve_exact(capacity).map_err(|_| Errno::ENOMEM)?;
        Ok(Self(v))
    }

    /// `len` times `value`.
    pub fn filled(value: T, len: usize) -> Result<Self>
    where
        T: Clone,
    {
        let mut v = Self::with_capacity(len)?;
        v.0.resize(len, value);
        Ok(v)
    }

    /// Room for `more` elements, so that that many pushes cannot fail.
    pub fn reserve(&mut self, more: usize) -> Result {
        if self.0.capacity() - self.0.len() < more {
            failpoint(FailPoint::Vec)?;
            self.0.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }

    #[inline]
    pub fn push(&mut self, value: T) -> Result {
        self.reserve(1)?;
        self.0.push(value);
        Ok(())
    }

    /// Appends where room was reserved: never allocates. False (and dropped) when there was none.
    pub fn push_reserved(&mut self, value: T) -> bool {
        let room = self.0.len() < self.0.capacity();
        if room {
            self.0.push(value);
        }
        room
    }

    /// Takes the last.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes the element at `index` by putting the last in its place.
    pub fn swap_remove(&mut self, index: usize) -> T {
        self.0.swap_remove(index)
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
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

prim::thread_local! {
    /// Ranks held by this thread, a bit each, where no host has a place for them.
    static HELD: Cell<usize> = const { Cell::new(0) };
    static FAIL: Cell<Option<u64>> = const { Cell::new(None) };
    static KILL: Cell<Option<u64>> = const { Cell::new(None) };
    static POINTS: Cell<u64> = const { Cell::new(0) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

struct Held(Rank);

/// What is called, in debug builds, when a thread takes a lock under which it must not allocate,
/// and when it has given it back.
type Reclaim = (fn(), fn());

static RECLAIM: OnceLock<Reclaim> = OnceLock::new();

/// Says what is called when a thread takes a lock under which it must not allocate, and when it has
/// given it back. Debug builds only. The first call counts.
pub fn set_reclaim(begin: fn(), end: fn()) {
    let _ = RECLAIM.set((begin, end));
}

/// A word of each thread: what reads it, and what writes it.
type ThreadWord = (fn() -> usize, fn(usize));

static PLACE: OnceLock<ThreadWord> = OnceLock::new();

/// Says where the ranks are that a thread holds. Debug builds only. The first call counts, before a
/// lock is taken. A host needs a place of its own where a thread that takes the driver's locks must
/// not take the loader's: a thread-local variable of a library may take it.
pub fn set_place_of_ranks(place: ThreadWord) {
    let _ = PLACE.set(place);
}

fn held() -> usize {
    PLACE.get().map_or_else(|| HELD.with(Cell::get), |(read, _)| read())
}

fn set_held(ranks: usize) {
    match PLACE.get() {
        Some((_, write)) => write(ranks),
        None => HELD.with(|held| held.set(ranks)),
    }
}

impl Held {
    #[track_caller]
    fn enter(rank: Rank) -> Self {
        if cfg!(debug_assertions) {
            let held = held();
            lock_rank::check(lock_rank::highest(held), rank);
            set_held(held | rank.bit());
            if let (true, Some((begin, _))) = (rank >= lock_rank::RECLAIM, RECLAIM.get()) {
                begin();
            }
        }
        Self(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            // Guards may be dropped in another order than they were taken.
            set_held(held() & !self.0.bit());
            if let (true, Some((_, end))) = (self.0 >= lock_rank::RECLAIM, RECLAIM.get()) {
                end();
            }
        }
    }
}

/// Whether this thread holds a lock under which it must neither allocate nor sleep (debug builds
/// only).
pub fn in_reclaim() -> bool {
    cfg!(debug_assertions) && lock_rank::highest(held()).is_some_and(|rank| rank >= lock_rank::RECLAIM)
}

/// A mutual-exclusion lock with a rank.
pub struct Mutex<T> {
    rank: Rank,
    inner: prim::Mutex<T>,
}

/// A held [`Mutex`].
pub struct MutexGuard<'a, T> {
    inner: prim::MutexGuard<'a, T>,
    held: Held,
}

impl<T> Mutex<T> {
    /// A lock of rank `rank`; making one can fail in the kernel, where locks are allocated.
    pub fn new(rank: Rank, value: T) -> Result<Self> {
        failpoint(FailPoint::Mutex)?;
        Ok(Self { rank, inner: prim::Mutex::new(value) })
    }

    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::enter(self.rank);
        // A panic elsewhere is a bug of its own; the data is no worse for it than in the kernel.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, held }
    }

    /// Takes the lock if nobody has it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { inner, held: Held::enter(self.rank) })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Waiting for a condition under a [`Mutex`].
pub struct Condvar(prim::Condvar);

impl Condvar {
    /// A condition nobody waits for; making one can fail in the kernel, where it is allocated.
    pub fn new() -> Result<Self> {
        failpoint(FailPoint::Condvar)?;
        Ok(Self(prim::Condvar::new()))
    }

    /// Gives the lock up and waits until told, until `timeout` has passed, or until the thread has
    /// a signal to handle: whether it has. In a process of one's own signals are handled while one
    /// waits, so it never has.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> (MutexGuard<'a, T>, bool) {
        let MutexGuard { inner, held } = guard;
        let (inner, _) = self.0.wait_timeout(inner, timeout).unwrap_or_else(PoisonError::into_inner);
        (MutexGuard { inner, held }, false)
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
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
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

pub fn sleep(d: Duration) {
    debug_assert!(!in_reclaim(), "sleeping in reclaim");
    thread::sleep(d);
}

/// A number that is this thread's alone.
pub fn thread_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|t| {
        if t.get() == 0 {
            t.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        t.get()
    })
}

/// Nanoseconds since the machine was started, time in suspend included: the clock that runtimes
/// call the system's.
pub fn since_boot() -> u64 {
    const CLOCK_BOOTTIME: core::ffi::c_int = 7;
    extern "C" {
        fn clock_gettime(clock: core::ffi::c_int, time: *mut [i64; 2]) -> core::ffi::c_int;
    }
    let mut time = [0; 2];
    // SAFETY: fills in seconds and nanoseconds, which are 64 bits each on the machines this builds
    // for; the clock always exists.
    unsafe { clock_gettime(CLOCK_BOOTTIME, &mut time) };
    let [seconds, nanoseconds] = time.map(i64::unsigned_abs);
    seconds * 1_000_000_000 + nanoseconds
}

/// The calling process: its number, and its name as the kernel keeps it (up to 15 bytes, then
/// zeroes).
pub fn process() -> (u32, [u8; 16]) {
    let mut name = [0; 16];
    let read = std::fs::read("/proc/self/comm").unwrap_or_default();
    for (to, from) in name[..15].iter_mut().zip(read.iter().take_while(|byte| **byte != b'\n')) {
        *to = *from;
    }
    (std::process::id(), name)
}

/// Whether this thread is being killed: the result of its wait does not matter. In user space such
/// a thread does not run any more. So only a test makes it true ([`fault_injection::kill_after`]).
pub fn killed() -> bool {
    KILL.with(|kill| match kill.get() {
        None => false,
        Some(0) => true,
        Some(n) => {
            kill.set(Some(n - 1));
            false
        }
    })
}

/// For each turn of a loop whose length a client chooses: EINTR once this thread is being killed.
pub fn interrupted() -> Result {
    if killed() {
        return Err(Errno::EINTR.into());
    }
    Ok(())
}

/// A number that clients cannot foresee. Here the client is the process itself, which has nobody to
/// protect from: always the same.
pub const fn random() -> u32 {
    0x9e37_79b9
}

/// Writes a warning to the log.
pub fn warn(message: fmt::Arguments<'_>) {
    if let Some(log) = LOG.get() {
        log(message);
    }
}

static LOG: OnceLock<fn(fmt::Arguments<'_>)> = OnceLock::new();

/// Says where warnings go; the first call counts.
pub fn set_log(log: fn(fmt::Arguments<'_>)) {
    let _ = LOG.set(log);
}

/// A place where a test can make the driver fail: each allocation and each call to the host passes
/// one.
pub fn failpoint(site: FailPoint) -> Result {
    debug_assert!(!in_reclaim(), "{site}: an allocation or host call in reclaim");
    POINTS.with(|points| points.set(points.get() + 1));
    FAIL.with(|fail| match fail.get() {
        None => Ok(()),
        Some(0) => {
            fail.set(None);
            Err(Errno::ENOMEM.into())
        }
        Some(n) => {
            fail.set(Some(n - 1));
            Ok(())
        }
    })
}

/// Making this thread's driver calls fail.
pub mod fault_injection {
    use super::{Cell, FAIL, KILL, POINTS};

    /// Runs `f` on a thread that is killed when it has asked for that `n` times. Returns what `f`
    /// returned, and whether it asked so often.
    pub fn kill_after<R>(n: u64, f: impl FnOnce() -> R) -> (R, bool) {
        KILL.with(|kill| kill.set(Some(n)));
        let r = f();
        let reached = KILL.with(|kill| kill.replace(None)) == Some(0);
        (r, reached)
    }

    /// Runs `f` with its `n`-th (from 0) failpoint failing once. Returns what `f` returned, and
    /// whether the point was reached.
    pub fn fail_nth<R>(n: u64, f: impl FnOnce() -> R) -> (R, bool) {
        FAIL.with(|fail| fail.set(Some(n)));
        let r = f();
        let reached = FAIL.with(|fail| fail.replace(None)).is_none();
        (r, reached)
    }

    /// How many failpoints this thread has passed.
    pub fn passed() -> u64 {
        POINTS.with(Cell::get)
    }
}

/// A thread that the host has made for a [`Work`].
pub trait HostThread: Send {
    /// Whether the caller is this thread.
    fn is_current(&self) -> bool;
    /// Waits for its end.
    fn join(self: Box<Self>);
}

/// Starts a thread of a name that runs a function; `None` when there can be no more threads.
pub type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> Option<Box<dyn HostThread>>;

static SPAWN: OnceLock<Spawn> = OnceLock::new();

/// Sets the way in which threads are made. The standard library's threads take the C library's
/// locks. The first call counts.
pub fn set_spawn(spawn: Spawn) {
    let _ = SPAWN.set(spawn);
}

impl HostThread for thread::JoinHandle<()> {
    fn is_current(&self) -> bool {
        self.thread().id() == thread::current().id()
    }

    fn join(self: Box<Self>) {
        let _ = thread::JoinHandle::join(*self);
    }
}

/// Starts a thread as the host says.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Box<dyn HostThread>> {
    let thread = match SPAWN.get() {
        Some(spawn) => spawn(name, Box::new(run)),
        None => match thread::Builder::new().name(name.into()).spawn(run) {
            Ok(thread) => Some(Box::new(thread) as Box<dyn HostThread>),
            Err(_) => None,
        },
    };
    thread.ok_or_else(|| Errno::ENOMEM.into())
}

struct Timer {
    due: Option<Instant>,
    stop: bool,
}

struct WorkState<T> {
    timer: prim::Mutex<Timer>,
    changed: prim::Condvar,
    // Held while scheduled, so that a target lives until its work has run or was cancelled.
    target: prim::Mutex<Option<Arc<T>>>,
}

/// A function that is run once, later, on a thread of its own: the kernel's delayed work.
///
/// Scheduling is allowed in reclaim (no allocation). Work that is already due keeps the earlier
/// time.
pub struct Work<T: Send + Sync + 'static> {
    state: Arc<WorkState<T>>,
    thread: prim::Mutex<Option<Box<dyn HostThread>>>,
}

impl<T: Send + Sync + 'static> Work<T> {
    /// Work that runs `run` on its target. `name` is the thread's.
    pub fn new(name: &str, run: fn(&Arc<T>)) -> Result<Self> {
        failpoint(FailPoint::Work)?;
        let state = Arc::new(WorkState {
            timer: prim::Mutex::new(Timer { due: None, stop: false }),
            changed: prim::Condvar::new(),
            target: prim::Mutex::new(None),
        });
        let worker = state.clone();
        let thread = spawn(name, move || worker.serve(run))?;
        Ok(Self { state, thread: prim::Mutex::new(Some(thread)) })
    }

    /// Runs it `delay` from now, unless it is due earlier.
    pub fn schedule(&self, target: &Arc<T>, delay: Duration) {
        let _held = Held::enter(Rank::Work);
        let mut timer = self.state.lock();
        if timer.stop {
            return;
        }
        let due = Instant::now() + delay;
        let sooner = timer.due.is_none_or(|known| due < known);
        if sooner {
            timer.due = Some(due);
        }
        let mut slot = self.state.target.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(target.clone());
        }
        drop(slot);
        drop(timer);
        if sooner {
            self.state.changed.notify_all();
        }
    }

    /// Cancels scheduled work, waits for running work, and refuses new work.
    pub fn stop(&self) {
        {
            let mut timer = self.state.lock();
            timer.stop = true;
            timer.due = None;
        }
        self.state.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            if !thread.is_current() {
                thread.join();
            }
        }
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T: Send + Sync + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<T: Send + Sync> WorkState<T> {
    fn lock(&self) -> prim::MutexGuard<'_, Timer> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, run: fn(&Arc<T>)) {
        let mut timer = self.lock();
        loop {
            if timer.stop {
                return;
            }
            let Some(due) = timer.due else {
                timer = self.changed.wait(timer).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                timer = self.changed.wait_timeout(timer, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            timer.due = None;
            let target = self.target.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(timer);
            if let Some(target) = target {
                run(&target);
            }
            timer = self.lock();
        }
    }
}
