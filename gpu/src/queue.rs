// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues: rings of packets in GPU memory, each worked off by a thread of its own.
//!
//! The thread polls its doorbell, reads packets through its [`Port`], and writes the read pointer back after
//! each. An error halts it: it reports, and then waits to be removed. It sees removal at the latest at its
//! next access, and in every wait.
//!
//! The ring's place is guarded by the mutex in [`Control`]; everything else in there is immutable or atomic.

use crate::access::{Port, Stop};
use crate::aql::Aql;
use crate::bell::Idle;
use crate::bus::{FaultReason, PageFault, Vmid};
use crate::compute::Compute;
use crate::counters::count;
use crate::gpu::{GpuError, Shared};
use crate::pm4::Pm4;
use crate::pool;
use crate::raw;
use crate::sdma::Sdma;
use crate::vmid::{lock, SlotClaim};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use vkfd_cu::launch::LaunchError;

/// A queue of one GPU. Not reused while the GPU lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

/// What the packets in a queue are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// SDMA packets. Doorbell and pointers count bytes and only grow.
    Sdma,
    /// AQL packets. The doorbell is the index of the last packet, the pointers are indices and only grow.
    Aql,
    /// PM4 packets. The doorbell counts 32-bit words and only grows; the read pointer is the place in the ring, 32 bits.
    Pm4,
}

/// An 8-byte doorbell slot in shared memory.
#[derive(Clone)]
pub struct DoorbellPtr {
    ptr: NonNull<u64>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the slot is only accessed by recoverable word accesses, and the keeper may be dropped anywhere.
unsafe impl Send for DoorbellPtr {}
// SAFETY: as above.
unsafe impl Sync for DoorbellPtr {}

impl DoorbellPtr {
    /// A doorbell at `ptr`; `keeper` owns the mapping and is held as long as the doorbell is used.
    ///
    /// # Safety
    /// `ptr` is aligned to 8 bytes and stays a mapping of the doorbell as long as `keeper` lives.
    pub unsafe fn new(ptr: NonNull<u64>, keeper: Arc<dyn Any + Send + Sync>) -> DoorbellPtr {
        DoorbellPtr { ptr, _keeper: keeper }
    }

    pub(crate) fn load(&self) -> Result<u64, QueueError> {
        // SAFETY: by the contract of `new`.
        unsafe { raw::load_u64(self.ptr.as_ptr()) }.map_err(QueueError::DoorbellLost)
    }

    fn store(&self, value: u64) -> Result<(), raw::Faulted> {
        // SAFETY: by the contract of `new`.
        unsafe { raw::store_u64(self.ptr.as_ptr(), value) }
    }
}

/// A queue to be added. Addresses are GPU virtual addresses in the queue's VMID.
#[derive(Clone)]
pub struct QueueConfig {
    /// Address space of the ring, the pointers and everything its packets touch.
    pub vmid: Vmid,
    /// Packet format.
    pub kind: QueueKind,
    /// The ring; aligned to 64 bytes.
    pub ring_va: u64,
    /// Size of the ring in bytes; a power of two, at least 256.
    pub ring_bytes: u64,
    /// Where the read pointer is written, 8 bytes, of PM4 the lower 4; 0 for nowhere.
    pub rptr_va: u64,
    /// Where the client keeps its 8-byte write pointer; 0 for nowhere. Read by AQL queues only, when the
    /// doorbell changes: with several producers the doorbell alone may step back.
    pub wptr_va: u64,
    /// The doorbell. Adding the queue sets it to "nothing submitted": 0, or all ones for AQL.
    pub doorbell: DoorbellPtr,
    /// Whether the queue runs at once; see [`Gpu::update_queue`](crate::Gpu::update_queue).
    pub enabled: bool,
}

/// Why a queue halted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A packet that is malformed, unknown or not implemented.
    #[error("packet at byte {offset:#x} of the ring: {message}")]
    BadPacket {
        /// Byte offset of the packet in the ring; for a packet in an indirect buffer, of the packet that
        /// called it.
        offset: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A dispatch on a GPU whose target's instruction set is not known.
    #[error("cannot run kernel {kernel}: this GPU does not execute its target's instruction set")]
    UnknownKernel {
        /// What was to run.
        kernel: KernelName,
    },
    /// A launch that hardware refuses.
    #[error("cannot launch kernel {kernel}: {error}")]
    Launch {
        /// What was to run.
        kernel: KernelName,
        /// What is wrong.
        error: LaunchError,
    },
    /// A kernel that uses scratch on a queue without memory for it.
    #[error("kernel {kernel} needs {bytes} bytes of scratch for each work-item, and the queue has none")]
    NoScratch {
        /// What was to run.
        kernel: KernelName,
        /// Bytes of a work-item.
        bytes: u32,
    },
    /// A kernel did something that ends it.
    #[error("kernel {kernel}, {at}: {cause}")]
    Kernel {
        /// What ran.
        kernel: KernelName,
        /// Which wave, and where.
        at: WaveAt,
        /// What happened.
        cause: KernelError,
    },
    /// A page fault that was not recovered.
    #[error("page fault: {0}")]
    Fault(PageFault),
    /// A word access to an address that is not a multiple of its size.
    #[error("GPU address {va:#x} is not aligned to {bytes} bytes")]
    Unaligned {
        /// GPU address.
        va: u64,
        /// Bytes of the word.
        bytes: usize,
    },
    /// A doorbell value that is no whole number of words, or more than a ring ahead of the read pointer.
    #[error("doorbell value {doorbell:#x} does not fit read pointer {rptr:#x} and a ring of {ring_bytes:#x} bytes")]
    BadDoorbell {
        /// Value of the doorbell.
        doorbell: u64,
        /// Read pointer.
        rptr: u64,
        /// Size of the ring.
        ring_bytes: u64,
    },
    /// The doorbell's memory is gone.
    #[error("the doorbell cannot be read: {0}")]
    DoorbellLost(raw::Faulted),
}

impl QueueError {
    /// The page fault that this is about, if any.
    pub(crate) fn fault(&self) -> Option<&PageFault> {
        match self {
            QueueError::Fault(fault) | QueueError::Kernel { cause: KernelError::Fault(fault), .. } => Some(fault),
            _ => None,
        }
    }
}

/// A kernel, as far as its name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// GPU address of the kernel object (AQL) or of the program (PM4).
    pub object: u64,
    /// Its name in the code object that it was loaded with, if that can be found.
    pub name: Option<String>,
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("(of unknown name)");
        write!(f, "{name} at GPU address {:#x}", self.object)
    }
}

/// A wave of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaveAt {
    /// Index of its work-group.
    pub group: [u32; 3],
    /// Its index in the work-group.
    pub wave: u16,
    /// Its program counter.
    pub pc: u64,
    /// The same, from the program's begin.
    pub offset: u64,
}

impl fmt::Display for WaveAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.group;
        let WaveAt { wave, pc, offset, .. } = self;
        write!(f, "work-group ({x}, {y}, {z}), wave {wave}, pc {pc:#x} (+{offset:#x})")
    }
}

/// What ends a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A page fault that was not recovered.
    #[error("page fault: {0}")]
    Fault(PageFault),
    /// No instruction of the target.
    #[error("illegal instruction {0:#010x}")]
    Illegal(u32),
    /// An instruction that this GPU does not execute.
    #[error("instruction {0} is not implemented")]
    Unsupported(String),
    /// A register that the wave does not have.
    #[error("a register beyond those that the kernel asked for")]
    Register,
    /// An access outside of LDS or scratch, or one that is not aligned.
    #[error("memory aperture violation at {0:#x}")]
    Aperture(u64),
    /// `s_trap`: assertions and the compilers' traps.
    #[error("trap {number}{}", if *number == 2 { " (abort: an assertion or a trap in the kernel's source)" } else { "" })]
    Trap {
        /// Its number.
        number: u8,
    },
}

/// Where a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) va: u64,
    pub(crate) bytes: u64,
}

impl Ring {
    /// Checks that a ring can be used.
    pub(crate) fn new(va: u64, bytes: u64) -> Result<Ring, GpuError> {
        if va % 64 != 0 || !bytes.is_power_of_two() || bytes < 256 || va.checked_add(bytes).is_none() {
            return Err(GpuError::BadRing { va, bytes });
        }
        Ok(Ring { va, bytes })
    }
}

/// What a queue's thread shares with the GPU's methods.
pub(crate) struct Control {
    pub(crate) id: QueueId,
    pub(crate) vmid: Vmid,
    pub(crate) kind: QueueKind,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) rptr_va: u64,
    pub(crate) wptr_va: u64,
    pub(crate) doorbell: DoorbellPtr,
    pub(crate) enabled: AtomicBool,
    pub(crate) removed: AtomicBool,
}

impl Control {
    /// What stands in for a queue where there is none.
    pub(crate) fn nowhere() -> Arc<Control> {
        let slot = Arc::new(AtomicU64::new(0));
        let doorbell = DoorbellPtr { ptr: NonNull::from(&*slot).cast(), _keeper: slot.clone() };
        Arc::new(Control {
            id: QueueId(u32::MAX),
            vmid: Vmid(0),
            kind: QueueKind::Aql,
            ring: Mutex::new(Ring { va: 0, bytes: 256 }),
            rptr_va: 0,
            wptr_va: 0,
            doorbell,
            enabled: AtomicBool::new(false),
            removed: AtomicBool::new(true),
        })
    }
}

/// A running queue.
pub(crate) struct Queue {
    pub(crate) control: Arc<Control>,
    thread: JoinHandle<()>,
}

impl Queue {
    /// Starts the queue's thread.
    pub(crate) fn start(shared: &Arc<Shared>, control: Arc<Control>, slot: SlotClaim) -> Result<Queue, GpuError> {
        let initial = if control.kind == QueueKind::Aql { u64::MAX } else { 0 };
        control.doorbell.store(initial).map_err(GpuError::Doorbell)?;
        let kind = match control.kind {
            QueueKind::Sdma => "sdma",
            QueueKind::Aql => "aql",
            QueueKind::Pm4 => "pm4",
        };
        let name = format!("gpu{}-{kind}-{}", shared.index, control.id.0);
        let port = Port::new(shared.clone(), control.clone(), slot);
        let mask = SignalMask::block_asynchronous();
        let thread = thread::Builder::new().name(name).spawn(move || run(port)).map_err(GpuError::Thread)?;
        drop(mask);
        Ok(Queue { control, thread })
    }

    /// Makes the thread end, and waits for it unless this is the thread itself, or one that it would have to wait for.
    pub(crate) fn stop(self, shared: &Shared) {
        self.control.removed.store(true, SeqCst);
        shared.slots.want_queue(self.control.id);
        shared.vmid_of(&self.control).wake_all();
        shared.bell.ring();
        let own = self.thread.thread().id() == thread::current().id() || pool::serves(shared.index, self.control.id);
        if !own && self.thread.join().is_err() {
            tracing::error!(queue = self.control.id.0, "queue thread panicked");
        }
    }
}

/// Blocks the signals that a process sends or gets from outside, so that a thread spawned meanwhile never
/// runs the program's handlers for them. Restores the mask when dropped.
pub(crate) struct SignalMask(libc::sigset_t);

impl SignalMask {
    pub(crate) fn block_asynchronous() -> SignalMask {
        // SAFETY: plain calls on local structures.
        unsafe {
            let mut block = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut block);
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
                libc::sigdelset(&mut block, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &block, &mut old);
            SignalMask(old)
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: restores a mask that the kernel filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The packet processors.
enum Engine {
    Sdma(Sdma),
    Aql(Box<Aql>),
    Pm4(Box<(Pm4, Compute)>),
}

fn run(mut port: Port) {
    let (control, shared) = (port.control.clone(), port.shared.clone());
    let mut engine = match control.kind {
        QueueKind::Aql => Engine::Aql(Box::new(Aql::new(&shared.config))),
        QueueKind::Sdma => Engine::Sdma(Sdma::new(shared.config.family)),
        QueueKind::Pm4 => {
            let config = &shared.config;
            Engine::Pm4(Box::new((Pm4::new(config.family), Compute::new(config))))
        }
    };
    let mut idle = Idle::new(&shared.bell);
    let stop = loop {
        let worked = port.check_removed().and_then(|()| match &mut engine {
            Engine::Sdma(sdma) => sdma.step(&mut port),
            Engine::Aql(aql) => aql.step(&mut port),
            Engine::Pm4(both) => both.0.step(&mut port, &mut both.1),
        });
        match worked {
            Ok(true) => {
                count(&shared.counters.packets, 1);
                idle = Idle::new(&shared.bell);
            }
            Ok(false) => idle.wait(&shared.bell, &control.removed),
            Err(stop) => break stop,
        }
    };
    if let Stop::Error(error) = stop {
        if let Some(fault) = error.fault() {
            count(&shared.counters.faults, 1);
            if fault.reason == FaultReason::Stale {
                count(&shared.counters.stale, 1);
            }
            shared.irq.page_fault(*fault);
        }
        count(&shared.counters.queue_errors, 1);
        tracing::debug!(gpu = shared.index, queue = control.id.0, %error, "queue halted");
        // The event first: whoever the runtime's signal wakes finds the queue's state.
        shared.irq.queue_error(control.vmid, control.id, error.clone());
        if control.kind == QueueKind::Aql {
            // It may be removed meanwhile.
            let _ = Aql::failed(&mut port, &error);
        }
        shared.vmid_of(&control).park_while(|| !control.removed.load(SeqCst));
    }
}

/// The queue's ring as it is now.
pub(crate) fn ring(port: &Port) -> Ring {
    *lock(&port.control.ring)
}
