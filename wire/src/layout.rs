// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The layout of BAR 2. All registers are 64-bit words, little-endian, aligned to 8.
//!
//! ```text
//! 0x0000   written by the server: MAGIC VERSION EPOCH DEAD
//! 0x0100   written by the device: READY HEARTBEAT ASLEEP INTERRUPTS, and what the GPU is
//! 0x1000   written by the driver: ATTACHED RESET INTERRUPTS_SEEN
//! 0x2000   mailboxes: commands and answers
//! 0x4000   the interrupt ring
//! VRAM_AT  the VRAM, unless it is in the guest's physical memory (VRAM_PHYS)
//! ```
//!
//! A writer publishes by writing one word last (release), a reader reads that word first (acquire).
//! Nobody but the writer named above writes a word; a mailbox has a part for each side.
#![expect(clippy::arithmetic_side_effects, reason = "of constants and of a mailbox or an entry that there is")]

/// "vkfd-gpu" as little-endian bytes.
pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"vkfd-gpu");
/// Version of everything in this crate; the two sides must agree.
pub const VERSION_VALUE: u64 = 5;

/// [`MAGIC_VALUE`], written when the rest of the server's words are there.
pub const MAGIC: u64 = 0x00;
/// [`VERSION_VALUE`].
pub const VERSION: u64 = 0x08;
/// Number of the newest device process, from 1; only grows. 0: none yet.
pub const EPOCH: u64 = 0x10;
/// Number of the newest device process that has ended for certain: nothing of it touches memory any
/// more. A device process that ends in order writes its own number here.
pub const DEAD: u64 = 0x18;

/// Epoch of the device process that is ready for commands.
pub const READY: u64 = 0x100;
/// Changes every few milliseconds while the device process runs.
pub const HEARTBEAT: u64 = 0x108;
/// Not 0: the device sleeps, and a command needs [`KICK`].
pub const ASLEEP: u64 = 0x110;
/// Interrupts raised in this epoch; the last of them is at entry `(INTERRUPTS - 1) % RING_ENTRIES`.
pub const INTERRUPTS: u64 = 0x118;

/// `gpu_id`.
pub const GPU_ID: u64 = 0x180;
/// Where in the BAR its VRAM begins, a multiple of 2 MiB.
pub const VRAM_AT: u64 = 0x188;
/// The guest's physical address at which its VRAM begins, a multiple of 2 MiB. The machine keeps
/// this memory for the GPU, and the guest must not allocate from it. 0: the VRAM is in the BAR.
pub const VRAM_PHYS: u64 = 0x1c0;
/// Bytes of VRAM, a multiple of 2 MiB.
pub const VRAM_BYTES: u64 = 0x190;
/// Where its VRAM begins in the fabric.
pub const VRAM_BASE: u64 = 0x198;
/// VMIDs, the driver's own (0) included.
pub const VMIDS: u64 = 0x1a0;
/// Target version: major * 10000 + minor * 100 + stepping.
pub const GFX_TARGET: u64 = 0x1a8;
/// [`CAN_RETRY`].
pub const FLAGS: u64 = 0x1b0;
/// Ticks of the GPU clock per second.
pub const CLOCK_HZ: u64 = 0x1b8;

/// Compute units, at most as many as the target's product has.
pub const UNITS: u64 = 0x1c8;

/// In [`FLAGS`]: the GPU can retry page faults (XNACK).
pub const CAN_RETRY: u64 = 1;

/// Epoch that a driver has used last.
pub const ATTACHED: u64 = 0x1000;
/// Epoch that the driver wants ended; with [`RESET_LINE`].
pub const RESET: u64 = 0x1008;
/// Interrupts that the driver has taken in this epoch.
pub const INTERRUPTS_SEEN: u64 = 0x1010;

/// First mailbox.
pub const MAILBOX_BASE: u64 = 0x2000;
/// How many there are: commands under way at a time.
pub const MAILBOXES: u32 = 32;
/// Bytes of each.
pub const MAILBOX_BYTES: u64 = 128;
/// In a mailbox, by the driver: the command's number, never 0, written last.
pub const NUMBER: u64 = 0;
/// In a mailbox, by the driver: the epoch the command is for.
pub const FOR_EPOCH: u64 = 8;
/// In a mailbox, by the driver: the command, [`command::WORDS`](crate::command::WORDS) words.
pub const COMMAND: u64 = 16;
/// In a mailbox, by the device: number of the command that was answered, written last.
pub const DONE: u64 = 96;
/// In a mailbox, by the device: 0, or the errno.
pub const STATUS: u64 = 104;
/// In a mailbox, by the device: the answer's value.
pub const VALUE: u64 = 112;

/// First entry of the interrupt ring.
pub const RING_BASE: u64 = 0x4000;
/// Entries, a power of two.
pub const RING_ENTRIES: u64 = 128;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 256;

/// Bytes of all registers; VRAM begins later.
pub const REGISTER_BYTES: u64 = 0x1_0000;
/// Where VRAM begins in BARs that this version makes, and what it is aligned to in any.
pub const VRAM_ALIGN: u64 = 2 << 20;

/// Most VMIDs a GPU can have.
pub const MAX_VMIDS: u32 = vkfd_driver::seams::gpu::Vmid::MAX;
/// Most queues a GPU can have at a time.
pub const MAX_QUEUES: u32 = 256;

/// ivshmem peer number of the guest. The device interrupts it at vector 0.
pub const GUEST_PEER: u16 = 0;
/// ivshmem peer number of the device.
pub const DEVICE_PEER: u16 = 1;
/// ivshmem peer number of the server.
pub const SERVER_PEER: u16 = 2;
/// Doorbell register value that wakes the device.
pub const KICK: u32 = (DEVICE_PEER as u32) << 16;
/// Doorbell register value that makes the server read [`RESET`].
pub const RESET_LINE: u32 = (SERVER_PEER as u32) << 16;

/// Byte offset of mailbox `index`, which is below [`MAILBOXES`].
pub const fn mailbox(index: u32) -> u64 {
    MAILBOX_BASE + (index as u64) * MAILBOX_BYTES
}

/// Byte offset of the entry of interrupt number `number`, counted from 0.
pub const fn entry(number: u64) -> u64 {
    RING_BASE + (number % RING_ENTRIES) * ENTRY_BYTES
}

const _: () = {
    assert!(COMMAND + crate::command::WORDS as u64 * 8 <= DONE && VALUE + 8 <= MAILBOX_BYTES);
    assert!(mailbox(MAILBOXES) <= RING_BASE && RING_ENTRIES.is_power_of_two());
    assert!(entry(RING_ENTRIES - 1) + ENTRY_BYTES <= REGISTER_BYTES && REGISTER_BYTES <= VRAM_ALIGN);
    assert!(crate::interrupt::WORDS as u64 * 8 == ENTRY_BYTES);
};
