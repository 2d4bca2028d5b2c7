// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ioctl entry: which call a command word is, its argument in, its result out.
//!
//! As in KFD a command is known by its number. A shorter argument than this driver's is filled up
//! with zeroes, a longer one cut: old and new clients both work. The one exception is number 0x28,
//! which is the batch allocation in one form and upstream's profiler in another: there the whole
//! word counts. The result is copied back also when a call fails, because MAP's and UNMAP's say how
//! far they came.

use crate::base::addr::{CpuVa, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::bo::Backing;
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::queues::event::Waited;
use crate::userptr::window::{WindowPolicy, MAX_WINDOWS};
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::{Command, Direction};
use vkfd_uapi::pod::{slice_as_bytes, slice_as_bytes_mut, Pod};
use vkfd_uapi::{event, memory, mmap, process, queue, smi, svm, vkfd};

/// The interface version that is spoken. With 1.15 a render node maps objects at GPU addresses of
/// KFD's processes (`GEM_VA`). ROCR looks at the number before it offers virtual memory, by which
/// HIP 7 makes pools and managed memory.
const VERSION: process::GetVersionArgs = process::GetVersionArgs { major_version: 1, minor_version: 15 };
/// Most attributes in one SVM call, and events in one wait.
const MAX_LIST: u32 = 4096;
/// Lowest GPU address of the aperture: page 0 and what compilers take for null stays out.
const APERTURE_BASE: u64 = 0x1_0000;

pub(super) fn ioctl(process: &Arc<Process>, command: u32, arg: CpuVa) -> Result {
    if !process.mm().is_current() {
        return Err(Errno::EBADF.into());
    }
    let command = Command(command);
    let result = dispatch(process, command, arg);
    if let Err(error) = result {
        if !command.same_call(vkfd::LAST_ERROR) {
            process.errors().record(error);
        }
    }
    result
}

fn dispatch(process: &Arc<Process>, command: Command, arg: CpuVa) -> Result {
    if command.kind() != c::TYPE {
        return Err(Errno::ENOTTY.into());
    }
    // As KFD: the call's own direction counts, whatever the word says.
    let row = c::ALL.iter().find(|known| known.command.number() == command.number());
    let direction = row.map_or(command.direction(), |known| known.command.direction());
    let call = Call { process, command, arg, direction };
    if command == ALLOC_MEMORY_OF_GPU_BATCH {
        return call.with(|a: &mut AllocMemoryOfGpuBatchArgs| {
            a.handle = super::batch::alloc_batch(process, a)?.handle;
            Ok(())
        });
    }
    match c::Call::of_number(command.number()) {
        Some(c::Call::GET_VERSION) => call.with(|a| {
            *a = VERSION;
            Ok(())
        }),
        Some(c::Call::ALLOC_MEMORY_OF_GPU) => call.with(|a: &mut memory::AllocMemoryOfGpuArgs| {
            let done = super::batch::alloc_one(process, a)?;
            (a.handle, a.mmap_offset) = (done.handle, done.mmap_offset);
            Ok(())
        }),
        Some(c::Call::FREE_MEMORY_OF_GPU) => {
            call.with(|a: &mut memory::FreeMemoryOfGpuArgs| super::memory::free(process, a.handle))
        }
        Some(c::Call::MAP_MEMORY_TO_GPU) => call.with(|a: &mut memory::MapMemoryToGpuArgs| {
            super::memory::map(process, a.handle, a.device_ids_array_ptr, a.n_devices, &mut a.n_success, true)
        }),
        Some(c::Call::UNMAP_MEMORY_FROM_GPU) => call.with(|a: &mut memory::UnmapMemoryFromGpuArgs| {
            super::memory::map(process, a.handle, a.device_ids_array_ptr, a.n_devices, &mut a.n_success, false)
        }),
        Some(c::Call::AVAILABLE_MEMORY) => call.with(|a: &mut memory::GetAvailableMemoryArgs| {
            a.available = super::memory::available_memory(process, a.gpu_id)?;
            Ok(())
        }),
        Some(c::Call::ACQUIRE_VM) => call.with(|a: &mut process::AcquireVmArgs| process.acquire_vm(a.gpu_id)),
        Some(c::Call::SET_XNACK_MODE) => call.with(|a: &mut process::SetXnackModeArgs| {
            if a.xnack_enabled < 0 {
                a.xnack_enabled = process.xnack().into();
                return Ok(());
            }
            process.set_xnack(a.xnack_enabled != 0)
        }),
        // As a KFD that was built without SVM answers.
        Some(c::Call::SVM) if !process.mm().has_svm() => Err(Errno::EPERM.into()),
        Some(c::Call::SVM) => call.svm(),
        Some(c::Call::CREATE_QUEUE) => {
            call.with(|a: &mut queue::CreateQueueArgs| super::queue::create_queue(process, a))
        }
        Some(c::Call::DESTROY_QUEUE) => {
            call.with(|a: &mut queue::DestroyQueueArgs| super::queue::destroy_queue(process, a.queue_id))
        }
        Some(c::Call::UPDATE_QUEUE) => {
            call.with(|a: &mut queue::UpdateQueueArgs| super::queue::update_queue(process, a))
        }
        Some(c::Call::CREATE_EVENT) => call.with(|a: &mut event::CreateEventArgs| create_event(process, a)),
        Some(c::Call::DESTROY_EVENT) => {
            call.with(|a: &mut event::DestroyEventArgs| process.events().destroy(a.event_id))
        }
        Some(c::Call::SET_EVENT) => call.with(|a: &mut event::SetEventArgs| process.events().set(a.event_id)),
        Some(c::Call::RESET_EVENT) => call.with(|a: &mut event::ResetEventArgs| process.events().reset(a.event_id)),
        Some(c::Call::WAIT_EVENTS) => call.with(|a: &mut event::WaitEventsArgs| wait_events(process, a)),
        Some(c::Call::GET_CLOCK_COUNTERS) => call.with(|a| clock_counters(process, a)),
        Some(c::Call::GET_PROCESS_APERTURES) => call.with(|a| apertures(process, a)),
        Some(c::Call::GET_PROCESS_APERTURES_NEW) => call.with(|a| apertures_new(process, a)),
        // Checked only: the software GPU has no caches.
        Some(c::Call::SET_MEMORY_POLICY) => call.with(|a| super::settings::set_memory_policy(process, a)),
        // Checked only: kernels find scratch by their descriptors.
        Some(c::Call::SET_SCRATCH_BACKING_VA) => call.with(|a| super::settings::set_scratch_backing(process, a)),
        // Checked only: a trap ends the queue, no handler runs.
        Some(c::Call::SET_TRAP_HANDLER) => call.with(|a| super::settings::set_trap_handler(process, a)),
        // Checked only: memory is not tiled, all words are 0.
        Some(c::Call::GET_TILE_CONFIG) => call.with(|a| super::settings::tile_config(process, a)),
        // Checked only: no debugger is there to be announced to.
        Some(c::Call::RUNTIME_ENABLE) => call.with(|a| super::settings::runtime_enable(process, a)),
        // Checked only: work-groups run on any thread.
        Some(c::Call::SET_CU_MASK) => call.with(|a| super::queue::set_cu_mask(process, a)),
        // Checked only: no waves are saved: EINVAL for any queue.
        Some(c::Call::GET_QUEUE_WAVE_STATE) => {
            call.with(|a: &mut queue::GetQueueWaveStateArgs| super::queue::wave_state(process, a))
        }
        Some(c::Call::ALLOC_QUEUE_GWS) => {
            call.with(|a: &mut queue::AllocQueueGwsArgs| super::queue::alloc_gws(process, a))
        }
        Some(c::Call::GET_DMABUF_INFO) => call.with(|a| super::dmabuf::dmabuf_info(process, a)),
        Some(c::Call::IMPORT_DMABUF) => call.with(|a| super::dmabuf::import_dmabuf(process, a)),
        Some(c::Call::EXPORT_DMABUF) => call.with(|a| super::dmabuf::export_dmabuf(process, a)),
        Some(c::Call::SMI_EVENTS) => call.with(|a: &mut smi::SmiEventsArgs| {
            a.anon_fd = super::smi::open_smi(process, a.gpuid)?;
            Ok(())
        }),
        // KFD's answer to callers without the right to checkpoint or to debug: here no caller
        // has it.
        Some(c::Call::CRIU_OP) => Err(Errno::EACCES.into()),
        // A debugger's arguments are read first, as KFD does it.
        Some(c::Call::DBG_TRAP) => call.with(|_: &mut [u64; 4]| Err(Errno::EPERM.into())),
        Some(c::Call::DBG_REGISTER_DEPRECATED | c::Call::DBG_UNREGISTER_DEPRECATED) => {
            call.with(|_: &mut [u32; 2]| Err(Errno::EPERM.into()))
        }
        Some(c::Call::DBG_ADDRESS_WATCH_DEPRECATED | c::Call::DBG_WAVE_CONTROL_DEPRECATED) => {
            call.with(|_: &mut [u64; 2]| Err(Errno::EPERM.into()))
        }
        // 0x28 is the profiler's unless the whole word says batch. No number leads to the newer
        // form of CREATE_QUEUE.
        Some(c::Call::CREATE_QUEUE_ENGINE) => Err(Errno::ENOTTY.into()),
        Some(c::Call::CREATE_PROCESS | c::Call::PROFILER) => Err(Errno::ENOTTY.into()),
        None => own(process, command, &call),
    }
}

fn own(process: &Arc<Process>, command: Command, call: &Call<'_>) -> Result {
    // Known without their sizes as well, which grow with their structures.
    let Some(own) = vkfd::Call::of(command) else { return Err(Errno::ENOTTY.into()) };
    // Before any argument is read, so that a caller without the right learns nothing else.
    let diagnoses = matches!(own, vkfd::Call::SET_WINDOWS | vkfd::Call::MEASURE | vkfd::Call::MOVE);
    if diagnoses && !process.kfd().options().diagnosis {
        return Err(Errno::EPERM.into());
    }
    match own {
        vkfd::Call::QUERY_CAPS => call.with(|a| {
            *a = caps(process);
            Ok(())
        }),
        vkfd::Call::LAST_ERROR => call.with(|a| {
            *a = last_error(process);
            Ok(())
        }),
        vkfd::Call::SNAPSHOT => call.with(|a| super::snapshot::snapshot(process, a)),
        vkfd::Call::RINGED => {
            for device in process.kfd().devices() {
                device.gpu().ring();
            }
            Ok(())
        }
        // Calls for tests and benchmarks
        // ([`Options::diagnosis`](crate::machine::kfd::Options)).
        vkfd::Call::MEASURE => call.with(|a| super::measure::measure(process, a)),
        vkfd::Call::MOVE => call.with(|a| super::move_pages::move_pages(process, a)),
        vkfd::Call::SET_WINDOWS => call.with(|a: &mut vkfd::WindowsArgs| {
            if a.per_range > 1 || a.pad != 0 {
                return Err(Errno::EINVAL.into());
            }
            let clustered = WindowPolicy::Clustered { gap: a.gap };
            process.lock().windows = if a.per_range == 1 { WindowPolicy::PerRange } else { clustered };
            Ok(())
        }),
    }
}

fn caps(process: &Process) -> vkfd::CapsArgs {
    process.kfd().files().forget_closed();
    let options = process.kfd().options();
    let millis = |d: core::time::Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    let (max_windows, window_gap) = match process.window_policy() {
        WindowPolicy::Clustered { gap } => (MAX_WINDOWS as u64, gap),
        WindowPolicy::PerRange => (options.max_ranges.into(), 0),
    };
    vkfd::CapsArgs {
        // The structure is below 4 GiB.
        size: u32::try_from(size_of::<vkfd::CapsArgs>()).unwrap_or(0),
        version: 1,
        caps: vkfd::CAP_BATCH_V2
            | vkfd::CAP_BATCH_FLAG
            | vkfd::CAP_READ_ONLY
            | vkfd::CAP_SNAPSHOT
            | vkfd::CAP_QUEUES
            | if process.mm().has_svm() { vkfd::CAP_SVM } else { 0 }
            | if process.can_xnack() { vkfd::CAP_XNACK } else { 0 }
            | if options.diagnosis { vkfd::CAP_DIAGNOSIS } else { 0 },
        max_ranges: options.max_ranges.into(),
        max_bytes: process.registered().available(),
        page_size: PAGE,
        max_windows,
        window_gap,
        restore_pause_ms: millis(options.restore_pause),
        register_deadline_ms: millis(options.register_deadline),
    }
}

fn last_error(process: &Process) -> vkfd::LastErrorArgs {
    let Some(error) = process.errors().last() else { return vkfd::LastErrorArgs::zeroed() };
    vkfd::LastErrorArgs {
        errno: error.errno.0.unsigned_abs(),
        has_index: error.at.is_some().into(),
        index: error.at.map_or(0, |at| at.index),
        address: error.at.map_or(0, |at| at.start.0),
        size: error.at.map_or(0, |at| at.bytes),
        reason: error.reason as u32,
        pad: 0,
    }
}

fn create_event(process: &Process, args: &mut event::CreateEventArgs) -> Result {
    if args.event_page_offset != 0 {
        // The client brings memory for the signal page: the handle of a GTT object of its own.
        let bo = process.bo(args.event_page_offset)?;
        match bo.backing() {
            Backing::Dma(memory) if bo.flags() & memory::ALLOC_MEM_FLAGS_GTT != 0 => {
                process.events().bring_page(memory)?;
                process.lock().signal_page = Some(bo.handle());
            }
            _ => return Err(Error::new(Errno::EINVAL, Reason::BadHandle)),
        }
    }
    let (number, slot) = process.events().create(args.event_type, args.auto_reset != 0)?;
    args.event_id = number;
    args.event_trigger_data = number;
    args.event_page_offset = 0;
    if slot {
        args.event_slot_index = number;
        args.event_page_offset = mmap::MMAP_TYPE_EVENTS;
    }
    Ok(())
}

fn wait_events(process: &Process, args: &mut event::WaitEventsArgs) -> Result {
    args.wait_result = event::WAIT_RESULT_FAIL;
    if args.num_events > MAX_LIST {
        return Err(Errno::ENOMEM.into());
    }
    let mut list = Vec::filled(event::EventData::zeroed(), args.num_events as usize)?;
    process.mm().read(CpuVa(args.events_ptr), slice_as_bytes_mut(&mut list))?;
    let waited = process.events().wait(&mut list, args.wait_for_all != 0, args.timeout);
    args.wait_result = match waited {
        Waited::Complete => event::WAIT_RESULT_COMPLETE,
        Waited::Timeout => event::WAIT_RESULT_TIMEOUT,
        _ => event::WAIT_RESULT_FAIL,
    };
    match waited {
        Waited::Complete => process.mm().write(CpuVa(args.events_ptr), slice_as_bytes(&list)),
        Waited::Timeout => Ok(()),
        Waited::NoMemory => Err(Errno::ENOMEM.into()),
        Waited::Unknown => Err(Errno::EINVAL.into()),
        Waited::Destroyed => Err(Errno::EIO.into()),
        Waited::Interrupted(left) => {
            // A caller that repeats the call waits for the rest only.
            args.timeout = left;
            Err(Errno::EINTR.into())
        }
    }
}

fn clock_counters(process: &Process, args: &mut process::GetClockCountersArgs) -> Result {
    // KFD answers also for a GPU that it does not know, with a GPU clock of 0.
    let gpu = process.kfd().device(args.gpu_id).ok();
    args.gpu_clock_counter = gpu.map_or(0, |d| d.gpu().clock());
    args.cpu_clock_counter = os::now().0;
    args.system_clock_counter = os::since_boot();
    args.system_clock_freq = 1_000_000_000;
    Ok(())
}

fn aperture(process: &Process, gpu: usize) -> process::ProcessDeviceApertures {
    process::ProcessDeviceApertures {
        // The fixed apertures of gfx9: outside of the 48-bit space.
        lds_base: 0x0001_0000_0000_0000,
        lds_limit: 0x0001_0000_ffff_ffff,
        scratch_base: 0x0002_0000_0000_0000,
        scratch_limit: 0x0002_0000_ffff_ffff,
        gpuvm_base: APERTURE_BASE,
        gpuvm_limit: VA_END - 1,
        gpu_id: process.kfd().devices().get(gpu).map_or(0, |d| d.id()),
        pad: 0,
    }
}

fn apertures(process: &Process, args: &mut process::GetProcessAperturesArgs) -> Result {
    let count = process.gpu_count().min(process::NUM_OF_SUPPORTED_GPUS);
    for (gpu, into) in args.process_apertures.iter_mut().enumerate().take(count) {
        *into = aperture(process, gpu);
    }
    args.num_of_nodes = u32::try_from(count).unwrap_or(0);
    Ok(())
}

fn apertures_new(process: &Process, args: &mut process::GetProcessAperturesNewArgs) -> Result {
    let all = process.gpu_count();
    // As KFD: room for more than there are nodes, the CPUs' one among them, is a mistake.
    if args.num_of_nodes as usize > all.saturating_add(1) {
        return Err(Errno::EINVAL.into());
    }
    let count = (args.num_of_nodes as usize).min(all);
    for gpu in 0..count {
        let offset = (gpu as u64).checked_mul(size_of::<process::ProcessDeviceApertures>() as u64);
        let at = offset.and_then(|offset| args.kfd_process_device_apertures_ptr.checked_add(offset));
        let at = at.ok_or(Error::new(Errno::EFAULT, Reason::BadPointer))?;
        process.mm().write(CpuVa(at), aperture(process, gpu).as_bytes())?;
    }
    // Asked with room for none, it says how many there are.
    args.num_of_nodes = u32::try_from(if args.num_of_nodes == 0 { all } else { count }).unwrap_or(0);
    Ok(())
}

struct Call<'a> {
    process: &'a Arc<Process>,
    command: Command,
    arg: CpuVa,
    direction: Direction,
}

/// Zeroes for the end of a result that is longer than this driver's.
const ZEROES: [u8; 64] = [0; 64];

impl Call<'_> {
    /// Copies the argument in if it has any input, runs `f`, copies it back if it has any result.
    fn with<T: Pod>(&self, f: impl FnOnce(&mut T) -> Result) -> Result {
        let mut value = T::zeroed();
        let declared = self.command.size();
        let mm = self.process.mm();
        let bad_pointer = |e: Error| Error { reason: Reason::BadPointer, ..e };
        let read = |bytes: &mut [u8]| match bytes.get_mut(..declared) {
            Some(bytes) => mm.read(self.arg, bytes),
            None => mm.read(self.arg, bytes),
        };
        let write = |bytes: &[u8]| mm.write(self.arg, bytes.get(..declared).unwrap_or(bytes));
        if self.direction != Direction::Read {
            read(value.as_bytes_mut()).map_err(bad_pointer)?;
        }
        let returns = matches!(self.direction, Direction::Read | Direction::ReadWrite);
        if returns {
            // Where the result cannot go, nothing must have been done: the caller would never learn
            // its handle.
            write(value.as_bytes()).map_err(bad_pointer)?;
        }
        let result = f(&mut value);
        if returns {
            write(value.as_bytes()).map_err(bad_pointer)?;
        }
        if self.direction == Direction::Read {
            // As KFD, which has no input to give back there.
            self.clear(size_of::<T>()).map_err(bad_pointer)?;
        }
        result
    }

    /// Clears the argument from `at` on.
    fn clear(&self, mut at: usize) -> Result {
        while let Some(left) = self.command.size().checked_sub(at).filter(|left| *left > 0) {
            let piece = ZEROES.get(..left.min(ZEROES.len())).unwrap_or_default();
            let to = self.arg.checked_add(at as u64).ok_or(Errno::EFAULT)?;
            self.process.mm().write(to, piece)?;
            at = at.saturating_add(ZEROES.len());
        }
        Ok(())
    }

    fn svm(&self) -> Result {
        self.with(|args: &mut svm::SvmArgs| {
            let listed = (args.nattr as usize).checked_mul(size_of::<svm::SvmAttribute>());
            let whole = listed.and_then(|bytes| bytes.checked_add(size_of::<svm::SvmArgs>()));
            // As KFD: the word says how long the call is, list and all.
            if args.nattr > MAX_LIST || whole.is_none_or(|whole| self.command.size() < whole) {
                return Err(Errno::EINVAL.into());
            }
            let mm = self.process.mm();
            let at = self.arg.checked_add(size_of::<svm::SvmArgs>() as u64).ok_or(Errno::EFAULT)?;
            let mut list = Vec::filled(svm::SvmAttribute::zeroed(), args.nattr as usize)?;
            mm.read(at, slice_as_bytes_mut(&mut list))?;
            self.process.svm_work().call(args, &mut list)?;
            mm.write(at, slice_as_bytes(&list))
        })
    }
}
