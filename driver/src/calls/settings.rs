// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls that configure silicon which a software GPU does not have: cache policy, scratch, trap
//! handler, tiling, the runtime's announcement to a debugger. They are checked as KFD checks them,
//! and answered truthfully; nothing follows from them.

use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::process::Process;
use vkfd_uapi::process as abi;

/// What the GPU's tables of tiling modes have: nothing is tiled, so all of it is zero.
const TILE_MODES: u32 = 32;
/// And of macro tiling.
const MACRO_TILE_MODES: u32 = 16;

/// The GPU with this id must exist (EINVAL), and the process must have its VM there
/// (`unbound`).
fn bound(process: &Process, gpu_id: u32, unbound: Errno) -> Result {
    let device = process.kfd().device(gpu_id)?;
    process.vm(device.index()).map(|_| ()).map_err(|_| Error::new(unbound, Reason::BadGpu))
}

/// Cache policies of the process's memory. Memory is coherent whatever they say.
pub(crate) fn set_memory_policy(process: &Process, args: &abi::SetMemoryPolicyArgs) -> Result {
    if args.default_policy.max(args.alternate_policy) > abi::CACHE_POLICY_NONCOHERENT {
        return Err(Errno::EINVAL.into());
    }
    bound(process, args.gpu_id, Errno::ESRCH)
}

/// Memory behind scratch.
pub(crate) fn set_scratch_backing(process: &Process, args: &abi::SetScratchBackingVaArgs) -> Result {
    bound(process, args.gpu_id, Errno::ENODEV)
}

/// The second-level trap handler. The GPU never executes it: a trap ends the queue with the
/// code that the runtime's own handler would come to without a debugger.
pub(crate) fn set_trap_handler(process: &Process, args: &abi::SetTrapHandlerArgs) -> Result {
    bound(process, args.gpu_id, Errno::ESRCH)
}

/// How the GPU's memory is tiled: not at all.
pub(crate) fn tile_config(process: &Process, args: &mut abi::GetTileConfigArgs) -> Result {
    process.kfd().device(args.gpu_id)?;
    (args.gb_addr_config, args.num_banks, args.num_ranks) = (0, 0, 0);
    zeroes(process, args.tile_config_ptr, &mut args.num_tile_configs, TILE_MODES)?;
    zeroes(process, args.macro_tile_config_ptr, &mut args.num_macro_tile_configs, MACRO_TILE_MODES)
}

/// Writes so many words of zero to the caller, at most `most`, and says how many: none where they
/// cannot go.
fn zeroes(process: &Process, at: u64, count: &mut u32, most: u32) -> Result {
    let words = core::mem::take(count).min(most);
    let zeroes = [0; TILE_MODES as usize * 4];
    let bytes = (words as usize).checked_mul(4).and_then(|bytes| zeroes.get(..bytes)).ok_or(Errno::EINVAL)?;
    if !bytes.is_empty() {
        process.mm().write(CpuVa(at), bytes).map_err(|e| Error { reason: Reason::BadPointer, ..e })?;
    }
    *count = words;
    Ok(())
}

/// The runtime announces itself, or takes that back. EBUSY when it has, EEXIST when there are
/// queues by then.
pub(crate) fn runtime_enable(process: &Process, args: &mut abi::RuntimeEnableArgs) -> Result {
    let mut inner = process.lock();
    if args.mode_mask & abi::RUNTIME_ENABLE_MODE_ENABLE_MASK == 0 {
        inner.runtime_enabled = false;
        return Ok(());
    }
    if inner.runtime_enabled {
        return Err(Errno::EBUSY.into());
    }
    if !inner.queues.is_empty() {
        return Err(Errno::EEXIST.into());
    }
    inner.runtime_enabled = true;
    args.capabilities_mask = 0;
    Ok(())
}
