// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's nodes in sysfs, as libdrm and AMD's monitoring library look for them.

use std::fs::{self, File};
use std::path::Path;

use vkfd_client::AllocOptions;

use crate::verdict::Stop;

/// DRM's numbers: of primary nodes from 0 on, of render nodes from here on.
const RENDER: usize = 128;

/// Both nodes of a GPU are in the directory of one device, AMD's, which is no other GPU's.
pub(super) fn of_one_device() -> Result<(), Stop> {
    let world = super::world()?;
    let mut devices = Vec::new();
    for (index, _) in world.client().gpus().iter().enumerate() {
        let nodes = [format!("card{index}"), format!("renderD{}", RENDER + index)];
        for (node, minor) in nodes.iter().zip([index, RENDER + index]) {
            let place = Path::new("/sys/class/drm").join(node);
            let device = place.join("device").canonicalize()?;
            ensure_eq!(fs::read_to_string(device.join("vendor"))?, "0x1002\n", "{node}");
            // By the number, as libdrm finds the other nodes of an open one.
            let beside = format!("/sys/dev/char/226:{minor}/device/drm");
            for node in &nodes {
                ensure!(Path::new(&beside).join(node).exists(), "{beside} has no {node}");
            }
            File::options().read(true).write(true).open(Path::new("/dev/dri").join(node))?;
            devices.push(device);
        }
    }
    ensure_eq!(devices.len(), 2 * world.client().gpus().len());
    devices.dedup();
    ensure_eq!(devices.len(), world.client().gpus().len(), "{devices:?}");
    Ok(())
}

/// A monitor's view of this process: the lines of its open render node grow with its memory.
pub(super) fn fdinfo_grows() -> Result<(), Stop> {
    const BYTES: u64 = 8 << 20;
    let world = super::world()?;
    let process = world.transport()?;
    let node = process.render_fd(world.gpu(0)).map_err(|e| Stop::Skip(format!("no render node: {e}")))?;
    let lines = || fs::read_to_string(format!("/proc/self/fdinfo/{node}"));
    ensure!(lines()?.contains("\ndrm-driver:\tamdgpu\n"), "{}", lines()?);
    // The node of the world's own client, which allocates.
    let vram = || -> Result<u64, Stop> {
        let mut most = 0;
        for entry in fs::read_dir("/proc/self/fdinfo")? {
            // The directory's own descriptor is gone with the end of the loop.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            let line = text.lines().find_map(|line| line.strip_prefix("drm-memory-vram:"));
            let Some(kib) = line.and_then(|line| line.trim().strip_suffix(" KiB")) else { continue };
            most = most.max(kib.parse().unwrap_or(0));
        }
        Ok(most)
    };
    let before = vram()?;
    let buffer = world.client().alloc(&AllocOptions::vram(world.gpu(0), BYTES))?;
    let within = vram()?;
    ensure!(within >= before + BYTES / 1024, "{before} KiB, with {BYTES} bytes more {within} KiB");
    drop(buffer);
    let behind = vram()?;
    ensure!(behind < within, "{within} KiB, and without them {behind} KiB");
    Ok(())
}
