// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ways to make one range of a GPU of the guest's scattered memory.
//!
//! | method | calls | what it costs |
//! | --- | --- | --- |
//! | [`Method::Batch`] | one | nothing more |
//! | [`Method::PerRange`] | one for each run, and one more to map it | what the batch form was made against |
//! | [`Method::Remap`] | one, after an `mremap` for each run into one range | a mapping for each run; the system allows 65,530 of them to a process (`vm.max_map_count`) |
//!
//! virglrenderer does the last with a KFD that has no batch form.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use vkfd_client::{Buffer, Client, ClientError, Errno, GpuVa, RegisterOptions, Strategy, UserptrRange};
use vkfd_host::Grant;
use vkfd_sabotage::{Switch, Switches};

use super::ram::GuestMemory;
use super::window::size;

/// A way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// One batch call.
    #[default]
    Batch,
    /// One call for each range.
    PerRange,
    /// Moved into one range first, which is registered.
    Remap,
}

/// Registered memory of the guest.
#[derive(Debug)]
pub struct Registration {
    // The order of these matters: first the driver lets go, then the addresses may go.
    buffer: Buffer,
    _linear: Option<Linear>,
    _memory: Arc<GuestMemory>,
}

impl Registration {
    /// Registers `memory` at the GPU address `at`, unmapped.
    ///
    /// # Errors
    /// The driver's, or ENOMEM when the system has no more mappings for [`Method::Remap`].
    pub fn new(
        client: &Client,
        memory: &Arc<GuestMemory>,
        at: GpuVa,
        writable: bool,
        executable: bool,
        coherent: bool,
        method: Method,
    ) -> Result<Self, ClientError> {
        let strategy = if method == Method::PerRange { Strategy::PerRange } else { Strategy::Batch };
        let options = RegisterOptions {
            writable,
            executable,
            coherent,
            strategy,
            map: false,
            at: Some(at),
            ..RegisterOptions::default()
        };
        let linear = match method {
            Method::Remap => Some(Linear::new(memory).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
                ClientError::Call { call: "mremap", errno: Errno(errno) }
            })?),
            Method::Batch | Method::PerRange => None,
        };
        let one = linear.as_ref().map(|linear| [linear.range()]);
        let ranges = one.as_ref().map_or(memory.ranges(), |one| &one[..]);
        // SAFETY: the ranges are the guest's shared memory, and this process has neither references
        // to it nor assumptions about it. The ranges stay mapped as long as `memory` and `linear`,
        // which outlive the buffer.
        let buffer = unsafe { client.register_ranges(ranges, &options)? };
        Ok(Self { buffer, _linear: linear, _memory: memory.clone() })
    }

    /// As one range of the GPU.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

/// One range that has the memory of many.
#[derive(Debug)]
struct Linear {
    at: NonNull<c_void>,
    bytes: u64,
    grant: Grant,
}

// SAFETY: the range makes no reference to its memory.
unsafe impl Send for Linear {}
// SAFETY: as above; the fields are only read.
unsafe impl Sync for Linear {}

impl Linear {
    fn new(memory: &GuestMemory) -> io::Result<Self> {
        // SAFETY: a new reservation at an address of the kernel's choice touches nothing that
        // exists.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size(memory.bytes()),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let at = NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)?;
        let grant = memory.grants().grant_again(at.as_ptr().expose_provenance() as u64, memory.bytes());
        let linear = Self { at, bytes: memory.bytes(), grant };
        let mut offset = 0;
        for range in memory.ranges() {
            let from = std::ptr::with_exposed_provenance_mut::<c_void>(size(range.start));
            let to = at.as_ptr().wrapping_byte_add(size(offset));
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
            // SAFETY: the range is mapped, shared memory of a file, and stays so (DONTUNMAP); where
            // it goes is reserved for it.
            let moved = unsafe { libc::mremap(from, size(range.size), size(range.size), flags, to) };
            if moved == libc::MAP_FAILED {
                // What was moved goes with `linear`.
                return Err(io::Error::last_os_error());
            }
            offset += range.size;
        }
        Ok(linear)
    }

    fn range(&self) -> UserptrRange {
        UserptrRange { start: self.at.as_ptr().expose_provenance() as u64, size: self.bytes }
    }
}

impl Drop for Linear {
    fn drop(&mut self) {
        self.grant.end();
        // SAFETY: all of the range is this object's own, and the driver has let go of it.
        unsafe { libc::munmap(self.at.as_ptr(), size(self.bytes)) };
    }
}

/// Where in 2 MiB the GPU's range should begin so that the longest run lies there as its memory
/// does: only then are neighbouring pages translated as one.
pub fn skew(ranges: &[UserptrRange]) -> u64 {
    let (mut at, mut best) = (0_u64, (0, 0));
    for range in ranges {
        if range.size > best.0 {
            best = (range.size, range.start.wrapping_sub(at));
        }
        at = at.wrapping_add(range.size);
    }
    best.1 % (2 << 20)
}

/// Breaks a list as a faulty host would, if that is asked for.
pub fn break_list(memory: &mut GuestMemory, sabotage: &Switches) {
    let wrong = [Switch::LastRange, Switch::Swapped, Switch::Shifted, Switch::FirstOnly];
    if !wrong.iter().any(|switch| sabotage.has(*switch)) {
        return;
    }
    let ranges = memory.ranges_mut();
    let count = ranges.len();
    if count < 2 {
        return;
    }
    // Only ranges of equal size can stand for each other.
    let bytes = ranges[count - 1].size;
    let Some(other) = ranges[..count - 1].iter().rposition(|range| range.size == bytes) else { return };
    if sabotage.has(Switch::LastRange) {
        ranges[count - 1].start = ranges[other].start;
    }
    if sabotage.has(Switch::Swapped) {
        ranges.swap(other, count - 1);
    }
    if sabotage.has(Switch::Shifted) {
        ranges[count / 2].start ^= 4096;
    }
    if sabotage.has(Switch::FirstOnly) {
        let first = ranges[0];
        ranges.iter_mut().filter(|range| range.size <= first.size).for_each(|range| range.start = first.start);
    }
}
