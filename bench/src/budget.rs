// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much memory the benchmark may use.

/// At most this without being told: more would only take longer.
const ENOUGH: u64 = 6 << 30;

/// A size such as `512M` or `4G`, in bytes.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        other => return Err(format!("{other:?} is not a unit; use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| "a size is a number and a unit, such as 512M".to_owned())?;
    number.checked_mul(1 << unit).ok_or_else(|| "that is more than 64 bits of address".to_owned())
}

/// A third of what is available, to the system and to this process's control group, and at most [`ENOUGH`].
pub fn compute() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| {
        let kilobytes = line.strip_prefix("MemAvailable:")?.trim().trim_end_matches("kB").trim();
        kilobytes.parse::<u64>().ok().map(|n| n << 10)
    });
    let group = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let group_left = group("memory.max").map(|max| max.saturating_sub(group("memory.current").unwrap_or(0)));
    let available = [available, group_left].into_iter().flatten().min().unwrap_or(1 << 30);
    (available / 3).min(ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_a_unit() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("4GiB"), Ok(4 << 30));
        for bad in ["", "M", "4T", "-1", "99999999999G"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
