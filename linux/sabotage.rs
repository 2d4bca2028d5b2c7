// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is broken on purpose: the module's parameter `sabotage`, names of docs/sabotage.md with
//! commas between them.
//!
//! The set is the whole module's, as the parameter is, and a module has one machine. It is written
//! once, before there is a machine. The parameter is in helpers.c, because the kernel's Rust has
//! none that are strings.

use core::ffi::{c_char, CStr};
use kernel::prelude::*;
use vkfd_sabotage::LiveSwitches;

/// What is broken.
pub(crate) static SWITCHES: LiveSwitches = LiveSwitches::new();

extern "C" {
    fn vkfd_sabotage_names() -> *const c_char;
}

/// Reads the parameter. EINVAL for a name that is none, and for any in a build that cannot be
/// broken.
pub(crate) fn read() -> Result {
    // SAFETY: one of the module's strings, which does not change after loading.
    let names = unsafe { CStr::from_ptr(vkfd_sabotage_names()) };
    set(names.to_str().map_err(|_| EINVAL)?.trim())
}

#[cfg(any(debug_assertions, vkfd_sabotage))]
fn set(names: &str) -> Result {
    use vkfd_sabotage::Part;
    match vkfd_sabotage::parse(names, &[Part::Driver, Part::Linux], |_, _| None) {
        Ok(switches) => SWITCHES.set(switches),
        Err(bad) => {
            // The kernel's own Display is another trait than that of the error.
            pr_err!("sabotage: {}\n", format_args!("{bad}"));
            return Err(EINVAL);
        }
    }
    Ok(())
}

#[cfg(not(any(debug_assertions, vkfd_sabotage)))]
fn set(names: &str) -> Result {
    if !names.is_empty() {
        pr_err!("this module was not built to be sabotaged\n");
        return Err(EINVAL);
    }
    Ok(())
}
