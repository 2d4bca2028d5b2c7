// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MOVE: pages to a GPU's memory and back, on request and without any policy. For diagnosis and
//! tests, and only where that is on ([`crate::machine::kfd::Options`]).
//!
//! What is there is evicted like SVM memory when VRAM runs out, and faulted in from there by a
//! thread that has the addresses registered. It is for memory that is in no SVM range: of a range,
//! SVM itself has to know where its pages are.
//!
//! Only here memory moves that userptr objects have: SVM ranges and theirs exclude each other
//! (EADDRINUSE), and SVM's own moves are of ranges. The invalidation asks for a restore, which
//! would fault moving pages in, and so would a thread that registers, maps or faults just then. All
//! of them wait, as SVM does for its own moves: an object's `Moving` is raised under its
//! reservation, under which faults are. MOVE waits on an object for as long as it is registered or
//! restored. Objects come in the order of their numbers, so that two moves do not wait for each
//! other. An object that is made meanwhile is not kept, and has its pages where it finds them.

use crate::base::addr::{block_start, index, CpuSpan, CpuVa, VramOffset, HUGE, PAGE};
use crate::base::counters::SvmCounters as Counters;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::bo::Bo;
use crate::device::residency::Granule;
use crate::device::vram::Contents;
use crate::device::Device;
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::seams::address_space::Access;
use crate::seams::device_memory::DeviceMemory;
use crate::svm::block;
use crate::userptr;
use vkfd_uapi::vkfd as abi;

/// What is not faulted in as long as this is there.
struct Moves {
    _userptrs: Vec<userptr::Moving>,
    _block: Option<block::Moving>,
}

/// The MOVE call. What has moved when it fails has moved. EINVAL, EOPNOTSUPP, ESRCH, ENOMEM
/// before anything has moved. O(pages).
pub(crate) fn move_pages(process: &Arc<Process>, args: &mut abi::MoveArgs) -> Result {
    let device = process.kfd().device(args.gpu_id)?;
    if !process.mm().migration().has(device.memory_kind()) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if args.size != 0 {
        let span = CpuSpan::new(CpuVa(args.start), args.size).ok_or(Error::new(Errno::EINVAL, Reason::Wraps))?;
        if !span.is_whole_pages() {
            return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
        }
        // Hosts count on it.
        if span.end().0 > VA_END {
            return Err(Error::new(Errno::EINVAL, Reason::OutOfAperture));
        }
        args.moved = match args.direction {
            abi::MOVE_TO_GPU => {
                let moved = move_to_gpu(process, device, span);
                process.hasten_restore();
                moved?
            }
            abi::MOVE_TO_SYSTEM => process.mm().migrate_to_system(span)?,
            _ => return Err(Errno::EINVAL.into()),
        };
    }
    (args.resident, args.released) = device.residency().hosted();
    Ok(())
}

/// As much as there is VRAM for.
fn move_to_gpu(process: &Process, device: &Arc<Device>, span: CpuSpan) -> Result<u64> {
    device.residency().prepare(device.vram().pages())?;
    let mut places: Vec<Option<VramOffset>> = Vec::with_capacity(index(span.pages().min(HUGE / PAGE)))?;
    let (mut at, mut moved) = (span.start().0, 0u64);
    while at < span.end().0 {
        // What has moved until then has moved.
        if moved > 0 && os::killed() {
            break;
        }
        os::interrupted()?;
        // Where there is no memory there is nothing to move.
        let none = process.mm().out_of_reach(CpuSpan::between(CpuVa(at), span.end()), Access::Read);
        if none >= HUGE {
            at = at.saturating_add(block_start(none));
            continue;
        }
        let next = block_start(at).saturating_add(HUGE).min(span.end().0);
        match move_part_to_gpu(process, device, CpuSpan::between(CpuVa(at), CpuVa(next)), &mut places) {
            Ok(count) => moved = count.saturating_add(moved),
            Err(error) if moved == 0 => return Err(error),
            Err(_) => break,
        }
        at = next;
    }
    Ok(moved)
}

/// No thread faults pages in that are about to move, for any object or range.
fn begin_moves(process: &Process, part: CpuSpan) -> Result<Moves> {
    let mut objects: Vec<Arc<Bo>> = Vec::new();
    let mut result = Ok(());
    let inner = process.lock();
    inner.cpu_hulls.overlapping(part.start().0, part.end().0, &mut |_, _, number| {
        // The hull may be hit where no range is.
        if let Some(bo) = inner.bos.get(*number).filter(|bo| bo.has_cpu_memory_in(part)) {
            result = objects.push(bo.clone());
        }
        result.is_ok()
    });
    drop(inner);
    result?;
    objects.sort_unstable_by_key(|bo| bo.number());
    let mut userptrs = Vec::with_capacity(objects.len())?;
    for moving in objects.iter().filter_map(|bo| bo.begin_move()) {
        userptrs.push_reserved(moving);
    }
    let block = process.svm().find_block(part.start().0).and_then(|block| block.begin_move(process.deadline()));
    Ok(Moves { _userptrs: userptrs, _block: block })
}

/// Of one granule. The places are of no use afterwards.
fn move_part_to_gpu(
    process: &Process,
    device: &Arc<Device>,
    part: CpuSpan,
    places: &mut Vec<Option<VramOffset>>,
) -> Result<u64> {
    let base = CpuVa(block_start(part.start().0));
    let whole = CpuSpan::new(base, HUGE).ok_or(Errno::EINVAL)?;
    let counters = os::arc(Counters::default())?;
    let granule = Granule::new(process.mm_arc().clone(), process.who(), whole, process.gpu_count(), counters)?;
    let vram = device.alloc_vram(part.pages(), Contents::Any)?;
    places.clear();
    for block in vram.iter() {
        for page in 0..block.pages {
            places.push_reserved(Some(VramOffset(page.saturating_mul(PAGE).saturating_add(block.at.0))));
        }
    }
    if let Err(error) = device.residency().enter(&granule, part.start().0.saturating_sub(base.0) / PAGE, places) {
        device.vram().give_back(&vram);
        return Err(error);
    }
    let memory: Arc<dyn DeviceMemory> = device.clone();
    let moved = begin_moves(process, part).and_then(|_moving| process.mm().migrate_to_device(part, &memory, places));
    for at in places.iter().flatten() {
        device.withdraw(*at, 1);
    }
    moved
}
