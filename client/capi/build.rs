// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The shared library's name for the loader. Its number changes when programs that are linked with
//! it would no longer run.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvkfd.so.0");
}
