// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: memory of the process that GPUs use at the addresses where the CPU has it.

use std::ffi::{c_int, c_void};

use vkfd_client::{ClientError, CpuVa, Location, Result, SvmAccess, SvmSet, UserptrRange};

use crate::call::{guard, object};
use crate::{gpu_at, gpus_of, VkfdClient};

/// System memory, as a place.
const SYSTEM: u32 = u32::MAX;

const ACCESS_NONE: u32 = 0;
const ACCESS_IN_PLACE: u32 = 1;
const ACCESS_MIGRATE: u32 = 2;

fn memory(start: *mut c_void, bytes: u64) -> UserptrRange {
    UserptrRange { start: CpuVa::of(start).0, size: bytes }
}

fn location(client: &VkfdClient, place: u32) -> Result<Location> {
    match place {
        SYSTEM => Ok(Location::System),
        gpu => Ok(Location::Gpu(gpu_at(client, gpu)?.1)),
    }
}

/// Says how GPUs may use memory.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close). For the memory, as for
/// [`vkfd_client::Client::svm_set`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_svm_access(
    client: *mut VkfdClient,
    start: *mut c_void,
    bytes: u64,
    gpus: u64,
    access: u32,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let access = match access {
            ACCESS_NONE => SvmAccess::None,
            ACCESS_IN_PLACE => SvmAccess::InPlace,
            ACCESS_MIGRATE => SvmAccess::Migrate,
            other => return Err(ClientError::Invalid(format!("access {other}"))),
        };
        let gpus = match gpus_of(&client.client, gpus)? {
            vkfd_client::GpuSet::All => client.client.gpus().iter().map(|gpu| gpu.id).collect(),
            vkfd_client::GpuSet::Only(gpus) => gpus,
        };
        let list: Vec<_> = gpus.into_iter().map(|gpu| SvmSet::Access(gpu, access)).collect();
        // SAFETY: promised by the caller.
        unsafe { client.client.svm_set(memory(start, bytes), &list) }
    })
}

/// Says where memory should be when a GPU faults on it.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close).
#[no_mangle]
pub unsafe extern "C" fn vkfd_svm_prefer(client: *mut VkfdClient, start: *mut c_void, bytes: u64, place: u32) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let place = location(client, place)?;
        // SAFETY: gives nobody access.
        unsafe { client.client.svm_set(memory(start, bytes), &[SvmSet::Preferred(place)]) }
    })
}

/// Moves memory now.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close).
#[no_mangle]
pub unsafe extern "C" fn vkfd_svm_prefetch(
    client: *mut VkfdClient,
    start: *mut c_void,
    bytes: u64,
    place: u32,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        client.client.prefetch(memory(start, bytes), location(client, place)?)
    })
}
