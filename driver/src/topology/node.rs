// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The text of a node's files. Each type's `Display` is one file.
#![expect(clippy::arithmetic_side_effects, reason = "of the machine's description, no part of which is a client's")]

use super::{location, Gpu, Machine, Model, Sharing, VENDOR};
use core::fmt::{self, Display, Formatter};

/// `HSA_MEM_HEAP_TYPE_SYSTEM` and `..FB_PUBLIC`.
const HEAP_SYSTEM: u64 = 0;
const HEAP_VRAM_PUBLIC: u64 = 1;
/// `CRAT_IOLINK_TYPE_PCIEXPRESS` and `..XGMI`.
const LINK_PCIE: u64 = 2;
const LINK_XGMI: u64 = 11;
/// `CRAT_IOLINK_FLAGS_ENABLED`.
const LINK_ENABLED: u64 = 1;
/// `HSA_CACHE_TYPE_DATA`, `..INSTRUCTION`, `..HSACU`.
const CACHE_DATA: u64 = 1;
const CACHE_INSTRUCTIONS: u64 = 2;
const CACHE_OF_GPU: u64 = 8;
/// `HSA_CAP_DOORBELL_TYPE_2_0`: doorbells of 8 bytes.
const DOORBELL_8_BYTES: u64 = 2 << 12;
/// `HSA_CAP_AQL_QUEUE_DOUBLE_MAP` is not set: rings are mapped once.
/// `HSA_CAP_FLAGS_COHERENTHOSTACCESS`:
const COHERENT_HOST_ACCESS: u64 = 1 << 28;
/// `HSA_CAP_SVMAPI_SUPPORTED`: without it runtimes do not make SVM calls. Whether memory can also
/// move is another matter, which they do not ask.
const SVM_CALLS: u64 = 1 << 27;
/// `HSA_CAP_SRAM_EDCSUPPORTED`.
const REGISTER_ECC: u64 = 1 << 26;
/// Global wave sync resources of a GPU.
const GWS: u64 = 64;
/// KFD numbers the SIMDs of GPUs from here on.
const FIRST_SIMD: u64 = 0x8000_0000;
const SIMDS_APART: u64 = 0x1000;
/// Bits of `sibling_map` for the units of an array.
const SIBLINGS: u32 = 32;

/// A number by itself.
pub(super) struct Line(pub(super) u64);

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0)
    }
}

fn lines(f: &mut Formatter<'_>, all: &[(&str, u64)]) -> fmt::Result {
    all.iter().try_for_each(|(key, value)| writeln!(f, "{key} {value}"))
}

/// `system_properties`.
pub(super) struct System;

impl Display for System {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        lines(f, &[("platform_oem", 0), ("platform_id", 0), ("platform_rev", 0)])
    }
}

/// A node's `properties`.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) number: u32,
    /// All nodes.
    pub(super) nodes: u32,
    /// Its GPU, unless it is the processors'.
    pub(super) gpu: Option<&'a Gpu<'a>>,
}

/// A node's `name`.
pub(super) struct NameOf(Option<u32>);

impl Display for NameOf {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(version) = self.0 {
            write!(f, "gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)?;
        }
        writeln!(f)
    }
}

impl Node<'_> {
    pub(super) fn name(&self) -> NameOf {
        NameOf(self.gpu.map(|gpu| gpu.properties.gfx_target_version))
    }

    fn model(&self) -> Option<&Model> {
        self.gpu.map(|gpu| &gpu.properties.model)
    }

    pub(super) fn caches(&self) -> u32 {
        self.model().map_or(0, Model::cache_count)
    }

    /// One to each other node.
    pub(super) fn links(&self) -> u32 {
        self.nodes - 1
    }

    /// The node at the end of link `index`.
    pub(super) fn peer(&self, index: u32) -> u32 {
        if index < self.number {
            index
        } else {
            index + 1
        }
    }

    fn first_simd(&self) -> u64 {
        FIRST_SIMD + u64::from(self.number) * SIMDS_APART
    }
}

impl Display for Node<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Some(gpu), Some(model)) = (self.gpu, self.model()) else {
            let processors = &self.machine.processors;
            return lines(
                f,
                &[
                    ("cpu_cores_count", processors.cores.into()),
                    ("simd_count", 0),
                    ("mem_banks_count", 1),
                    ("caches_count", 0),
                    ("io_links_count", self.links().into()),
                    ("p2p_links_count", 0),
                    ("cpu_core_id_base", processors.first_apic.into()),
                    ("simd_id_base", 0),
                    ("max_waves_per_simd", 0),
                    ("lds_size_in_kb", 0),
                    ("gds_size_in_kb", 0),
                    ("num_gws", 0),
                    ("wave_front_size", 0),
                    ("array_count", 0),
                    ("simd_arrays_per_engine", 0),
                    ("cu_per_simd_array", 0),
                    ("simd_per_cu", 0),
                    ("max_slots_scratch_cu", 0),
                    ("gfx_target_version", 0),
                    ("vendor_id", 0),
                    ("device_id", 0),
                    ("location_id", 0),
                    ("domain", 0),
                    ("drm_render_minor", 0),
                    ("hive_id", 0),
                    ("num_sdma_engines", 0),
                    ("num_sdma_xgmi_engines", 0),
                    ("num_sdma_queues_per_engine", 0),
                    ("num_cp_queues", 0),
                    ("cwsr_size", 0),
                    ("ctl_stack_size", 0),
                    ("max_engine_clk_ccompute", 0),
                ],
            );
        };
        let ecc = if model.register_ecc { REGISTER_ECC } else { 0 };
        let svm = if self.machine.svm { SVM_CALLS } else { 0 };
        let coherent = if self.machine.coherent { COHERENT_HOST_ACCESS } else { 0 };
        lines(
            f,
            &[
                ("cpu_cores_count", 0),
                ("simd_count", model.simds().into()),
                ("mem_banks_count", 1),
                ("caches_count", model.cache_count().into()),
                ("io_links_count", self.links().into()),
                ("p2p_links_count", 0),
                ("cpu_core_id_base", 0),
                ("simd_id_base", self.first_simd()),
                ("max_waves_per_simd", model.waves_per_simd.into()),
                ("lds_size_in_kb", 64),
                ("gds_size_in_kb", model.gds_kib.into()),
                ("num_gws", GWS),
                ("wave_front_size", model.wave_size.into()),
                ("array_count", model.all_arrays().into()),
                ("simd_arrays_per_engine", model.arrays.into()),
                ("cu_per_simd_array", model.array_units().into()),
                ("simd_per_cu", model.simd_per_unit.into()),
                ("max_slots_scratch_cu", model.scratch_slots.into()),
                ("gfx_target_version", gpu.properties.gfx_target_version.into()),
                ("vendor_id", VENDOR.into()),
                ("device_id", model.device_id.into()),
                ("location_id", location(self.number - 1).into()),
                ("domain", 0),
                ("drm_render_minor", gpu.render_minor.into()),
                // GPUs reach each other's memory directly, as in a hive.
                ("hive_id", u64::from(self.nodes > 2 || self.machine.coherent)),
                ("num_sdma_engines", model.sdma_engines.into()),
                ("num_sdma_xgmi_engines", model.sdma_xgmi_engines.into()),
                ("num_sdma_queues_per_engine", model.sdma_queues.into()),
                ("num_cp_queues", 24),
                // There are no waves, so nothing of them is saved.
                ("cwsr_size", 0),
                ("ctl_stack_size", 0),
                ("max_engine_clk_fcompute", model.clock_mhz.into()),
                ("local_mem_size", 0),
                ("fw_version", model.firmware.into()),
                ("capability", DOORBELL_8_BYTES | ecc | svm | coherent),
                ("capability2", 0),
                ("debug_prop", 0),
                ("sdma_fw_version", model.sdma_firmware.into()),
                ("unique_id", gpu.properties.gpu_id.into()),
                ("num_xcc", 1),
                ("max_engine_clk_ccompute", 0),
            ],
        )
    }
}

/// A memory bank's `properties`.
pub(super) struct Bank<'a>(pub(super) &'a Node<'a>);

impl Display for Bank<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (heap, bytes, width, clock) = match (self.0.gpu, self.0.model()) {
            (Some(gpu), Some(model)) => {
                (HEAP_VRAM_PUBLIC, gpu.properties.vram_bytes, model.memory_bits, model.memory_mhz)
            }
            _ => (HEAP_SYSTEM, self.0.machine.processors.ram, 64, 0),
        };
        lines(
            f,
            &[
                ("heap_type", heap),
                ("size_in_bytes", bytes),
                ("flags", 0),
                ("width", width.into()),
                ("mem_clk_max", clock.into()),
            ],
        )
    }
}

/// So many units of an array, as `sibling_map` shows them.
struct Siblings(u32);

impl Display for Siblings {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (0..SIBLINGS).try_for_each(|unit| write!(f, "{}{}", if unit == 0 { "" } else { "," }, u32::from(unit < self.0)))
    }
}

/// A cache's `properties`.
pub(super) struct Cache<'a> {
    pub(super) node: &'a Node<'a>,
    /// Counted over all copies of all caches.
    pub(super) index: u32,
}

impl Display for Cache<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(model) = self.node.model() else { return Ok(()) };
        let mut number = self.index;
        for cache in model.caches {
            let copies = model.copies(cache);
            if number >= copies {
                number -= copies;
                continue;
            }
            let (first, units) = match cache.sharing {
                Sharing::Units(together) => model.sharers(number, together),
                Sharing::Gpu => (0, 0),
            };
            lines(
                f,
                &[
                    ("processor_id_low", self.node.first_simd() + u64::from(first)),
                    ("level", cache.level.into()),
                    ("size", cache.kib.into()),
                    ("cache_line_size", cache.line.into()),
                    ("cache_lines_per_tag", 0),
                    ("association", 0),
                    ("latency", 0),
                    ("type", CACHE_OF_GPU | if cache.data { CACHE_DATA } else { CACHE_INSTRUCTIONS }),
                ],
            )?;
            write!(f, "sibling_map ")?;
            return match cache.sharing {
                Sharing::Units(_) => writeln!(f, "{}", Siblings(units)),
                Sharing::Gpu => {
                    let mut apart = "";
                    for (engine, array) in model.shader_arrays() {
                        write!(f, "{apart}{}", Siblings(model.units_of(engine, array)))?;
                        apart = ",";
                    }
                    writeln!(f)
                }
            };
        }
        Ok(())
    }
}

/// A link's `properties`.
pub(super) struct Link<'a> {
    pub(super) node: &'a Node<'a>,
    pub(super) to: u32,
}

impl Display for Link<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let between_gpus = self.node.gpu.is_some() && self.to != 0;
        let xgmi = between_gpus || self.node.machine.coherent;
        let (kind, weight, bandwidth) = if xgmi { (LINK_XGMI, 15, 50_000) } else { (LINK_PCIE, 20, 15_754) };
        lines(
            f,
            &[
                ("type", kind),
                ("version_major", 0),
                ("version_minor", 0),
                ("node_from", self.node.number.into()),
                ("node_to", self.to.into()),
                ("weight", weight),
                ("min_latency", 0),
                ("max_latency", 0),
                ("min_bandwidth", bandwidth),
                ("max_bandwidth", bandwidth),
                ("recommended_transfer_size", 0),
                ("recommended_sdma_engine_id_mask", 0),
                ("flags", LINK_ENABLED),
            ],
        )
    }
}
