// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waiting for a value in memory, which SDMA and PM4 spell the same way.

use crate::base::queue_error::Stop;
use crate::state::access::Port;

/// A comparison of a value with a reference.
pub(crate) type Comparison = fn(u32, u32) -> bool;

/// The comparison of a 3-bit function code; `None` for the one that means nothing.
pub(crate) fn comparison(function: u32) -> Option<Comparison> {
    Some(match function & 7 {
        0 => |_, _| true,
        1 => |value, reference| value < reference,
        2 => |value, reference| value <= reference,
        3 => |value, reference| value == reference,
        4 => |value, reference| value != reference,
        5 => |value, reference| value >= reference,
        6 => |value, reference| value > reference,
        _ => return None,
    })
}

/// Waits until the word at `va`, masked, compares with the reference as asked.
pub(crate) fn wait(port: &mut Port, holds: Comparison, va: u64, reference: u32, mask: u32) -> Result<(), Stop> {
    port.poll(|port| Ok(holds(port.load_u32(va)? & mask, reference)))
}
