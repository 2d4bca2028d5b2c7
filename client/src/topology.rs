// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system's nodes: CPUs and GPUs, as KFD's topology tells them.
//!
//! Mechanism: KFD's sysfs has a directory a node with the files `gpu_id` (0 for a CPU), `name`,
//! `properties` ("key value" a line) and `mem_banks/*/properties`. Source:
//! `drivers/gpu/drm/amd/amdkfd/kfd_topology.c`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::address::GpuId;
use crate::error::ClientError;

/// Where KFD puts its topology.
pub const SYSFS: &str = "/sys/devices/virtual/kfd/kfd/topology";

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its identifier in the ABI.
    pub id: GpuId,
    /// The number of its node.
    pub node: u32,
    /// Its name, such as `gfx900` or a product's.
    pub name: String,
    /// VRAM in bytes.
    pub vram_bytes: u64,
    /// Instruction set: major * 10000 + minor * 100 + stepping.
    pub gfx_target_version: u32,
    /// Minor number of its render node (128 for `renderD128`).
    pub render_minor: u32,
    /// Bytes of the context save area that its compute queues need; 0 when the driver does not say.
    pub cwsr_bytes: u32,
    /// Bytes of the control stack in that area; 0 when the driver does not say.
    pub ctl_stack_bytes: u32,
    /// Bytes of debugger memory that follow that area, all compute dies together.
    pub debug_bytes: u32,
    /// Number of compute dies, each of which needs a save area.
    pub xcc: u32,
    /// Ranges that a batch may have by ALLOC's flag, where a driver says so here: AMD's with the
    /// patch `vm/amdgpu-batch-userptr.patch`.
    pub userptr_batch_max_ranges: u32,
}

impl GpuInfo {
    /// The major version of its instruction set: 9 for gfx900 and gfx90a, 10 for gfx1030.
    #[must_use]
    pub fn gfx_major(&self) -> u32 {
        self.gfx_target_version / 10_000
    }
}

/// A node of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// CPU cores; 0 for a GPU.
    pub cpu_cores: u32,
    /// System memory in bytes; 0 for a GPU.
    pub memory_bytes: u64,
    /// The GPU, unless the node is a CPU.
    pub gpu: Option<GpuInfo>,
}

/// KFD's `HSA_HEAPTYPE_SYSTEM`, `..FB_PUBLIC` and `..FB_PRIVATE`.
const HEAP_SYSTEM: u64 = 0;
const HEAP_VRAM_PUBLIC: u64 = 1;
const HEAP_VRAM_PRIVATE: u64 = 2;

type Properties = HashMap<String, u64>;

/// Reads the topology below `root` ([`SYSFS`] on a real system).
///
/// # Errors
///
/// [`ClientError::Topology`] when a file is missing or unreadable. Unknown properties are ignored
/// and missing ones are 0.
pub fn read(root: &Path) -> Result<Vec<Node>, ClientError> {
    let mut nodes = Vec::new();
    for (number, dir) in numbered(&root.join("nodes"))? {
        nodes.push(read_node(number, &dir)?);
    }
    Ok(nodes)
}

fn read_node(number: u32, dir: &Path) -> Result<Node, ClientError> {
    let gpu_id = read_file(&dir.join("gpu_id"))?;
    let gpu_id = gpu_id.trim().parse().map_err(|_| broken(&dir.join("gpu_id"), "not a number"))?;
    let properties = read_properties(&dir.join("properties"))?;
    let mut system = 0_u64;
    let mut vram = 0_u64;
    let banks = dir.join("mem_banks");
    if banks.is_dir() {
        for (_, bank) in numbered(&banks)? {
            let bank = read_properties(&bank.join("properties"))?;
            let bytes = get(&bank, "size_in_bytes");
            match get(&bank, "heap_type") {
                HEAP_SYSTEM => system = system.saturating_add(bytes),
                HEAP_VRAM_PUBLIC | HEAP_VRAM_PRIVATE => vram = vram.saturating_add(bytes),
                _ => {}
            }
        }
    }
    let gpu = (gpu_id != 0).then(|| GpuInfo {
        id: GpuId(gpu_id),
        node: number,
        name: fs::read_to_string(dir.join("name")).map(|name| name.trim().to_owned()).unwrap_or_default(),
        vram_bytes: vram,
        gfx_target_version: small(&properties, "gfx_target_version"),
        render_minor: small(&properties, "drm_render_minor"),
        cwsr_bytes: small(&properties, "cwsr_size"),
        ctl_stack_bytes: small(&properties, "ctl_stack_size"),
        debug_bytes: debug_bytes(&properties),
        xcc: small(&properties, "num_xcc").max(1),
        userptr_batch_max_ranges: small(&properties, "userptr_batch_max_ranges"),
    });
    Ok(Node { number, cpu_cores: small(&properties, "cpu_cores_count"), memory_bytes: system, gpu })
}

/// Bytes behind a queue's save area for a debugger: 32 for each wave that a compute die can have.
/// The driver wants them, and shows only the numbers that they follow from.
fn debug_bytes(properties: &Properties) -> u32 {
    let number = |name| small(properties, name);
    let dies = number("num_xcc").max(1);
    let units = number("simd_count") / number("simd_per_cu").max(1) / dies;
    let waves = if number("gfx_target_version") < 100_100 {
        let engines = number("array_count") / number("simd_arrays_per_engine").max(1);
        units.saturating_mul(40).min(engines.saturating_mul(512))
    } else {
        units.saturating_mul(32)
    };
    waves.saturating_mul(32).next_multiple_of(64).saturating_mul(dies)
}

/// The subdirectories whose names are numbers, in order.
fn numbered(dir: &Path) -> Result<Vec<(u32, std::path::PathBuf)>, ClientError> {
    let entries = fs::read_dir(dir).map_err(|e| broken(dir, &e.to_string()))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| broken(dir, &e.to_string()))?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

fn read_file(path: &Path) -> Result<String, ClientError> {
    fs::read_to_string(path).map_err(|e| broken(path, &e.to_string()))
}

fn read_properties(path: &Path) -> Result<Properties, ClientError> {
    let text = read_file(path)?;
    // Values that are no unsigned number (some keys have none) are of no interest here.
    let pair = |line: &str| {
        let (key, value) = line.trim().split_once(char::is_whitespace)?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(pair).collect())
}

fn get(properties: &Properties, key: &str) -> u64 {
    properties.get(key).copied().unwrap_or(0)
}

fn small(properties: &Properties, key: &str) -> u32 {
    u32::try_from(get(properties, key)).unwrap_or(0)
}

fn broken(path: &Path, why: &str) -> ClientError {
    ClientError::Topology(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("vkfd-topology-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn reads_nodes_in_numeric_order() {
        let tree = Tree::new("order");
        tree.file("nodes/10/gpu_id", "4660\n");
        tree.file("nodes/10/name", "vega10\n");
        tree.file(
            "nodes/10/properties",
            "cpu_cores_count 0\nsimd_count 256\ngfx_target_version 90000\ndrm_render_minor 129\ncwsr_size 1000\nctl_stack_size 20\nhive_id -1\nuserptr_batch_max_ranges 64\n",
        );
        tree.file("nodes/10/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 1048576\n");
        tree.file("nodes/2/gpu_id", "0\n");
        tree.file("nodes/2/properties", "cpu_cores_count 8\n");
        tree.file("nodes/2/mem_banks/0/properties", "heap_type 0\nsize_in_bytes 4096\n");
        let nodes = read(&tree.0).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[0].number, nodes[0].cpu_cores, nodes[0].memory_bytes), (2, 8, 4096));
        assert!(nodes[0].gpu.is_none());
        let gpu = nodes[1].gpu.as_ref().unwrap();
        assert_eq!((gpu.id, gpu.node, gpu.name.as_str()), (GpuId(4660), 10, "vega10"));
        assert_eq!((gpu.vram_bytes, gpu.gfx_major(), gpu.render_minor, gpu.xcc), (1 << 20, 9, 129, 1));
        assert_eq!((gpu.cwsr_bytes, gpu.ctl_stack_bytes, gpu.userptr_batch_max_ranges), (1000, 20, 64));
    }

    #[test]
    fn a_missing_file_is_named() {
        let tree = Tree::new("missing");
        tree.file("nodes/0/properties", "cpu_cores_count 1\n");
        let error = read(&tree.0).unwrap_err().to_string();
        assert!(error.contains("nodes/0/gpu_id"), "{error}");
    }
}
