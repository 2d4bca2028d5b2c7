// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sequences of calls whose outcomes are recorded, to compare one KFD with another call by call.
//!
//! A sequence is a list of calls in one process, most of them wrong in one way. Nothing is judged
//! here: [`run`] returns what each call was given and what came of it, as a [`Record`] has it. The
//! same sequence on another driver gives lines of the same steps.

mod event;
mod file;
mod memory;
mod plain;
mod queue;
mod record;
mod svm;
mod word;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use vkfd_client::uapi::command;
use vkfd_client::uapi::ioctl::Command;
use vkfd_client::uapi::memory::{AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::process::AcquireVmArgs;
use vkfd_client::{CpuVa, Errno, GpuInfo, Machine, MachineOptions, Target, Transport};

use crate::memory::Memory;
use crate::raw;
use crate::{Host, Stop};
pub use record::Line;
use record::Record;

/// What AMD's driver runs on, too.
const TARGET: Target = Target::Gfx90a;
const VRAM_BYTES: u64 = 1 << 30;

/// A sequence.
#[derive(Clone, Copy)]
pub struct Sequence {
    pub name: &'static str,
    run: fn(&Calls) -> Result<(), Stop>,
}

/// All of them.
pub const ALL: &[Sequence] = &[
    Sequence { name: "unbound", run: plain::unbound },
    Sequence { name: "acquire", run: plain::acquire },
    Sequence { name: "settings", run: plain::settings },
    Sequence { name: "words", run: word::words },
    Sequence { name: "pointers", run: word::pointers },
    Sequence { name: "alloc", run: memory::alloc },
    Sequence { name: "kinds", run: memory::kinds },
    Sequence { name: "userptr", run: memory::userptr },
    Sequence { name: "map", run: memory::map },
    Sequence { name: "create-queue", run: queue::create },
    Sequence { name: "queue", run: queue::change },
    Sequence { name: "event", run: event::events },
    Sequence { name: "event-page", run: event::page },
    Sequence { name: "event-vram", run: event::page_in_vram },
    Sequence { name: "wait", run: event::wait },
    Sequence { name: "dmabuf", run: file::dmabuf },
    Sequence { name: "smi", run: file::smi },
    Sequence { name: "mmap", run: file::mmap },
    Sequence { name: "svm-arguments", run: svm::arguments },
    Sequence { name: "svm-attributes", run: svm::attributes },
    Sequence { name: "svm-buffers", run: svm::beside_buffers },
    Sequence { name: "work", run: queue::work },
    Sequence { name: "fault", run: queue::fault },
    Sequence { name: "gap", run: queue::fault_in_a_gap },
];

/// Runs a sequence in a new process object of the host.
///
/// # Errors
///
/// What the sequence could not go on without.
pub fn run(sequence: &Sequence) -> Result<Vec<Line>, Stop> {
    let host = match Host::of_the_system() {
        Some(host) => host,
        None => Host::InProcess(machine()?),
    };
    let kfd = host.transport()?;
    let nodes = kfd.topology()?;
    let gpu = nodes.iter().find_map(|node| node.gpu.clone()).ok_or(Stop::Skip("there is no GPU".into()))?;
    let record = Arc::new(Record::new(kfd, gpu.id, sequence.name));
    let calls = Calls { record: record.clone(), gpu };
    let ended = (sequence.run)(&calls);
    if let Err(Stop::Fail(error)) = ended {
        record.step("the end");
        record.note("the sequence", format!("{error:#}"));
    }
    Ok(record.lines())
}

fn machine() -> Result<Machine, Stop> {
    let options = MachineOptions { vram_bytes: VRAM_BYTES, target: TARGET, ..MachineOptions::default() };
    Ok(Machine::new(&options).map_err(|error| anyhow::anyhow!("the machine: {error}"))?)
}

/// What a sequence calls.
pub(crate) struct Calls {
    record: Arc<Record>,
    gpu: GpuInfo,
}

/// An object and the addresses that it has.
struct Object {
    window: Memory,
    handle: u64,
}

impl Object {
    fn va(&self) -> u64 {
        self.window.whole().start
    }
}

impl Calls {
    fn gpu(&self) -> u32 {
        self.gpu.id.0
    }

    /// Not the id of a GPU.
    fn no_gpu(&self) -> u32 {
        !self.gpu()
    }

    /// Sends a call, as the step `label`.
    fn call<T: Pod>(&self, label: &str, command: Command, args: &mut T) -> Result<(), Errno> {
        self.record.step(label);
        raw::send(&*self.record, command, CpuVa::of(std::ptr::from_mut(args)).0)
    }

    /// Sends a call with any argument.
    fn send(&self, label: &str, command: Command, argument: u64) -> Result<(), Errno> {
        self.record.step(label);
        raw::send(&*self.record, command, argument)
    }

    /// Memory with a name.
    fn memory(&self, name: &str, bytes: u64) -> Result<Memory, Stop> {
        let memory = Memory::anonymous(bytes)?;
        self.record.name(memory.whole().start, bytes, name);
        Ok(memory)
    }

    /// Addresses with a name, behind which there is nothing.
    fn window(&self, name: &str, bytes: u64) -> Result<Memory, Stop> {
        let window = raw::gpu_window(bytes)?;
        self.record.name(window.whole().start, bytes, name);
        Ok(window)
    }

    fn render(&self) -> Result<u32, Stop> {
        Ok(self.record.render_fd(self.gpu.id)?)
    }

    /// Binds the process to the GPU.
    fn bind(&self) -> Result<(), Stop> {
        let mut args = AcquireVmArgs { drm_fd: self.render()?, gpu_id: self.gpu() };
        Ok(self.call("bind", command::ACQUIRE_VM, &mut args)?)
    }

    fn alloc(&self, label: &str, va: u64, size: u64, cpu: u64, flags: u32) -> Result<AllocMemoryOfGpuArgs, Errno> {
        let gpu_id = self.gpu();
        let mut args = AllocMemoryOfGpuArgs { va_addr: va, size, handle: 0, mmap_offset: cpu, gpu_id, flags };
        self.call(label, command::ALLOC_MEMORY_OF_GPU, &mut args)?;
        Ok(args)
    }

    fn free(&self, label: &str, handle: u64) -> Result<(), Errno> {
        self.call(label, command::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle })
    }

    /// MAP, or UNMAP, of `count` GPUs of a list, of which `done` are done.
    fn map(&self, label: &str, map: bool, handle: u64, gpus: &[u32], count: u32, done: u32) -> Result<(), Errno> {
        let command = if map { command::MAP_MEMORY_TO_GPU } else { command::UNMAP_MEMORY_FROM_GPU };
        let device_ids_array_ptr = CpuVa::of(gpus.as_ptr()).0;
        self.record.name(device_ids_array_ptr, 4 * gpus.len() as u64, "list");
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices: count, n_success: done };
        self.call(label, command, &mut args)
    }

    fn map_on_gpu(&self, label: &str, handle: u64) -> Result<(), Errno> {
        self.map(label, true, handle, &[self.gpu()], 1, 0)
    }

    fn unmap_from_gpu(&self, label: &str, handle: u64) -> Result<(), Errno> {
        self.map(label, false, handle, &[self.gpu()], 1, 0)
    }

    /// Memory of a kind at addresses of its own, mapped on the GPU.
    fn object(&self, name: &str, kind: u32, bytes: u64) -> Result<Object, Stop> {
        let window = self.window(name, bytes)?;
        let label = format!("make {name}");
        let made = self.alloc(&label, window.whole().start, bytes, 0, kind)?;
        self.map_on_gpu(&format!("map {name}"), made.handle)?;
        Ok(Object { window, handle: made.handle })
    }
}

/// A descriptor as arguments have it.
fn number(file: &OwnedFd) -> u32 {
    u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX)
}
