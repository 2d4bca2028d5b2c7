// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A KFD that only keeps books: it records every call and fails where a test says so.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use vkfd_client::uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_client::uapi::ioctl::Command;
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, ALLOC_MEM_FLAGS_USERPTR,
    ALLOC_MEM_FLAGS_USERPTR_BATCH,
};
use vkfd_client::uapi::process::{GetProcessAperturesNewArgs, GetVersionArgs, ProcessDeviceApertures};
use vkfd_client::uapi::vkfd::{CapsArgs, LastErrorArgs, LAST_ERROR, QUERY_CAPS};
use vkfd_client::uapi::{command, pod::Pod};
use vkfd_client::{ClientError, Errno, GpuId, GpuInfo, MmapFile, Node, Transport};

/// The fake's GPUs.
pub const GPUS: [GpuId; 2] = [GpuId(0x1111), GpuId(0x2222)];

/// A call that changes something, as the fake saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Alloc { va: u64, bytes: u64, cpu: u64, flags: u32 },
    AllocFlag { va: u64, bytes: u64, ranges: Vec<UserptrRange> },
    Batch { va: u64, bytes: u64, ranges_at: u64, ranges: Vec<UserptrRange> },
    Map { handle: u64, gpus: Vec<u32> },
    Unmap { handle: u64, gpus: Vec<u32> },
    Free { handle: u64 },
}

/// What the fake does.
#[derive(Default)]
pub struct Script {
    /// The answer to QUERY_CAPS; without one it is ENOTTY.
    pub caps: Option<CapsArgs>,
    /// The answer to LAST_ERROR.
    pub last_error: LastErrorArgs,
    /// Fails the call of that kind with that position (from 0).
    pub fail_alloc: Option<(usize, Errno)>,
    /// As above, for MAP; the number of GPUs that succeeded before.
    pub fail_map: Option<(usize, u32, Errno)>,
    /// Fails every FREE.
    pub fail_free: Option<Errno>,
    /// Times that ALLOC first says EAGAIN.
    pub busy: usize,
}

#[derive(Default)]
pub struct State {
    pub calls: Vec<Call>,
    pub commands: Vec<u32>,
    live: BTreeMap<u64, Vec<u32>>,
    allocs: usize,
    maps: usize,
    busy: usize,
}

/// The KFD.
#[derive(Default)]
pub struct Fake {
    script: Script,
    pub state: Mutex<State>,
}

impl Fake {
    pub fn new(script: Script) -> Arc<Self> {
        Arc::new(Self { script, state: Mutex::default() })
    }

    /// The calls so far, which are forgotten.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().unwrap().calls)
    }

    /// BOs that are not freed.
    pub fn live(&self) -> usize {
        self.state.lock().unwrap().live.len()
    }

    /// Whether a batch form was ever sent.
    pub fn saw_batch(&self) -> bool {
        let state = self.state.lock().unwrap();
        let flagged = |call: &Call| matches!(call, Call::AllocFlag { .. });
        state.commands.contains(&ALLOC_MEMORY_OF_GPU_BATCH.0) || state.calls.iter().any(flagged)
    }

    fn alloc(&self, state: &mut State, call: Call) -> Result<u64, Errno> {
        if state.busy < self.script.busy {
            state.busy += 1;
            return Err(Errno::AGAIN);
        }
        let position = state.allocs;
        state.allocs += 1;
        state.calls.push(call);
        match self.script.fail_alloc {
            Some((at, errno)) if at == position => Err(errno),
            _ => {
                let handle = 0x100 + u64::try_from(position).unwrap();
                state.live.insert(handle, Vec::new());
                Ok(handle)
            }
        }
    }

    fn map(&self, state: &mut State, args: &mut MapMemoryToGpuArgs) -> Result<(), Errno> {
        let gpus = list_at::<u32>(args.device_ids_array_ptr, args.n_devices);
        let position = state.maps;
        state.maps += 1;
        state.calls.push(Call::Map { handle: args.handle, gpus: gpus.clone() });
        let on = state.live.get_mut(&args.handle).ok_or(Errno::INVAL)?;
        if let Some((at, done, errno)) = self.script.fail_map {
            if at == position {
                args.n_success = done;
                on.extend(&gpus[..usize::try_from(done).unwrap()]);
                return Err(errno);
            }
        }
        args.n_success = args.n_devices;
        on.extend(gpus);
        Ok(())
    }

    fn unmap(state: &mut State, args: &MapMemoryToGpuArgs) -> Result<(), Errno> {
        let gpus = list_at::<u32>(args.device_ids_array_ptr, args.n_devices);
        state.calls.push(Call::Unmap { handle: args.handle, gpus: gpus.clone() });
        let on = state.live.get_mut(&args.handle).ok_or(Errno::INVAL)?;
        on.retain(|gpu| !gpus.contains(gpu));
        Ok(())
    }

    fn free(&self, state: &mut State, handle: u64) -> Result<(), Errno> {
        state.calls.push(Call::Free { handle });
        if let Some(errno) = self.script.fail_free {
            return Err(errno);
        }
        match state.live.get(&handle) {
            None => Err(Errno::INVAL),
            Some(on) if !on.is_empty() => Err(Errno::BUSY),
            Some(_) => {
                state.live.remove(&handle);
                Ok(())
            }
        }
    }
}

/// What a pointer in an argument points to; the client promises that it is valid.
fn list_at<T: Pod>(at: u64, count: u32) -> Vec<T> {
    let at: *const T = std::ptr::with_exposed_provenance(usize::try_from(at).unwrap());
    // SAFETY: the client passes a pointer to `count` values with each of these calls.
    (0..usize::try_from(count).unwrap()).map(|i| unsafe { at.add(i).read_unaligned() }).collect()
}

impl Transport for Fake {
    unsafe fn ioctl(&self, word: u32, arg: *mut c_void) -> Result<(), Errno> {
        /// The argument as `T`.
        ///
        /// # Safety
        ///
        /// It is one.
        unsafe fn as_mut<'a, T: Pod>(arg: *mut c_void) -> &'a mut T {
            // SAFETY: promised.
            unsafe { &mut *arg.cast() }
        }
        let state = &mut *self.state.lock().unwrap();
        state.commands.push(word);
        // SAFETY (all of the match): a command's argument has the type that the command declares.
        match Command(word) {
            command::GET_VERSION => {
                // SAFETY: see above.
                *unsafe { as_mut(arg) } = GetVersionArgs { major_version: 1, minor_version: 11 };
                Ok(())
            }
            QUERY_CAPS => {
                let caps = self.script.caps.ok_or(Errno::NOTTY)?;
                // SAFETY: see above.
                *unsafe { as_mut(arg) } = caps;
                Ok(())
            }
            LAST_ERROR => {
                // SAFETY: see above.
                *unsafe { as_mut(arg) } = self.script.last_error;
                Ok(())
            }
            command::GET_PROCESS_APERTURES_NEW => {
                // SAFETY: see above.
                let args: &mut GetProcessAperturesNewArgs = unsafe { as_mut(arg) };
                let list: *mut ProcessDeviceApertures = std::ptr::with_exposed_provenance_mut(
                    usize::try_from(args.kfd_process_device_apertures_ptr).unwrap(),
                );
                assert_eq!(args.num_of_nodes, 2);
                for (i, gpu) in GPUS.iter().enumerate() {
                    let entry = ProcessDeviceApertures {
                        gpuvm_base: 0x1000,
                        gpuvm_limit: (1 << 47) - 1,
                        gpu_id: gpu.0,
                        ..Default::default()
                    };
                    // SAFETY: the client passes room for `num_of_nodes` entries.
                    unsafe { list.add(i).write(entry) };
                }
                Ok(())
            }
            command::ACQUIRE_VM => Ok(()),
            command::ALLOC_MEMORY_OF_GPU => {
                // SAFETY: see above.
                let args: &mut AllocMemoryOfGpuArgs = unsafe { as_mut(arg) };
                let (va, bytes, cpu, flags) = (args.va_addr, args.size, args.mmap_offset, args.flags);
                let call = if flags & ALLOC_MEM_FLAGS_USERPTR_BATCH != 0 {
                    let header = list_at::<u32>(cpu, 2);
                    assert_eq!(header[1], 0);
                    Call::AllocFlag { va, bytes, ranges: list_at(cpu + 8, header[0]) }
                } else {
                    Call::Alloc { va, bytes, cpu, flags }
                };
                assert!(flags & ALLOC_MEM_FLAGS_USERPTR != 0 || cpu == 0);
                args.handle = self.alloc(state, call)?;
                Ok(())
            }
            ALLOC_MEMORY_OF_GPU_BATCH => {
                // SAFETY: see above.
                let args: &mut AllocMemoryOfGpuBatchArgs = unsafe { as_mut(arg) };
                let call = Call::Batch {
                    va: args.va_addr,
                    bytes: args.total_size,
                    ranges_at: args.ranges_ptr,
                    ranges: list_at(args.ranges_ptr, args.num_ranges),
                };
                args.handle = self.alloc(state, call)?;
                Ok(())
            }
            // SAFETY: see above.
            command::MAP_MEMORY_TO_GPU => self.map(state, unsafe { as_mut(arg) }),
            // SAFETY: see above; MAP and UNMAP have the same argument.
            command::UNMAP_MEMORY_FROM_GPU => Self::unmap(state, unsafe { as_mut(arg) }),
            command::FREE_MEMORY_OF_GPU => {
                // SAFETY: see above.
                let args: &mut FreeMemoryOfGpuArgs = unsafe { as_mut(arg) };
                self.free(state, args.handle)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    unsafe fn mmap(
        &self,
        _what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        _offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: the caller answers for the address.
        let at = unsafe { libc::mmap(addr, len, prot, flags | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Ok(at)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        let node = |number: u32, gpu: Option<GpuInfo>| Node { number, gpu, ..Default::default() };
        let gpu = |id, node| GpuInfo { id, node, gfx_target_version: 90_006, xcc: 1, ..Default::default() };
        Ok(vec![node(0, None), node(1, Some(gpu(GPUS[0], 1))), node(2, Some(gpu(GPUS[1], 2)))])
    }

    fn render_fd(&self, _gpu: GpuId) -> Result<u32, ClientError> {
        Ok(0)
    }
}
