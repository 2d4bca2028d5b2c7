// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Several threads of a client with stripes of the same blocks: each moves the blocks as a whole,
//! and writes, reads, discards, unmaps, protects and moves stripes of its own. What one does is
//! nothing to the others, and nobody waits for ever.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/moving.rs"]
mod moving;

use common::{pointer, protect, serial, unmap, Area, Watched, RW};
use moving::{aligned, rig, word, Rig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vkfd_driver::base::addr::{index, CpuSpan};
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

const MB: u64 = 1 << 20;
/// Pages: two blocks, the second not whole.
const PAGES: u64 = 900;
const STRIPE: u64 = 16;
const CLIENTS: u64 = 3;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A thread's view: the number in each of its pages.
struct Owner<'a> {
    rig: &'a Rig,
    area: &'a Area,
    number: u64,
    dice: Dice,
    pages: Vec<u64>,
    steps: &'a AtomicU64,
}

impl Owner<'_> {
    /// One of its stripes: first page and pages.
    fn stripe(&mut self) -> (u64, u64) {
        let stripes = PAGES.div_ceil(STRIPE);
        let own = (stripes - self.number).div_ceil(CLIENTS);
        let first = (self.dice.below(own) * CLIENTS + self.number) * STRIPE;
        (first, STRIPE.min(PAGES - first))
    }

    fn span(&self, (first, count): (u64, u64)) -> CpuSpan {
        self.area.pages(first, count)
    }

    fn write(&mut self, (first, count): (u64, u64)) {
        for page in first..first + count {
            let value = 1 + self.dice.below(u64::MAX - 1);
            unsafe { word(self.area, page).write_volatile(value) };
            self.pages[index(page)] = value;
        }
    }

    fn read(&self, (first, count): (u64, u64)) {
        for page in first..first + count {
            let found = unsafe { word(self.area, page).read_volatile() };
            assert_eq!(found, self.pages[index(page)], "thread {}, page {page}", self.number);
        }
    }

    fn empty(&mut self, (first, count): (u64, u64)) {
        self.pages[index(first)..index(first + count)].fill(0);
    }

    fn map(&self, span: CpuSpan, flags: i32) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let got = unsafe { libc::mmap(pointer(span), index(span.bytes()), RW, flags, -1, 0) };
        got == pointer(span)
    }

    fn act(&mut self) {
        let stripe = self.stripe();
        let span = self.span(stripe);
        match self.dice.below(16) {
            0..=2 => self.write(stripe),
            3..=5 => self.read(stripe),
            6 | 7 => {
                let first = self.dice.below(PAGES);
                self.rig.go(self.area.pages(first, (PAGES - first).min(1 + self.dice.below(PAGES))));
            }
            8 => {
                self.rig.go(self.area.all());
            }
            9 => {
                let first = self.dice.below(PAGES);
                self.rig.back(self.area.pages(first, (PAGES - first).min(1 + self.dice.below(PAGES))));
            }
            10 | 11 => {
                // By libc's call and past it.
                let advice = libc::MADV_DONTNEED;
                let done = match self.dice.below(2) {
                    0 => i64::from(unsafe { libc::madvise(pointer(span), index(span.bytes()), advice) }),
                    _ => unsafe { libc::syscall(libc::SYS_madvise, span.start().0, span.bytes(), advice) },
                };
                assert_eq!(done, 0);
                self.empty(stripe);
            }
            12 => {
                unmap(span);
                // Nobody else is given these addresses: nothing is mapped without an address while
                // this runs.
                assert!(self.map(span, libc::MAP_FIXED_NOREPLACE));
                self.empty(stripe);
            }
            13 => {
                assert!(self.map(span, libc::MAP_FIXED));
                self.empty(stripe);
            }
            14 => {
                protect(span, libc::PROT_NONE);
                protect(span, RW);
            }
            _ => {
                let child = unsafe { libc::fork() };
                if child == 0 {
                    for page in stripe.0..stripe.0 + stripe.1 {
                        unsafe { word(self.area, page).write_volatile(0xa5) };
                    }
                    unsafe { libc::_exit(0) };
                }
                let mut status = 0;
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Aborts with all threads' places when no thread gets on: a deadlock is to be shown, not to be
/// waited for.
fn watch_over(steps: &AtomicU64, over: &AtomicBool) {
    let (mut last, mut still) = (u64::MAX, 0);
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
        let now = steps.load(Ordering::SeqCst);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        if still > 600 {
            eprintln!("nobody has got on for a minute, after {now} steps");
            std::process::abort();
        }
    }
}

fn clients(coherent: bool, seed: u64, steps: u64) -> Option<()> {
    let rig = rig(coherent, 16 * MB)?;
    let area = aligned(PAGES);
    let _watched = Watched::new(rig.mm, area.all());
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| watch_over(&done, &over));
        let threads: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (rig, area, done) = (&rig, &area, &done);
                scope.spawn(move || {
                    let dice = Dice(seed ^ number << 32);
                    let mut owner = Owner { rig, area, number, dice, pages: vec![0; index(PAGES)], steps: done };
                    for _ in 0..steps {
                        owner.act();
                    }
                    for first in (0..PAGES).step_by(index(STRIPE)).filter(|first| first / STRIPE % CLIENTS == number) {
                        owner.read((first, STRIPE.min(PAGES - first)));
                    }
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|thread| thread.unwrap());
    });
    rig.back(area.all());
    Some(())
}

#[test]
fn threads_share_blocks() {
    let _one = serial();
    let seed = std::env::var("VKFD_HUNT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let steps = std::env::var("VKFD_HUNT_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(300);
    for coherent in [true, false] {
        if clients(coherent, seed, steps).is_none() {
            return;
        }
    }
}

/// A thread that registers memory may touch a page that is on a GPU: the worker must bring it back.
/// It must not wait for the lock, which it also wants for memory that it moves just then.
#[test]
fn a_page_comes_back_to_who_registers_memory() {
    let _one = serial();
    break_as_asked();
    for coherent in [true, false] {
        let Some(rig) = rig(coherent, 16 * MB) else { return };
        let (area, moved, watched) = (aligned(600), aligned(600), aligned(4));
        moving::fill(&area, 3);
        moving::fill(&moved, 7);
        for round in 0..10 {
            assert_eq!(rig.go(area.all()), 600);
            let at = word(&area, round * 57).expose_provenance();
            // Not of the round before.
            sabotage::was_registering();
            sabotage::switches().turn_on_with(Switch::TouchWhileRegistering, at as u64);
            std::thread::scope(|scope| {
                let registers = scope.spawn(|| drop(Watched::new(rig.mm, watched.all())));
                while !sabotage::was_registering() {
                    std::thread::yield_now();
                }
                assert_eq!(rig.go(moved.all()), 600);
                registers.join().unwrap();
            });
            sabotage::switches().turn(Switch::TouchWhileRegistering, false);
            rig.back(moved.all());
            rig.back(area.all());
        }
        moving::check(&area, 3, 0, 600);
        moving::check(&moved, 7, 0, 600);
    }
}

/// What a thread on a stack of a test's shares with it.
struct OnAStack<'a> {
    rig: &'a Rig,
    other: CpuSpan,
    stop: AtomicBool,
    /// It works, has been asked not to, and does not.
    rest: AtomicU64,
    rounds: AtomicU64,
}

extern "C" fn registers(shared: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the test keeps it until it has joined this thread.
    let shared = unsafe { &*shared.cast::<OnAStack<'_>>() };
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.rest.load(Ordering::SeqCst) != 0 {
            shared.rest.store(2, Ordering::SeqCst);
            std::thread::yield_now();
            continue;
        }
        drop(Watched::new(shared.rig.mm, shared.other));
        shared.rounds.fetch_add(1, Ordering::SeqCst);
    }
    std::ptr::null_mut()
}

/// Runs a thread that works for the driver on the first 2 MiB of `area`, and `f` beside it.
fn on_a_stack(rig: &Rig, area: &Area, f: impl FnOnce(&OnAStack<'_>)) {
    let other = aligned(4);
    let (rest, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
    let shared = OnAStack { rig, other: other.all(), stop: AtomicBool::new(false), rest, rounds };
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
        let stack = area.pages(0, 512);
        assert_eq!(libc::pthread_attr_setstack(&raw mut attributes, pointer(stack), index(stack.bytes())), 0);
        let mut thread = 0;
        let argument = (&raw const shared).cast_mut().cast();
        assert_eq!(libc::pthread_create(&raw mut thread, &raw const attributes, registers, argument), 0);
        while shared.rounds.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        f(&shared);
        shared.stop.store(true, Ordering::SeqCst);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        libc::pthread_attr_destroy(&raw mut attributes);
    }
}

/// A thread in the driver has its locks while it touches its stack, which the worker could not
/// bring back then.
#[test]
fn a_stack_stays_and_what_is_above_it_moves() {
    let _one = serial();
    for coherent in [true, false] {
        let Some(rig) = rig(coherent, 16 * MB) else { return };
        let area = aligned(1024);
        on_a_stack(&rig, &area, |shared| {
            let before = shared.rounds.load(Ordering::SeqCst);
            for _ in 0..30 {
                assert_eq!(rig.go(area.all()), 512, "coherent: {coherent}");
                rig.back(area.all());
            }
            while shared.rounds.load(Ordering::SeqCst) < before + 2 {
                std::thread::yield_now();
            }
            // Without the driver's locks it may move.
            shared.rest.store(1, Ordering::SeqCst);
            while shared.rest.load(Ordering::SeqCst) != 2 {
                std::thread::yield_now();
            }
            sabotage::switches().turn(Switch::MoveStacks, true);
            assert_eq!(rig.go(area.all()), 1024, "this test can fail; coherent: {coherent}");
            rig.back(area.all());
            sabotage::switches().turn(Switch::MoveStacks, false);
        });
        // It is nobody's stack any more.
        assert_eq!(rig.go(area.all()), 1024);
        rig.back(area.all());
    }
}

/// The CPU time of a process, and whether any of its threads wants more.
fn activity(pid: u32) -> Option<(u64, bool)> {
    let (mut ticks, mut runs) = (0, false);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // It looks for work all the time while there may be some.
        if stat.contains("(vkfd-copy)") {
            continue;
        }
        let mut words = stat.rsplit(')').next()?.split_whitespace();
        runs |= words.next().is_some_and(|state| state != "S");
        ticks += words.skip(10).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    }
    Some((ticks, runs))
}

/// Runs a test of this file in a process of its own with `broken`: it must neither fail nor end,
/// but come to a standstill.
fn comes_to_a_standstill(test: &str, broken: &str) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact"])
        .env("VKFD_BROKEN", broken)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (mut last, mut still) = (None, 0);
    while still < 50 {
        std::thread::sleep(Duration::from_millis(100));
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{test} ended although {broken}: {status}");
        }
        // The worker looks up every ten seconds, and a thread tidies up now and then: neither is
        // getting on.
        let now = activity(child.id());
        let idle = now.zip(last).is_some_and(|((now, runs), (before, _))| now <= before && !runs);
        still = if idle { still + 1 } else { 0 };
        last = now;
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

const WAITS: &str = "the worker waits for the lock";

/// What [`comes_to_a_standstill`] asks for.
fn break_as_asked() {
    if std::env::var("VKFD_BROKEN").is_ok_and(|broken| broken == WAITS) {
        sabotage::switches().turn(Switch::WaitForRegistration, true);
    }
}

#[test]
fn who_waits_for_each_other_is_noticed() {
    let _one = serial();
    if rig(true, 16 * MB).is_some() {
        comes_to_a_standstill("a_page_comes_back_to_who_registers_memory", WAITS);
    }
}
