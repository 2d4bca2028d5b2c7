// SPDX-License-Identifier: GPL-2.0 OR MIT
//! WAIT_EVENTS: on a thread of its own, in slices, so that the end of the context is noticed. The
//! device goes on meanwhile, and so do the context's other rings.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vkfd_client::{Embedded, Transport};
use vkfd_uapi::event::{WaitEventsArgs, WAIT_RESULT_TIMEOUT};

use super::call::Call;

/// Most waits of a context at the same time: one for each ring.
const MAX_WAITS: usize = vkfd_remote::protocol::forward::SLOTS;
/// Milliseconds that a wait may not look at whether the context has ended.
const SLICE: u32 = 50;
/// A timeout that is none.
const FOREVER: u32 = u32::MAX;

/// What the waits of a context share.
#[derive(Clone, Default)]
pub struct Waits {
    cancelled: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
}

impl Waits {
    /// Lets all of them end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Room for one more. `None` when there is none.
    pub fn enter(&self) -> Option<Waiting> {
        let waiting = Waiting(self.clone());
        // Counted in any case: `Waiting` counts down.
        (self.count.fetch_add(1, Ordering::AcqRel) < MAX_WAITS).then_some(waiting)
    }
}

/// A wait's place among the others.
pub struct Waiting(Waits);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Waiting {
    pub fn run(self, file: &Embedded, call: &mut Call) -> Result<(), i32> {
        let asked: WaitEventsArgs = call.argument();
        let began = Instant::now();
        loop {
            let passed = u32::try_from(began.elapsed().as_millis()).unwrap_or(u32::MAX);
            let left = if asked.timeout == FOREVER { FOREVER } else { asked.timeout.saturating_sub(passed) };
            call.change(|args: &mut WaitEventsArgs| args.timeout = left.min(SLICE));
            // SAFETY: `make` gives an argument whose pointers are to arrays of the sizes that it
            // says.
            let done = call.make(|command, argument| unsafe { file.ioctl(command, argument) }.map_err(|e| e.0));
            let result: WaitEventsArgs = call.argument();
            call.change(|args: &mut WaitEventsArgs| args.timeout = left);
            // KFD says in the result that the time is over, and not by an errno.
            let over = done.is_ok() && result.wait_result == WAIT_RESULT_TIMEOUT;
            let again = over && left > SLICE || done == Err(libc::EINTR);
            if !again || self.0.cancelled.load(Ordering::Acquire) {
                return done;
            }
            // A driver that is interrupted at once would have this thread spin.
            if done.is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
