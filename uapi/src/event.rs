// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events: what a client waits for.
//!
//! Mechanism: an event has an id; a signal event also has a slot in a page that the GPU writes.
//! WAIT takes an array of [`EventData`], and on return each entry of a memory or hardware exception
//! carries its data. Source: `kfd_ioctl.h`.
//!
//! Limits: AMD's anonymous union is kept here as 32 bytes with typed accessors, so that a shorter
//! member never leaves bytes undefined.

use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// Argument of `CREATE_EVENT`.
    pub struct CreateEventArgs {
        /// In: a BO handle for the events page, or 0. Out: the mmap offset of the page.
        pub event_page_offset: u64,
        /// Out: what the GPU writes to trigger it (signal events).
        pub event_trigger_data: u32,
        /// In: `EVENT_*`.
        pub event_type: u32,
        /// In: nonzero to reset when a wait has seen it.
        pub auto_reset: u32,
        /// In: the node, for some types.
        pub node_id: u32,
        /// Out: the event's id.
        pub event_id: u32,
        /// Out: its slot in the page (signal events).
        pub event_slot_index: u32,
    }
}

pod! {
    /// Argument of `DESTROY_EVENT`.
    pub struct DestroyEventArgs {
        /// In: the event.
        pub event_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `SET_EVENT`.
    pub struct SetEventArgs {
        /// In: the event.
        pub event_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `RESET_EVENT`.
    pub struct ResetEventArgs {
        /// In: the event.
        pub event_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Why a GPU access failed; each field is 0 or 1.
    pub struct MemoryExceptionFailure {
        /// No page, or a page of the supervisor.
        pub not_present: u32,
        /// A write to a read-only page.
        pub read_only: u32,
        /// Execution of a page that is not executable.
        pub no_execute: u32,
        /// The address may be wrong.
        pub imprecise: u32,
    }
}

pod! {
    /// Data of an `EVENT_MEMORY`.
    pub struct MemoryExceptionData {
        /// The kind of fault.
        pub failure: MemoryExceptionFailure,
        /// The GPU address.
        pub va: u64,
        /// The GPU.
        pub gpu_id: u32,
        /// `MEM_ERR_*`.
        pub error_type: u32,
    }
}

pod! {
    /// Data of an `EVENT_HW_EXCEPTION`.
    pub struct HwExceptionData {
        /// `HW_EXCEPTION_*_RESET`.
        pub reset_type: u32,
        /// `HW_EXCEPTION_GPU_HANG` or `HW_EXCEPTION_ECC`.
        pub reset_cause: u32,
        /// Nonzero when memory was lost.
        pub memory_lost: u32,
        /// The GPU.
        pub gpu_id: u32,
    }
}

pod! {
    /// Data of an `EVENT_SIGNAL` (interface 1.14).
    pub struct SignalEventData {
        /// In: the last age that the caller saw. Out: the current age. 0 means ages are not used.
        pub last_event_age: u64,
    }
}

pod! {
    /// AMD's union of the three kinds of event data. What it holds follows from the event's type.
    pub struct EventPayload {
        words: [u64; 4],
    }
}

/// Reads and writes one member of the union; the bytes behind a short member are zero.
macro_rules! payload_member {
    ($($get:ident $type:ident)+) => {
        impl EventPayload {$(
            #[doc = concat!("The bytes as [`", stringify!($type), "`].")]
            #[must_use]
            pub fn $get(&self) -> $type {
                let mut member = $type::zeroed();
                let size = ::core::mem::size_of::<$type>();
                member.as_bytes_mut().copy_from_slice(&self.as_bytes()[..size]);
                member
            }
        )+}
        $(impl From<$type> for EventPayload {
            fn from(member: $type) -> Self {
                let mut payload = Self::zeroed();
                let size = ::core::mem::size_of::<$type>();
                payload.as_bytes_mut()[..size].copy_from_slice(member.as_bytes());
                payload
            }
        }
        // The slices above stay within the union.
        const _: () = assert!(::core::mem::size_of::<$type>() <= ::core::mem::size_of::<EventPayload>());)+
    };
}
payload_member! {
    memory_exception MemoryExceptionData
    hw_exception HwExceptionData
    signal SignalEventData
}

pod! {
    /// One entry of the array of `WAIT_EVENTS`.
    pub struct EventData {
        /// Out (signal events: in and out): the union.
        pub payload: EventPayload,
        /// Unused by the kernel: a pointer for later exception types.
        pub kfd_event_data_ext: u64,
        /// In: the event.
        pub event_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `WAIT_EVENTS`.
    pub struct WaitEventsArgs {
        /// In: user pointer to `num_events` [`EventData`].
        pub events_ptr: u64,
        /// In: length of that array.
        pub num_events: u32,
        /// In: nonzero to wait for all of them, 0 for any.
        pub wait_for_all: u32,
        /// In: milliseconds; `u32::MAX` waits for ever, 0 polls.
        pub timeout: u32,
        /// Out: `WAIT_RESULT_*`.
        pub wait_result: u32,
    }
}

assert_layout! {
    CreateEventArgs: 32 {
        event_trigger_data: 8, event_type: 12, auto_reset: 16, node_id: 20, event_id: 24, event_slot_index: 28,
    }
    DestroyEventArgs: 8 { event_id: 0 }
    SetEventArgs: 8 { event_id: 0 }
    ResetEventArgs: 8 { event_id: 0 }
    MemoryExceptionFailure: 16 { read_only: 4, no_execute: 8, imprecise: 12 }
    MemoryExceptionData: 32 { failure: 0, va: 16, gpu_id: 24, error_type: 28 }
    HwExceptionData: 16 { reset_cause: 4, memory_lost: 8, gpu_id: 12 }
    SignalEventData: 8 { last_event_age: 0 }
    EventPayload: 32 {}
    EventData: 48 { payload: 0, kfd_event_data_ext: 32, event_id: 40 }
    WaitEventsArgs: 24 { num_events: 8, wait_for_all: 12, timeout: 16, wait_result: 20 }
}

/// Signalled by the GPU through its slot, or by `SET_EVENT`.
pub const EVENT_SIGNAL: u32 = 0;
/// The topology changed.
pub const EVENT_NODECHANGE: u32 = 1;
/// A device changed its state.
pub const EVENT_DEVICESTATECHANGE: u32 = 2;
/// A GPU reset.
pub const EVENT_HW_EXCEPTION: u32 = 3;
/// A system event.
pub const EVENT_SYSTEM_EVENT: u32 = 4;
/// A debugger event.
pub const EVENT_DEBUG_EVENT: u32 = 5;
/// A profiler event.
pub const EVENT_PROFILE_EVENT: u32 = 6;
/// A queue event.
pub const EVENT_QUEUE_EVENT: u32 = 7;
/// A GPU access that failed.
pub const EVENT_MEMORY: u32 = 8;

/// The wait is satisfied.
pub const WAIT_RESULT_COMPLETE: u32 = 0;
/// The time is up.
pub const WAIT_RESULT_TIMEOUT: u32 = 1;
/// An event was destroyed, or the wait was wrong.
pub const WAIT_RESULT_FAIL: u32 = 2;

/// Signal events a process may have.
pub const SIGNAL_EVENT_LIMIT: u32 = 4096;

/// The whole GPU was reset.
pub const HW_EXCEPTION_WHOLE_GPU_RESET: u32 = 0;
/// One engine was reset.
pub const HW_EXCEPTION_PER_ENGINE_RESET: u32 = 1;
/// Reset because of a hang.
pub const HW_EXCEPTION_GPU_HANG: u32 = 0;
/// Reset because of an ECC error.
pub const HW_EXCEPTION_ECC: u32 = 1;

/// Not a RAS error.
pub const MEM_ERR_NO_RAS: u32 = 0;
/// ECC error of SRAM.
pub const MEM_ERR_SRAM_ECC: u32 = 1;
/// Poisoned data was used.
pub const MEM_ERR_POISON_CONSUMED: u32 = 2;
/// A hang of unknown cause.
pub const MEM_ERR_GPU_HANG: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_keeps_each_member() {
        let memory = MemoryExceptionData {
            failure: MemoryExceptionFailure { read_only: 1, ..Default::default() },
            va: 0x7f00_dead_b000,
            gpu_id: 7,
            error_type: MEM_ERR_NO_RAS,
        };
        assert_eq!(EventPayload::from(memory).memory_exception(), memory);
        let hardware = HwExceptionData { reset_type: 1, reset_cause: 0, memory_lost: 1, gpu_id: 9 };
        assert_eq!(EventPayload::from(hardware).hw_exception(), hardware);
        let signal = SignalEventData { last_event_age: 42 };
        assert_eq!(EventPayload::from(signal).signal(), signal);
    }

    #[test]
    fn members_share_their_bytes_and_the_rest_is_zero() {
        let payload = EventPayload::from(SignalEventData { last_event_age: u64::MAX });
        let hardware = payload.hw_exception();
        assert_eq!(hardware.reset_type, u32::MAX);
        assert_eq!(hardware.memory_lost, 0);
        assert!(payload.as_bytes()[8..].iter().all(|&byte| byte == 0));
    }
}
