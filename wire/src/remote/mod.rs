// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver's side: a [`Gpu`](vkfd_driver::seams::gpu::Gpu) whose device is another process.
//!
//! Page tables and VRAM are written directly; everything else is a command (`mailbox`). Of each
//! address space the wanted state is kept here ([`VmidState`]), so that a new device process can be
//! told it. There are no locks: calls come from memory reclaim.
//!
//! The host calls [`Remote::service`] when the PCI device interrupts, and also about once a second
//! after [`Remote::check`], since a device may die silently. Both may sleep as far as the driver's
//! interrupt handling does, and run on a thread of the host.
//!
//! What a lost device means: calls with a result fail with ENODEV; suspending and flushing succeed
//! at once, for nothing is in flight; each queue is reported as stopped. The device process that
//! comes next gets the address spaces as they are wanted by then, and new queues can be made. VRAM
//! keeps its contents.
#![expect(clippy::arithmetic_side_effects, reason = "places in VRAM, which lies in the BAR")]

mod gpu;
mod life;
mod mailbox;
mod queues;
mod service;

use crate::bar::Bar;
use crate::command::Command;
use crate::layout;
use crate::vmid::VmidState;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use life::{Life, Phase};
use mailbox::{Failed, Mailboxes, Patience};
use queues::Queues;
use vkfd_driver::base::addr::{FabricAddr, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os::{self, Vec};
use vkfd_driver::seams::gpu::{GpuProperties, Vmid};
use vkfd_driver::topology::Model;

/// One past the highest address of fabric and GPU.
const ADDRESS_END: u64 = 1 << 48;

/// How long things may take. The defaults suit a guest that shares two processors with its device
/// under software emulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Without a heartbeat, while a call waits.
    pub silence: Duration,
    /// For one command.
    pub command: Duration,
    /// For the server to end a device process.
    pub reset: Duration,
    /// For a device process to come, in [`Remote::new`].
    pub start: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(5),
            command: Duration::from_secs(20),
            reset: Duration::from_secs(5),
            start: Duration::from_secs(20),
        }
    }
}

/// Whether there is a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// There is one.
    Live,
    /// There is none, until a new one comes.
    Lost,
}

/// Why the device was lost, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Loss {
    /// The server said so.
    Ended,
    /// No heartbeat.
    Silent,
    /// A heartbeat, but no answer.
    Stuck,
    /// It refused what cannot be refused.
    Refused,
    /// Its interrupts make no sense.
    Corrupt,
    /// The driver ends.
    Stopped,
}

/// A GPU in another process.
pub struct Remote<B: Bar> {
    bar: B,
    limits: Limits,
    properties: GpuProperties,
    /// Where the device says that its VRAM is.
    place: Place,
    /// Where that is for [`Bar`].
    vram_at: u64,
    life: Life,
    mailboxes: Mailboxes,
    /// By VMID: its [`VmidState`].
    vmids: Vec<AtomicU64>,
    queues: Queues,
    /// Interrupts taken in this epoch. Only the servicing thread touches it.
    seen: AtomicU64,
    /// Calls of [`Remote::service`] that have not been answered.
    wanted: AtomicU64,
    /// Epoch whose device could not be attached.
    refused: AtomicU64,
    /// Epoch whose end has been reported.
    reported: AtomicU64,
    /// [`Loss`] of the newest loss.
    loss: AtomicU32,
    /// Newest epoch that was given up and whose end the server has not confirmed.
    unconfirmed: AtomicU64,
}

/// The epoch of the device process that waits for commands.
fn ready_epoch(bar: &impl Bar) -> Option<u64> {
    let epoch = bar.read(layout::EPOCH);
    let ready =
        (1..=life::MAX_EPOCH).contains(&epoch) && bar.read(layout::READY) == epoch && bar.read(layout::DEAD) < epoch;
    ready.then_some(epoch)
}

/// Where VRAM is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the BAR, from this byte on.
    Bar(u64),
    /// In the guest's physical memory.
    Memory(PhysAddr),
}

/// What the GPU says that it is, and where its VRAM is; `None` if that makes no sense.
fn properties(bar: &impl Bar) -> Option<(GpuProperties, Place)> {
    let number = |at| u32::try_from(bar.read(at)).ok().filter(|n| *n != 0);
    let aligned = |at| Some(bar.read(at)).filter(|n| n % layout::VRAM_ALIGN == 0);
    let (vram_phys, vram_bytes) = (aligned(layout::VRAM_PHYS)?, aligned(layout::VRAM_BYTES)?);
    let place = match vram_phys {
        0 => Place::Bar(aligned(layout::VRAM_AT)?),
        phys => Place::Memory(PhysAddr(phys)),
    };
    let reachable = match place {
        Place::Bar(at) => at >= layout::REGISTER_BYTES && at.checked_add(vram_bytes)? <= bar.bytes(),
        Place::Memory(phys) => phys.0.checked_add(vram_bytes)? <= ADDRESS_END,
    };
    let vram_base = FabricAddr(aligned(layout::VRAM_BASE)?);
    let fits = vram_bytes != 0 && reachable && vram_base.checked_add(vram_bytes)?.0 <= ADDRESS_END;
    let gfx_target_version = number(layout::GFX_TARGET)?;
    let product = *Model::of(gfx_target_version);
    let units = number(layout::UNITS).filter(|units| *units <= product.units)?;
    let properties = GpuProperties {
        gpu_id: number(layout::GPU_ID)?,
        vram_bytes,
        vram_base,
        vmids: number(layout::VMIDS).filter(|n| (2..=layout::MAX_VMIDS).contains(n))?,
        gfx_target_version,
        model: product.with_units(units),
        xnack_capable: bar.read(layout::FLAGS) & layout::CAN_RETRY != 0,
        clock_hz: Some(bar.read(layout::CLOCK_HZ)).filter(|hz| *hz != 0)?,
    };
    fits.then_some((properties, place))
}

fn same(a: &GpuProperties, b: &GpuProperties) -> bool {
    (a.gpu_id, a.vram_bytes, a.vram_base, a.vmids) == (b.gpu_id, b.vram_bytes, b.vram_base, b.vmids)
        && (a.gfx_target_version, a.xnack_capable, a.clock_hz) == (b.gfx_target_version, b.xnack_capable, b.clock_hz)
        && a.model.units == b.model.units
}

impl<B: Bar> Remote<B> {
    /// Takes the GPU behind `bar` over, with VRAM all zero. Waits for its process to come; sleeps.
    ///
    /// # Errors
    /// ENODEV if the BAR is not one of a `vkfd-gpu`, or no device process comes in time; EFAULT if
    /// the device has another memory for the guest's RAM; ENOMEM. The log has the reason.
    pub fn new(mut bar: B, limits: Limits) -> Result<Self> {
        let known = bar.bytes() >= layout::REGISTER_BYTES && bar.read(layout::MAGIC) == layout::MAGIC_VALUE;
        if !known {
            os::warn(format_args!(
                "gpu: BAR 2 is not that of a vkfd-gpu: is the right server on the chardev's socket?"
            ));
            return Err(Errno::ENODEV.into());
        }
        let version = bar.read(layout::VERSION);
        if version != layout::VERSION_VALUE {
            let ours = layout::VERSION_VALUE;
            os::warn(format_args!(
                "gpu: vkfd-gpu speaks version {version}, this driver {ours}: build both from one tree"
            ));
            return Err(Errno::ENODEV.into());
        }
        let epoch = Self::fresh_epoch(&bar, &limits)?;
        let Some((properties, place)) = properties(&bar) else {
            os::warn(format_args!("gpu: the device's description of itself makes no sense"));
            return Err(Errno::ENODEV.into());
        };
        let vram_at = match place {
            Place::Bar(at) => at,
            Place::Memory(phys) => Self::map_vram(&mut bar, &properties, phys)?,
        };
        let mut vmids = Vec::with_capacity(properties.vmids as usize)?;
        for _ in 0..properties.vmids {
            vmids.push(AtomicU64::new(0))?;
        }
        let this = Self {
            bar,
            limits,
            place,
            vram_at,
            life: Life::new(),
            mailboxes: Mailboxes::new(),
            vmids,
            queues: Queues::new()?,
            seen: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            loss: AtomicU32::new(Loss::Ended as u32),
            unconfirmed: AtomicU64::new(0),
            properties,
        };
        // On failure dropping ends a device process that was attached, so that nothing of it stays
        // behind.
        this.attach(epoch)?;
        this.call(epoch, &Command::Clear { at: VramOffset(0), bytes: this.properties.vram_bytes })
            .map_err(Errno::from)?;
        Ok(this)
    }

    /// Maps VRAM that is in the guest's physical memory.
    fn map_vram(bar: &mut B, properties: &GpuProperties, phys: PhysAddr) -> Result<u64> {
        let bytes = properties.vram_bytes;
        bar.map_memory(phys, bytes).inspect_err(|error| {
            os::warn(format_args!(
                "gpu {:#x}: its {} MiB of memory at {:#x} cannot be used (errno {}); keep it from being RAM: memmap={}M${:#x} on the kernel's command line",
                properties.gpu_id,
                bytes >> 20,
                phys.0,
                error.errno.0,
                bytes >> 20,
                phys.0
            ));
        })
    }

    /// Waits for a device process that no driver has used: one that an earlier boot used may still
    /// have queues on memory that is ours now.
    fn fresh_epoch(bar: &B, limits: &Limits) -> Result<u64> {
        let used = bar.read(layout::ATTACHED);
        let mut patience = Patience::new();
        let mut asked = false;
        while !patience.exceeds(limits.start) {
            match ready_epoch(bar) {
                Some(epoch) if epoch > used => return Ok(epoch),
                Some(epoch) if !asked => {
                    asked = true;
                    bar.write(layout::RESET, epoch);
                    bar.fence();
                    bar.doorbell(layout::RESET_LINE);
                }
                _ => {}
            }
            os::sleep(Duration::from_millis(1));
            patience.turn(bar);
        }
        os::warn(format_args!("gpu: no device process came; see the log of vkfd-gpu"));
        Err(Errno::ENODEV.into())
    }

    /// The BAR.
    pub const fn bar(&self) -> &B {
        &self.bar
    }

    /// How long things may take.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Where a byte of VRAM is for [`Bar`]; for a client's mapping of it.
    pub const fn bar_offset(&self, at: VramOffset) -> u64 {
        self.vram_at + at.0
    }

    /// Whether there is a device.
    pub fn condition(&self) -> Condition {
        match self.life.now() {
            (_, Phase::Live) => Condition::Live,
            _ => Condition::Lost,
        }
    }

    /// Takes the device process `epoch` over, from [`Phase::Lost`]. Only in [`Remote::new`] and by
    /// a thread that services.
    fn attach(&self, epoch: u64) -> Result {
        let probe = self.bar.alloc_dma(PAGE)?;
        // Any value that is not there by chance.
        let nonce = os::now().0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ !epoch;
        probe.write_u64(0, nonce);
        self.bar.write(layout::ATTACHED, epoch);
        self.bar.write(layout::INTERRUPTS_SEEN, 0);
        self.seen.store(0, SeqCst);
        self.life.begin(epoch);
        let result = self.call(epoch, &Command::Attach { probe: probe.page(0), nonce });
        if let Err(failed) = result {
            let errno = Errno::from(failed);
            if let Failed::Refused(_) = failed {
                let why = if errno == Errno::EFAULT {
                    "it has not this guest's RAM: compare vkfd-gpu's --ram, --machine and --below-4g with QEMU's options"
                } else {
                    "see the log of vkfd-gpu"
                };
                os::warn(format_args!("gpu {:#x}: the device refuses ({}): {why}", self.id(), errno.name()));
                // It stays as it is, without a queue: another one would refuse as well.
                self.refused.store(epoch, SeqCst);
                self.lost(epoch, Loss::Refused);
            }
            return Err(errno.into());
        }
        for (vmid, state) in (0..).map(Vmid).zip(self.vmids.iter()) {
            let state = VmidState::from_word(state.load(SeqCst));
            if state != VmidState::default() {
                self.tell(epoch, &Command::SetVmid { vmid, state });
            }
        }
        if self.life.change(epoch, Phase::Replaying, Phase::Live) {
            return Ok(());
        }
        Err(Errno::ENODEV.into())
    }

    fn id(&self) -> u32 {
        self.properties.gpu_id
    }

    /// Whether the device of `epoch` can be reached. Notices when the server has confirmed its end.
    fn is_reachable(&self, epoch: u64) -> bool {
        if self.life.reachable() != Some(epoch) {
            return false;
        }
        let ended = self.bar.read(layout::DEAD) >= epoch || self.bar.read(layout::EPOCH) != epoch;
        if ended {
            self.lost(epoch, Loss::Ended);
        }
        !ended
    }

    fn lost(&self, epoch: u64, loss: Loss) {
        let gone = |from| self.life.change(epoch, from, Phase::Lost);
        if gone(Phase::Live) || gone(Phase::Replaying) {
            self.loss.store(loss as u32, SeqCst);
        }
    }

    /// Gives the device of `epoch` up: has the server end it. When this returns it has ended, or
    /// nobody can end it.
    fn give_up(&self, epoch: u64, loss: Loss) {
        let dying = |from| self.life.change(epoch, from, Phase::Dying);
        if !dying(Phase::Live) && !dying(Phase::Replaying) {
            return self.wait_dying(epoch);
        }
        self.loss.store(loss as u32, SeqCst);
        self.bar.write(layout::RESET, epoch);
        self.bar.fence();
        self.bar.doorbell(layout::RESET_LINE);
        let mut patience = Patience::new();
        while self.bar.read(layout::DEAD) < epoch {
            if patience.exceeds(self.limits.reset) {
                self.unconfirmed.store(epoch, SeqCst);
                break;
            }
            patience.turn(&self.bar);
        }
        self.life.change(epoch, Phase::Dying, Phase::Lost);
    }

    /// Sends what the device cannot refuse, and what a lost device has done already.
    fn tell(&self, epoch: u64, command: &Command) {
        if let Err(Failed::Refused(_)) = self.call(epoch, command) {
            self.give_up(epoch, Loss::Refused);
        }
    }

    /// As [`Remote::tell`], to whatever device there is.
    fn tell_any(&self, command: &Command) {
        match self.life.now() {
            (epoch, Phase::Live | Phase::Replaying) => self.tell(epoch, command),
            (epoch, Phase::Dying) => self.wait_dying(epoch),
            (_, Phase::Lost) => {}
        }
    }

    /// Changes what is wanted of an address space, and tells the device.
    fn set_vmid(&self, vmid: Vmid, change: impl Fn(VmidState) -> VmidState) {
        let vmid = Vmid::new(vmid.number(), 0);
        let Some(wanted) = self.vmids.get(vmid.0 as usize) else {
            debug_assert!(false, "VMID {} of {}", vmid.0, self.vmids.len());
            return;
        };
        let change = |word| change(VmidState::from_word(word)).next();
        let mut seen = wanted.load(SeqCst);
        let state = loop {
            let state = change(seen);
            match wanted.compare_exchange(seen, state.word(), SeqCst, SeqCst) {
                Ok(_) => break state,
                Err(now) => seen = now,
            }
        };
        // After the change: see `life`.
        self.tell_any(&Command::SetVmid { vmid, state });
    }

    /// Ends the device process. Nothing of it touches memory when this returns. No more than the
    /// queues' end is left to [`Remote::service`].
    pub fn stop(&self) {
        if let Some(epoch) = self.life.reachable() {
            self.give_up(epoch, Loss::Stopped);
        }
    }
}

impl<B: Bar> Drop for Remote<B> {
    /// As [`Remote::stop`].
    fn drop(&mut self) {
        self.stop();
    }
}
