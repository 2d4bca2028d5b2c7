// SPDX-License-Identifier: GPL-2.0 OR MIT
//! mlockall: the program's memory is locked and filled, this library's reservations are not. They
//! are gigabytes of which little is used: a GPU's memory, and tables.

use libc::{c_int, c_long};
use vkfd_host::hooks;

fn lock_all(flags: c_int) -> c_long {
    // SAFETY: a system call that changes no contents.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) }
}

/// The addresses of an accessible mapping, in a line of `/proc/self/maps`.
fn mapping(line: &str) -> Option<(u64, u64)> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    (!rest.starts_with("---")).then_some((address(start)?, address(end)?))
}

hooks! {
    HOOKS;

    /// mlockall(2).
    [] fn mlockall(flags: c_int) -> c_int {
        let fills = flags & libc::MCL_CURRENT != 0 && flags & libc::MCL_ONFAULT == 0;
        if !fills {
            return c_int::try_from(lock_all(flags)).unwrap_or(-1);
        }
        // Nothing is filled by this, and the kernel looks at the limit.
        if lock_all(libc::MCL_CURRENT | libc::MCL_ONFAULT) != 0 {
            return -1;
        }
        // By itself it leaves the mappings that exist as they are.
        if flags & libc::MCL_FUTURE != 0 && lock_all(libc::MCL_FUTURE) != 0 {
            return -1;
        }
        // SAFETY: the location is this thread's.
        let errno = unsafe { *libc::__errno_location() };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for (start, end) in maps.lines().filter_map(mapping).filter(|(start, _)| !vkfd_rt::reserve::has(*start)) {
            // What cannot be filled is left out, as the kernel does.
            // SAFETY: locking changes no contents.
            unsafe { libc::syscall(libc::SYS_mlock, start, end - start) };
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        0
    }
}
