// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Userptr against a simulated host: the races and refusals that a real host shows only by chance.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_driver::base::errno::{Errno, Reason};
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_driver::userptr::window::WindowPolicy;
use vkfd_sim::patience::until;
use vkfd_sim::{Rig, WRITABLE_USERPTR};
use vkfd_uapi::pod::Pod;

const VA: u64 = 0x10_0000_0000;

fn scattered(n: u64) -> Vec<(u64, u64)> {
    // Array order is not address order: 7 and 1000 share no factor.
    (0..n).map(|i| (100 + (i * 7 % 1000) * 4, 1 + i % 3)).collect()
}

fn rig_with(list: &[(u64, u64)]) -> Rig {
    let rig = Rig::new(Options::default());
    for (first, count) in list {
        rig.mm.map(*first, *count, true);
    }
    rig
}

/// A rig with `list` registered and mapped at [`VA`], and the object's handle.
fn mapped(list: impl Into<Vec<(u64, u64)>>) -> (Rig, Vec<(u64, u64)>, u64) {
    let list = list.into();
    let rig = rig_with(&list);
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    (rig, list, handle)
}

fn last_error(rig: &Rig) -> vkfd_uapi::vkfd::LastErrorArgs {
    let mut args = vkfd_uapi::vkfd::LastErrorArgs::zeroed();
    rig.call(vkfd_uapi::vkfd::LAST_ERROR.0, &mut args).unwrap();
    args
}

#[test]
fn ranges_appear_in_array_order() {
    let (rig, list, handle) = mapped(scattered(500));
    rig.check(VA, &list);
    assert_eq!(rig.info().notifiers, 1);
    rig.unmap(handle).unwrap();
    assert_eq!(rig.gpu.walk(VA), None);
    rig.free(handle).unwrap();
    assert_eq!((rig.mm.watch_count(), rig.info().userptr_bos), (0, 0));
}

#[test]
fn page_tables_that_a_neighbour_uses_cost_no_flush_and_those_that_go_cost_one() {
    let (rig, _, first) = mapped([(100, 1)]);
    rig.mm.map(200, 1, true);
    let second = rig.register(VA + 4096, &[(200, 1)], WRITABLE_USERPTR).unwrap();
    rig.map(second).unwrap();
    let flushes = |handle| {
        let before = rig.gpu.flushes.load(Ordering::SeqCst);
        rig.unmap(handle).unwrap();
        rig.gpu.flushes.load(Ordering::SeqCst) - before
    };
    assert_eq!(flushes(first), 1, "the entry");
    rig.check(VA + 4096, &[(200, 1)]);
    assert_eq!(flushes(second), 2, "the entry, then the tables");
}

#[test]
fn an_invalidation_while_faulting_costs_that_range_one_more_fault_and_no_other() {
    let list = scattered(50);
    let rig = rig_with(&list);
    let (victim, _) = list[20];
    let armed = std::sync::atomic::AtomicBool::new(true);
    rig.mm.after_fault(move |mm, _| {
        if armed.swap(false, Ordering::SeqCst) {
            mm.renew(victim, 1);
        }
    });
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.check(VA, &list);
    let pages: u64 = list.iter().map(|r| r.1).sum();
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst), pages + list[20].1);
    assert_eq!(rig.info().register_retries, 1);
}

#[test]
fn a_batch_that_never_holds_still_ends_at_its_deadline_and_leaves_nothing() {
    let list = scattered(10);
    let rig = Rig::new(Options { register_deadline: Duration::from_millis(30), ..Options::default() });
    for (first, count) in &list {
        rig.mm.map(*first, *count, true);
    }
    let victim = list[4].0;
    rig.mm.after_fault(move |mm, _| mm.renew(victim, 1));
    assert_eq!(rig.register(VA, &list, WRITABLE_USERPTR), Err(Errno::EAGAIN));
    let error = last_error(&rig);
    assert_eq!((error.reason, error.index, error.address), (Reason::Deadline as u32, 4, victim * 4096));
    assert_eq!((rig.mm.watch_count(), rig.info().bos), (0, 0));
    rig.mm.no_hook();
    rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
}

/// Memory in which there is not room for all: whatever is faulted in pushes something else out.
fn with_too_little_memory(rig: &Rig, list: &[(u64, u64)]) {
    let (first, middle, last) = (list[0].0, list[list.len() / 2].0, list[list.len() - 1].0);
    rig.mm.after_fault(move |mm, spans| {
        let here = spans[0].start().0 / 4096;
        mm.renew(if here < middle { last } else { first }, 1);
    });
}

#[test]
fn a_registration_wants_each_range_once_and_not_all_at_once() {
    // More ranges than are faulted in at a time.
    let list: Vec<_> = (0..3000).map(|i| (1000 + 2 * i, 1)).collect();
    for xnack in [false, true] {
        // With XNACK off a call waits for as long. With it on none is to, and the machine's load is
        // not to be taken for that.
        let deadline = Duration::from_millis(if xnack { 60_000 } else { 200 });
        let rig = Rig::new(Options { register_deadline: deadline, ..Options::default() });
        for (first, count) in &list {
            rig.mm.map(*first, *count, true);
        }
        rig.process.set_xnack(xnack).unwrap();
        with_too_little_memory(&rig, &list);
        let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
        assert_eq!(rig.info().register_retries, 0);
        // With XNACK on it is mapped in one go; with it off the restore goes on trying, with the
        // queues stopped.
        let start = std::time::Instant::now();
        rig.map(handle).unwrap();
        assert_eq!(rig.gpu.is_suspended(), !xnack);
        assert!(!xnack || start.elapsed() < deadline);
        rig.mm.no_hook();
        if xnack {
            rig.map(handle).unwrap();
        }
        rig.settle();
        rig.check(VA, &list);
    }
}

#[test]
fn a_fault_brings_its_neighbours_and_leaves_the_rest_in_swap() {
    let list: Vec<_> = (0..2000).map(|i| (1000 + i * 7 % 2000 * 2, 1)).collect();
    let rig = rig_with(&list);
    rig.process.set_xnack(true).unwrap();
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    // In the second and the third of the four blocks of 512 pages.
    for (at, block) in [(700, 512..1024), (1300, 1024..1536)] {
        for (page, _) in &list {
            rig.mm.renew(*page, 1);
        }
        let faulted = rig.mm.pages_faulted.load(Ordering::SeqCst);
        assert!(rig.fault(0, VA / 4096 + at, true, FaultReason::NotPresent));
        assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst) - faulted, 512, "page {at}");
        for (page, (frame, _)) in (0..).zip(&list) {
            let expected = block.contains(&page).then(|| rig.mm.frame(*frame)).flatten();
            assert_eq!(rig.gpu.walk(VA + page * 4096), expected, "page {page}");
        }
        // What was faulted in was left on the list, and may be invalidated again before the list is
        // read.
        rig.mm.renew(list[600].0, 1);
        rig.map(handle).unwrap();
        rig.check(VA, &list);
    }
}

#[test]
fn busy_faults_are_tried_again() {
    let list = scattered(10);
    let rig = rig_with(&list);
    rig.mm.fail(list[3].0, Errno::EBUSY);
    rig.mm.after_fault(|mm, _| {
        if mm.fault_calls.load(Ordering::SeqCst) == 3 {
            mm.no_failures();
        }
    });
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.check(VA, &list);
}

#[test]
fn an_invalidation_that_may_not_block_is_refused_whole_while_a_lock_is_taken() {
    let (rig, _, handle) = mapped([(100, 4), (200, 4)]);
    let before = rig.ranges(handle);
    {
        let _eviction = rig.process.eviction().lock();
        let refused = std::thread::scope(|s| s.spawn(|| !rig.mm.notify(100, 1, false)).join().unwrap());
        assert!(refused);
    }
    assert_eq!(rig.ranges(handle), before, "refused, so nothing has changed");
    assert!(!rig.gpu.is_suspended());
    assert!(rig.mm.notify(100, 1, false), "with the locks free it is accepted");
    assert_eq!(rig.ranges(handle)[0].generation, before[0].generation + 1);
    // Where no range is hit, no lock is wanted.
    let _eviction = rig.process.eviction().lock();
    assert!(rig.mm.notify(150, 1, false));
}

#[test]
fn the_first_invalidation_stops_the_queues_and_the_restore_touches_only_what_was_hit() {
    let (rig, list, handle) = mapped(scattered(300));
    let faulted = rig.mm.pages_faulted.load(Ordering::SeqCst);
    for range in [5, 9, 200] {
        rig.mm.renew(list[range].0, 1);
    }
    rig.settle();
    rig.check(VA, &list);
    let hit: u64 = [5, 9, 200].iter().map(|r| list[*r].1).sum();
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst) - faulted, hit);
    let info = rig.info();
    assert_eq!(info.ranges_invalidated, 3);
    assert!(info.evictions >= 1 && info.evictions == info.restores && info.evictions <= 3);
    assert!(!rig.gpu.is_suspended());
    let moved = rig.ranges(handle).iter().filter(|r| r.generation != 0).count();
    assert_eq!(moved, 3);
}

#[test]
fn an_unmapped_object_stops_nothing_and_is_brought_up_to_date_by_map() {
    let list = scattered(20);
    let rig = rig_with(&list);
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.mm.renew(list[3].0, 1);
    assert_eq!((rig.gpu.suspends.load(Ordering::SeqCst), rig.info().evictions), (0, 0));
    rig.map(handle).unwrap();
    rig.check(VA, &list);
}

#[test]
fn a_range_that_has_gone_keeps_no_entries_and_the_others_go_on() {
    let (rig, list, handle) = mapped(scattered(20));
    rig.mm.unmap(list[7].0, list[7].1);
    rig.settle();
    rig.check(VA, &list);
    assert_eq!(rig.ranges(handle)[7].state, vkfd_uapi::vkfd::RANGE_GONE);
    // Back again, and mapped again: there it is.
    rig.mm.map(list[7].0, list[7].1, true);
    rig.map(handle).unwrap();
    rig.check(VA, &list);
    assert_eq!(rig.ranges(handle)[7].state, vkfd_uapi::vkfd::RANGE_VALID);
}

#[test]
fn memory_that_comes_back_soon_is_found_while_the_queues_run() {
    let (rig, list, handle) = mapped(scattered(20));
    let state = || rig.ranges(handle)[7].state;
    // On a busy machine the memory may be back too late for the last look: then once more.
    let found = (0..20).any(|_| {
        rig.mm.unmap(list[7].0, list[7].1);
        rig.settle();
        let evictions = rig.info().evictions;
        assert_eq!(state(), vkfd_uapi::vkfd::RANGE_GONE);
        // Nobody is notified of memory that was not there before.
        rig.mm.map(list[7].0, list[7].1, true);
        let until = Instant::now() + Duration::from_millis(500);
        while state() != vkfd_uapi::vkfd::RANGE_VALID && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rig.info().evictions, evictions);
        state() == vkfd_uapi::vkfd::RANGE_VALID
    });
    assert!(found);
    rig.check(VA, &list);
}

#[test]
fn memory_that_stays_away_is_looked_for_a_few_times_only() {
    let (rig, list, handle) = mapped(scattered(20));
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    // Counted from the beginning: however late this thread is, none is missed.
    rig.mm.after_fault(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    rig.mm.unmap(list[7].0, list[7].1);
    rig.settle();
    until("two looks", || looks.load(Ordering::SeqCst) >= 2);
    // Time in which more would come.
    std::thread::sleep(Duration::from_millis(600));
    let looked = looks.load(Ordering::SeqCst);
    assert!((2..=8).contains(&looked), "{looked}");
    assert_eq!(rig.ranges(handle)[7].state, vkfd_uapi::vkfd::RANGE_GONE);
    assert!(!rig.gpu.is_suspended());
}

#[test]
fn with_xnack_memory_that_comes_back_is_left_to_faults() {
    let (rig, list, handle) = mapped(scattered(20));
    rig.mm.unmap(list[7].0, list[7].1);
    rig.settle();
    rig.process.set_xnack(true).unwrap();
    rig.mm.map(list[7].0, list[7].1, true);
    std::thread::sleep(Duration::from_millis(300));
    assert_ne!(rig.ranges(handle)[7].state, vkfd_uapi::vkfd::RANGE_VALID);
}

#[test]
fn a_range_that_became_read_only_is_denied_and_the_restore_does_not_spin() {
    let (rig, list, handle) = mapped(scattered(20));
    rig.mm.protect(list[2].0, list[2].1, false);
    rig.settle();
    let runs = rig.info().restore_runs;
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(rig.info().restore_runs, runs);
    assert_eq!(rig.ranges(handle)[2].state, vkfd_uapi::vkfd::RANGE_DENIED);
    assert!(!rig.gpu.is_suspended());
}

#[test]
fn a_restore_that_cannot_finish_pauses_longer_and_longer() {
    let (rig, list, _) = mapped(scattered(4));
    rig.mm.fail(list[1].0, Errno::EBUSY);
    let begun = Instant::now();
    rig.mm.notify(list[1].0, 1, true);
    std::thread::sleep(Duration::from_millis(300));
    // 1 + 1 + 2 + 4 + ... + 64 + 64 + 64: some ten runs in 300 ms, and one more each 64 ms; without
    // pauses there would be thousands.
    let runs = rig.info().restore_runs;
    let most = 16 + begun.elapsed().as_millis() / 64;
    assert!(u128::from(runs) <= most, "{runs}");
    assert!(rig.gpu.is_suspended(), "queues stay stopped while a page is missing");
    rig.mm.no_failures();
    rig.settle();
    rig.check(VA, &list);
}

#[test]
fn a_restore_outruns_invalidations_that_come_as_it_works() {
    let (rig, list, _) = mapped(scattered(256));
    // Each pass loses half of the spans that it has faulted in.
    rig.mm.after_fault(|mm, spans| {
        for span in &spans[..spans.len() / 2] {
            mm.renew(span.start().0 / 4096, 1);
        }
    });
    let before = rig.info().restore_runs;
    assert!(rig.mm.notify(0, 10_000, true));
    rig.settle();
    rig.check(VA, &list);
    // One run for all of it, and the one that the hits during the first asked for.
    let runs = rig.info().restore_runs - before;
    assert!(runs <= 2, "{runs} runs");
}

#[test]
fn with_xnack_entries_go_at_once_and_a_fault_brings_them_back() {
    let list = scattered(20);
    let rig = rig_with(&list);
    rig.process.set_xnack(true).unwrap();
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.mm.renew(list[0].0, 1);
    assert_eq!(rig.gpu.walk(VA), None);
    assert!(!rig.gpu.is_suspended());
    let fault = || rig.fault(0, VA / 4096, true, FaultReason::NotPresent);
    assert!(fault());
    rig.check(VA, &list);
    // A page that has gone cannot be served.
    rig.mm.unmap(list[0].0, 1);
    assert!(!fault());
}

/// Memory that has room for so many pages of `list`, of which any go when others come.
struct Room<'a> {
    rig: &'a Rig,
    list: &'a [(u64, u64)],
    /// By number in the list.
    held: Vec<usize>,
    limit: usize,
    brought: usize,
}

impl Room<'_> {
    fn has(&self, number: usize) -> bool {
        self.rig.gpu.walk(VA + number as u64 * 4096).is_some()
    }

    /// A GPU uses a page.
    fn touch(&mut self, number: usize) {
        while !self.has(number) {
            assert!(self.rig.fault(0, VA / 4096 + number as u64, true, FaultReason::NotPresent));
            let new = (0..self.list.len()).filter(|other| self.has(*other) && !self.held.contains(other));
            let new: Vec<usize> = new.collect();
            self.brought += new.len();
            self.held.extend(new);
            while self.held.len() > self.limit {
                let any = self.held.swap_remove(self.brought * 7919 % self.held.len());
                self.rig.mm.renew(self.list[any].0, 1);
            }
        }
    }
}

#[test]
fn with_xnack_a_fault_brings_no_more_than_what_stays() {
    let list: Vec<(u64, u64)> = (0..2048).map(|i| (100 + (i * 7 % 2048) * 2, 1)).collect();
    let rig = rig_with(&list);
    rig.process.set_xnack(true).unwrap();
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    for (page, _) in &list {
        rig.mm.renew(*page, 1);
    }
    let mut room = Room { rig: &rig, list: &list, held: Vec::new(), limit: 700, brought: 0 };
    // At two places by turns: with blocks of 2 MiB each would take the other's away.
    for step in 0..1024 {
        room.touch(step);
        room.touch(1024 + step);
    }
    // With blocks of 2 MiB, 180,000.
    assert!((2048..3 * 2048).contains(&room.brought), "{} pages were brought", room.brought);
}

#[test]
fn a_long_range_that_moves_in_the_middle_leaves_no_entry_of_its_beginning() {
    // Longer than one chunk, so it is committed piece by piece.
    let list = [(1000, 40_000)];
    for xnack in [false, true] {
        let rig = rig_with(&list);
        rig.process.set_xnack(xnack).unwrap();
        let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
        rig.map(handle).unwrap();
        rig.check(VA, &list);
        let left = std::sync::atomic::AtomicU64::new(3);
        rig.mm.after_fault(move |mm, spans| {
            let hit = spans[0].start().0 / 4096 > 1000;
            let again = |n: u64| n.checked_sub(1);
            if hit && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, again).is_ok() {
                mm.renew(1000, 2);
            }
        });
        rig.mm.renew(30_000, 1);
        if xnack {
            // Nothing is mapped until a fault; mapping again is as good, but ends when it does not
            // get on.
            assert_eq!(rig.gpu.walk(VA), None);
            for _ in 0..4 {
                rig.map(handle).unwrap();
            }
        }
        rig.settle();
        rig.check(VA, &list);
    }
}

#[test]
fn freeing_with_a_restore_pending_leaves_the_other_objects_theirs() {
    let (a, b) = ([(100, 2)], [(200, 2)]);
    let rig = rig_with(&[a[0], b[0]]);
    let first = rig.register(VA, &a, WRITABLE_USERPTR).unwrap();
    rig.map(first).unwrap();
    rig.mm.notify(100, 1, true);
    rig.unmap(first).unwrap();
    rig.free(first).unwrap();
    let second = rig.register(VA, &b, WRITABLE_USERPTR).unwrap();
    rig.map(second).unwrap();
    rig.mm.renew(200, 1);
    rig.settle();
    rig.check(VA, &b);
}

#[test]
fn one_notifier_a_range_does_the_same() {
    let list = scattered(100);
    let rig = Rig::new(Options { windows: WindowPolicy::PerRange, ..Options::default() });
    for (first, count) in &list {
        rig.mm.map(*first, *count, true);
    }
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    assert_eq!(rig.info().notifiers, 100);
    rig.map(handle).unwrap();
    rig.mm.renew(list[50].0, 1);
    rig.settle();
    rig.check(VA, &list);
}

#[test]
fn a_process_can_choose_how_its_ranges_share_notifiers() {
    use vkfd_uapi::vkfd::{WindowsArgs, SET_WINDOWS};
    let list = scattered(20);
    let rig = rig_with(&list);
    let set = |gap, per_range, pad| rig.call(SET_WINDOWS.0, &mut WindowsArgs { gap, per_range, pad });
    assert_eq!((set(0, 2, 0), set(0, 0, 1)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    let notifiers = || {
        let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
        let notifiers = rig.info().notifiers;
        rig.free(handle).unwrap();
        notifiers
    };
    assert_eq!(notifiers(), 1);
    set(0, 1, 0).unwrap();
    assert_eq!(notifiers(), 20);
    // Ranges that touch, or overlap, still share.
    set(0, 0, 0).unwrap();
    assert!((2..=20).contains(&notifiers()));
}

#[test]
fn measuring_faults_the_pages_and_leaves_nothing() {
    use vkfd_uapi::vkfd::{MeasureArgs, MEASURE, MEASURE_FAULT, MEASURE_FAULT_BARE, MEASURE_PIN};
    // One range is longer than the span that is faulted in at a time.
    let mut list = scattered(50);
    list.push((10_000, 40_000));
    let rig = rig_with(&list);
    let measure = |list: &[(u64, u64)], what| {
        let ranges: Vec<_> = list
            .iter()
            .map(|(first, count)| vkfd_uapi::batch::UserptrRange { start: first * 4096, size: count * 4096 })
            .collect();
        let mut args = MeasureArgs {
            ranges_ptr: ranges.as_ptr() as u64,
            num_ranges: u32::try_from(ranges.len()).unwrap(),
            what,
            ..MeasureArgs::zeroed()
        };
        rig.call(MEASURE.0, &mut args).map(|()| args.pages)
    };
    let pages = list.iter().map(|r| r.1).sum();
    assert_eq!(measure(&list, MEASURE_FAULT), Ok(pages));
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst), pages);
    for of_the_kernel in [MEASURE_PIN, MEASURE_FAULT_BARE] {
        assert_eq!(measure(&list, of_the_kernel), Err(Errno::EOPNOTSUPP));
    }
    assert_eq!(measure(&list, 7), Err(Errno::EINVAL));
    assert_eq!(measure(&[], MEASURE_FAULT), Err(Errno::EINVAL));
    rig.mm.unmap(list[30].0, 1);
    assert_eq!(measure(&list, MEASURE_FAULT), Err(Errno::EFAULT));
    assert_eq!((rig.mm.watch_count(), rig.info().bos), (0, 0));
}

#[test]
fn a_queue_made_while_evicted_starts_stopped() {
    let (rig, ..) = mapped([(100, 2)]);
    rig.mm.fail(100, Errno::EBUSY);
    rig.mm.notify(100, 1, true);
    assert!(rig.gpu.is_suspended());
    // Suspension is the VMID's, so what is added to it waits as well; nothing resumes it but the
    // restore.
    assert_eq!(rig.gpu.suspends.load(Ordering::SeqCst), 1);
    rig.mm.no_failures();
    rig.settle();
    assert!(!rig.gpu.is_suspended());
}

#[test]
fn every_failpoint_of_a_registration_leaves_nothing() {
    let list = scattered(40);
    let rig = rig_with(&list);
    let clean = rig.info();
    let mut n = 0;
    loop {
        let (result, reached) =
            vkfd_driver::os::fault_injection::fail_nth(n, || rig.register(VA, &list, WRITABLE_USERPTR));
        match result {
            Ok(handle) => rig.free(handle).unwrap(),
            Err(errno) => assert_eq!(errno, Errno::ENOMEM, "point {n}"),
        }
        let now = rig.info();
        let state = |i: &vkfd_uapi::vkfd::ProcessInfo| (i.bos, i.userptr_bytes, i.notifiers, i.page_table_bytes);
        assert_eq!(state(&now), state(&clean), "point {n}");
        assert_eq!(rig.mm.watch_count(), 0, "point {n}");
        assert_eq!(rig.process.kfd().limit().used(), 0, "point {n}");
        if !reached {
            break;
        }
        n += 1;
    }
    assert!(n > 10, "only {n} points");
    let handle = rig.register(VA, &list, WRITABLE_USERPTR).unwrap();
    let mut n = 0;
    while vkfd_driver::os::fault_injection::fail_nth(n, || rig.map(handle)).1 {
        // EINVAL where it is not mapped.
        assert!(matches!(rig.unmap(handle), Ok(()) | Err(Errno::EINVAL)), "point {n}");
        assert_eq!(rig.info().page_table_bytes, clean.page_table_bytes, "point {n}");
        n += 1;
    }
    assert!(n > 3, "only {n} points");
    rig.check(VA, &list);
}
