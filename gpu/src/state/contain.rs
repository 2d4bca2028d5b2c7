// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Panics of the GPU's threads: each ends one queue, and nothing waits for the thread that
//! panicked.
//!
//! No code and no packet is known to make one panic. If one does, the thread's access must end all
//! the same, because suspending, flushing and removing wait for it with the driver's locks held.

use crate::base::queue_error::QueueError;
use crate::state::access::Port;
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs `work`, which has accesses of `port`. A panic is an error, and the access in which it
/// happened ends.
pub(crate) fn contain<R>(port: &mut Port, work: impl FnOnce(&mut Port) -> R) -> Result<R, QueueError> {
    // What `work` leaves half done is given up by the callers: the queue halts, the engine is made
    // anew. Mutexes are taken whether poisoned or not.
    let result = catch_unwind(AssertUnwindSafe(|| work(&mut *port)));
    result.map_err(|payload| {
        port.abandon();
        QueueError::Panicked { message: message(&*payload) }
    })
}

/// What a panic said.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned()
}
