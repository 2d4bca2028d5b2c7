// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program that waits for its GPU leaves the processors to it.
//!
//! HIP waits for a signal by spinning in AMD's runtime. Beside hardware that costs nothing. Here
//! the GPU's threads want the same processors. HSA calls the state in which a caller waits a hint.
//! So a wait that asks for spinning spins as long as a short kernel takes. Then it sleeps between
//! its looks at the signal: each time for a sixteenth of the time so far, at most a millisecond.
//!
//! The runtime's table has these functions instead of its own
//! ([`runtime_tool`](super::runtime_tool)). Waits that ask for blocking are the runtime's.
//!
//! Limits: a program that looks at a signal's value in a loop of its own still spins, and so does a
//! wait for one of several signals.

use libc::c_void;
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Places in the runtime's table, the same from ROCm 3 to 6.
pub(crate) const SYSTEM_INFO: usize = 2;
pub(crate) const WAIT_RELAXED: usize = 43;
pub(crate) const WAIT_SCACQUIRE: usize = 44;
/// HSA_WAIT_STATE_ACTIVE.
const ACTIVE: u32 = 1;
/// HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY.
const FREQUENCY: c_int = 3;
/// What a short kernel takes. The runtime spins as long itself before it blocks.
const SPIN: Duration = Duration::from_micros(200);
/// Pauses between looks.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// A signal, a condition, what is compared with, most ticks, and how to wait; the signal's value.
pub(crate) type Wait = unsafe extern "C" fn(u64, u32, i64, u64, u32) -> i64;
type SystemInfo = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;

/// The runtime's own functions.
pub(crate) static RELAXED_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static SCACQUIRE_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static SYSTEM_INFO_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) unsafe extern "C" fn relaxed(signal: u64, condition: u32, compare: i64, ticks: u64, state: u32) -> i64 {
    // SAFETY: the caller's arguments.
    unsafe { wait(&RELAXED_OWN, (signal, condition, compare), ticks, state) }
}

pub(crate) unsafe extern "C" fn scacquire(signal: u64, condition: u32, compare: i64, ticks: u64, state: u32) -> i64 {
    // SAFETY: as above.
    unsafe { wait(&SCACQUIRE_OWN, (signal, condition, compare), ticks, state) }
}

/// # Safety
/// A signal of the runtime, whose table had `own`.
unsafe fn wait(own: &AtomicPtr<c_void>, (signal, condition, compare): (u64, u32, i64), ticks: u64, state: u32) -> i64 {
    // SAFETY: the runtime's own function, put there before the table had this one.
    let own = unsafe { std::mem::transmute::<*mut c_void, Wait>(own.load(Ordering::Acquire)) };
    // SAFETY: the caller's.
    let look = |ticks, state| unsafe { own(signal, condition, compare, ticks, state) };
    if state != ACTIVE {
        return look(ticks, state);
    }
    let begun = Instant::now();
    let spin = in_ticks(SPIN);
    let mut value = look(ticks.min(spin), ACTIVE);
    while !is_met(condition, value, compare) {
        let waited = begun.elapsed();
        if in_ticks(waited) >= ticks {
            break;
        }
        pause((waited / 16).clamp(SHORTEST, LONGEST));
        value = look(0, ACTIVE);
    }
    value
}

/// Whether a value meets a condition of HSA.
fn is_met(condition: u32, value: i64, compare: i64) -> bool {
    match condition {
        0 => value == compare,
        1 => value != compare,
        2 => value < compare,
        _ => value >= compare,
    }
}

/// Ticks of the runtime's clock.
fn in_ticks(time: Duration) -> u64 {
    static PER_SECOND: AtomicU64 = AtomicU64::new(0);
    let mut known = PER_SECOND.load(Ordering::Relaxed);
    if known == 0 {
        known = frequency().unwrap_or(1_000_000_000);
        PER_SECOND.store(known, Ordering::Relaxed);
    }
    let ticks = time.as_nanos() * u128::from(known) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

fn frequency() -> Option<u64> {
    let own = SYSTEM_INFO_OWN.load(Ordering::Acquire);
    if own.is_null() {
        return None;
    }
    let mut frequency = 0_u64;
    // SAFETY: the runtime's own function, which writes a number of 64 bits for this attribute.
    let status = unsafe {
        let own = std::mem::transmute::<*mut c_void, SystemInfo>(own);
        own(FREQUENCY, (&raw mut frequency).cast())
    };
    (status == 0 && frequency != 0).then_some(frequency)
}

/// Sleeps by the system call itself: a thread is not cancelled in it, as it is not while it spins.
fn pause(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the structure is read only. A signal may end the sleep early.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The calls, and the looks after which the signal's value is 0.
    static CALLS: Mutex<(Vec<(u64, u32)>, usize)> = Mutex::new((Vec::new(), 0));
    static ONE: Mutex<()> = Mutex::new(());

    unsafe extern "C" fn fake(_: u64, _: u32, _: i64, ticks: u64, state: u32) -> i64 {
        let mut calls = CALLS.lock().unwrap();
        calls.0.push((ticks, state));
        i64::from(calls.0.len() <= calls.1)
    }

    fn waited(looks: usize, ticks: u64, state: u32) -> (i64, Vec<(u64, u32)>) {
        *CALLS.lock().unwrap() = (Vec::new(), looks);
        SCACQUIRE_OWN.store(fake as Wait as *mut c_void, Ordering::Release);
        // SAFETY: the fake takes any signal.
        let value = unsafe { scacquire(1, 2, 1, ticks, state) };
        (value, std::mem::take(&mut CALLS.lock().unwrap().0))
    }

    #[test]
    fn a_wait_that_asks_for_spinning_spins_for_a_short_time_only() {
        let _one = ONE.lock().unwrap();
        assert_eq!(waited(0, u64::MAX, ACTIVE), (0, vec![(200_000, ACTIVE)]));
        let (value, calls) = waited(20, u64::MAX, ACTIVE);
        assert_eq!((value, calls.len()), (0, 21));
        assert!(calls[1..].iter().all(|call| *call == (0, ACTIVE)), "{calls:?}");
    }

    #[test]
    fn a_wait_that_asks_for_blocking_is_the_runtimes() {
        let _one = ONE.lock().unwrap();
        assert_eq!(waited(5, 77, 0), (1, vec![(77, 0)]));
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let _one = ONE.lock().unwrap();
        assert_eq!(waited(usize::MAX, 10, ACTIVE), (1, vec![(10, ACTIVE)]));
        let (value, calls) = waited(usize::MAX, 3_000_000, ACTIVE);
        assert_eq!(value, 1);
        assert!(calls.len() > 1, "it looks again before its end");
    }

    #[test]
    fn conditions_are_hsas() {
        let met = |condition| [-1, 0, 1].map(|value| is_met(condition, value, 0));
        assert_eq!(
            [0, 1, 2, 3].map(met),
            [[false, true, false], [true, false, true], [true, false, false], [false, true, true]]
        );
    }
}
