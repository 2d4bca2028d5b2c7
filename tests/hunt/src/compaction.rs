// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that the kernel compacts all the time: it moves pages, the tests' among them, to have
//! what is free in one piece. A thread that moves pages itself meets pages that are just being
//! moved.
//!
//! Needs the privilege to ask for it (`/proc/sys/vm/compact_memory`).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use vkfd_scenarios::Memory;

const COMPACT: &str = "/proc/sys/vm/compact_memory";
const PAGE: u64 = 4096;
/// Bytes of memory of which every other page is free again.
const SCATTERED: u64 = 64 << 20;

/// Memory is compacted until it is dropped.
pub struct Compaction {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compaction {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// It is not permitted, or there is no such kernel.
    pub fn start() -> io::Result<Self> {
        std::fs::write(COMPACT, "1")?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let thread = std::thread::Builder::new()
            .name("compaction".into())
            .spawn(move || while !seen.load(Ordering::Relaxed) && compact().is_ok() {})?;
        Ok(Self { over, thread: Some(thread) })
    }
}

/// Frees pages everywhere, and has others moved there.
fn compact() -> io::Result<()> {
    let scattered = Memory::anonymous(SCATTERED)?;
    scattered.fill(1);
    for page in (0..scattered.pages()).step_by(2) {
        scattered.discard(page * PAGE, PAGE)?;
    }
    std::fs::write(COMPACT, "1")
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
