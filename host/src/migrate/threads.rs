// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the C library keeps what it knows of each thread, which never goes to a GPU.
//!
//! Who joins a thread waits on a word there, which the kernel clears and wakes when the thread has ended. That futex is not a private one, so
//! what it is waited on by is the page: of anonymous memory the address, of a mapping of VRAM the file. Who began to wait before the page moved
//! would not be found after it. The other futexes that threads wait on are private, that is of the address whatever is behind it.
//!
//! Limit: a thread that starts while memory moves is seen by the next move only; and the descriptor that it has may be in memory that went to a GPU
//! when it was nobody's.

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use vkfd_driver::addr::{CpuVa, PAGE};

/// The list of a thread's robust mutexes begins in its descriptor, just after the word.
const BEFORE: u64 = 64;

/// The threads that there are.
pub(super) struct Threads {
    /// /proc/self/task, kept open: finding it takes longer than reading it.
    tasks: OwnedFd,
}

impl Threads {
    /// # Errors
    /// Why the threads cannot be listed.
    pub(super) fn open() -> rustix::io::Result<Self> {
        let tasks =
            rustix::fs::open("/proc/self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { tasks })
    }

    /// The pages of all threads' descriptors. O(threads).
    ///
    /// # Errors
    /// As for [`Threads::open`].
    pub(super) fn descriptor_pages(&self) -> rustix::io::Result<Vec<CpuVa>> {
        let mut pages = Vec::new();
        let mut entries = [MaybeUninit::uninit(); 4096];
        rustix::fs::seek(&self.tasks, SeekFrom::Start(0))?;
        let mut entries = RawDir::new(&self.tasks, &mut entries);
        while let Some(entry) = entries.next() {
            let Some(thread) = entry?.file_name().to_str().ok().and_then(|name| name.parse::<libc::pid_t>().ok())
            else {
                continue;
            };
            let (mut head, mut bytes) = (0_u64, 0_usize);
            // SAFETY: the call writes an address and a size to the two.
            let found = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut bytes) };
            // One that has just ended has none.
            if found == 0 && head > BEFORE {
                let (first, last) = ((head - BEFORE) / PAGE, head / PAGE);
                pages.extend((first..=last).map(|page| CpuVa(page * PAGE)));
            }
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_descriptor_where_its_thread_pointer_is() {
        // On x86-64 the thread pointer is the descriptor's address, and the list is in its first page or the next.
        // SAFETY: no preconditions.
        let own = || CpuVa(unsafe { libc::pthread_self() } / PAGE * PAGE);
        let threads = Threads::open().unwrap();
        let has =
            |at: CpuVa| threads.descriptor_pages().unwrap().iter().any(|page| page.0 == at.0 || page.0 == at.0 + PAGE);
        assert!(has(own()));
        std::thread::scope(|scope| scope.spawn(|| assert!(has(own()))).join()).unwrap();
    }
}
