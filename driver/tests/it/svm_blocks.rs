// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of several owners in one 2 MiB, against a simulated host: what somebody does to his, and
//! how long it takes, is nothing to the others. Blocks end and are made again at the same addresses
//! while calls, faults and restores are at work in them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::device::residency::Granule;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os::{Arc, Time};
use vkfd_driver::seams::address_space::{Invalidate, Watch};
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_driver::svm::block::Block;
use vkfd_driver::svm::block_state::BlockState;
use vkfd_driver::svm::window::Window;
use vkfd_sim::svm::{rig, AT};
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::svm::*;

const WINDOW_PAGES: u64 = 1 << 17;
/// The last block of a window, so that a call may reach into the next window.
const BLOCK: u64 = AT + WINDOW_PAGES - 512;

fn rig_at_the_last_block(options: Options) -> Rig {
    let rig = Rig::with_gpus(options, 1, 2048);
    rig.mm.map(BLOCK, 1024, true);
    rig
}

/// The next fault waits, once it has its pages: `begun` is told, and it goes on when the sender is
/// used or dropped.
fn hold_the_next_fault(rig: &Rig) -> (std::sync::mpsc::Receiver<()>, SyncSender<()>) {
    let (begun, wait) = sync_channel(1);
    let (go_on, continued) = sync_channel::<()>(1);
    let hook = Mutex::new(Some((begun, continued)));
    rig.mm.after_fault(move |_, _| {
        let taken = hook.lock().unwrap().take();
        if let Some((begun, continued)) = taken {
            begun.send(()).unwrap();
            let _ = continued.recv();
        }
    });
    (wait, go_on)
}

/// Waits until what was unmapped has been dropped by a worker.
fn await_drops(rig: &Rig, ranges: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while rig.svm_counters().dropped.get() < ranges {
        assert!(Instant::now() < end, "nobody looks after what was unmapped");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A restore is at work in a block whose last range goes; a call registers other memory there, and
/// its memory stays mapped whatever becomes of the restore. With `others` in the window it stays,
/// without it ends with the block.
fn a_block_ends_under_a_restore(options: Options, others: bool) {
    let rig = rig_at_the_last_block(options);
    if others {
        rig.mm.map(AT, 8, true);
        rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    }
    rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (begun, go_on) = hold_the_next_fault(&rig);
    rig.mm.renew(BLOCK, 1);
    begun.recv().unwrap();
    // While the call makes the next window, hence after it has looked for unmapped memory.
    rig.mm.before_watch(|mm| {
        mm.unmap(BLOCK, 8);
        std::thread::sleep(Duration::from_millis(100));
    });
    rig.set(BLOCK + 504, 16, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, BLOCK + 504, 16);
    go_on.send(()).unwrap();
    rig.settle();
    rig.mm.no_hook();
    rig.check_svm(0, BLOCK + 504, 16);
    // It is known what is mapped, not only mapped.
    rig.mm.renew(BLOCK + 505, 3);
    rig.settle();
    rig.check_svm(0, BLOCK + 504, 16);
    // What the restore had found is nobody's: other memory is there now.
    rig.mm.map(BLOCK, 8, true);
    rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, BLOCK, 8);
    rig.mm.unmap(BLOCK, 1024);
    assert!(rig.nothing_mapped(0, BLOCK, 1024));
    assert!(rig.get(BLOCK, 1, &[]).is_err());
    let left = usize::from(others);
    assert_eq!((rig.info().notifiers, rig.mm.watch_count()), (left as u64, left));
}

#[test]
fn a_block_that_ends_under_a_restore_leaves_the_next_one_alone() {
    a_block_ends_under_a_restore(Options::default(), false);
    a_block_ends_under_a_restore(Options::default(), true);
}

/// The same with a call at work, and GPUs that fault.
#[test]
fn a_block_that_ends_under_a_call_leaves_faults_in_the_next_one_alone() {
    let rig = rig_at_the_last_block(Options::default());
    rig.mm.set_kind(None);
    rig.process.set_xnack(true).unwrap();
    rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (begun, go_on) = hold_the_next_fault(&rig);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _ = rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID)]);
        });
        begun.recv().unwrap();
        rig.mm.before_watch(|mm| {
            mm.unmap(BLOCK, 8);
            std::thread::sleep(Duration::from_millis(100));
        });
        rig.set(BLOCK + 504, 16, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID)]).unwrap();
        rig.check_svm(0, BLOCK + 504, 16);
        go_on.send(()).unwrap();
    });
    rig.mm.no_hook();
    rig.mm.renew(BLOCK + 504, 8);
    for page in BLOCK + 504..BLOCK + 520 {
        let told = (0..20)
            .find(|_| rig.gpu.walk(page * 4096).is_some() || !rig.fault(0, page, false, FaultReason::NotPresent));
        assert!(told.is_some(), "page {page:#x}: told to try again for ever");
        assert_eq!(rig.gpu.walk(page * 4096), rig.mm.frame(page));
    }
}

/// A fault that takes its time keeps nobody from dropping what was unmapped, nor from registering
/// what is mapped there next.
#[test]
fn nobody_waits_for_a_fault_in_memory_that_was_unmapped() {
    let rig = rig_at_the_last_block(Options::default());
    rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (begun, go_on) = hold_the_next_fault(&rig);
    rig.mm.renew(BLOCK, 8);
    begun.recv().unwrap();
    rig.mm.unmap(BLOCK, 8);
    await_drops(&rig, 1);
    rig.mm.map(BLOCK, 8, true);
    rig.set(BLOCK, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, BLOCK, 8);
    rig.mm.unmap(BLOCK, 8);
    assert!(rig.get(BLOCK, 1, &[]).is_err());
    assert_eq!(rig.info().notifiers, 0);
    assert_eq!(rig.info().page_table_bytes, 4096, "the root, and the fault goes on");
    go_on.send(()).unwrap();
    rig.settle();
    assert!(rig.nothing_mapped(0, BLOCK, 8));
}

fn a_neighbour_is_in_trouble(options: Options) {
    let rig = Rig::with_gpus(options, 2, 2048);
    rig.mm.map(AT, 2048, true);
    rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    // mprotect(PROT_NONE) of a page; the restore is due in a millisecond.
    rig.mm.deny(AT, 1, true);
    rig.set(AT + 64, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, AT + 64, 8);
    // Gone instead.
    rig.mm.fail(AT + 1, Errno::EFAULT);
    rig.mm.notify(AT, 2, true);
    rig.set(AT + 128, 8, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID)]).unwrap();
    rig.set(AT + 64, 8, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_EXEC)]).unwrap();
    rig.check_svm(0, AT + 128, 8);
    // What it names is its own.
    assert_eq!(rig.set(AT + 1, 64, &[(SVM_ATTR_ACCESS, GPU_ID)]), Err(Errno::EFAULT));
    assert_eq!(rig.set(AT, 64, &[(SVM_ATTR_ACCESS, GPU_ID)]), Err(Errno::EPERM), "the first page's");
    rig.check_svm(0, AT + 2, 62);
    rig.settle();
    assert!(rig.nothing_mapped(0, AT, 2));
}

#[test]
fn a_call_does_not_fail_for_memory_that_it_does_not_name() {
    a_neighbour_is_in_trouble(Options::default());
}

/// What does not come back when a call about its neighbour looks at it comes back with the restore,
/// and keeps the queues stopped until then.
#[test]
fn a_call_leaves_its_neighbours_to_the_restore() {
    let rig = rig();
    rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.mm.renew(AT, 4);
    rig.set(AT + 64, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, AT + 64, 8);
    rig.settle();
    rig.check_svm(0, AT, 8);
}

/// Memory that may not be used for a while is missing, and the queues run without it. A call looks
/// for it again, and does not find it. Before the call has noted that, its owner may use it again.
/// The GPU's next access must find it.
fn missing_memory_comes_back_under_a_call(options: Options) {
    let rig = Rig::with_gpus(options, 2, 2048);
    rig.mm.map(AT, 512, true);
    rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.mm.deny(AT, 1, true);
    rig.settle();
    assert!(rig.nothing_mapped(0, AT, 1) && !rig.gpu.is_suspended());
    let (begun, go_on) = hold_the_next_fault(&rig);
    std::thread::scope(|s| {
        // Dropped if this fails, so that the call ends.
        let go_on = go_on;
        let call = s.spawn(|| rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]));
        begun.recv().unwrap();
        rig.mm.deny(AT, 1, false);
        rig.gpu.access_with(AT * 4096, |frame| assert_eq!(frame, rig.mm.frame(AT)));
        go_on.send(()).unwrap();
        assert_eq!(call.join().unwrap(), Ok(()));
    });
    rig.settle();
    rig.check_svm(0, AT, 8);
}

#[test]
fn a_gpu_reaches_missing_memory_that_comes_back_under_a_call() {
    missing_memory_comes_back_under_a_call(Options::default());
}

/// Entries on a second GPU do not wait for pages that are there already and only move elsewhere in
/// the block.
#[test]
fn a_gpu_gets_its_entries_while_other_memory_of_the_block_moves() {
    let rig = rig();
    let access = |pages, gpu| rig.set(AT + 64, pages, &[(SVM_ATTR_ACCESS, gpu)]);
    access(8, GPU_ID).unwrap();
    let (begun, wait) = sync_channel(1);
    let (go_on, continued) = sync_channel::<()>(1);
    let hook = Mutex::new(Some((begun, continued)));
    rig.mm.before_move(move |_, _| {
        if let Some((begun, continued)) = hook.lock().unwrap().take() {
            begun.send(()).unwrap();
            continued.recv().unwrap();
        }
    });
    std::thread::scope(|s| {
        // Dropped if this fails, so that the move ends.
        let go_on = go_on;
        s.spawn(|| rig.set(AT, 8, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap());
        wait.recv().unwrap();
        access(8, GPU_ID + 1).unwrap();
        rig.check_svm(1, AT + 64, 8);
        go_on.send(()).unwrap();
    });
}

/// A GPU gets a VM while memory is registered for it.
#[test]
fn a_gpu_that_gets_a_vm_late_has_what_is_registered_just_then() {
    let rig = Rig::with_vms(Options::default(), 2, 2048, 1);
    rig.mm.map(AT, 512, true);
    // Once the call has looked at everything else.
    let process = rig.process.clone();
    rig.mm.before_watch(move |_| process.acquire_vm(GPU_ID + 1).unwrap());
    rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_ACCESS, GPU_ID + 1)]).unwrap();
    rig.check_svm(0, AT, 8);
    rig.check_svm(1, AT, 8);
}

/// A call names memory of two owners. One of them unmaps his after the call has found it mapped,
/// and the call finds the hole. Before the call handles the hole, the memory is mapped again and
/// registered. The call must not drop the new registration.
#[test]
fn what_is_registered_again_beside_a_call_that_found_it_unmapped_stays() {
    const OTHERS: u64 = AT + 2;
    let rig = Arc::new(rig());
    rig.set(AT, 4, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (caller, client) = (std::thread::current().id(), rig.clone());
    let (turn, owner) = (AtomicU64::new(0), Arc::new(Mutex::new(None)));
    let registering = owner.clone();
    rig.mm.after_look(move |mm, span, mapped| {
        // The owner asks such questions, too.
        if std::thread::current().id() != caller {
            return;
        }
        match (turn.load(Ordering::SeqCst), mapped) {
            (0, true) => {
                turn.store(1, Ordering::SeqCst);
                mm.unmap(OTHERS, 1);
            }
            (1, false) if (span.start().0, span.pages()) == (OTHERS * 4096, 1) => {
                turn.store(2, Ordering::SeqCst);
                let (client, (done, was_done)) = (client.clone(), sync_channel(1));
                *registering.lock().unwrap() = Some(std::thread::spawn(move || {
                    client.mm.map(OTHERS, 1, true);
                    client.set(OTHERS, 1, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
                    let _ = done.send(());
                }));
                // If the owner has to wait for the call, the call must not wait for the owner.
                let _ = was_done.recv_timeout(Duration::from_millis(300));
            }
            _ => {}
        }
    });
    // Whether it fails for memory that is not there just then is not what this is about.
    let _ = rig.set(AT, 4, &[(SVM_ATTR_GRANULARITY, 3)]);
    owner.lock().unwrap().take().expect("the hole was found").join().unwrap();
    rig.mm.no_hook();
    rig.settle();
    rig.check_svm(0, AT, 4);
}

/// How long threads work against each other; more with the variable set.
fn patience() -> Duration {
    let seconds = std::env::var("VKFD_PATIENCE").ok().and_then(|n| n.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn threads_with_memory_of_their_own_in_one_block() {
    let rig = Rig::with_gpus(Options::default(), 1, 4096);
    // A page fault is not for nothing: a page that is in swap takes longer.
    rig.mm.after_fault(|_, _| std::thread::sleep(Duration::from_micros(200)));
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let work = |own: u64| {
        let mapped = |page| rig.gpu.walk(page * 4096) == rig.mm.frame(page);
        while !stop.load(Ordering::Relaxed) {
            rig.mm.map(own, 4, true);
            rig.set(own, 4, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
            for _ in 0..3 {
                std::thread::yield_now();
            }
            assert!((own..own + 4).all(mapped), "the call succeeded, and nobody else touches this memory");
            rig.mm.renew(own, 1);
            rig.mm.unmap(own, 4);
            for page in own..own + 4 {
                let frame = rig.gpu.walk(page * 4096);
                assert!(frame.is_none_or(|frame| rig.mm.is_live(frame)), "page {page:#x} was unmapped");
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..8).map(|t| s.spawn(move || work(AT + 512 * (t / 2) + 16 * (t % 2)))).collect();
        let begun = std::time::Instant::now();
        let is_enough = || done.load(Ordering::Relaxed) > 100 && begun.elapsed() >= patience();
        while !is_enough() && begun.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(done.load(Ordering::Relaxed) > 100);
}

/// Nobody learns of anything.
struct Deaf;
impl Invalidate for Deaf {
    fn invalidate(&self, _: vkfd_driver::base::addr::CpuSpan, _: bool) -> bool {
        true
    }
}

#[test]
fn a_window_has_one_block_at_an_address_and_finds_it_by_itself() {
    use vkfd_driver::base::addr::{CpuSpan, CpuVa, HUGE};
    let rig = rig();
    let window = Window::new(rig.process.as_svm_owner().unwrap(), AT * 4096).unwrap();
    let watch: Arc<dyn Watch> = rig.process.mm().watch(window.span(), Arc::new(Deaf)).unwrap();
    let block = || {
        let span = CpuSpan::new(CpuVa(AT * 4096 + HUGE), HUGE).unwrap();
        let granule = Granule::new(rig.mm.clone(), rig.process.who(), span, 1, Arc::default()).unwrap();
        Block::new(&window, &watch, granule).unwrap()
    };
    let (first, second) = (block(), block());
    assert!(first.reserve().is_none(), "not live yet");
    window.add(&first, BlockState::new(1).unwrap()).unwrap();
    let refused = window.add(&second, BlockState::new(1).unwrap());
    assert_eq!(refused.map_err(|e| e.errno), Err(Errno::EADDRINUSE));
    assert!(Arc::ptr_eq(&window.find(1).unwrap(), &first));
    assert!(second.reserve().is_none() && window.take(&second).is_none() && second.begin_move(Time(0)).is_none());
    assert!(window.take(&first).is_some() && window.is_empty());
    window.add(&second, BlockState::new(1).unwrap()).unwrap();
    assert!(first.state(|_| ()).is_none() && first.reserve().is_none() && window.take(&first).is_none());
    assert!(second.reserve().is_some());
    assert!(window.take(&second).is_some());
}

#[cfg(debug_assertions)]
mod planted {
    use super::*;
    use vkfd_driver::sabotage::{Switch, Switches};

    #[test]
    #[should_panic]
    fn a_block_that_is_taken_for_the_one_before_is_noticed() {
        let sabotage = Switches::from(Switch::BlockIdentity);
        a_block_ends_under_a_restore(Options { sabotage, ..Options::default() }, true);
    }

    #[test]
    #[should_panic]
    fn missing_memory_that_is_forgotten_before_it_is_looked_for_is_noticed() {
        let sabotage = Switches::from(Switch::ForgottenMissing);
        missing_memory_comes_back_under_a_call(Options { sabotage, ..Options::default() });
    }

    #[test]
    #[should_panic]
    fn a_call_that_looks_at_more_than_it_names_is_noticed() {
        let sabotage = Switches::from(Switch::OthersErrors);
        a_neighbour_is_in_trouble(Options { sabotage, ..Options::default() });
    }
}
