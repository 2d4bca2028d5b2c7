// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much memory the benchmark may use.

use vkfd_host::size;

/// At most this without being told: more would only take longer.
const ENOUGH: u64 = 6 << 30;

/// Less than this has no room for one sample of anything.
pub const LEAST: u64 = 16 << 20;

/// A size such as `512M` or `4G`, in bytes; at least [`LEAST`].
///
/// # Errors
///
/// What is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < LEAST {
        return Err(format!("{text} is too little to measure anything in: at least {}", size::show(LEAST)));
    }
    Ok(bytes)
}

/// A third of the memory available to the system and to this process's control groups, and at most
/// [`ENOUGH`].
pub fn compute() -> u64 {
    (vkfd_host::memory_left().unwrap_or(3 << 30) / 3).clamp(LEAST, ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_is_refused_before_the_run() {
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("16M"), Ok(LEAST));
        for bad in ["", "1K", "15M", "-1"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!((LEAST..=ENOUGH).contains(&compute()));
    }
}
