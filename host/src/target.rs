// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Target names as compilers write them (`gfx90a`), and as the topology does (90010).

use crate::error::HostError;
use std::fmt;
use std::str::FromStr;

/// A GPU target. In a name the last digit is the stepping (hexadecimal), the one before it the minor version, and the rest the major
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    major: u32,
    minor: u32,
    stepping: u32,
}

impl Target {
    /// Vega 10.
    pub const GFX900: Self = Self { major: 9, minor: 0, stepping: 0 };
    /// MI200.
    pub const GFX90A: Self = Self { major: 9, minor: 0, stepping: 10 };
    /// MI300.
    pub const GFX942: Self = Self { major: 9, minor: 4, stepping: 2 };
    /// Navi 21.
    pub const GFX1030: Self = Self { major: 10, minor: 3, stepping: 0 };

    /// Navi 31.
    pub const GFX1100: Self = Self { major: 11, minor: 0, stepping: 0 };

    /// `gfx_target_version` of the topology: major * 10000 + minor * 100 + stepping.
    pub const fn version(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.stepping
    }

    /// The packet formats it speaks.
    pub const fn family(self) -> vkfd_gpu::Family {
        match self.major {
            0..=9 => vkfd_gpu::Family::Gfx9,
            10 => vkfd_gpu::Family::Gfx10,
            _ => vkfd_gpu::Family::Gfx11,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gfx{}{:x}{:x}", self.major, self.minor, self.stepping)
    }
}

impl FromStr for Target {
    type Err = HostError;

    fn from_str(name: &str) -> Result<Self, HostError> {
        let digits: Option<Vec<u32>> =
            name.strip_prefix("gfx").and_then(|rest| rest.chars().map(|c| c.to_digit(16)).collect());
        let target = match digits.as_deref() {
            Some([major @ 1..=9, minor, stepping]) => Some(Self { major: *major, minor: *minor, stepping: *stepping }),
            Some([tens @ 1..=9, ones @ 0..=9, minor, stepping]) => {
                Some(Self { major: tens * 10 + ones, minor: *minor, stepping: *stepping })
            }
            _ => None,
        };
        // Older than gfx9 has other page tables and packets.
        let known = target.filter(|t| t.major >= 9);
        known.ok_or_else(|| HostError::Option(format!("{name:?} is no target this GPU can be: gfx9 or later is")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_agree() {
        for (name, version) in
            [("gfx900", 90_000), ("gfx90a", 90_010), ("gfx942", 90_402), ("gfx1030", 100_300), ("gfx1201", 120_001)]
        {
            let target: Target = name.parse().unwrap();
            assert_eq!((target.version(), target.to_string().as_str()), (version, name));
        }
        for bad in ["", "gfx", "gfx803", "gfx9", "gfx90x", "900", "gfx0900", "gfx10300"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
