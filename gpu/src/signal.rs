// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HSA signals as `amd_hsa_signal.h` lays them out (`amd_signal_t`, 64 bytes).

use crate::access::{Port, Stop};

/// Byte offset of the value.
pub(crate) const VALUE: u64 = 8;
const EVENT_MAILBOX_PTR: u64 = 16;
const EVENT_ID: u64 = 24;
const START_TS: u64 = 32;
const END_TS: u64 = 40;

/// Completes the packet whose signal is at `signal` (0 for none): writes the timestamps, decrements the
/// value, and signals the event.
pub(crate) fn complete(port: &mut Port, signal: u64, start: u64, end: u64) -> Result<(), Stop> {
    if signal == 0 {
        return Ok(());
    }
    let at = |offset| signal.wrapping_add(offset);
    // Everything is read before the decrement: a waiter may free the signal right after it.
    let mailbox = port.load_u64(at(EVENT_MAILBOX_PTR))?;
    let event_id = port.load_u32(at(EVENT_ID))?;
    port.store_u64(at(START_TS), start)?;
    port.store_u64(at(END_TS), end)?;
    port.add_u64(at(VALUE), u64::MAX)?;
    if mailbox != 0 {
        port.store_u64(mailbox, u64::from(event_id))?;
        port.signal_event(event_id);
    }
    Ok(())
}
