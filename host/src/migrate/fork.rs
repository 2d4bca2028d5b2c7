// SPDX-License-Identifier: GPL-2.0 OR MIT
//! fork: the child must have private copies, but it would share mappings of VRAM. So everything
//! moves back before a fork, and nothing moves to a device until the fork is over.

use super::Mover;
use crate::mm::Mm;
use crate::uffd::everything;
use std::sync::Once;

extern "C" fn prepare() {
    if let Some(mover) = Mm::current().and_then(Mover::of) {
        mover.freeze(everything());
    }
}

extern "C" fn parent() {
    if let Some(mover) = Mm::current().and_then(Mover::of) {
        mover.thaw();
    }
}

/// Installs the handlers, once.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions for the life of the process and call nothing that fork
        // forbids.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), None) };
        if refused != 0 {
            tracing::warn!(errno = refused, "a child shares memory that is on a GPU when it forks");
        }
    });
}
