// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A line of SMI events, in KFD's format: the number, then what the event says of itself.

use vkfd_client::uapi::smi as abi;

/// What the driver reported. Addresses are page numbers; a location is a `gpu_id`, or 0 for system
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A fault ended a queue.
    VmFault,
    FaultStart {
        page: u64,
        write: bool,
    },
    FaultEnd {
        page: u64,
        migrated: bool,
    },
    MigrateStart {
        start: u64,
        pages: u64,
        from: u64,
        to: u64,
        trigger: u64,
    },
    MigrateEnd {
        start: u64,
        error: i64,
    },
    Evicted {
        trigger: u64,
    },
    Restored {
        rescheduled: bool,
    },
    Unmapped {
        start: u64,
        pages: u64,
        trigger: u64,
    },
}

impl Event {
    /// The event of a line; `None` for another.
    pub(super) fn parse(line: &str) -> Option<Event> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let decimal = |text: &str| text.parse::<u64>().ok();
        // `@START(PAGES)`.
        let place = |text: &str| {
            let (start, pages) = text.strip_prefix('@')?.strip_suffix(')')?.split_once('(')?;
            Some((hex(start)?, hex(pages)?))
        };
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [number, ref rest @ ..] = fields[..] else { return None };
        Some(match (u32::from_str_radix(number, 16).ok()?, rest) {
            (abi::SMI_EVENT_VMFAULT, _) => Event::VmFault,
            (abi::SMI_EVENT_PAGE_FAULT_START, [_, _, at, kind]) => {
                Event::FaultStart { page: place(at)?.0, write: *kind == "W" }
            }
            (abi::SMI_EVENT_PAGE_FAULT_END, [_, _, at, kind]) => {
                Event::FaultEnd { page: place(at)?.0, migrated: *kind == "M" }
            }
            (abi::SMI_EVENT_MIGRATE_START, [_, _, at, way, _, trigger]) => {
                let ((start, pages), (from, to)) = (place(at)?, way.split_once("->")?);
                Event::MigrateStart { start, pages, from: hex(from)?, to: hex(to)?, trigger: decimal(trigger)? }
            }
            (abi::SMI_EVENT_MIGRATE_END, [_, _, at, _, _, error]) => {
                Event::MigrateEnd { start: place(at)?.0, error: error.parse().ok()? }
            }
            (abi::SMI_EVENT_QUEUE_EVICTION, [_, _, _, trigger]) => Event::Evicted { trigger: decimal(trigger)? },
            (abi::SMI_EVENT_QUEUE_RESTORE, [_, _, _, kind]) => Event::Restored { rescheduled: *kind == "R" },
            (abi::SMI_EVENT_UNMAP_FROM_GPU, [_, _, at, _, trigger]) => {
                let (start, pages) = place(at)?;
                Event::Unmapped { start, pages, trigger: decimal(trigger)? }
            }
            _ => return None,
        })
    }
}

/// What made pages move.
pub(super) fn migration(trigger: u64) -> &'static str {
    match u32::try_from(trigger) {
        Ok(abi::MIGRATE_TRIGGER_PREFETCH) => "prefetch",
        Ok(abi::MIGRATE_TRIGGER_PAGEFAULT_GPU) => "fault on the GPU",
        Ok(abi::MIGRATE_TRIGGER_PAGEFAULT_CPU) => "fault on the CPU",
        Ok(abi::MIGRATE_TRIGGER_TTM_EVICTION) => "pressure",
        _ => "unknown",
    }
}

/// What stopped queues.
pub(super) fn eviction(trigger: u64) -> &'static str {
    match u32::try_from(trigger) {
        Ok(abi::QUEUE_EVICTION_TRIGGER_SVM) => "SVM",
        Ok(abi::QUEUE_EVICTION_TRIGGER_USERPTR) => "userptr",
        Ok(abi::QUEUE_EVICTION_TRIGGER_TTM) => "pressure",
        Ok(abi::QUEUE_EVICTION_TRIGGER_SUSPEND) => "suspend",
        _ => "unknown",
    }
}

/// What took entries away.
pub(super) fn unmap(trigger: u64) -> &'static str {
    match u32::try_from(trigger) {
        Ok(abi::SVM_UNMAP_TRIGGER_MMU_NOTIFY) => "invalidation",
        Ok(abi::SVM_UNMAP_TRIGGER_MMU_NOTIFY_MIGRATE) => "invalidation by a migration",
        Ok(abi::SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU) => "unmapped by the program",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_kfd_are_read() {
        let read = [
            ("1 4d:task", Event::VmFault),
            ("7 123 -77 @7f00(4b01) W", Event::FaultStart { page: 0x7f00, write: true }),
            ("8 124 -77 @7f00(4b01) M", Event::FaultEnd { page: 0x7f00, migrated: true }),
            (
                "5 1 -77 @7f00(200) 0->4b01 4b01:ffffffff 1",
                Event::MigrateStart { start: 0x7f00, pages: 0x200, from: 0, to: 0x4b01, trigger: 1 },
            ),
            ("6 2 -77 @7f00(200) 0->4b01 1 -12", Event::MigrateEnd { start: 0x7f00, error: -12 }),
            ("9 3 -77 4b01 1", Event::Evicted { trigger: 1 }),
            ("a 4 -77 4b01 0", Event::Restored { rescheduled: false }),
            ("b 5 -77 @7f00(1) 4b01 2", Event::Unmapped { start: 0x7f00, pages: 1, trigger: 2 }),
        ];
        for (line, event) in read {
            assert_eq!(Event::parse(line), Some(event), "{line}");
        }
        for other in ["", "2 1:2:3", "x", "7 1", "6 1 2 3 4 5 six"] {
            assert_eq!(Event::parse(other), None, "{other}");
        }
    }
}
