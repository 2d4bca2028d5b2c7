// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory: allocation of every kind, mapping, freeing.

use std::collections::BTreeMap;

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, ALLOC_MEM_FLAGS_COHERENT, ALLOC_MEM_FLAGS_CONTIGUOUS,
    ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_EXT_COHERENT, ALLOC_MEM_FLAGS_GTT,
    ALLOC_MEM_FLAGS_MMIO_REMAP, ALLOC_MEM_FLAGS_NO_SUBSTITUTE, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_UNCACHED,
    ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::PAGE;

use super::record::outcome;
use super::Calls;
use crate::memory::{Backing, Memory};
use crate::raw::USERPTR;
use crate::Stop;

const VRAM: u32 = ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE;
const GTT: u32 = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE;
const MIB: u64 = 1 << 20;

impl Calls {
    /// Allocates, and if that works maps, unmaps, and frees.
    fn whole_life(&self, label: &str, va: u64, size: u64, cpu: u64, flags: u32) {
        let _together = self.record.together();
        let Ok(made) = self.alloc(label, va, size, cpu, flags) else { return };
        if self.map_on_gpu(&format!("{label}: map"), made.handle).is_ok() {
            let _ = self.unmap_from_gpu(&format!("{label}: unmap"), made.handle);
        }
        let _ = self.free(&format!("{label}: free"), made.handle);
    }
}

pub(super) fn alloc(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 8 * MIB)?;
    let va = window.whole().start;
    // Addresses are looked at before the kind is.
    for (kind, name) in [(VRAM, "VRAM"), (GTT, "GTT")] {
        let life = |what: &str, va, size| calls.whole_life(&format!("{name}, {what}"), va, size, 0, kind);
        life("a page", va, PAGE);
        life("no byte", va, 0);
        life("a byte", va, 1);
        life("a page and a byte", va, PAGE + 1);
        life("2 MiB", va, 2 * MIB);
        life("at 0", 0, PAGE);
        life("at 0, a byte", 0, 1);
        life("more than there is", va, 1 << 44);
    }
    let life = |what: &str, va, size| calls.whole_life(what, va, size, 0, VRAM);
    life("at 1", 1, PAGE);
    life("at an unaligned address", va + 8, PAGE);
    life("at a low address", PAGE, PAGE);
    life("below the aperture", 8 * PAGE, PAGE);
    life("in the aperture's first page", 16 * PAGE, PAGE);
    life("in the last page of 47 bits", (1 << 47) - PAGE, PAGE);
    life("across 47 bits", (1 << 47) - PAGE, 2 * PAGE);
    life("at 47 bits", 1 << 47, PAGE);
    life("at 48 bits", 1 << 48, PAGE);
    life("at the end of all addresses", PAGE.wrapping_neg(), PAGE);
    life("across the end of all addresses", PAGE.wrapping_neg(), 2 * PAGE);
    life("all addresses", va, PAGE.wrapping_neg());
    life("as many bytes as there are", va, u64::MAX);
    let first = calls.alloc("first", va + 4 * PAGE, 4 * PAGE, 0, VRAM)?;
    for (what, page, pages) in [
        ("at the same address", 4, 4),
        ("over its first page", 3, 2),
        ("over its last page", 7, 2),
        ("around it", 3, 6),
        ("within it", 5, 1),
        ("before it", 2, 2),
        ("after it", 8, 2),
    ] {
        calls.whole_life(what, va + page * PAGE, pages * PAGE, 0, GTT);
    }
    let _ = calls.free("free the first", first.handle);
    let _ = calls.free("free it again", first.handle);
    let again = calls.alloc("after it", va + 4 * PAGE, 4 * PAGE, 0, VRAM)?;
    for (handle, label) in [
        (0, "free 0"),
        (again.handle + 1, "free the next"),
        (again.handle & 0xffff_ffff, "free with GPU 0"),
        (again.handle & 0xffff_ffff | u64::from(calls.no_gpu()) << 32, "free with no GPU"),
        (again.handle | 1 << 31, "free a large number"),
        (u64::MAX, "free all ones"),
    ] {
        let _ = calls.free(label, handle);
    }
    for (gpu_id, label) in [(calls.no_gpu(), "of no GPU"), (0, "of GPU 0")] {
        let mut args = AllocMemoryOfGpuArgs { va_addr: va, size: PAGE, handle: 0, mmap_offset: 0, gpu_id, flags: VRAM };
        let _ = calls.call(label, command::ALLOC_MEMORY_OF_GPU, &mut args);
    }
    Ok(())
}

pub(super) fn kinds(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 4 * MIB)?;
    let memory = calls.memory("memory", 4 * PAGE)?;
    let (va, cpu) = (window.whole().start, memory.whole().start);
    let kinds = [
        (ALLOC_MEM_FLAGS_VRAM, "VRAM"),
        (ALLOC_MEM_FLAGS_GTT, "GTT"),
        (ALLOC_MEM_FLAGS_USERPTR, "userptr"),
        (ALLOC_MEM_FLAGS_DOORBELL, "doorbell"),
        (ALLOC_MEM_FLAGS_MMIO_REMAP, "registers"),
    ];
    for (at, (a, name)) in kinds.iter().enumerate() {
        for (b, other) in &kinds[at + 1..] {
            calls.whole_life(&format!("{name} and {other}"), va, PAGE, cpu, a | b);
        }
    }
    let all = kinds.iter().fold(0, |all, (kind, _)| all | kind);
    calls.whole_life("all kinds", va, PAGE, cpu, all);
    calls.whole_life("no kind", va, PAGE, 0, 0);
    calls.whole_life("no kind, writable", va, PAGE, 0, ALLOC_MEM_FLAGS_WRITABLE);
    for (kind, name) in [(VRAM, "VRAM"), (GTT, "GTT"), (USERPTR, "userptr")] {
        calls.record.be_silent(true);
        let mut outcomes = BTreeMap::<String, Vec<u32>>::new();
        for bit in 5..32 {
            let made = calls.alloc(name, va, PAGE, cpu, kind & !(1 << 31) | 1 << bit);
            if let Ok(made) = &made {
                let _ = calls.free(name, made.handle);
            }
            outcomes.entry(outcome(made.map(drop))).or_default().push(bit);
        }
        calls.record.be_silent(false);
        calls.record.step(format!("{name} with each other flag"));
        calls.record.note("ALLOC_MEMORY_OF_GPU with one of the bits 5 to 31, by outcome", format!("{outcomes:?}"));
    }
    for (flags, name) in [
        (VRAM | ALLOC_MEM_FLAGS_CONTIGUOUS, "contiguous VRAM"),
        (VRAM | ALLOC_MEM_FLAGS_PUBLIC, "public VRAM"),
        (VRAM | ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, "VRAM of a queue"),
        (GTT | ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, "GTT of a queue"),
        (GTT | ALLOC_MEM_FLAGS_COHERENT | ALLOC_MEM_FLAGS_UNCACHED, "GTT coherent, uncached"),
        (GTT | ALLOC_MEM_FLAGS_EXT_COHERENT | ALLOC_MEM_FLAGS_NO_SUBSTITUTE, "GTT of the rarer flags"),
        (GTT | ALLOC_MEM_FLAGS_EXECUTABLE, "GTT executable"),
    ] {
        for (bytes, size) in [(PAGE, "a page"), (2 * PAGE, "two pages"), (2 * MIB, "2 MiB")] {
            calls.whole_life(&format!("{name}, {size}"), va, bytes, 0, flags);
        }
    }
    for (flags, name) in [(ALLOC_MEM_FLAGS_DOORBELL, "doorbell"), (ALLOC_MEM_FLAGS_MMIO_REMAP, "registers")] {
        for (bytes, size) in [(0, "no byte"), (1, "a byte"), (PAGE, "a page"), (2 * PAGE, "two"), (3 * PAGE, "three")] {
            calls.whole_life(&format!("{name}, {size}"), va, bytes, 0, flags);
        }
        calls.whole_life(&format!("{name} at 0"), 0, if name == "doorbell" { 2 * PAGE } else { PAGE }, 0, flags);
    }
    Ok(())
}

pub(super) fn userptr(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 64 * PAGE)?;
    let memory = calls.memory("memory", 16 * PAGE)?;
    let (va, cpu) = (window.whole().start, memory.whole().start);
    let life = |what: &str, va, size, cpu| calls.whole_life(what, va, size, cpu, USERPTR);
    life("a page", va, PAGE, cpu);
    life("no byte", va, 0, cpu);
    life("a byte", va, 1, cpu);
    life("a page and a byte", va, PAGE + 1, cpu);
    life("at 0", 0, PAGE, cpu);
    life("at an unaligned address", va + 1, PAGE, cpu);
    life("of CPU address 0", va, PAGE, 0);
    life("of an unaligned CPU address", va, PAGE, cpu + 1);
    life("of half a page", va, PAGE, cpu + 2048);
    life("of both unaligned", va + 1, PAGE, cpu + 1);
    life("of the kernel's address", va, PAGE, 0xffff_8000_0000_0000);
    life("past the end", va, PAGE, 1 << 47);
    life("that wraps", va, PAGE.wrapping_neg(), cpu);
    life("of too much", va, 1 << 44, cpu);
    life("at 48 bits", 1 << 48, PAGE, cpu);
    memory.unmap(4 * PAGE, PAGE)?;
    life("with a hole", va, 8 * PAGE, cpu);
    life("of nothing", va, PAGE, cpu + 4 * PAGE);
    life("that ends in a hole", va, 5 * PAGE, cpu);
    memory.map_again(4 * PAGE, PAGE)?;
    memory.protect(5 * PAGE, PAGE, libc::PROT_READ)?;
    life("not writable within", va, 8 * PAGE, cpu);
    life("not writable", va, PAGE, cpu + 5 * PAGE);
    let read = |what: &str, size, cpu| calls.whole_life(what, va, size, cpu, ALLOC_MEM_FLAGS_USERPTR);
    read("not writable, for reading", 8 * PAGE, cpu);
    memory.protect(6 * PAGE, PAGE, libc::PROT_NONE)?;
    read("not readable, for reading", 8 * PAGE, cpu);
    life("not readable", va, PAGE, cpu + 6 * PAGE);
    memory.protect(0, 16 * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    life("with all flags", va, 8 * PAGE, cpu);
    // The same memory twice, and addresses that are taken.
    let first = calls.alloc("first", va, 8 * PAGE, cpu, USERPTR)?;
    life("the same memory elsewhere", va + 16 * PAGE, 8 * PAGE, cpu);
    life("other memory at the same address", va, 8 * PAGE, cpu + 8 * PAGE);
    life("over its last page", va + 7 * PAGE, 2 * PAGE, cpu + 8 * PAGE);
    let _ = calls.map_on_gpu("map the first", first.handle);
    memory.unmap(0, 2 * PAGE)?;
    let _ = calls.unmap_from_gpu("unmap it without its memory", first.handle);
    let _ = calls.map_on_gpu("map it without its memory", first.handle);
    let _ = calls.free("free it", first.handle);
    let _ = calls.unmap_from_gpu("unmap it", first.handle);
    let _ = calls.free("free it unmapped", first.handle);
    let file = Memory::new(Backing::FilePrivate, 4 * PAGE);
    if let Ok(file) = file {
        calls.record.name(file.whole().start, 4 * PAGE, "file");
        life("a file", va, 4 * PAGE, file.whole().start);
        read("a file, for reading", 4 * PAGE, file.whole().start);
    }
    Ok(())
}

pub(super) fn map(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 64 * PAGE)?;
    let (va, gpu, none) = (window.whole().start, calls.gpu(), calls.no_gpu());
    let made = calls.alloc("alloc", va, 4 * PAGE, 0, VRAM)?;
    let list = [gpu, gpu, none, 0];
    for map in [true, false] {
        let word = if map { "map" } else { "unmap" };
        let one = |what: &str, handle, gpus: &[u32], count, done| {
            let _ = calls.map(&format!("{word}, {what}"), map, handle, gpus, count, done);
        };
        one("none", made.handle, &list, 0, 0);
        one("more done than there are", made.handle, &list, 1, 2);
        one("all are done", made.handle, &list, 1, 1);
        one("no GPU", made.handle, &[none], 1, 0);
        one("GPU 0", made.handle, &[0], 1, 0);
        one("handle 0", 0, &list, 1, 0);
        one("handle of no GPU", made.handle & 0xffff_ffff | u64::from(none) << 32, &list, 1, 0);
        one("handle of GPU 0", made.handle & 0xffff_ffff, &list, 1, 0);
        one("next handle", made.handle + 1, &list, 1, 0);
        one("the GPU", made.handle, &list, 1, 0);
        one("again", made.handle, &list, 1, 0);
        one("the GPU twice", made.handle, &list, 2, 0);
        one("the GPU and none", made.handle, &[gpu, none], 2, 0);
        one("none and the GPU", made.handle, &[none, gpu], 2, 0);
        one("33 times", made.handle, &[gpu; 40], 33, 0);
        let mut nowhere = vkfd_client::uapi::memory::MapMemoryToGpuArgs {
            handle: made.handle,
            device_ids_array_ptr: 1,
            n_devices: 1,
            n_success: 0,
        };
        let command = if map { command::MAP_MEMORY_TO_GPU } else { command::UNMAP_MEMORY_FROM_GPU };
        let _ = calls.call(&format!("{word}, a list that is nowhere"), command, &mut nowhere);
        (nowhere.n_devices, nowhere.device_ids_array_ptr) = (u32::MAX, window.whole().start);
        let _ = calls.call(&format!("{word}, more GPUs than there can be"), command, &mut nowhere);
        if map {
            let _ = calls.free("free while it is mapped", made.handle);
        }
    }
    let _ = calls.free("free", made.handle);
    let _ = calls.map_on_gpu("map after it", made.handle);
    let _ = calls.unmap_from_gpu("unmap after it", made.handle);
    let bare = calls.alloc("alloc without an address", 0, PAGE, 0, VRAM)?;
    let _ = calls.map_on_gpu("map without an address", bare.handle);
    let _ = calls.unmap_from_gpu("unmap without an address", bare.handle);
    let _ = calls.free("free without an address", bare.handle);
    Ok(())
}
