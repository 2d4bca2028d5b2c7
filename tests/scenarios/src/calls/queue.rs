// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues: making, changing, ending them, and their work.

use std::sync::Arc;
use std::time::Duration;

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{
    ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::process::{RuntimeEnableArgs, SetXnackModeArgs};
use vkfd_client::uapi::queue::{
    AllocQueueGwsArgs, CreateQueueArgs, DestroyQueueArgs, GetQueueWaveStateArgs, SetCuMaskArgs, UpdateQueueArgs,
    QUEUE_TYPE_COMPUTE, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA, QUEUE_TYPE_SDMA_BY_ENG_ID, QUEUE_TYPE_SDMA_XGMI,
};
use vkfd_client::{AllocOptions, Client, ClientError, ComputeQueue, CopyQueue, CpuVa, GpuVa, Kernel, PAGE};

use super::{Calls, Object};
use crate::Stop;

const GTT: u32 = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_EXECUTABLE;
const VRAM: u32 = ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE;
/// What AMD's driver wants of a queue of this GPU's kernels: the bytes of a save area, those of the
/// control stack within, and the debugger's memory behind.
const SAVED: (u32, u32, u32) = (63_508_480, 36_864, 131_072);
const PATIENCE: Duration = Duration::from_secs(60);
/// For work that may have no end.
const SHORT: Duration = Duration::from_secs(2);

/// What a queue is made of.
struct Parts {
    ring: Object,
    control: Object,
    eop: Object,
    area: Object,
    good: CreateQueueArgs,
}

impl Parts {
    fn new(calls: &Calls) -> Result<Self, Stop> {
        let ring = calls.object("ring", GTT, 4 * PAGE)?;
        let control = calls.object("control", GTT, PAGE)?;
        let eop = calls.object("eop", VRAM, PAGE)?;
        let gpu = &calls.gpu;
        let (bytes, stack, behind) = match gpu.cwsr_bytes {
            0 => SAVED,
            bytes => (bytes, gpu.ctl_stack_bytes, gpu.debug_bytes),
        };
        let area = calls.object("area", GTT, u64::from(bytes + behind).next_multiple_of(PAGE))?;
        let good = CreateQueueArgs {
            ring_base_address: ring.va(),
            read_pointer_address: control.va(),
            write_pointer_address: control.va() + 8,
            ring_size: 4 * 4096,
            gpu_id: calls.gpu(),
            queue_type: QUEUE_TYPE_COMPUTE,
            queue_percentage: 100,
            queue_priority: 7,
            eop_buffer_address: eop.va(),
            eop_buffer_size: PAGE,
            ctx_save_restore_address: area.va(),
            ctx_save_restore_size: bytes,
            ctl_stack_size: stack,
            ..CreateQueueArgs::zeroed()
        };
        Ok(Self { ring, control, eop, area, good })
    }

    fn copies(&self) -> CreateQueueArgs {
        let (none, size) = (0, 0);
        CreateQueueArgs {
            queue_type: QUEUE_TYPE_SDMA,
            eop_buffer_address: none,
            eop_buffer_size: none,
            ctx_save_restore_address: none,
            ctx_save_restore_size: size,
            ctl_stack_size: size,
            ..self.good
        }
    }
}

impl Calls {
    /// Makes a queue, and ends it if it was made.
    fn queue(&self, label: &str, mut args: CreateQueueArgs) {
        let _together = self.record.together();
        if self.call(label, command::CREATE_QUEUE, &mut args).is_ok() {
            let mut destroy = DestroyQueueArgs { queue_id: args.queue_id, pad: 0 };
            let _ = self.call(&format!("{label}: destroy"), command::DESTROY_QUEUE, &mut destroy);
        }
    }
}

pub(super) fn create(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let parts = Parts::new(calls)?;
    // Apart from this, only whether a queue has a doorbell is told.
    for (mut args, label) in [(parts.good, "doorbell for compute"), (parts.copies(), "doorbell for copies")] {
        calls.record.be_silent(true);
        calls.call(label, command::CREATE_QUEUE, &mut args)?;
        let mut destroy = DestroyQueueArgs { queue_id: args.queue_id, pad: 0 };
        calls.call(label, command::DESTROY_QUEUE, &mut destroy)?;
        calls.record.be_silent(false);
        calls.record.step(label);
        calls.record.note("its place", format!("{:#x}", args.doorbell_offset & 0x1fff));
    }
    let unmapped = calls.object("unmapped", GTT, 4 * PAGE)?;
    calls.unmap_from_gpu("unmap what is not for queues", unmapped.handle)?;
    let (ring, control) = (parts.ring.va(), parts.control.va());
    for (base, name) in [(parts.good, "compute"), (parts.copies(), "copies")] {
        let none = 1 << 52;
        for (what, args) in [
            ("good", base),
            ("percentage 101", CreateQueueArgs { queue_percentage: 101, ..base }),
            ("percentage 0", CreateQueueArgs { queue_percentage: 0, ..base }),
            ("percentage with a die", CreateQueueArgs { queue_percentage: 100 | 1 << 8, ..base }),
            ("priority 16", CreateQueueArgs { queue_priority: 16, ..base }),
            ("priority 15", CreateQueueArgs { queue_priority: 15, ..base }),
            ("ring of 3000 bytes", CreateQueueArgs { ring_size: 3000, ..base }),
            ("ring of no byte", CreateQueueArgs { ring_size: 0, ..base }),
            ("ring of 256 bytes", CreateQueueArgs { ring_size: 256, ..base }),
            ("ring of half its object", CreateQueueArgs { ring_size: 8192, ..base }),
            ("ring past its object", CreateQueueArgs { ring_size: 32768, ..base }),
            ("ring within its object", CreateQueueArgs { ring_base_address: ring + PAGE, ring_size: 4096, ..base }),
            ("ring of 2 GiB", CreateQueueArgs { ring_size: 1 << 31, ..base }),
            ("ring at 0", CreateQueueArgs { ring_base_address: 0, ..base }),
            ("ring nobody has", CreateQueueArgs { ring_base_address: none, ..base }),
            ("ring not mapped", CreateQueueArgs { ring_base_address: unmapped.va(), ..base }),
            ("ring at 64", CreateQueueArgs { ring_base_address: ring + 64, ..base }),
            ("ring at 1", CreateQueueArgs { ring_base_address: ring + 1, ..base }),
            ("read pointer nobody has", CreateQueueArgs { read_pointer_address: none, ..base }),
            ("read pointer not mapped", CreateQueueArgs { read_pointer_address: unmapped.va(), ..base }),
            ("read pointer at 0", CreateQueueArgs { read_pointer_address: 0, ..base }),
            ("read pointer at 4", CreateQueueArgs { read_pointer_address: control + 4, ..base }),
            ("read pointer at 1", CreateQueueArgs { read_pointer_address: control + 1, ..base }),
            ("read pointer in the ring", CreateQueueArgs { read_pointer_address: ring, ..base }),
            ("write pointer nobody has", CreateQueueArgs { write_pointer_address: none, ..base }),
            ("write pointer not mapped", CreateQueueArgs { write_pointer_address: unmapped.va(), ..base }),
            ("write pointer at 0", CreateQueueArgs { write_pointer_address: 0, ..base }),
            ("eop nobody has", CreateQueueArgs { eop_buffer_address: none, ..base }),
            ("eop not mapped", CreateQueueArgs { eop_buffer_address: unmapped.va(), ..base }),
            ("eop of no byte", CreateQueueArgs { eop_buffer_size: 0, ..base }),
            ("eop of half a page", CreateQueueArgs { eop_buffer_size: 2048, ..base }),
            ("eop of two pages", CreateQueueArgs { eop_buffer_size: 8192, ..base }),
            ("no eop", CreateQueueArgs { eop_buffer_address: 0, eop_buffer_size: 0, ..base }),
            ("area nobody has", CreateQueueArgs { ctx_save_restore_address: none, ..base }),
            ("area not mapped", CreateQueueArgs { ctx_save_restore_address: unmapped.va(), ..base }),
            ("area at 0", CreateQueueArgs { ctx_save_restore_address: 0, ..base }),
            ("area of no byte", CreateQueueArgs { ctx_save_restore_size: 0, ..base }),
            ("area of a page", CreateQueueArgs { ctx_save_restore_size: 4096, ..base }),
            ("area of all bytes", CreateQueueArgs { ctx_save_restore_size: u32::MAX, ..base }),
            ("stack of no byte", CreateQueueArgs { ctl_stack_size: 0, ..base }),
            ("stack of a page", CreateQueueArgs { ctl_stack_size: 4096, ..base }),
            ("no GPU", CreateQueueArgs { gpu_id: calls.no_gpu(), ..base }),
            ("GPU 0", CreateQueueArgs { gpu_id: 0, ..base }),
            ("no GPU and a bad ring", CreateQueueArgs { gpu_id: 0, ring_size: 3000, ..base }),
        ] {
            calls.queue(&format!("{name}, {what}"), args);
        }
    }
    for kind in [QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA_XGMI, QUEUE_TYPE_SDMA_BY_ENG_ID, 5, 9, u32::MAX] {
        let base = if kind == QUEUE_TYPE_COMPUTE_AQL { parts.good } else { parts.copies() };
        calls.queue(&format!("kind {kind}"), CreateQueueArgs { queue_type: kind, ..base });
    }
    calls.queue("unknown kind of no GPU", CreateQueueArgs { queue_type: 9, gpu_id: 0, ..parts.good });
    let _ = calls.unmap_from_gpu("unmap the eop", parts.eop.handle);
    let _ = calls.unmap_from_gpu("unmap the area", parts.area.handle);
    calls.queue("compute without what it needs", parts.good);
    Ok(())
}

pub(super) fn change(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let parts = Parts::new(calls)?;
    let other = calls.object("other", GTT, 4 * PAGE)?;
    let mut created = parts.good;
    calls.call("make", command::CREATE_QUEUE, &mut created)?;
    let queue_id = created.queue_id;
    let update = UpdateQueueArgs {
        ring_base_address: parts.ring.va(),
        queue_id,
        ring_size: 4 * 4096,
        queue_percentage: 100,
        queue_priority: 7,
    };
    for (label, mut args) in [
        ("update", update),
        ("update no queue", UpdateQueueArgs { queue_id: 999, ..update }),
        ("update no queue that could be", UpdateQueueArgs { queue_id: u32::MAX, ..update }),
        ("update to percentage 101", UpdateQueueArgs { queue_percentage: 101, ..update }),
        ("update to priority 16", UpdateQueueArgs { queue_priority: 16, ..update }),
        ("update to a ring of 1000", UpdateQueueArgs { ring_size: 1000, ..update }),
        ("update to a ring nobody has", UpdateQueueArgs { ring_base_address: 1 << 52, ..update }),
        ("update to another ring", UpdateQueueArgs { ring_base_address: other.va(), ..update }),
        ("update to half a ring", UpdateQueueArgs { ring_size: 8192, ..update }),
        (
            "update to a part of a ring",
            UpdateQueueArgs { ring_base_address: other.va() + PAGE, ring_size: 4096, ..update },
        ),
        ("update to a ring at 64", UpdateQueueArgs { ring_base_address: other.va() + 64, ..update }),
        ("update to nowhere", UpdateQueueArgs { ring_base_address: 64 * PAGE, ..update }),
        ("update to percentage 0", UpdateQueueArgs { queue_percentage: 0, ..update }),
        ("update to no ring", UpdateQueueArgs { ring_base_address: 0, ring_size: 0, ..update }),
        ("update back", update),
    ] {
        let _ = calls.call(label, command::UPDATE_QUEUE, &mut args);
    }
    let words = [u32::MAX; 32];
    let cu_mask_ptr = CpuVa::of(words.as_ptr()).0;
    calls.record.name(cu_mask_ptr, 128, "mask");
    let mask = SetCuMaskArgs { queue_id, num_cu_mask: 128, cu_mask_ptr };
    for (label, mut args) in [
        ("mask", mask),
        ("mask of no bit", SetCuMaskArgs { num_cu_mask: 0, ..mask }),
        ("mask of 33 bits", SetCuMaskArgs { num_cu_mask: 33, ..mask }),
        ("mask of 32 bits", SetCuMaskArgs { num_cu_mask: 32, ..mask }),
        ("mask of 1024 bits", SetCuMaskArgs { num_cu_mask: 1024, ..mask }),
        ("mask of all bits", SetCuMaskArgs { num_cu_mask: u32::MAX - 31, ..mask }),
        ("mask nowhere", SetCuMaskArgs { cu_mask_ptr: 1, ..mask }),
        ("mask of no queue", SetCuMaskArgs { queue_id: 999, ..mask }),
        ("mask of no queue, nowhere", SetCuMaskArgs { queue_id: 999, cu_mask_ptr: 1, ..mask }),
    ] {
        let _ = calls.call(label, command::SET_CU_MASK, &mut args);
    }
    for (queue_id, label) in [(queue_id, "wave state"), (999, "wave state of no queue")] {
        let mut state = GetQueueWaveStateArgs { queue_id, ..GetQueueWaveStateArgs::zeroed() };
        let _ = calls.call(label, command::GET_QUEUE_WAVE_STATE, &mut state);
    }
    for (queue_id, num_gws, label) in [
        (999, 1, "gws of no queue"),
        (queue_id, 0, "gws back that it has not"),
        (queue_id, 1, "gws"),
        (queue_id, 1, "gws twice"),
        (queue_id, 0, "gws back"),
        (queue_id, 64, "gws of 64"),
    ] {
        let mut gws = AllocQueueGwsArgs { queue_id, num_gws, first_gws: 77, ..AllocQueueGwsArgs::zeroed() };
        let _ = calls.call(label, command::ALLOC_QUEUE_GWS, &mut gws);
    }
    let mut enable = RuntimeEnableArgs { mode_mask: 1, ..RuntimeEnableArgs::zeroed() };
    let _ = calls.call("runtime on, with a queue", command::RUNTIME_ENABLE, &mut enable);
    for xnack_enabled in [0, 1, -1] {
        let mut mode = SetXnackModeArgs { xnack_enabled };
        let _ = calls.call(&format!("xnack {xnack_enabled}, with a queue"), command::SET_XNACK_MODE, &mut mode);
    }
    // What a queue uses cannot go.
    let ring = parts.ring.handle;
    let _ = calls.unmap_from_gpu("unmap a queue's ring", ring);
    let _ = calls.map_on_gpu("map a queue's ring", ring);
    let _ = calls.free("free a queue's ring", ring);
    let _ = calls.unmap_from_gpu("unmap a queue's pointers", parts.control.handle);
    let _ = calls.unmap_from_gpu("unmap a queue's eop", parts.eop.handle);
    let _ = calls.unmap_from_gpu("unmap a queue's area", parts.area.handle);
    for handle in [parts.control.handle, parts.eop.handle, parts.area.handle] {
        let _ = calls.map_on_gpu("map it again", handle);
    }
    let mut second = parts.copies();
    let _ = calls.call("a second queue with the same pointers", command::CREATE_QUEUE, &mut second);
    for (queue_id, label) in [
        (queue_id, "destroy"),
        (queue_id, "destroy again"),
        (second.queue_id, "destroy the second"),
        (999, "destroy no queue"),
        (u32::MAX, "destroy no queue that could be"),
    ] {
        let _ = calls.call(label, command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id, pad: 0 });
    }
    let _ = calls.unmap_from_gpu("unmap the ring after it", ring);
    let _ = calls.free("free the ring after it", ring);
    Ok(())
}

/// How a client's work ends.
fn end(result: Result<(), ClientError>) -> String {
    match result {
        Ok(()) => "done".to_owned(),
        Err(ClientError::GpuFault { not_present, read_only, .. }) => {
            format!("a fault, not present: {not_present}, read only: {read_only}")
        }
        Err(ClientError::Timeout(_)) => "no end".to_owned(),
        Err(error) => format!("{error:#}"),
    }
}

/// What a client does, call by call: copies, a kernel.
pub(super) fn work(calls: &Calls) -> Result<(), Stop> {
    let record = &calls.record;
    record.be_quiet();
    record.step("a client opens");
    let client = Client::with_transport(Arc::clone(record) as _)?;
    let gpu = calls.gpu.id;
    record.step("buffers");
    let from = client.alloc(&AllocOptions::gtt(16 * PAGE))?;
    record.name(from.gpu_va().0, 16 * PAGE, "from");
    let to = client.alloc(&AllocOptions::vram(gpu, 16 * PAGE))?;
    record.name(to.gpu_va().0, 16 * PAGE, "to");
    let back = client.alloc(&AllocOptions::gtt(16 * PAGE))?;
    record.name(back.gpu_va().0, 16 * PAGE, "back");
    let pattern: Vec<u8> = (0..16 * PAGE).map(|at| (at % 251) as u8).collect();
    from.write(0, &pattern)?;
    {
        let mut copies = CopyQueue::new(&client, gpu)?;
        copies.copy_now(to.gpu_va(), from.gpu_va(), 16 * PAGE, PATIENCE)?;
        copies.copy_now(back.gpu_va(), to.gpu_va(), 16 * PAGE, PATIENCE)?;
    }
    let mut seen = vec![0; pattern.len()];
    back.read(0, &mut seen)?;
    record.step("copies");
    record.note("there and back", if seen == pattern { "right" } else { "wrong" });
    record.step("kernel");
    let mut compute = ComputeQueue::new(&client, gpu)?;
    let kernel = Kernel::Sum64 { src: to.gpu_va(), count: 2 * PAGE, out: back.gpu_va() };
    let result = compute.launch(&kernel).and_then(|fence| fence.wait(PATIENCE));
    let mut sum = [0; 8];
    back.read(0, &mut sum)?;
    let expected = pattern
        .chunks(8)
        .fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(word.try_into().unwrap_or_default())));
    let right = u64::from_le_bytes(sum) == expected;
    record.step("sum");
    record.note("of 8192 words", format!("{}, {}", end(result), if right { "right" } else { "wrong" }));
    Ok(())
}

/// A copy from addresses that nobody has, and another after it.
pub(super) fn fault(calls: &Calls) -> Result<(), Stop> {
    let client = client(calls)?;
    let to = client.alloc(&AllocOptions::gtt(PAGE))?;
    copy(calls, &client, "copy from nowhere", to.gpu_va(), GpuVa(0x10_0000_0000), PATIENCE)?;
    copy(calls, &client, "copy after the fault", to.gpu_va(), to.gpu_va(), SHORT)
}

/// A copy from beyond an object.
pub(super) fn fault_in_a_gap(calls: &Calls) -> Result<(), Stop> {
    let client = client(calls)?;
    let to = client.alloc(&AllocOptions::vram(calls.gpu.id, PAGE))?;
    copy(calls, &client, "copy from a gap", to.gpu_va(), GpuVa(to.gpu_va().0 + (1 << 30)), PATIENCE)
}

fn client(calls: &Calls) -> Result<Client, Stop> {
    calls.record.be_quiet();
    calls.record.step("a client opens");
    Ok(Client::with_transport(Arc::clone(&calls.record) as _)?)
}

/// Notes how a copy by a queue of its own ends.
fn copy(calls: &Calls, client: &Client, label: &str, to: GpuVa, from: GpuVa, limit: Duration) -> Result<(), Stop> {
    let mut copies = CopyQueue::new(client, calls.gpu.id)?;
    let result = copies.copy_now(to, from, PAGE, limit);
    drop(copies);
    calls.record.step(label);
    calls.record.note("ends", end(result));
    Ok(())
}
