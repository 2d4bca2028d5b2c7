// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that a guest makes the host's process allocate: with one command, at the worst that was
//! found, and in all, with every table at its bound. In a process of its own, whose allocations are
//! counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use vkfd_remote::protocol::forward::{BlobKind, Piece};
use vkfd_sabotage::Switch;
use vkfd_uapi::command as c;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;
use vkfd_virtio_gpu::device::{Options, MAX_RESOURCES, MAX_RUNS};
use vkfd_virtio_gpu::simulated_guest::{scattered, Forwarded, Guest, PAGE};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all requests go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time allocates.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes that `act` has allocated and that are still there.
fn left(act: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    act();
    NOW.load(Ordering::Relaxed).saturating_sub(before)
}

/// Bytes that were allocated during `act` beyond those before it, at most.
fn most(act: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    act();
    MOST.load(Ordering::Relaxed) - before
}

/// Most runs of a blob.
const RUNS: u64 = 65_536;
/// Pieces of a request, of 24 bytes each: about as many as a command has room for.
const PIECES: usize = 60_000;

#[test]
fn one_command_allocates_no_more_than_its_ranges_are_worth() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = Guest::with_ram(Options { window: 64 << 20, ..Options::default() }, 2 * RUNS * PAGE);
    let mut caller = Forwarded::open(&mut guest, 1);
    let gpu_id = guest.device.machine().driver().devices()[0].id();
    let resource = guest.guest_blob(1, scattered(0, RUNS)).unwrap();
    let acquire = AcquireVmArgs { drm_fd: 0, gpu_id };
    assert_eq!(caller.call(&mut guest, c::ACQUIRE_VM, acquire.as_bytes(), vec![]).0, 0);
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;
    let va_addr = 1 << 40;
    let ask = |size: u64| AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset: 0, gpu_id, flags };
    let whole = |bytes: u64| vec![Piece { resource, offset: 0, bytes }; PIECES];
    let mut refused = |size: u64, pieces: Vec<Piece>| {
        let mut errno = 0;
        let call = || errno = caller.call(&mut guest, c::ALLOC_MEMORY_OF_GPU, ask(size).as_bytes(), pieces).0;
        let most = most(call);
        println!("{size:#x} bytes: errno {errno}, {} KiB", most >> 10);
        assert!(most < 64 << 20, "{most} bytes for one command");
        errno
    };
    // All of the blob, in every piece, for one page; for as much as that is; for one more.
    let sum = u64::try_from(PIECES).unwrap() * RUNS * PAGE;
    assert_eq!(refused(PAGE, whole(RUNS * PAGE)), libc::EINVAL);
    assert_eq!(refused(sum, whole(RUNS * PAGE)), libc::EINVAL, "more ranges than KFD takes");
    assert_eq!(refused(sum + PAGE, whole(RUNS * PAGE)), libc::EINVAL);
    assert_eq!(refused(PAGE, whole(u64::MAX - 4095)), libc::EINVAL, "a sum that wraps");
    // A sound list, in as many pieces.
    let piece = |page: u64| Piece { resource, offset: page * PAGE, bytes: PAGE };
    let pieces: u64 = PIECES.try_into().unwrap();
    assert_eq!(refused(pieces * PAGE, (0..pieces).map(piece).collect()), 0);
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

/// The control: a small part of the pieces is enough for more than the bound.
#[test]
fn a_device_that_expands_lists_first_is_noticed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let sabotage = Switch::ExpandUnchecked.into();
    let mut guest = Guest::with_ram(Options { window: 64 << 20, sabotage, ..Options::default() }, 2 * RUNS * PAGE);
    let mut caller = Forwarded::open(&mut guest, 1);
    let gpu_id = guest.device.machine().driver().devices()[0].id();
    let resource = guest.guest_blob(1, scattered(0, RUNS)).unwrap();
    let acquire = AcquireVmArgs { drm_fd: 0, gpu_id };
    assert_eq!(caller.call(&mut guest, c::ACQUIRE_VM, acquire.as_bytes(), vec![]).0, 0);
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;
    let ask = AllocMemoryOfGpuArgs { va_addr: 1 << 40, size: PAGE, handle: 0, mmap_offset: 0, gpu_id, flags };
    let pieces = vec![Piece { resource, offset: 0, bytes: RUNS * PAGE }; 100];
    let mut errno = 0;
    let most = most(|| errno = caller.call(&mut guest, c::ALLOC_MEMORY_OF_GPU, ask.as_bytes(), pieces).0);
    assert_eq!(errno, libc::EINVAL);
    assert!(most >= 64 << 20, "{most} bytes");
}

const MIB: usize = 1 << 20;

/// The bytes that SPECIFICATION.md has for these tables.
#[test]
fn tables_at_their_bounds_have_the_bytes_that_are_promised() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let window = 64 << 20;
    let mut guest = Guest::with_ram(Options { window, ..Options::default() }, 2 * RUNS * PAGE);
    let gpu_id = guest.device.machine().driver().devices()[0].id();
    let mut caller = Forwarded::open(&mut guest, 1);
    let acquire = AcquireVmArgs { drm_fd: 0, gpu_id };
    assert_eq!(caller.call(&mut guest, c::ACQUIRE_VM, acquire.as_bytes(), vec![]).0, 0);
    let told = |what: &str, bytes: usize, most: usize| {
        println!("{what}: {} KiB of {}", bytes >> 10, most >> 10);
        assert!(bytes <= most, "{what}: {bytes} bytes");
    };
    // Runs of guest memory, in blobs of as many as there may be.
    let mut blobs = Vec::new();
    let bytes = left(|| {
        while blobs.len() * usize::try_from(RUNS).unwrap() < MAX_RUNS {
            blobs.push(guest.guest_blob(1, scattered(0, RUNS)).unwrap());
        }
    });
    assert!(guest.guest_blob(1, scattered(0, 1)).is_err());
    told("runs", bytes, 100 * MIB);
    // Registrations, each page a range, until there is no more.
    let mut va_addr = 1 << 40;
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;
    let mut registered = 0;
    let bytes = left(|| {
        for resource in &blobs {
            let size = RUNS * PAGE;
            let args = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset: 0, gpu_id, flags };
            let piece = vec![Piece { resource: *resource, offset: 0, bytes: size }];
            match caller.call(&mut guest, c::ALLOC_MEMORY_OF_GPU, args.as_bytes(), piece).0 {
                0 => registered += size,
                errno => {
                    assert_eq!(errno, libc::ENOMEM);
                    break;
                }
            }
            va_addr += size;
        }
    });
    assert!(registered > 0 && registered <= 2 * RUNS * PAGE + window, "{registered}");
    told("registrations", bytes, usize::try_from(registered).unwrap() / 24);
    blobs.into_iter().for_each(|blob| guest.unref(blob));
    // Resources that are nothing but numbers.
    let (_, before) = guest.device.counts();
    let bytes = left(|| {
        for _ in before..MAX_RESOURCES {
            guest.host_blob(1, BlobKind::Memory.id(), PAGE, false);
        }
    });
    told("resources", bytes, 16 * MIB);
    // Objects of no memory.
    let mut objects = 0_usize;
    let bytes = left(|| loop {
        let flags = ALLOC_MEM_FLAGS_DOORBELL | ALLOC_MEM_FLAGS_WRITABLE;
        let args = AllocMemoryOfGpuArgs { va_addr, size: 8192, handle: 0, mmap_offset: 0, gpu_id, flags };
        if caller.call(&mut guest, c::ALLOC_MEMORY_OF_GPU, args.as_bytes(), vec![]).0 != 0 {
            break;
        }
        objects += 1;
        va_addr += 8192;
    });
    assert_eq!(objects, 65_536);
    told("objects", bytes, 64 * MIB);
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}
