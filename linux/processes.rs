// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The processes that files are. As in KFD, an address space has one, however often `/dev/kfd` is
//! opened in it: what one file of a program allocates, another can map. It ends with its last file
//! (KFD's with the address space). A file can also have one of its own.
//!
//! The lock (`Rank::Open`, the first of all) guards the table, and is held while a process is made,
//! so that two threads that open at once get the same. Opening and closing are O(log processes)
//! beside the process's own cost.

use crate::address_space::ProcessMemory;
use core::ops::Deref;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNodeReservation};
use kernel::sync::Arc;
use vkfd_driver::base::errno::Result;
use vkfd_driver::machine::kfd::Kfd;
use vkfd_driver::base::lock_rank::Rank;
use vkfd_driver::os::{self, Mutex};
use vkfd_driver::process::Process;

/// Those of address spaces, by [`ProcessMemory::key`].
pub(crate) struct Processes(Mutex<RBTree<usize, Shared>>);

struct Shared {
    process: Arc<Process>,
    files: usize,
}

/// A file's process. Dropped, it is released, unless other files have it as well.
pub(crate) struct Opened {
    process: Arc<Process>,
    /// Where it is found, if it is an address space's.
    shared: Option<(Arc<Processes>, usize)>,
}

impl Processes {
    /// None yet.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Mutex::new(Rank::Open, RBTree::new())?))
    }

    /// The process of this address space, new if no file has it yet.
    pub(crate) fn open(self: &Arc<Self>, kfd: &Arc<Kfd>, memory: ProcessMemory) -> Result<Opened> {
        let key = memory.key();
        let opened = |process| Opened { process, shared: Some((self.clone(), key)) };
        let mut table = self.0.lock();
        if let Some(shared) = table.get_mut(&key) {
            shared.files += 1;
            return Ok(opened(shared.process.clone()));
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let process = kfd.open(os::arc(memory)?)?;
        table.insert(node.into_node(key, Shared { process: process.clone(), files: 1 }));
        Ok(opened(process))
    }

    /// Whether that was the last file of the process at `key`.
    fn close(&self, key: usize) -> bool {
        let mut table = self.0.lock();
        let Some(shared) = table.get_mut(&key) else { return false };
        shared.files -= 1;
        let last = shared.files == 0;
        let ended = if last { table.remove_node(&key) } else { None };
        // It may be the last that keeps the process, which takes locks of its own.
        drop(table);
        drop(ended);
        last
    }
}

impl Opened {
    /// A process of a file's own.
    pub(crate) fn apart(kfd: &Arc<Kfd>, memory: ProcessMemory) -> Result<Self> {
        Ok(Self { process: kfd.open(os::arc(memory)?)?, shared: None })
    }

    /// Whether it is its file's own.
    pub(crate) fn is_apart(&self) -> bool {
        self.shared.is_none()
    }
}

impl Deref for Opened {
    type Target = Arc<Process>;

    fn deref(&self) -> &Arc<Process> {
        &self.process
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.shared.as_ref().is_none_or(|(processes, key)| processes.close(*key)) {
            self.process.release();
        }
    }
}
