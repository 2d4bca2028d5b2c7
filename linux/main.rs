// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd.ko`: the Linux host. The driver's sources ([`vkfd_driver`]) as a kernel module that
//! provides `/dev/kfd`, on GPUs that are processes outside of the virtual machine ([`vkfd_wire`]).
//!
//! | file | |
//! | --- | --- |
//! | `interval_notifier`, `hmm`, `pin`, `dev_pagemap`, `migrate`, `atomic_bitmap`, `char_device`, `anon_file`, `sysfs` | abstractions over the kernel's C interfaces that Rust does not have yet; they know nothing of vkfd |
//! | `address_space` | the seam to a process's memory, over the first three |
//! | `device_memory` | pages of processes in a GPU's memory, over the next two |
//! | `pci_driver`, `bar`, `dma` | the seam to the device: finding GPUs, their registers and interrupts, memory that both sides use |
//! | `kfd_file`, `processes`, `render_file`, `mapping` | `/dev/kfd`, `/dev/dri/{renderD,card}*` and what is mapped through them |
//! | `files` | the seam to files that calls give to their callers: buffers, SMI events |
//! | `topology`, `gpu_device` | what is there, in sysfs |
//! | `process_files` | processes, in sysfs |
//! | `sabotage` | what is broken on purpose, by the parameter of that name |
//! | `machine` | all of it together |
//!
//! The third seam, `os`, is part of the driver's crate: `driver/src/os/kernel.rs`.
//!
//! Written for Linux 7.3: the kernel's interfaces for Rust change with every version.

// The kernel's structures are passed by pointer only; some have no member in some configurations.
#![allow(improper_ctypes)]

mod address_space;
mod anon_file;
mod atomic_bitmap;
mod bar;
mod char_device;
mod dev_pagemap;
mod device_memory;
mod dma;
mod files;
mod gpu_device;
mod hmm;
mod interval_notifier;
mod kfd_file;
mod machine;
mod mapping;
mod migrate;
mod pci_driver;
mod pin;
mod process_files;
mod processes;
mod render_file;
mod sabotage;
mod sysfs;
mod topology;

use crate::char_device::{Class, Number, Region, Registration};
use crate::device_memory::Memories;
use crate::files::KernelFiles;
use crate::gpu_device::GpuDevice;
use crate::kfd_file::KfdFile;
use crate::machine::{Machine, Place};
use crate::pci_driver::Gpus;
use crate::process_files::ProcessFiles;
use crate::processes::Processes;
use crate::render_file::RenderNode;
use crate::topology::Topology;
use core::time::Duration;
use kernel::prelude::*;
use kernel::sync::Arc;
use vkfd_driver::seams::device_memory::{Kind, Migration};
use vkfd_driver::seams::gpu::Gpu;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os::{System, Vec};
use vkfd_driver::userptr::window::WindowPolicy;

/// DRM's major number. There is no DRM in the guest whose it would be.
const DRM_MAJOR: u32 = 226;
/// The first render node's minor number.
const FIRST_RENDER_MINOR: u32 = 128;

module! {
    type: Vkfd,
    name: "vkfd",
    authors: ["The vkfd authors"],
    description: "A virtual AMD KFD, with batch userptr",
    license: "Dual MIT/GPL",
    params: {
        per_range_windows: u8 {
            default: 0,
            description: "1: an interval notifier for each range of a batch, instead of for ranges that lie near each other",
        },
        window_gap: u64 {
            default: 536870912,
            description: "Bytes between two ranges from which on they do not share a notifier",
        },
        register_deadline_ms: u32 {
            default: 10000,
            description: "How long a registration goes on trying memory that keeps changing",
        },
        restore_pause_ms: u32 {
            default: 64,
            description: "The longest pause between two tries of a restore",
        },
        max_ranges: u32 {
            default: 1048576,
            description: "Most ranges in one registration",
        },
        ram: u64 {
            default: 0,
            description: "Bytes of RAM that the memory limit is made of; 0: what there is",
        },
        memory: u8 {
            default: 1,
            description: "What a GPU's memory can be for pages of processes: 0 nothing, 1 coherent, 2 private",
        },
        svm_vram: u64 {
            default: 0,
            description: "Bytes of a GPU's memory that SVM memory may have; 0: all",
        },
        diagnosis: u8 {
            default: 0,
            description: "1: clients may have what is there for tests and benchmarks only (MEASURE, MOVE, SET_WINDOWS)",
        },
    },
}

/// The module. The fields go in this order.
struct Vkfd {
    _process_files: ProcessFiles,
    _topology: Topology,
    _kfd: Pin<KBox<Registration<KfdFile>>>,
    _machine: Arc<Machine>,
    _gpus: Gpus,
    _system: System,
}

fn options(kinds: Migration) -> Options {
    let ram = match module_parameters::ram.value() {
        0 => topology::ram(),
        bytes => bytes,
    };
    let millis = |value: u32| Duration::from_millis(value.into());
    Options {
        windows: match module_parameters::per_range_windows.value() {
            0 => WindowPolicy::Clustered { gap: module_parameters::window_gap.value() },
            _ => WindowPolicy::PerRange,
        },
        register_deadline: millis(module_parameters::register_deadline_ms.value()),
        restore_pause: millis(module_parameters::restore_pause_ms.value()),
        max_ranges: module_parameters::max_ranges.value(),
        ram,
        device_memory: if kinds.private { Kind::Private } else { Kind::Coherent },
        svm_vram: match module_parameters::svm_vram.value() {
            0 => None,
            bytes => Some(bytes),
        },
        diagnosis: module_parameters::diagnosis.value() == 1,
        sabotage: sabotage::SWITCHES.get(),
        ..Options::default()
    }
}

impl kernel::Module for Vkfd {
    fn init(module: &'static ThisModule) -> Result<Self> {
        sabotage::read()?;
        let kinds = match module_parameters::memory.value() {
            kind @ 0..=2 => Migration { coherent: kind == 1, private: kind == 2 },
            other => {
                pr_err!("memory={other}: it is 0, 1, or 2\n");
                return Err(EINVAL);
            }
        };
        let system = System::new()?;
        // SAFETY: called once in the module's life.
        let found = unsafe { Gpus::new(module, <Self as kernel::ModuleMetadata>::NAME, kinds)? };
        let mut seam = Vec::with_capacity(found.iter().count())?;
        for gpu in found.iter() {
            let gpu: Arc<dyn Gpu> = gpu.clone();
            seam.push(gpu)?;
        }
        let kfd = Kfd::with_files(seam, options(kinds), Arc::new(KernelFiles, GFP_KERNEL)?)?;
        let mut gpus = Vec::with_capacity(found.iter().count())?;
        let mut regions = KVec::new();
        let region = |minor| {
            Region::new(Number::Fixed { major: DRM_MAJOR, minor }, c"vkfd").inspect_err(|_| {
                pr_err!("DRM's node {minor} is taken: a kernel with DRM cannot have this module as well\n");
            })
        };
        for (index, _) in (0..).zip(found.iter()) {
            regions.push((index, [region(FIRST_RENDER_MINOR + index)?, region(index)?]), GFP_KERNEL)?;
        }
        let drm = Arc::pin_init(Class::new(c"drm", Some(c"dri")), GFP_KERNEL)?;
        let mut all = KVec::new();
        for gpu in found.iter() {
            all.push(gpu.clone(), GFP_KERNEL)?;
        }
        let all = Arc::new(all, GFP_KERNEL)?;
        for ((number, [render, card]), gpu) in regions.into_iter().zip(found.iter()) {
            let index = number as usize;
            let device = GpuDevice::new(&kfd, number, gpu.properties())?;
            let context = Arc::new(RenderNode { kfd: kfd.clone(), index, gpus: all.clone() }, GFP_KERNEL)?;
            let node = |name: kernel::str::CString, region| {
                let node = Registration::new(drm.clone(), Some(device.device()), &name, region, context.clone());
                Arc::pin_init(node, GFP_KERNEL)
            };
            let render = node(kernel::str::CString::try_from_fmt(fmt!("renderD{}", FIRST_RENDER_MINOR + number))?, render)?;
            let card = node(kernel::str::CString::try_from_fmt(fmt!("card{number}"))?, card)?;
            gpus.push(Place { gpu: gpu.clone(), nodes: [render, card], device })?;
        }
        let memories = Arc::new(Memories::new(found.memories()?), GFP_KERNEL)?;
        let machine = Arc::new(Machine { kfd: kfd.clone(), gpus, memories, processes: Arc::new(Processes::new()?, GFP_KERNEL)? }, GFP_KERNEL)?;
        let class = Arc::pin_init(Class::new(c"kfd", None), GFP_KERNEL)?;
        let node = Registration::new(class, None, c"kfd", Region::new(Number::Dynamic, c"kfd")?, machine.clone());
        let node = KBox::pin_init(node, GFP_KERNEL)?;
        let nodes = machine.gpus.iter().map(|place| place.gpu.properties()).zip(FIRST_RENDER_MINOR..);
        let mut topology = Topology::new(node.device(), nodes)?;
        for Place { gpu, device, .. } in machine.gpus.iter() {
            topology.add(device.device(), gpu.properties())?;
        }
        let process_files = ProcessFiles::new(&kfd, node.device())?;
        found.connect(&kfd);
        pr_info!("{} GPUs\n", machine.gpus.len());
        Ok(Self {
            _process_files: process_files,
            _topology: topology,
            _kfd: node,
            _machine: machine,
            _gpus: found,
            _system: system,
        })
    }
}
