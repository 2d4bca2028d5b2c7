// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The PCI driver: finds the GPUs, each QEMU's `ivshmem-doorbell` device with a `vkfd-gpu` behind
//! it, and serves their interrupts.
//!
//! The driver takes what is there when the module is loaded ([`Gpus`]), so that a process's GPUs
//! are the same as long as it lives. A device that is unbound later is a GPU that was lost: its
//! process outside is ended, calls fail with ENODEV.
//!
//! An interrupt's thread, and once a second a work item, have the device serviced
//! ([`vkfd_wire::Remote::service`]): the work item notices devices that die silently.

use crate::bar::PciBar;
use crate::device_memory::GpuMemory;
use crate::machine::RemoteGpu;
use core::time::Duration;
use kernel::device::Core;
use kernel::irq::{self, IrqReturn, ThreadedHandler, ThreadedRegistration};
use kernel::pci::{self, IrqType, IrqTypes, IrqVectorRegistration};
use kernel::prelude::*;
use kernel::sync::{Arc, SetOnce};
use kernel::ThisModule;
use vkfd_driver::seams::device_memory::Migration;
use vkfd_driver::machine::kfd::{Kfd, MAX_GPUS};
use vkfd_driver::os::{self, Vec, Work};
use vkfd_wire::{Limits, Remote};

const IVSHMEM: u32 = 0x1110;

/// How often a device is asked whether it is there.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

kernel::sync::global_lock! {
    // SAFETY: initialised by `Gpus::new`, before the PCI driver is registered.
    unsafe(uninit) static FOUND: Mutex<Found> = Found::Closed;
}

enum Found {
    /// No devices are taken.
    Closed,
    /// The module is being loaded: what their memory is to be, and these so far.
    Open(Migration, Vec<Arc<Serviced>>),
}

/// A GPU and the receiver of its interrupts.
struct Serviced {
    gpu: Arc<RemoteGpu>,
    memories: Vec<Arc<GpuMemory>>,
    /// Once there is one.
    kfd: SetOnce<Arc<Kfd>>,
    check: Work<Serviced>,
}

impl Serviced {
    fn service(&self) {
        if let Some(kfd) = self.kfd.as_ref() {
            self.gpu.service(&**kfd);
        }
    }

    fn check(self: &Arc<Self>) {
        self.gpu.check();
        self.service();
        self.check.schedule(self, CHECK_INTERVAL);
    }
}

/// The interrupt.
struct Line(Arc<Serviced>);

impl ThreadedHandler for Line {
    fn handle_threaded(&self) -> IrqReturn {
        self.0.service();
        IrqReturn::Handled
    }
}

/// A bound device. The fields go in this order: first nobody calls any more, then the device is
/// ended.
#[pin_data(PinnedDrop)]
pub(crate) struct Device<'bound> {
    #[pin]
    line: ThreadedRegistration<'bound, Line>,
    vectors: KBox<IrqVectorRegistration<'bound>>,
    serviced: Arc<Serviced>,
}

#[pinned_drop]
impl PinnedDrop for Device<'_> {
    fn drop(self: Pin<&mut Self>) {
        self.serviced.check.stop();
        self.serviced.gpu.stop();
        self.serviced.service();
        // What processes have there they have elsewhere from now on.
        for memory in self.serviced.memories.iter() {
            memory.close();
        }
    }
}

/// The driver.
pub(crate) struct Driver;

kernel::pci_device_table!(
    PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, IVSHMEM), ())]
);

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Device<'bound>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        device: &'bound pci::Device<Core<'_>>,
        _: Option<&'bound ()>,
    ) -> impl PinInit<Device<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let kinds = match &*FOUND.lock() {
                Found::Open(kinds, found) if found.len() < MAX_GPUS => *kinds,
                Found::Open(..) => {
                    dev_warn!(device, "not used: {MAX_GPUS} GPUs are the most\n");
                    return Err(ENOSPC);
                }
                Found::Closed => {
                    dev_warn!(device, "found too late: unload the module and load it again to use this GPU\n");
                    return Err(ENODEV);
                }
            };
            device.enable_device_mem()?;
            // Message-signalled interrupts are writes of the device.
            device.set_master();
            let gpu = os::arc(Remote::new(PciBar::new(device)?, Limits::default())?)?;
            let serviced = os::arc(Serviced {
                memories: GpuMemory::of(&gpu, kinds)?,
                gpu,
                kfd: SetOnce::new(),
                check: Work::new("vkfd-check", Serviced::check)?,
            })?;
            let vectors = device.alloc_irq_vectors(1, 1, IrqTypes::default().with(IrqType::MsiX))?;
            let vectors = KBox::new(vectors, GFP_KERNEL)?;
            // SAFETY: the box is kept until the registration, which borrows it, has been dropped
            // (order of the fields).
            let borrowed: &'bound IrqVectorRegistration<'bound> = unsafe { &*core::ptr::from_ref(&*vectors) };
            let vector = borrowed.index(0)?;
            let handler = Line(serviced.clone());
            Ok(try_pin_init!(Device {
                // SAFETY: what is initialised here is dropped when the device is unbound.
                line <- unsafe {
                    ThreadedRegistration::new(vector.into(), irq::Flags::TRIGGER_NONE, c"vkfd", Ok::<_, Error>(handler))
                },
                vectors,
                _: {
                    if let Found::Open(_, found) = &mut *FOUND.lock() {
                        found.push(serviced.clone())?;
                    }
                },
                serviced,
            }? Error))
        })
    }
}

/// The PCI driver, registered, and the GPUs it found.
pub(crate) struct Gpus {
    found: Vec<Arc<Serviced>>,
    _driver: Pin<KBox<kernel::driver::Registration<pci::Adapter<Driver>>>>,
}

impl Gpus {
    /// Registers the driver, which makes pages of these kinds for each GPU's memory; returns when
    /// all devices that are there have been tried.
    ///
    /// # Safety
    ///
    /// Once in the life of the module.
    pub(crate) unsafe fn new(module: &'static ThisModule, name: &'static CStr, kinds: Migration) -> Result<Self> {
        // SAFETY: forwarded to the caller.
        unsafe { FOUND.init() };
        *FOUND.lock() = Found::Open(kinds, Vec::new());
        let driver = KBox::pin_init(kernel::driver::Registration::new(name, module), GFP_KERNEL);
        let found = core::mem::replace(&mut *FOUND.lock(), Found::Closed);
        let Found::Open(_, found) = found else { return Err(EINVAL) };
        Ok(Self { found, _driver: driver? })
    }

    /// The GPUs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<RemoteGpu>> {
        self.found.iter().map(|serviced| &serviced.gpu)
    }

    /// Their memory.
    pub(crate) fn memories(&self) -> Result<Vec<Arc<GpuMemory>>> {
        let mut all = Vec::new();
        for memory in self.found.iter().flat_map(|serviced| serviced.memories.iter()) {
            all.push(memory.clone())?;
        }
        Ok(all)
    }

    /// Has `kfd` notified of their interrupts from now on.
    pub(crate) fn connect(&self, kfd: &Arc<Kfd>) {
        for serviced in self.found.iter() {
            serviced.kfd.populate(kfd.clone());
            serviced.check();
        }
    }
}
