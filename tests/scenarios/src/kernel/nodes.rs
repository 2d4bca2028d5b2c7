// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's nodes in sysfs, as libdrm and AMD's monitoring library look for them.

use std::fs::{self, File};
use std::path::Path;

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
