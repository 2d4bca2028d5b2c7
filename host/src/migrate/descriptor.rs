// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The userfaultfd descriptor for moving pages, and its calls.
//!
//! It exists besides that of [`crate::uffd`], whose write protection is asynchronous and therefore
//! blocks no thread. Memory that moves or has moved is registered with it. A thread that touches a
//! missing page waits, and every change of the mappings raises an event. As long as an event is
//! unread, all calls that fill or move pages of registered memory fail with EAGAIN.
//!
//! Nothing here allocates.

use linux_raw_sys::{general as raw, ioctl};
use std::io;
use std::os::fd::RawFd;
use vkfd_driver::base::addr::{CpuSpan, CpuVa};

/// `_IOWR(0xAA, 5, struct uffdio_move)`, which the bindings do not have.
const UFFDIO_MOVE: u32 = 0xc028_aa05;

const EVENTS: u32 = raw::UFFD_FEATURE_EVENT_REMAP | raw::UFFD_FEATURE_EVENT_REMOVE | raw::UFFD_FEATURE_EVENT_UNMAP;
const FEATURES: u32 = EVENTS
    | raw::UFFD_FEATURE_MISSING_SHMEM
    | raw::UFFD_FEATURE_MINOR_SHMEM
    | raw::UFFD_FEATURE_THREAD_ID
    | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | raw::UFFD_FEATURE_MOVE;

/// What touching registered memory does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// A thread that touches a missing page waits.
    Missing,
    /// A thread that touches a page of the file without a page-table entry waits. Shared memory
    /// only. Neither more nor less than [`Mode::Missing`], because a registration for less than
    /// there is is ignored.
    Sealed,
    /// Nobody waits. For the probe.
    Protect,
}

impl Mode {
    const fn bits(self) -> u64 {
        (match self {
            Self::Missing => raw::UFFDIO_REGISTER_MODE_MISSING,
            Self::Sealed => raw::UFFDIO_REGISTER_MODE_MINOR,
            Self::Protect => raw::UFFDIO_REGISTER_MODE_WP,
        }) as u64
    }
}

/// A descriptor. Never closed: closing would end registrations of the client's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    fd: RawFd,
    /// Accesses by the kernel (system calls) wait, too; otherwise they fail with EFAULT.
    pub(super) kernel_faults: bool,
}

/// How far a transfer came, in bytes, and what stopped it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transferred {
    pub(super) bytes: u64,
    pub(super) errno: Option<i32>,
}

impl Descriptor {
    /// A new one.
    ///
    /// # Errors
    /// What userfaultfd says; `Unsupported` for kernels without `UFFDIO_MOVE` (before Linux 6.8).
    pub(super) fn open() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let user_only = i32::try_from(raw::UFFD_USER_MODE_ONLY).unwrap_or(1);
        let mut error = io::Error::from(io::ErrorKind::Unsupported);
        // With everyone's faults where that is permitted, else with user mode's only, which is
        // permitted to all.
        for (flags, kernel_faults) in [(flags, true), (flags | user_only, false)] {
            // SAFETY: no pointers are passed.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
                error = io::Error::last_os_error();
                continue;
            };
            let descriptor = Self { fd, kernel_faults };
            let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: FEATURES.into(), ioctls: 0 };
            if descriptor.call(ioctl::UFFDIO_API, &mut api).is_ok() {
                return Ok(descriptor);
            }
            // SAFETY: opened above, and nobody has seen it.
            unsafe { libc::close(fd) };
            error = io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's userfaultfd cannot move pages (Linux 6.8 and later can)",
            );
        }
        Err(error)
    }

    /// Whether a new one can be had: then, whether accesses by the kernel wait.
    ///
    /// # Errors
    /// As [`Descriptor::open`].
    pub(super) fn probe() -> io::Result<bool> {
        let probe = Self::open()?;
        // SAFETY: opened just now; it has no registrations that closing could end.
        unsafe { libc::close(probe.fd) };
        Ok(probe.kernel_faults)
    }

    fn call<T>(self, request: u32, argument: &mut T) -> Result<(), i32> {
        // SAFETY: each caller passes the structure that the request takes, and answers for the
        // request's effect on the memory it names.
        match unsafe { libc::ioctl(self.fd, request.into(), std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Registers `span`, all of which is memory of a kind that can be, or changes its mode.
    pub(super) fn register(self, span: CpuSpan, mode: Mode) -> Result<(), i32> {
        let mut register = raw::uffdio_register { range: range(span), mode: mode.bits(), ioctls: 0 };
        self.call(ioctl::UFFDIO_REGISTER, &mut register)
    }

    /// Ends the registration of `span`; threads that wait there continue.
    pub(super) fn unregister(self, span: CpuSpan) -> Result<(), i32> {
        self.call(ioctl::UFFDIO_UNREGISTER, &mut range(span))
    }

    /// Wakes the threads that wait in `span`; they touch the page again.
    pub(super) fn wake(self, span: CpuSpan) {
        let _ = self.call(ioctl::UFFDIO_WAKE, &mut range(span));
    }

    /// Moves pages of private anonymous memory from `from` to the start of `to`, which is
    /// registered with this descriptor and empty. A page in use for I/O or shared with a child is
    /// EBUSY, one that is missing ENOENT.
    ///
    /// Linux 6.18 does not forget that it had to try a page again (`move_pages` in
    /// mm/userfaultfd.c): what it moves after that it tries once more. So EEXIST may be a page that
    /// was moved and not counted, and others may follow it. And with
    /// UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES, which is not used therefore, it would try a page for ever
    /// that is being discarded.
    pub(super) fn move_pages(self, to: CpuSpan, from: CpuVa) -> Transferred {
        let mut at = 0;
        let mut tries = 0;
        loop {
            let mut request =
                raw::uffdio_move { dst: to.start().0 + at, src: from.0 + at, len: to.bytes() - at, mode: 0, move_: 0 };
            let errno = match self.call(UFFDIO_MOVE, &mut request) {
                Ok(()) => return Transferred { bytes: to.bytes(), errno: None },
                Err(errno) => errno,
            };
            let moved = u64::try_from(request.move_).unwrap_or(0);
            at += moved;
            tries += 1;
            // EAGAIN is also what a partial success is called.
            if errno != libc::EAGAIN || (moved == 0 && tries > 64) {
                return Transferred { bytes: at, errno: Some(errno) };
            }
        }
    }

    /// Fills missing pages of `to`, which is registered with this descriptor, with the contents at
    /// `from`, and wakes the threads that wait there.
    pub(super) fn copy(self, to: CpuSpan, from: CpuVa) -> Transferred {
        let mut request = raw::uffdio_copy { dst: to.start().0, src: from.0, len: to.bytes(), mode: 0, copy: 0 };
        match self.call(ioctl::UFFDIO_COPY, &mut request) {
            Ok(()) => Transferred { bytes: to.bytes(), errno: None },
            Err(errno) => Transferred { bytes: u64::try_from(request.copy).unwrap_or(0), errno: Some(errno) },
        }
    }

    /// Fills missing pages of `span` with zeros, and wakes the threads that wait there.
    pub(super) fn zero(self, span: CpuSpan) -> Result<(), i32> {
        let mut request = raw::uffdio_zeropage { range: range(span), mode: 0, zeropage: 0 };
        self.call(ioctl::UFFDIO_ZEROPAGE, &mut request)
    }

    /// Whether anonymous memory at `page` is registered with this descriptor. UFFDIO_COPY and
    /// UFFDIO_ZEROPAGE fill what is registered with any. Registers what is registered with none or
    /// this, so that only what may be registered is asked for.
    ///
    /// # Errors
    /// EAGAIN while somebody is changing registered mappings.
    pub(super) fn is_registered(self, page: CpuSpan) -> Result<bool, i32> {
        // This is for shared memory, and what is not is refused, but only after its registration
        // was looked at.
        let mut request = raw::uffdio_continue { range: range(page), mode: 0, mapped: 0 };
        match self.call(ioctl::UFFDIO_CONTINUE, &mut request) {
            Err(libc::EINVAL) => Ok(self.register(page, Mode::Missing).is_ok()),
            Err(libc::EAGAIN) => Err(libc::EAGAIN),
            _ => Ok(false),
        }
    }

    /// See [`crate::uffd::is_changing`].
    pub(super) fn is_changing(self, probe: CpuSpan) -> bool {
        crate::uffd::is_changing(self.fd, probe)
    }

    /// Takes messages; 0 when there are none.
    pub(super) fn read(self, messages: &mut [raw::uffd_msg]) -> usize {
        // SAFETY: the buffer is as long as said.
        let read = unsafe { libc::read(self.fd, messages.as_mut_ptr().cast(), size_of_val(messages)) };
        usize::try_from(read).unwrap_or(0) / size_of::<raw::uffd_msg>()
    }

    /// Waits for messages.
    pub(super) fn wait_readable(self) {
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }
}

const fn range(span: CpuSpan) -> raw::uffdio_range {
    raw::uffdio_range { start: span.start().0, len: span.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use vkfd_driver::base::addr::{index, PAGE};

    #[test]
    fn pages_that_others_discard_while_they_move_are_not_moved_for_ever() {
        const PAGES: u64 = 512;
        let Ok(descriptor) = Descriptor::open() else {
            eprintln!("SKIPPED: no userfaultfd that moves pages");
            return;
        };
        let map = || {
            let at = sys::map_anonymous(index(PAGES * PAGE), libc::MAP_PRIVATE).unwrap();
            CpuVa(at.as_ptr().expose_provenance() as u64)
        };
        let (from, to) = (map(), map());
        // SAFETY: memory mapped above, which nothing refers to.
        let discard = |at: CpuVa| unsafe { sys::discard(at.0, PAGES * PAGE) };
        let moved: u64 = (0..2000u32)
            .map(|round| {
                let from_pages = sys::madvise(from.0, PAGES * PAGE, libc::MADV_POPULATE_WRITE);
                from_pages.unwrap();
                let to = CpuSpan::between(to, CpuVa(to.0 + PAGES * PAGE));
                descriptor.register(to, Mode::Missing).unwrap();
                let moved = std::thread::scope(|scope| {
                    scope.spawn(|| discard(from));
                    (0..round % 64 * 64).for_each(|_| std::hint::spin_loop());
                    descriptor.move_pages(to, from).bytes
                });
                // An event of it would have to be read.
                descriptor.unregister(to).unwrap();
                discard(to.start());
                moved
            })
            .sum();
        assert!(moved > 0);
    }

    #[test]
    fn it_knows_its_own_memory() {
        let (Ok(one), Ok(other)) = (Descriptor::open(), Descriptor::open()) else {
            eprintln!("SKIPPED: no userfaultfd that moves pages");
            return;
        };
        let at = sys::map_anonymous(index(4 * PAGE), libc::MAP_PRIVATE).unwrap().as_ptr().expose_provenance() as u64;
        let page = |n: u64| CpuSpan::between(CpuVa(at + n * PAGE), CpuVa(at + (n + 1) * PAGE));
        one.register(page(0), Mode::Missing).unwrap();
        other.register(page(1), Mode::Missing).unwrap();
        // SAFETY: pages mapped above, which nothing refers to.
        unsafe { sys::unmap(page(3).start().0, PAGE) };
        assert_eq!([0, 1, 2, 3].map(|n| one.is_registered(page(n))), [true, false, false, false].map(Ok));
        // Which a copy does not: it fills what is registered with anybody.
        let from = [0u8; 4096];
        let from = CpuVa(from.as_ptr().expose_provenance() as u64);
        assert_eq!([0, 1, 2].map(|n| one.copy(page(n), from).errno), [None, None, Some(libc::ENOENT)]);
    }
}
