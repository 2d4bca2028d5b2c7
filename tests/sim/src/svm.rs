// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM calls and GPU accesses on a rig.

use crate::rig::Called;
use crate::{Rig, GPU_ID};
use vkfd_driver::base::addr::PAGE;
use vkfd_driver::base::counters::SvmCounters;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::device::vram::Contents;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::svm::{SvmArgs, SvmAttribute, SVM_OP_GET_ATTR, SVM_OP_SET_ATTR};
use vkfd_uapi::vkfd::{MoveArgs, MOVE};

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
    rig.mm.set_kind(None);
    rig.process.set_xnack(true).expect("XNACK");
    rig
}

impl Rig {
    fn svm(&self, op: u32, first: u64, pages: u64, list: &mut [(u32, u32)]) -> Result<(), Errno> {
        let nattr = u32::try_from(list.len()).expect("a short list");
        let args = SvmArgs { start_addr: first * PAGE, size: pages * PAGE, op, nattr };
        let mut call = args.as_bytes().to_vec();
        for (attr_type, value) in list.iter().copied() {
            call.extend_from_slice(SvmAttribute { attr_type, value }.as_bytes());
        }
        // The word says how long the call is, with its list.
        let list_bytes = u32::try_from(size_of_val(list)).expect("a short list");
        let result = self.call_bytes(vkfd_uapi::command::SVM.0 + (list_bytes << 16), &mut call);
        let attributes = call[size_of::<SvmArgs>()..].chunks_exact(size_of::<SvmAttribute>());
        for (from, to) in attributes.zip(list) {
            let mut attribute = SvmAttribute::zeroed();
            attribute.as_bytes_mut().copy_from_slice(from);
            *to = (attribute.attr_type, attribute.value);
        }
        self.audit();
        result
    }

    /// Checks that the page tables have the driver's entries and nothing else. This holds at any
    /// time, also beside other threads.
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

    /// The frame that a GPU (by number) reaches at a page, with a fault as long as the driver says
    /// that the access may be tried again.
    pub fn reach(&self, gpu: usize, page: u64, write: bool) -> Result<u64, Refused> {
        loop {
            let reason = match self.gpus[gpu].entry(page * PAGE) {
                Some((frame, entry)) if !write || entry >> 6 & 1 != 0 => return Ok(frame),
                Some(_) => FaultReason::Permission,
                None => FaultReason::NotPresent,
            };
            if !self.fault(gpu, page, write, reason) {
                return Err(Refused);
            }
        }
    }

    /// A retry fault; whether it was served.
    #[track_caller]
    pub fn fault(&self, gpu: usize, page: u64, write: bool, reason: FaultReason) -> bool {
        self.faulted(gpu, page, write, reason).expect("an answer")
    }

    /// A GPU writes the word of a page.
    pub fn gpu_write(&self, gpu: usize, page: u64, word: u64) -> Result<(), Refused> {
        self.reach(gpu, page, true).map(|frame| self.mm.store(frame, word))
    }

    /// A GPU reads the word of a page.
    pub fn gpu_read(&self, gpu: usize, page: u64) -> Result<u64, Refused> {
        self.reach(gpu, page, false).map(|frame| self.mm.load(frame))
    }

    /// Checks that a GPU has the entries that the CPU has pages, for `pages` from `first` on.
    #[track_caller]
    pub fn check_svm(&self, gpu: usize, first: u64, pages: u64) {
        for page in first..first + pages {
            assert_eq!(self.gpus[gpu].walk(page * PAGE), self.mm.frame(page), "page {page:#x}");
        }
    }

    /// Whether the GPU has no entry at any of the pages.
    pub fn nothing_mapped(&self, gpu: usize, first: u64, pages: u64) -> bool {
        (first..first + pages).all(|page| self.gpus[gpu].walk(page * PAGE).is_none())
    }

    pub fn svm_counters(&self) -> &SvmCounters {
        self.process.svm().counters()
    }

    /// VRAM in use but for page tables.
    pub fn vram_used(&self, gpu: usize) -> u64 {
        self.process.kfd().devices()[gpu].vram().used()
    }

    /// Entries that the driver has written to the first GPU.
    pub fn entry_writes(&self) -> u64 {
        self.gpu.entry_writes.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Moves pages to the first GPU or back, as MOVE says. How many moved.
    pub fn move_pages(&self, first: u64, pages: u64, direction: u32) -> Called<u64> {
        let (start, size) = (first * PAGE, pages * PAGE);
        let mut args = MoveArgs { start, size, gpu_id: GPU_ID, direction, ..MoveArgs::zeroed() };
        self.call(MOVE.0, &mut args).map(|()| args.moved)
    }

    /// Takes pages of the first GPU's VRAM, if there is a way, and gives them back.
    pub fn use_vram(&self, pages: u64) {
        let device = &self.process.kfd().devices()[0];
        if let Ok(blocks) = device.alloc_vram(pages, Contents::Zero) {
            device.vram().free(&**device.gpu(), &blocks);
        }
    }
}
