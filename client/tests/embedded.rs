// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The library against vkfd in this process.
#![cfg(feature = "embedded")]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use vkfd_client::{
    AllocOptions, Client, ClientError, ComputeQueue, CopyQueue, Errno, GpuSet, GpuVa, Kernel, Launch, LoadedKernel,
    Machine, MachineOptions, RangeFault, RegisterOptions, Strategy, SvmAccess, SvmSet, UserptrRange,
};
use vkfd_uapi::vkfd::QUEUE_STATE_FAULTED;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

const PAGE: u64 = 4096;
/// Longer than anything takes; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(60);

fn machine(gpus: u32) -> Machine {
    Machine::new(&MachineOptions { gpus, vram_bytes: 64 << 20, ..MachineOptions::default() }).unwrap()
}

/// Anonymous memory of the test's own.
struct Memory {
    at: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn new(pages: u64) -> Self {
        let bytes = usize::try_from(pages * PAGE).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: NonNull::new(at.cast()).unwrap(), bytes }
    }

    fn page(&self, index: u64) -> *mut u8 {
        let at = usize::try_from(index * PAGE).unwrap();
        assert!(at < self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.at.as_ptr().add(at) }
    }

    fn fill_page(&self, index: u64, value: u64) {
        let page = self.page(index).cast::<u64>();
        for i in 0..512_u64 {
            // SAFETY: inside the page; nobody has a reference to it.
            unsafe { page.add(usize::try_from(i).unwrap()).write_volatile(value + i) };
        }
    }

    fn range(&self, first: u64, pages: u64) -> UserptrRange {
        UserptrRange { start: self.page(first).expose_provenance() as u64, size: pages * PAGE }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is the test's own.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

fn words(buffer: &vkfd_client::Buffer, at: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    buffer.read(at, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Every second page, from the last to the first; page `i` of the GPU range holds words from
/// `i << 16`.
fn scattered(pages: u64) -> (Memory, Vec<UserptrRange>) {
    let memory = Memory::new(2 * pages);
    let ranges = (0..pages).map(|i| {
        let page = 2 * (pages - 1 - i);
        memory.fill_page(page, i << 16);
        memory.range(page, 1)
    });
    let ranges = ranges.collect();
    (memory, ranges)
}

#[test]
fn scattered_pages_arrive_in_order_by_every_form() {
    let machine = machine(2);
    let client = Client::on(&machine).unwrap();
    let gpus: Vec<_> = client.gpus().iter().map(|gpu| gpu.id).collect();
    assert_eq!((gpus.len(), client.nodes().len()), (2, 3));
    let (_memory, ranges) = scattered(40);
    for strategy in [Strategy::Auto, Strategy::Batch, Strategy::BatchFlag, Strategy::PerRange] {
        let options = RegisterOptions { strategy, ..RegisterOptions::default() };
        // SAFETY: the test does not touch the memory while the GPU copies.
        let source = unsafe { client.register_ranges(&ranges, &options) }.unwrap();
        let expected = if strategy == Strategy::PerRange { 40 } else { 1 };
        assert_eq!(source.handles().len(), expected, "{strategy:?}");
        for &gpu in &gpus {
            let target = client.alloc(&AllocOptions::vram(gpus[0], source.len())).unwrap();
            let mut queue = CopyQueue::new(&client, gpu).unwrap();
            queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), LONG).unwrap();
            for i in 0..40 {
                assert_eq!(words(&target, i * PAGE + 8, 2), [(i << 16) + 1, (i << 16) + 2], "{strategy:?}");
            }
        }
        source.free().unwrap();
    }
    assert_eq!(client.snapshot().unwrap().userptr_bos, 0);
}

#[test]
fn the_gpu_writes_into_scattered_memory() {
    let client = Client::embedded(MachineOptions::default()).unwrap();
    let gpu = client.gpus()[0].id;
    let (memory, ranges) = scattered(3);
    // SAFETY: the test reads the memory only after the GPU is done.
    let target = unsafe { client.register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    queue.fill(target.gpu_va().offset(PAGE - 4), 0xabcd, 8).unwrap();
    queue.submit().unwrap().wait(LONG).unwrap();
    let word = |page, at| {
        let page = memory.page(page).cast::<u32>();
        // SAFETY: inside the page; the GPU is done.
        unsafe { page.add(at).read_volatile() }
    };
    // GPU pages 0, 1, 2 are CPU pages 4, 2, 0.
    assert_eq!((word(4, 1023), word(2, 0), word(2, 1)), (0xabcd, 0xabcd, 0));
    assert!(queue.fill(target.gpu_va().offset(2), 0, 8).is_err());
}

#[test]
fn a_submission_larger_than_the_ring_is_fed_in() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = client.alloc(&AllocOptions::gtt(2 * PAGE)).unwrap();
    let mut queue = CopyQueue::with_ring(&client, gpu, 1024).unwrap();
    // 500 packets of 28 bytes in a ring of 1024: each copies one word one place on, so order
    // matters.
    memory.write(0, &7_u64.to_le_bytes()).unwrap();
    for i in 0..500 {
        let at = memory.gpu_va().offset(i * 8);
        queue.copy(at.offset(8), at, 8);
    }
    queue.submit().unwrap().wait(LONG).unwrap();
    assert_eq!(words(&memory, 0, 502)[..501], [7; 501]);
    assert_eq!(words(&memory, 501 * 8, 1), [0]);
    // And many small ones.
    let mut fences = Vec::new();
    for i in 0..300_u32 {
        queue.fill(memory.gpu_va().offset(PAGE), i, 4).unwrap();
        fences.push(queue.submit().unwrap());
    }
    assert_eq!(fences.last().map(|f| f.number()), Some(301));
    for fence in fences.iter().rev() {
        fence.wait(LONG).unwrap();
    }
    assert_eq!(words(&memory, PAGE, 1), [299]);
}

#[test]
fn a_page_fault_fails_the_wait_with_its_address() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = client.alloc(&AllocOptions::gtt(2 * PAGE)).unwrap();
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    let hole = GpuVa(0x10_0000_0000);
    let before = queue.copy(memory.gpu_va().offset(PAGE), memory.gpu_va(), 8).submit().unwrap();
    let fence = queue.copy(memory.gpu_va(), hole.offset(0x10), 8).submit().unwrap();
    let error = fence.wait(LONG).unwrap_err();
    assert_eq!(error, ClientError::GpuFault { gpu, va: hole, not_present: true, read_only: false });
    before.wait(LONG).unwrap();
    assert_eq!(queue.copy(memory.gpu_va(), memory.gpu_va(), 8).submit().unwrap_err(), error);
    // A new queue knows nothing of it.
    let mut other = CopyQueue::new(&client, gpu).unwrap();
    other.copy_now(memory.gpu_va().offset(8), memory.gpu_va(), 8, LONG).unwrap();
}

#[test]
fn a_fault_of_one_queue_does_not_fail_another() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = client.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let big = client.alloc(&AllocOptions::vram(gpu, 32 << 20)).unwrap();
    let mut good = CopyQueue::new(&client, gpu).unwrap();
    let mut bad = CopyQueue::new(&client, gpu).unwrap();
    bad.copy(memory.gpu_va(), GpuVa(0x10_0000_0000), 8);
    for _ in 0..20 {
        good.copy(big.gpu_va(), big.gpu_va().offset(16 << 20), 16 << 20);
    }
    let fault = bad.submit().unwrap();
    // Waited for first, so that the fault is seen while this queue still works.
    good.submit().unwrap().wait(LONG).unwrap();
    assert!(matches!(fault.wait(LONG), Err(ClientError::GpuFault { .. })));
    good.copy_now(big.gpu_va(), memory.gpu_va(), 8, LONG).unwrap();
}

/// An exception event has the data of the last exception alone.
#[test]
fn faults_of_two_gpus_at_once_are_both_seen() {
    let client = Client::on(&machine(2)).unwrap();
    let memory = client.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let gpus: Vec<_> = client.gpus().iter().map(|gpu| gpu.id).collect();
    let mut queues: Vec<_> = gpus.iter().map(|gpu| CopyQueue::new(&client, *gpu).unwrap()).collect();
    let mut fences = Vec::new();
    for queue in &mut queues {
        fences.push(queue.copy(memory.gpu_va(), GpuVa(0x10_0000_0000), 8).submit().unwrap());
        let faulted = || client.queues().unwrap().iter().filter(|queue| queue.state == QUEUE_STATE_FAULTED).count();
        while faulted() < fences.len() {
            std::thread::yield_now();
        }
    }
    // The events come after the state: both have to be there, or the test shows nothing.
    std::thread::sleep(Duration::from_millis(50));
    for (gpu, fence) in gpus.into_iter().zip(fences) {
        let error = fence.wait(LONG).unwrap_err();
        assert!(matches!(error, ClientError::GpuFault { gpu: of, .. } if of == gpu), "{error}");
    }
}

#[test]
fn kernels_run_and_bad_ones_stop_the_queue() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = client.alloc(&AllocOptions::vram(gpu, 16 * PAGE)).unwrap();
    let at = memory.gpu_va();
    let mut queue = ComputeQueue::new(&client, gpu).unwrap();
    queue.launch(&Kernel::Iota64 { dst: at, count: 1000, start: 5 }).unwrap();
    queue.launch(&Kernel::Sum64 { src: at, count: 1000, out: at.offset(8 * PAGE) }).unwrap();
    let fence = queue.barrier().unwrap();
    queue.wait(&fence, LONG).unwrap();
    assert_eq!(words(&memory, 8 * PAGE, 1), [(5..1005).sum::<u64>()]);
    // More launches than the ring has slots.
    for i in 0..3000 {
        queue.launch(&Kernel::Fill64 { dst: at, count: 1, value: i }).unwrap();
    }
    queue.barrier().unwrap().wait(LONG).unwrap();
    assert_eq!(words(&memory, 0, 1), [2999]);
    // Not a kernel.
    let kernel = LoadedKernel { object: at, group_bytes: 0, private_bytes: 0, kernarg_bytes: 0 };
    let launch = Launch { kernel, args: &[], grid: [1; 3], workgroup: [1; 3], dynamic_bytes: 0 };
    let error = queue.dispatch(&launch).unwrap().wait(LONG).unwrap_err();
    assert!(matches!(error, ClientError::GpuFault { .. } | ClientError::QueueError { .. }), "{error}");
}

#[test]
fn errors_name_the_range_and_the_driver_agrees() {
    let client = Client::on(&machine(1)).unwrap();
    let (_memory, mut ranges) = scattered(20);
    // Nothing is ever mapped there; a hole of the test's own could be filled by another thread.
    ranges[11].start = 0x1_0000;
    for strategy in [Strategy::Batch, Strategy::BatchFlag, Strategy::PerRange] {
        let options = RegisterOptions { strategy, ..RegisterOptions::default() };
        // SAFETY: no GPU work is submitted.
        let error = unsafe { client.register_ranges(&ranges, &options) }.unwrap_err();
        let range = error.range().unwrap_or_else(|| panic!("{strategy:?}: {error}"));
        assert_eq!((range.index, range.start.0), (11, 0x1_0000), "{strategy:?}");
        assert_eq!((range.fault, range.errno), (RangeFault::NotMapped, Errno::FAULT), "{strategy:?}");
    }
    assert_eq!(client.snapshot().unwrap().bos, 0);
    ranges.remove(11);
    // SAFETY: as above.
    let buffer = unsafe { client.register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
    assert_eq!(client.snapshot().unwrap().userptr_ranges, 19);
    drop(buffer);
    assert_eq!(client.snapshot().unwrap().userptr_ranges, 0);
}

#[test]
fn read_only_registration_is_enforced_by_the_gpu() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = Memory::new(1);
    memory.fill_page(0, 100);
    // SAFETY: the memory is the test's own.
    assert_eq!(unsafe { libc::mprotect(memory.page(0).cast(), 4096, libc::PROT_READ) }, 0);
    let writable = RegisterOptions::default();
    let ranges = [memory.range(0, 1)];
    // SAFETY: the GPU cannot write to it, and nothing else does.
    let error = unsafe { client.register_ranges(&ranges, &writable) }.unwrap_err();
    assert_eq!(error.range().map(|r| r.fault), Some(RangeFault::NoPermission));
    let options = RegisterOptions { writable: false, ..writable };
    // SAFETY: as above.
    let source = unsafe { client.register_ranges(&ranges, &options) }.unwrap();
    let target = client.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    queue.copy_now(target.gpu_va(), source.gpu_va(), PAGE, LONG).unwrap();
    assert_eq!(words(&target, 0, 1), [100]);
    let error = queue.copy_now(source.gpu_va(), target.gpu_va(), 8, LONG).unwrap_err();
    let va = source.gpu_va();
    assert!(matches!(error, ClientError::GpuFault { va: at, .. } if at == va), "{error:?}");
}

/// SVM memory is watched 512 MiB at a time, and so are later mappings in it. A part that is
/// unmapped is no SVM memory any more.
#[test]
fn svm_memory_that_is_mapped_beside_other_svm_memory_is_watched_too() {
    const BYTES: usize = 16 << 12;
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    for round in 0..8_usize {
        let base = 0x2000_0000_0000 + (round << 30);
        let svm = |at: usize| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let hint = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: nothing is replaced.
            let mapped = unsafe { libc::mmap(hint, BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            assert_eq!(mapped, hint);
            let range = UserptrRange { start: at as u64, size: BYTES as u64 };
            // SAFETY: the test's own memory, to which there is no reference.
            unsafe { client.svm_set(range, &[SvmSet::Access(gpu, SvmAccess::InPlace)]) }.unwrap();
            mapped
        };
        let (first, second) = (svm(base), svm(base + BYTES));
        let gone = second.wrapping_byte_add(4 << 12);
        // SAFETY: as above. By number: not through a symbol that anything could have a hook for.
        assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, gone, 4 << 12) }, 0);
        let left = 2 * BYTES as u64 - (4 << 12);
        let patience = Instant::now() + LONG;
        while client.svm().unwrap().bytes != left {
            assert!(Instant::now() < patience, "round {round}: {} bytes, not {left}", client.svm().unwrap().bytes);
            std::thread::yield_now();
        }
        for at in [first, second] {
            // SAFETY: as above.
            unsafe { libc::munmap(at, BYTES) };
        }
    }
}

#[test]
fn memory_that_went_and_came_back_is_revalidated() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = Memory::new(3);
    (0..3).for_each(|page| memory.fill_page(page, 100 * page));
    let target = client.alloc(&AllocOptions::gtt(3 * PAGE)).unwrap();
    let ranges = [0, 1, 2].map(|page| memory.range(page, 1));
    // SAFETY: the test does not touch the memory while the GPU copies.
    let source = unsafe { client.register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
    let middle = memory.page(1).cast();
    let replace = |prot| {
        // Not munmap: another thread's mapping could take the place at once.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page is the test's own, and nothing has a reference to it.
        assert_eq!(unsafe { libc::mmap(middle, 4096, prot, flags, -1, 0) }, middle);
    };
    replace(libc::PROT_NONE);
    let copy = || {
        let mut queue = CopyQueue::new(&client, gpu).unwrap();
        queue.copy_now(target.gpu_va(), source.gpu_va(), 3 * PAGE, LONG)
    };
    let error = copy().unwrap_err();
    let va = source.gpu_va().offset(PAGE);
    assert!(matches!(error, ClientError::GpuFault { va: at, .. } if at == va), "{error:?}");
    replace(libc::PROT_READ | libc::PROT_WRITE);
    memory.fill_page(1, 7000);
    source.revalidate().unwrap();
    copy().unwrap();
    assert_eq!([0, 1, 2].map(|page| words(&target, page * PAGE, 1)[0]), [0, 7000, 200]);
}

#[test]
fn state_can_be_inspected() {
    let client = Client::on(&machine(2)).unwrap();
    let (_memory, ranges) = scattered(1500);
    let options = RegisterOptions { gpus: GpuSet::from(client.gpus()[0].id), ..RegisterOptions::default() };
    // SAFETY: no GPU work is submitted.
    let buffer = unsafe { client.register_ranges(&ranges, &options) }.unwrap();
    let small: Vec<_> =
        (0..1100).map(|_| client.alloc(&AllocOptions { cpu_map: false, ..AllocOptions::gtt(PAGE) })).collect();
    let bos = client.bos().unwrap();
    assert_eq!(bos.len(), 1101);
    let bo = bos.iter().find(|bo| bo.ranges > 0).unwrap();
    assert_eq!((bo.ranges, bo.gpu_va, bo.mapped_gpus), (1500, buffer.gpu_va().0, 1));
    let seen = client.ranges(vkfd_client::Handle(bo.handle)).unwrap();
    assert_eq!(seen.len(), 1500);
    assert!(seen.iter().zip(&ranges).all(|(a, b)| (a.cpu_start, a.size) == (b.start, b.size)));
    assert!(seen.windows(2).all(|w| w[0].gpu_va + w[0].size == w[1].gpu_va));
    let on = |gpu: usize| client.ptes(client.gpus()[gpu].id, buffer.gpu_va(), 1500).unwrap();
    assert!(on(0).iter().all(|pte| pte & 1 == 1));
    assert!(on(1).iter().all(|pte| pte & 1 == 0));
    drop(small);
}

#[test]
fn processes_do_not_see_each_other() {
    let machine = machine(1);
    let (a, b) = (Client::on(&machine).unwrap(), Client::on(&machine).unwrap());
    let gpu = a.gpus()[0].id;
    let memory = a.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let own = b.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let mut queue = CopyQueue::new(&b, gpu).unwrap();
    let error = queue.copy_now(own.gpu_va(), memory.gpu_va(), 8, LONG).unwrap_err();
    assert!(matches!(error, ClientError::GpuFault { .. }), "{error:?}");
}

#[test]
fn threads_share_a_client() {
    let client = Client::on(&machine(2)).unwrap();
    std::thread::scope(|scope| {
        for (n, gpu) in client.gpus().iter().enumerate() {
            for m in 0..2_u64 {
                let client = &client;
                scope.spawn(move || {
                    let (_memory, ranges) = scattered(20 + m);
                    let target = client.alloc(&AllocOptions::gtt((20 + m) * PAGE)).unwrap();
                    let mut queue = CopyQueue::new(client, gpu.id).unwrap();
                    for _ in 0..10 {
                        // SAFETY: the thread does not touch the memory while the GPU copies.
                        let source = unsafe { client.register_ranges(&ranges, &RegisterOptions::default()) }.unwrap();
                        queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), LONG).unwrap();
                        assert_eq!(words(&target, 19 * PAGE, 1), [19 << 16], "thread {n} {m}");
                        source.free().unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(client.snapshot().unwrap().queues, 0);
}

#[test]
fn a_fence_outlives_its_queue_and_does_not_hang() {
    let client = Client::on(&machine(1)).unwrap();
    let gpu = client.gpus()[0].id;
    let memory = client.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    let done = queue.copy(memory.gpu_va(), memory.gpu_va().offset(8), 8).submit().unwrap();
    done.wait(LONG).unwrap();
    let stuck = queue.copy(memory.gpu_va(), GpuVa(0x10_0000_0000), 8).submit().unwrap();
    assert!(matches!(stuck.wait(Duration::ZERO), Err(ClientError::Timeout(_)) | Err(ClientError::GpuFault { .. })));
    drop(queue);
    done.wait(Duration::ZERO).unwrap();
    assert!(matches!(stuck.wait(LONG), Err(ClientError::Invalid(_) | ClientError::GpuFault { .. })));
}

#[test]
fn xnack_can_be_switched_before_queues_exist() {
    let client = Client::on(&machine(1)).unwrap();
    assert!(!client.xnack().unwrap());
    client.set_xnack(true).unwrap();
    assert!(client.xnack().unwrap());
    let _queue = CopyQueue::new(&client, client.gpus()[0].id).unwrap();
    assert_eq!(client.set_xnack(false).unwrap_err().errno(), Some(Errno::BUSY));
}
