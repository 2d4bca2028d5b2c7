// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hooks: functions that stand in libc's place for a program.
//!
//! [`hooks!`](crate::hooks) defines them, and makes their list from the same text. Each has a call
//! that changes nothing, which shows whether the program's calls get there
//! ([`crate::interpose::reaches`]).

use std::ffi::CStr;

/// An argument of a call that changes nothing.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// Also a pointer that nobody follows.
    Number(isize),
    /// A path of ours behind which nothing is.
    Path,
    /// Memory of [`ROOM`] bytes, which begins with the string `r`.
    Buffer,
}

use Argument::{Buffer, Number, Path};

/// See [`Argument::Buffer`].
pub const ROOM: usize = 4096;
const ZERO: Argument = Number(0);
const NONE: Argument = Number(-1);
const SIZE: Argument = Number(ROOM as isize);
/// Of the structure of stat.
const VERSION: Argument = Number(1);
const HERE: Argument = Number(libc::AT_FDCWD as isize);

/// The arguments of such a call.
pub type Probe = [Argument; 5];

/// Neither memory nor a file.
pub const MAPPING: Probe = [ZERO, ZERO, ZERO, ZERO, NONE];
/// No descriptor; for signals, no signal.
pub const DESCRIPTOR: Probe = [NONE, ZERO, ZERO, ZERO, ZERO];
/// A path and numbers.
pub const PATH: Probe = [Path, ZERO, ZERO, ZERO, ZERO];
/// A path, and memory to write to.
pub const FROM_PATH: Probe = [Path, Buffer, SIZE, SIZE, ZERO];
/// A path, memory to write to and its size, where the size comes last.
pub const CHECKED_PATH: Probe = [Path, Buffer, SIZE, ZERO, ZERO];
/// A path and the name of an attribute.
pub const ATTRIBUTE: Probe = [Path, Buffer, Buffer, ZERO, ZERO];
/// A path, a place for a list.
pub const LIST: Probe = [Path, Buffer, ZERO, ZERO, ZERO];
/// A path below a directory.
pub const AT: Probe = [HERE, Path, ZERO, ZERO, ZERO];
/// A path below a directory, and memory to write to.
pub const FROM_AT: Probe = [HERE, Path, Buffer, ZERO, ZERO];
/// The same, with the memory's size.
pub const SIZED_FROM_AT: Probe = [HERE, Path, Buffer, SIZE, ZERO];
/// The arguments of statx.
pub const STATX: Probe = [HERE, Path, ZERO, ZERO, Buffer];
/// stat with the structure's version.
pub const OLD_STAT: Probe = [VERSION, Path, Buffer, ZERO, ZERO];
/// fstat with the structure's version.
pub const OLD_FSTAT: Probe = [VERSION, NONE, Buffer, ZERO, ZERO];
/// fstatat with the structure's version.
pub const OLD_FSTATAT: Probe = [VERSION, HERE, Path, Buffer, ZERO];

/// A hook.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// libc's name.
    pub name: &'static CStr,
    /// A call that changes nothing, if there is one.
    pub probe: Option<Probe>,
}

impl Hook {
    /// `name` ends with a zero byte.
    ///
    /// # Panics
    /// When the list is compiled, if the name does not end so.
    pub const fn new(name: &'static str, probe: Option<Probe>) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, probe },
            Err(_) => panic!("no C string"),
        }
    }
}

/// Defines hooks and the list of them: `hooks! { LIST; [PROBE] fn name(argument: kind) {} }`, with
/// `[]` where there is no call that changes nothing.
#[macro_export]
macro_rules! hooks {
    ($list:ident; $(
        $(#[$meta:meta])*
        [$($probe:expr)?] fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {
        /// The hooks that are defined here.
        pub const $list: &[$crate::hook::Hook] = &[$(
            $crate::hook::Hook::new(concat!(stringify!($name), "\0"), $crate::hooks!(@probe $($probe)?)),
        )*];

        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As for libc's function.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body
        )*
    };
    (@probe) => { None };
    (@probe $probe:expr) => { Some($probe) };
}
