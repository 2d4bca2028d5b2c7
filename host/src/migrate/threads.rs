// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the C library keeps what it knows of each thread, which never goes to a GPU.
//!
//! Who joins a thread waits on a word there, which the kernel clears and wakes when the thread has ended. That futex is not a private one, so
//! what it is waited on by is the page: of anonymous memory the address, of a mapping of VRAM the file. Who began to wait before the page moved
//! would not be found after it. The other futexes that threads wait on are private, that is of the address whatever is behind it.
//!
//! Limit: a thread that starts while memory moves is seen by the next move only; and the descriptor that it has may be in memory that went to a GPU
//! when it was nobody's.

use std::io;
use vkfd_driver::addr::{CpuVa, PAGE};

/// The list of a thread's robust mutexes begins in its descriptor, just after the word.
const BEFORE: u64 = 64;

/// The pages of the descriptors of all threads that there are. Allocates.
pub(super) fn descriptor_pages() -> io::Result<Vec<CpuVa>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse::<libc::pid_t>().ok()) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_descriptor_where_its_thread_pointer_is() {
        // On x86-64 the thread pointer is the descriptor's address, and the list is in its first page or the next.
        // SAFETY: no preconditions.
        let own = || CpuVa(unsafe { libc::pthread_self() } / PAGE * PAGE);
        let has = |at: CpuVa| descriptor_pages().unwrap().iter().any(|page| page.0 == at.0 || page.0 == at.0 + PAGE);
        assert!(has(own()));
        std::thread::spawn(move || assert!(has(own()))).join().unwrap();
    }
}
