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
    /// The threads there were when it was read. Who is asked for and found is there still.
    known: Vec<libc::pid_t>,
}

impl Threads {
    /// # Errors
    /// Why the threads cannot be listed.
    pub(super) fn open() -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { tasks: rustix::fs::open("/proc/self/task", flags, Mode::empty())?, known: Vec::new() })
    }

    /// The pages of all threads' descriptors. O(threads); a good part of a microsecond each, and four times that where threads have come or gone.
    ///
    /// # Errors
    /// As for [`Threads::open`].
    pub(super) fn descriptor_pages(&mut self) -> rustix::io::Result<Vec<CpuVa>> {
        if let Some(pages) = self.pages_of_known()? {
            return Ok(pages);
        }
        self.known.clear();
        let mut entries = [MaybeUninit::uninit(); 4096];
        rustix::fs::seek(&self.tasks, SeekFrom::Start(0))?;
        let mut entries = RawDir::new(&self.tasks, &mut entries);
        while let Some(entry) = entries.next() {
            self.known.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<libc::pid_t>().ok()));
        }
        // One that has ended since has none.
        Ok(self.known.iter().filter_map(|thread| pages_of(*thread)).flatten().collect())
    }

    /// Those of the threads that were there, if they are there still and there are no others.
    fn pages_of_known(&self) -> rustix::io::Result<Option<Vec<CpuVa>>> {
        // A directory has a link for each directory in it, and two more.
        if rustix::fs::fstat(&self.tasks)?.st_nlink != self.known.len() as u64 + 2 {
            return Ok(None);
        }
        let mut pages = Vec::new();
        for thread in &self.known {
            match pages_of(*thread) {
                Some(own) => pages.extend(own),
                None => return Ok(None),
            }
        }
        Ok(Some(pages))
    }
}

/// The pages that `thread`'s descriptor may be in; `None` when there is no such thread.
fn pages_of(thread: libc::pid_t) -> Option<impl Iterator<Item = CpuVa>> {
    let (mut head, mut bytes) = (0_u64, 0_usize);
    // SAFETY: the call writes an address and a size to the two.
    let found = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut bytes) };
    // A thread that the C library does not know has no list, and no descriptor.
    let (first, last) = if head > BEFORE { ((head - BEFORE) / PAGE, head / PAGE + 1) } else { (0, 0) };
    (found == 0).then(|| (first..last).map(|page| CpuVa(page * PAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// On x86-64 the thread pointer is the descriptor's address, and the list is in its first page or the next.
    fn own() -> CpuVa {
        // SAFETY: no preconditions.
        CpuVa(unsafe { libc::pthread_self() } / PAGE * PAGE)
    }

    fn has(threads: &mut Threads, at: CpuVa) -> bool {
        threads.descriptor_pages().unwrap().iter().any(|page| page.0 == at.0 || page.0 == at.0 + PAGE)
    }

    #[test]
    fn every_thread_has_a_descriptor_where_its_thread_pointer_is() {
        let threads = &mut Threads::open().unwrap();
        // In turn one and three threads, so that who comes is another's successor, and all at the same number.
        for round in 0..20 {
            let there = Barrier::new(round % 2 * 2 + 2);
            let own_pages = std::thread::scope(|scope| {
                let spawn = |_| {
                    scope.spawn(|| {
                        there.wait();
                        there.wait();
                        own()
                    })
                };
                let others: Vec<_> = (1..round % 2 * 2 + 2).map(spawn).collect();
                there.wait();
                assert!(has(threads, own()));
                let pages = threads.descriptor_pages().unwrap();
                there.wait();
                let own_pages: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
                (own_pages, pages)
            });
            let (own_pages, pages) = own_pages;
            for own in own_pages {
                assert!(pages.iter().any(|page| page.0 == own.0 || page.0 == own.0 + PAGE), "round {round}");
            }
        }
    }
}
