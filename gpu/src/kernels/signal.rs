// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HSA signals as `amd_hsa_signal.h` lays them out (`amd_signal_t`, 64 bytes).

use crate::base::queue_error::Stop;
use crate::state::access::Port;

/// Byte offset of the value.
pub(crate) const VALUE: u64 = 8;
const EVENT_MAILBOX_PTR: u64 = 16;
const EVENT_ID: u64 = 24;
const START_TS: u64 = 32;
const END_TS: u64 = 40;

/// Completes the packet whose signal is at `signal` (0 for none): writes the timestamps, decrements
/// the value, and signals the event.
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

/// Sets the signal at `signal` to `value` and signals its event, as far as it is mapped: for a
/// queue that has failed, and whose report must not fail again.
pub(crate) fn raise(port: &mut Port, signal: u64, value: u64) -> Result<(), Stop> {
    let at = |offset| signal.wrapping_add(offset);
    let mut words = [[0; 8]; 2];
    for (word, offset) in words.iter_mut().zip([EVENT_MAILBOX_PTR, EVENT_ID]) {
        if !port.peek(at(offset), word)? {
            return Ok(());
        }
    }
    let [mailbox, event] = words.map(u64::from_le_bytes);
    let event = event & u64::from(u32::MAX);
    if port.poke_u64(at(VALUE), value)? && mailbox != 0 && port.poke_u64(mailbox, event)? {
        port.signal_event(u32::try_from(event).unwrap_or(0));
    }
    Ok(())
}
