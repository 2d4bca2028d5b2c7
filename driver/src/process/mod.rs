// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process: the owner of everything that one open of the device gets, and its restore worker.
//!
//! The lock of rank `Process` guards [`Inner`]: the handle table, the reservations of GPU
//! addresses, and queues. It is never held while pages are faulted in: an object is entered under
//! it, built without it, and becomes visible at the end. Objects point back at their process;
//! [`Process::release`] breaks that circle.

mod copy_out;
mod facts;
pub mod last_error;
pub mod offsets;
mod owner;
mod serve_faults;
pub mod svm;

use crate::base::addr::{CpuSpan, PAGE};
use crate::base::counters::Counters;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::base::lock_rank::Rank;
use crate::buffers::bo::Bo;
use crate::collections::handle::Handles;
use crate::collections::interval::IntervalMap;
use crate::device::limit::Limit;
use crate::device::smi::{Event, Who};
use crate::device::Device;
use crate::gpuvm::vm::{Vm, DOORBELL_BYTES};
use crate::machine::kfd::Kfd;
use crate::os::{self, Arc, Mutex, MutexGuard, Time, Vec, Work};
use crate::process::last_error::LastErrors;
use crate::process::offsets::{Offsets, Shown};
use crate::queues::event::Events;
use crate::queues::eviction::Eviction;
use crate::queues::fault::Faults;
use crate::queues::queue::{Queues, State};
use crate::sabotage::{Switch, Switches};
use crate::seams::address_space::AddressSpace;
use crate::seams::gpu::{HwQueue, PageFault};
use crate::svm::Svm;
use crate::userptr::window::WindowPolicy;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

/// From an invalidation to the first try to restore, as KFD has it: more invalidations usually
/// follow.
const RESTORE_PAUSE: Duration = Duration::from_millis(1);

/// What the process lock guards.
pub struct Inner {
    /// By GPU number; a VM from ACQUIRE_VM on.
    pub(crate) vms: Vec<Option<Arc<Vm>>>,
    /// Buffer objects, also those not ready yet.
    pub(crate) bos: Handles<Arc<Bo>>,
    /// GPU addresses of buffer objects.
    pub(crate) gpu_va: IntervalMap<u32>,
    /// CPU hulls of userptr objects.
    pub(crate) cpu_hulls: IntervalMap<u32>,
    pub(crate) queues: Queues,
    /// How ranges registered from now on share notifiers.
    pub(crate) windows: WindowPolicy,
    /// The process has ended: nothing enters its tables any more.
    pub(crate) released: bool,
    /// The runtime has announced itself.
    pub(crate) runtime_enabled: bool,
    /// Handle of the object that the client brought for the signal page. It stays as long as the
    /// process, as KFD has it.
    pub(crate) signal_page: Option<u64>,
}

impl Inner {
    /// ESRCH once the process has ended.
    pub(crate) fn check_open(&self) -> Result {
        match self.released {
            true => Err(Errno::ESRCH.into()),
            false => Ok(()),
        }
    }
}

/// A process.
pub struct Process {
    kfd: Arc<Kfd>,
    number: u64,
    mm: Arc<dyn AddressSpace>,
    /// The account of memory that it registers.
    registered: Arc<Limit>,
    inner: Mutex<Inner>,
    offsets: Offsets,
    eviction: Eviction,
    events: Events,
    errors: LastErrors,
    counters: Counters,
    faults: Faults,
    svm: Svm,
    /// What its first thread was called when it opened the device.
    name: [u8; 16],
    pid: u32,
    xnack: AtomicBool,
    restore: Work<Process>,
    look: Work<Process>,
    fault_work: Work<Process>,
    /// Restores in a row that did not finish.
    restore_tries: AtomicU32,
    /// Looks for memory since a restore last lacked some.
    looks: AtomicU32,
}

impl Kfd {
    /// A process opens the device: an object with no VM yet.
    pub fn open(self: &Arc<Self>, mm: Arc<dyn AddressSpace>) -> Result<Arc<Process>> {
        self.open_accounted(mm, self.limit().clone())
    }

    /// As [`open`](Self::open), for a process whose registered memory counts in `registered` and
    /// not against the machine's limit.
    pub fn open_accounted(self: &Arc<Self>, mm: Arc<dyn AddressSpace>, registered: Arc<Limit>) -> Result<Arc<Process>> {
        Process::new(self, self.next_process(), mm, registered)
    }
}

impl Process {
    /// A process without VMs.
    pub fn new(kfd: &Arc<Kfd>, number: u64, mm: Arc<dyn AddressSpace>, registered: Arc<Limit>) -> Result<Arc<Self>> {
        let gpus = kfd.devices().len();
        let mut vms = Vec::with_capacity(gpus)?;
        for _ in 0..gpus {
            vms.push(None)?;
        }
        let inner = Inner {
            vms,
            bos: Handles::new(),
            gpu_va: IntervalMap::seeded(os::random()),
            cpu_hulls: IntervalMap::seeded(os::random()),
            queues: Queues::new(gpus)?,
            windows: kfd.options().windows,
            released: false,
            runtime_enabled: false,
            signal_page: None,
        };
        let (pid, name) = mm.identity().unwrap_or_else(os::process);
        os::arc(Self {
            kfd: kfd.clone(),
            number,
            mm,
            registered,
            inner: Mutex::new(Rank::Process, inner)?,
            offsets: Offsets::new()?,
            eviction: Eviction::new(&kfd.options().sabotage)?,
            events: Events::new()?,
            errors: LastErrors::new()?,
            counters: Counters::default(),
            faults: Faults::new()?,
            svm: Svm::new(kfd.limit(), &kfd.options().sabotage)?,
            name,
            pid,
            xnack: AtomicBool::new(false),
            restore: Work::new("vkfd-restore", Self::run_restore)?,
            look: Work::new("vkfd-look", Self::run_look)?,
            fault_work: Work::new("vkfd-fault", Self::serve_faults)?,
            restore_tries: AtomicU32::new(0),
            looks: AtomicU32::new(0),
        })
    }

    /// The driver.
    pub const fn kfd(&self) -> &Arc<Kfd> {
        &self.kfd
    }

    /// A number that no other process of the machine has had.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its CPU memory.
    pub fn mm(&self) -> &dyn AddressSpace {
        &*self.mm
    }

    /// Its CPU memory, to keep.
    pub(crate) const fn mm_arc(&self) -> &Arc<dyn AddressSpace> {
        &self.mm
    }

    /// The account of memory that it registers.
    pub(crate) const fn registered(&self) -> &Arc<Limit> {
        &self.registered
    }

    /// Which user's it is.
    pub fn user(&self) -> u32 {
        self.mm.user()
    }

    /// Its SVM memory.
    pub const fn svm(&self) -> &Svm {
        &self.svm
    }

    /// Its identity, for events.
    pub fn who(&self) -> Who {
        Who { process: self.number, pid: self.pid, name: self.name }
    }

    /// Sends an event to the readers of a GPU's events.
    pub(crate) fn tell(&self, gpu_id: u32, event: Event) {
        if let Ok(device) = self.kfd.device(gpu_id) {
            device.smi().send(gpu_id, &self.who(), event, true);
        }
    }

    /// Sends an event to the readers of some GPUs' events, by GPU number. Allowed in reclaim.
    pub(crate) fn tell_gpus(&self, gpus: u32, event: Event, blockable: bool) {
        for device in self.kfd.devices().iter().filter(|device| gpus >> device.index() & 1 != 0) {
            device.smi().send(device.id(), &self.who(), event, blockable);
        }
    }

    /// Stops the queues, if they run. Allowed in reclaim.
    pub(crate) fn evict_queues(&self, eviction: &mut crate::queues::eviction::State, trigger: u32, blockable: bool) {
        if eviction.evict() {
            self.counters.evictions.add(1);
            self.tell_queues(eviction, Event::Evicted { trigger }, blockable);
        }
    }

    fn tell_queues(&self, eviction: &crate::queues::eviction::State, event: Event, blockable: bool) {
        eviction.each_gpu(|gpu_id| {
            if let Ok(device) = self.kfd.device(gpu_id) {
                device.smi().send(gpu_id, &self.who(), event, blockable);
            }
        });
    }

    /// Takes the process lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// What it can map.
    pub(crate) const fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// Its eviction state.
    pub const fn eviction(&self) -> &Eviction {
        &self.eviction
    }

    /// Its events.
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// Its last errors, by thread.
    pub(crate) const fn errors(&self) -> &LastErrors {
        &self.errors
    }

    /// Its counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// GPU faults that wait to be served.
    pub(crate) const fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What is broken on purpose.
    pub fn sabotage(&self) -> &Switches {
        &self.kfd.options().sabotage
    }

    pub(crate) fn before_commit(&self, span: CpuSpan) {
        self.kfd.options().before_commit(span);
    }

    /// How many GPUs the machine has.
    pub fn gpu_count(&self) -> usize {
        self.kfd.devices().len()
    }

    /// Whether its GPUs retry page faults.
    pub fn xnack(&self) -> bool {
        self.xnack.load(Ordering::Acquire)
    }

    /// The VM on GPU number `gpu`. ENODEV before ACQUIRE_VM.
    pub(crate) fn vm(&self, gpu: usize) -> Result<Arc<Vm>> {
        let vm = self.lock().vms.get(gpu).and_then(Clone::clone);
        vm.ok_or(Error::new(Errno::ENODEV, Reason::BadGpu))
    }

    /// The object of a handle. EINVAL when there is none.
    pub(crate) fn bo(&self, handle: u64) -> Result<Arc<Bo>> {
        let inner = self.lock();
        let number = u32::try_from(handle & 0xffff_ffff).unwrap_or(u32::MAX);
        let bo = inner.bos.get(number).filter(|bo| bo.is_ready() && bo.handle() == handle);
        bo.cloned().ok_or(Error::new(Errno::EINVAL, Reason::BadHandle))
    }

    /// The first object from number `number` on, with its number. O(numbers without an object in
    /// between).
    pub(crate) fn bo_from(&self, number: u32) -> Option<(u32, Arc<Bo>)> {
        let inner = self.lock();
        let (number, bo) = inner.bos.iter_from(number).next()?;
        Some((number, bo.clone()))
    }

    /// Makes the VM of a GPU; again is no error. What SVM memory it may use is mapped.
    pub fn acquire_vm(self: &Arc<Self>, gpu_id: u32) -> Result {
        let device: Arc<Device> = self.kfd.device(gpu_id)?.clone();
        device.with_room(8, || self.make_vm(&device))?;
        self.svm_work().reapply();
        Ok(())
    }

    fn make_vm(self: &Arc<Self>, device: &Arc<Device>) -> Result {
        let mut inner = self.lock();
        inner.check_open()?;
        let slot = inner.vms.get_mut(device.index()).ok_or(Errno::EINVAL)?;
        if slot.is_none() {
            let vm = Vm::new(self.as_owner()?, device, self.xnack(), self.sabotage())?;
            let doorbells = (vm.doorbells_mmap_offset(), DOORBELL_BYTES, Shown::Page(vm.doorbells().clone()));
            let registers = (vm.mmio_mmap_offset(), PAGE, Shown::Page(vm.mmio().clone()));
            let shown = [doorbells, registers];
            let show = || shown.iter().try_for_each(|(at, bytes, what)| self.offsets.show(*at, *bytes, what.clone()));
            if let Err(e) = show().and_then(|()| self.eviction.add_vm(vm.gpu(), vm.vmid())) {
                // What was not shown is not there to be hidden.
                shown.iter().for_each(|(at, bytes, what)| self.offsets.hide(*at, *bytes, what));
                return Err(e);
            }
            *slot = Some(vm);
        }
        Ok(())
    }

    /// Whether it may turn retry of page faults on: all GPUs can, and there is SVM memory, from
    /// which retries are served.
    pub(crate) fn can_xnack(&self) -> bool {
        self.mm.has_svm() && self.kfd.devices().iter().all(|d| d.properties().xnack_capable)
    }

    /// Turns retry of page faults on or off. EPERM if a GPU cannot or there is no SVM memory, EBUSY
    /// while there are queues. ENOMEM if the SVM memory exceeds the limit, because all of it counts
    /// while retry is off.
    pub fn set_xnack(self: &Arc<Self>, on: bool) -> Result {
        // As in KFD queues come first, also where nothing would change.
        if !self.lock().queues.is_empty() {
            return Err(Errno::EBUSY.into());
        }
        if on && !self.can_xnack() {
            return Err(Errno::EPERM.into());
        }
        // What was unmapped does not count.
        self.svm_work().sweep()?;
        let inner = self.lock();
        if !inner.queues.is_empty() {
            return Err(Errno::EBUSY.into());
        }
        self.svm.switch_charge(on)?;
        self.xnack.store(on, Ordering::Release);
        for vm in inner.vms.iter().flatten() {
            vm.set_retry(on);
        }
        if !on {
            // What faults would have brought back is the restore's task now.
            for (_, bo) in inner.bos.iter() {
                if let Some(object) = bo.userptr() {
                    object.request_restore(&mut object.lock());
                }
            }
        }
        drop(inner);
        self.svm_work().reapply();
        Ok(())
    }

    /// How ranges share notifiers.
    pub(crate) fn window_policy(&self) -> WindowPolicy {
        self.lock().windows
    }

    /// Runs the restore worker after a pause that doubles with each restore in a row that did not
    /// finish. Allowed in reclaim.
    pub(crate) fn schedule_restore(self: &Arc<Self>) {
        let tries = self.restore_tries.load(Ordering::Relaxed).min(16);
        let pause = RESTORE_PAUSE.saturating_mul(1 << tries).min(self.kfd.options().restore_pause);
        self.restore.schedule(self, pause);
    }

    /// What kept the restore from getting on has gone: if queues are stopped it begins again,
    /// without the pauses that have grown meanwhile.
    pub(crate) fn hasten_restore(self: &Arc<Self>) {
        if self.eviction.lock().evicted() {
            self.restore_tries.store(0, Ordering::Relaxed);
            self.schedule_restore();
        }
    }

    /// Runs the fault worker now.
    pub(crate) fn schedule_faults(self: &Arc<Self>) {
        self.fault_work.schedule(self, Duration::ZERO);
    }

    /// One run of the restore: every object that waits now. Then the queues go on, unless something
    /// is left; in that case it runs again, after a pause that doubles up to the limit. O(invalid
    /// ranges and their pages).
    fn run_restore(self: &Arc<Self>) {
        self.counters.restore_runs.add(1);
        let waiting = self.eviction.lock().waiting();
        let mut lacks = false;
        for _ in 0..waiting {
            let Some(bo) = self.listed(crate::queues::eviction::State::take_waiting) else { continue };
            match bo.restore() {
                Ok(false) => lacks |= self.kfd.options().looks > 0 && note_lack(&bo),
                // Invalidated meanwhile, or no memory just now: once more, later.
                Ok(true) | Err(_) => {
                    if let Some(object) = bo.userptr() {
                        object.keep_waiting(&mut object.lock());
                    }
                }
            }
        }
        if lacks {
            self.looks.store(0, Ordering::Relaxed);
            self.schedule_look();
        }
        // In a statement of its own: the lock is not held over the restore.
        let svm = self.eviction.lock().take_svm();
        if svm && self.svm_work().restore() {
            self.eviction.lock().wait_svm();
        }
        let mut eviction = self.eviction.lock();
        if eviction.is_restored() {
            if eviction.evicted() {
                // Counted under the lock: a snapshot that finds the queues running has counted it.
                self.counters.restores.add(1);
                // As in KFD the event comes first: the queues' work has later times than it.
                self.tell_queues(&eviction, Event::Restored { rescheduled: false }, true);
                eviction.resume();
            }
            drop(eviction);
            self.restore_tries.store(0, Ordering::Relaxed);
            return;
        }
        self.tell_queues(&eviction, Event::Restored { rescheduled: true }, true);
        drop(eviction);
        self.restore_tries.fetch_add(1, Ordering::Relaxed);
        self.schedule_restore();
    }

    /// The object that `take` takes off one of the eviction's lists.
    fn listed(&self, take: fn(&mut crate::queues::eviction::State) -> Option<u32>) -> Option<Arc<Bo>> {
        // Both locks at once: an object leaves the list before its number is free for another.
        let inner = self.lock();
        let number = take(&mut self.eviction.lock())?;
        inner.bos.get(number).cloned()
    }

    fn schedule_look(self: &Arc<Self>) {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed).min(16);
        self.look.schedule(self, RESTORE_PAUSE.saturating_mul(2 << looks));
    }

    /// One look for memory that a restore did not find, with the queues running. A thread that
    /// takes memory anew where some was registered tells nobody, and a GPU without XNACK cannot
    /// ask: with XNACK nothing is done. The last look gives up: what comes back later is found
    /// where KFD finds it, too, at the next invalidation or MAP. O(gone ranges).
    fn run_look(self: &Arc<Self>) {
        let lacking = self.eviction.lock().lacking();
        let is_last = self.looks.load(Ordering::Relaxed) >= self.kfd.options().looks;
        let mut lacks = false;
        for _ in 0..lacking {
            let Some(bo) = self.listed(crate::queues::eviction::State::take_lacking) else { continue };
            // What failed waits for a restore.
            lacks |= bo.look_again().is_ok() && !is_last && note_lack(&bo);
        }
        if lacks {
            self.schedule_look();
        }
    }

    /// Ends the process: queues, mappings, objects, VMs, all of it. Nothing of it runs any more
    /// when this returns. A render file that lives on may be in a call meanwhile: an object that
    /// the call has entered ends here, and a later one is refused (ESRCH).
    pub fn release(&self) {
        self.kfd.listing().leave(self.number);
        self.restore.stop();
        self.look.stop();
        // Only requests that had begun are served.
        self.faults.close();
        self.fault_work.stop();
        self.events.close();
        self.kfd.devices().iter().for_each(|device| device.smi().forget(self.number));
        let mut inner = self.lock();
        inner.released = !self.sabotage().has(Switch::EnterReleased);
        let queues = core::mem::take(&mut inner.queues);
        drop(inner);
        queues.destroy_all();
        // From number to number, not from the first again each time: O(objects). Once more from the
        // first at the end, to be sure.
        let mut next = 0;
        loop {
            let Some((number, bo)) = self.bo_from(next) else {
                if next == 0 {
                    break;
                }
                next = 0;
                continue;
            };
            next = number.saturating_add(1);
            for gpu in 0..self.gpu_count() {
                // Errors here mean that it is gone already.
                let _ = bo.unmap(gpu);
            }
            let _ = bo.free();
            self.forget(&bo);
        }
        self.svm.release();
        self.offsets.clear();
        let evicted = self.eviction.lock().take_vms();
        drop(evicted); // without the lock
        let mut vms = Vec::new();
        let mut inner = self.lock();
        core::mem::swap(&mut inner.vms, &mut vms);
        drop(inner);
        drop(vms);
    }

    /// Takes an object out of all tables.
    pub(crate) fn forget(&self, bo: &Arc<Bo>) {
        if bo.mmap_offset() != 0 {
            self.offsets.hide(bo.mmap_offset(), bo.span().bytes(), &Shown::Object(bo.clone()));
        }
        let mut inner = self.lock();
        let (number, span) = (bo.number(), bo.span());
        inner.gpu_va.remove(span.start().0, span.end().0, &number);
        if let Some(object) = bo.userptr() {
            let hull: CpuSpan = object.ranges().hull();
            inner.cpu_hulls.remove(hull.start().0, hull.end().0, &number);
        }
        let removed = inner.bos.remove(number);
        drop(inner);
        drop(removed);
    }

    /// When a wait for memory ends that begins now.
    pub(crate) fn deadline(&self) -> Time {
        os::now().after(self.kfd().options().register_deadline)
    }

    /// A device says that a queue has stopped for good: on `fault`, or on something it cannot
    /// execute. The first reason stays.
    pub(crate) fn queue_stopped(&self, gpu: usize, hw: HwQueue, fault: Option<PageFault>) {
        let mut inner = self.lock();
        let mut queues = inner.queues.queues.iter_mut();
        if let Some(queue) = queues.find(|q| q.vm.gpu_index() == gpu && q.hw == hw) {
            if matches!(queue.state, State::Running | State::Off) {
                queue.state = fault.map_or(State::Broken, State::Faulted);
            }
        }
    }
}

fn note_lack(bo: &Bo) -> bool {
    bo.userptr().is_some_and(|object| object.note_lack(&mut object.lock()))
}
