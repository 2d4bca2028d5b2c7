// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The work of a process on its SVM memory, [`SvmWork`]. The memory itself (ranges, windows,
//! blocks) is [`crate::svm`], which knows a process only as its owner.
//!
//! | module | what |
//! | --- | --- |
//! | `call` | the ioctl: set and get |
//! | `always_mapped` | whether a queue can rely on memory |
//! | `fault` | GPU page faults (XNACK on) |
//! | `restore` | what invalidations have stopped queues for; ranges whose memory has gone |
//! | `migration` | moving pages to a GPU's memory and back |
//! | `snapshot` | what a client can read of all this |
//! | [`audit`] | page tables against all of that |

mod always_mapped;
pub mod audit;
mod call;
mod fault;
mod migration;
mod restore;
mod snapshot;

use super::Process;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::gpuvm::vm::Vm;
use crate::os::{Arc, Vec};
use crate::svm::block::Block;
use crate::svm::Vms;

/// What a process does with its SVM memory.
#[derive(Clone, Copy)]
pub struct SvmWork<'a> {
    process: &'a Arc<Process>,
}

impl Process {
    /// What it does with its SVM memory.
    pub const fn svm_work(self: &Arc<Self>) -> SvmWork<'_> {
        SvmWork { process: self }
    }
}

impl SvmWork<'_> {
    /// Room for the VMs, by GPU number.
    fn room_for_vms(&self) -> Result<Vms> {
        Vec::with_capacity(self.process.gpu_count())
    }

    /// The VMs there are now. A thread that makes one later looks at the ranges after that, so this
    /// is called after they have changed.
    fn vms(&self, room: &mut Vms) {
        room.clear();
        for vm in self.process.lock().vms.iter() {
            room.push_reserved(vm.clone());
        }
    }

    /// The bit of a GPU that a call names. EINVAL when there is none.
    fn gpu_bit(&self, gpu_id: u32) -> Result<u32> {
        Ok(1 << self.process.kfd().device(gpu_id)?.index())
    }

    /// Makes page tables of a block on a GPU; evicts SVM memory if VRAM is short. `Ok(false)` once
    /// the block has gone. Called without locks.
    fn map_on(&self, block: &Block, vm: &Arc<Vm>) -> Result<bool> {
        vm.device().with_room(4, || {
            let Some(reserved) = block.reserve() else { return Ok(false) };
            block.map_on(&reserved, vm).map(|()| true)
        })
    }
}

/// KFD's SVM errors for a call's attributes of an address.
fn not_mapped() -> Error {
    Error::new(Errno::EFAULT, Reason::NotMapped)
}
