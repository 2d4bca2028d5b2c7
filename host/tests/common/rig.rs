// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A machine with a VM, memory and a copy queue, driven by plain ioctls.
#![allow(dead_code, missing_docs)] // each test file uses a part

use crate::common::{Area, RW};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{index, PAGE};
use vkfd_host::{KfdFile, Machine, MachineOptions};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory as m;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process as p;
use vkfd_uapi::queue as q;

pub const MIB: u64 = 1 << 20;
const RING: u64 = 0x1000_0000;
const CONTROL: u64 = 0x2000_0000;
pub const VRAM: u64 = 0x4000_0000;
pub const USER: u64 = 0x8000_0000;

fn halves(n: u64) -> [u32; 2] {
    [u32::try_from(n & 0xffff_ffff).unwrap(), u32::try_from(n >> 32).unwrap()]
}

pub fn ioctl<T: Pod>(file: &KfdFile, command: Command, args: &mut T) -> Result<(), i32> {
    unsafe { file.ioctl(command.0, std::ptr::from_mut(args).cast()) }
}

/// A mapping of driver memory, as words.
pub struct View(*mut u64);

impl View {
    pub fn new(file: &KfdFile, offset: u64, bytes: u64) -> Self {
        let at = unsafe { file.mmap(std::ptr::null_mut(), index(bytes), RW, libc::MAP_SHARED, offset) };
        Self(at.unwrap().cast())
    }

    pub fn get(&self, word: u64) -> u64 {
        unsafe { self.0.wrapping_add(index(word)).read_volatile() }
    }

    pub fn set(&self, word: u64, value: u64) {
        unsafe { self.0.wrapping_add(index(word)).write_volatile(value) }
    }
}

/// A machine with a VM, 4 MiB of VRAM at [`VRAM`] and a copy queue.
pub struct Rig {
    pub machine: Machine,
    pub file: KfdFile,
    pub gpu_id: u32,
    ring: View,
    pub control: View,
    pub vram: View,
    doorbell: View,
    doorbell_word: u64,
    submitted: u64,
    fences: u64,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(&MachineOptions::default())
    }

    pub fn with(options: &MachineOptions) -> Self {
        let machine = Machine::new(options).unwrap();
        let file = machine.open().unwrap();
        let gpu_id = machine.driver().devices()[0].id();
        ioctl(&file, c::ACQUIRE_VM, &mut p::AcquireVmArgs { drm_fd: 0, gpu_id }).unwrap();
        let gtt = m::ALLOC_MEM_FLAGS_GTT | m::ALLOC_MEM_FLAGS_WRITABLE;
        let ring = alloc(&file, gpu_id, RING, 0x1_0000, gtt, 0);
        let control = alloc(&file, gpu_id, CONTROL, PAGE, gtt, 0);
        let vram = alloc(&file, gpu_id, VRAM, 4 * MIB, m::ALLOC_MEM_FLAGS_VRAM | m::ALLOC_MEM_FLAGS_WRITABLE, 0);
        for bo in [&ring, &control, &vram] {
            map(&file, gpu_id, bo.handle);
        }
        let mut queue = q::CreateQueueArgs {
            ring_base_address: RING,
            ring_size: 0x1_0000,
            read_pointer_address: CONTROL,
            write_pointer_address: CONTROL + 8,
            gpu_id,
            queue_type: q::QUEUE_TYPE_SDMA,
            queue_percentage: 100,
            queue_priority: 7,
            ..Pod::zeroed()
        };
        ioctl(&file, c::CREATE_QUEUE, &mut queue).unwrap();
        let place = queue.doorbell_offset & 0xffff;
        Self {
            ring: View::new(&file, ring.mmap_offset, 0x1_0000),
            control: View::new(&file, control.mmap_offset, PAGE),
            vram: View::new(&file, vram.mmap_offset, 4 * MIB),
            // A process's doorbells are mapped whole.
            doorbell: View::new(&file, queue.doorbell_offset - place, 2 * PAGE),
            doorbell_word: place / 8,
            machine,
            file,
            gpu_id,
            submitted: 0,
            fences: 0,
        }
    }

    /// Registers memory of this process at [`USER`].
    pub fn register(&self, area: &Area) -> u64 {
        let flags = m::ALLOC_MEM_FLAGS_USERPTR | m::ALLOC_MEM_FLAGS_WRITABLE;
        let bo = alloc(&self.file, self.gpu_id, USER, area.bytes, flags, area.at);
        map(&self.file, self.gpu_id, bo.handle);
        bo.handle
    }

    pub fn packet(&mut self, words: &[u32]) {
        for word in words {
            let at = self.submitted % 0x1_0000;
            let ring: *mut u32 = self.ring.0.cast();
            unsafe { ring.wrapping_add(index(at / 4)).write_volatile(*word) };
            self.submitted += 4;
        }
    }

    /// Submits a copy and a fence behind it; the fence's number.
    pub fn submit(&mut self, from: u64, to: u64, bytes: u64) -> u64 {
        let [from_lo, from_hi] = halves(from);
        let [to_lo, to_hi] = halves(to);
        self.packet(&[1, halves(bytes - 1)[0], 0, from_lo, from_hi, to_lo, to_hi]);
        self.fences += 1;
        let [at_lo, at_hi] = halves(CONTROL + 64);
        self.packet(&[5, at_lo, at_hi, halves(self.fences)[0]]);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.doorbell.set(self.doorbell_word, self.submitted);
        self.fences
    }

    pub fn is_done(&self, fence: u64) -> bool {
        self.control.get(8) & 0xffff_ffff >= fence
    }

    /// Copies, and waits until it is done.
    pub fn copy(&mut self, from: u64, to: u64, bytes: u64) {
        let fence = self.submit(from, to, bytes);
        self.wait("the copy", |rig| rig.is_done(fence));
    }

    pub fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(20), "{what} does not come: {:?}", self.machine.counters());
            match waited < Duration::from_secs(1) {
                true => std::thread::yield_now(),
                // Asleep, so that a deadlock is known by its sleeping threads.
                false => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

fn alloc(file: &KfdFile, gpu_id: u32, va: u64, size: u64, flags: u32, cpu: u64) -> m::AllocMemoryOfGpuArgs {
    let mut args = m::AllocMemoryOfGpuArgs { va_addr: va, size, mmap_offset: cpu, gpu_id, flags, ..Pod::zeroed() };
    ioctl(file, c::ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
    args
}

fn map(file: &KfdFile, gpu_id: u32, handle: u64) {
    let gpus = [gpu_id];
    let ids = gpus.as_ptr().expose_provenance() as u64;
    let mut args = m::MapMemoryToGpuArgs { handle, device_ids_array_ptr: ids, n_devices: 1, ..Pod::zeroed() };
    ioctl(file, c::MAP_MEMORY_TO_GPU, &mut args).unwrap();
}

pub fn fill(area: &Area, seed: u64) {
    for word in 0..area.bytes / 8 {
        unsafe { area.byte(word * 8).cast::<u64>().write_volatile(seed.wrapping_add(word)) };
    }
}

pub fn remap(area: &Area) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    std::mem::forget(Area::map(area.at, area.bytes / PAGE, RW, flags, -1));
}
