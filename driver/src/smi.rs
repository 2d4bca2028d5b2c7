// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI events: what happened to a GPU's memory, as lines of text that a client reads from a file.
//!
//! A host opens a [`Client`] for SMI_EVENTS and gives it a file: a write of 8 bytes is [`Client::select`], a read is
//! [`Client::read`], and what polls is woken by the host's [`Wake`]. Lines are formatted as KFD's and kept in a ring of
//! [`RING_BYTES`] a client; one that does not fit is dropped, whole, as KFD does.
//!
//! Events are sent from invalidations, that is in memory reclaim: nothing is allocated then, and where the invalidation may not
//! block, a lock that is taken costs the event. The list of clients is under a lock of rank `SmiClients`, a ring under one of rank
//! `Smi`; both come last but for work items. With no client that wants it an event costs one load.

use crate::errno::Result;
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, Vec};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use vkfd_uapi::smi as abi;

/// Bytes of text that wait for a client.
pub const RING_BYTES: usize = 8192;

/// Something that clients may hear of. Addresses are page numbers, sizes in pages, locations `gpu_id`s or 0 for system memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A GPU page fault that could not be served.
    VmFault,
    /// Pages are going to move.
    MigrateStart {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// Where they are.
        from: u32,
        /// Where they go.
        to: u32,
        /// The range's prefetch location.
        prefetch: u32,
        /// The range's preferred location.
        preferred: u32,
        /// `MIGRATE_TRIGGER_*`.
        trigger: u32,
    },
    /// Pages have moved, or not.
    MigrateEnd {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// Where they were.
        from: u32,
        /// Where they went.
        to: u32,
        /// `MIGRATE_TRIGGER_*`.
        trigger: u32,
        /// 0, or the negative error number.
        error: i32,
    },
    /// A page fault is being served.
    FaultStart {
        /// The page.
        page: u64,
        /// Whether it was a write.
        write: bool,
    },
    /// A page fault has been served.
    FaultEnd {
        /// The page.
        page: u64,
        /// Whether pages have moved for it.
        migrated: bool,
    },
    /// The process's queues were stopped.
    Evicted {
        /// `QUEUE_EVICTION_TRIGGER_*`.
        trigger: u32,
    },
    /// They run again, or could not yet.
    Restored {
        /// Tried, and to be tried again.
        rescheduled: bool,
    },
    /// Entries of an SVM range were cleared.
    Unmapped {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// `SVM_UNMAP_TRIGGER_*`.
        trigger: u32,
    },
    /// A process has got a VM on the GPU.
    ProcessStart,
    /// It has it no more.
    ProcessEnd,
}

impl Event {
    /// Its number in the ABI.
    pub const fn number(&self) -> u32 {
        match self {
            Self::VmFault => abi::SMI_EVENT_VMFAULT,
            Self::MigrateStart { .. } => abi::SMI_EVENT_MIGRATE_START,
            Self::MigrateEnd { .. } => abi::SMI_EVENT_MIGRATE_END,
            Self::FaultStart { .. } => abi::SMI_EVENT_PAGE_FAULT_START,
            Self::FaultEnd { .. } => abi::SMI_EVENT_PAGE_FAULT_END,
            Self::Evicted { .. } => abi::SMI_EVENT_QUEUE_EVICTION,
            Self::Restored { .. } => abi::SMI_EVENT_QUEUE_RESTORE,
            Self::Unmapped { .. } => abi::SMI_EVENT_UNMAP_FROM_GPU,
            Self::ProcessStart => abi::SMI_EVENT_PROCESS_START,
            Self::ProcessEnd => abi::SMI_EVENT_PROCESS_END,
        }
    }

    fn write(&self, line: &mut Line, gpu_id: u32, who: Who) -> fmt::Result {
        let (node, pid, ns) = (gpu_id, who.pid, os::now().0);
        write!(line, "{:x} ", self.number())?;
        match *self {
            // KFD names the task as well; a process has no name here that another could not have.
            Self::VmFault => writeln!(line, "{pid:x}:vkfd"),
            Self::ProcessStart | Self::ProcessEnd => writeln!(line, "{pid:x} vkfd"),
            Self::MigrateStart { start, pages, from, to, prefetch, preferred, trigger } => writeln!(
                line,
                "{ns} -{pid} @{start:x}({pages:x}) {from:x}->{to:x} {prefetch:x}:{preferred:x} {trigger}"
            ),
            Self::MigrateEnd { start, pages, from, to, trigger, error } => {
                writeln!(line, "{ns} -{pid} @{start:x}({pages:x}) {from:x}->{to:x} {trigger} {error}")
            }
            Self::FaultStart { page, write } => {
                writeln!(line, "{ns} -{pid} @{page:x}({node:x}) {}", if write { 'W' } else { 'R' })
            }
            Self::FaultEnd { page, migrated } => {
                writeln!(line, "{ns} -{pid} @{page:x}({node:x}) {}", if migrated { 'M' } else { 'U' })
            }
            Self::Evicted { trigger } => writeln!(line, "{ns} -{pid} {node:x} {trigger}"),
            Self::Restored { rescheduled } => {
                writeln!(line, "{ns} -{pid} {node:x} {}", if rescheduled { 'R' } else { '0' })
            }
            Self::Unmapped { start, pages, trigger } => {
                writeln!(line, "{ns} -{pid} @{start:x}({pages:x}) {node:x} {trigger}")
            }
        }
    }
}

/// Which process an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// Its number in this driver ([`crate::process::Process::number`]).
    pub process: u64,
    /// Its process id, as its events show it.
    pub pid: u32,
}

/// Text being formatted, cut at the largest line.
struct Line {
    text: [u8; abi::SMI_EVENT_MSG_SIZE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = &mut self.text[self.len..];
        let fits = s.len().min(room.len());
        room[..fits].copy_from_slice(&s.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Wakes whoever polls or reads a client's file. Called in memory reclaim: must not allocate or sleep.
pub trait Wake: Send + Sync {
    /// Something can be read.
    fn wake(&self);
}

struct Ring {
    bytes: Vec<u8>,
    first: usize,
    len: usize,
}

/// Someone who reads a GPU's events.
pub struct Client {
    process: u64,
    all: bool,
    selected: AtomicU64,
    lost: AtomicU64,
    ring: Mutex<Ring>,
    wake: Arc<dyn Wake>,
}

impl Client {
    /// A client of process number `process`, which hears nothing until it selects something. `all`: allowed to hear of other processes.
    pub fn new(process: u64, all: bool, wake: Arc<dyn Wake>) -> Result<Arc<Self>> {
        let ring = Ring { bytes: Vec::filled(0, RING_BYTES)?, first: 0, len: 0 };
        let ring = Mutex::new(Rank::Smi, ring)?;
        os::arc(Self { process, all, selected: AtomicU64::new(0), lost: AtomicU64::new(0), ring, wake })
    }

    /// Which events it wants from now on: a mask as of [`abi::event_mask`].
    pub fn select(&self, mask: u64) {
        self.selected.store(mask, Ordering::Release);
    }

    /// Takes up to `to.len()` bytes of text; how many. 0 when nothing waits (EAGAIN for the file).
    pub fn read(&self, to: &mut [u8]) -> usize {
        let mut ring = self.ring.lock();
        let count = ring.len.min(to.len());
        for byte in &mut to[..count] {
            *byte = ring.bytes[ring.first];
            ring.first = (ring.first + 1) % RING_BYTES;
        }
        ring.len -= count;
        count
    }

    /// Whether text waits.
    pub fn is_readable(&self) -> bool {
        self.ring.lock().len != 0
    }

    /// Events that found no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn wants(&self, number: u32, process: u64) -> bool {
        let mask = self.selected.load(Ordering::Acquire);
        let others = self.all && mask & abi::event_mask(abi::SMI_EVENT_ALL_PROCESS) != 0;
        mask & abi::event_mask(number) != 0 && (process == self.process || others)
    }

    fn push(&self, line: &[u8], blockable: bool) {
        let guard = if blockable { Some(self.ring.lock()) } else { self.ring.try_lock() };
        let Some(mut ring) = guard.filter(|ring| RING_BYTES - ring.len >= line.len()) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        for byte in line {
            let at = (ring.first + ring.len) % RING_BYTES;
            ring.bytes[at] = *byte;
            ring.len += 1;
        }
        drop(ring);
        self.wake.wake();
    }
}

/// The clients of one GPU.
pub struct Clients {
    list: Mutex<Vec<Arc<Client>>>,
    /// How many there are.
    count: AtomicU64,
}

impl Clients {
    /// None.
    pub fn new() -> Result<Self> {
        Ok(Self { list: Mutex::new(Rank::SmiClients, Vec::new())?, count: AtomicU64::new(0) })
    }

    /// Adds a client. Not to be called twice at once with the same one.
    pub fn add(&self, client: &Arc<Client>) -> Result {
        loop {
            let wanted = self.list.lock().len() + 1;
            let mut bigger = Vec::with_capacity(wanted)?;
            let mut list = self.list.lock();
            if list.len() + 1 > bigger.capacity() {
                drop(list);
                continue;
            }
            for known in list.iter() {
                bigger.push_reserved(known.clone());
            }
            bigger.push_reserved(client.clone());
            core::mem::swap(&mut *list, &mut bigger);
            self.count.store(list.len() as u64, Ordering::Release);
            drop(list);
            return Ok(());
        }
    }

    /// Its file was closed.
    pub fn remove(&self, client: &Arc<Client>) {
        let mut list = self.list.lock();
        let at = list.iter().position(|known| Arc::ptr_eq(known, client));
        let removed = at.map(|at| list.swap_remove(at));
        self.count.store(list.len() as u64, Ordering::Release);
        drop(list);
        drop(removed);
    }

    /// Tells all who want to know. `blockable` as of an invalidation; elsewhere true.
    pub fn send(&self, gpu_id: u32, who: Who, event: Event, blockable: bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(list) = (if blockable { Some(self.list.lock()) } else { self.list.try_lock() }) else { return };
        let mut wanted = list.iter().filter(|client| client.wants(event.number(), who.process)).peekable();
        if wanted.peek().is_none() {
            return;
        }
        let mut line = Line { text: [0; abi::SMI_EVENT_MSG_SIZE], len: 0 };
        // A line takes whatever is written to it.
        let _ = event.write(&mut line, gpu_id, who);
        for client in wanted {
            client.push(&line.text[..line.len], blockable);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;

    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn text(client: &Client) -> String {
        let mut bytes = [0; RING_BYTES];
        let n = client.read(&mut bytes);
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    #[test]
    fn a_client_hears_what_it_selected_of_its_own_process_and_full_rings_drop_whole_lines() {
        let clients = Clients::new().unwrap();
        let wake = Arc::new(Count(AtomicU64::new(0)));
        let mine = Client::new(1, false, wake.clone()).unwrap();
        let other = Client::new(2, false, wake.clone()).unwrap();
        let root = Client::new(3, true, wake.clone()).unwrap();
        for client in [&mine, &other, &root] {
            clients.add(client).unwrap();
        }
        let evicted = Event::Evicted { trigger: abi::QUEUE_EVICTION_TRIGGER_SVM };
        let who = Who { process: 1, pid: 77 };
        clients.send(5, who, evicted, true);
        assert!(!mine.is_readable(), "nothing was selected");
        for client in [&mine, &other] {
            client.select(abi::event_mask(abi::SMI_EVENT_QUEUE_EVICTION));
        }
        root.select(abi::event_mask(abi::SMI_EVENT_QUEUE_EVICTION) | abi::event_mask(abi::SMI_EVENT_ALL_PROCESS));
        clients.send(5, who, evicted, true);
        clients.send(5, who, Event::Restored { rescheduled: false }, true);
        let line = text(&mine);
        assert!(line.starts_with("9 ") && line.ends_with(" -77 5 0\n") && line.lines().count() == 1, "{line}");
        assert!(root.is_readable() && !other.is_readable());
        assert_eq!(wake.0.load(Ordering::SeqCst), 2);
        for _ in 0..10_000 {
            clients.send(5, who, evicted, true);
        }
        assert!(mine.lost() > 0);
        assert!(text(&mine).lines().all(|line| line.starts_with("9 ") && line.ends_with(" -77 5 0")));
        clients.remove(&mine);
        clients.send(5, who, evicted, true);
        assert!(!mine.is_readable());
    }

    #[test]
    fn lines_are_as_kfds_macros_write_them() {
        let mut line = Line { text: [0; abi::SMI_EVENT_MSG_SIZE], len: 0 };
        let event = Event::MigrateStart {
            start: 0x7f00,
            pages: 0x200,
            from: 0,
            to: 0xab,
            prefetch: 0xab,
            preferred: u32::MAX,
            trigger: abi::MIGRATE_TRIGGER_PREFETCH,
        };
        event.write(&mut line, 0xab, Who { process: 1, pid: 42 }).unwrap();
        let text = core::str::from_utf8(&line.text[..line.len]).unwrap();
        let rest = text.strip_prefix("5 ").unwrap().split_once(' ').unwrap().1;
        assert_eq!(rest, "-42 @7f00(200) 0->ab ab:ffffffff 0\n");
    }
}
