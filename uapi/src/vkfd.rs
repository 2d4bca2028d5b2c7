// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vkfd's own calls: capabilities, the last error, snapshots, a wake-up hint, and what benchmarks
//! and diagnosis need.
//!
//! Mechanism: commands of KFD's type `'K'` with numbers from 0xe0, far beyond AMD's (which end at
//! 0x28 upstream and below 0x90 in AMD's own tree). A KFD that does not know them answers ENOTTY,
//! so they are safe to probe.
//!
//! Limits: the numbers are private and may change until the interface is upstream.

use super::call::{calls, Forward, Known};
use super::command::TYPE;
use super::ioctl::Command;
use super::pod::{assert_layout, pod, Field, Pod};

calls! {
    type TYPE;

    /// What the driver can do.
    QUERY_CAPS "QUERY_CAPS" = iowr<CapsArgs>(0xe0), 0xc040_4be0, since 1, forwarded;
    /// Why the calling thread's last memory call failed.
    LAST_ERROR "LAST_ERROR" = iowr<LastErrorArgs>(0xe1), 0xc028_4be1, since 1, forwarded;
    /// A view of the process's state.
    SNAPSHOT "SNAPSHOT" = iowr<SnapshotArgs>(0xe2), 0xc028_4be2, since 1, local "a view of the driver beside the caller";
    /// "A doorbell was written": lets a sleeping software GPU wake. A hint; hardware needs none and
    /// does not have the command.
    RINGED "RINGED" = io<()>(0xe3), 0x0000_4be3, since 1, forwarded;
    /// How ranges registered from now on by this process share notifiers. For benchmarks
    /// ([`CAP_DIAGNOSIS`]).
    SET_WINDOWS "SET_WINDOWS" = iow<WindowsArgs>(0xe4), 0x4010_4be4, since 1, local "for benchmarks";
    /// What the host alone takes for the pages of a list of ranges. For benchmarks
    /// ([`CAP_DIAGNOSIS`]).
    MEASURE "MEASURE" = iowr<MeasureArgs>(0xe5), 0xc028_4be5, since 1, local "for benchmarks";
    /// Moves pages to a GPU's memory or back: what the driver does by itself with SVM ranges. For
    /// tests ([`CAP_DIAGNOSIS`]).
    MOVE "MOVE" = iowr<MoveArgs>(0xe8), 0xc030_4be8, since 1, local "for tests";
}

/// The name of one of vkfd's own commands.
#[must_use]
pub fn name(command: Command) -> Option<&'static str> {
    Known::find(command, ALL).map(|known| known.name)
}

impl Call {
    /// The call of a command, without its size, which grows with the structure.
    #[must_use]
    pub fn of(command: Command) -> Option<Self> {
        let at = ALL.iter().position(|known| known.command.same_call(command))?;
        Self::ALL.get(at).copied()
    }
}

pod! {
    /// Argument of [`QUERY_CAPS`]. Fields are only ever added at the end.
    pub struct CapsArgs {
        /// In: bytes the caller knows. Out: bytes filled.
        pub size: u32,
        /// Out: version of vkfd's own commands.
        pub version: u32,
        /// Out: `CAP_*`.
        pub caps: u64,
        /// Out: ranges that one batch may have.
        pub max_ranges: u64,
        /// Out: bytes that the process may register now.
        pub max_bytes: u64,
        /// Out: bytes of a page; ranges are multiples of it.
        pub page_size: u64,
        /// Out: notifier windows that one BO may have.
        pub max_windows: u64,
        /// Out: ranges at most this many bytes apart share a window.
        pub window_gap: u64,
        /// Out: the longest pause, in milliseconds, between two tries of a restore (it never gives
        /// up).
        pub restore_pause_ms: u32,
        /// Out: milliseconds after which a registration gives up.
        pub register_deadline_ms: u32,
    }
}

pod! {
    /// Argument of [`SET_WINDOWS`].
    pub struct WindowsArgs {
        /// In: a gap of more than this many bytes separates two notifiers.
        pub gap: u64,
        /// In: 1 for a notifier per range, whatever the gap.
        pub per_range: u32,
        /// Unused: 0.
        pub pad: u32,
    }
}

pod! {
    /// Argument of [`MEASURE`].
    pub struct MeasureArgs {
        /// In: the ranges, as for a batch.
        pub ranges_ptr: u64,
        /// In: how many.
        pub num_ranges: u32,
        /// In: `MEASURE_*`.
        pub what: u32,
        /// Out: pages of all ranges.
        pub pages: u64,
        /// Out: how long it took.
        pub nanoseconds: u64,
        /// Unused: 0.
        pub pad: u64,
    }
}

pod! {
    /// Argument of [`MOVE`].
    pub struct MoveArgs {
        /// In: first address, a multiple of the page size.
        pub start: u64,
        /// In: bytes, a multiple of the page size; 0 only counts.
        pub size: u64,
        /// In: a GPU.
        pub gpu_id: u32,
        /// In: one of `MOVE_*`.
        pub direction: u32,
        /// Out: pages that moved. The others stay where they are.
        pub moved: u64,
        /// Out: pages of that GPU's memory that processes have.
        pub resident: u64,
        /// Out: pages that they have had and have no more.
        pub released: u64,
    }
}

/// From system memory to the GPU's. EOPNOTSUPP where memory cannot be moved.
pub const MOVE_TO_GPU: u32 = 0;
/// From any GPU's memory to system memory.
pub const MOVE_TO_SYSTEM: u32 = 1;

/// Faulting the pages in for writing, as a registration does, and nothing else: the floor of a
/// registration.
pub const MEASURE_FAULT: u32 = 0;
/// Pinning the pages, as a driver without notifiers has to; they are let go afterwards. EOPNOTSUPP
/// where the host cannot.
pub const MEASURE_PIN: u32 = 1;
/// The kernel's own call for faulting pages in (`hmm_range_fault`), once per range, and nothing
/// else: what does not change with the driver. EOPNOTSUPP where the host has no such call.
pub const MEASURE_FAULT_BARE: u32 = 2;

/// Batch userptr by its own command ([`super::batch::ALLOC_MEMORY_OF_GPU_BATCH`]).
pub const CAP_BATCH_V2: u64 = 1 << 0;
/// Batch userptr by ALLOC's flag USERPTR_BATCH.
pub const CAP_BATCH_FLAG: u64 = 1 << 1;
/// Userptr of memory that the process may only read.
pub const CAP_READ_ONLY: u64 = 1 << 2;
/// XNACK can be switched on.
pub const CAP_XNACK: u64 = 1 << 3;
/// [`SNAPSHOT`] works.
pub const CAP_SNAPSHOT: u64 = 1 << 4;
/// Snapshots show queues and why they stopped ([`SNAPSHOT_QUEUES`]).
pub const CAP_QUEUES: u64 = 1 << 5;
/// SVM ranges are mapped to GPUs, and snapshots show them ([`SNAPSHOT_SVM`]).
pub const CAP_SVM: u64 = 1 << 6;
/// [`SET_WINDOWS`], [`MEASURE`] and [`MOVE`] are allowed; EPERM otherwise.
pub const CAP_DIAGNOSIS: u64 = 1 << 7;

pod! {
    /// Argument of [`LAST_ERROR`]: the last failure of a memory call by the calling thread in this
    /// process.
    pub struct LastErrorArgs {
        /// Out: the positive error number; 0 if nothing failed.
        pub errno: u32,
        /// Out: 1 when `index` names the range at fault.
        pub has_index: u32,
        /// Out: index of the range in its batch.
        pub index: u64,
        /// Out: the address at fault.
        pub address: u64,
        /// Out: the size at fault, in bytes.
        pub size: u64,
        /// Out: `REASON_*`.
        pub reason: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $constant:ident = $value:literal, $text:literal;)+) => {
        $($(#[$doc])* pub const $constant: u32 = $value;)+

        /// A reason in words; `None` for a number that this version does not know.
        #[must_use]
        pub const fn reason_text(reason: u32) -> Option<&'static str> {
            match reason {
                $($constant => Some($text),)+
                _ => None,
            }
        }
    };
}

reasons! {
    /// Nothing failed, or there is nothing to add to the error number.
    REASON_NONE = 0, "no further reason";
    /// An address or size is 0 or not a multiple of the page size.
    REASON_ZERO_OR_UNALIGNED = 1, "address or size is zero or not page aligned";
    /// Address plus size, or a sum of sizes, wraps around.
    REASON_WRAPS = 2, "address plus size wraps around";
    /// The sizes of the ranges do not add up to the total.
    REASON_SUM_MISMATCH = 3, "range sizes do not add up to the total size";
    /// More ranges than [`CapsArgs::max_ranges`].
    REASON_TOO_MANY_RANGES = 4, "too many ranges";
    /// The GPU range overlaps another BO or an SVM range.
    REASON_GPU_RANGE_BUSY = 5, "GPU range is in use";
    /// The CPU range overlaps an SVM range.
    REASON_CPU_RANGE_IS_SVM = 6, "CPU range overlaps an SVM range";
    /// Nothing is mapped at the CPU address.
    REASON_NOT_MAPPED = 7, "CPU range is not mapped";
    /// The CPU mapping does not allow the access.
    REASON_NO_PERMISSION = 8, "CPU mapping does not permit the access";
    /// The system's limit for GPU-visible memory.
    REASON_MEMORY_LIMIT = 9, "memory limit reached";
    /// The memory kept changing until the deadline.
    REASON_DEADLINE = 10, "memory kept changing until the deadline";
    /// No such GPU, or the process has no VM on it.
    REASON_BAD_GPU = 11, "no such GPU, or no VM on it";
    /// The flags do not fit together or are unknown.
    REASON_BAD_FLAGS = 12, "unknown or conflicting flags";
    /// A user pointer could not be read or written.
    REASON_BAD_POINTER = 13, "user pointer cannot be accessed";
    /// The driver could not allocate memory for itself.
    REASON_NO_MEMORY = 14, "out of driver memory";
    /// No such BO.
    REASON_BAD_HANDLE = 15, "no such BO";
    /// The BO is still mapped on a GPU.
    REASON_STILL_MAPPED = 16, "BO is still mapped";
    /// The GPU range is outside the GPU VM aperture.
    REASON_OUT_OF_APERTURE = 17, "GPU range is outside the aperture";
    /// Not enough VRAM.
    REASON_NO_VRAM = 18, "out of VRAM";
}

pod! {
    /// Argument of [`SNAPSHOT`].
    pub struct SnapshotArgs {
        /// In: `SNAPSHOT_*`.
        pub op: u32,
        /// In: the first index (`SNAPSHOT_BOS`, `SNAPSHOT_RANGES`), or the GPU's index
        /// (`SNAPSHOT_PAGES`).
        pub index: u32,
        /// In: the BO's handle (`SNAPSHOT_RANGES`), or the GPU address (`SNAPSHOT_PAGES`,
        /// `SNAPSHOT_SVM_RANGES`).
        pub handle: u64,
        /// In: user pointer to room for the entries.
        pub buffer: u64,
        /// In: entries that fit there.
        pub capacity: u32,
        /// Out: entries filled.
        pub count: u32,
        /// Out: entries there are.
        pub total: u64,
    }
}

/// One [`ProcessInfo`].
pub const SNAPSHOT_PROCESS: u32 = 0;
/// A [`BoInfo`] for each BO.
pub const SNAPSHOT_BOS: u32 = 1;
/// A [`RangeInfo`] for each range of one BO.
pub const SNAPSHOT_RANGES: u32 = 2;
/// A raw page-table entry (u64) for each page from an address on, as the GPU walks them.
pub const SNAPSHOT_PAGES: u32 = 3;
/// A [`QueueInfo`] for each queue of the process, from number `index` on.
pub const SNAPSHOT_QUEUES: u32 = 4;
/// One [`SvmInfo`].
pub const SNAPSHOT_SVM: u32 = 5;
/// A [`SvmRangeInfo`] for each SVM range that ends above address `handle`, which becomes where the
/// next call goes on.
pub const SNAPSHOT_SVM_RANGES: u32 = 6;

pod! {
    /// The process: what it has now, and what happened since it began.
    pub struct ProcessInfo {
        /// Number of BOs.
        pub bos: u64,
        /// Of these, userptr.
        pub userptr_bos: u64,
        /// Ranges of all userptr BOs.
        pub userptr_ranges: u64,
        /// Bytes of all userptr BOs.
        pub userptr_bytes: u64,
        /// Bytes of all GTT BOs.
        pub gtt_bytes: u64,
        /// Bytes of all VRAM BOs.
        pub vram_bytes: u64,
        /// Registered notifiers.
        pub notifiers: u64,
        /// Number of queues.
        pub queues: u64,
        /// Number of events.
        pub events: u64,
        /// Number of VMs.
        pub vms: u64,
        /// Bytes of page tables.
        pub page_table_bytes: u64,
        /// Bytes that the driver holds for its own bookkeeping.
        pub driver_bytes: u64,
        /// Invalidations received.
        pub invalidations: u64,
        /// Ranges that they made invalid.
        pub ranges_invalidated: u64,
        /// Times that the queues were evicted.
        pub evictions: u64,
        /// Times that they were restored.
        pub restores: u64,
        /// Runs of the restore worker.
        pub restore_runs: u64,
        /// Ranges made valid again.
        pub ranges_restored: u64,
        /// Times that a registration started over because memory changed.
        pub register_retries: u64,
        /// GPU accesses that failed.
        pub gpu_faults: u64,
        /// TLB flushes.
        pub tlb_flushes: u64,
        /// 1 while the queues are evicted.
        pub evicted: u32,
        /// 1 when XNACK is on.
        pub xnack: u32,
    }
}

pod! {
    /// One BO.
    pub struct BoInfo {
        /// Its handle.
        pub handle: u64,
        /// First GPU address.
        pub gpu_va: u64,
        /// Size in bytes.
        pub size: u64,
        /// `ALLOC_MEM_FLAGS_*`.
        pub flags: u32,
        /// The GPU it was allocated for.
        pub gpu_id: u32,
        /// GPUs it is mapped on, a bit for each GPU index.
        pub mapped_gpus: u32,
        /// `BO_KIND_*`.
        pub kind: u32,
        /// Userptr: ranges.
        pub ranges: u64,
        /// Of these, waiting for a restore.
        pub invalid_ranges: u64,
        /// Of these, without a mapping.
        pub gone_ranges: u64,
        /// Notifier windows.
        pub windows: u64,
        /// Bytes that the driver holds for it.
        pub driver_bytes: u64,
    }
}

/// Memory of the GPU.
pub const BO_KIND_VRAM: u32 = 0;
/// System memory of the driver.
pub const BO_KIND_GTT: u32 = 1;
/// Memory of the process.
pub const BO_KIND_USERPTR: u32 = 2;
/// Doorbells of the process's queues.
pub const BO_KIND_DOORBELL: u32 = 3;
/// The page of MMIO registers.
pub const BO_KIND_MMIO: u32 = 4;

pod! {
    /// One range of a userptr BO.
    pub struct RangeInfo {
        /// First CPU address.
        pub cpu_start: u64,
        /// Size in bytes.
        pub size: u64,
        /// First GPU address.
        pub gpu_va: u64,
        /// Counts the range's invalidations.
        pub generation: u64,
        /// One of [`RANGE_INVALID`], [`RANGE_VALID`], [`RANGE_GONE`] and [`RANGE_DENIED`].
        pub state: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

/// Waiting for a restore.
pub const RANGE_INVALID: u32 = 0;
/// Its page-table entries are right.
pub const RANGE_VALID: u32 = 1;
/// No mapping at its CPU address.
pub const RANGE_GONE: u32 = 2;
/// The CPU mapping does not permit the access.
pub const RANGE_DENIED: u32 = 3;

pod! {
    /// A queue.
    pub struct QueueInfo {
        /// Its number.
        pub queue_id: u32,
        /// Its GPU.
        pub gpu_id: u32,
        /// One of `QUEUE_TYPE_*`.
        pub queue_type: u32,
        /// One of `QUEUE_STATE_*`.
        pub state: u32,
        /// For `QUEUE_STATE_FAULTED`: of `QUEUE_FAULT_*`.
        pub fault: u32,
        /// 0.
        pub pad: u32,
        /// GPU address of the ring.
        pub ring: u64,
        /// Bytes of the ring.
        pub ring_size: u64,
        /// For `QUEUE_STATE_FAULTED`: the GPU address of the page.
        pub fault_va: u64,
    }
}

pod! {
    /// A process's SVM memory: what there is now, and what happened since it began.
    pub struct SvmInfo {
        /// Number of ranges.
        pub ranges: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Notifiers: one for each 512 MiB in use.
        pub notifiers: u64,
        /// Pages of ranges that are in VRAM, of all GPUs.
        pub vram_pages: u64,
        /// Calls that moved pages to a GPU.
        pub migrations_in: u64,
        /// Pages they moved.
        pub pages_in: u64,
        /// Times that pages moved back: asked for, for want of VRAM, or because the CPU touched
        /// private memory.
        pub migrations_out: u64,
        /// Pages that did.
        pub pages_out: u64,
        /// Of these times, because VRAM was needed.
        pub evictions: u64,
        /// Pages that were to move to a GPU and did not.
        pub pages_refused: u64,
        /// Times that 2 MiB or a part came back to VRAM soon after it had left.
        pub bounces: u64,
        /// Migrations that were not made because their memory went to and fro.
        pub damped: u64,
        /// GPU faults served.
        pub faults: u64,
        /// Ranges made for memory that nobody registered.
        pub unregistered: u64,
        /// Ranges, or parts, that went with their memory.
        pub dropped: u64,
        /// Bytes of VRAM that are in use, of all GPUs and by whomever: buffers, SVM memory, page
        /// tables.
        pub vram_used: u64,
        /// `SVM_MEMORY_*`.
        pub memory: u32,
        /// 0.
        pub pad: u32,
    }
}

/// Nothing migrates here.
pub const SVM_MEMORY_NONE: u32 = 0;
/// The CPU and other devices use memory on a GPU in place.
pub const SVM_MEMORY_COHERENT: u32 = 1;
/// Memory on a GPU comes back when the CPU touches it.
pub const SVM_MEMORY_PRIVATE: u32 = 2;

pod! {
    /// An SVM range.
    pub struct SvmRangeInfo {
        /// First address.
        pub start: u64,
        /// Size in bytes.
        pub size: u64,
        /// A gpu_id or `SVM_LOCATION_*`.
        pub preferred: u32,
        /// Where it was last prefetched to, likewise.
        pub prefetch: u32,
        /// `SVM_FLAG_*`.
        pub flags: u32,
        /// log2 of the pages that migrate together.
        pub granularity: u32,
        /// GPUs with ACCESS, a bit for each GPU index.
        pub access: u32,
        /// GPUs with ACCESS_IN_PLACE.
        pub in_place: u32,
        /// GPUs that have pages of it in their VRAM.
        pub on_gpus: u32,
        /// 0.
        pub pad: u32,
        /// Pages of it in VRAM.
        pub vram_pages: u64,
        /// Pages the driver knows the place of.
        pub valid_pages: u64,
    }
}

/// It takes packets.
pub const QUEUE_STATE_RUNNING: u32 = 0;
/// Turned off by UPDATE_QUEUE.
pub const QUEUE_STATE_OFF: u32 = 1;
/// Stopped for good by a page fault.
pub const QUEUE_STATE_FAULTED: u32 = 2;
/// Stopped for good by something it cannot execute.
pub const QUEUE_STATE_BROKEN: u32 = 3;
/// There was no entry.
pub const QUEUE_FAULT_NOT_PRESENT: u32 = 1 << 0;
/// A write where only reading is allowed.
pub const QUEUE_FAULT_READ_ONLY: u32 = 1 << 1;

assert_layout! {
    CapsArgs: 64 {
        version: 4, caps: 8, max_ranges: 16, max_bytes: 24, page_size: 32, max_windows: 40, window_gap: 48,
        restore_pause_ms: 56, register_deadline_ms: 60,
    }
    LastErrorArgs: 40 { has_index: 4, index: 8, address: 16, size: 24, reason: 32 }
    WindowsArgs: 16 { per_range: 8 }
    MoveArgs: 48 { size: 8, gpu_id: 16, direction: 20, moved: 24, resident: 32, released: 40 }
    MeasureArgs: 40 { num_ranges: 8, what: 12, pages: 16, nanoseconds: 24 }
    SnapshotArgs: 40 { index: 4, handle: 8, buffer: 16, capacity: 24, count: 28, total: 32 }
    ProcessInfo: 176 { userptr_bytes: 24, notifiers: 48, driver_bytes: 88, tlb_flushes: 160, evicted: 168, xnack: 172 }
    BoInfo: 80 { flags: 24, gpu_id: 28, mapped_gpus: 32, kind: 36, ranges: 40, driver_bytes: 72 }
    QueueInfo: 48 { gpu_id: 4, queue_type: 8, state: 12, fault: 16, ring: 24, ring_size: 32, fault_va: 40 }
    SvmInfo: 136 { bytes: 8, evictions: 64, faults: 96, vram_used: 120, memory: 128 }
    SvmRangeInfo: 64 { preferred: 16, granularity: 28, on_gpus: 40, vram_pages: 48, valid_pages: 56 }
    RangeInfo: 40 { size: 8, gpu_va: 16, generation: 24, state: 32 }
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    #[test]
    fn own_commands_stay_clear_of_amds() {
        for own in ALL.iter().map(|known| known.command) {
            assert!(command::ALL.iter().all(|known| known.command.number() < 0x80));
            assert!(own.number() >= 0xe0);
            assert_eq!(command::name(own), None);
            assert!(name(own).is_some());
        }
        assert_eq!(name(command::SVM), None);
    }

    #[test]
    fn every_reason_has_its_own_text() {
        for reason in REASON_NONE..=REASON_NO_VRAM {
            let text = reason_text(reason);
            assert!(text.is_some());
            assert!((REASON_NONE..reason).all(|other| reason_text(other) != text));
        }
        assert_eq!(reason_text(REASON_NO_VRAM + 1), None);
    }
}
