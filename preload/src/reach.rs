// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether the program's calls get to the hooks. The program or an earlier library may have a
//! function of the same name that makes the system call itself. The GPU would then see other memory
//! than the CPU. There is no machine in such a process, and a message says why.
//!
//! Mechanism: when the library is loaded, each hook's name is looked up as the program's own calls
//! are. What is not found in this library is called with arguments that change nothing, before the
//! first device is opened: a hook notes that it was reached. So a wrapper that passes calls on, as
//! sanitizers' are, does no harm.
//!
//! The hooks are in one list ([`crate::hooks::LISTS`]), which is made of their definitions.
//!
//! Limits: those that run programs and the like have no call that changes nothing, and are not
//! checked. What binds to libc alone (a library that was linked with -Bsymbolic, RTLD_DEEPBIND) is
//! not seen.

use crate::hooks::{COUNT, LISTS};
use crate::setting;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use vkfd_host::hook::{Argument, Hook, Probe, ROOM};
use vkfd_host::interpose::reaches;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

const PROBE: &CStr = c"/dev/dri/vkfd-probe";

fn hooks() -> impl Iterator<Item = &'static Hook> {
    LISTS.into_iter().flatten()
}

/// What is called by each name, where that is not in this library.
static OTHERS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

const UNKNOWN: u8 = 0;
const GOOD: u8 = 1;
const BAD: u8 = 2;
static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The object that defines the function at `at`.
fn object(at: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: zeros are a valid structure, which the loader fills in.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about.
    (unsafe { libc::dladdr(at, &raw mut found) } != 0).then_some(found)
}

/// Looks all names up: when the library is loaded, because the loader may be busy later.
pub(crate) fn look_up() {
    if setting::get().is_none() {
        return;
    }
    let Some(own) = object((&raw const ANSWER).cast()) else { return };
    for (hook, other) in hooks().zip(&OTHERS) {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, hook.name.as_ptr()) };
        if !found.is_null() && object(found).is_some_and(|object| object.dli_fbase != own.dli_fbase) {
            other.store(found, Ordering::Relaxed);
        }
    }
}

/// Whether there can be a machine in this process; says once why not.
pub(crate) fn check() -> Result<(), c_int> {
    if ANSWER.load(Ordering::Acquire) == UNKNOWN {
        // Two threads find out the same.
        let bad = hooks().zip(&OTHERS).find(|(hook, other)| {
            let other = other.load(Ordering::Relaxed);
            let probe = hook.probe.filter(|_| !other.is_null() && !sabotage::has(Switch::UncheckedHooks));
            probe.is_some_and(|probe| !reaches(|| call(other, &probe)))
        });
        let answer = if bad.is_some() { BAD } else { GOOD };
        if let (UNKNOWN, Some((hook, other))) = (ANSWER.swap(answer, Ordering::AcqRel), bad) {
            say(hook.name, other.load(Ordering::Relaxed));
        }
    }
    if ANSWER.load(Ordering::Acquire) == GOOD {
        Ok(())
    } else {
        Err(libc::ENODEV)
    }
}

fn call(function: *mut c_void, arguments: &Probe) {
    static BUFFER: [AtomicU8; ROOM] = [const { AtomicU8::new(0) }; ROOM];
    BUFFER[0].store(b'r', Ordering::Relaxed);
    let [a, b, c, d, e] = arguments.map(|argument| match argument {
        Argument::Number(number) => usize::from_ne_bytes(number.to_ne_bytes()),
        Argument::Path => PROBE.as_ptr().expose_provenance(),
        Argument::Buffer => BUFFER.as_ptr().expose_provenance(),
    });
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: the function has libc's name, and takes up to six integers or pointers, in registers
    // on the machines that this library is for. These fail, or change nothing.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        std::mem::transmute::<*mut c_void, Function>(function)(a, b, c, d, e, 0);
        *errno = before;
    }
}

fn say(name: &CStr, function: *mut c_void) {
    let object = object(function).filter(|object| !object.dli_fname.is_null());
    // SAFETY: a C string that stays as long as the object is loaded.
    let object = object.map(|object| unsafe { CStr::from_ptr(object.dli_fname) }.to_string_lossy().into_owned());
    let (name, object) = (name.to_string_lossy(), object.unwrap_or_else(|| "another library".into()));
    vkfd_rt::message::write(format_args!(
        "vkfd: {object} has a function {name} of its own, which does not call vkfd's: the GPU would see other memory \
         than the program. There is no GPU in this process. Run the program without {object}, or build it without \
         that function"
    ));
}
