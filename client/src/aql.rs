// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Architected compute packets (AQL).
//!
//! Mechanism: 64 bytes each; the type is in bits 7:0 of the first word and the packet processor
//! waits while it is INVALID, so the first word is written last. Source: the HSA Platform System
//! Architecture Specification 1.2, section 2.9.

use std::mem::offset_of;

use crate::address::GpuVa;

/// Bytes of a packet.
pub const PACKET_BYTES: u64 = 64;

/// A packet as 16 words in memory order.
pub type Packet = [u32; 16];

const TYPE_KERNEL_DISPATCH: u32 = 2;
const TYPE_BARRIER_AND: u32 = 3;
/// Start only when all packets before it are done.
const BARRIER: u32 = 1 << 8;
/// Acquire and release memory in system scope.
const SYSTEM_SCOPE: u32 = 2 << 9 | 2 << 11;

/// `amd_signal_t`: what a completion decrements. Source: ROCR's `amd_hsa_signal.h`.
#[repr(C, align(64))]
pub(crate) struct Signal {
    pub(crate) kind: i64,
    pub(crate) value: i64,
    pub(crate) event_mailbox: u64,
    pub(crate) event_id: u32,
    pub(crate) reserved: u32,
    pub(crate) start_ts: u64,
    pub(crate) end_ts: u64,
    pub(crate) queue: u64,
    pub(crate) reserved2: [u32; 2],
}

/// `AMD_SIGNAL_KIND_USER`.
pub(crate) const SIGNAL_KIND_USER: u64 = 1;

const _: () = {
    assert!(size_of::<Signal>() == 64);
    assert!(offset_of!(Signal, value) == 8 && offset_of!(Signal, event_mailbox) == 16);
    assert!(offset_of!(Signal, event_id) == 24 && offset_of!(Signal, start_ts) == 32);
};

/// A kernel to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// GPU address of the kernel's descriptor.
    pub kernel_object: u64,
    /// GPU address of its arguments, 16-aligned.
    pub kernarg: GpuVa,
    /// Work items in x, y and z; at least 1 each.
    pub grid: [u32; 3],
    /// Work items of a work group; at least 1 each.
    pub workgroup: [u16; 3],
    /// LDS of a work group in bytes, what the kernel has without asking included.
    pub group_bytes: u32,
    /// Scratch of a work item in bytes.
    pub private_bytes: u32,
}

/// A dispatch that starts when everything before it is done and then decrements the signal at
/// `completion`.
#[must_use]
pub fn dispatch(dispatch: &Dispatch, completion: GpuVa) -> Packet {
    let mut packet = [0; 16];
    let dimensions = match dispatch.grid {
        [_, 1, 1] => 1,
        [_, _, 1] => 2,
        _ => 3,
    };
    let [wx, wy, wz] = dispatch.workgroup.map(u32::from);
    packet[0] = TYPE_KERNEL_DISPATCH | BARRIER | SYSTEM_SCOPE | dimensions << 16;
    packet[1] = wx | wy << 16;
    packet[2] = wz;
    packet[3..6].copy_from_slice(&dispatch.grid);
    packet[6] = dispatch.private_bytes;
    packet[7] = dispatch.group_bytes;
    put(&mut packet, 8, dispatch.kernel_object);
    put(&mut packet, 10, dispatch.kernarg.0);
    put(&mut packet, 14, completion.0);
    packet
}

/// Waits until everything before it is done and the signals at `after` (at most five) are 0, then
/// decrements the one at `completion`.
#[must_use]
pub fn barrier_and(after: &[GpuVa], completion: GpuVa) -> Option<Packet> {
    let mut packet = [0; 16];
    if after.len() > 5 {
        return None;
    }
    packet[0] = TYPE_BARRIER_AND | BARRIER | SYSTEM_SCOPE;
    for (i, signal) in after.iter().enumerate() {
        put(&mut packet, 2 + 2 * i, signal.0);
    }
    put(&mut packet, 14, completion.0);
    Some(packet)
}

fn put(packet: &mut Packet, word: usize, value: u64) {
    let b = value.to_le_bytes();
    packet[word] = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    packet[word + 1] = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(packet: &Packet) -> Vec<u8> {
        packet.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_dispatch_byte_by_byte() {
        let packet = dispatch(
            &Dispatch {
                kernel_object: 0x1122_3344_5566_7788,
                kernarg: GpuVa(0x7f00_0000_1040),
                grid: [1024, 2, 1],
                workgroup: [64, 2, 1],
                group_bytes: 0x0102_0304,
                private_bytes: 0x0506,
            },
            GpuVa(0x7f00_0000_2000),
        );
        let mut golden = vec![0x02, 0x15, 2, 0, 64, 0, 2, 0, 1, 0, 0, 0];
        golden.extend([0, 4, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        golden.extend([0x06, 0x05, 0, 0, 4, 3, 2, 1]);
        golden.extend(0x1122_3344_5566_7788_u64.to_le_bytes());
        golden.extend(0x7f00_0000_1040_u64.to_le_bytes());
        golden.extend([0; 8]);
        golden.extend(0x7f00_0000_2000_u64.to_le_bytes());
        assert_eq!(bytes(&packet), golden);
    }

    #[test]
    fn a_barrier_takes_five_signals_and_no_more() {
        let signals: Vec<_> = (1..=6).map(|n| GpuVa(n << 12)).collect();
        let packet = barrier_and(&signals[..5], GpuVa(0x9000)).unwrap();
        let bytes = bytes(&packet);
        assert_eq!(bytes[..8], [0x03, 0x15, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], 0x1000_u64.to_le_bytes());
        assert_eq!(bytes[40..48], 0x5000_u64.to_le_bytes());
        assert_eq!(bytes[48..56], [0; 8]);
        assert_eq!(bytes[56..], 0x9000_u64.to_le_bytes());
        assert!(barrier_and(&signals, GpuVa(0)).is_none());
    }
}
