// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI events: a stream of text lines about migration, faults, eviction and restore.
//!
//! Mechanism: the call gives a file per GPU; a client writes a 64-bit mask of events to it and
//! reads lines. Each line starts with the event's number in hexadecimal. Source: `kfd_ioctl.h`,
//! `enum kfd_smi_event`.

use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// Argument of `SMI_EVENTS`.
    pub struct SmiEventsArgs {
        /// In: the GPU.
        pub gpuid: u32,
        /// Out: the file to read from.
        pub anon_fd: u32,
    }
}
assert_layout! { SmiEventsArgs: 8 { anon_fd: 4 } }

/// Not used; numbers start at 1.
pub const SMI_EVENT_NONE: u32 = 0;
/// A GPU VM fault.
pub const SMI_EVENT_VMFAULT: u32 = 1;
/// The GPU is throttled.
pub const SMI_EVENT_THERMAL_THROTTLE: u32 = 2;
/// A GPU reset begins.
pub const SMI_EVENT_GPU_PRE_RESET: u32 = 3;
/// A GPU reset has ended.
pub const SMI_EVENT_GPU_POST_RESET: u32 = 4;
/// A migration of an SVM range begins.
pub const SMI_EVENT_MIGRATE_START: u32 = 5;
/// A migration of an SVM range has ended.
pub const SMI_EVENT_MIGRATE_END: u32 = 6;
/// Handling of a recoverable GPU page fault begins.
pub const SMI_EVENT_PAGE_FAULT_START: u32 = 7;
/// Handling of a recoverable GPU page fault has ended.
pub const SMI_EVENT_PAGE_FAULT_END: u32 = 8;
/// The process's queues were evicted.
pub const SMI_EVENT_QUEUE_EVICTION: u32 = 9;
/// The process's queues were restored.
pub const SMI_EVENT_QUEUE_RESTORE: u32 = 10;
/// An SVM range was unmapped from the GPU.
pub const SMI_EVENT_UNMAP_FROM_GPU: u32 = 11;
/// A process began to use the GPU.
pub const SMI_EVENT_PROCESS_START: u32 = 12;
/// A process ended its use of the GPU.
pub const SMI_EVENT_PROCESS_END: u32 = 13;
/// As a mask bit: events of all processes (needs privilege).
pub const SMI_EVENT_ALL_PROCESS: u32 = 64;

/// Largest line, in bytes.
pub const SMI_EVENT_MSG_SIZE: usize = 96;

/// The mask bit of event `number`; 0 for a number outside 1..=64.
#[must_use]
pub const fn event_mask(number: u32) -> u64 {
    if number == 0 || number > SMI_EVENT_ALL_PROCESS {
        return 0;
    }
    1 << (number - 1)
}

/// Migration because of a prefetch request.
pub const MIGRATE_TRIGGER_PREFETCH: u32 = 0;
/// Migration because of a GPU page fault.
pub const MIGRATE_TRIGGER_PAGEFAULT_GPU: u32 = 1;
/// Migration because of a CPU page fault.
pub const MIGRATE_TRIGGER_PAGEFAULT_CPU: u32 = 2;
/// Migration because VRAM was needed.
pub const MIGRATE_TRIGGER_TTM_EVICTION: u32 = 3;

/// Eviction because an SVM range was invalidated.
pub const QUEUE_EVICTION_TRIGGER_SVM: u32 = 0;
/// Eviction because a userptr was invalidated.
pub const QUEUE_EVICTION_TRIGGER_USERPTR: u32 = 1;
/// Eviction because memory was needed.
pub const QUEUE_EVICTION_TRIGGER_TTM: u32 = 2;
/// Eviction because the system suspends.
pub const QUEUE_EVICTION_TRIGGER_SUSPEND: u32 = 3;
/// Eviction for a CRIU checkpoint.
pub const QUEUE_EVICTION_CRIU_CHECKPOINT: u32 = 4;
/// Eviction for a CRIU restore.
pub const QUEUE_EVICTION_CRIU_RESTORE: u32 = 5;

/// Unmapped because a notifier fired.
pub const SVM_UNMAP_TRIGGER_MMU_NOTIFY: u32 = 0;
/// Unmapped because a notifier fired during a migration.
pub const SVM_UNMAP_TRIGGER_MMU_NOTIFY_MIGRATE: u32 = 1;
/// Unmapped because the CPU mapping went away.
pub const SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_start_at_bit_zero() {
        assert_eq!(event_mask(SMI_EVENT_VMFAULT), 1);
        assert_eq!(event_mask(SMI_EVENT_ALL_PROCESS), 1 << 63);
        assert_eq!(event_mask(SMI_EVENT_NONE), 0);
        assert_eq!(event_mask(65), 0);
    }
}
