// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much of the host's memory a guest may have.

use vkfd_host::MachineOptions;
use vkfd_remote::protocol::hsakmt::memory::{flags, Layout, Memory};
use vkfd_remote::protocol::hsakmt::Request;
use vkfd_sabotage::Switch;
use vkfd_uapi::command as c;
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;
use vkfd_virtio_gpu::device::gtt::share;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{scattered, Forwarded, Guest, Library, PAGE};

const MIB: u64 = 1 << 20;

/// Allocates the driver's system memory until it is refused, in large pieces first. Returns the
/// number of bytes.
fn system_memory(mut allocate: impl FnMut(u64) -> bool) -> u64 {
    let (mut total, mut step) = (0, 1 << 30);
    while step >= MIB {
        while allocate(step) {
            total += step;
            assert!(total < 1 << 44, "no limit");
        }
        step /= 2;
    }
    total
}

fn of_a_library(options: Options, ram: u64) -> (Guest, Library, u64) {
    let mut guest = Guest::with_ram(Options { window: 64 * MIB, ..options }, ram);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let total = system_memory(|bytes| {
        let blob = library.blob();
        let alloc = Memory::Alloc { node: 0, flags: flags::EXECUTE, bytes, address: 0, alignment: 0, blob };
        library.ask(&mut guest, &Request::Memory(alloc, Layout::Y2026)).0 == 0
    });
    (guest, library, total)
}

#[test]
fn a_guest_has_as_much_system_memory_as_memory_of_its_own() {
    let ram = MachineOptions::default().driver.ram;
    assert_eq!(share(), ram / 4);
    let (guest, _, total) = of_a_library(Options::default(), 64 * MIB);
    assert_eq!(total, 64 * MIB);
    drop(guest);
    let (guest, _, total) = of_a_library(Options { gtt: Some(20 * MIB), ..Options::default() }, 64 * MIB);
    assert_eq!(total, 20 * MIB);
    drop(guest);
    let (guest, _, total) = of_a_library(Options::default(), 1 << 40);
    assert!((share() - MIB..=share()).contains(&total), "{total}");
    drop(guest);
}

/// The control.
#[test]
fn a_guest_without_a_limit_is_noticed() {
    let sabotage = Switch::AllMemory.into();
    let (_guest, _, total) = of_a_library(Options { sabotage, ..Options::default() }, 64 * MIB);
    assert!(total > share(), "{total}");
}

#[test]
fn a_guests_own_memory_is_not_charged_for_and_registered_once_in_all() {
    let (mut guest, mut library, total) = of_a_library(Options::default(), 64 * MIB);
    assert_eq!(total, 64 * MIB, "nothing of the host's is left");
    // All of its memory, and the window, are as much as it may register.
    let half = 64 * MIB / 2 / PAGE;
    let mut registered = 0;
    let mut resources = Vec::new();
    loop {
        let resource = guest.guest_blob(1, scattered(0, half)).unwrap();
        let bytes = half * PAGE;
        let address = library.value(&mut guest, &Request::Memory(Memory::MapUserptr { resource }, Layout::Y2026));
        let register = Memory::Register { address, bytes, flags: 0, resource };
        if library.memory(&mut guest, register) != 0 {
            break;
        }
        registered += bytes;
        resources.push(resource);
        assert!(registered <= 1 << 30, "no limit");
    }
    assert_eq!(registered, 128 * MIB, "RAM and window");
    // A blob that goes leaves room.
    guest.unref(resources.pop().unwrap());
    let resource = guest.guest_blob(1, scattered(1, half)).unwrap();
    library.register(&mut guest, resource, half * PAGE);
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn the_other_kind_of_context_has_the_same_limit() {
    let mut guest = Guest::with_ram(Options { window: 64 * MIB, ..Options::default() }, 64 * MIB);
    let gpu_id = guest.device.machine().driver().devices()[0].id();
    let mut caller = Forwarded::open(&mut guest, 1);
    let acquire = AcquireVmArgs { drm_fd: 0, gpu_id };
    assert_eq!(caller.call(&mut guest, c::ACQUIRE_VM, acquire.as_bytes(), vec![]).0, 0);
    let mut va_addr = 1 << 40;
    let mut handles = Vec::new();
    for round in 0..2 {
        let total = system_memory(|size| {
            va_addr += size;
            let flags = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE;
            let args = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset: 0, gpu_id, flags };
            let (errno, argument) = caller.call(&mut guest, c::ALLOC_MEMORY_OF_GPU, args.as_bytes(), vec![]);
            assert!(matches!(errno, 0 | libc::ENOMEM), "{errno}");
            if errno == 0 {
                handles.push(u64::from_ne_bytes(argument[16..24].try_into().unwrap()));
            }
            errno == 0
        });
        assert_eq!(total, 64 * MIB, "round {round}");
        // Freed memory leaves room.
        for handle in handles.drain(..) {
            let free = FreeMemoryOfGpuArgs { handle };
            assert_eq!(caller.call(&mut guest, c::FREE_MEMORY_OF_GPU, free.as_bytes(), vec![]).0, 0);
        }
    }
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}
