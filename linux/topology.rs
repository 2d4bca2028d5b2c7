// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The topology in sysfs, `/sys/devices/virtual/kfd/kfd/topology`: a node for the processors, one for each GPU, with their memory,
//! caches and links, in the files and the form that KFD has.
//!
//! What a software GPU does not have (compute units, engine clocks) is described as a small GPU of its generation, because runtimes
//! divide by these numbers.

use crate::sysfs::{Directory, Text};
use core::fmt::{self, Write};
use kernel::bindings;
use kernel::device::Device;
use kernel::prelude::*;
use vkfd_driver::gpu::GpuProperties;

/// KFD's `HSA_HEAPTYPE_SYSTEM` and `..FB_PUBLIC`.
const HEAP_SYSTEM: u32 = 0;
const HEAP_VRAM_PUBLIC: u32 = 1;
/// `CRAT_IOLINK_TYPE_PCIEXPRESS` and `..XGMI`.
const LINK_PCIE: u32 = 2;
const LINK_XGMI: u32 = 11;
/// Enabled, to be snooped; as KFD has it for coherent links.
const LINK_FLAGS: u32 = 1;
/// `HSA_CACHE_TYPE_DATA` for processors of type HSA.
const CACHE_DATA: u32 = 1 | 1 << 3;

/// AMD's PCI vendor number; a device number that runtimes know for this generation is not claimed.
const VENDOR: u32 = 0x1002;

const CU_COUNT: u32 = 4;
const SIMD_PER_CU: u32 = 4;

/// The directories, in the order in which they must go.
pub(crate) struct Topology {
    _leaves: KVec<Directory>,
    _groups: KVec<Directory>,
    _nodes: KVec<Directory>,
    _all: Directory,
    _topology: Directory,
}

/// Bytes of RAM.
pub(crate) fn ram() -> u64 {
    let mut info = bindings::sysinfo::default();
    // SAFETY: valid for writes.
    unsafe { bindings::si_meminfo(&mut info) };
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// `key value` lines.
struct Properties(Text);

impl Properties {
    fn new() -> Self {
        Self(Text::default())
    }

    fn line(mut self, key: &str, value: impl fmt::Display) -> Result<Self> {
        writeln!(self.0, "{key} {value}").map_err(|_| ENOMEM)?;
        Ok(self)
    }

    fn lines(self, all: &[(&str, u64)]) -> Result<Self> {
        all.iter().try_fold(self, |text, (key, value)| text.line(key, value))
    }
}

struct Builder {
    leaves: KVec<Directory>,
    groups: KVec<Directory>,
    nodes: KVec<Directory>,
}

impl Builder {
    /// Node `number`, with its memory banks, caches and links.
    fn node(&mut self, all: &Directory, node: &Node<'_>) -> Result {
        let mut directory = all.numbered(node.number)?;
        directory.file(c"gpu_id", Text::new(format_args!("{}\n", node.gpu.map_or(0, |gpu| gpu.gpu_id)))?)?;
        directory.file(c"name", node.name()?)?;
        directory.file(c"properties", node.properties()?.0)?;
        self.group(&directory, c"mem_banks", [node.memory()?].into_iter())?;
        self.group(&directory, c"caches", node.cache()?.into_iter())?;
        let mut links = KVec::new();
        for to in (0..node.nodes).filter(|to| *to != node.number && (node.gpu.is_some() || *to != 0)) {
            links.push(node.link(to)?, GFP_KERNEL)?;
        }
        self.group(&directory, c"io_links", links.into_iter())?;
        self.group(&directory, c"p2p_links", core::iter::empty())?;
        self.group(&directory, c"perf", core::iter::empty())?;
        Ok(self.nodes.push(directory, GFP_KERNEL)?)
    }

    fn group(&mut self, node: &Directory, name: &CStr, members: impl Iterator<Item = Properties>) -> Result {
        let group = node.directory(name)?;
        for (number, Properties(text)) in members.enumerate() {
            let mut member = group.numbered(number)?;
            member.file(c"properties", text)?;
            self.leaves.push(member, GFP_KERNEL)?;
        }
        Ok(self.groups.push(group, GFP_KERNEL)?)
    }
}

struct Node<'a> {
    number: usize,
    nodes: usize,
    cpus: u64,
    /// Its GPU and the minor number of its render node, unless it is the processors'.
    gpu: Option<&'a GpuProperties>,
    render_minor: u32,
}

impl Node<'_> {
    fn name(&self) -> Result<Text> {
        let Some(gpu) = self.gpu else { return Text::new(format_args!("\n")) };
        let version = gpu.gfx_target_version;
        let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
        Text::new(format_args!("gfx{major}{minor}{stepping:x}\n"))
    }

    fn properties(&self) -> Result<Properties> {
        let gpu = self.gpu;
        let of_gpu = |value: u32| if gpu.is_some() { u64::from(value) } else { 0 };
        let links = if gpu.is_some() { self.nodes - 1 } else { self.nodes.saturating_sub(1) };
        let caches = gpu.is_some();
        let properties = Properties::new().lines(&[
            ("cpu_cores_count", if gpu.is_some() { 0 } else { self.cpus }),
            ("simd_count", of_gpu(CU_COUNT * SIMD_PER_CU)),
            ("mem_banks_count", 1),
            ("caches_count", caches.into()),
            ("io_links_count", links as u64),
            ("p2p_links_count", 0),
            ("cpu_core_id_base", 0),
            ("simd_id_base", of_gpu(0x8000_0000 + (self.number as u32) * 0x1000)),
            ("max_waves_per_simd", of_gpu(10)),
            ("lds_size_in_kb", of_gpu(64)),
            ("gds_size_in_kb", 0),
            ("num_gws", 0),
            ("wave_front_size", of_gpu(if gpu.is_some_and(|g| g.gfx_target_version >= 100_000) { 32 } else { 64 })),
            ("array_count", of_gpu(1)),
            ("simd_arrays_per_engine", of_gpu(1)),
            ("cu_per_simd_array", of_gpu(CU_COUNT)),
            ("simd_per_cu", of_gpu(SIMD_PER_CU)),
            ("max_slots_scratch_cu", of_gpu(32)),
            ("gfx_target_version", gpu.map_or(0, |gpu| gpu.gfx_target_version.into())),
            ("vendor_id", of_gpu(VENDOR)),
            ("device_id", gpu.map_or(0, |gpu| u64::from(gpu.gpu_id & 0xffff))),
            ("location_id", of_gpu((self.number as u32) << 8)),
            ("domain", 0),
            ("drm_render_minor", of_gpu(self.render_minor)),
            ("hive_id", of_gpu(u32::from(self.nodes > 2))),
            ("num_sdma_engines", of_gpu(2)),
            ("num_sdma_xgmi_engines", 0),
            ("num_sdma_queues_per_engine", of_gpu(8)),
            ("num_cp_queues", of_gpu(24)),
            ("cwsr_size", 0),
            ("ctl_stack_size", 0),
        ])?;
        let Some(gpu) = gpu else { return properties.line("max_engine_clk_ccompute", 0) };
        let mhz = gpu.clock_hz / 1_000_000;
        properties.lines(&[
            ("max_engine_clk_fcompute", mhz),
            ("local_mem_size", 0),
            ("fw_version", 0),
            // The doorbell type (bits 13:12) of gfx9: 8 bytes.
            ("capability", 2 << 12),
            ("capability2", 0),
            ("debug_prop", 0),
            ("sdma_fw_version", 0),
            ("unique_id", gpu.gpu_id.into()),
            ("num_xcc", 1),
            ("max_engine_clk_ccompute", 0),
        ])
    }

    fn memory(&self) -> Result<Properties> {
        let (heap, bytes) = match self.gpu {
            None => (HEAP_SYSTEM, ram()),
            Some(gpu) => (HEAP_VRAM_PUBLIC, gpu.vram_bytes),
        };
        let bank =
            [("heap_type", heap.into()), ("size_in_bytes", bytes), ("flags", 0), ("width", 64), ("mem_clk_max", 0)];
        Properties::new().lines(&bank)
    }

    /// Runtimes want a GPU to have one.
    fn cache(&self) -> Result<Option<Properties>> {
        let Some(_) = self.gpu else { return Ok(None) };
        let cache = Properties::new().lines(&[
            ("processor_id_low", 0x8000_0000 + (self.number as u64) * 0x1000),
            ("level", 1),
            ("size", 16),
            ("cache_line_size", 64),
            ("cache_lines_per_tag", 1),
            ("association", 0),
            ("latency", 0),
            ("type", CACHE_DATA.into()),
        ])?;
        Ok(Some(cache.line("sibling_map", "1,1,1,1,0,0,0,0,0,0,0,0,0,0,0,0")?))
    }

    fn link(&self, to: usize) -> Result<Properties> {
        let xgmi = self.gpu.is_some() && to != 0;
        Properties::new().lines(&[
            ("type", if xgmi { LINK_XGMI } else { LINK_PCIE }.into()),
            ("version_major", 0),
            ("version_minor", 0),
            ("node_from", self.number as u64),
            ("node_to", to as u64),
            ("weight", if xgmi { 15 } else { 20 }),
            ("min_latency", 0),
            ("max_latency", 0),
            ("min_bandwidth", 0),
            ("max_bandwidth", 0),
            ("recommended_transfer_size", 0),
            ("recommended_sdma_engine_id_mask", 0),
            ("flags", LINK_FLAGS.into()),
        ])
    }
}

impl Topology {
    /// Makes the directories, in that of `device`. `gpus` in the driver's order, each with its render node's minor number.
    pub(crate) fn new<'a>(
        device: &Device,
        gpus: impl Iterator<Item = (&'a GpuProperties, u32)> + Clone,
    ) -> Result<Self> {
        let mut topology = Directory::in_device(device, c"topology")?;
        topology.file(c"generation_id", Text::new(format_args!("1\n"))?)?;
        let system = [("platform_oem", 0), ("platform_id", 0), ("platform_rev", 0)];
        topology.file(c"system_properties", Properties::new().lines(&system)?.0)?;
        let all = topology.directory(c"nodes")?;
        let nodes = 1 + gpus.clone().count();
        // SAFETY: no preconditions.
        let cpus = u64::from(unsafe { bindings::__num_online_cpus.counter }.unsigned_abs());
        let mut builder = Builder { leaves: KVec::new(), groups: KVec::new(), nodes: KVec::new() };
        builder.node(&all, &Node { number: 0, nodes, cpus, gpu: None, render_minor: 0 })?;
        for (number, (gpu, render_minor)) in (1..).zip(gpus) {
            builder.node(&all, &Node { number, nodes, cpus, gpu: Some(gpu), render_minor })?;
        }
        let Builder { leaves, groups, nodes } = builder;
        Ok(Self { _leaves: leaves, _groups: groups, _nodes: nodes, _all: all, _topology: topology })
    }
}
