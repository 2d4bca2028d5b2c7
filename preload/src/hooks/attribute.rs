// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Extended attributes, by path: `ls -l` asks for them. Below the private directory they are those
//! of the files there.

use crate::real;
use crate::redirect::Path;
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use vkfd_host::hook::ATTRIBUTE;
use vkfd_host::hooks;

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        hooks! {
            HOOKS;
            $(
                $(#[$doc])*
                [ATTRIBUTE] fn $name(path: *const c_char $(, $argument: $kind)*) -> $result {
                    // SAFETY: forwarded to the caller.
                    unsafe { real::$name()(Path::new(path).as_ptr() $(, $argument)*) }
                }
            )*
        }
    };
}

attributes! {
    /// getxattr(2).
    getxattr(name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t;
    /// lgetxattr(2).
    lgetxattr(name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t;
    /// listxattr(2).
    listxattr(list: *mut c_char, room: size_t) -> ssize_t;
    /// llistxattr(2).
    llistxattr(list: *mut c_char, room: size_t) -> ssize_t;
    /// setxattr(2).
    setxattr(name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    /// lsetxattr(2).
    lsetxattr(name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    /// removexattr(2).
    removexattr(name: *const c_char) -> c_int;
    /// lremovexattr(2).
    lremovexattr(name: *const c_char) -> c_int;
}
