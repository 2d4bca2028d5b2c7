// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest: a BAR, a thread that takes interrupts, and the driver's side of the wire.

use crate::ram::{Dma, Ram};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use vkfd_device::ivshmem::Setup;
use vkfd_driver::base::addr::{index, PhysAddr};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::gpu::{DmaMemory, HwQueue, Interrupts, PageFault, Vmid};
use vkfd_gpu::raw;
pub use vkfd_sim::patience::{until, PATIENCE as HANG};
use vkfd_wire::{layout, Bar, Limits, Remote};

/// Tells threads to end, also when the test fails: otherwise it would wait for them for ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// BAR 2 as mapped memory, the doorbell register as eventfds.
pub struct TestBar {
    memory: OwnedFd,
    base: NonNull<u8>,
    bytes: u64,
    /// The part of the RAM behind the BAR: address and size.
    beyond: Option<(PhysAddr, u64)>,
    /// The kernel has been told to keep nothing of the RAM for devices.
    pub all_is_ram: bool,
    kick: OwnedFd,
    reset: OwnedFd,
    ram: Arc<Ram>,
    pub kicks: AtomicU64,
    pub resets: AtomicU64,
}

// SAFETY: the mapping lives as long as the value and is only accessed raw.
unsafe impl Send for TestBar {}
// SAFETY: as above.
unsafe impl Sync for TestBar {}

impl TestBar {
    pub fn map(setup: &Setup, ram: Arc<Ram>) -> Self {
        Self::new(&setup.memory, &setup.peers[&layout::DEVICE_PEER], &setup.peers[&layout::SERVER_PEER], ram)
    }

    /// The same once more, as after a boot.
    pub fn again(&self) -> Self {
        Self::new(&self.memory, &self.kick, &self.reset, self.ram.clone())
    }

    fn new(memory: &OwnedFd, kick: &OwnedFd, reset: &OwnedFd, ram: Arc<Ram>) -> Self {
        let [memory, kick, reset] = [memory, kick, reset].map(|fd| fd.try_clone().unwrap());
        let bytes = rustix::fs::fstat(&memory).unwrap().st_size;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        let len = usize::try_from(bytes).unwrap();
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, &memory, 0) }.unwrap();
        let (base, bytes) = (NonNull::new(base.cast()).unwrap(), bytes.try_into().unwrap());
        let (kicks, resets) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { memory, base, bytes, beyond: None, all_is_ram: false, kick, reset, ram, kicks, resets }
    }

    fn ptr(&self, at: u64, bytes: u64) -> *mut u8 {
        if let Some((phys, size)) = self.beyond.filter(|_| at >= self.bytes) {
            let at = at - self.bytes;
            assert!(at % 8 == 0 && at.checked_add(bytes).unwrap() <= size, "{at:#x} + {bytes:#x} of {size:#x}");
            return self.ram.ptr(PhysAddr(phys.0 + at), index(bytes));
        }
        assert!(at % 8 == 0 && bytes % 8 == 0 && at.checked_add(bytes).unwrap() <= self.bytes, "{at:#x} + {bytes:#x}");
        self.base.as_ptr().wrapping_add(index(at))
    }
}

impl Drop for TestBar {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` mapped.
        unsafe { munmap(self.base.as_ptr().cast(), index(self.bytes)) }.unwrap();
    }
}

impl Bar for TestBar {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn map_memory(&mut self, phys: PhysAddr, bytes: u64) -> Result<u64> {
        if self.all_is_ram {
            return Err(Errno::EBUSY.into());
        }
        assert!(self.beyond.replace((phys, bytes)).is_none(), "mapped twice");
        Ok(self.bytes)
    }
    fn read(&self, at: u64) -> u64 {
        // SAFETY: inside the mapping and aligned.
        unsafe { raw::load_u64(self.ptr(at, 8).cast()) }.unwrap()
    }
    fn write(&self, at: u64, value: u64) {
        // SAFETY: inside the mapping and aligned.
        unsafe { raw::store_u64(self.ptr(at, 8).cast(), value) }.unwrap();
    }
    fn zero(&self, at: u64, bytes: u64) {
        // SAFETY: inside the mapping.
        unsafe { raw::fill(self.ptr(at, bytes), 0, index(bytes)) }.unwrap();
    }
    fn fence(&self) {
        fence(SeqCst);
    }
    fn doorbell(&self, value: u32) {
        let (line, count) = match value {
            layout::KICK => (&self.kick, &self.kicks),
            layout::RESET_LINE => (&self.reset, &self.resets),
            _ => panic!("doorbell {value:#x}"),
        };
        count.fetch_add(1, SeqCst);
        rustix::io::write(line, &1u64.to_ne_bytes()).unwrap();
    }
    fn relax(&self, turn: u32) {
        if turn < 200 {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        Ok(Arc::new(Dma::new(&self.ram, bytes)?))
    }
}

/// What the device reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    Fault(PageFault),
    Event(Vmid, u32),
    Error(HwQueue, String),
}

type Hook = Box<dyn Fn(&Report) + Send>;

/// A driver that only writes down what it is told.
pub struct Sink {
    reports: Mutex<Sender<Report>>,
    /// Called before anything else, and may take its time.
    pub hook: Mutex<Option<Hook>>,
}

impl Sink {
    pub fn new() -> (Arc<Self>, Receiver<Report>) {
        let (reports, receiver) = channel();
        (Arc::new(Self { reports: Mutex::new(reports), hook: Mutex::new(None) }), receiver)
    }

    fn report(&self, report: Report) {
        if let Some(hook) = &*self.hook.lock().unwrap() {
            hook(&report);
        }
        // Nobody listens at the end of a test.
        let _ = self.reports.lock().unwrap().send(report);
    }
}

impl Interrupts for Sink {
    fn page_fault(&self, _: u32, fault: PageFault) {
        self.report(Report::Fault(fault));
    }
    fn signal_event(&self, _: u32, vmid: Vmid, event_id: u32) {
        self.report(Report::Event(vmid, event_id));
    }
    fn queue_stops(&self, _: u32, _: Vmid, queue: HwQueue, message: &str) {
        self.report(Report::Error(queue, message.into()));
    }
    fn queue_error(&self, _: u32, _: Vmid, _: HwQueue) {}
}

/// For machines that are busy with other tests.
pub fn limits() -> Limits {
    let long = Duration::from_secs(30);
    Limits { silence: long, command: long, reset: long, start: long }
}

/// The driver's side with a thread that takes its interrupts, as a kernel module has.
pub struct Guest {
    pub remote: Arc<Remote<TestBar>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    /// A guest whose interrupts go to `driver`.
    pub fn new(remote: Arc<Remote<TestBar>>, interrupt: OwnedFd, driver: Arc<dyn Interrupts>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (served, ended) = (remote.clone(), stop.clone());
        let thread = std::thread::spawn(move || serve(&served, &interrupt, &*driver, &ended));
        Self { remote, stop, thread: Some(thread) }
    }
}

fn serve(remote: &Remote<TestBar>, interrupt: &OwnedFd, driver: &dyn Interrupts, stop: &AtomicBool) {
    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    while !stop.load(SeqCst) {
        let raised = poll(&mut [PollFd::from_borrowed_fd(interrupt.as_fd(), PollFlags::IN)], Some(&pause)).unwrap();
        if raised == 0 {
            remote.check();
        } else {
            rustix::io::read(interrupt, &mut [0; 8]).unwrap();
        }
        remote.service(driver);
    }
}

impl Guest {
    /// Takes no interrupts any more, as after a crash.
    pub fn halt(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking(), "the interrupt thread panicked");
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.halt();
    }
}
