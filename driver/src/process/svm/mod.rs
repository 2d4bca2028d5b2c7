// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process does with its SVM memory. The memory itself (ranges, windows, blocks) is
//! [`crate::svm`], which knows a process only as its owner.
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

impl Process {
    /// Room for the VMs, by GPU number.
    fn svm_room_for_vms(&self) -> Result<Vms> {
        Vec::with_capacity(self.gpu_count())
    }

    /// The VMs there are now. A thread that makes one later looks at the ranges after that, so this
    /// is called after they have changed.
    fn svm_vms(&self, room: &mut Vms) {
        room.clear();
        for vm in self.lock().vms.iter() {
            room.push_reserved(vm.clone());
        }
    }

    /// The bit of a GPU that a call names. EINVAL when there is none.
    fn gpu_bit(&self, gpu_id: u32) -> Result<u32> {
        Ok(1 << self.kfd().device(gpu_id)?.index())
    }

    /// Makes page tables of a block on a GPU; evicts SVM memory if VRAM is short. `Ok(false)` once
    /// the block has gone. Called without locks.
    fn svm_map_on(&self, block: &Block, vm: &Arc<Vm>) -> Result<bool> {
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
