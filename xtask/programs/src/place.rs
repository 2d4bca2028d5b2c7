// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The drivers that programs can run on.

use serde::{Deserialize, Serialize};

/// Where programs run: under `vkfd run`, in a guest on the kernel module, or in a guest on AMD's
/// own driver.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    #[default]
    Process,
    Guest,
    Amdgpu,
}

impl Place {
    /// As it is called where it is not the usual.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Place::Process => None,
            Place::Guest => Some("guest"),
            Place::Amdgpu => Some("amdgpu"),
        }
    }
}
