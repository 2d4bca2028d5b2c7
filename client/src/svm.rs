// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared virtual memory: memory that GPUs use at the addresses that the CPU has it at, and where
//! it is.
//!
//! Mechanism: KFD's SVM call with a list of attributes. What the driver knows of ranges and how
//! often memory moved is vkfd's alone ([`Client::svm`], [`Client::svm_ranges`]).

use std::ffi::c_void;

use vkfd_uapi::command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::svm::{self as abi, SvmAttribute};
use vkfd_uapi::vkfd::{SvmInfo, SvmRangeInfo, SNAPSHOT_SVM};

use crate::address::GpuId;
use crate::client::Client;
use crate::error::{ClientError, Result};
use crate::UserptrRange;

/// Where memory is, or should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// System memory.
    System,
    /// A GPU's memory.
    Gpu(GpuId),
    /// Nothing was said, or different things of different parts.
    Undefined,
}

impl Location {
    const fn value(self) -> u32 {
        match self {
            Self::System => abi::SVM_LOCATION_SYSMEM,
            Self::Gpu(id) => id.0,
            Self::Undefined => abi::SVM_LOCATION_UNDEFINED,
        }
    }

    const fn of(value: u32) -> Self {
        match value {
            abi::SVM_LOCATION_SYSMEM => Self::System,
            abi::SVM_LOCATION_UNDEFINED => Self::Undefined,
            id => Self::Gpu(GpuId(id)),
        }
    }
}

/// How a GPU may use memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SvmAccess {
    /// Not at all. A fault is an error.
    None,
    /// Where it is, without moving it.
    InPlace,
    /// Memory may move to it.
    Migrate,
}

/// An attribute of SVM memory, for [`Client::svm_set`]: its users, its preferred place, or its next
/// place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SvmSet {
    /// Where it should be when a GPU faults on it.
    Preferred(Location),
    /// Where it is to be moved now.
    Prefetch(Location),
    /// How a GPU may use it.
    Access(GpuId, SvmAccess),
    /// `SVM_FLAG_*` to set.
    Flags(u32),
    /// `SVM_FLAG_*` to clear.
    NoFlags(u32),
    /// log2 of the pages that migrate together.
    Granularity(u32),
}

impl SvmSet {
    const fn attribute(self) -> SvmAttribute {
        let (attr_type, value) = match self {
            Self::Preferred(location) => (abi::SVM_ATTR_PREFERRED_LOC, location.value()),
            Self::Prefetch(location) => (abi::SVM_ATTR_PREFETCH_LOC, location.value()),
            Self::Access(gpu, SvmAccess::None) => (abi::SVM_ATTR_NO_ACCESS, gpu.0),
            Self::Access(gpu, SvmAccess::InPlace) => (abi::SVM_ATTR_ACCESS_IN_PLACE, gpu.0),
            Self::Access(gpu, SvmAccess::Migrate) => (abi::SVM_ATTR_ACCESS, gpu.0),
            Self::Flags(flags) => (abi::SVM_ATTR_SET_FLAGS, flags),
            Self::NoFlags(flags) => (abi::SVM_ATTR_CLR_FLAGS, flags),
            Self::Granularity(log2) => (abi::SVM_ATTR_GRANULARITY, log2),
        };
        SvmAttribute { attr_type, value }
    }
}

/// What holds for all of some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmAttributes {
    /// Where it should be.
    pub preferred: Location,
    /// Where it was last prefetched to.
    pub prefetch: Location,
    /// `SVM_FLAG_*` that are set everywhere.
    pub flags: u32,
    /// log2 of the pages that migrate together: the least.
    pub granularity: u32,
    /// How the GPU that was asked for may use it.
    pub access: SvmAccess,
}

impl Client {
    /// Says something of memory: whole pages, all mapped. What must be mapped to GPUs is when this
    /// returns.
    ///
    /// # Errors
    ///
    /// EFAULT if nothing is mapped, EADDRINUSE if the addresses are registered or a buffer's on the
    /// GPU, EINVAL for an unknown GPU. Errors of mapping and moving are returned, too; the
    /// attributes hold all the same.
    ///
    /// # Safety
    ///
    /// GPUs that are given access may read and write the memory from now on: nothing in it may be
    /// borrowed while they do.
    pub unsafe fn svm_set(&self, memory: UserptrRange, list: &[SvmSet]) -> Result {
        let mut list: Vec<_> = list.iter().map(|item| item.attribute()).collect();
        self.svm_call(abi::SVM_OP_SET_ATTR, memory, &mut list)
    }

    /// The attributes of a range of memory, with the access of one GPU.
    ///
    /// # Errors
    ///
    /// EFAULT where nothing is mapped, EINVAL for an unknown GPU.
    pub fn svm_get(&self, memory: UserptrRange, gpu: GpuId) -> Result<SvmAttributes> {
        let ask = |attr_type| SvmAttribute { attr_type, value: 0 };
        let mut list = [
            ask(abi::SVM_ATTR_PREFERRED_LOC),
            ask(abi::SVM_ATTR_PREFETCH_LOC),
            ask(abi::SVM_ATTR_SET_FLAGS),
            ask(abi::SVM_ATTR_GRANULARITY),
            SvmAttribute { attr_type: abi::SVM_ATTR_ACCESS, value: gpu.0 },
        ];
        self.svm_call(abi::SVM_OP_GET_ATTR, memory, &mut list)?;
        Ok(SvmAttributes {
            preferred: Location::of(list[0].value),
            prefetch: Location::of(list[1].value),
            flags: list[2].value,
            granularity: list[3].value,
            access: match list[4].attr_type {
                abi::SVM_ATTR_ACCESS => SvmAccess::Migrate,
                abi::SVM_ATTR_ACCESS_IN_PLACE => SvmAccess::InPlace,
                _ => SvmAccess::None,
            },
        })
    }

    /// Moves memory to a GPU or back, now. What cannot move stays where it is and is used there.
    ///
    /// # Errors
    ///
    /// As [`Client::svm_set`].
    pub fn prefetch(&self, memory: UserptrRange, to: Location) -> Result {
        // SAFETY: gives nobody access; contents stay.
        unsafe { self.svm_set(memory, &[SvmSet::Prefetch(to)]) }
    }

    /// The process's SVM memory and how it has moved.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`]; EINVAL on a vkfd that does not show it ([`crate::Caps::svm`]).
    pub fn svm(&self) -> Result<SvmInfo> {
        let mut info = [SvmInfo::zeroed()];
        self.snapshot_call(SNAPSHOT_SVM, 0, 0, &mut info)?;
        Ok(info[0])
    }

    /// The process's SVM ranges, by address.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`].
    pub fn svm_ranges(&self) -> Result<Vec<SvmRangeInfo>> {
        self.snapshot_svm_ranges()
    }

    fn svm_call(&self, op: u32, memory: UserptrRange, list: &mut [SvmAttribute]) -> Result {
        let size =
            abi::args_size(list.len()).ok_or(ClientError::Unsupported("too many attributes in one call".into()))?;
        let command = command::SVM.with_size(size).unwrap_or(command::SVM);
        let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
        let mut words = vec![memory.start, memory.size, u64::from(op) | u64::from(count) << 32];
        words.extend(list.iter().map(|item| u64::from(item.attr_type) | u64::from(item.value) << 32));
        let argument = words.as_mut_ptr().cast::<c_void>();
        // SAFETY: the argument has the command's size, and no pointers in it; the caller that gives
        // a GPU access has promised that access's conditions.
        let sent = unsafe { self.transport().ioctl(command.0, argument) };
        for (item, word) in list.iter_mut().zip(&words[3..]) {
            let [low, high] = [word & 0xffff_ffff, word >> 32];
            item.attr_type = u32::try_from(low).unwrap_or(0);
            item.value = u32::try_from(high).unwrap_or(0);
        }
        sent.map_err(|errno| self.memory_error(command::SVM, errno))
    }
}
