// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine of a `vkfd serve`: the way to it, and what it is.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{anyhow, Context, Result};
use vkfd_host::Description;
use vkfd_remote::guest;

use crate::serve::place;

/// The one that is called `name`.
pub fn find(name: &str) -> Result<(PathBuf, Description)> {
    let way = place::socket(name)?;
    let device = guest::open(&way).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            anyhow!("no machine is shared as {name}: start one with `vkfd serve {name}`")
        }
        _ => anyhow!(error).context(format!("the machine at {} takes no more programs", way.display())),
    })?;
    let machine = device.machine().parse().with_context(|| format!("the machine at {}", way.display()))?;
    Ok((way, machine))
}
