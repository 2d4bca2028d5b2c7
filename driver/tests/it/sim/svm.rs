// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM calls and GPU accesses on a rig.

use super::{Rig, GPU_ID};
use std::sync::atomic::Ordering;
use vkfd_driver::base::addr::{CpuVa, GpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os;
use vkfd_driver::seams::gpu::{FaultReason, HwQueue, Interrupts, PageFault, Vmid};
use vkfd_uapi::svm::{SvmArgs, SvmAttribute, SVM_OP_GET_ATTR, SVM_OP_SET_ATTR};

/// A GPU access could not be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A page number at a 2 MiB boundary.
pub const AT: u64 = 0x10_0000;

/// Two GPUs, and memory at [`AT`].
pub fn rig() -> Rig {
    let rig = Rig::with_gpus(Options::default(), 2, 2048);
    rig.mm.map(AT, 2048, true);
    rig
}

/// The same, with XNACK and a host that moves nothing.
pub fn xnack_rig() -> Rig {
    let rig = rig();
    *rig.mm.kind.lock().unwrap() = None;
    rig.process.set_xnack(true).unwrap();
    rig
}

impl Rig {
    fn svm(&self, op: u32, first: u64, pages: u64, list: &mut [(u32, u32)]) -> Result<(), Errno> {
        #[repr(C)]
        struct Call(SvmArgs, [SvmAttribute; 16]);
        let mut call = Call(
            SvmArgs { start_addr: first * PAGE, size: pages * PAGE, op, nattr: u32::try_from(list.len()).unwrap() },
            [SvmAttribute { attr_type: 0, value: 0 }; 16],
        );
        for (to, (attr_type, value)) in call.1.iter_mut().zip(&*list) {
            *to = SvmAttribute { attr_type: *attr_type, value: *value };
        }
        let at = CpuVa(std::ptr::from_mut(&mut call) as u64);
        // The word says how long the call is, with its list.
        let command = vkfd_uapi::command::SVM.0 + (u32::try_from(size_of_val(&call.1[..list.len()])).unwrap() << 16);
        let result = self.process.ioctl(command, at).map_err(|e| e.errno);
        for (from, to) in call.1.iter().zip(list) {
            *to = (from.attr_type, from.value);
        }
        self.audit();
        result
    }

    /// The page tables have what the driver knows of and nothing else. Right at any time, whatever
    /// else goes on.
    #[track_caller]
    pub fn audit(&self) {
        let flaw = self.process.svm_work().audit();
        assert!(flaw.is_none(), "{flaw:x?}");
    }

    /// Sets attributes `(type, value)` of pages.
    pub fn set(&self, first: u64, pages: u64, list: &[(u32, u32)]) -> Result<(), Errno> {
        self.svm(SVM_OP_SET_ATTR, first, pages, &mut list.to_vec())
    }

    /// Gets attributes of pages.
    pub fn get(&self, first: u64, pages: u64, list: &[(u32, u32)]) -> Result<Vec<(u32, u32)>, Errno> {
        let mut list = list.to_vec();
        self.svm(SVM_OP_GET_ATTR, first, pages, &mut list).map(|()| list)
    }

    /// What a GPU (by number) reaches at a page, faulting as long as it is told to try again.
    pub fn reach(&self, gpu: usize, page: u64, write: bool) -> Result<u64, Refused> {
        loop {
            match self.gpus[gpu].entry(page * PAGE) {
                Some((frame, entry)) if !write || entry >> 6 & 1 != 0 => return Ok(frame),
                found => {
                    let reason = if found.is_some() { FaultReason::Permission } else { FaultReason::NotPresent };
                    if !self.fault(gpu, page, write, reason) {
                        return Err(Refused);
                    }
                }
            }
        }
    }

    /// A retry fault; whether it was served.
    pub fn fault(&self, gpu: usize, page: u64, write: bool, reason: FaultReason) -> bool {
        let va = GpuVa(page * PAGE);
        let gpu_id = GPU_ID + u32::try_from(gpu).unwrap();
        let fault = PageFault { vmid: Vmid(1), queue: HwQueue(1), va, write, reason, retry: true };
        self.process.kfd().page_fault(gpu_id, fault);
        loop {
            let mut served = self.gpus[gpu].faults_served.lock().unwrap();
            if let Some(at) = served.iter().position(|(at, _)| *at == va.0) {
                return served.swap_remove(at).1;
            }
            drop(served);
            os::sleep(std::time::Duration::from_micros(50));
        }
    }

    pub fn gpu_write(&self, gpu: usize, page: u64, value: u64) -> Result<(), Refused> {
        let frame = self.reach(gpu, page, true)?;
        self.mm.data.lock().unwrap().insert(frame, value);
        Ok(())
    }

    pub fn gpu_read(&self, gpu: usize, page: u64) -> Result<u64, Refused> {
        let frame = self.reach(gpu, page, false)?;
        Ok(self.mm.data.lock().unwrap().get(&frame).copied().unwrap_or(0))
    }

    /// Checks that a GPU has the entries that the CPU has pages, for `pages` from `first` on.
    pub fn check_svm(&self, gpu: usize, first: u64, pages: u64) {
        for page in first..first + pages {
            assert_eq!(self.gpus[gpu].walk(page * PAGE), self.mm.frame(page), "page {page:#x}");
        }
    }

    /// Whether the GPU has no entry at any of the pages.
    pub fn nothing_mapped(&self, gpu: usize, first: u64, pages: u64) -> bool {
        (first..first + pages).all(|page| self.gpus[gpu].walk(page * PAGE).is_none())
    }

    pub fn svm_counters(&self) -> &vkfd_driver::base::counters::SvmCounters {
        self.process.svm().counters()
    }

    /// VRAM that the page tables do not take.
    pub fn vram_used(&self, gpu: usize) -> u64 {
        let device = &self.process.kfd().devices()[gpu];
        device.vram().used()
    }

    pub fn entry_writes(&self) -> u64 {
        self.gpu.entry_writes.load(Ordering::SeqCst)
    }
}
