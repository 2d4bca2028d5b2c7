// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the program calls instead of libc's functions, in every form that libc has of them.
//!
//! Variadic functions are defined with their last arguments in place: where integers are passed in
//! registers, on x86-64 and aarch64 Linux, a caller cannot tell.

mod attribute;
mod descriptor;
mod exec;
mod lock;
mod path;
mod signal;
mod status;
mod transfer;

use libc::c_int;
use vkfd_host::hook::Hook;

/// All hooks of this library.
pub(crate) const LISTS: [&[Hook]; 12] = [
    vkfd_host::interpose::HOOKS,
    attribute::HOOKS,
    descriptor::HOOKS,
    exec::HOOKS,
    lock::HOOKS,
    path::HOOKS,
    path::SAME,
    signal::HOOKS,
    status::HOOKS,
    status::FAMILY,
    transfer::HOOKS,
    transfer::TRANSFERS,
];

/// How many these are.
pub(crate) const COUNT: usize = {
    let (mut list, mut count) = (0, 0);
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
};

/// The result of a call that has an errno of its own.
fn done(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = errno };
        -1
    })
}

/// Runs when the library is loaded.
extern "C" fn start() {
    vkfd_host::per_process::watch_forks();
    vkfd_host::interpose::set_mapper(crate::device::map);
    // Found out now, because it takes the loader's lock, which a call may not wait for.
    vkfd_host::interpose::interposed();
    if crate::setting::get().is_some() {
        // Before the program has handlers of its own.
        vkfd_gpu::raw::install();
    }
    crate::reach::look_up();
    crate::device::find_inherited();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = start;
