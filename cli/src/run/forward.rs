// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's machine, for a program in a guest: the way to it, and what it is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use vkfd_host::Description;
use vkfd_remote::guest::{self, drm};

/// At `place`, or behind the first render node that has one behind it.
pub fn find(place: Option<&Path>) -> Result<(PathBuf, Description)> {
    let (way, machine) = match place {
        Some(place) => {
            let way = std::path::absolute(place)?;
            let device = guest::open(&way).with_context(|| format!("there is no machine at {}", way.display()))?;
            (way, device.machine().to_owned())
        }
        None => drm::find().context(
            "no render node has a machine behind it: the virtual machine's virtio-gpu has to be `vkfd virtio-gpu` on the host",
        )?,
    };
    let machine = machine.parse().with_context(|| format!("the machine at {}", way.display()))?;
    Ok((way, machine))
}
