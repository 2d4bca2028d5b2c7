// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls before a GPU is bound, the binding, and settings.

use std::fs::File;
use std::os::fd::AsRawFd;

use vkfd_client::uapi::event::CreateEventArgs;
use vkfd_client::uapi::memory::{
    ExportDmabufArgs, GetAvailableMemoryArgs, GetDmabufInfoArgs, ImportDmabufArgs, ALLOC_MEM_FLAGS_DOORBELL,
    ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_MMIO_REMAP, ALLOC_MEM_FLAGS_VRAM, INVALID_FD,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::process::{
    AcquireVmArgs, GetClockCountersArgs, GetProcessAperturesArgs, GetProcessAperturesNewArgs, GetTileConfigArgs,
    GetVersionArgs, ProcessDeviceApertures, RuntimeEnableArgs, SetMemoryPolicyArgs, SetScratchBackingVaArgs,
    SetTrapHandlerArgs, SetXnackModeArgs,
};
use vkfd_client::uapi::queue::{
    AllocQueueGwsArgs, CreateQueueArgs, DestroyQueueArgs, GetQueueWaveStateArgs, SetCuMaskArgs, UpdateQueueArgs,
};
use vkfd_client::uapi::smi::SmiEventsArgs;
use vkfd_client::uapi::{command, mmap};
use vkfd_client::{CpuVa, MmapFile, Transport, PAGE};

use super::Calls;
use crate::raw::USERPTR;
use crate::Stop;

/// Every call of a process that has no VM yet.
pub(super) fn unbound(calls: &Calls) -> Result<(), Stop> {
    let memory = calls.memory("memory", 4 * PAGE)?;
    let window = calls.window("window", 4 * PAGE)?;
    let (va, cpu, gpu_id) = (window.whole().start, memory.whole().start, calls.gpu());
    let mut version = GetVersionArgs::zeroed();
    let _ = calls.call("version", command::GET_VERSION, &mut version);
    calls.record.note("the interface", format!("{}.{}", version.major_version, version.minor_version));
    let _ = calls.alloc("alloc VRAM", va, PAGE, 0, ALLOC_MEM_FLAGS_VRAM);
    let _ = calls.alloc("alloc GTT", va, PAGE, 0, ALLOC_MEM_FLAGS_GTT);
    let _ = calls.alloc("alloc userptr", va, PAGE, cpu, USERPTR);
    let _ = calls.alloc("alloc doorbell", va, 2 * PAGE, 0, ALLOC_MEM_FLAGS_DOORBELL);
    let _ = calls.alloc("alloc registers", va, PAGE, 0, ALLOC_MEM_FLAGS_MMIO_REMAP);
    let _ = calls.alloc("alloc nothing", va, 0, 0, ALLOC_MEM_FLAGS_VRAM);
    let handle = u64::from(gpu_id) << 32 | 1;
    let _ = calls.free("free", handle);
    let _ = calls.free("free of no GPU", 1);
    let _ = calls.map_on_gpu("map", handle);
    let _ = calls.unmap_from_gpu("unmap", handle);
    let mut available = GetAvailableMemoryArgs { available: 0, gpu_id, pad: 0 };
    let _ = calls.call("available", command::AVAILABLE_MEMORY, &mut available);
    let mut create = CreateQueueArgs { gpu_id, queue_type: 1, ring_size: 4096, ..CreateQueueArgs::zeroed() };
    let _ = calls.call("create queue", command::CREATE_QUEUE, &mut create);
    let _ = calls.call("destroy queue", command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id: 0, pad: 0 });
    let _ = calls.call("update queue", command::UPDATE_QUEUE, &mut UpdateQueueArgs::zeroed());
    let mut mask = SetCuMaskArgs { queue_id: 0, num_cu_mask: 32, cu_mask_ptr: cpu };
    let _ = calls.call("mask", command::SET_CU_MASK, &mut mask);
    let _ = calls.call("wave state", command::GET_QUEUE_WAVE_STATE, &mut GetQueueWaveStateArgs::zeroed());
    let mut gws = AllocQueueGwsArgs { queue_id: 0, num_gws: 1, ..AllocQueueGwsArgs::zeroed() };
    let _ = calls.call("gws", command::ALLOC_QUEUE_GWS, &mut gws);
    let mut info = GetDmabufInfoArgs { dmabuf_fd: INVALID_FD, ..GetDmabufInfoArgs::zeroed() };
    let _ = calls.call("dmabuf info", command::GET_DMABUF_INFO, &mut info);
    let mut import = ImportDmabufArgs { va_addr: va, handle: 0, gpu_id, dmabuf_fd: INVALID_FD };
    let _ = calls.call("import", command::IMPORT_DMABUF, &mut import);
    let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
    let _ = calls.call("export", command::EXPORT_DMABUF, &mut export);
    let _ = calls.call("smi", command::SMI_EVENTS, &mut SmiEventsArgs { gpuid: gpu_id, anon_fd: 0 });
    let policy = SetMemoryPolicyArgs { gpu_id, ..SetMemoryPolicyArgs::zeroed() };
    let _ = calls.call("policy", command::SET_MEMORY_POLICY, &mut { policy });
    let scratch = SetScratchBackingVaArgs { va_addr: 1 << 32, gpu_id, pad: 0 };
    let _ = calls.call("scratch", command::SET_SCRATCH_BACKING_VA, &mut { scratch });
    let trap = SetTrapHandlerArgs { gpu_id, ..SetTrapHandlerArgs::zeroed() };
    let _ = calls.call("trap", command::SET_TRAP_HANDLER, &mut { trap });
    let tile = GetTileConfigArgs { gpu_id, ..GetTileConfigArgs::zeroed() };
    let _ = calls.call("tiles", command::GET_TILE_CONFIG, &mut { tile });
    let _ = calls.call("xnack", command::SET_XNACK_MODE, &mut SetXnackModeArgs { xnack_enabled: -1 });
    let _ = calls.call("event", command::CREATE_EVENT, &mut CreateEventArgs::zeroed());
    for (mode_mask, label) in
        [(0, "runtime off"), (1, "runtime on"), (1, "runtime on again"), (0, "runtime off at last")]
    {
        let mut enable = RuntimeEnableArgs { mode_mask, ..RuntimeEnableArgs::zeroed() };
        let _ = calls.call(label, command::RUNTIME_ENABLE, &mut enable);
    }
    for (kind, bytes, label) in
        [(mmap::MMAP_TYPE_DOORBELL, 2 * PAGE, "doorbells"), (mmap::MMAP_TYPE_MMIO, PAGE, "registers")]
    {
        map(calls, label, MmapFile::Kfd, bytes, mmap::encode(kind, gpu_id));
    }
    Ok(())
}

/// Maps and unmaps.
pub(super) fn map(calls: &Calls, label: &str, file: MmapFile, bytes: u64, offset: u64) {
    let length = usize::try_from(bytes).unwrap_or(0);
    calls.record.step(label);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let mapped = unsafe { calls.record.mmap(file, std::ptr::null_mut(), length, prot, libc::MAP_SHARED, offset) };
    if let Ok(at) = mapped {
        // SAFETY: mapped just now, and nobody has the address.
        unsafe { libc::munmap(at, length) };
    }
}

pub(super) fn acquire(calls: &Calls) -> Result<(), Stop> {
    let render = calls.render()?;
    let null = File::open("/dev/null")?;
    let other = u32::try_from(null.as_raw_fd())?;
    let try_one = |label: &str, drm_fd: u32, gpu_id: u32| {
        let _ = calls.call(label, command::ACQUIRE_VM, &mut AcquireVmArgs { drm_fd, gpu_id });
    };
    try_one("no file", u32::MAX, calls.gpu());
    try_one("no such file", 9999, calls.gpu());
    try_one("a file of nothing", other, calls.gpu());
    try_one("no GPU", render, calls.no_gpu());
    try_one("GPU 0", render, 0);
    try_one("no file and no GPU", u32::MAX, calls.no_gpu());
    try_one("good", render, calls.gpu());
    try_one("again", render, calls.gpu());
    try_one("again with a file of nothing", other, calls.gpu());
    try_one("again without a file", u32::MAX, calls.gpu());
    Ok(())
}

/// Calls that say or set something about a process or a GPU.
pub(super) fn settings(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let memory = calls.memory("memory", 4 * PAGE)?;
    let (cpu, gpu_id, none) = (memory.whole().start, calls.gpu(), calls.no_gpu());
    apertures(calls, cpu)?;
    for (gpu_id, label) in [(gpu_id, "clocks"), (none, "clocks of no GPU"), (0, "clocks of GPU 0")] {
        let mut clocks = GetClockCountersArgs { gpu_id, ..GetClockCountersArgs::zeroed() };
        let _ = calls.call(label, command::GET_CLOCK_COUNTERS, &mut clocks);
    }
    for (gpu_id, label) in [(gpu_id, "available"), (none, "available of no GPU"), (0, "available of GPU 0")] {
        let mut available = GetAvailableMemoryArgs { available: 0, gpu_id, pad: 0 };
        let _ = calls.call(label, command::AVAILABLE_MEMORY, &mut available);
    }
    let policy = SetMemoryPolicyArgs { gpu_id, ..SetMemoryPolicyArgs::zeroed() };
    for (mut args, label) in [
        (policy, "policy"),
        (SetMemoryPolicyArgs { default_policy: 1, alternate_policy: 1, ..policy }, "policy not coherent"),
        (SetMemoryPolicyArgs { default_policy: 2, ..policy }, "policy unknown"),
        (SetMemoryPolicyArgs { alternate_policy: 2, ..policy }, "other policy unknown"),
        (SetMemoryPolicyArgs { misc_process_flag: 1, ..policy }, "policy with precision"),
        (SetMemoryPolicyArgs { misc_process_flag: 0xff, ..policy }, "policy with unknown flags"),
        (SetMemoryPolicyArgs { alternate_aperture_base: 1, alternate_aperture_size: 1, ..policy }, "policy's aperture"),
        (SetMemoryPolicyArgs { gpu_id: none, ..policy }, "policy of no GPU"),
        (SetMemoryPolicyArgs { gpu_id: none, default_policy: 7, ..policy }, "policy unknown of no GPU"),
    ] {
        let _ = calls.call(label, command::SET_MEMORY_POLICY, &mut args);
    }
    for (gpu_id, va_addr, label) in [
        (gpu_id, 1 << 32, "scratch"),
        (gpu_id, 1, "scratch unaligned"),
        (gpu_id, u64::MAX, "scratch nowhere"),
        (none, 0, "scratch of no GPU"),
    ] {
        let mut args = SetScratchBackingVaArgs { va_addr, gpu_id, pad: 0 };
        let _ = calls.call(label, command::SET_SCRATCH_BACKING_VA, &mut args);
    }
    for (gpu_id, tba_addr, label) in [
        (gpu_id, 0, "trap"),
        (gpu_id, 1, "trap unaligned"),
        (gpu_id, u64::MAX, "trap nowhere"),
        (none, 0, "trap of no GPU"),
    ] {
        let mut args = SetTrapHandlerArgs { tba_addr, tma_addr: 0, gpu_id, pad: 0 };
        let _ = calls.call(label, command::SET_TRAP_HANDLER, &mut args);
    }
    let tile = GetTileConfigArgs { gpu_id, ..GetTileConfigArgs::zeroed() };
    for (mut args, label) in [
        (tile, "tiles: none"),
        (GetTileConfigArgs { tile_config_ptr: cpu, num_tile_configs: 40, ..tile }, "tiles"),
        (GetTileConfigArgs { macro_tile_config_ptr: cpu, num_macro_tile_configs: 40, ..tile }, "macro tiles"),
        (GetTileConfigArgs { tile_config_ptr: 1, num_tile_configs: 4, ..tile }, "tiles to nowhere"),
        (GetTileConfigArgs { macro_tile_config_ptr: 1, num_macro_tile_configs: 4, ..tile }, "macro tiles to nowhere"),
        (GetTileConfigArgs { gpu_id: none, ..tile }, "tiles of no GPU"),
    ] {
        let _ = calls.call(label, command::GET_TILE_CONFIG, &mut args);
    }
    for (xnack_enabled, label) in
        [(-1, "xnack?"), (0, "xnack off"), (-7, "xnack -7"), (5, "xnack 5"), (-1, "xnack after")]
    {
        let _ = calls.call(label, command::SET_XNACK_MODE, &mut SetXnackModeArgs { xnack_enabled });
    }
    for (mode_mask, r_debug, label) in [
        (0, 0, "runtime off"),
        (1, 0, "runtime on"),
        (1, 0, "runtime on again"),
        (0, 0, "runtime off again"),
        (0, 0, "runtime off and off"),
        (3, 0, "runtime with registers saved"),
        (0, 0, "runtime off after registers"),
        (1, 1, "runtime with a bad address"),
        (u32::MAX, 0, "runtime with all flags"),
        (0, 0, "runtime off at last"),
    ] {
        let mut args = RuntimeEnableArgs { r_debug, mode_mask, capabilities_mask: 0 };
        let _ = calls.call(label, command::RUNTIME_ENABLE, &mut args);
    }
    let mut words = [0_u64; 8];
    for (refused, label) in [
        (command::DBG_REGISTER_DEPRECATED, "old debugger: register"),
        (command::DBG_UNREGISTER_DEPRECATED, "old debugger: unregister"),
        (command::DBG_ADDRESS_WATCH_DEPRECATED, "old debugger: watch"),
        (command::DBG_WAVE_CONTROL_DEPRECATED, "old debugger: waves"),
    ] {
        let _ = calls.call(label, refused, &mut words);
    }
    Ok(())
}

fn apertures(calls: &Calls, cpu: u64) -> Result<(), Stop> {
    let mut old = GetProcessAperturesArgs::zeroed();
    let result = calls.call("apertures", command::GET_PROCESS_APERTURES, &mut old);
    let show = |calls: &Calls, a: &ProcessDeviceApertures| {
        let own = if a.gpu_id == calls.gpu() { "gpu" } else { "other" };
        let of = [a.lds_base, a.lds_limit, a.scratch_base, a.scratch_limit, a.gpuvm_base, a.gpuvm_limit];
        calls.record.note("LDS, scratch and GPU addresses", format!("{own} {of:#x?}").replace(['\n', ' '], ""));
    };
    if result.is_ok() {
        show(calls, &old.process_apertures[0]);
        show(calls, &old.process_apertures[1]);
    }
    for (num_of_nodes, kfd_process_device_apertures_ptr, label) in [
        (0, 0, "apertures: how many"),
        (1, 1, "apertures to nowhere"),
        (2, cpu, "apertures: two"),
        (9, cpu, "apertures: nine"),
        (u32::MAX, cpu, "apertures: all there could be"),
    ] {
        let mut args = GetProcessAperturesNewArgs { kfd_process_device_apertures_ptr, num_of_nodes, pad: 0 };
        calls.call(label, command::GET_PROCESS_APERTURES_NEW, &mut args).ok();
    }
    let mut list = [ProcessDeviceApertures::zeroed()];
    let at = CpuVa::of(list.as_mut_ptr()).0;
    calls.record.name(at, size_of_val(&list) as u64, "room");
    let mut args = GetProcessAperturesNewArgs { kfd_process_device_apertures_ptr: at, num_of_nodes: 1, pad: 0 };
    if calls.call("apertures: one", command::GET_PROCESS_APERTURES_NEW, &mut args).is_ok() {
        show(calls, &list[0]);
    }
    Ok(())
}
