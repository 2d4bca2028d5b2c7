// SPDX-License-Identifier: GPL-2.0 OR MIT
//! KFD events: sleeping until the GPU signals or fails.
//!
//! Mechanism: a signal event has an 8-byte slot in one page a process, which the GPU can write: GTT
//! memory whose handle goes with the first CREATE_EVENT, as libhsakmt does. A packet writes the
//! slot and raises an interrupt with the event's number. Exceptions have events without a slot; the
//! driver signals all of them, with the fault's data.
//!
//! Limits: KFD never gives the page back before the process ends, so neither does the client.

use std::sync::Arc;

use vkfd_uapi::command;
use vkfd_uapi::event::{
    CreateEventArgs, DestroyEventArgs, EventData, WaitEventsArgs, EVENT_SIGNAL, SIGNAL_EVENT_LIMIT, WAIT_RESULT_FAIL,
};
use vkfd_uapi::pod::Pod;

use crate::address::{CpuVa, GpuVa};
use crate::buffer::AllocOptions;
use crate::client::Client;
use crate::error::{ClientError, Errno, Result};

/// Bytes of a slot.
const SLOT_BYTES: u64 = 8;

/// A KFD event; destroyed on drop.
pub(crate) struct Event {
    client: Client,
    id: u32,
    /// Where the GPU writes to signal it.
    slot: Option<GpuVa>,
}

impl Event {
    /// An event that a wait resets. `kind` is one of `EVENT_*`.
    pub(crate) fn new(client: &Client, kind: u32) -> Result<Self> {
        let mut args = CreateEventArgs { event_type: kind, auto_reset: 1, ..CreateEventArgs::zeroed() };
        if kind != EVENT_SIGNAL {
            create(client, &mut args)?;
            return Ok(Self { client: client.clone(), id: args.event_id, slot: None });
        }
        let page = client.with_event_page(|page| {
            if let Some(page) = page {
                create(client, &mut args)?;
                return Ok(page.clone());
            }
            let memory = client.alloc(&AllocOptions::gtt(SLOT_BYTES * u64::from(SIGNAL_EVENT_LIMIT)))?;
            args.event_page_offset = memory.handles().next().map_or(0, |handle| handle.0);
            create(client, &mut args)?;
            let new = Arc::new(memory.into_addresses());
            *page = Some(new.clone());
            Ok(new)
        })?;
        let slot = page.gpu_va().offset(SLOT_BYTES * u64::from(args.event_slot_index));
        Ok(Self { client: client.clone(), id: args.event_id, slot: Some(slot) })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Where the GPU writes to signal it; only signal events have a slot.
    pub(crate) fn slot(&self) -> Option<GpuVa> {
        self.slot
    }
}

fn create(client: &Client, args: &mut CreateEventArgs) -> Result {
    client.ioctl(command::CREATE_EVENT, args).map_err(ClientError::call("CREATE_EVENT"))
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = DestroyEventArgs { event_id: self.id, pad: 0 };
        if let Err(errno) = self.client.ioctl(command::DESTROY_EVENT, &mut args) {
            tracing::warn!("DESTROY_EVENT {}: {errno}", self.id);
        }
    }
}

/// Sleeps until one of the events is signalled or the time (in milliseconds) is up, and returns
/// their data.
pub(crate) fn wait_any<const N: usize>(client: &Client, ids: [u32; N], milliseconds: u32) -> Result<[EventData; N]> {
    let mut data = ids.map(|event_id| EventData { event_id, ..EventData::zeroed() });
    let mut args = WaitEventsArgs {
        events_ptr: CpuVa::of(data.as_mut_ptr()).0,
        num_events: u32::try_from(N).unwrap_or(0),
        wait_for_all: 0,
        timeout: milliseconds,
        wait_result: 0,
    };
    match client.ioctl(command::WAIT_EVENTS, &mut args) {
        Ok(()) if args.wait_result == WAIT_RESULT_FAIL => {
            Err(ClientError::Call { call: "WAIT_EVENTS", errno: Errno::IO })
        }
        // The time is up: some versions say so by the result, others by the error.
        Ok(()) | Err(Errno::TIME) => Ok(data),
        Err(errno) => Err(ClientError::Call { call: "WAIT_EVENTS", errno }),
    }
}
