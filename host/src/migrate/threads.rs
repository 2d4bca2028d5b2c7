// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The places of threads' stacks, and of the C library's descriptor of each thread, which never go
//! to a GPU.
//!
//! A thread that works for the driver has the driver's locks while it touches its stack. If the
//! stack had moved, the thread would wait for the worker. The worker, which reports moves to the
//! driver, would wait for the lock: a deadlock. So no thread's stack moves, not even the client's:
//! they all call the driver.
//!
//! The C library's descriptor of a thread is at the upper end of its stack. A joining thread waits
//! on a word there, which the kernel clears and wakes at the thread's end. That futex is not
//! private, so the kernel identifies it by its page: of anonymous memory by the address, of a
//! mapping of VRAM by the file. A thread that began to wait before the move would not be found
//! after it. The other futexes that threads wait on are private: their address alone identifies
//! them.
//!
//! Limits: only the next move sees a thread that starts while memory moves. Its stack may be in
//! memory that went to a GPU when no thread used it. Below a stack without a guard, up to [`STACK`]
//! of other memory in the same mapping stay, too.

use super::vma::Mappings;
use crate::sys;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};

/// The list of a thread's robust mutexes begins in its descriptor, just after the word.
const BEFORE: u64 = 64;

/// The most that a stack is taken to have, below its descriptor: as much as the C library gives it
/// where nobody says otherwise.
const STACK: u64 = 8 << 20;

/// A page that a thread's descriptor may be in.
type Page = (libc::pid_t, CpuVa);

/// The threads that there are.
pub(super) struct Threads {
    /// /proc/self/task, kept open: finding it takes longer than reading it.
    tasks: OwnedFd,
    /// The threads that existed when it was read. A thread that is looked up and found still
    /// exists.
    known: Vec<libc::pid_t>,
}

impl Threads {
    /// # Errors
    /// Why the threads cannot be listed.
    pub(super) fn open() -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { tasks: rustix::fs::open("/proc/self/task", flags, Mode::empty())?, known: Vec::new() })
    }

    /// The parts of `span` that are threads' stacks, with their descriptors. O(threads), and a
    /// query for each of them that is near.
    ///
    /// # Errors
    /// As for [`Threads::open`].
    pub(super) fn stacks_in(&mut self, span: CpuSpan, mappings: &Mappings) -> rustix::io::Result<Vec<CpuSpan>> {
        let mut stacks = Vec::new();
        for (thread, page) in self.descriptor_pages()? {
            // The first thread's is known by its name, and its descriptor is elsewhere.
            if thread == sys::pid() {
                let descriptor = CpuSpan::between(page, CpuVa(page.0 + PAGE));
                stacks.extend(descriptor.overlaps(span).then_some(descriptor));
                continue;
            }
            let most = CpuSpan::between(CpuVa(page.0.saturating_sub(STACK)), CpuVa(page.0 + PAGE));
            if !most.overlaps(span) {
                continue;
            }
            // Below it is a page without access, so the mapping begins where the stack ends; above
            // it may go on with other memory.
            let first = match mappings.query(page) {
                Ok(Some(mapping)) if mapping.span.contains(page) => mapping.span.start(),
                _ => page,
            };
            let stack = CpuSpan::between(most.start().max(first), most.end());
            if stack.overlaps(span) {
                stacks.push(stack.overlap(span));
            }
        }
        Ok(stacks)
    }

    /// The pages of all threads' descriptors. O(threads); a good part of a microsecond each, and
    /// four times that where threads have come or gone.
    ///
    /// # Errors
    /// As for [`Threads::open`].
    fn descriptor_pages(&mut self) -> rustix::io::Result<Vec<Page>> {
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
    fn pages_of_known(&self) -> rustix::io::Result<Option<Vec<Page>>> {
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
fn pages_of(thread: libc::pid_t) -> Option<impl Iterator<Item = Page>> {
    let (mut head, mut bytes) = (0_u64, 0_usize);
    // SAFETY: the call writes an address and a size to the two.
    let found = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut bytes) };
    // A thread that the C library does not know has no list, and no descriptor.
    let (first, last) = if head > BEFORE { ((head - BEFORE) / PAGE, head / PAGE + 1) } else { (0, 0) };
    (found == 0).then(|| (first..last).map(move |page| (thread, CpuVa(page * PAGE))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// On x86-64 the thread pointer is the descriptor's address, and the list is in its first page
    /// or the next.
    fn own() -> CpuVa {
        // SAFETY: no preconditions.
        CpuVa(unsafe { libc::pthread_self() } / PAGE * PAGE)
    }

    fn has(threads: &mut Threads, at: CpuVa) -> bool {
        threads.descriptor_pages().unwrap().iter().any(|(_, page)| page.0 == at.0 || page.0 == at.0 + PAGE)
    }

    #[test]
    fn every_thread_has_a_descriptor_where_its_thread_pointer_is() {
        let threads = &mut Threads::open().unwrap();
        // In turn one and three threads, so that each new thread is another's successor, and all at
        // the same number.
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
                assert!(pages.iter().any(|(_, page)| page.0 == own.0 || page.0 == own.0 + PAGE), "round {round}");
            }
        }
    }
}
