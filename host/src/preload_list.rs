// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The place of `vkfd run`'s library in LD_PRELOAD: the first. The program calls a function of the
//! first library that defines it. Other libraries that define libc's functions, such as allocators,
//! often make system calls themselves and bypass later libraries. The library itself calls the next
//! definition if it does not answer a call.
//!
//! Sanitizers' runtimes stand before it. They insist on being first, and pass calls on.

use vkfd_sabotage::{process, Switch};

/// What names of sanitizers' runtimes begin with, and have further on: gcc's and clang's.
const SANITIZERS: [(&[u8], &[u8]); 2] = [(b"lib", b"san.so"), (b"libclang_rt.", b"san")];

/// What separates the parts of the value.
pub fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b':')
}

/// Where in the value of LD_PRELOAD the library is to be put, as a number of bytes; `None` if it is
/// there. A further mention behind it does no harm: the loader loads a library once.
pub fn place(value: &[u8], library: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &value[at..];
        let skipped = rest.iter().take_while(|byte| is_separator(**byte)).count();
        let part = rest[skipped..].split(|byte| is_separator(*byte)).next().unwrap_or_default();
        if part == library {
            return None;
        }
        let last = process().has(Switch::LastInList) && !rest.is_empty();
        if !last && !is_sanitizer(part) {
            return Some(at);
        }
        at += skipped + part.len();
    }
}

fn is_sanitizer(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    SANITIZERS.iter().any(|(begin, has)| name.starts_with(begin) && name.windows(has.len()).any(|part| part == *has))
}

/// The value with the library in it.
pub fn with(value: &[u8], library: &[u8]) -> Vec<u8> {
    let Some(at) = place(value, library) else { return value.to_vec() };
    let (before, after) = value.split_at(at);
    let colon = |needed: bool| if needed { &b":"[..] } else { b"" };
    let after_colon = after.first().is_some_and(|byte| !is_separator(*byte));
    [before, colon(!before.is_empty()), library, colon(after_colon), after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_first_but_for_sanitizers() {
        for (before, after) in [
            ("", "/v.so"),
            ("/tc.so", "/v.so:/tc.so"),
            ("/tc.so /x.so", "/v.so:/tc.so /x.so"),
            ("libasan.so.8", "libasan.so.8:/v.so"),
            ("/l/libtsan.so.2:/tc.so", "/l/libtsan.so.2:/v.so:/tc.so"),
            ("/l/libclang_rt.asan-x86_64.so", "/l/libclang_rt.asan-x86_64.so:/v.so"),
            (" /tc.so", "/v.so /tc.so"),
            ("/v.so:/tc.so", "/v.so:/tc.so"),
            ("/libasan.so:/v.so", "/libasan.so:/v.so"),
            // Too late there: its hooks would not be called.
            ("/tc.so:/v.so", "/v.so:/tc.so:/v.so"),
        ] {
            assert_eq!(String::from_utf8(with(before.as_bytes(), b"/v.so")).unwrap(), after, "{before}");
        }
    }
}
