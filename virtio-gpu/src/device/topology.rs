// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine's topology in libhsakmt's structures, made of the same files that KFD shows in
//! sysfs.
//!
//! The structures are packed to 4 bytes. A node's grew at its end in 2026; the newer form is made,
//! and a guest takes as much as it has room for.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::CStr;
use std::fmt;

use vkfd_driver::topology::{Gpu, Machine, Name, Processors, Sink, FIRST_RENDER_MINOR};
use vkfd_host::Description;

use vkfd_remote::protocol::hsakmt::query::{BANK_BYTES, CACHE_BYTES, LINK_BYTES, NODE_BYTES};
use vkfd_remote::protocol::{index, put, put32, put64};

/// Files by their paths below `topology`.
#[derive(Default)]
struct Files {
    at: Vec<String>,
    texts: HashMap<String, String>,
}

impl Sink for Files {
    type Error = Infallible;

    fn enter(&mut self, name: Name) -> Result<(), Infallible> {
        self.at.push(match name {
            Name::Word(word) => word.to_string_lossy().into_owned(),
            Name::Number(number) => number.to_string(),
        });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Infallible> {
        self.at.pop();
        Ok(())
    }

    fn file(&mut self, name: &'static CStr, text: &dyn fmt::Display) -> Result<(), Infallible> {
        let path = format!("{}/{}", self.at[1..].join("/"), name.to_string_lossy());
        self.texts.insert(path, text.to_string());
        Ok(())
    }
}

/// The topology.
pub struct Topology {
    texts: HashMap<String, String>,
    nodes: u32,
}

/// Keys and numbers of one file.
struct Properties<'a>(HashMap<&'a str, &'a str>);

impl Properties<'_> {
    fn long(&self, key: &str) -> u64 {
        self.0.get(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// The low 32 bits, as a structure has room for.
    fn word(&self, key: &str) -> u32 {
        let [a, b, c, d, ..] = self.long(key).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

impl Topology {
    /// Of such a machine, with this computer's processors.
    pub fn new(machine: &Description) -> Self {
        let options = machine.options();
        let properties: Vec<_> = (0..machine.gpus).map(|gpu| options.gpu_properties(gpu)).collect();
        let gpus: Vec<Gpu<'_>> = (FIRST_RENDER_MINOR..)
            .zip(&properties)
            .map(|(render_minor, properties)| Gpu { properties, render_minor })
            .collect();
        let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
        let processors = Processors { cores, first_apic: 0, ram: options.driver.ram };
        let mut files = Files::default();
        let topology = Machine { processors, gpus: &gpus, coherent: machine.coherent, svm: true };
        let Ok(()) = topology.render(&mut files);
        Self { texts: files.texts, nodes: machine.gpus + 1 }
    }

    fn properties(&self, path: &str) -> Option<Properties<'_>> {
        let text = self.texts.get(path)?;
        Some(Properties(text.lines().filter_map(|line| line.split_once(' ')).collect()))
    }

    /// A node's KFD number, 0 for the processors'.
    pub fn gpu_id(&self, node: u32) -> Option<u32> {
        self.texts.get(&format!("nodes/{node}/gpu_id"))?.trim().parse().ok()
    }

    /// `HsaSystemProperties`.
    pub fn system(&self) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        put32(&mut bytes, 0, self.nodes);
        bytes
    }

    /// `HsaNodeProperties`.
    pub fn node(&self, node: u32) -> Option<Vec<u8>> {
        let p = self.properties(&format!("nodes/{node}/properties"))?;
        let mut bytes = vec![0; NODE_BYTES];
        for (at, key) in [
            (0, "cpu_cores_count"),
            (4, "simd_count"),
            (12, "mem_banks_count"),
            (16, "caches_count"),
            (20, "io_links_count"),
            (24, "cpu_core_id_base"),
            (28, "simd_id_base"),
            (32, "capability"),
            (36, "capability2"),
            (40, "max_waves_per_simd"),
            (44, "lds_size_in_kb"),
            (48, "gds_size_in_kb"),
            (52, "wave_front_size"),
            (56, "array_count"),
            (60, "simd_arrays_per_engine"),
            (64, "cu_per_simd_array"),
            (68, "simd_per_cu"),
            (72, "max_slots_scratch_cu"),
            (88, "location_id"),
            (100, "max_engine_clk_fcompute"),
            (104, "max_engine_clk_ccompute"),
            (108, "drm_render_minor"),
            (368, "cwsr_size"),
            (372, "ctl_stack_size"),
        ] {
            put32(&mut bytes, at, p.word(key));
        }
        // The firmware's version and the target's, in 10, 6, 8 and 8 bits.
        let version = p.word("gfx_target_version");
        let target = (version / 10_000) << 10 | (version / 100 % 100) << 16 | (version % 100) << 24;
        put32(&mut bytes, 76, target | p.word("fw_version") & 0x3ff);
        put32(&mut bytes, 84, p.word("vendor_id") & 0xffff | p.word("device_id") << 16);
        put64(&mut bytes, 92, p.long("local_mem_size"));
        // Two names: 64 characters of 16 bits, 64 of 8.
        let name = self.texts.get(&format!("nodes/{node}/name")).map_or("", |name| name.trim());
        for (place, byte) in name.bytes().take(63).enumerate() {
            put(&mut bytes, 112 + 2 * place, &[byte]);
            put(&mut bytes, 240 + place, &[byte]);
        }
        put32(&mut bytes, 304, p.word("sdma_fw_version") & 0x3ff);
        put64(&mut bytes, 308, p.long("debug_prop"));
        put64(&mut bytes, 316, p.long("hive_id"));
        put32(&mut bytes, 324, p.word("num_sdma_engines"));
        put32(&mut bytes, 328, p.word("num_sdma_xgmi_engines"));
        let [queues, ..] = p.word("num_sdma_queues_per_engine").to_le_bytes();
        let [cp, ..] = p.word("num_cp_queues").to_le_bytes();
        put(&mut bytes, 332, &[queues, cp, 0, 0]);
        put32(&mut bytes, 336, p.word("domain"));
        put64(&mut bytes, 340, p.long("unique_id"));
        put32(&mut bytes, 356, p.word("num_xcc"));
        put32(&mut bytes, 360, self.gpu_id(node).unwrap_or(0));
        Some(bytes)
    }

    /// `HsaMemoryProperties`, at most `count`.
    pub fn banks(&self, node: u32, count: u32) -> Vec<u8> {
        self.list(&format!("nodes/{node}/mem_banks"), count, BANK_BYTES, |p, bytes| {
            put32(bytes, 0, p.word("heap_type"));
            put64(bytes, 4, p.long("size_in_bytes"));
            put32(bytes, 12, p.word("flags"));
            put32(bytes, 16, p.word("width"));
            put32(bytes, 20, p.word("mem_clk_max"));
        })
    }

    /// `HsaCacheProperties`, at most `count`.
    pub fn caches(&self, node: u32, count: u32) -> Vec<u8> {
        self.list(&format!("nodes/{node}/caches"), count, CACHE_BYTES, |p, bytes| {
            for (place, key) in [
                "processor_id_low",
                "level",
                "size",
                "cache_line_size",
                "cache_lines_per_tag",
                "association",
                "latency",
                "type",
            ]
            .into_iter()
            .enumerate()
            {
                put32(bytes, 4 * place, p.word(key));
            }
            let map = p.0.get("sibling_map").copied().unwrap_or("");
            for (place, sibling) in map.split(',').take(256).enumerate() {
                put32(bytes, 32 + 4 * place, sibling.trim().parse().unwrap_or(0));
            }
        })
    }

    /// `HsaIoLinkProperties`, at most `count`.
    pub fn links(&self, node: u32, count: u32) -> Vec<u8> {
        self.list(&format!("nodes/{node}/io_links"), count, LINK_BYTES, |p, bytes| {
            for (place, key) in [
                "type",
                "version_major",
                "version_minor",
                "node_from",
                "node_to",
                "weight",
                "min_latency",
                "max_latency",
                "min_bandwidth",
                "max_bandwidth",
                "recommended_transfer_size",
                "recommended_sdma_engine_id_mask",
            ]
            .into_iter()
            .enumerate()
            {
                put32(bytes, 4 * place, p.word(key));
            }
        })
    }

    fn list(&self, path: &str, count: u32, each: usize, fill: impl Fn(&Properties<'_>, &mut [u8])) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in 0..index(count) {
            let Some(properties) = self.properties(&format!("{path}/{number}/properties")) else { break };
            let start = bytes.len();
            bytes.resize(start + each, 0);
            fill(&properties, &mut bytes[start..]);
        }
        bytes
    }
}
