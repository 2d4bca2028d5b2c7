// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU addresses are the CPU's: what the library does where mapping something over them fails.
#![cfg(feature = "embedded")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;

use vkfd_client::{
    AllocOptions, Client, ClientError, Embedded, Errno, GpuId, Machine, MachineOptions, MmapFile, Node, Transport,
};

const BYTES: usize = 4096;

/// A KFD whose mmap fails as the kernel's does when the driver has no memory: what was mapped there
/// before is gone then.
struct LeavesGaps {
    kfd: Embedded,
    /// Another part of the program gets the addresses at once.
    taken: AtomicBool,
    gap: AtomicUsize,
}

impl Transport for LeavesGaps {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: forwarded to the caller.
        unsafe { self.kfd.ioctl(command, arg) }
    }

    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        if flags & libc::MAP_FIXED == 0 {
            // SAFETY: forwarded to the caller.
            return unsafe { self.kfd.mmap(what, addr, len, prot, flags, offset) };
        }
        // SAFETY: the mapping at `addr` belongs to the caller, which gives it away.
        assert_eq!(unsafe { libc::munmap(addr, len) }, 0);
        self.gap.store(addr.expose_provenance(), SeqCst);
        if self.taken.load(SeqCst) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: nothing is replaced.
            let at = unsafe { libc::mmap(addr, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            assert_eq!(at, addr);
            // SAFETY: just mapped, and nobody else knows of it.
            unsafe { at.cast::<u8>().write_volatile(42) };
        }
        Err(Errno::NOMEM)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        self.kfd.topology()
    }

    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError> {
        self.kfd.render_fd(gpu)
    }
}

fn is_mapped(at: usize) -> bool {
    // SAFETY: MS_ASYNC writes nothing and the call checks the address itself.
    unsafe { libc::msync(ptr::with_exposed_provenance_mut(at), BYTES, libc::MS_ASYNC) == 0 }
}

#[test]
fn a_mapping_that_fails_takes_nothing_of_others_along() {
    let machine = Machine::new(&MachineOptions { vram_bytes: 16 << 20, ..MachineOptions::default() }).unwrap();
    let kfd = Embedded::open(&machine).unwrap();
    let gaps = Arc::new(LeavesGaps { kfd, taken: AtomicBool::new(true), gap: AtomicUsize::new(0) });
    let client = Client::with_transport(gaps.clone()).unwrap();
    let fails = || {
        let error = client.alloc(&AllocOptions::gtt(BYTES as u64)).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOMEM), "{error}");
        gaps.gap.load(SeqCst)
    };
    let at = fails();
    assert!(is_mapped(at), "somebody else's");
    // SAFETY: mapped, and nobody has a reference to it.
    assert_eq!(unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() }, 42);
    // SAFETY: the test's own.
    assert_eq!(unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), BYTES) }, 0);
    // Nobody has taken it: nothing is left there.
    gaps.taken.store(false, SeqCst);
    assert!(!is_mapped(fails()));
}
