// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The heap as a program's global allocator: threads, large blocks, forks.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vkfd_rt::heap::{each_other, Heap};

#[global_allocator]
static HEAP: Heap = Heap;

/// Blocks of many sizes, each filled with its own number and looked at before it is given back.
fn churn(seed: u64, rounds: u64) -> bool {
    let mut blocks: Vec<Vec<u64>> = Vec::new();
    let mut state = seed | 1;
    let mut right = true;
    for round in 0..rounds {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let choice = (state >> 33) as usize;
        // One in a few hundred is a mapping of its own.
        let words = if choice % 300 == 0 { 100_000 + choice % 200_000 } else { choice % 700 };
        if blocks.len() > 100 {
            let block = blocks.swap_remove(choice % blocks.len());
            right &= block.iter().all(|word| *word == block[0]);
        }
        let mut block = vec![round; words];
        if choice % 7 == 0 {
            block.resize(words * 2 + 1, round);
        }
        blocks.push(block);
    }
    right & blocks.iter().all(|block| block.iter().all(|word| *word == block[0]))
}

/// Which of `addresses` the heap has in its segments.
fn in_segments(address: u64) -> bool {
    let mut outside = false;
    each_other(address..address + 1, |_| outside = true);
    !outside
}

#[test]
fn blocks_keep_what_is_in_them() {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5).map(|seed| scope.spawn(move || churn(seed, 20_000))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
}

#[test]
fn blocks_are_aligned_and_zeroed_as_asked_for() {
    use std::alloc::{alloc_zeroed, dealloc, Layout};
    for (bytes, align) in [(1, 1), (24, 8), (100, 4096), (5000, 1 << 16), (1 << 20, 8), (3 << 20, 1 << 21)] {
        let layout = Layout::from_size_align(bytes, align).unwrap();
        // SAFETY: the layout is not empty; the block is read within its size and given back once.
        unsafe {
            let block = alloc_zeroed(layout);
            assert_eq!((block.addr() % align, block.is_null()), (0, false), "{layout:?}");
            assert!((0..bytes).all(|at| *block.add(at) == 0));
            dealloc(block, layout);
        }
    }
}

#[test]
fn large_blocks_grow_and_shrink() {
    let mut block: Vec<u32> = (0..400_000).collect();
    block.extend(400_000..2_000_000);
    block.truncate(300_000);
    block.shrink_to_fit();
    block.truncate(100);
    block.shrink_to_fit();
    assert!(block.iter().copied().eq(0..100));
}

#[test]
fn small_blocks_are_in_segments_and_others_are_not() {
    let (small, large) = (Box::new([7u8; 100]), vec![0u8; 4 << 20]);
    assert!(in_segments(small.as_ptr().expose_provenance() as u64));
    assert!(!in_segments(large.as_ptr().expose_provenance() as u64));
    let mut parts = Vec::with_capacity(64);
    each_other(0..1 << 47, |part| parts.push(part));
    assert!(parts.len() >= 2 && parts.windows(2).all(|two| two[0].end < two[1].start), "{parts:x?}");
    assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, 1 << 47));
}

/// Whether a child of `fork` ends well within the deadline.
fn child_ends_well(fork: impl Fn() -> libc::pid_t, run: impl FnOnce() -> bool) -> bool {
    let child = fork();
    if child == 0 {
        let right = run();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: waits for a child of this process.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(60) {
            // SAFETY: the child is this function's own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    status == 0
}

/// Other threads may hold the heap's lock at that moment, and nothing is done about it before.
#[test]
fn a_child_has_a_heap_of_its_own_whatever_other_threads_did() {
    let raw = || {
        // SAFETY: as fork, without the C library's handlers: the child calls nothing of it.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        libc::pid_t::try_from(child).unwrap()
    };
    // SAFETY: the child allocates with the heap alone, and ends.
    let fork = || unsafe { libc::fork() };
    let forks: [&dyn Fn() -> libc::pid_t; 2] = [&fork, &raw];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    assert!(churn(seed, 500));
                }
            });
        }
        for round in 0..100 {
            let (small, large) = (vec![round; 10], vec![round; 1 << 20]);
            let right = child_ends_well(forks[round % 2], || {
                // What was its parent's is readable, grows, and may be given back.
                let (mut small, large) = (small.clone(), large);
                let mut parents = std::mem::take(&mut *Box::new(small.clone()));
                parents.push(round);
                small.extend(&parents);
                let right = small.iter().all(|n| *n == round) && large.iter().all(|n| *n == round);
                drop((small, large));
                right && churn(9, 500)
            });
            if !right {
                over.store(true, Ordering::SeqCst);
            }
            assert!(right, "round {round}");
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_block_of_the_parents_may_be_resized_and_given_back_in_a_child() {
    let mut small: Vec<u64> = (0..10).collect();
    // SAFETY: as above.
    let right = child_ends_well(
        || unsafe { libc::fork() },
        || {
            small.extend(10..5000);
            let right = small.iter().copied().eq(0..5000);
            drop(std::mem::take(&mut small));
            right && churn(3, 500)
        },
    );
    assert!(right);
}
