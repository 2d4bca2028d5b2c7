// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The AQL packet processor.
//!
//! Packets are those of the HSA runtime specification 1.2, section 2.9, and `amd_hsa_queue.h`.
//! Implemented: kernel dispatch ([`compute`]), barrier-AND, barrier-OR, and AMD's barrier-value
//! packet and indirect buffers of PM4 ([`pm4`](crate::packets::pm4)). Agent dispatch halts the
//! queue. A runtime whose queue has halted learns it from the queue's structure (`amd_queue_t`), as
//! the firmware tells it: see [`Aql::failed`].
//!
//! Packets run one after the other, which makes the barrier bit always hold. All memory is
//! coherent, and fences do nothing. A packet becomes INVALID and the read index moves on before its
//! signal is decremented: a thread that waits for the signal may free the ring.

use crate::base::clock::clock;
use crate::base::queue_error::{Exception, QueueError, Stop};
use crate::kernels::compute::{self, Compute};
use crate::kernels::hsa_queue::HsaQueue;
use crate::kernels::signal;
use crate::packets::pm4::Pm4;
use crate::state::access::Port;
use crate::state::shared::Shared;

const PACKET_BYTES: u64 = 64;

const VENDOR_SPECIFIC: u32 = 0;
const INVALID: u32 = 1;
const KERNEL_DISPATCH: u32 = 2;
const BARRIER_AND: u32 = 3;
const BARRIER_OR: u32 = 5;
/// AmdFormat of `hsa_amd_barrier_value_packet_t`.
const AMD_BARRIER_VALUE: u8 = 2;

/// AmdFormat of a packet that runs PM4; its second word is the header of PM4's INDIRECT_BUFFER.
const AMD_PM4_IB: u8 = 1;
const INDIRECT_BUFFER: u32 = 0xc002_3f00;

/// What the signal for errors is set to.
const fn code(exception: Exception) -> u64 {
    match exception {
        Exception::Dimension => 2,
        Exception::GroupMemory => 4,
        Exception::Code => 8,
        Exception::Packet => 32,
        Exception::GroupSize => 64,
        Exception::Registers => 128,
        Exception::Aperture => 0x2000_0000,
        Exception::Instruction => 0x4000_0000,
        Exception::Trap => 0x8000_0000,
    }
}

/// State of an AQL queue.
pub(crate) struct Aql {
    /// Index of the next packet.
    rptr: u64,
    /// One past the last packet submitted, as far as known.
    limit: u64,
    doorbell: u64,
    pm4: Pm4,
    compute: Compute,
}

struct Packet([u8; 64]);

impl Packet {
    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.0.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }
}

impl Aql {
    /// Begins at packet `start`.
    pub(crate) fn new(shared: &Shared, start: u64) -> Aql {
        let (pm4, compute) = (Pm4::new(shared.config.family, 0), Compute::new(shared));
        Aql { rptr: start, limit: start, doorbell: start.wrapping_sub(1), pm4, compute }
    }

    /// The queue has halted on `error`: tells a runtime that keeps an `amd_queue_t` around the two
    /// pointers. Its signal for that gets a code that says what is wrong. Where the pointers are
    /// not in such a structure, or it has no signal, nothing happens.
    pub(crate) fn failed(port: &mut Port, error: &QueueError) -> Result<(), Stop> {
        let Some(exception) = error.exception() else { return Ok(()) };
        let Some(queue) = HsaQueue::peek(port)? else { return Ok(()) };
        match queue.inactive_signal(port)? {
            Some(signal) => signal::raise(port, signal, code(exception)),
            None => Ok(()),
        }
    }

    /// Processes one packet; false if there is none.
    pub(crate) fn step(&mut self, port: &mut Port) -> Result<bool, Stop> {
        self.update_limit(port)?;
        if self.rptr == self.limit {
            return Ok(false);
        }
        let ring = port.ring();
        let offset = self.rptr.wrapping_mul(PACKET_BYTES) & (ring.bytes - 1);
        let va = ring.va + offset;
        // A producer fills the packet in and sets the header last.
        if port.load_u32(va)? & 0xff == INVALID {
            return Ok(false);
        }
        let mut packet = Packet([0; 64]);
        port.read(va, &mut packet.0)?;
        let start = clock();
        self.execute(port, &packet, va, offset)?;
        let end = clock();
        port.write(va, &1u16.to_le_bytes())?;
        self.rptr = self.rptr.wrapping_add(1);
        if port.control.rptr_va != 0 {
            port.store_u64(port.control.rptr_va, self.rptr)?;
        }
        signal::complete(port, packet.u64(56), start, end)?;
        Ok(true)
    }

    /// The doorbell, if all packets before it are done.
    pub(crate) fn done(&self) -> Option<u64> {
        (self.rptr == self.limit).then_some(self.doorbell)
    }

    /// Looks at the doorbell. With several producers it may step back; the write index does not.
    fn update_limit(&mut self, port: &mut Port) -> Result<(), Stop> {
        let doorbell = port.control.doorbell.load()?;
        if doorbell == self.doorbell {
            return Ok(());
        }
        self.doorbell = doorbell;
        let mut limit = doorbell.wrapping_add(1);
        if port.control.wptr_va != 0 {
            limit = later(limit, port.load_u64(port.control.wptr_va)?);
        }
        self.limit = later(self.limit, limit);
        Ok(())
    }

    fn execute(&mut self, port: &mut Port, packet: &Packet, va: u64, offset: u64) -> Result<(), Stop> {
        let bad = |message: String| Err(QueueError::BadPacket { offset, message }.into());
        let header = packet.u32(0);
        match header & 0xff {
            KERNEL_DISPATCH => {
                let half = |offset| u32::from(u16::from_le_bytes(packet.array(offset)));
                let dispatch = compute::Packet {
                    va,
                    id: self.rptr,
                    dimensions: half(2) & 3,
                    group: [4, 6, 8].map(half),
                    grid: [12, 16, 20].map(|offset| packet.u32(offset)),
                    private: packet.u32(24),
                    lds: packet.u32(28),
                    object: packet.u64(32),
                    kernarg: packet.u64(40),
                };
                self.compute.dispatch(port, &dispatch)
            }
            BARRIER_AND => {
                for index in 0..5 {
                    let dependency = packet.u64(8 + index * 8);
                    if dependency != 0 {
                        port.poll(|port| zero(port, dependency))?;
                    }
                }
                Ok(())
            }
            BARRIER_OR => {
                let dependencies: [u64; 5] = std::array::from_fn(|index| packet.u64(8 + index * 8));
                if dependencies.iter().all(|&dependency| dependency == 0) {
                    return Ok(());
                }
                port.poll(|port| {
                    for dependency in dependencies.into_iter().filter(|&dependency| dependency != 0) {
                        if zero(port, dependency)? {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                })
            }
            VENDOR_SPECIFIC => {
                let [format] = packet.array(2);
                match format {
                    AMD_BARRIER_VALUE => {}
                    AMD_PM4_IB if packet.u32(4) == INDIRECT_BUFFER => {
                        let words = u64::from(packet.u32(16) & 0xf_ffff);
                        return self.pm4.indirect(port, &mut self.compute, packet.u64(8) & !3, words, offset, 1);
                    }
                    _ => return bad(format!("vendor packet of format {format} is not supported")),
                }
                let holds: fn(i64, i64) -> bool = match packet.u32(32) {
                    0 => |value, reference| value == reference,
                    1 => |value, reference| value != reference,
                    2 => |value, reference| value < reference,
                    3 => |value, reference| value >= reference,
                    condition => return bad(format!("barrier-value packet with condition {condition}")),
                };
                let (signal, reference, mask) = (packet.u64(8), packet.u64(16), packet.u64(24));
                if signal == 0 {
                    return Ok(());
                }
                port.poll(|port| {
                    let value = port.load_u64(signal.wrapping_add(signal::VALUE))? & mask;
                    Ok(holds(value as i64, reference as i64))
                })
            }
            kind => bad(format!("packet type {kind} is not supported (header {:#06x})", header & 0xffff)),
        }
    }
}

/// The later of two packet indices, which may have wrapped.
fn later(a: u64, b: u64) -> u64 {
    if b.wrapping_sub(a) as i64 > 0 {
        b
    } else {
        a
    }
}

fn zero(port: &mut Port, signal: u64) -> Result<bool, Stop> {
    Ok(port.load_u64(signal.wrapping_add(signal::VALUE))? == 0)
}
