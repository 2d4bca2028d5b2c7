// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The computer that a report is about.

use serde::Serialize;

/// What it is.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Bytes of RAM.
    pub memory_bytes: u64,
    /// The setting of transparent huge pages.
    pub transparent_huge_pages: String,
    /// Mappings that a process may have.
    pub max_map_count: usize,
    /// Runnable threads, averaged over the last minute, when the run began: other work that it had
    /// to share the processors with.
    pub load: f64,
    /// Where notifications of changed mappings came from.
    pub notification_source: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

impl Host {
    /// This one.
    pub fn describe(notification_source: String) -> Self {
        let kilobytes = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen =
            huge.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen.to_owned());
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: read("/proc/sys/kernel/osrelease"),
            memory_bytes: kilobytes.unwrap_or(0) << 10,
            transparent_huge_pages: chosen.unwrap_or_else(|| "not available".to_owned()),
            max_map_count: crate::peer::max_map_count(),
            load: read("/proc/loadavg").split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
            notification_source,
        }
    }
}
