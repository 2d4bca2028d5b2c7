// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A block's pages as its ranges' attributes have them at one moment.
#![expect(clippy::indexing_slicing, reason = "by GPU number, of those that the process was made with")]

use super::attributes::Attributes;
use crate::base::errno::Result;
use crate::base::pte;
use crate::collections::page_bits::PageBits;
use crate::os::Vec;
use crate::seams::address_space::Page;
use vkfd_uapi::svm as abi;

/// What holds for which pages.
pub struct View {
    /// By GPU number: pages that it may use.
    allowed: Vec<PageBits>,
    /// By GPU number: pages whose entries must be right while the queues run.
    kept: Vec<PageBits>,
    /// In some range.
    pub known: PageBits,
    /// GPUs only read them.
    pub gpu_read_only: PageBits,
    /// Faulted in for reading.
    pub only_read: PageBits,
    /// GPUs may execute them.
    executable: PageBits,
    /// GPUs are to see at once what others write.
    coherent: PageBits,
}

impl View {
    /// Nothing is in a range.
    pub fn new(gpus: usize) -> Result<Self> {
        Ok(Self {
            allowed: Vec::filled(PageBits::NONE, gpus)?,
            kept: Vec::filled(PageBits::NONE, gpus)?,
            known: PageBits::NONE,
            gpu_read_only: PageBits::NONE,
            only_read: PageBits::NONE,
            executable: PageBits::NONE,
            coherent: PageBits::NONE,
        })
    }

    /// `pages` are of a range with these attributes.
    pub fn add(&mut self, pages: PageBits, a: &Attributes, xnack: bool) {
        self.known |= pages;
        for gpu in 0..self.allowed.len() {
            if a.allowed() >> gpu & 1 != 0 {
                self.allowed[gpu] |= pages;
            }
            if a.kept(xnack) >> gpu & 1 != 0 {
                self.kept[gpu] |= pages;
            }
        }
        if a.has(abi::SVM_FLAG_GPU_RO) {
            self.gpu_read_only |= pages;
        }
        if a.only_read() {
            self.only_read |= pages;
        }
        if a.has(abi::SVM_FLAG_GPU_EXEC) {
            self.executable |= pages;
        }
        if a.has(abi::SVM_FLAG_COHERENT | abi::SVM_FLAG_EXT_COHERENT) {
            self.coherent |= pages;
        }
    }

    /// Pages that GPU number `gpu` may use.
    pub fn allowed(&self, gpu: usize) -> PageBits {
        self.allowed.get(gpu).copied().unwrap_or_default()
    }

    /// Pages whose entries on GPU number `gpu` must be right while the queues run.
    pub fn kept(&self, gpu: usize) -> PageBits {
        self.kept.get(gpu).copied().unwrap_or_default()
    }

    /// The entry for page number `number`, which is at `page`, without a fragment.
    pub fn entry(&self, number: u64, page: Page) -> u64 {
        let mut access = pte::READABLE;
        if page.writable() && !self.gpu_read_only.has(number) {
            access |= pte::WRITEABLE;
        }
        if self.executable.has(number) {
            access |= pte::EXECUTABLE;
        }
        if self.coherent.has(number) {
            access |= pte::UNCACHED;
        }
        pte::leaf(page.target(), access, 0)
    }
}
