// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: with a part of the driver broken on purpose, the scenarios that are about it
//! must fail, each time. And races that are made to happen every time, by the hook that the driver
//! has for that.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vkfd_client::{AllocOptions, ClientError, CopyQueue, Errno, GpuSet, RangeFault, RegisterOptions, PAGE};
use vkfd_driver::base::addr::CpuSpan;
use vkfd_driver::base::hook::Hook;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_driver::seams::device_memory::Kind;
use vkfd_host::mm::Mm;
use vkfd_host::{sabotage, HostError, Source};
use vkfd_scenarios::coherence::{change, partial, unmap};
use vkfd_scenarios::svm::life;
use vkfd_scenarios::{wrong_page, Layout, Memory, Seen, Stop, World, WorldSpec};

type Body = fn(WorldSpec) -> Result<(), Stop>;

/// One test at a time: all machines of a process see what a test does to its mappings.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with(sabotage: Switches) -> WorldSpec {
    WorldSpec { sabotage, ..WorldSpec::default() }
}

/// With a race before each commit.
fn racing(hook: fn(CpuSpan), spec: WorldSpec) -> WorldSpec {
    let sabotage = spec.sabotage.with(Switch::BeforeCommit);
    WorldSpec { sabotage, before_commit: Hook::new(hook), ..spec }
}

/// Runs `body` as it is, which must pass, and sabotaged, which must fail. Returns the failure's
/// message, or `None` when this host cannot show it.
fn fails(body: Body, sound: WorldSpec, sabotaged: WorldSpec) -> Option<String> {
    match body(sound) {
        Ok(()) => {}
        Err(Stop::Skip(reason)) => {
            println!("skipped: {reason}");
            return None;
        }
        Err(Stop::Fail(error)) => panic!("fails without sabotage: {error:#}"),
    }
    match body(sabotaged) {
        Err(Stop::Fail(error)) => Some(format!("{error:#}")),
        Err(Stop::Skip(reason)) => panic!("skipped only with sabotage: {reason}"),
        Ok(()) => panic!("passes although the driver is broken"),
    }
}

#[track_caller]
fn expect_page_fault(message: Option<String>) {
    if let Some(message) = message {
        assert!(message.contains("page fault"), "it failed for another reason: {message}");
    }
}

#[test]
fn ignored_invalidations_are_noticed() {
    let _alone = alone();
    let (sound, broken) = (WorldSpec::default(), with(Switches::from(Switch::Invalidation)));
    // The GPU goes on through the entries it has, and is caught at pages that were taken away.
    expect_page_fault(fails(change::discard, sound, broken));
    expect_page_fault(fails(unmap::replace_in_place, sound, broken));
    expect_page_fault(fails(change::restored_pages_through_a_warm_tlb, sound, broken));
    // Here the fault is expected, and it is the driver's state that is wrong.
    fails(unmap::unmap_one_of_many, sound, broken);
    fails(partial::only_what_is_hit, sound, broken);
}

#[test]
fn missing_tlb_flushes_are_noticed() {
    let _alone = alone();
    let (sound, broken) = (WorldSpec::default(), with(Switches::from(Switch::TlbFlush)));
    expect_page_fault(fails(change::restored_pages_through_a_warm_tlb, sound, broken));
    expect_page_fault(fails(change::discard, sound, broken));
    expect_page_fault(fails(unmap::replace_in_place, sound, broken));
}

#[test]
fn svm_under_a_driver_that_ignores_or_does_not_flush_is_noticed() {
    let _alone = alone();
    // A fault at a page that was taken away, or, where pages have moved into VRAM, what is still
    // there of them.
    for xnack in [false, true] {
        let sound = WorldSpec { xnack, ..WorldSpec::default() };
        let broken = |sabotage| WorldSpec { sabotage, ..sound };
        let deaf = broken(Switches::from(Switch::Invalidation));
        fails(vkfd_scenarios::svm::change::discard, sound, deaf);
        let unflushed = broken(Switches::from(Switch::TlbFlush));
        fails(vkfd_scenarios::svm::change::discard, sound, unflushed);
        let two = |spec| WorldSpec { gpus: 2, ..spec };
        fails(vkfd_scenarios::svm::compute::moving, two(sound), two(unflushed));
    }
}

#[test]
fn bounds_off_by_a_page_and_forgotten_watches_are_noticed() {
    let _alone = alone();
    let sound = WorldSpec::default();
    fails(partial::gaps_and_neighbours, sound, with(Switches::from(Switch::RangeEnd)));
    fails(partial::only_what_is_hit, sound, with(Switches::from(Switch::RangeEnd)));
    fails(partial::freed_memory, sound, with(Switches::from(Switch::Unregister)));
    fails(change::discard, sound, with(Switches::from(Switch::PrefixSum)));
}

/// How often [`hit`] still discards; below 0 for ever.
static HITS: AtomicI64 = AtomicI64::new(0);

/// Discards the first page of a span that is about to be committed, and waits until the driver was
/// notified.
fn hit(span: CpuSpan) {
    if HITS.load(Ordering::SeqCst) == 0 {
        return;
    }
    HITS.fetch_sub(1, Ordering::SeqCst);
    discard_page(span.start().0);
}

/// Discards a page and waits until the driver was told.
fn discard_page(at: u64) {
    let at = std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap());
    // SAFETY: the memory is the test's own, and no reference to it exists.
    assert_eq!(unsafe { libc::madvise(at, usize::try_from(PAGE).unwrap(), libc::MADV_DONTNEED) }, 0);
    Mm::get(Source::Auto).unwrap().settle();
}

const RANGES: u64 = 64;

fn scattered() -> (Memory, Vec<vkfd_client::UserptrRange>) {
    let memory = Memory::anonymous(RANGES * PAGE).unwrap();
    memory.fill(1);
    let ranges = memory.scatter(RANGES, PAGE, Layout::Adjacent);
    (memory, ranges)
}

/// The first range is discarded after its page was faulted in for the registration.
fn registration_hit(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    let (memory, ranges) = scattered();
    HITS.store(1, Ordering::SeqCst);
    // SAFETY: no reference to the memory is ever made.
    let buffer = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default())? };
    assert_eq!(HITS.load(Ordering::SeqCst), 0, "the race was not made");
    memory.fill(2);
    seen(&world, &buffer, 2)
}

/// The same for a restore.
fn restore_hit(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    let (memory, ranges) = scattered();
    HITS.store(0, Ordering::SeqCst);
    // SAFETY: no reference to the memory is ever made.
    let buffer = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default())? };
    seen(&world, &buffer, 1)?;
    HITS.store(1, Ordering::SeqCst);
    memory.discard(0, 2 * PAGE)?;
    world.until("the race has happened", |_| HITS.load(Ordering::SeqCst) == 0)?;
    world.settle()?;
    memory.fill(2);
    seen(&world, &buffer, 2)
}

/// Faults of the GPU come with the address at fault, which is that of the race.
fn seen(world: &World, buffer: &vkfd_client::Buffer, seed: u64) -> Result<(), Stop> {
    let bytes = world.read_gpu(buffer.gpu_va(), buffer.len())?;
    assert_eq!(wrong_page(&bytes, 0.., seed), None);
    Ok(())
}

#[test]
fn commits_of_dead_pages_are_noticed() {
    let _alone = alone();
    let raced = racing(hit, WorldSpec::default());
    let broken = WorldSpec { sabotage: raced.sabotage.with(Switch::GenerationCheck), ..raced };
    expect_page_fault(fails(registration_hit, raced, broken));
    expect_page_fault(fails(restore_hit, raced, broken));
    // Without the race the check has nothing to do.
    HITS.store(0, Ordering::SeqCst);
    let unneeded = Switches::from(Switch::GenerationCheck);
    assert!(matches!(change::discard(with(unneeded)), Ok(()) | Err(Stop::Skip(_))));
}

/// A machine on which [`hit`] runs; `None` when this host cannot show it.
fn raced(spec: WorldSpec) -> Option<World> {
    HITS.store(0, Ordering::SeqCst);
    let world = match World::new(racing(hit, spec)) {
        Ok(world) => world,
        Err(stop) => panic!("{stop:?}"),
    };
    match world.sees(Seen::Discard) {
        Ok(()) => Some(world),
        Err(stop) => {
            println!("skipped: {stop:?}");
            None
        }
    }
}

#[test]
fn mapping_leaves_restless_memory_to_the_restore_which_does_not_spin() {
    let _alone = alone();
    let deadline = Some(Duration::from_millis(5));
    let Some(world) = raced(WorldSpec { register_deadline: deadline, ..WorldSpec::default() }) else { return };
    let (memory, ranges) = scattered();
    let options = RegisterOptions { map: false, ..RegisterOptions::default() };
    // SAFETY: no reference to the memory is ever made.
    let buffer = unsafe { world.client().register_ranges(&ranges, &options) }.unwrap();
    memory.discard(0, PAGE).unwrap();
    world.told();
    HITS.store(-1, Ordering::SeqCst);
    buffer.map(&GpuSet::All).unwrap();
    let target = world.client().alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let mut queue = CopyQueue::new(world.client(), world.gpu(0)).unwrap();
    let fence = queue.copy(target.gpu_va(), buffer.gpu_va().offset(5 * PAGE), PAGE).submit().unwrap();
    let before = world.client().snapshot().unwrap();
    assert_eq!((before.evicted, before.restores), (1, 0));
    let begun = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    let info = world.client().snapshot().unwrap();
    assert_eq!((info.evicted, info.restores, info.evictions, fence.is_done()), (1, 0, 1, false));
    // 1 + 2 + 4 + ... + 64 + 64 ms.
    let most = 8 + begun.elapsed().as_millis() / 64;
    assert!(u128::from(info.restore_runs - before.restore_runs) <= most, "{} runs", info.restore_runs);
    HITS.store(0, Ordering::SeqCst);
    fence.wait(Duration::from_secs(20)).unwrap();
    let mut bytes = vec![0; usize::try_from(PAGE).unwrap()];
    target.read(0, &mut bytes).unwrap();
    assert_eq!(wrong_page(&bytes, [5], 1), None);
    memory.fill(2);
    assert!(seen(&world, &buffer, 2).is_ok());
}

/// Where [`hit_other`] discards, if not 0.
static OTHER: AtomicU64 = AtomicU64::new(0);

fn hit_other(_: CpuSpan) {
    if let Some(at) = std::num::NonZeroU64::new(OTHER.load(Ordering::SeqCst)) {
        discard_page(at.get());
    }
}

#[test]
fn a_fault_is_served_although_other_memory_never_holds_still() {
    let _alone = alone();
    let deadline = Some(Duration::from_millis(200));
    let spec = racing(hit_other, WorldSpec { xnack: true, register_deadline: deadline, ..WorldSpec::default() });
    if raced(WorldSpec::default()).is_none() {
        return;
    }
    OTHER.store(0, Ordering::SeqCst);
    let world = World::new(spec).unwrap_or_else(|stop| panic!("{stop:?}"));
    let (memory, ranges) = scattered();
    // SAFETY: no reference to the memory is ever made.
    let buffer = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
    assert!(seen(&world, &buffer, 1).is_ok());
    OTHER.store(ranges[60].start, Ordering::SeqCst);
    memory.discard(3 * PAGE, PAGE).unwrap();
    memory.fill_pages(3..4, 2);
    let before = world.client().snapshot().unwrap().gpu_faults;
    let bytes = world.read_gpu(buffer.gpu_va().offset(3 * PAGE), PAGE).unwrap();
    assert_eq!(wrong_page(&bytes, [3], 2), None);
    let info = world.client().snapshot().unwrap();
    assert!(info.gpu_faults > before && info.invalidations > 1);
    OTHER.store(0, Ordering::SeqCst);
    memory.fill(4);
    assert!(seen(&world, &buffer, 4).is_ok());
}

#[test]
fn memory_that_never_holds_still_is_refused_every_time() {
    let _alone = alone();
    let deadline = Some(Duration::from_millis(1));
    let Some(world) = raced(WorldSpec { register_deadline: deadline, ..WorldSpec::default() }) else { return };
    let (memory, ranges) = scattered();
    let before = world.client().snapshot().unwrap();
    HITS.store(-1, Ordering::SeqCst);
    // SAFETY: no reference to the memory is ever made.
    let refused = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) };
    HITS.store(0, Ordering::SeqCst);
    match refused {
        Err(ClientError::Range { range, .. }) => {
            assert_eq!((range.errno, range.fault), (Errno::AGAIN, RangeFault::Deadline));
            assert_eq!((range.index, range.bytes), (0, PAGE));
        }
        other => panic!("{other:?}"),
    }
    let after = world.client().snapshot().unwrap();
    assert_eq!((after.bos, after.notifiers, after.userptr_bytes), (before.bos, before.notifiers, 0));
    memory.fill(1);
    // SAFETY: as above.
    let buffer = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
    assert!(seen(&world, &buffer, 1).is_ok());
}

/// Says which child process this is.
const CHILD: &str = "VKFD_CONTROL";

/// Runs `test` in a process of its own with `VKFD_NOTIFY` as said: its notification source is
/// chosen anew.
fn in_child(name: &str, notify: Option<&str>, test: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        return test();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name).env_remove("VKFD_NOTIFY");
    if let Some(notify) = notify {
        child.env("VKFD_NOTIFY", notify);
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Whether this process has a userfaultfd, by the names of its descriptors.
fn has_userfaultfd() -> bool {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.into_iter().any(|link| link.to_string_lossy().contains("userfaultfd"))
}

fn world() -> World {
    match World::new(WorldSpec::default()) {
        Ok(world) => world,
        Err(stop) => panic!("{stop:?}"),
    }
}

/// From here on userfaultfd is EPERM, as container runtimes have it.
fn refuse_userfaultfd() {
    let code = |c: u32| u16::try_from(c).unwrap();
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap();
    let errno = u32::try_from(libc::EPERM).unwrap();
    let statement = |c: u32, jf: u8, k: u32| libc::sock_filter { code: code(c), jt: 0, jf, k };
    let mut filter = [
        // The system call's number is the first word of the data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid for the calls; it only ever refuses one system call of this
    // process.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        assert_eq!(libc::syscall(libc::SYS_userfaultfd, 1), -1);
    }
}

#[test]
fn userfaultfd_is_recognised() {
    in_child("userfaultfd_is_recognised", None, || {
        assert!(!has_userfaultfd());
        match Mm::get(Source::Userfaultfd) {
            Ok(mm) => {
                assert_eq!(mm.source(), Source::Userfaultfd);
                assert!(has_userfaultfd(), "the other controls would see nothing");
            }
            Err(HostError::Source { why, .. }) => println!("skipped: this host has no userfaultfd: {why}"),
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn without_a_source_there_is_no_userfaultfd() {
    in_child("without_a_source_there_is_no_userfaultfd", Some("none"), || {
        let world = world();
        assert!(!has_userfaultfd());
        for change in [Seen::Unmap, Seen::Remap, Seen::Discard, Seen::Protect, Seen::Fork, Seen::Pageout] {
            assert!(matches!(world.sees(change), Err(Stop::Skip(_))), "{change:?}");
        }
        assert!(matches!(change::discard(WorldSpec::default()), Err(Stop::Skip(_))));
    });
}

#[test]
fn where_seccomp_refuses_it_there_is_no_userfaultfd() {
    in_child("where_seccomp_refuses_it_there_is_no_userfaultfd", None, || {
        refuse_userfaultfd();
        let world = world();
        assert!(!has_userfaultfd());
        assert_eq!(Mm::get(Source::Auto).unwrap().source(), Source::Interposed);
        assert!(world.sees(Seen::Protect).is_ok());
        drop(world);
        assert!(vkfd_scenarios::coherence::core(WorldSpec::default()).is_ok());
        // And what is broken is noticed here, too.
        let broken = with(Switches::from(Switch::Invalidation));
        expect_page_fault(fails(change::discard, WorldSpec::default(), broken));
    });
}

#[test]
fn accesses_ahead_of_changes_are_noticed() {
    let _alone = alone();
    for kind in [Kind::Coherent, Kind::Private] {
        // The driver is told late, which breaks nothing by itself.
        sabotage::switches().turn(Switch::TellSlowly, true);
        let late = life::anew(kind);
        sabotage::switches().turn(Switch::AheadOfChanges, true);
        let ahead = life::anew(kind);
        sabotage::switches().turn(Switch::TellSlowly, false);
        sabotage::switches().turn(Switch::AheadOfChanges, false);
        match (late, ahead) {
            (Err(Stop::Skip(reason)), _) => println!("skipped: {reason}"),
            (Err(Stop::Fail(error)), _) => panic!("{kind:?}: fails without sabotage: {error:#}"),
            (Ok(()), Err(Stop::Fail(error))) => println!("{kind:?}: {error:#}"),
            (Ok(()), other) => panic!("{kind:?}: nobody noticed: {other:?}"),
        }
    }
}
