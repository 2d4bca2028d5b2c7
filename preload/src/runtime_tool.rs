// SPDX-License-Identifier: GPL-2.0 OR MIT
//! This library is a tool of AMD's runtime: it waits for the GPU as this library has it, and
//! reports its allocations to checks.
//!
//! `vkfd run` names this library in HSA_TOOLS_LIB. The runtime then calls [`OnLoad`] with its
//! tables of functions, some of which are replaced. Those for waits are in
//! [`signal_wait`](super::signal_wait). With `--check`, four others call the runtime's own and note
//! the result. Runtimes give out parts of larger objects, whose bounds the driver does not know.
//!
//! Limits: memory of HIP's virtual memory calls, of IPC handles and of the runtime itself is not
//! known here.

use crate::{machine, setting, signal_wait};
use libc::c_void;
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use vkfd_gpu::check::Bits;
use vkfd_gpu::raw;

/// A table of functions begins with its version, of four words.
const VERSION_WORDS: usize = 2;
/// Places in the tables, the same from ROCm 3 to 6.
const CORE_ALLOCATE: usize = 33;
const CORE_FREE: usize = 34;
const POOL_ALLOCATE: usize = 13;
const POOL_FREE: usize = 14;
/// HSA_STATUS_SUCCESS.
const SUCCESS: c_int = 0;
/// Frames that are looked at for the caller.
const FRAMES: usize = 32;

/// The runtime's tables, as far as they are used.
#[repr(C)]
pub struct Tables {
    version: [u32; 4],
    core: *mut *mut c_void,
    extensions: *mut *mut c_void,
}

/// Both have this form; the first argument is a structure of one number.
type Allocate = unsafe extern "C" fn(u64, usize, u32, *mut *mut c_void) -> c_int;
type AllocateRegion = unsafe extern "C" fn(u64, usize, *mut *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;

static POOL_ALLOCATE_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static POOL_FREE_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CORE_ALLOCATE_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CORE_FREE_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The runtime has loaded this library as a tool.
///
/// # Safety
/// The runtime's tables.
#[no_mangle]
#[allow(non_snake_case, reason = "the runtime's name for it")]
pub unsafe extern "C" fn OnLoad(tables: *mut Tables, _: u64, _: u64, _: *const *const c_char) -> bool {
    if tables.is_null() {
        return true;
    }
    // SAFETY: the caller's tables, which it lets its tools change.
    unsafe {
        let Tables { core, extensions, .. } = *tables;
        if !setting::get().is_some_and(|setting| setting.spins) && has(core, signal_wait::WAIT_SCACQUIRE) {
            let own = (*core.add(VERSION_WORDS + signal_wait::SYSTEM_INFO)).cast();
            signal_wait::SYSTEM_INFO_OWN.store(own, Ordering::Release);
            let with = signal_wait::relaxed as signal_wait::Wait as *mut c_void;
            replace(core, signal_wait::WAIT_RELAXED, with, &signal_wait::RELAXED_OWN);
            let with = signal_wait::scacquire as signal_wait::Wait as *mut c_void;
            replace(core, signal_wait::WAIT_SCACQUIRE, with, &signal_wait::SCACQUIRE_OWN);
        }
        if machine::ledger().is_none() {
            return true;
        }
        let own = pool_allocate as Allocate as *mut c_void;
        replace(extensions, POOL_ALLOCATE, own, &POOL_ALLOCATE_OWN);
        replace(extensions, POOL_FREE, pool_free as Free as *mut c_void, &POOL_FREE_OWN);
        let own = core_allocate as AllocateRegion as *mut c_void;
        replace(core, CORE_ALLOCATE, own, &CORE_ALLOCATE_OWN);
        replace(core, CORE_FREE, core_free as Free as *mut c_void, &CORE_FREE_OWN);
    }
    true
}

/// Whether a table has a place: the second word of its version is its size.
///
/// # Safety
/// A table of the runtime, or null.
unsafe fn has(table: *mut *mut c_void, place: usize) -> bool {
    // SAFETY: the caller's; a table begins with its version.
    !table.is_null() && unsafe { table.cast::<u32>().add(1).read() } as usize >= (VERSION_WORDS + place + 1) * 8
}

/// Puts a function into a table.
///
/// # Safety
/// The table has that place, for a function of this type.
unsafe fn replace(table: *mut *mut c_void, place: usize, with: *mut c_void, own: &AtomicPtr<c_void>) {
    if table.is_null() {
        return;
    }
    // SAFETY: the caller's.
    unsafe {
        let entry = table.add(VERSION_WORDS + place);
        own.store(*entry, Ordering::Release);
        *entry = with;
    }
}

unsafe extern "C" fn pool_allocate(pool: u64, bytes: usize, flags: u32, to: *mut *mut c_void) -> c_int {
    // SAFETY: the runtime's own function, put there before this one was.
    let own = unsafe { std::mem::transmute::<*mut c_void, Allocate>(POOL_ALLOCATE_OWN.load(Ordering::Acquire)) };
    // SAFETY: the caller's arguments.
    let status = unsafe { own(pool, bytes, flags, to) };
    if status == SUCCESS {
        // SAFETY: the runtime has just written it.
        note(unsafe { *to }, bytes);
    }
    status
}

unsafe extern "C" fn core_allocate(region: u64, bytes: usize, to: *mut *mut c_void) -> c_int {
    // SAFETY: as in `pool_allocate`.
    let own = unsafe { std::mem::transmute::<*mut c_void, AllocateRegion>(CORE_ALLOCATE_OWN.load(Ordering::Acquire)) };
    // SAFETY: the caller's arguments.
    let status = unsafe { own(region, bytes, to) };
    if status == SUCCESS {
        // SAFETY: the runtime has just written it.
        note(unsafe { *to }, bytes);
    }
    status
}

unsafe extern "C" fn pool_free(at: *mut c_void) -> c_int {
    forget(at);
    // SAFETY: as in `pool_allocate`.
    let own = unsafe { std::mem::transmute::<*mut c_void, Free>(POOL_FREE_OWN.load(Ordering::Acquire)) };
    // SAFETY: the caller's argument.
    unsafe { own(at) }
}

unsafe extern "C" fn core_free(at: *mut c_void) -> c_int {
    forget(at);
    // SAFETY: as in `pool_allocate`.
    let own = unsafe { std::mem::transmute::<*mut c_void, Free>(CORE_FREE_OWN.load(Ordering::Acquire)) };
    // SAFETY: the caller's argument.
    unsafe { own(at) }
}

fn note(at: *mut c_void, bytes: usize) {
    let Some(ledger) = machine::ledger() else { return };
    let va = at.expose_provenance() as u64;
    ledger.allocate(va, bytes as u64, caller(), |bits| fill(at.cast(), bits));
}

fn forget(at: *mut c_void) {
    if let Some(ledger) = machine::ledger() {
        ledger.free(at.expose_provenance() as u64, caller());
    }
}

/// Fills memory with garbage, as far as it is mapped.
fn fill(at: *mut u8, bits: &Bits) {
    for offset in (0..bits.bytes()).step_by(8) {
        let to = at.wrapping_add(usize::try_from(offset).unwrap_or(0));
        let garbage = Bits::garbage(offset).to_le_bytes();
        let len = garbage.len().min(usize::try_from(bits.bytes() - offset).unwrap_or(8));
        // SAFETY: the runtime's new memory, by a routine that may fault; nobody else has it yet.
        if unsafe { raw::copy(to, garbage.as_ptr(), len) }.is_err() {
            return;
        }
    }
}

/// Whether a library is the runtime's, or this one.
fn is_runtime(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"libhsa-runtime64"[..], b"libamdhip64", b"libamdocl64", b"libvkfd_preload"]
        .iter()
        .any(|own| name.starts_with(own))
}

struct Walk {
    left: usize,
    found: Option<Arc<str>>,
}

/// The call that this comes from: the library or program outside of the runtime, and the offset in
/// it.
fn caller() -> Option<Arc<str>> {
    extern "C" {
        fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
    extern "C" fn each(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: the structure that `caller` has, which nobody else uses meanwhile.
        let walk = unsafe { &mut *argument.cast::<Walk>() };
        // SAFETY: the unwinder's own argument.
        let at = unsafe { _Unwind_GetIP(context) };
        walk.left -= 1;
        // SAFETY: zeros are a valid structure; the loader fills it in, with strings that stay.
        let (known, found) = unsafe {
            let mut found: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(std::ptr::without_provenance(at), &raw mut found) != 0, found)
        };
        if known && !found.dli_fname.is_null() {
            // SAFETY: the loader's string.
            let path = unsafe { CStr::from_ptr(found.dli_fname) };
            if !is_runtime(path) {
                let name = path.to_string_lossy();
                let name = name.rsplit('/').next().unwrap_or_default();
                walk.found = Some(format!("{name}+{:#x}", at.wrapping_sub(found.dli_fbase.addr())).into());
            }
        }
        // Anything but 0 ends it.
        c_int::from(walk.found.is_some() || walk.left == 0)
    }
    let mut walk = Walk { left: FRAMES, found: None };
    // SAFETY: the function is called with this structure while it is here.
    unsafe { _Unwind_Backtrace(each, (&raw mut walk).cast()) };
    walk.found
}
